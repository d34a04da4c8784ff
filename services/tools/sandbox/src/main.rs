//! `sandbox-init`: builds a sandbox around itself and runs one command in it.
//!
//! Started by the sandbox library with the control socket as its standard input and an errand as
//! its argument: see `sandbox::init`.

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    let errand = env::args().nth(1).unwrap_or_default();
    match sandbox::init::main(&errand) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
