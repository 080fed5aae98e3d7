//! Waits for conditions that no message reports. A wait fails after [`TIMEOUT`].

use std::path::Path;
use std::time::{Duration, Instant};

use super::TIMEOUT;

/// The time between two looks at a condition.
const INTERVAL: Duration = Duration::from_millis(2);

/// Waits until a condition is true. `expected` describes it in the failure.
pub(crate) async fn until(expected: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < TIMEOUT, "not in time: {expected}");
        tokio::time::sleep(INTERVAL).await;
    }
}

/// As [`until`], for tests without a runtime.
pub(crate) fn block_until(expected: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < TIMEOUT, "not in time: {expected}");
        std::thread::sleep(INTERVAL);
    }
}

pub(crate) async fn until_exists(path: &Path) {
    until(&path.display().to_string(), || path.exists()).await;
}

pub(crate) async fn until_content(path: &Path, content: &str) {
    let expected = format!("{} with {content:?}", path.display());
    until(&expected, || std::fs::read_to_string(path).is_ok_and(|text| text == content)).await;
}
