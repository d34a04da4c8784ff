//! What the functions in the database promise, asked of a real one.

mod agents;
mod flush;
mod lease;
mod plans;
mod submit;
