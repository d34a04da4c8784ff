//! Triggers, those who fire them, and what must have come of each firing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use local::Service;
use proto::triggers::v1::{
    Api, CreateTriggerRequest, Firing, ListFiringsRequest, PauseTriggerRequest, Schedule, Target,
    Trigger, schedule::When, target, trigger::Kind,
};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{Dice, Place};
use crate::{Client, Pairs, REPLICAS, Session, request_id};

/// How many fire triggers over HTTP.
const SENDERS: usize = 2;

/// How many sessions there are for firings that bring the name of theirs.
const KEYS: usize = 2;

/// How often the schedule is due.
const INTERVAL_MS: i64 = 1000;

/// Who gets no answer for so long does not wait for it any more.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long deliveries may take when all is well again.
const SETTLED: Duration = Duration::from_secs(120);

/// A command, so that somebody outside of the system can say how often it ran.
const SCRIPT: &str = "Please.\n#!script\n\
    call bash {\"command\": \"echo {{ payload.mark }} >> witness\"}\n---\n\
    say {{ payload.mark }}";

pub struct Occasions {
    schedule: String,
    /// When there was nothing yet.
    begun_ms: i64,
    api: Arc<Receiver>,
}

/// A trigger that is fired over HTTP.
struct Receiver {
    trigger_id: String,
    /// Its URL at each replica.
    urls: Vec<String>,
    credential: String,
    http: reqwest::Client,
    /// What was sent, by the key that makes it happen once, and whether that was acknowledged.
    sent: Mutex<BTreeMap<String, bool>>,
}

impl Occasions {
    /// Two triggers that nothing has happened to yet.
    pub async fn begin(stage: &mut Pairs, client: &Client) -> Occasions {
        let session = client.create_session().await;
        let begun_ms = now_ms();
        let target =
            Target { session: Some(target::Session::SessionId(session.id)), ..Target::default() };
        let when = Some(When::IntervalMs(INTERVAL_MS));
        let schedule = Schedule { when, misfire: "all".into(), ..Schedule::default() };
        let schedule = Trigger {
            name: "ticks".into(),
            kind: Some(Kind::Schedule(schedule)),
            target: Some(target),
            template: "Please.\n#!script\nsay tick".into(),
            max_per_minute: 6000,
            ..Trigger::default()
        };
        let (schedule, _) = create(client, schedule).await;

        let key = "{{ payload.key }}".to_owned();
        let target = Target {
            session: Some(target::Session::SessionKey(format!("{} {key}", schedule.trigger_id))),
            agent: "scripted".into(),
            ..Target::default()
        };
        let api = Trigger {
            name: "calls".into(),
            kind: Some(Kind::Api(Api::default())),
            target: Some(target),
            template: SCRIPT.into(),
            max_per_minute: 6000,
            ..Trigger::default()
        };
        let (api, credential) = create(client, api).await;
        let Some(Kind::Api(Api { url })) = api.kind else { panic!("it is no API trigger") };
        let mut http_url =
            |index| stage.replica(Service::Triggers, index).http_url().expect("it has none");
        // Whoever made it knows where it is received itself.
        let path = url.replacen(&http_url(0), "", 1);
        let urls = (0..REPLICAS).map(|index| format!("{}{path}", http_url(index))).collect();
        // Whoever was first to choose one has chosen for everybody.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
        let api =
            Receiver { trigger_id: api.trigger_id, urls, credential, http, sent: Mutex::default() };
        Occasions { schedule: schedule.trigger_id, begun_ms, api: Arc::new(api) }
    }

    pub fn senders(&self, dice: &mut Dice, stopped: &watch::Receiver<bool>) -> Vec<JoinHandle<()>> {
        let sender = |number| {
            let sending = send(self.api.clone(), number, Dice(dice.roll()), stopped.clone());
            tokio::spawn(sending)
        };
        (0..SENDERS).map(sender).collect()
    }

    /// Nothing fires any more, and everything that did has become a turn or says why not. Returns
    /// the sessions, with the turns that must be in them.
    pub async fn end(self, stage: &Pairs, client: &Client) -> Vec<Arc<Place>> {
        caught_up(client, &self.schedule).await;
        let request = PauseTriggerRequest { trigger_id: self.schedule.clone() };
        client.triggers().pause_trigger(request).await.unwrap();
        let ticks = settled(client, &self.schedule).await;
        each_due_time_fired_once(self.begun_ms, &ticks);
        let calls = settled(client, &self.api.trigger_id).await;
        each_call_fired_once(&self.api.sent.lock().unwrap(), &calls);

        let mut fired = BTreeMap::<String, BTreeMap<String, Option<String>>>::new();
        let marked = calls.iter().map(|call| (call, Some(call.delivery_id.clone())));
        for (firing, mark) in ticks.iter().map(|tick| (tick, None)).chain(marked) {
            if firing.status == "submitted" {
                assert!(!firing.turn_id.is_empty(), "it became no turn: {firing:?}");
                let turns = fired.entry(firing.session_id.clone()).or_default();
                let twice = turns.insert(firing.turn_id.clone(), mark);
                assert_eq!(twice, None, "two firings are one turn: {firing:?}");
            }
        }
        let mut places = Vec::new();
        for (id, turns) in fired {
            let session = Session { client: client.clone(), id };
            let place = Place::of(stage, session).await;
            place.notes.lock().unwrap().fired = turns;
            places.push(Arc::new(place));
        }
        places
    }
}

