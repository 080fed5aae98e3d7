//! The log: to stderr, never to stdout.
//!
//! Quiet unless something is wrong; `MODEGATE_LOG` sets the level. Fields carry names and ids, never contents or keys. A
//! thread of its own writes the log and drops lines while stderr is not read, so that the agent never waits for its log.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Lines that may wait for the thread; further lines are dropped.
const MAX_WAITING: usize = 1024;

/// How long the end of the process waits for the remaining lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Writes the remaining lines when it is dropped.
pub struct LogGuard {
    lines: SyncSender<Option<Vec<u8>>>,
    written: Receiver<()>,
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        // A full queue means that nobody reads stderr.
        if self.lines.try_send(None).is_ok() {
            let _ = self.written.recv_timeout(LAST_LINES);
        }
    }
}

/// One line on its way to the thread.
struct Line {
    bytes: Vec<u8>,
    lines: SyncSender<Option<Vec<u8>>>,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Dropped while the queue is full, as documented above.
        let _ = self.lines.try_send(Some(std::mem::take(&mut self.bytes)));
    }
}

/// Starts the log. An unknown level is reported and read as `warn`. Lines are written while the guard lives.
pub fn start(level: Option<&str>) -> LogGuard {
    let parsed = level.map(str::parse::<LevelFilter>);
    let filter = match parsed {
        Some(Ok(filter)) => filter,
        None | Some(Err(_)) => LevelFilter::WARN,
    };
    let (lines, queue) = sync_channel(MAX_WAITING);
    let (done, written) = sync_channel(1);
    std::thread::spawn(move || {
        write_lines(&queue);
        let _ = done.send(());
    });
    let guard = LogGuard { lines: lines.clone(), written };
    // Entries of the MCP library quote what servers say, and contents are not logged.
    let targets = Targets::new().with_default(filter).with_target("rmcp", LevelFilter::OFF);
    let writer = move || Line { bytes: Vec::new(), lines: lines.clone() };
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(false);
    tracing_subscriber::registry().with(layer.with_filter(targets)).init();
    if let (Some(level), Some(Err(_))) = (level, parsed) {
        tracing::warn!(level, "MODEGATE_LOG is one of off, error, warn, info, debug, trace");
    }
    guard
}

/// Writes lines until the end is announced.
fn write_lines(queue: &Receiver<Option<Vec<u8>>>) {
    let mut stderr = std::io::stderr();
    while let Ok(Some(line)) = queue.recv() {
        // There is no other place to report that stderr is closed.
        let _ = stderr.write_all(&line);
    }
}
