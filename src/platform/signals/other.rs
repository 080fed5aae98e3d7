//! Requests to stop on Windows.

use std::future::pending;

/// Waits for the request to stop. If a program shares the terminal, it decides about the keys that interrupt.
pub async fn stop_requested(shares_terminal: bool) {
    if shares_terminal || tokio::signal::ctrl_c().await.is_err() {
        pending::<()>().await;
    }
}
