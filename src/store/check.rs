//! Checks the file of a store without changing it.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::files::{COMPANIONS, companion};
use super::migrations::{self, OpenStoreError};
use super::{StoreError, retention, sql};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub soundness: Soundness,
    /// Bytes of the file and its companions.
    pub bytes: u64,
    /// Bytes of the file that hold no data.
    pub free_bytes: u64,
    /// Number of sessions, with those of sub-agents.
    pub sessions: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Soundness {
    Sound,
    /// Nothing was found before the time was over.
    Unfinished,
    /// The first finding, in SQLite's words.
    Damaged(String),
}

/// Reads the whole file, or as much as `limit` allows. Fails if the file is no store.
pub fn examine(path: &Path, limit: Option<Duration>) -> Result<Condition, StoreError> {
    let damaged = |text: String| Condition {
        soundness: Soundness::Damaged(text),
        bytes: bytes(path),
        free_bytes: 0,
        sessions: 0,
    };
    let connection = match migrations::open_unchanged(path) {
        Ok(connection) => connection,
        Err(OpenStoreError::Sqlite(error)) if is_damage(&error) => return Ok(damaged(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    match read(&connection, limit) {
        Ok((soundness, free_bytes, sessions)) => {
            Ok(Condition { soundness, bytes: bytes(path), free_bytes, sessions })
        }
        Err(error) if is_damage(&error) => Ok(damaged(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

fn read(connection: &Connection, limit: Option<Duration>) -> rusqlite::Result<(Soundness, u64, u64)> {
    let soundness = check(connection, limit)?;
    let used = retention::used_bytes(connection)?;
    let all: i64 = connection.query_row(
        "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
        [],
        |row| row.get(0),
    )?;
    let sessions: i64 = connection.query_row("SELECT count(*) FROM sessions", [], |row| row.get(0))?;
    Ok((soundness, all.cast_unsigned().saturating_sub(used), sessions.cast_unsigned()))
}

/// Runs SQLite's check for at most the time of `limit`.
pub(super) fn check(connection: &Connection, limit: Option<Duration>) -> rusqlite::Result<Soundness> {
    let interrupt = connection.get_interrupt_handle();
    let (done, wait) = channel::<()>();
    let timer = limit.map(|limit| {
        thread::spawn(move || {
            if wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                interrupt.interrupt();
            }
        })
    });
    let faults = sql::rows(connection, "PRAGMA integrity_check(1)", [], |row| row.get::<_, String>(0));
    drop(done);
    if let Some(timer) = timer {
        // The thread only waits.
        let _ = timer.join();
    }
    match faults {
        Ok(found) => Ok(match found.into_iter().next() {
            Some(text) if text != "ok" => {
                let finding = text.trim_start_matches("*** in database main ***");
                Soundness::Damaged(finding.trim().replace('\n', ", "))
            }
            Some(_) | None => Soundness::Sound,
        }),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
            Ok(Soundness::Unfinished)
        }
        Err(error) => Err(error),
    }
}

pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

fn bytes(path: &Path) -> u64 {
    let companions = COMPANIONS.map(|ending| companion(path, ending));
    file_length(path) + companions.iter().map(|path| file_length(path)).sum::<u64>()
}

fn file_length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}
