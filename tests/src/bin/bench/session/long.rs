//! Sessions with a long past: reading all of it, and opening them without reading it.

use std::time::Instant;

use anyhow::Result;
use proto::session::v1::{
    GetSnapshotRequest, ListEventsRequest, ListMessagesRequest, SubscribeRequest,
    subscribe_request::From,
};
use tests::Session;

use super::{milliseconds, past};
use crate::{quantiles::Quantiles, stage::Stage, table::Table};

/// A short session has so many turns, of two messages each.
const SHORT_TURNS: i64 = 10;

/// How many of the latest messages whoever opens a session looks at.
const MESSAGES: i32 = 20;

pub async fn measure(stage: &mut Stage, table: &mut Table) -> Result<()> {
    eprintln!("making a long past …");
    let short = past::session(stage, SHORT_TURNS).await?;
    let long = past::session(stage, stage.scale.turns).await?;

    eprintln!("reading it …");
    let begun = Instant::now();
    let events = subscribe_to_all(&long).await? as f64;
    let rate = events / begun.elapsed().as_secs_f64();
    table.note(format!("replay of {events} events with Subscribe"), per_second(rate));
    let begun = Instant::now();
    let events = list_all(&long).await? as f64;
    let rate = events / begun.elapsed().as_secs_f64();
    table.note(format!("replay of {events} events with ListEvents"), per_second(rate));

    // In turns, so that whatever else the machine does happens to both.
    let (mut short_subscribe, mut long_subscribe) = (Quantiles::default(), Quantiles::default());
    let (mut short_read, mut long_read) = (Quantiles::default(), Quantiles::default());
    for _ in 0..stage.scale.openings {
        for (session, subscribes, reads) in [
            (&short, &mut short_subscribe, &mut short_read),
            (&long, &mut long_subscribe, &mut long_read),
        ] {
            let begun = Instant::now();
            subscribe(session).await?;
            subscribes.extend([begun.elapsed()]);
            let begun = Instant::now();
            read(session).await?;
            reads.extend([begun.elapsed()]);
        }
    }
    let messages = stage.scale.turns * 2;
    for (how, short, long) in [
        ("Subscribe", short_subscribe, long_subscribe),
        ("GetSnapshot and ListMessages", short_read, long_read),
    ] {
        let (short, long) = (short.p50(), long.p50());
        table.note(format!("opening 20 messages with {how}, p50"), milliseconds(short));
        table.note(format!("opening {messages} messages with {how}, p50"), milliseconds(long));
        table.at_most(
            format!("opening {messages} ÷ opening 20 messages, {how}"),
            long / short,
            1.2,
            |times| format!("{times:.2}"),
        );
    }
    Ok(())
}

/// Reads the whole log as a stream, and returns how much that was.
async fn subscribe_to_all(session: &Session) -> Result<i64> {
    let last = session.get().await.last_sequence;
    let mut events = session.subscribe(From::FromStart(true)).await;
    for sequence in 1..=last {
        assert_eq!(events.next().await?.sequence, sequence);
    }
    Ok(last)
}

/// The same in pages.
async fn list_all(session: &Session) -> Result<i64> {
    let mut after_sequence = 0;
    loop {
        let (session_id, page_size) = (session.id.clone(), 1000);
        let request = ListEventsRequest { session_id, after_sequence, page_size };
        let page = session.client.sessions().list_events(request).await?.into_inner();
        for event in &page.events {
            after_sequence += 1;
            assert_eq!(event.sequence, after_sequence);
        }
        if !page.more {
            return Ok(after_sequence);
        }
    }
}

/// Opens a session as a screen does that wants to stay up to date.
async fn subscribe(session: &Session) -> Result<()> {
    let request = SubscribeRequest {
        session_id: session.id.clone(),
        messages: MESSAGES,
        ..SubscribeRequest::default()
    };
    let mut stream = session.client.streams().subscribe(request).await?.into_inner();
    stream.message().await?;
    Ok(())
}

/// Opens a session as somebody who only looks.
async fn read(session: &Session) -> Result<()> {
    let mut sessions = session.client.sessions();
    let (session_id, turns) = (session.id.clone(), SHORT_TURNS as i32);
    sessions.get_snapshot(GetSnapshotRequest { session_id, turns }).await?;
    let request = ListMessagesRequest {
        session_id: session.id.clone(),
        page_size: MESSAGES,
        ..ListMessagesRequest::default()
    };
    sessions.list_messages(request).await?;
    Ok(())
}

fn per_second(rate: f64) -> String {
    format!("{rate:.0}/s")
}
