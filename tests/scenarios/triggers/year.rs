use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use jiff::{
    SignedDuration, Timestamp,
    civil::{Date, date},
    tz::{AmbiguousOffset, TimeZone},
};
use local::Service;
use prost::Message as _;
use proto::{
    session::v1::{
        GetSessionRequest, GetSessionResponse, SubmitTurnRequest, SubmitTurnResponse, Turn,
        session_service_server::{SessionService, SessionServiceServer},
        turn_service_server::{TurnService, TurnServiceServer},
    },
    triggers::v1::{CreateTriggerRequest, Schedule, Target, Trigger, schedule::When, target},
};
use sqlx::{PgPool, Row as _};
use tests::{World, request_id};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use super::{Clock, Kind, until};

const START: &str = "2026-01-01T00:00:00Z";
const WEEKS: i64 = 53;
const SESSION: &str = "ses_06evr8d2ksw3x4qg9rjc10t5mm";

/// Who takes turns in, remembers them, and sometimes does not get round to saying so.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Heard>>);

#[derive(Default)]
struct Heard {
    turns: HashMap<String, Vec<u8>>,
    calls: usize,
}

#[tonic::async_trait]
impl TurnService for Recorder {
    async fn submit_turn(
        &self,
        request: Request<SubmitTurnRequest>,
    ) -> Result<Response<SubmitTurnResponse>, Status> {
        let request = request.into_inner();
        let mut heard = self.0.lock().unwrap();
        heard.calls += 1;
        let (calls, bytes) = (heard.calls, request.encode_to_vec());
        let known = heard.turns.entry(request.request_id.clone()).or_insert(bytes.clone());
        assert_eq!(*known, bytes, "the same firing with other bytes");
        if calls % 5 == 0 {
            return Err(Status::unavailable("the answer was lost"));
        }
        let turn = Turn { turn_id: format!("turn of {}", request.request_id), ..Turn::default() };
        Ok(Response::new(SubmitTurnResponse { turn: Some(turn), sequence: 1 }))
    }
}

#[tonic::async_trait]
impl SessionService for Recorder {
    async fn get_session(
        &self,
        _: Request<GetSessionRequest>,
    ) -> Result<Response<GetSessionResponse>, Status> {
        Ok(Response::new(GetSessionResponse::default()))
    }
}

async fn record() -> (Recorder, SocketAddr) {
    let recorder = Recorder::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tonic::transport::Server::builder()
        .add_service(TurnServiceServer::new(recorder.clone()))
        .add_service(SessionServiceServer::new(recorder.clone()))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(server);
    (recorder, address)
}

/// What the clock does with the times of a day, by the policies' own words.
fn daily(zone: &str, hour: i8, skipped: &str, doubled: &str) -> Vec<Timestamp> {
    let zone = TimeZone::get(zone).unwrap();
    let mut day: Date = date(2025, 12, 30);
    let mut due = Vec::new();
    while day < date(2027, 1, 12) {
        let wall = day.at(hour, 30, 0, 0);
        match zone.to_ambiguous_timestamp(wall).offset() {
            AmbiguousOffset::Unambiguous { offset } => due.push(offset.to_timestamp(wall).unwrap()),
            AmbiguousOffset::Gap { after, .. } if skipped == "next" => {
                // Both zones go on at three.
                due.push(after.to_timestamp(day.at(3, 0, 0, 0)).unwrap());
            }
            AmbiguousOffset::Gap { .. } => {}
            AmbiguousOffset::Fold { before, after } => {
                if doubled != "second" {
                    due.push(before.to_timestamp(wall).unwrap());
                }
                if doubled != "first" {
                    due.push(after.to_timestamp(wall).unwrap());
                }
            }
        }
        day = day.tomorrow().unwrap();
    }
    due
}

fn hourly(zone: &str, doubled: &str) -> Vec<Timestamp> {
    let zone = TimeZone::get(zone).unwrap();
    let hours = (0..24 * 7 * (WEEKS + 1))
        .map(|hour| START.parse::<Timestamp>().unwrap() + SignedDuration::from_hours(hour));
    let fires = |at: &Timestamp| {
        let offset = zone.to_offset(*at);
        match zone.to_ambiguous_timestamp(zone.to_datetime(*at)).offset() {
            AmbiguousOffset::Fold { before, .. } => doubled == "both" || offset == before,
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Gap { .. } => true,
        }
    };
    hours.filter(fires).collect()
}

struct Case {
    zone: &'static str,
    cron: String,
    skipped: &'static str,
    doubled: &'static str,
    misfire: &'static str,
    expected: Vec<Timestamp>,
}

