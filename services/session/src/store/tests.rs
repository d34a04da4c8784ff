//! What the functions in the database promise, asked of a real one.

mod admin;
mod agents;
mod context;
mod facts;
mod flush;
mod history;
mod jobs;
mod lease;
mod memories;
mod people;
mod log;
mod plans;
mod queue;
mod subagents;
mod submit;
mod tasks;
mod trials;
