//! What the sandbox promises, tried from inside. Everything holds for root and for an ordinary
//! user alike: `everything_holds_for_an_ordinary_user` runs the rest again as one.

// Here a helper that fails is a test that fails.
#![allow(clippy::unwrap_used)]

mod bench;
mod door;
mod isolation;
mod kernel;
mod lifetime;
mod limits;
mod missing;
mod ordinary_user;
mod prepared;
mod streams;
