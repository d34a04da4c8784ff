//! Whatever comes over the wire is answered: with what the contract says, and never with silence.
//!
//! Every RPC gets bytes that mean nothing, messages that mean something and have one thing wrong
//! with them, and messages that no generated client could send. `WIRE_SEED` replays a run, and
//! `WIRE_SECONDS` makes it longer.

mod damage;

use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use futures::{StreamExt as _, stream};
use local::Service;
use proto::auth::v1::Scope;
use serde_json::json;
use tests::{
    Client, Method, Reply, World,
    chaos::{Dice, seed, variable},
    hmac_of, methods,
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
    let (mut calls, mut wrong) = (0, Vec::new());
    let end = Instant::now() + Duration::from_secs(seconds);
    // At least once around, however slow the machine is.
    while calls == 0 || Instant::now() < end {
        let insiders = insiders(&mut world);
        let mut round = Vec::new();
        for method in &methods {
            let (arm, kind) = (dice.below(8), dice.below(damage::KINDS));
            let request = request_of(method, &own, arm);
            let bytes = damage::done(&mut dice, kind, method, &request);
            let client = match method.scope {
                Scope::Internal => &insiders[service_index(method.service)],
                _ => &client,
            };
            round.push((client, method, bytes));
        }
        calls += round.len();
        let judged =
            stream::iter(round).map(|(client, method, bytes)| judge(client, method, bytes));
        let judged: Vec<_> = judged.buffer_unordered(AT_ONCE).collect().await;
        wrong.extend(judged.into_iter().flatten());
        assert!(wrong.len() < 20, "{wrong:#?}");
    }
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

/// Sends it, and says what is wrong with the answer.
async fn judge(client: &Client, method: &Method, bytes: Vec<u8>) -> Option<String> {
    let shown = HEXLOWER.encode(&bytes[..bytes.len().min(SHOWN)]);
    // Nobody waits here for a child that waits for a person.
    let waits = method.name.ends_with("/WaitSubagent");
    let patience = Duration::from_secs(if waits { 2 } else { 30 });
    let reply = client.send_within(patience, method, vec![bytes]).await;
    let problem = match reply.status.code() {
        Code::DeadlineExceeded if waits => return None,
        Code::Ok
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::ResourceExhausted
        | Code::OutOfRange => return None,
        // A server that somebody else named, and that is nowhere.
        Code::Unavailable if method.name.ends_with("/WatchMcpServer") => return None,
        Code::InvalidArgument if says_what(&reply) => return None,
        Code::InvalidArgument => "does not say what is invalid",
        _ => "answers strangely",
    };
    let status = &reply.status;
    let reason = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
    let said = format!("{:?} {reason}: {}", status.code(), status.message());
    Some(format!("{} {problem}: {said} to {shown}", method.name))
}

/// Whether a refusal names the field, or the thing that does not take it.
fn says_what(reply: &Reply) -> bool {
    let details = reply.status.get_error_details();
    let field = details.bad_request().is_some_and(|bad| {
        bad.field_violations.iter().all(|violation| !violation.field.is_empty())
    });
    field || details.error_info().is_some_and(|info| !info.metadata.is_empty())
}

/// Somebody whom each service takes for one of the others; for a minute.
fn insiders(world: &mut World) -> Vec<Client> {
    let secret = fs::read_to_string(world.fleet.dir().join("internal.secret")).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let part = |json: serde_json::Value| BASE64URL_NOPAD.encode(json.to_string().as_bytes());
    let token = |service: Service| {
        let claims = json!({
            "iss": "windlass", "aud": service.name(), "iat": now, "exp": now + 60,
            "tenant": "acme", "sub": "ann", "scopes": ["read", "run", "internal"],
        });
        let signed = format!("{}.{}", part(json!({ "alg": "HS256", "typ": "JWT" })), part(claims));
        let signature = BASE64URL_NOPAD.encode(&hmac_of(secret.as_bytes(), &[&signed]));
        format!("{signed}.{signature}")
    };
    Service::ALL.map(|service| world.client_with(Some(&token(service)))).into()
}

fn service_index(service: Service) -> usize {
    Service::ALL.iter().position(|other| *other == service).unwrap()
}
