//! No tenant reaches what belongs to another, by whichever RPC.
//!
//! Nothing here lists RPCs: requests are built from the descriptors, with another tenant's ids in
//! every field that takes one, so a new RPC is covered by being in the contract. A field that
//! names something and that nobody here knows how to fill fails the test.

pub mod belongings;
mod request;
mod rows;

use local::{Fleet, Service};
use prost::Message as _;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use proto::auth::v1::Scope;
use serde_json::Value;
use tests::{Client, Method, Reply, World, explain, methods, reason, request_id};
use tonic::Code;

use belongings::{Belongings, SECRET};
use request::Build;

/// Whose things they are, who wants them, and somebody who keeps to their own.
const OWNER: &str = "acme";
const STRANGER: &str = "rival";
const WITNESS: &str = "cedar";

#[tokio::test]
async fn no_rpc_reaches_another_tenant() {
    // Nothing is to change by itself while we look whether something changed.
    let plan = Fleet::plan().env_of(Service::Session, "SWEEP", "3600");
    let mut world = World::planned(plan).await;
    let owner = world.client(OWNER).await;
    let stranger = world.client(STRANGER).await;
    let theirs = belongings::make(&owner, OWNER).await;
    let own = belongings::make(&stranger, STRANGER).await;

    let before = rows::settled(world.fleet.database_url(), OWNER).await;
    let file = belongings::file(&owner, &theirs).await;
    let mut leaks = Vec::new();
    for method in methods() {
        let internal = method.scope == Scope::Internal;
        // Facts are those of all tenants, as the contract says.
        let of_nobody = method.name.contains(".FactService/");
        let insider = world.insider(STRANGER);
        for attempt in attempts(&method, &theirs, &own) {
            let request = vec![attempt.bytes(&method)];
            if internal {
                let reply = stranger.send(&method, request.clone()).await;
                let told = told(&reply);
                if !told.contains("REASON_SCOPE_MISSING") {
                    leaks.push(format!("{} takes a key: {told}", method.name));
                }
            }
            if of_nobody {
                continue;
            }
            let caller = if internal { &insider } else { &stranger };
            let reply = caller.send(&method, request).await;
            leaks.extend(attempt.judge(&method, &reply, &theirs));
            if let Some(nowhere) = &attempt.nowhere {
                let unknown = caller.send(&method, vec![encode(&method.input, nowhere)]).await;
                leaks.extend(tells_apart(&method, &reply, &unknown));
            }
        }
        leaks.extend(pages(&method, &owner, &stranger, &theirs).await);
    }
    assert_eq!(leaks, [""; 0], "{} leaks", leaks.len());

    assert_eq!(belongings::file(&owner, &theirs).await, file);
    rows::compare(&before, &rows::of(world.fleet.database_url(), OWNER).await);
}

/// Requests that no server would look at prove nothing: these are as good as those of who owns
/// everything that is in them.
#[tokio::test]
async fn the_requests_that_are_refused_to_strangers_serve_their_owner() {
    let mut world = World::start().await;
    let client = world.client(WITNESS).await;
    let own = belongings::make(&client, WITNESS).await;
    let mut refused = Vec::new();
    let mut methods = methods();
    // What ends something comes last.
    methods.sort_by_cached_key(|method| finality(&method.name));
    for method in &methods {
        for arm in 0..request::arms(&method.input) {
            let fill = |field: &str| mine(&own, field);
            let built = Build { arm, fill: &fill }.request(&method.input);
            let bytes = encode(&method.input, &built.json);
            let insider = world.insider(WITNESS);
            let caller = if method.scope == Scope::Internal { &insider } else { &client };
            let reply = caller.send_within(PATIENCE, method, vec![bytes]).await;
            match reply.status.code() {
                // One waits for a subagent that waits for us, the other for a process to end.
                Code::DeadlineExceeded
                    if ["/WaitSubagent", "/RestoreWorkspace"]
                        .iter()
                        .any(|waits| method.name.ends_with(waits)) => {}
                Code::Ok | Code::FailedPrecondition => (),
                Code::Unavailable if is_nowhere(method) => (),
                _ if is_about_itself(&reply) => (),
                _ => refused.push(format!(
                    "{} answers {} to {}",
                    method.name,
                    told(&reply),
                    built.json
                )),
            }
        }
    }
    assert_eq!(refused, [""; 0]);
}

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

fn finality(name: &str) -> (usize, String) {
    let verb = name.split_once('/').map_or(name, |(_, verb)| verb);
    let last = ["Close", "Terminate", "Cancel", "Revoke", "End", "Delete"];
    let place = last.iter().position(|last| verb.starts_with(last)).map_or(0, |place| place + 1);
    (place, verb.to_owned())
}

/// What is refused for what it is, long after it was known whose it is: an import is a whole file,
/// and a trigger stays of its kind.
fn is_about_itself(reply: &Reply) -> bool {
    let said = told(reply);
    said.contains("REASON_IMPORT_INVALID") || said.contains("stays of its kind")
}

/// The servers that it watches are nowhere, which is found out when all else is well.
fn is_nowhere(method: &Method) -> bool {
    method.name.ends_with("/WatchMcpServer")
}

/// A request that has something in it that belongs to somebody else.
struct Attempt {
    what: String,
    json: Value,
    /// Whether nothing in it belongs to who asks.
    whole: bool,
    /// The same about things that nobody has.
    nowhere: Option<Value>,
}

