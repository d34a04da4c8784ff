use std::time::Duration;

use proto::session::v1::{SubmitTurnRequest, Turn};
use tokio::time::{Instant, sleep};

use crate::{Client, explain, is_passing};

/// Long enough for a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calls as the contract wants it: one replica after the other, each time with the same request,
/// until somebody answers.
pub async fn submit(replicas: &[Client], request: &SubmitTurnRequest) -> Turn {
    let begun = Instant::now();
    for client in replicas.iter().cycle() {
        match client.turns().submit_turn(request.clone()).await {
            Ok(response) => return response.into_inner().turn.unwrap(),
            Err(status) => assert!(is_passing(&status), "{}", explain(&status)),
        }
        assert!(begun.elapsed() < PATIENCE, "nobody takes the turn");
        sleep(Duration::from_millis(50)).await;
    }
    unreachable!("there are no replicas")
}
