//! `sandbox-init`: builds a sandbox around itself and runs one command in it.
//!
//! Started by the sandbox library with the control socket as its standard input. Called with an
//! argument, it is the inner half of itself: see `sandbox::init`.

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    let result = match env::args().nth(1) {
        None => sandbox::init::supervise(),
        Some(outside) => sandbox::init::run(&outside),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
