use std::{panic::resume_unwind, time::Duration};

use tokio::{task::spawn_blocking, time::timeout};
use tokio_util::sync::CancellationToken;

/// The work took longer than it may.
#[derive(Debug)]
pub struct TimedOut;

/// Does work that waits for disks where that harms nobody. When its time is over or nobody
/// wants the result any more, the work is told so, and is expected to look often.
pub async fn work<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce(&CancellationToken) -> T + Send + 'static,
) -> Result<T, TimedOut> {
    let stop = CancellationToken::new();
    let _stop_when_dropped = stop.clone().drop_guard();
    let working = spawn_blocking(move || work(&stop));
    match timeout(limit, working).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(panicked)) => resume_unwind(panicked.into_panic()),
        Err(_) => Err(TimedOut),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread::sleep};

    use super::*;

    /// Works until it is told to stop, and then says so.
    fn endless(done: mpsc::Sender<()>) -> impl FnOnce(&CancellationToken) + Send {
        move |stop| {
            while !stop.is_cancelled() {
                sleep(Duration::from_millis(1));
            }
            done.send(()).unwrap();
        }
    }

    #[tokio::test]
    async fn work_stops_when_its_time_is_over() {
        let (sender, done) = mpsc::channel();
        assert!(work(Duration::from_millis(10), endless(sender)).await.is_err());
        done.recv_timeout(Duration::from_secs(5)).unwrap();
    }

    #[tokio::test]
    async fn work_stops_when_nobody_waits_for_it() {
        let (sender, done) = mpsc::channel();
        let waiting = tokio::spawn(work(Duration::from_secs(60), endless(sender)));
        tokio::task::yield_now().await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        done.recv_timeout(Duration::from_secs(5)).unwrap();
    }
}
