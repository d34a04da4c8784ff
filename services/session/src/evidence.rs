//! Packs: JSON lines that a person can read and a program can check, without us. No I/O here
//! but reading and writing lines.
//!
//! Every line is one JSON object in the form of RFC 8785 with a number, a section, data, and a
//! digest over these. Lines of a section stand together. The last but one line is the manifest,
//! which has the digest of every section, and the last one is the signature of the manifest.
//! So nothing can be altered, moved, added or left out without a line that tells where.

mod pack;
mod key;
mod facts;
mod signal;
mod verify;
mod chain;
mod joins;
mod review;
mod compare;
#[cfg(test)]
mod tests;

pub use compare::{Past, Shown, differences};
pub use facts::{FAMILIES, Fact, Failures, artifacts, fact, timeline};
pub use key::{PublicKey, SigningKey, new_key};
pub use pack::{
    FORMAT, Gap, Head, Kind, Log, Manifest, PACK, Scope, Sealed, Signed, VERSION, Why, Writer,
};
pub use review::{change, cost_line, decision_line, failure_line};
pub use signal::{Signal, State, Tally};
pub use verify::{Failure, Report, Signature, verify};
