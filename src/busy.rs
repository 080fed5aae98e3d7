//! Counts the work in progress off the main thread, process-wide. A deterministic run waits until there is none.

use std::sync::atomic::{AtomicUsize, Ordering};

static BUSY_COUNT: AtomicUsize = AtomicUsize::new(0);

pub fn is_busy() -> bool {
    BUSY_COUNT.load(Ordering::Acquire) > 0
}

#[derive(Debug)]
pub struct BusyGuard;

impl BusyGuard {
    pub fn begin() -> Self {
        BUSY_COUNT.fetch_add(1, Ordering::AcqRel);
        Self
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        BUSY_COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}