fn cases() -> Vec<Case> {
    let day = |zone, hour, skipped, doubled| Case {
        zone,
        cron: format!("30 {hour} * * *"),
        skipped,
        doubled,
        misfire: "all",
        expected: daily(zone, hour, skipped, doubled),
    };
    let hour = |zone, doubled, misfire| Case {
        zone,
        cron: "0 * * * *".into(),
        skipped: "next",
        doubled,
        misfire,
        expected: hourly(zone, doubled),
    };
    vec![
        day("Europe/Berlin", 2, "next", "first"),
        day("Europe/Berlin", 2, "skip", "both"),
        day("America/New_York", 1, "next", "second"),
        day("America/New_York", 2, "next", "first"),
        hour("Europe/Berlin", "both", "once"),
        hour("America/New_York", "first", "skip"),
    ]
}

/// Three replicas, of which one or the other is killed while it fires; a clock that goes on by
/// a week at a time; and a session service whose answers are sometimes lost.
#[tokio::test]
async fn a_year_of_schedules_fires_each_due_time_once() {
    let clock = Clock::at(START);
    let (recorder, address) = record().await;
    let mut plan = clock
        .plan()
        .replicas(Service::Triggers, 3)
        .env_of(Service::Triggers, "LEASE", "1")
        .env_of(Service::Triggers, "FIRING_RETENTION", "0");
    for index in 0..3 {
        plan = plan.detour(Service::Triggers, index, "SESSION_URL", address);
    }
    let mut world = World::planned(plan).await;
    let client = world.client_who_may("acme", "read,run,configure").await;
    let db = PgPool::connect(world.fleet.database_url()).await.unwrap();

    let mut of = BTreeMap::new();
    for case in cases() {
        let schedule = Schedule {
            when: Some(When::Cron(case.cron.clone())),
            time_zone: case.zone.into(),
            skipped_hour: case.skipped.into(),
            doubled_hour: case.doubled.into(),
            misfire: case.misfire.into(),
            ..Schedule::default()
        };
        let trigger = Trigger {
            name: "A year".into(),
            kind: Some(Kind::Schedule(schedule)),
            target: Some(Target {
                session: Some(target::Session::SessionId(SESSION.into())),
                ..Target::default()
            }),
            template: "{{ due_time }}".into(),
            expire_time: Some(pbjson_types::Timestamp { seconds: 1_900_000_000, nanos: 0 }),
            ..Trigger::default()
        };
        let request = CreateTriggerRequest {
            request_id: request_id(),
            trigger: Some(trigger),
            ..Default::default()
        };
        let created = client.triggers().create_trigger(request).await.unwrap().into_inner();
        of.insert(created.trigger.unwrap().trigger_id, case);
    }

    let mut dead = None;
    for week in 1..=WEEKS {
        clock.advance(7 * 86_400);
        // A different one each time, at a different moment of its work.
        if week % 4 == 0 {
            let index = (week as usize / 4 * 7) % 3;
            tokio::time::sleep(std::time::Duration::from_millis(week as u64 * 3 % 40)).await;
            world.fleet.replica(Service::Triggers, index).kill().await.unwrap();
            dead = Some(index);
        }
        let now = clock.now();
        until(&format!("week {week}"), async || {
            let left =
                "select (select count(*) from triggers.due where fire_at <= $1::text::timestamptz)
                + (select count(*) from triggers.firing where status = 'pending')";
            let left: i64 =
                sqlx::query_scalar(left).bind(now.to_string()).fetch_one(&db).await.unwrap();
            (left == 0).then_some(())
        })
        .await;
        if let Some(index) = dead.take() {
            world.fleet.replica(Service::Triggers, index).restart().await.unwrap();
        }
    }

    let (start, end) = (START.parse::<Timestamp>().unwrap(), clock.now());
    let mut turns = 0;
    for (id, case) in &of {
        let expected: Vec<i64> = case
            .expected
            .iter()
            .filter(|at| **at > start && **at <= end)
            .map(|at| at.as_second())
            .collect();
        let rows = sqlx::query(
            "select extract(epoch from due_at)::bigint, status, missed from triggers.firing
             where trigger_id = $1 order by due_at",
        );
        let rows = rows.bind(id).fetch_all(&db).await.unwrap();
        let fired = rows.iter().filter(|row| row.get::<&str, _>(1) == "submitted");
        let fired: Vec<i64> = fired.map(|row| row.get(0)).collect();
        turns += fired.len();
        let what = format!("{} {} {} {}", case.cron, case.zone, case.misfire, case.doubled);
        match case.misfire {
            "all" => assert_eq!(fired, expected, "{what}"),
            // Every due time fired, or is one of those that another one stands for.
            _ => {
                let explained: i64 =
                    rows.iter().map(|row| 1 + i64::from(row.get::<i32, _>(2))).sum();
                assert_eq!(explained, expected.len() as i64, "{what}");
                assert!(fired.iter().all(|at| expected.contains(at)), "{what}");
                assert_eq!(fired.len() as i64, WEEKS, "{what}");
            }
        }
    }
    let heard = recorder.0.lock().unwrap();
    assert_eq!(heard.turns.len(), turns, "a firing is not one turn");
    assert!(heard.calls > turns, "no answer was lost, so nothing was tried twice");
}
