//! Signals on Unix.

use std::future::pending;

use tokio::signal::unix::{SignalKind, signal};

/// Waits for the request to stop. If a program shares the terminal, it decides about the keys that interrupt and
/// quit.
pub async fn stop_requested(shares_terminal: bool) {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return pending().await };
    if !shares_terminal {
        tokio::select! {
            _ = terminate.recv() => {}
            interrupted = tokio::signal::ctrl_c() => if interrupted.is_err() {
                pending::<()>().await;
            },
        }
        return;
    }
    let ignored = (signal(SignalKind::interrupt()), signal(SignalKind::quit()));
    let Ok(mut hang_up) = signal(SignalKind::hangup()) else { return pending().await };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
    }
    drop(ignored);
}
