//! Reports to Modegate.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use super::protocol::Report;

/// Writes a whole line, also if several threads report.
pub(super) fn report(mut connection: &UnixStream, report: &Report) -> io::Result<()> {
    static WRITING: Mutex<()> = Mutex::new(());
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    connection.write_all(&line)
}

/// Reports to Modegate, which may be gone.
pub(super) fn tell(connection: &UnixStream, message: &Report) {
    let _ = report(connection, message);
}
