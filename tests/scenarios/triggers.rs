//! What starts turns when no person does.

mod bad_input;
mod bounds;
mod envelope;
mod headless;
mod schedules;
mod self_schedule;
mod targets;
mod year;

use std::{path::PathBuf, time::Duration};

use jiff::{SignedDuration, Timestamp};
use local::{Fleet, Plan, Service};
use proto::triggers::v1::{
    CreateTriggerRequest, Firing, ListFiringsRequest, RunTriggerRequest, Schedule, Target, Trigger,
    schedule::When, target, trigger::Kind,
};
use tempfile::TempDir;
use tests::{Client, Session, request_id};
use tokio::time::{Instant, sleep};

/// A clock that stands still until it is moved.
pub struct Clock {
    dir: TempDir,
}

impl Clock {
    pub fn at(time: &str) -> Clock {
        let clock = Clock { dir: TempDir::new().unwrap() };
        clock.set(time.parse().unwrap());
        clock
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("now")
    }

    pub fn now(&self) -> Timestamp {
        std::fs::read_to_string(self.path()).unwrap().parse().unwrap()
    }

    /// All at once, so that nobody reads half a time.
    pub fn set(&self, time: Timestamp) {
        let draft = self.dir.path().join("draft");
        std::fs::write(&draft, time.to_string()).unwrap();
        std::fs::rename(draft, self.path()).unwrap();
    }

    pub fn advance(&self, seconds: i64) {
        self.set(self.now() + SignedDuration::from_secs(seconds));
    }

    /// A fleet whose triggers go by this clock.
    pub fn plan(&self) -> Plan {
        let path = self.path().display().to_string();
        Fleet::plan().env_of(Service::Triggers, "CLOCK_FILE", path).env_of(
            Service::Triggers,
            "POLL",
            "0.02",
        )
    }
}

/// A schedule of a session that makes the scripted model do what `script` says.
pub fn schedule(session: &Session, when: When, script: &str) -> Trigger {
    Trigger {
        name: "A scenario".into(),
        kind: Some(Kind::Schedule(Schedule { when: Some(when), ..Schedule::default() })),
        target: Some(Target {
            session: Some(target::Session::SessionId(session.id.clone())),
            ..Target::default()
        }),
        template: format!("Please.\n#!script\n{script}"),
        ..Trigger::default()
    }
}

/// One that is due in a day, for those who fire by hand.
pub fn dormant(session: &Session, script: &str) -> Trigger {
    schedule(session, When::IntervalMs(86_400_000), script)
}

/// The schedule in a trigger, to be changed.
pub fn edit(trigger: &mut Trigger) -> &mut Schedule {
    match &mut trigger.kind {
        Some(Kind::Schedule(schedule)) => schedule,
        other => panic!("no schedule: {other:?}"),
    }
}

pub async fn create(client: &Client, trigger: Trigger) -> Trigger {
    let request = CreateTriggerRequest {
        request_id: request_id(),
        trigger: Some(trigger),
        ..Default::default()
    };
    client.triggers().create_trigger(request).await.unwrap().into_inner().trigger.unwrap()
}

pub async fn run(client: &Client, trigger: &Trigger, payload: &str) -> Firing {
    let request = RunTriggerRequest {
        trigger_id: trigger.trigger_id.clone(),
        request_id: request_id(),
        payload_json: payload.to_owned(),
    };
    client.triggers().run_trigger(request).await.unwrap().into_inner().firing.unwrap()
}

/// What a trigger fired, the earliest due time first.
pub async fn firings(client: &Client, trigger_id: &str) -> Vec<Firing> {
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
            break;
        }
    }
    firings.sort_by_key(|firing| {
        let due = firing.due_time.unwrap();
        (due.seconds, due.nanos)
    });
    firings
}

/// The firings of a trigger as soon as `count` of them are no longer pending.
pub async fn settled(client: &Client, trigger: &Trigger, count: usize) -> Vec<Firing> {
    until(&format!("{count} firings of {}", trigger.trigger_id), async || {
        let firings = firings(client, &trigger.trigger_id).await;
        let done = firings.iter().filter(|firing| firing.status != "pending").count();
        (done == count && firings.len() == count).then_some(firings)
    })
    .await
}

/// Firings in a few words: due time, and the reason of those that were dropped.
pub fn brief(firings: &[Firing]) -> Vec<String> {
    let words = |firing: &Firing| {
        let due = firing.due_time.unwrap();
        let due = Timestamp::new(due.seconds, due.nanos).unwrap();
        match (firing.drop_reason.as_str(), firing.missed) {
            ("", 0) => due.to_string(),
            ("", missed) => format!("{due} for {missed} more"),
            (reason, missed) => format!("{due} {reason} {missed}"),
        }
    };
    firings.iter().map(words).collect()
}

/// Waits for a fact.
pub async fn until<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
