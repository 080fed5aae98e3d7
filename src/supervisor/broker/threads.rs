//! The threads of a broker. They end with the supervisor.

use std::io;
use std::sync::mpsc::Receiver;
use std::thread;

use super::notification;

/// Starts a thread. A panic in it ends the supervisor.
pub(super) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let guarded = || {
        let _abort = AbortOnPanic;
        run();
    };
    thread::Builder::new().name(name.into()).spawn(guarded).map(drop)
}

/// Otherwise this thread could make a file with the umask of another call.
pub(super) fn separate_umask() {
    if notification::separate_umask().is_err() {
        std::process::abort();
    }
}

/// Starts a thread that follows orders one by one.
pub(super) fn follow<Order: Send + 'static>(
    name: &str,
    orders: Receiver<Order>,
    each: impl Fn(Order) + Send + 'static,
) -> io::Result<()> {
    start(name, move || {
        separate_umask();
        orders.into_iter().for_each(each);
    })
}

/// Ends the supervisor if a thread panics: a call without an answer would wait forever.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}
