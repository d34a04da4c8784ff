//! Ways out of the sandbox, each tried by a real program.
//!
//! Each attempt names the layers that stop it, and three things are seen of it: it fails in the
//! sandbox as it ships, in one that was prepared and in one that was not; it still fails when only one of the named layers is left, whichever; and
//! it succeeds when all of them are gone, so that it is known to be an attempt.
//! The facts are looked at as well: the layers that stop it are reported as standing, and where
//! the kernel tells that it has stopped something, that is known. `attempts.md` is the table of
//! all of them, which each attempt and `the_table_has_every_attempt` keep true. Everything holds
//! for root and for an ordinary user alike: `everything_holds_for_an_ordinary_user` runs the rest
//! again as one.

// Here a helper that fails is a test that fails.
#![allow(clippy::unwrap_used)]

mod attempt;
mod table;
mod program;
mod files;
mod kernel;
mod machine;
mod namespaces;
mod processes;
mod network;
mod floods;
mod inheritance;
mod ordinary_user;
