use std::collections::BTreeSet;

use local::Fleet;
use proto::session::v1::subscribe_request::From;
use tests::{Collector, World};
use tonic::Request;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

#[tokio::test]
async fn a_turn_is_one_trace_from_the_client_to_the_tool() {
    let collector = Collector::start().await;
    let plan = Fleet::plan().env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.as_str());
    let mut world = World::planned(plan).await;
    let session = world.client("acme").await.create_session().await;
    let mut events = session.subscribe(From::Live(true)).await;

    let mut request =
        Request::new(session.turn("call bash {\"command\": \"true\"}\n---\nsay Done."));
    let parent = format!("00-{TRACE}-{CALLER}-01");
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    let response = session.client.turns().submit_turn(request).await.unwrap();
    let turn = response.into_inner().turn.unwrap();
    let facts = events.until_ended(&turn.turn_id).await;
    assert_eq!(facts.last().unwrap().r#type, "turn.completed");
    assert!(facts.iter().any(|event| event.r#type == "tool.result"));
    for event in &facts {
        assert_eq!(event.trace_id, TRACE, "{event:?}");
    }
    drop(events);
    // A service that ends sends what it still holds.
    world.fleet.stop().await.unwrap();

    let mut spans = collector.spans();
    spans.retain(|span| span.trace == TRACE);
    let services: BTreeSet<&str> = spans.iter().map(|span| span.service.as_str()).collect();
    assert_eq!(services, BTreeSet::from(["models", "session", "tools"]), "{spans:#?}");

    // From every span the way up ends at the client's.
    for span in &spans {
        let (mut at, mut steps) = (span, 0);
        while at.parent != CALLER {
            let parent = spans.iter().find(|parent| parent.id == at.parent);
            at = parent.unwrap_or_else(|| panic!("nobody's child: {at:?} in {spans:#?}"));
            steps += 1;
            assert!(steps < spans.len(), "a circle: {span:?}");
        }
    }
    for event in &facts {
        let span = spans.iter().find(|span| span.id == event.span_id);
        assert!(span.is_some(), "written under a span that nobody knows: {event:?}");
    }
}
