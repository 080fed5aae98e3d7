//! Queries of the store. The writer thread runs the queries, after the rows posted before them.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use rusqlite::Connection;

use super::checkpoint::{self, FoundCheckpoint};
use super::events::{self, StoredEvent};
use super::evidence::{self, Evidence};
use super::outbox::{self, Outbox, OutboxCounts, OutboxLock, WaitingLink, WaitingSpan};
use super::sessions::{
    self, ListedSession, OldSession, OpenSessionError, SessionQuery, StoredGrant, StoredSession,
};
use super::{Store, StoreError, fork, intent, memories, removal, spending};
use crate::acp::SessionId;
use crate::budget::Spent;
use crate::memory::Memory;
use crate::workspace::{Changed, Intent};

impl Store {
    /// Runs a query about a session.
    async fn read<T: Send + 'static>(
        &self,
        id: &SessionId,
        query: impl FnOnce(&Connection, &SessionId) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let id = id.clone();
        self.query(move |connection, _| query(connection, &id)).await
    }

    pub async fn session(&self, id: &SessionId) -> Result<Option<StoredSession>, StoreError> {
        let id = id.clone();
        self.query(move |connection, owner| sessions::find(connection, owner, &id)).await
    }

    pub async fn sessions(&self, listing: SessionQuery) -> Result<Vec<ListedSession>, StoreError> {
        self.query(move |connection, owner| sessions::list(connection, owner, listing)).await
    }

    /// As [`Self::sessions`], also with the parts that lists do not show.
    pub async fn sessions_with_counts(
        &self,
        listing: SessionQuery,
    ) -> Result<Vec<StoredSession>, StoreError> {
        self.query(move |connection, owner| sessions::list_with_counts(connection, owner, listing)).await
    }

    /// Returns up to 10 sessions whose id begins or ends with `part`, or the one with exactly this id.
    pub async fn sessions_like(&self, part: &str) -> Result<Vec<SessionId>, StoreError> {
        let part = part.to_owned();
        self.query(move |connection, _| sessions::like(connection, &part)).await
    }

    /// True for a session of `modegate run`, which takes no prompts.
    pub async fn is_of_program(&self, id: &SessionId) -> Result<bool, StoreError> {
        let id = id.clone();
        self.query(move |connection, _| sessions::is_of_program(connection, &id)).await
    }

    /// The number of sessions that a list has, whatever its limit.
    pub async fn count_sessions(&self, listing: SessionQuery) -> Result<u64, StoreError> {
        self.query(move |connection, _| sessions::count(connection, &listing)).await
    }

    /// Sessions of a directory, or of all, that were last used before a time, the oldest first. Leaves out sub-agent
    /// sessions, because they are deleted with their parent.
    pub async fn sessions_before(
        &self,
        at: i64,
        cwd: Option<PathBuf>,
        limit: usize,
    ) -> Result<Vec<OldSession>, StoreError> {
        self.query(move |connection, owner| sessions::before(connection, owner, at, cwd.as_deref(), limit))
            .await
    }

    /// No other process can open the session until it is released or this process ends.
    pub async fn open_session(&self, id: &SessionId) -> Result<StoredSession, OpenSessionError> {
        let id = id.clone();
        self.work(move |connection, owner| sessions::open(connection, owner, &id)).await?
    }

    /// The copy starts a new chain and gets no remembered allow answers.
    pub async fn fork_session(
        &self,
        id: &SessionId,
        new: &SessionId,
        at: i64,
    ) -> Result<StoredSession, OpenSessionError> {
        fork::fork(self, id, new, at).await
    }

    /// Fails for a session that is open elsewhere or belongs to a sub-agent. An unknown id is not an error
    /// (S11).
    pub async fn delete_session(&self, id: &SessionId) -> Result<(), OpenSessionError> {
        removal::delete(self, id).await
    }

    /// Deletes sessions that no process has open, and returns them.
    pub async fn delete_sessions(&self, ids: Vec<SessionId>) -> Result<HashSet<SessionId>, StoreError> {
        removal::delete_all(self, ids).await
    }

    pub async fn mode_before(&self, id: &SessionId) -> Result<Option<String>, StoreError> {
        self.read(id, sessions::mode_before).await
    }

    /// Numbers of mode changes and denials.
    pub async fn counts(&self, id: &SessionId) -> Result<(u64, u64), StoreError> {
        self.read(id, sessions::counts).await
    }

    pub async fn grants(&self, id: &SessionId) -> Result<Vec<StoredGrant>, StoreError> {
        self.read(id, sessions::grants).await
    }

    pub async fn events(
        &self,
        id: &SessionId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.read(id, move |connection, id| events::list(connection, id, from, limit)).await
    }

    pub async fn evidence(&self, id: &SessionId) -> Result<Option<Evidence>, StoreError> {
        let id = id.clone();
        self.query(move |connection, owner| evidence::find(connection, owner, &id)).await
    }

    pub async fn intents(&self, id: &SessionId) -> Result<Vec<(u64, Intent)>, StoreError> {
        self.read(id, intent::list).await
    }

    /// Returns the changes of `turn`, or of the last turn with changes that were not undone.
    pub async fn checkpoint(&self, id: &SessionId, turn: Option<u64>) -> Result<FoundCheckpoint, StoreError> {
        self.read(id, move |connection, id| checkpoint::find(connection, id, turn)).await
    }

    /// Returns the changes of each turn, also of those that were undone.
    pub async fn changes(&self, id: &SessionId) -> Result<BTreeMap<u64, Vec<Changed>>, StoreError> {
        self.read(id, checkpoint::list).await
    }

    /// Sentences about changes that cannot be undone, with their turns.
    pub async fn uncovered(&self, id: &SessionId) -> Result<Vec<(u64, String)>, StoreError> {
        self.read(id, checkpoint::list_uncovered).await
    }

    /// The spending of all processes on a local day, as ISO 8601.
    pub async fn spent_on(&self, day: &str) -> Result<Spent, StoreError> {
        let day = day.to_owned();
        self.query(move |connection, _| spending::on_day(connection, &day)).await
    }

    /// The spending of a session and its sub-agents.
    pub async fn spent_in(&self, session: &SessionId) -> Result<Spent, StoreError> {
        self.read(session, spending::in_session).await
    }

    pub async fn mark_undone(&self, id: &SessionId, turn: u64, at: i64) -> Result<(), StoreError> {
        let id = id.clone();
        self.work(move |connection, _| checkpoint::mark_undone(connection, &id, turn, at)).await
    }

    /// This process's folder beside the store; `None` in memory. The next process deletes the folder of a
    /// killed one.
    pub async fn private_folder(&self) -> Option<PathBuf> {
        self.work(|_, owner| Ok(owner.files())).await.ok().flatten()
    }

    pub async fn memories(&self, folder: Option<String>) -> Result<Vec<(PathBuf, Memory)>, StoreError> {
        self.query(move |connection, _| memories::list(connection, folder)).await
    }

    pub async fn delete_memory(&self, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        let deleted = self.write(move |connection| memories::delete(connection, &id)).await?;
        removal::overwrite_log(self).await?;
        Ok(deleted)
    }

    /// Returns `None` if another process exports at the moment.
    pub async fn lock_outbox(&self, outbox: Outbox) -> Result<Option<OutboxLock>, StoreError> {
        let path = self.query(move |_, owner| Ok(owner.shared_lock(outbox.lock_name()))).await?;
        Ok(OutboxLock::take(path)?)
    }

    /// The oldest finished records. Turns of processes that have ended are finished as interrupted.
    pub async fn waiting_spans(&self, limit: usize) -> Result<Vec<WaitingSpan>, StoreError> {
        self.query(move |connection, owner| outbox::waiting_spans(connection, owner, limit)).await
    }

    /// Removes exported records.
    pub async fn remove_spans(&self, ids: Vec<i64>) -> Result<(), StoreError> {
        self.write(move |connection| outbox::remove_spans(connection, ids)).await
    }

    /// Entries of the audit log that are not exported yet, each session's in order.
    pub async fn waiting_links(&self, limit: usize) -> Result<Vec<WaitingLink>, StoreError> {
        self.query(move |connection, _| outbox::waiting_links(connection, limit)).await
    }

    /// Moves the cursors of sessions to the last exported entries.
    pub async fn advance_outbox(&self, exported: BTreeMap<String, u64>) -> Result<(), StoreError> {
        self.write(move |connection| outbox::advance_all(connection, exported)).await
    }

    /// Sessions with rows that are not exported yet, and their parents, with which they would be deleted.
    pub async fn unexported_sessions(&self) -> Result<HashSet<SessionId>, StoreError> {
        self.query(|connection, _| outbox::unexported(connection)).await
    }

    pub async fn outbox_counts(&self) -> Result<OutboxCounts, StoreError> {
        self.query(|connection, _| outbox::counts(connection)).await
    }
}
