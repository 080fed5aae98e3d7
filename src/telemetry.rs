//! The log: to stderr, never to stdout.
//!
//! Quiet unless something is wrong; `MODEGATE_LOG` sets the level. Fields carry names and ids, never contents or keys. A
//! thread writes it, and drops lines when nobody reads: the agent never waits for its own log.

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Lines that wait for the thread. Their places are allocated at the start, so the number is a cost.
const WAITING: usize = 1024;

/// Starts the log. An unknown level is said and read as `warn`. What is logged is written while the guard lives.
pub fn start(level: Option<&str>) -> WorkerGuard {
    let parsed = level.map(str::parse::<LevelFilter>);
    let filter = match parsed {
        Some(Ok(filter)) => filter,
        None | Some(Err(_)) => LevelFilter::WARN,
    };
    let (writer, guard) =
        NonBlockingBuilder::default().buffered_lines_limit(WAITING).finish(std::io::stderr());
    // What servers say stands in the library's own entries, and contents are not for the log.
    let targets = Targets::new().with_default(filter).with_target("rmcp", LevelFilter::OFF);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(false);
    tracing_subscriber::registry().with(lines.with_filter(targets)).init();
    if let (Some(level), Some(Err(_))) = (level, parsed) {
        tracing::warn!(level, "MODEGATE_LOG is one of off, error, warn, info, debug, trace");
    }
    guard
}