/// Everything of theirs at once, and each thing of theirs among our own: a turn of theirs in a
/// session of ours is another question than one in theirs.
fn attempts(method: &Method, theirs: &Belongings, own: &Belongings) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for arm in 0..request::arms(&method.input) {
        let all = |field: &str| match is_request_id(field) {
            true => Some(request_id()),
            false => theirs.get(field),
        };
        let built = Build { arm, fill: &all }.request(&method.input);
        let gone = |field: &str| match is_request_id(field) {
            true => Some(request_id()),
            false => theirs.get(field).map(|id| nowhere(&id)),
        };
        let nowhere = Build { arm, fill: &gone }.request(&method.input);
        for place in &built.ids {
            // After the first time it would be our own that is used again, and of most calls they
            // never made one.
            if is_request_id(place) && (arm > 0 || theirs.get(place) == theirs.get("request_id")) {
                continue;
            }
            let one = |field: &str| match field == place {
                true => theirs.get(field),
                false => mine(own, field),
            };
            let mixed = Build { arm, fill: &one }.request(&method.input);
            let what = format!("their {place} among our own");
            attempts.push(Attempt { what, json: mixed.json, whole: false, nowhere: None });
        }
        attempts.push(Attempt {
            what: "everything of theirs".into(),
            json: built.json,
            whole: true,
            nowhere: Some(nowhere.json),
        });
    }
    attempts
}

impl Attempt {
    fn bytes(&self, method: &Method) -> Vec<u8> {
        encode(&method.input, &self.json)
    }

    /// What is wrong with the answer.
    fn judge(&self, method: &Method, reply: &Reply, theirs: &Belongings) -> Vec<String> {
        let answer = told(reply);
        let wrong = |problem: &str| {
            format!("{} with {} ({}): {problem}: {answer}", method.name, self.what, self.json)
        };
        let mut problems = Vec::new();
        match reply.status.code() {
            Code::Ok | Code::NotFound | Code::PermissionDenied | Code::InvalidArgument => (),
            // It may be about what is our own.
            Code::FailedPrecondition if !self.whole => (),
            Code::Unavailable if !self.whole && is_nowhere(method) => (),
            _ => problems.push(wrong("answers strangely")),
        }
        let asked = self.json.to_string();
        if reply.contains(SECRET) {
            problems.push(wrong("tells what they wrote"));
        }
        // Whoever names something may be told that name again: a session may have a workspace that is
        // not there yet, and it is within the tenant that it will be looked for.
        for id in theirs.ids().filter(|id| reply.contains(id) && !asked.contains(id)) {
            problems.push(wrong(&format!("tells of {id}")));
        }
        problems
    }
}

/// Whoever can tell what is not theirs from what is not there can look for it.
fn tells_apart(method: &Method, foreign: &Reply, unknown: &Reply) -> Option<String> {
    let shape = |reply: &Reply| match reply.status.code() {
        Code::Ok => format!("OK with {} messages", reply.messages.len()),
        Code::DeadlineExceeded => "nothing".to_owned(),
        code => format!("{code:?} {}", reason(&reply.status)),
    };
    let (foreign, unknown) = (shape(foreign), shape(unknown));
    let differ = foreign != unknown;
    differ.then(|| format!("{} says {foreign} of theirs, and {unknown} of none", method.name))
}

/// A place in their list is none in ours.
async fn pages(
    method: &Method,
    owner: &Client,
    stranger: &Client,
    theirs: &Belongings,
) -> Option<String> {
    let token = method.output.get_field_by_name("next_page_token")?;
    let fill = |field: &str| theirs.get(field);
    let mut built = Build { arm: 0, fill: &fill }.request(&method.input).json;
    built["page_size"] = 1.into();
    let reply = owner.send(method, vec![encode(&method.input, &built)]).await;
    let page = reply.messages.first()?;
    let page = DynamicMessage::decode(method.output.clone(), page.as_slice()).unwrap();
    built["page_token"] = page.get_field(&token).as_str().unwrap().into();
    let reply = stranger.send(method, vec![encode(&method.input, &built)]).await;
    let found = theirs.ids().chain([SECRET]).find(|id| reply.contains(id) && !is_in(&built, id));
    found.map(|id| format!("{} tells of {id} to who has their page token", method.name))
}

fn told(reply: &Reply) -> String {
    match reply.status.code() {
        Code::Ok => "OK".to_owned(),
        Code::DeadlineExceeded => "nothing".to_owned(),
        _ => explain(&reply.status),
    }
}

fn is_in(request: &Value, text: &str) -> bool {
    request.to_string().contains(text)
}

/// A name as good as the real one, that nobody has.
fn nowhere(id: &str) -> String {
    match id.strip_prefix(OWNER) {
        Some(name) => format!("gone{name}"),
        None => format!("{}0000", &id[..id.len() - 4]),
    }
}

/// A request that is good enough to be looked at, about what somebody has.
pub fn request_of(method: &Method, own: &Belongings, arm: usize) -> DynamicMessage {
    let fill = |field: &str| mine(own, field);
    decode(&method.input, &Build { arm, fill: &fill }.request(&method.input).json)
}

fn encode(message: &MessageDescriptor, json: &Value) -> Vec<u8> {
    decode(message, json).encode_to_vec()
}

fn decode(message: &MessageDescriptor, json: &Value) -> DynamicMessage {
    let built = DynamicMessage::deserialize(message.clone(), json.clone());
    built.unwrap_or_else(|error| panic!("{json} is no {}: {error}", message.name()))
}

/// What goes into a field of a request about our own.
fn mine(own: &Belongings, field: &str) -> Option<String> {
    match field {
        field if is_request_id(field) => Some(request_id()),
        // No call runs twice, and not every last letter is one of an id.
        "Call.tool_call_id" => {
            let number = request_id().replace("request-", "");
            Some(format!("call_{number:0>25}0"))
        }
        field => own.get(field),
    }
}

fn is_request_id(field: &str) -> bool {
    field.ends_with(".request_id")
}
