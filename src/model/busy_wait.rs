//! Waits for a busy provider. Pure.

use std::time::Duration;

/// First wait if the server names none. Each further wait is twice as long.
pub(super) const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Longest wait if the server names none.
const LONGEST_WAIT: Duration = Duration::from_mins(1);

/// Number of short waits that a busy provider may name.
const SHORT_WAITS: u32 = 10;

/// Limit of the waits for a busy provider in a run without an editor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyLimit {
    /// Number of the attempt that failed, from 1.
    pub attempt: u32,
    /// Longest sum of the waits.
    pub most: Duration,
}

/// Some short waits of a provider in a row make the next ones longer.
pub(super) fn busy_wait(named: Option<Duration>, number: u32) -> Duration {
    let backoff = FIRST_WAIT.saturating_mul(2_u32.saturating_pow(number - 1)).min(LONGEST_WAIT);
    match named {
        Some(named) if number <= SHORT_WAITS => named,
        named => named.unwrap_or_default().max(backoff),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_provider_is_asked_at_most_once_a_minute() {
        let check = |named: Option<u64>, number, expected: f64| {
            let wait = busy_wait(named.map(Duration::from_secs), number);
            assert_eq!(wait, Duration::from_secs_f64(expected), "{named:?} {number}");
        };
        check(None, 1, 0.5);
        check(None, 7, 32.0);
        check(None, 8, 60.0);
        check(None, u32::MAX, 60.0);
        check(Some(0), 10, 0.0);
        check(Some(0), 11, 60.0);
        check(Some(7_200), 1, 7_200.0);
        check(Some(7_200), 11, 7_200.0);
    }
}
