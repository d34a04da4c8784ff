//! What a command prints, all of it, on its way to somebody who follows the session: the log has
//! its beginning and its end, and says where the rest is, which is read from there.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use local::Service;
use proto::{
    event::v1::Event,
    session::v1::subscribe_request::From,
    tools::v1::{ReadOutputRequest, output_service_client::OutputServiceClient},
};
use tests::Client;

use crate::{stage::Stage, table::Table};

/// The largest piece that there is.
const PIECE: i32 = 1024 * 1024;

const ROUNDS: usize = 3;

pub async fn measure(stage: &mut Stage, table: &mut Table) -> Result<()> {
    let bytes = stage.scale.printed_bytes;
    eprintln!("{ROUNDS} commands print {} MB each …", bytes / 1_000_000);
    let client = stage.client();
    let (mut kept, mut read) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let session = client.create_session().await;
        let mut events = session.subscribe(From::Live(true)).await;
        // Each prints something else, because the same is kept once.
        let line = format!("line {round} as programs print it, of some length and little worth");
        let begun = Instant::now();
        let command = format!("yes '{line}' | head -c {bytes}");
        session.submit(&format!("call bash {{\"command\": \"{command}\"}}\n---\nsay done")).await;
        let spilled = loop {
            let event = events.next().await.context("the stream goes on")?;
            ensure!(event.r#type != "turn.failed", "{event:?}");
            if event.r#type == "output.spilled" {
                break event;
            }
        };
        kept.push(rate(bytes, begun));
        ensure!(read_all(&client, &spilled).await? == bytes, "some of the output is missing");
        read.push(rate(bytes, begun));
        let mut ended = events.next().await;
        while ended.as_ref().is_some_and(|event| event.r#type != "turn.completed") {
            ended = events.next().await;
        }
    }
    let speed = |speed: f64| format!("{speed:.0} MB/s");
    table.note("`bash` output, submit to kept whole", speed(median(kept)));
    table.at_least(
        "`bash` output, submit to all of it read by a subscriber",
        median(read),
        100.0,
        speed,
    );
    Ok(())
}

/// All pieces of an output, one after the other, and how much they are.
async fn read_all(client: &Client, spilled: &Event) -> Result<u64> {
    let mut outputs = OutputServiceClient::new(client.to(Service::Tools));
    let mut bytes = 0;
    loop {
        let request = ReadOutputRequest {
            output_ref: spilled.output_ref.clone(),
            offset: bytes as i64,
            limit: PIECE,
        };
        match outputs.read_output(request).await?.into_inner().data.len() {
            0 => return Ok(bytes),
            more => bytes += more as u64,
        }
    }
}

fn rate(bytes: u64, begun: Instant) -> f64 {
    bytes as f64 / 1e6 / begun.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
