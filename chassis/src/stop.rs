use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled when the process is asked to stop.
pub fn stop_signal() -> CancellationToken {
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let mut terminate = signal(SignalKind::terminate()).expect("a Unix host");
    let mut interrupt = signal(SignalKind::interrupt()).expect("a Unix host");
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => (),
            _ = interrupt.recv() => (),
        }
        stop.cancel();
    });
    stopped
}
