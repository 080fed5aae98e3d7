//! Deletes old sessions as the user's settings say, while the store is idle. Open sessions stay.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rusqlite::Connection;

use super::removal::{self, free_pages};
use super::sessions::OldSession;
use super::{Store, StoreError, StoreOwner, migrations};
use crate::acp::SessionId;

/// Time without a command after which the store counts as idle.
const QUIET: Duration = Duration::from_secs(30);

/// Time between two checks of a long-running process.
const INTERVAL: Duration = Duration::from_hours(6);

/// Candidates of one query.
const CANDIDATES: usize = 100;

/// No limits by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Time since a session was last used, in milliseconds.
    pub max_age_ms: Option<i64>,
    /// Size of all data in the store.
    pub max_bytes: Option<u64>,
    /// True if sessions stay until their telemetry is exported.
    pub keeps_unexported: bool,
}

impl Retention {
    pub fn is_off(self) -> bool {
        self.max_age_ms.is_none() && self.max_bytes.is_none()
    }
}

/// Deletes sessions beyond the limits, the oldest first, and what earlier deletions have left. Returns the
/// number of deleted sessions. `now_ms` is in milliseconds since 1970.
pub async fn apply(store: &Store, retention: Retention, now_ms: i64) -> Result<usize, StoreError> {
    // The rows of earlier deletions count as data.
    removal::remove_marked(store).await?;
    let mut deleted = 0;
    if let Some(age) = retention.max_age_ms {
        let old = store.sessions_before(now_ms.saturating_sub(age), None, usize::MAX).await?;
        let old = deletable(store, retention, old).await?;
        deleted += removal::delete_all(store, old).await?.len();
    }
    if let Some(max) = retention.max_bytes {
        deleted += shrink(store, retention, max).await?;
        removal::remove_marked(store).await?;
    }
    Ok(deleted)
}

/// Sessions that no process has open, and whose telemetry has arrived where that is required.
async fn deletable(
    store: &Store,
    retention: Retention,
    old: Vec<OldSession>,
) -> Result<Vec<SessionId>, StoreError> {
    let waiting =
        if retention.keeps_unexported { store.unexported_sessions().await? } else { HashSet::new() };
    let closed = old.into_iter().filter(|old| !old.is_open).map(|old| old.id);
    Ok(closed.filter(|id| !waiting.contains(id)).collect())
}

async fn shrink(store: &Store, retention: Retention, max_bytes: u64) -> Result<usize, StoreError> {
    let mut deleted = 0;
    while bytes_of_data(store).await? > max_bytes {
        let oldest = store.sessions_before(i64::MAX, None, CANDIDATES).await?;
        let closed = deletable(store, retention, oldest).await?;
        let before = deleted;
        for id in closed {
            if bytes_of_data(store).await? <= max_bytes {
                break;
            }
            deleted += removal::delete_rows(store, vec![id]).await?.len();
        }
        if deleted == before {
            // Only sessions that stay are left.
            break;
        }
    }
    Ok(deleted)
}

async fn bytes_of_data(store: &Store) -> Result<u64, StoreError> {
    store.query(|connection, _| used_bytes(connection)).await
}

/// Applies the limits whenever the store has been idle for some time, and then every few hours.
pub async fn apply_while_idle(store: Store, retention: Retention, now_ms: impl Fn() -> i64) {
    loop {
        let before = store.activity.load(Ordering::Relaxed);
        tokio::time::sleep(QUIET).await;
        if store.activity.load(Ordering::Relaxed) != before {
            continue;
        }
        if store.is_in_memory() {
            return;
        }
        match apply(&store, retention, now_ms()).await {
            Ok(deleted) => tracing::debug!(deleted, "old sessions were deleted"),
            Err(error) => tracing::info!(%error, "old sessions could not be deleted"),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Rewrites a file of an earlier version that has much free space, unless another process has it open. Takes
/// long for a large file.
pub async fn compact(store: &Store) -> Result<(), StoreError> {
    store.work(compact_if_alone).await?;
    removal::overwrite_log(store).await
}

fn compact_if_alone(connection: &mut Connection, owner: &StoreOwner) -> rusqlite::Result<()> {
    let is_worthwhile = free_pages(connection)? * 4 > pages(connection)?;
    if is_worthwhile && !migrations::can_give_back(connection)? && owner.is_alone() {
        migrations::compact(connection)?;
    }
    Ok(())
}

fn pages(connection: &Connection) -> rusqlite::Result<u64> {
    connection.query_row("PRAGMA page_count", [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
}

/// Bytes of the file, without free pages.
pub(super) fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let size: i64 = connection.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    Ok((pages(connection)? - free_pages(connection)?) * size.cast_unsigned())
}
