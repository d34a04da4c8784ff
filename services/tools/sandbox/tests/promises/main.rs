//! What the sandbox promises, tried from inside. Everything holds for root and for an ordinary
//! user alike: `everything_holds_for_an_ordinary_user` runs the rest again as one.

mod bench;
mod isolation;
mod kernel;
mod lifetime;
mod limits;
mod missing;
mod ordinary_user;
