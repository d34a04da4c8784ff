//! Whatever comes over the wire is answered: with what the contract says, and never with silence.
//!
//! Every RPC gets bytes that mean nothing, messages that mean something and have one thing wrong
//! with them, and messages that no generated client could send. `WIRE_SEED` replays a run, and
//! `WIRE_SECONDS` makes it longer.

mod damage;

use std::{collections::BTreeSet, fs, time::Duration};

use data_encoding::HEXLOWER;
use futures::{StreamExt as _, stream};
use local::Service;
use proto::{auth::v1::Scope, error::v1::Reason};
use tests::{
    Client, Method, Reply, World,
    chaos::{Dice, seed, variable},
    methods,
};
use tokio::time::Instant;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::tenants::{belongings, request_of};

const SECONDS: u64 = 10;

/// How many calls are under way at once.
const AT_ONCE: usize = 16;

/// How much of what was sent is shown of a call that went wrong.
const SHOWN: usize = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_sent_is_answered_as_documented() {
    let seed = seed("WIRE_SEED");
    let seconds = variable("WIRE_SECONDS").unwrap_or(SECONDS);
    eprintln!("WIRE_SEED={seed} WIRE_SECONDS={seconds}");
    let mut dice = Dice(seed);

    let mut world = World::start().await;
    let client = world.client("acme").await;
    let own = belongings::make(&client, "acme").await;
    let pids: Vec<_> = world.fleet.pids().collect();
    let methods = methods();
    let (mut calls, mut wrong, mut reached) = (0, Vec::new(), BTreeSet::new());
    let end = Instant::now() + Duration::from_secs(seconds);
    for round in 0.. {
        // Everybody gets every kind at least once, however slow the machine is.
        if round >= damage::KINDS && Instant::now() >= end {
            break;
        }
        let insider = world.insider("acme");
        let mut requests = Vec::new();
        for (number, method) in methods.iter().enumerate() {
            let kind = (round + number) % damage::KINDS;
            let request = request_of(method, &own, dice.below(8));
            let bytes = damage::done(&mut dice, kind, method, &request);
            let client = match method.scope {
                Scope::Internal => &insider,
                _ => &client,
            };
            requests.push((client, method, bytes));
        }
        calls += requests.len();
        let judged = stream::iter(requests).map(async |(client, method, bytes)| {
            let shown = HEXLOWER.encode(&bytes[..bytes.len().min(SHOWN)]);
            let reply = send(client, method, bytes).await;
            (method, judge(method, &reply).map(|problem| format!("{problem} to {shown}")), reply)
        });
        let judged: Vec<_> = judged.buffer_unordered(AT_ONCE).collect().await;
        for (method, problem, reply) in judged {
            wrong.extend(problem);
            if proves_that_it_was_read(&reply) {
                reached.insert(&method.name);
            }
        }
        assert!(wrong.len() < 20, "{wrong:#?}");
    }
    let missed: Vec<_> = methods.iter().filter(|one| !reached.contains(&one.name)).collect();
    assert!(missed.is_empty(), "nobody read what was sent to {missed:?}");
    eprintln!("{calls} calls");
    assert_eq!(wrong, [""; 0], "WIRE_SEED={seed}");

    assert_eq!(world.fleet.pids().collect::<Vec<_>>(), pids, "somebody died");
    for service in Service::ALL {
        let log = world.fleet.dir().join(service.name()).with_extension("log");
        let log = fs::read_to_string(log).unwrap();
        let panic = log.lines().find(|line| line.contains("panicked"));
        assert_eq!(panic, None, "WIRE_SEED={seed}");
    }
}

async fn send(client: &Client, method: &Method, bytes: Vec<u8>) -> Reply {
    let patience = Duration::from_secs(if waits(method) { 2 } else { 30 });
    client.send_within(patience, method, vec![bytes]).await
}

/// Nobody waits here for a child that waits for a person.
fn waits(method: &Method) -> bool {
    method.name.ends_with("/WaitSubagent")
}

/// What is wrong with an answer.
fn judge(method: &Method, reply: &Reply) -> Option<String> {
    let status = &reply.status;
    let reason = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
    let problem = match status.code() {
        Code::Ok => return None,
        // Our own clock may be the first to see it, and gives no reason.
        Code::DeadlineExceeded if waits(method) => return None,
        _ => match Reason::from_str_name(&reason) {
            None | Some(Reason::Unspecified) => "gives no reason",
            Some(Reason::ScopeMissing) => "misses a scope that the caller has",
            Some(_) => match status.code() {
                Code::NotFound
                | Code::AlreadyExists
                | Code::PermissionDenied
                | Code::FailedPrecondition
                | Code::ResourceExhausted
                | Code::OutOfRange => return None,
                // A server that somebody else named, and that is nowhere.
                Code::Unavailable if method.name.ends_with("/WatchMcpServer") => return None,
                Code::InvalidArgument if says_what(reply) => return None,
                Code::InvalidArgument => "does not say what is invalid",
                _ => "answers strangely",
            },
        },
    };
    let said = format!("{:?} {reason}: {}", status.code(), status.message());
    Some(format!("{} {problem}: {said}", method.name))
}

/// Whether it came from somebody who had read the request, and not from who stands before them.
fn proves_that_it_was_read(reply: &Reply) -> bool {
    !matches!(
        reply.status.code(),
        Code::PermissionDenied | Code::ResourceExhausted | Code::Unauthenticated
    )
}

/// Whether a refusal names the field, or the thing that does not take it.
fn says_what(reply: &Reply) -> bool {
    let details = reply.status.get_error_details();
    let field = details.bad_request().is_some_and(|bad| {
        bad.field_violations.iter().all(|violation| !violation.field.is_empty())
    });
    field || details.error_info().is_some_and(|info| !info.metadata.is_empty())
}
