//! Test support: checks that the time of a function grows with the length of its input, not with the square.
//!
//! Both times are measured in the same run, so that the speed of the machine does not matter.

use std::time::{Duration, Instant};

/// The long input is so many times as long as the short one.
pub const FACTOR: usize = 16;

/// Runs `process` with a short and a long input. Fails if the long one never takes less than five times its
/// share; with the square of the length it takes 16 times its share.
pub fn check_linear(what: &str, short: usize, process: impl Fn(usize)) {
    let time = |length| {
        let started = Instant::now();
        process(length);
        started.elapsed()
    };
    let (mut fast, mut slow) = (Duration::MAX, Duration::MAX);
    for attempt in 0..8 {
        fast = fast.min(time(short));
        // Another process can only slow a run down: the fastest of several counts.
        if attempt < 3 {
            continue;
        }
        slow = slow.min(time(short * FACTOR));
        if slow < fast * 5 * u32::try_from(FACTOR).expect("a small number") {
            return;
        }
    }
    panic!("{what}: {short} bytes take {fast:?}, {FACTOR} times as many take {slow:?}");
}
