use expect_test::expect;
use proto::triggers::v1::{
    CreateTriggerRequest, DeleteTriggerRequest, GetTriggerRequest, GetTriggerStatsRequest,
    ListFiringsRequest, ListTriggersRequest, PauseTriggerRequest, PreviewScheduleRequest,
    RedeliverFiringRequest, RunTriggerRequest, Schedule, Target, Trigger, UpdateTriggerRequest,
    schedule::When, target,
};
use tests::{Client, Session, World, explain, request_id};
use tonic::Status;

use super::{create, dormant, edit, firings, run, settled};

/// Well-formed, and nobody's.
const NOBODY: &str = "trg_06evr8d2ksw3x4qg9rjc10t5mm";

type Change = (&'static str, fn(&mut Trigger));

fn changes() -> Vec<Change> {
    fn time(seconds: i64) -> Option<pbjson_types::Timestamp> {
        Some(pbjson_types::Timestamp { seconds, nanos: 0 })
    }
    fn to(trigger: &mut Trigger) -> &mut Target {
        trigger.target.as_mut().unwrap()
    }
    let changes: &[Change] = &[
        ("no name", |trigger| trigger.name = " ".into()),
        ("a long name", |trigger| trigger.name = "n".repeat(101)),
        ("no kind", |trigger| trigger.kind = None),
        ("no when", |trigger| edit(trigger).when = None),
        ("no cron", |trigger| edit(trigger).when = Some(When::Cron("whenever".into()))),
        ("never", |trigger| edit(trigger).when = Some(When::Cron("0 0 31 4 *".into()))),
        ("past", |trigger| edit(trigger).when = time(1).map(When::At)),
        ("no time", |trigger| edit(trigger).when = time(i64::MAX).map(When::At)),
        ("too often", |trigger| edit(trigger).when = Some(When::IntervalMs(999))),
        ("no zone", |trigger| edit(trigger).time_zone = "Europe/Atlantis".into()),
        ("skipped", |trigger| edit(trigger).skipped_hour = "later".into()),
        ("doubled", |trigger| edit(trigger).doubled_hour = "third".into()),
        ("misfire", |trigger| edit(trigger).misfire = "some".into()),
        ("overlap", |trigger| edit(trigger).overlap = "fight".into()),
        ("jitter", |trigger| edit(trigger).jitter_ms = -1),
        ("much jitter", |trigger| edit(trigger).jitter_ms = 3_600_001),
        ("more jitter than interval", |trigger| {
            edit(trigger).when = Some(When::IntervalMs(2_000));
            edit(trigger).jitter_ms = 2_000;
        }),
        ("ends before it starts", |trigger| {
            edit(trigger).start_time = time(2_000_000_000);
            edit(trigger).end_time = time(1_900_000_000);
        }),
        ("ended", |trigger| edit(trigger).end_time = time(1_000_000_000)),
        ("no target", |trigger| trigger.target = None),
        ("no session", |trigger| to(trigger).session = None),
        ("malformed session", |trigger| {
            to(trigger).session = Some(target::Session::SessionId("ses_1".into()));
        }),
        ("nobody's session", |trigger| {
            let id = NOBODY.replace("trg", "ses");
            to(trigger).session = Some(target::Session::SessionId(id));
        }),
        ("no new session", |trigger| {
            to(trigger).session = Some(target::Session::NewSession(false))
        }),
        ("no key", |trigger| to(trigger).session = Some(target::Session::SessionKey("".into()))),
        ("a broken key", |trigger| {
            to(trigger).session = Some(target::Session::SessionKey("{{ a".into()));
        }),
        ("an agent for a session that is there", |trigger| to(trigger).agent = "other".into()),
        ("a malformed agent", |trigger| {
            to(trigger).session = Some(target::Session::NewSession(true));
            to(trigger).agent = "Not An Agent".into();
        }),
        ("a malformed workspace", |trigger| {
            to(trigger).session = Some(target::Session::NewSession(true));
            to(trigger).workspace_id = "/etc".into();
        }),
        ("no template", |trigger| trigger.template = String::new()),
        ("a long template", |trigger| trigger.template = "t".repeat(16_385)),
        ("a broken template", |trigger| trigger.template = "{% if %}".into()),
        ("a negative rate", |trigger| trigger.max_per_minute = -1),
        ("a high rate", |trigger| trigger.max_per_minute = 6_001),
        ("another mode", |trigger| trigger.mode = "auto".into()),
        ("expired", |trigger| trigger.expire_time = time(1_000_000_000)),
        ("for ever", |trigger| trigger.expire_time = time(100_000_000_000)),
    ];
    changes.to_vec()
}

async fn create_with(client: &Client, session: &Session, change: fn(&mut Trigger)) -> Status {
    let mut trigger = dormant(session, "say Hello.");
    change(&mut trigger);
    let request = CreateTriggerRequest {
        request_id: request_id(),
        trigger: Some(trigger),
        ..Default::default()
    };
    client.triggers().create_trigger(request).await.expect_err("it was taken")
}

#[tokio::test]
async fn bad_triggers_are_refused_with_the_field_at_fault() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let mut lines = String::new();
    for (what, change) in changes() {
        let status = create_with(&client, &session, change).await;
        lines += &format!("{what}: {}\n", explain(&status));
    }
    let triggers = client.triggers();
    let ask = |what: &str, status: Status| format!("{what}: {}\n", explain(&status));
    let (id, page_token) = (NOBODY.to_owned(), "else".to_owned());
    let request =
        CreateTriggerRequest { request_id: "a b".into(), trigger: None, ..Default::default() };
    lines += &ask("request id", triggers.clone().create_trigger(request).await.unwrap_err());
    let request =
        CreateTriggerRequest { request_id: "a".into(), trigger: None, ..Default::default() };
    lines += &ask("no trigger", triggers.clone().create_trigger(request).await.unwrap_err());
    let request = GetTriggerRequest { trigger_id: id.clone() };
    lines += &ask("unknown", triggers.clone().get_trigger(request).await.unwrap_err());
    let request = GetTriggerRequest { trigger_id: "trg_".into() };
    lines += &ask("malformed", triggers.clone().get_trigger(request).await.unwrap_err());
    let request = ListTriggersRequest { page_token: page_token.clone(), ..Default::default() };
    lines += &ask("foreign token", triggers.clone().list_triggers(request).await.unwrap_err());
    let request = ListTriggersRequest { page_size: -1, ..Default::default() };
    lines += &ask("negative page", triggers.clone().list_triggers(request).await.unwrap_err());
    let request = ListFiringsRequest { page_token, ..Default::default() };
    lines += &ask("foreign token", triggers.clone().list_firings(request).await.unwrap_err());
    let request =
        RunTriggerRequest { trigger_id: id.clone(), request_id: "a".into(), ..Default::default() };
    lines += &ask("run unknown", triggers.clone().run_trigger(request).await.unwrap_err());
    let request = RunTriggerRequest {
        trigger_id: id.clone(),
        request_id: "a".into(),
        payload_json: "{".into(),
    };
    lines += &ask("broken payload", triggers.clone().run_trigger(request).await.unwrap_err());
    let request = RunTriggerRequest {
        trigger_id: id.clone(),
        request_id: "a".into(),
        payload_json: format!("\"{}\"", "p".repeat(65_536)),
    };
    lines += &ask("large payload", triggers.clone().run_trigger(request).await.unwrap_err());
    let request =
        RedeliverFiringRequest { firing_id: id.replace("trg", "fire"), request_id: "a".into() };
    lines += &ask("unknown firing", triggers.clone().redeliver_firing(request).await.unwrap_err());
    let request = PreviewScheduleRequest::default();
    lines += &ask("no schedule", triggers.clone().preview_schedule(request).await.unwrap_err());
    let schedule = Some(Schedule { when: Some(When::IntervalMs(1_000)), ..Default::default() });
    let request = PreviewScheduleRequest { schedule, count: -1 };
    lines += &ask("negative count", triggers.clone().preview_schedule(request).await.unwrap_err());
    expect![[r#"
        no name: InvalidArgument REASON_INVALID_FIELD: invalid trigger.name: expected 1 to 100 characters
        a long name: InvalidArgument REASON_INVALID_FIELD: invalid trigger.name: at most 100 characters
        no kind: InvalidArgument REASON_INVALID_FIELD: invalid trigger.kind: expected one of schedule, webhook, api and mcp_event
        no when: InvalidArgument REASON_INVALID_FIELD: invalid trigger.schedule.when: expected one of cron, interval_ms and at
        no cron: InvalidArgument REASON_INVALID_FIELD: invalid trigger.schedule.cron: is no cron expression: Invalid pattern: Pattern must have 5 or 6 fields when years are disallowed.
        never: InvalidArgument REASON_SCHEDULE_NEVER_FIRES: the schedule never fires: there is no such date, or it is past
        past: InvalidArgument REASON_SCHEDULE_NEVER_FIRES: the schedule never fires: there is no such date, or it is past
        no time: InvalidArgument REASON_INVALID_FIELD: invalid trigger.schedule.at: is no time
        too often: InvalidArgument REASON_INVALID_FIELD: invalid trigger.schedule.interval_ms: expected 1,000 to 31,622,400,000, which is a year
        no zone: InvalidArgument REASON_INVALID_FIELD: invalid trigger.schedule.time_zone: "Europe/Atlantis" is no IANA time zone
        skipped: InvalidArgument REASON_INVALID_FIELD: invalid trigger.schedule.skipped_hour: expected next or skip
        doubled: InvalidArgument REASON_INVALID_FIELD: invalid trigger.schedule.doubled_hour: expected first, second or both
        misfire: InvalidArgument REASON_INVALID_FIELD: invalid trigger.schedule.misfire: expected skip, once or all
        overlap: InvalidArgument REASON_INVALID_FIELD: invalid trigger.schedule.overlap: expected queue, skip or cancel_previous
        jitter: InvalidArgument REASON_INVALID_FIELD: invalid trigger.schedule.jitter_ms: expected 0 to 3,600,000
        much jitter: InvalidArgument REASON_INVALID_FIELD: invalid trigger.schedule.jitter_ms: expected 0 to 3,600,000
        more jitter than interval: InvalidArgument REASON_INVALID_FIELD: invalid trigger.schedule.jitter_ms: must be less than the interval
        ends before it starts: InvalidArgument REASON_INVALID_FIELD: invalid trigger.schedule.end_time: is before start_time
        ended: InvalidArgument REASON_SCHEDULE_NEVER_FIRES: the schedule never fires: there is no such date, or it is past
        no target: InvalidArgument REASON_INVALID_FIELD: invalid trigger.target: is missing
        no session: InvalidArgument REASON_INVALID_FIELD: invalid trigger.target.session: expected one of session_id, new_session and session_key
        malformed session: InvalidArgument REASON_INVALID_FIELD: invalid trigger.target.session_id: expected ses_ and 26 characters
        nobody's session: PermissionDenied REASON_TARGET_FORBIDDEN: session ses_06evr8d2ksw3x4qg9rjc10t5mm is no target for this trigger: nobody of this tenant knows it
        no new session: InvalidArgument REASON_INVALID_FIELD: invalid trigger.target.new_session: expected true, or another target
        no key: InvalidArgument REASON_INVALID_FIELD: invalid trigger.target.session_key: is empty
        a broken key: InvalidArgument REASON_INVALID_FIELD: invalid trigger.target.session_key: is no template: line 1: `{{` has no `}}`
        an agent for a session that is there: InvalidArgument REASON_INVALID_FIELD: invalid trigger.target.agent: is only for targets that make sessions
        a malformed agent: InvalidArgument REASON_INVALID_FIELD: invalid trigger.target.agent: expected 1 to 64 characters of a-z, 0-9 and -
        a malformed workspace: InvalidArgument REASON_INVALID_FIELD: invalid trigger.target.workspace_id: expected ws_ and 26 characters
        no template: InvalidArgument REASON_INVALID_FIELD: invalid trigger.template: a schedule needs a message
        a long template: InvalidArgument REASON_INVALID_FIELD: invalid trigger.template: at most 16 KiB
        a broken template: InvalidArgument REASON_INVALID_FIELD: invalid trigger.template: is no template: line 1: an expression is missing
        a negative rate: InvalidArgument REASON_INVALID_FIELD: invalid trigger.max_per_minute: expected 0 to 6,000
        a high rate: InvalidArgument REASON_INVALID_FIELD: invalid trigger.max_per_minute: expected 0 to 6,000
        another mode: InvalidArgument REASON_INVALID_FIELD: invalid trigger.mode: expected nothing, plan or never_ask
        expired: InvalidArgument REASON_INVALID_FIELD: invalid trigger.expire_time: is past
        for ever: InvalidArgument REASON_INVALID_FIELD: invalid trigger.expire_time: at most ten years ahead
        request id: InvalidArgument REASON_INVALID_FIELD: invalid request_id: expected 1 to 100 characters of A-Z, a-z, 0-9, _ and -
        no trigger: InvalidArgument REASON_INVALID_FIELD: invalid trigger: is missing
        unknown: NotFound REASON_TRIGGER_NOT_FOUND: trigger trg_06evr8d2ksw3x4qg9rjc10t5mm not found
        malformed: InvalidArgument REASON_INVALID_FIELD: invalid trigger_id: expected trg_ and 26 characters
        foreign token: InvalidArgument REASON_INVALID_CURSOR: the page token is not one of ours
        negative page: InvalidArgument REASON_INVALID_FIELD: invalid page_size: must not be negative
        foreign token: InvalidArgument REASON_INVALID_CURSOR: the page token is not one of ours
        run unknown: NotFound REASON_TRIGGER_NOT_FOUND: trigger trg_06evr8d2ksw3x4qg9rjc10t5mm not found
        broken payload: InvalidArgument REASON_INVALID_FIELD: invalid payload_json: is not JSON: EOF while parsing an object at line 1 column 1
        large payload: InvalidArgument REASON_INVALID_FIELD: invalid payload_json: at most 64 KiB
        unknown firing: NotFound REASON_FIRING_NOT_FOUND: firing fire_06evr8d2ksw3x4qg9rjc10t5mm not found
        no schedule: InvalidArgument REASON_INVALID_FIELD: invalid schedule: is missing
        negative count: InvalidArgument REASON_INVALID_FIELD: invalid count: must not be negative
    "#]].assert_eq(&lines);
    assert!(list(&client).await.is_empty(), "something was stored");
}

async fn list(client: &Client) -> Vec<Trigger> {
    let request = ListTriggersRequest::default();
    client.triggers().list_triggers(request).await.unwrap().into_inner().triggers
}

#[tokio::test]
async fn triggers_are_made_once_and_changed_and_deleted() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let request = CreateTriggerRequest {
        request_id: request_id(),
        trigger: Some(dormant(&session, "say Hello.")),
        ..Default::default()
    };
    let first = client.triggers().create_trigger(request.clone()).await.unwrap().into_inner();
    let again = client.triggers().create_trigger(request.clone()).await.unwrap().into_inner();
    assert_eq!(first, again);
    let other = Trigger { name: "Another".into(), ..dormant(&session, "say Hello.") };
    let request = CreateTriggerRequest { trigger: Some(other), ..request };
    let error = client.triggers().create_trigger(request).await.unwrap_err();
    assert_eq!(tests::reason(&error), "REASON_REQUEST_ID_REUSED");

    let trigger = first.trigger.unwrap();
    let mut changed = trigger.clone();
    changed.name = "Renamed".into();
    edit(&mut changed).when = Some(When::IntervalMs(3_600_000));
    let request = UpdateTriggerRequest { trigger: Some(changed) };
    let changed = client.triggers().update_trigger(request).await.unwrap().into_inner();
    let changed = changed.trigger.unwrap();
    assert_eq!(changed.name, "Renamed");
    let next = |trigger: &Trigger| trigger.next_fire_time.unwrap().seconds;
    assert!(next(&changed) < next(&trigger), "what is due was not computed anew");

    // History stays.
    run(&client, &changed, "").await;
    settled(&client, &changed, 1).await;
    let request = DeleteTriggerRequest { trigger_id: trigger.trigger_id.clone() };
    for _ in 0..2 {
        client.triggers().delete_trigger(request.clone()).await.unwrap();
    }
    assert!(list(&client).await.is_empty());
    assert_eq!(firings(&client, &trigger.trigger_id).await.len(), 1);
}

#[tokio::test]
async fn tenants_do_not_see_each_others_triggers() {
    let mut world = World::start().await;
    let (client, other) = (world.client("acme").await, world.client("beta").await);
    let session = client.create_session().await;
    let trigger = create(&client, dormant(&session, "say Hello.")).await;
    let firing = run(&client, &trigger, "").await;

    let id = trigger.trigger_id.clone();
    let mut triggers = other.triggers();
    let get = triggers.get_trigger(GetTriggerRequest { trigger_id: id.clone() }).await;
    let pause = triggers.pause_trigger(PauseTriggerRequest { trigger_id: id.clone() }).await;
    let run = RunTriggerRequest {
        trigger_id: id.clone(),
        request_id: request_id(),
        ..Default::default()
    };
    let run = triggers.run_trigger(run).await;
    let update =
        triggers.update_trigger(UpdateTriggerRequest { trigger: Some(trigger.clone()) }).await;
    let stats = triggers.get_trigger_stats(GetTriggerStatsRequest { trigger_id: id.clone() }).await;
    let again = RedeliverFiringRequest { firing_id: firing.firing_id, request_id: request_id() };
    let again = triggers.redeliver_firing(again).await;
    let aim = CreateTriggerRequest {
        request_id: request_id(),
        trigger: Some(dormant(&session, "say Hello.")),
        ..Default::default()
    };
    let aim = triggers.create_trigger(aim).await;
    let reasons = [
        get.unwrap_err(),
        pause.unwrap_err(),
        run.unwrap_err(),
        update.unwrap_err(),
        stats.unwrap_err(),
        again.unwrap_err(),
        aim.unwrap_err(),
    ]
    .map(|status| tests::reason(&status));
    let missing = "REASON_TRIGGER_NOT_FOUND";
    let forbidden = "REASON_TARGET_FORBIDDEN";
    let firing = "REASON_FIRING_NOT_FOUND";
    assert_eq!(reasons, [missing, missing, missing, forbidden, missing, firing, forbidden]);
    assert!(list(&other).await.is_empty());
    assert!(firings(&other, "").await.is_empty());
    assert!(firings(&other, &id).await.is_empty());
    triggers.delete_trigger(DeleteTriggerRequest { trigger_id: id.clone() }).await.unwrap();
    assert_eq!(list(&client).await.len(), 1, "somebody else deleted it");
}
