use local::Service;
use proto::{
    session::v1::message::Role,
    triggers::v1::{
        CreateTriggerRequest, DeleteTriggerRequest, Firing, GetTriggerRequest,
        GetTriggerStatsRequest, RunTriggerRequest, Trigger, schedule::When,
    },
};
use tests::{Client, World, explain, reason, request_id};
use tonic::Status;
use tonic_types::StatusExt as _;

use super::{Clock, brief, create, dormant, edit, schedule, settled, until};

async fn try_run(client: &Client, trigger: &Trigger) -> Result<Firing, Status> {
    let request = RunTriggerRequest {
        trigger_id: trigger.trigger_id.clone(),
        request_id: request_id(),
        payload_json: String::new(),
    };
    Ok(client.triggers().run_trigger(request).await?.into_inner().firing.unwrap())
}

#[tokio::test]
async fn trigger_bounds() {
    let clock = Clock::at("2026-01-01T00:00:00Z");
    let plan = clock.plan().env_of(Service::Triggers, "DAILY_QUOTA", "20").env_of(
        Service::Triggers,
        "MAX_TRIGGERS",
        "2",
    );
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    let session = client.create_session().await;

    // Seven days, and a last firing at their end.
    let mut daily = schedule(&session, When::Cron("0 12 * * *".into()), "say {{ last }}");
    edit(&mut daily).misfire = "all".into();
    let daily = create(&client, daily).await;
    assert_eq!(daily.expire_time.unwrap().seconds - daily.create_time.unwrap().seconds, 604_800);
    clock.advance(9 * 86_400);
    let fired = settled(&client, &daily, 8).await;
    assert_eq!(brief(&fired)[6..], ["2026-01-07T12:00:00Z", "2026-01-08T00:00:00Z"]);
    let request = GetTriggerRequest { trigger_id: daily.trigger_id.clone() };
    let shown = client.triggers().get_trigger(request).await.unwrap().into_inner().trigger.unwrap();
    assert_eq!((shown.status.as_str(), shown.next_fire_time), ("expired", None));
    clock.advance(9 * 86_400);
    let error = try_run(&client, &daily).await.unwrap_err();
    assert_eq!(reason(&error), "REASON_TRIGGER_NOT_ACTIVE");
    assert_eq!(settled(&client, &daily, 8).await.len(), 8);

    // So many in a minute; the excess is dropped and on record.
    let mut throttled = dormant(&session, "say Hello.");
    throttled.max_per_minute = 2;
    let throttled = create(&client, throttled).await;
    for _ in 0..2 {
        try_run(&client, &throttled).await.unwrap();
    }
    let error = try_run(&client, &throttled).await.unwrap_err();
    assert_eq!(reason(&error), "REASON_TRIGGER_THROTTLED");
    assert_eq!(error.get_error_details().error_info().unwrap().metadata["limit"], "max_per_minute");
    assert!(error.get_details_retry_info().is_some(), "nobody says when to come back");
    clock.advance(60);
    try_run(&client, &throttled).await.unwrap();
    let firings = settled(&client, &throttled, 4).await;
    let dropped: Vec<_> = firings.iter().filter(|firing| firing.status == "dropped").collect();
    assert_eq!(dropped.len(), 1);
    assert_eq!(dropped[0].drop_reason, "throttled");

    // So many on a day for the whole account; other tenants have a day of their own.
    let other = world.client("beta").await;
    let theirs = other.create_session().await;
    let mut many = dormant(&theirs, "say Hello.");
    many.max_per_minute = 100;
    let (one, two) = (create(&other, many.clone()).await, create(&other, many).await);
    for number in 0..20 {
        try_run(&other, if number % 2 == 0 { &one } else { &two }).await.unwrap();
    }
    let error = try_run(&other, &two).await.unwrap_err();
    assert_eq!(reason(&error), "REASON_TRIGGER_THROTTLED");
    assert_eq!(error.get_error_details().error_info().unwrap().metadata["limit"], "daily_quota");
    clock.advance(60);
    try_run(&client, &throttled).await.unwrap();
    settled(&other, &two, 11).await;
    let request = GetTriggerStatsRequest::default();
    let stats = other.triggers().get_trigger_stats(request).await.unwrap().into_inner();
    assert_eq!(stats.dropped.into_iter().collect::<Vec<_>>(), [("quota".to_owned(), 1)]);

    // What was dropped was never queued.
    let asked = until("all turns", async || {
        let messages = session.messages().await;
        let asked = messages.iter().filter(|message| message.role() == Role::User).count();
        (asked >= 12).then_some(asked)
    });
    assert_eq!(asked.await, 8 + 4);

    // Another day, on which those that slept are due as well.
    clock.advance(86_400);
    try_run(&other, &two).await.unwrap();

    // So many triggers, also of those that are over. What was made before is made again for nothing.
    let request = |trigger: &Trigger| CreateTriggerRequest {
        request_id: request_id(),
        trigger: Some(trigger.clone()),
        secret: String::new(),
    };
    let more = dormant(&session, "say Hello.");
    let refused = client.triggers().create_trigger(request(&more)).await.unwrap_err();
    let refused = explain(&refused);
    assert!(refused.contains("REASON_INVALID_FIELD"), "{refused}");
    assert!(refused.contains("has 2 triggers, which is as many as it may"), "{refused}");
    let delete = DeleteTriggerRequest { trigger_id: daily.trigger_id };
    client.triggers().delete_trigger(delete).await.unwrap();
    let same = request(&more);
    let mut made = Vec::new();
    for _ in 0..2 {
        let answer = client.triggers().create_trigger(same.clone()).await.unwrap();
        made.push(answer.into_inner().trigger.unwrap().trigger_id);
    }
    assert_eq!(made[0], made[1]);
}
