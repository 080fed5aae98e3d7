//! The way of commands to the writer: on its thread, or on that of a caller.

use std::fmt;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, Thread};

use super::StoreCommand;
use super::writer::{self, Database, StoreWriter};

/// Sends commands, which are carried out in their order. The thread ends when this is dropped and everything is
/// written.
pub(super) struct StoreQueue {
    /// Unbounded: sessions flush at every message, so few commands are queued. `None` while this is dropped.
    sender: Option<mpsc::Sender<StoreCommand>>,
    writer: Arc<Mutex<StoreWriter>>,
    thread: Thread,
}

impl StoreQueue {
    /// Starts the writer's thread, which calls `open` first.
    pub(super) fn start(open: impl FnOnce() -> Option<Database> + Send + 'static) -> std::io::Result<Self> {
        let (sender, received) = mpsc::channel();
        let writer = Arc::new(Mutex::new(StoreWriter::new(received)));
        let shared = Arc::clone(&writer);
        let builder = thread::Builder::new().name("store".into());
        let thread = builder.spawn(move || writer::write(&shared, open))?.thread().clone();
        Ok(Self { sender: Some(sender), writer, thread })
    }

    /// Sends a command that waits for the next one: the thread is not woken.
    pub(super) fn hold(&self, command: StoreCommand) {
        if let Some(sender) = &self.sender {
            // If it is closed, waiting callers get an error.
            let _ = sender.send(command);
        }
    }

    pub(super) fn send(&self, command: StoreCommand) {
        self.hold(command);
        self.thread.unpark();
    }

    /// Sends a command, and carries it out on this thread if that takes little time and waits for nothing.
    pub(super) fn carry_out(&self, command: StoreCommand) {
        self.hold(command);
        let is_done = self.writer.try_lock().is_ok_and(|mut writer| writer.try_commit());
        if !is_done {
            self.thread.unpark();
        }
    }
}

impl Drop for StoreQueue {
    fn drop(&mut self) {
        self.sender = None;
        self.thread.unpark();
    }
}

impl fmt::Debug for StoreQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreQueue").field("thread", &self.thread).finish_non_exhaustive()
    }
}
