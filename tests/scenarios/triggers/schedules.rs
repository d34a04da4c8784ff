use local::Service;
use proto::{
    session::v1::message::Role,
    triggers::v1::{
        GetTriggerRequest, GetTriggerStatsRequest, PauseTriggerRequest, PreviewScheduleRequest,
        ResumeTriggerRequest, Trigger, schedule::When, target,
    },
};
use tests::{Client, World};

use super::{Clock, brief, create, edit, schedule, settled, until};

async fn get(client: &Client, trigger: &Trigger) -> Trigger {
    let request = GetTriggerRequest { trigger_id: trigger.trigger_id.clone() };
    client.triggers().get_trigger(request).await.unwrap().into_inner().trigger.unwrap()
}

#[tokio::test]
async fn schedules() {
    let clock = Clock::at("2026-03-28T12:00:00Z");
    let plan = clock.plan().replicas(Service::Triggers, 3).env_of(Service::Triggers, "LEASE", "2");
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    let session = client.create_session().await;

    let mut daily = schedule(&session, When::Cron("30 2 * * *".into()), "say Daily.");
    edit(&mut daily).time_zone = "Europe/Berlin".into();
    edit(&mut daily).misfire = "all".into();
    let preview = PreviewScheduleRequest { schedule: Some(edit(&mut daily).clone()), count: 2 };
    let preview = client.triggers().preview_schedule(preview).await.unwrap().into_inner();
    let seconds: Vec<i64> = preview.fire_times.iter().map(|time| time.seconds).collect();
    assert_eq!(seconds, [1_774_746_000, 1_774_830_600], "the hour that the clock skips");
    let daily = create(&client, daily).await;

    let at = proto_time("2026-03-28T20:00:00Z");
    let once = create(&client, schedule(&session, When::At(at), "say Once.")).await;
    let mut often = schedule(&session, When::IntervalMs(6 * 3_600_000), "say Often.");
    edit(&mut often).misfire = "skip".into();
    let often = create(&client, often).await;
    let mut summed = schedule(&session, When::IntervalMs(6 * 3_600_000), "say Summed.");
    edit(&mut summed).misfire = "once".into();
    let summed = create(&client, summed).await;
    let mut new = schedule(&session, When::IntervalMs(24 * 3_600_000), "say New.");
    new.target.as_mut().unwrap().session = Some(target::Session::NewSession(true));
    new.target.as_mut().unwrap().agent = "scripted".into();
    let new = create(&client, new).await;

    // One replica goes while everything is due, and nobody is there for a while.
    world.fleet.replica(Service::Triggers, 2).kill().await.unwrap();
    clock.advance(30 * 3_600 + 30);
    let fired = settled(&client, &daily, 1).await;
    assert_eq!(brief(&fired), ["2026-03-29T01:00:00Z"]);
    assert_eq!(brief(&settled(&client, &once, 1).await), ["2026-03-28T20:00:00Z"]);
    assert_eq!(get(&client, &once).await.status, "finished");
    let skipped = ["2026-03-28T18:00:00Z missed 3", "2026-03-29T18:00:00Z"];
    assert_eq!(brief(&settled(&client, &often, 2).await), skipped);
    let once_for_all = ["2026-03-28T18:00:00Z for 4 more"];
    assert_eq!(brief(&settled(&client, &summed, 1).await), once_for_all);
    let made = settled(&client, &new, 1).await.remove(0);
    assert!(!made.session_id.is_empty() && made.session_id != session.id);

    // While it is paused nothing fires; afterwards the policy decides about the past.
    let request = PauseTriggerRequest { trigger_id: daily.trigger_id.clone() };
    let paused = client.triggers().pause_trigger(request).await.unwrap().into_inner();
    assert_eq!(paused.trigger.unwrap().status, "paused");
    clock.advance(2 * 86_400);
    settled(&client, &summed, 2).await;
    settled(&client, &often, 4).await;
    assert_eq!(settled(&client, &daily, 1).await.len(), 1);
    let request = ResumeTriggerRequest { trigger_id: daily.trigger_id.clone() };
    client.triggers().resume_trigger(request).await.unwrap();
    let caught = ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z"];
    assert_eq!(brief(&settled(&client, &daily, 3).await), caught);

    // Each firing is one turn, and the operator sees what happened.
    let submitted = until("all turns", async || {
        let messages = session.messages().await;
        let asked = messages.iter().filter(|message| message.role() == Role::User).count();
        (asked >= 8).then_some(asked)
    });
    assert_eq!(submitted.await, 3 + 1 + 2 + 2, "daily, once, often, summed");
    let request = GetTriggerStatsRequest { trigger_id: often.trigger_id.clone() };
    let stats = client.triggers().get_trigger_stats(request).await.unwrap().into_inner();
    assert_eq!((stats.fired, stats.pending), (2, 0));
    assert_eq!(stats.dropped.into_iter().collect::<Vec<_>>(), [("missed".to_owned(), 2)]);
    assert!(stats.next_fire_time.is_some());
}

fn proto_time(text: &str) -> pbjson_types::Timestamp {
    let time: jiff::Timestamp = text.parse().unwrap();
    pbjson_types::Timestamp { seconds: time.as_second(), nanos: 0 }
}
