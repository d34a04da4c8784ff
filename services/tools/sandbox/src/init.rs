//! The program `sandbox-init`, which is the same executable twice.
//!
//! The *supervisor* enters the user and pid namespaces and stays outside of the rest. It ends the
//! sandbox when the service hangs up. Its child is the *init*: pid 1 of the sandbox, so that
//! when it dies everything dies. It puts up the layers that are the same for every command, waits
//! for the request, puts up the others, reports, starts the command and reaps what the command
//! leaves behind.

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

use std::{
    collections::BTreeSet,
    fs::{self, File, Metadata},
    io,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
};

use nix::{
    sys::{prctl, signal::Signal},
    unistd::{dup2_stderr, dup2_stdout, fchdir},
};

pub use layers::restrict;

use layers::Standing;

use crate::{
    protocol::{self, Errand, Inside, Request, Status},
    report::Report,
};

/// Does what the command line says.
pub fn main(errand: &str) -> io::Result<()> {
    match serde_json::from_str(errand)? {
        Errand::Supervise(outside) => supervisor::supervise(&outside),
        Errand::Init(inside) => run(inside),
    }
}

/// Pid 1 of the sandbox.
fn run(inside: Inside) -> io::Result<()> {
    // Set first and kept: from here on the supervisor's death is ours.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // Commands run under our uid, this one and those of others while we wait for ours: none must
    // be able to look into us.
    prctl::set_dumpable(false)?;
    let socket = io::stdin();
    let status = match build(inside) {
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

/// The request comes in the middle, whether somebody is waiting for us or we for somebody.
fn build(inside: Inside) -> io::Result<(Request, Verdict)> {
    let prepared = layers::prepare(&inside.omitted, inside.report);
    let (request, given): (Request, _) = protocol::read(io::stdin())?;
    settle(given)?;
    let (report, standing) = layers::put_up(&request, prepared)?;
    let missing = report.missing();
    let verdict = match missing.difference(&request.profile.optional).collect::<BTreeSet<_>>() {
        demanded if demanded.is_empty() => Verdict::Stands { report, standing },
        _ => Verdict::Refused(report),
    };
    Ok((request, verdict))
}

/// Makes the workspace our working directory, and the pipes our output and error, which become
/// the command's.
fn settle(given: Vec<OwnedFd>) -> io::Result<()> {
    let mut given = given.into_iter();
    let workspace = given.next().ok_or_else(|| io::Error::other("no workspace was handed over"))?;
    enter(&workspace.into())
        .map_err(|error| io::Error::other(format!("cannot enter the workspace: {error}")))?;
    if let Some(output) = given.next() {
        dup2_stdout(&output)?;
        dup2_stderr(given.next().as_ref().unwrap_or(&output))?;
    }
    Ok(())
}

/// Whoever was begun for a workspace is in it already, and stays: that holds also where somebody
/// has put us into another mount namespace on the way, in which what is handed over is of no use.
fn enter(workspace: &File) -> io::Result<()> {
    let place = |metadata: Metadata| (metadata.dev(), metadata.ino());
    if place(fs::metadata(".")?) != place(workspace.metadata()?) {
        fchdir(workspace)?;
    }
    Ok(())
}
