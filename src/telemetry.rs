//! The log: to stderr, never to stdout.
//!
//! Quiet unless something is wrong; `MODEGATE_LOG` sets the level. Fields carry names and ids, never contents or keys.

use tracing_subscriber::filter::LevelFilter;

/// Starts the log. An unknown level is said and read as `warn`.
pub fn start(level: Option<&str>) {
    let parsed = level.map(str::parse::<LevelFilter>);
    let filter = match parsed {
        Some(Ok(filter)) => filter,
        None | Some(Err(_)) => LevelFilter::WARN,
    };
    tracing_subscriber::fmt().with_max_level(filter).with_writer(std::io::stderr).with_ansi(false).init();
    if let (Some(level), Some(Err(_))) = (level, parsed) {
        tracing::warn!(level, "MODEGATE_LOG is one of off, error, warn, info, debug, trace");
    }
}
