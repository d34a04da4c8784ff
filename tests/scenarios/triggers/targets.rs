use local::{Fleet, Service};
use proto::{
    session::v1::{DeleteSessionRequest, subscribe_request::From, turn::Status},
    triggers::v1::{Firing, Target, Trigger, target},
};
use tests::{Client, Session, World};

use super::{create, dormant, edit, firings, run, until};

/// Fires and waits for what becomes of it.
async fn fire(client: &Client, trigger: &Trigger, payload: &str) -> Firing {
    let id = run(client, trigger, payload).await.firing_id;
    until("the firing's end", async || {
        let firings = firings(client, &trigger.trigger_id).await;
        firings.into_iter().find(|firing| firing.firing_id == id && firing.status != "pending")
    })
    .await
}

async fn delete(client: &Client, session_id: &str) {
    let request = DeleteSessionRequest { session_id: session_id.to_owned() };
    client.sessions().delete_session(request).await.unwrap();
}

#[tokio::test]
async fn a_firing_minds_the_turn_before_it() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let slow = "delay 1m\nsay Done.";
    for (overlap, reason) in [("skip", "overlap"), ("queue", ""), ("cancel_previous", "")] {
        let session = client.create_session().await;
        let mut trigger = dormant(&session, slow);
        edit(&mut trigger).overlap = overlap.into();
        let trigger = create(&client, trigger).await;
        let first = fire(&client, &trigger, "").await;
        let second = fire(&client, &trigger, "").await;
        assert_eq!(second.drop_reason, reason, "{overlap}");
        let turn = session.get_turn(&first.turn_id).await;
        match overlap {
            "cancel_previous" => {
                let turn = until("the end of the first", async || {
                    let turn = session.get_turn(&first.turn_id).await;
                    (turn.status() == Status::Cancelled).then_some(turn)
                });
                turn.await;
            }
            _ => assert!(matches!(turn.status(), Status::Running | Status::Accepted), "{overlap}"),
        }
        if overlap == "skip" {
            let mut events = session.subscribe(From::Live(true)).await;
            session.interrupt("enough").await;
            events.until(|event| event.r#type == "turn.failed").await;
            assert_eq!(fire(&client, &trigger, "").await.drop_reason, "", "nothing runs now");
        }
    }
}

#[tokio::test]
async fn a_key_has_a_session_and_what_is_gone_is_a_drop() {
    let plan = Fleet::plan().env_of(Service::Session, "MAX_QUEUE", "1");
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let to = |session, agent: &str| {
        Some(Target { session: Some(session), agent: agent.into(), ..Target::default() })
    };

    let mut keyed = dormant(&session, "say {{ payload.pull }}");
    keyed.target = to(target::Session::SessionKey("pull {{ payload.pull }}".into()), "scripted");
    let keyed = create(&client, keyed).await;
    let one = fire(&client, &keyed, r#"{"pull": 1}"#).await;
    let again = fire(&client, &keyed, r#"{"pull": 1}"#).await;
    let two = fire(&client, &keyed, r#"{"pull": 2}"#).await;
    assert_eq!(one.session_id, again.session_id);
    assert!(!one.session_id.is_empty() && one.session_id != two.session_id);
    let none = fire(&client, &keyed, r#"{"issue": 1}"#).await;
    assert_eq!(none.drop_reason, "template", "there is no key");
    // A session that is gone is followed by another.
    let first = Session { client: client.clone(), id: one.session_id.clone() };
    until("both turns", async || {
        let turn = first.get_turn(&again.turn_id).await;
        (turn.status() == Status::Completed).then_some(())
    })
    .await;
    delete(&client, &one.session_id).await;
    let anew = fire(&client, &keyed, r#"{"pull": 1}"#).await;
    assert_eq!(anew.drop_reason, "");
    assert_ne!(anew.session_id, one.session_id);

    // A queue that is full takes no more.
    let busy = create(&client, dormant(&session, "delay 1m\nsay Done.")).await;
    let reasons = [
        fire(&client, &busy, "").await.drop_reason,
        fire(&client, &busy, "").await.drop_reason,
        fire(&client, &busy, "").await.drop_reason,
    ];
    assert_eq!(reasons, ["", "", "queue_full"]);

    // Where there is no session or agent, there is no turn.
    let gone = client.create_session().await;
    let lost = create(&client, dormant(&gone, "say Hello.")).await;
    delete(&client, &gone.id).await;
    assert_eq!(fire(&client, &lost, "").await.drop_reason, "not_found");
    let mut nobody = dormant(&session, "say Hello.");
    nobody.target = to(target::Session::NewSession(true), "nobody");
    let nobody = create(&client, nobody).await;
    assert_eq!(fire(&client, &nobody, "").await.drop_reason, "not_found");
}
