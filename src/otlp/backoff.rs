//! Waits between attempts, so that a dead collector costs little. Pure.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);

const LONGEST: Duration = Duration::from_mins(1);

/// Doubles from a second to a minute. A process's own share of the wait keeps a thousand processes from asking at
/// the same moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backoff {
    failures: u32,
    /// From 0 to 255.
    share: u8,
}

impl Backoff {
    pub(super) fn new(share: u8) -> Self {
        Self { failures: 0, share }
    }

    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    pub(super) fn has_failed(self) -> bool {
        self.failures > 0
    }

    /// Returns the wait after one more failure: `asked` by the collector at least.
    pub(super) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let wait = FIRST.saturating_mul(1 << self.failures.min(6)).min(LONGEST);
        self.failures += 1;
        let wait = wait + wait.mul_f64(f64::from(self.share) / 1024.0);
        wait.max(asked.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_obey_the_collector() {
        let mut backoff = Backoff::new(0);
        let waits: Vec<u64> = (0..8).map(|_| backoff.next(None).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(backoff.next(Some(Duration::from_mins(5))).as_secs(), 300);
        assert_eq!(backoff.next(Some(Duration::from_secs(3))).as_secs(), 60, "a shorter wait is no shortcut");
        backoff.reset();
        assert_eq!(backoff.next(None), FIRST);
        let of = |share| Backoff::new(share).next(None);
        assert!(of(0) < of(255) && of(255) < FIRST * 2);
    }
}
