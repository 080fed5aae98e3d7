//! Which threads of a broker wait for calls. One is enough most of the time: the kernel wakes every thread that waits,
//! although one gets the call. A second one waits, too, while calls queue up, and if the first is busy for long.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long calls may wait for a busy thread before another one helps.
const PATIENCE: Duration = Duration::from_millis(5);

/// A thread that gets a call within this time has not slept: the call was in the queue.
pub(super) const QUEUED: Duration = Duration::from_micros(2);

/// Calls in the queue one after the other before another thread helps. One may just have come in time.
const MANY_QUEUED: u32 = 2;

#[derive(Debug, Default)]
pub(super) struct Receivers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Threads that wait for calls.
    receiving: usize,
    /// Threads that look now and then whether they are needed.
    watching: usize,
    /// Threads that someone has to wake, because no calls come.
    resting: usize,
    /// Number of calls so far.
    received: u64,
    /// How many of the last calls were in the queue.
    queued: u32,
    /// No call can come any more.
    is_over: bool,
}

impl Receivers {
    /// Blocks until this thread has to wait for calls. Returns false if no call can come any more.
    pub(super) fn enter(&self) -> bool {
        let mut state = self.lock();
        let mut is_needed = state.receiving == 0;
        while !is_needed && !state.is_over && state.queued < MANY_QUEUED {
            let (seen, was_busy) = (state.received, state.receiving == 0);
            state.watching += 1;
            let waited = self.changed.wait_timeout(state, PATIENCE);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.watching -= 1;
            if state.received == seen && timeout.timed_out() {
                if state.receiving == 0 {
                    is_needed = was_busy;
                } else {
                    state.resting += 1;
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.resting -= 1;
                }
            }
        }
        state.receiving += 1;
        !state.is_over
    }

    /// This thread has got a call, or none, and waits for no other one. `was_queued` is true for a call that was there
    /// before the thread waited for it.
    pub(super) fn leave(&self, was_queued: bool) {
        let mut state = self.lock();
        state.receiving -= 1;
        state.received += 1;
        state.queued = if was_queued { state.queued.saturating_add(1) } else { 0 };
        let helps = state.queued >= MANY_QUEUED && state.watching + state.resting > 0;
        let wakes = state.receiving == 0 && state.resting > 0;
        drop(state);
        if helps || wakes {
            self.changed.notify_one();
        }
    }

    /// Ends the waits of all threads.
    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    /// Has a second thread enter, which sends whether calls can come.
    fn second(receivers: &'static Receivers) -> mpsc::Receiver<bool> {
        let (entered, second) = mpsc::channel();
        thread::spawn(move || entered.send(receivers.enter()));
        second
    }

    fn receivers() -> &'static Receivers {
        let receivers = Box::leak(Box::<Receivers>::default());
        assert!(receivers.enter());
        receivers
    }

    #[test]
    fn one_thread_waits_while_it_is_fast() {
        let receivers = receivers();
        let second = second(receivers);
        for pause in [0, 20, 0, 20] {
            for _ in 0..20 {
                receivers.leave(false);
                assert!(receivers.enter());
            }
            assert!(second.recv_timeout(Duration::from_millis(pause)).is_err());
        }
        receivers.end();
        assert_eq!(second.recv_timeout(LONG), Ok(false));
    }

    #[test]
    fn another_thread_waits_while_the_first_is_busy() {
        for idle in [Duration::ZERO, 4 * PATIENCE] {
            let receivers = receivers();
            let second = second(receivers);
            thread::sleep(idle);
            receivers.leave(false);
            assert_eq!(second.recv_timeout(LONG), Ok(true));
        }
    }

    #[test]
    fn another_thread_waits_while_calls_are_in_the_queue() {
        for idle in [Duration::ZERO, 4 * PATIENCE] {
            let receivers = receivers();
            let second = second(receivers);
            thread::sleep(idle);
            for _ in 0..MANY_QUEUED {
                receivers.leave(true);
                assert!(receivers.enter());
            }
            assert_eq!(second.recv_timeout(LONG), Ok(true));
        }
    }
}
