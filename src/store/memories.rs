//! Memories of folders. They belong to no session and outlive all sessions.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};
use tokio_util::sync::CancellationToken;

use super::{Store, StoreError, removal, sql};
use crate::ids::{self, Source};
use crate::memory::{MAX_COUNT, Memories, Memory, MemoryChange, MemoryError};

const COLUMNS: &str = "number, text, category, created_at, updated_at";

const IN_MEMORY: &str = "The memory is lost when Modegate ends, because the session store is in memory only.";

#[derive(Debug, Clone)]
pub struct StoredMemories {
    store: Store,
    source: Source,
}

impl StoredMemories {
    pub fn new(store: Store, source: Source) -> Self {
        Self { store, source }
    }

    /// Returns an error if a requested file is not used, because memories would be lost silently.
    async fn usable(&self) -> Result<(), MemoryError> {
        // The result is known after the first wait. Errors of other rows do not matter here.
        let _ = self.store.flush().await;
        match self.store.substituted() {
            Some(reason) => Err(MemoryError::Store(reason.to_owned())),
            None => Ok(()),
        }
    }

    async fn change<T: Send + 'static>(
        &self,
        cancel: CancellationToken,
        work: impl FnOnce(&Connection) -> rusqlite::Result<Result<T, MemoryError>> + Send + 'static,
    ) -> Result<T, MemoryError> {
        self.usable().await?;
        let outcome = self.store.write(move |connection| {
            // The call may have waited, and the mode may deny it by now.
            if cancel.is_cancelled() {
                return Ok(Err(MemoryError::Cancelled));
            }
            // Immediate: two processes must not both take the last free place.
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        });
        outcome.await?
    }

    /// As [`Self::change`], and removes the previous text from the write-ahead log.
    async fn replace(
        &self,
        cancel: CancellationToken,
        work: impl FnOnce(&Connection) -> rusqlite::Result<Result<Memory, MemoryError>> + Send + 'static,
    ) -> Result<Memory, MemoryError> {
        let memory = self.change(cancel, work).await?;
        // A failure is logged.
        let _ = removal::overwrite_log(&self.store).await;
        Ok(memory)
    }
}

impl From<StoreError> for MemoryError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.to_string())
    }
}

#[async_trait]
impl Memories for StoredMemories {
    async fn list(&self, folder: &Path) -> Result<Vec<Memory>, MemoryError> {
        self.usable().await?;
        let memories = self.store.memories(Some(named(folder)?)).await?;
        Ok(memories.into_iter().map(|(_, memory)| memory).collect())
    }

    async fn add(
        &self,
        folder: &Path,
        text: String,
        category: Option<String>,
        cancel: CancellationToken,
    ) -> Result<(Memory, Option<&'static str>), MemoryError> {
        let (folder, at) = (named(folder)?, self.source.now_ms());
        let memory = self
            .change(cancel, move |connection| {
                let sql = "SELECT count(*) FROM memories WHERE folder = ?1";
                let count: i64 = connection.query_row(sql, [&folder], |row| row.get(0))?;
                if usize::try_from(count).is_ok_and(|count| count >= MAX_COUNT) {
                    return Ok(Err(MemoryError::Full));
                }
                let sql = format!(
                    "INSERT INTO memories (folder, text, category, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?4) \
                     RETURNING {COLUMNS}"
                );
                connection.query_row(&sql, params![folder, text, category, at], read).map(Ok)
            })
            .await?;
        Ok((memory, self.store.is_in_memory().then_some(IN_MEMORY)))
    }

    async fn update(
        &self,
        folder: &Path,
        id: &str,
        change: MemoryChange,
        cancel: CancellationToken,
    ) -> Result<Memory, MemoryError> {
        let (folder, at, id) = (named(folder)?, self.source.now_ms(), id.to_owned());
        self.replace(cancel, move |connection| {
            let sql = format!(
                "UPDATE memories SET text = coalesce(?3, text), updated_at = ?5, \
                     category = CASE WHEN ?4 IS NULL THEN category WHEN ?4 = '' THEN NULL ELSE ?4 END \
                     WHERE folder = ?1 AND number = ?2 RETURNING {COLUMNS}"
            );
            let MemoryChange { text, category } = change;
            let values = params![folder, number(&id), text, category, at];
            let changed = connection.query_row(&sql, values, read).optional()?;
            Ok(changed.ok_or(MemoryError::Unknown(id)))
        })
        .await
    }

    async fn delete(
        &self,
        folder: &Path,
        id: &str,
        cancel: CancellationToken,
    ) -> Result<Memory, MemoryError> {
        let (folder, id) = (named(folder)?, id.to_owned());
        self.replace(cancel, move |connection| {
            let sql = format!("DELETE FROM memories WHERE folder = ?1 AND number = ?2 RETURNING {COLUMNS}");
            let deleted = connection.query_row(&sql, params![folder, number(&id)], read).optional()?;
            Ok(deleted.ok_or(MemoryError::Unknown(id)))
        })
        .await
    }
}

pub(super) fn list(
    connection: &Connection,
    folder: Option<String>,
) -> rusqlite::Result<Vec<(PathBuf, Memory)>> {
    let sql = format!(
        "SELECT {COLUMNS}, folder FROM memories WHERE ?1 IS NULL OR folder = ?1 ORDER BY folder, number"
    );
    sql::rows(connection, &sql, [folder], |row| Ok((row.get::<_, String>(5)?.into(), read(row)?)))
}

pub(super) fn delete(connection: &Connection, id: &str) -> rusqlite::Result<bool> {
    Ok(connection.execute("DELETE FROM memories WHERE number = ?1", [number(id)])? > 0)
}

fn named(folder: &Path) -> Result<String, MemoryError> {
    let name = folder.to_str().map(str::to_owned);
    name.ok_or_else(|| MemoryError::Store("the path of the session's folder is not UTF-8".into()))
}

/// Returns -1, which no memory has, for an unknown format.
fn number(id: &str) -> i64 {
    id.strip_prefix("mem_").and_then(|number| number.parse().ok()).unwrap_or(-1)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Memory> {
    let number: i64 = row.get(0)?;
    Ok(Memory {
        id: format!("mem_{number}"),
        text: row.get(1)?,
        category: row.get(2)?,
        created: ids::time_text(row.get(3)?),
        updated: ids::time_text(row.get(4)?),
    })
}
