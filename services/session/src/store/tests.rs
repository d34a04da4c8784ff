//! What the functions in the database promise, asked of a real one.

mod admin;
mod agents;
mod facts;
mod flush;
mod history;
mod lease;
mod memories;
mod people;
mod log;
mod plans;
mod queue;
mod submit;
