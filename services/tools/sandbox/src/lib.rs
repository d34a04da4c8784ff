//! Runs commands that nobody trusts.
//!
//! Defence in depth: namespaces with a private root, no capabilities, seccomp, Landlock,
//! resource limits and a control group, each of which would have to fail on its own. What was really applied is
//! reported layer by layer before the command runs, and a layer that the [`Profile`] demands
//! and the machine cannot give means that it does not run.
//!
//! A process with threads cannot safely prepare a child of itself, so [`Sandbox`] starts the
//! small program `sandbox-init` (module `init`), which is single-threaded and does the work:
//!
//! ```text
//! service ── spawns ──► supervisor ── spawns ──► init, pid 1 ── spawns ──► the command
//!    └──── control socket ───┴──────────────────────┘
//! ```
//!
//! The control socket carries the request and signals in, and the report, the end of what is
//! typed into and the exit out. When the service goes away, it hangs up, and the supervisor ends
//! everything.
//!
//! Much of that is the same for every command, so the first two can be started before there is one:
//! the init puts up what needs no request, and waits. A [`Sandbox`] may keep a few of them. Those
//! that are begun when they are asked for go the same way, only that nobody waits in the middle.
//! Each is used once, so that nothing of one command is left for another.
//!
//! A sandbox has no network. A command that may reach somebody is given a door, and not a
//! network: a socket that listens inside, where only the command sees it, and whose connections
//! the service takes outside, where it decides about each of them.

mod profile;
mod report;
mod omitted;
mod streams;
mod protocol;
mod cgroup;
mod control;
mod workspace;
mod prepared;
mod pool;
mod spawn;
mod child;
pub mod init;

pub use child::{Child, Exit};
pub use omitted::Omitted;
pub use profile::{Limits, PROXY_PORT, Profile, Program};
pub use report::{Layer, LayerReport, ParseTierError, Report, Tier, Violation};
pub use spawn::{Error, Sandbox};
pub use streams::{Input, Output, Signal, Size, Streams};
pub use workspace::create_workspace;