async fn create(client: &Client, trigger: Trigger) -> (Trigger, String) {
    let request = CreateTriggerRequest {
        request_id: request_id(),
        trigger: Some(trigger),
        ..CreateTriggerRequest::default()
    };
    let response = client.triggers().create_trigger(request).await.unwrap().into_inner();
    (response.trigger.unwrap(), response.secret)
}

/// Fires one after the other, each until somebody has taken it, and some of them once more.
async fn send(api: Arc<Receiver>, number: usize, chance: Dice, stopped: watch::Receiver<bool>) {
    let mut count = 0;
    while !*stopped.borrow() {
        count += 1;
        let mut dice = chance.of(count);
        let mark = format!("s{number}-{count}");
        let body = json!({ "mark": mark, "key": dice.below(KEYS) }).to_string();
        api.sent.lock().unwrap().insert(mark.clone(), false);
        let mut times = 1 + usize::from(dice.below(5) == 0);
        while times > 0 && !*stopped.borrow() {
            let url = &api.urls[dice.below(REPLICAS)];
            if api.post(url, &mark, &body).await {
                times -= 1;
                api.sent.lock().unwrap().insert(mark.clone(), true);
            }
            sleep(dice.millis(20, 300)).await;
        }
        sleep(dice.millis(100, 600)).await;
    }
}

impl Receiver {
    /// Whether it was taken, now or before.
    async fn post(&self, url: &str, key: &str, body: &str) -> bool {
        let request = self.http.post(url).bearer_auth(&self.credential);
        let request = request
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(body.to_owned());
        let Ok(response) = request.send().await else { return false };
        let status = response.status();
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return false;
        }
        let Ok(body) = response.bytes().await else { return false };
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        match status {
            StatusCode::ACCEPTED => true,
            StatusCode::OK => {
                assert_eq!(answer["reason"], "duplicate", "{answer}");
                true
            }
            _ => panic!("{key} was answered with {status}: {answer}"),
        }
    }
}

/// Every firing of a trigger, when none of them waits any more.
async fn settled(client: &Client, trigger_id: &str) -> Vec<Firing> {
    let begun = Instant::now();
    loop {
        let firings = firings(client, trigger_id).await;
        let Some(waiting) = firings.iter().find(|firing| firing.status == "pending") else {
            return firings;
        };
        assert!(begun.elapsed() < SETTLED, "nobody delivers it: {waiting:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

async fn firings(client: &Client, trigger_id: &str) -> Vec<Firing> {
    let mut request = ListFiringsRequest {
        trigger_id: trigger_id.to_owned(),
        page_size: 500,
        ..ListFiringsRequest::default()
    };
    let mut firings = Vec::new();
    loop {
        let page = client.triggers().list_firings(request.clone()).await.unwrap().into_inner();
        firings.extend(page.firings);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return firings;
        }
    }
}

/// Waits until the schedule is no further behind than one who just woke up.
async fn caught_up(client: &Client, trigger_id: &str) {
    let begun = Instant::now();
    loop {
        let last = firings(client, trigger_id).await.iter().map(due_ms).max();
        let behind = last.map(|last| now_ms() - last);
        if behind.is_some_and(|behind| behind < 3 * INTERVAL_MS) {
            return;
        }
        assert!(begun.elapsed() < SETTLED, "the schedule has stopped: {behind:?} ms behind");
        sleep(Duration::from_millis(100)).await;
    }
}

/// From the first on no due time is left out or there twice, whoever was away when it came, and
/// each has become a turn.
fn each_due_time_fired_once(begun_ms: i64, ticks: &[Firing]) {
    let mut due: Vec<i64> = ticks.iter().map(due_ms).collect();
    due.sort_unstable();
    let first = due.first().map(|first| first - begun_ms);
    assert!(first.is_some_and(|first| first <= 3 * INTERVAL_MS), "the first was {first:?} ms late");
    for pair in due.windows(2) {
        assert_eq!(pair[1] - pair[0], INTERVAL_MS, "a due time is missing or twice: {ticks:?}");
    }
    // Nobody was away for long enough to miss one for good.
    let lost = ticks.iter().find(|tick| !became_a_turn(tick) || tick.missed > 0);
    assert_eq!(lost, None, "a due time came to nothing");
}

/// Whether it became one, or there were too many already.
fn became_a_turn(firing: &Firing) -> bool {
    firing.status == "submitted" || firing.drop_reason == "queue_full"
}

fn due_ms(tick: &Firing) -> i64 {
    let due = tick.due_time.unwrap();
    due.seconds * 1000 + i64::from(due.nanos / 1_000_000)
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

/// What was acknowledged is one firing that became a turn, or found the queue full; what else was
/// sent under its key says that it is the same.
fn each_call_fired_once(sent: &BTreeMap<String, bool>, calls: &[Firing]) {
    let keys: BTreeSet<&str> = calls.iter().map(|call| call.delivery_id.as_str()).collect();
    let strange = keys.iter().find(|key| !sent.contains_key(**key));
    assert_eq!(strange, None, "nobody sent this");
    for (key, acknowledged) in sent {
        let about = || calls.iter().filter(|call| call.delivery_id == *key);
        let strange = about().find(|call| !became_a_turn(call) && call.drop_reason != "duplicate");
        assert_eq!(strange, None, "nothing here can make it end so");
        let turns = about().filter(|call| call.status == "submitted").count();
        assert!(turns <= 1, "{key} became {turns} turns");
        if *acknowledged {
            assert!(about().any(became_a_turn), "{key} is lost");
        }
    }
}
