//! Log on stderr. Fields carry names and ids, never contents or keys. A separate thread writes the log and
//! drops lines while stderr is not read, so that the agent never waits.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing_subscriber::Layer;
pub use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const MAX_WAITING: usize = 1024;

const LAST_LINES: Duration = Duration::from_secs(1);

pub struct LogGuard {
    lines: SyncSender<Option<Vec<u8>>>,
    written: Receiver<()>,
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        // A full queue means that stderr is not read.
        if self.lines.try_send(None).is_ok() {
            let _ = self.written.recv_timeout(LAST_LINES);
        }
    }
}

struct LogLine {
    bytes: Vec<u8>,
    lines: SyncSender<Option<Vec<u8>>>,
}

impl Write for LogLine {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        let _ = self.lines.try_send(Some(std::mem::take(&mut self.bytes)));
    }
}

/// Starts the log, which runs until the guard is dropped. An unknown level is treated as the default.
pub fn start(level: Option<&str>, default: LevelFilter) -> LogGuard {
    let parsed = level.map(str::parse::<LevelFilter>);
    let filter = match parsed {
        Some(Ok(filter)) => filter,
        None | Some(Err(_)) => default,
    };
    let (lines, queue) = sync_channel(MAX_WAITING);
    let (done, written) = sync_channel(1);
    std::thread::spawn(move || {
        write_lines(&queue);
        let _ = done.send(());
    });
    let guard = LogGuard { lines: lines.clone(), written };
    // The MCP library logs contents of servers, which must not be logged.
    let targets = Targets::new().with_default(filter).with_target("rmcp", LevelFilter::OFF);
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(move || LogLine { bytes: Vec::new(), lines: lines.clone() })
        .with_ansi(false);
    tracing_subscriber::registry().with(layer.with_filter(targets)).init();
    if let (Some(level), Some(Err(_))) = (level, parsed) {
        tracing::error!(level, "MODEGATE_LOG is one of off, error, warn, info, debug, trace");
    }
    guard
}

fn write_lines(queue: &Receiver<Option<Vec<u8>>>) {
    let mut stderr = std::io::stderr();
    while let Ok(Some(line)) = queue.recv() {
        let _ = stderr.write_all(&line);
    }
}
