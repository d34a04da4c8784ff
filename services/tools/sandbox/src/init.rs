//! The program `sandbox-init`, which is the same executable twice.
//!
//! The *supervisor* enters the user and pid namespaces and stays outside of the rest. It ends the
//! sandbox when the service hangs up. Its child is the *init*: pid 1 of the sandbox, so that
//! when it dies everything dies. It puts up all other layers around itself, reports, starts the
//! command and reaps what the command leaves behind.

mod user;
mod supervisor;
mod layers;
mod root;
mod network;
mod limits;
mod landlock;
mod seccomp;
mod terminal;
mod command;

use std::{collections::BTreeSet, io};

use nix::sys::{prctl, signal::Signal};

pub use layers::restrict;

use layers::Standing;

use crate::{
    protocol::{self, Errand, Request, Status},
    report::Report,
};

/// Does what the command line says.
pub fn main(errand: &str) -> io::Result<()> {
    match serde_json::from_str(errand)? {
        Errand::Supervise(outside) => supervisor::supervise(&outside),
        Errand::Init(report) => run(report),
    }
}

/// Pid 1 of the sandbox. `outside` is the report of the layers that the supervisor put up.
fn run(outside: Report) -> io::Result<()> {
    // Set first and kept: from here on the supervisor's death is ours.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let socket = io::stdin();
    let status = match build(outside) {
        Ok((request, Verdict::Stands { report, standing })) => {
            if let Some(listener) = standing.proxy {
                protocol::hand_over(&socket, &Status::Listening, listener)?;
            }
            let (connection, given) = command::connect(&request, standing.terminal)?;
            let applied = Status::Applied(report);
            match given {
                Some(given) => protocol::hand_over(&socket, &applied, given)?,
                None => protocol::write(&socket, &applied)?,
            }
            command::run(&request, standing.private_root, connection)
        }
        Ok((_, Verdict::Refused(report))) => Status::Refused(report),
        Err(error) => Status::Broken(error.to_string()),
    };
    protocol::write(&socket, &status)
}

enum Verdict {
    Stands { report: Report, standing: Standing },
    Refused(Report),
}

fn build(outside: Report) -> io::Result<(Request, Verdict)> {
    let request: Request = protocol::read(io::stdin())?;
    let (report, standing) = layers::put_up(&request, outside)?;
    let missing = report.missing();
    let verdict = match missing.difference(&request.profile.optional).collect::<BTreeSet<_>>() {
        demanded if demanded.is_empty() => Verdict::Stands { report, standing },
        _ => Verdict::Refused(report),
    };
    Ok((request, verdict))
}
