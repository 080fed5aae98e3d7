//! The second connection to a store's file: it runs queries, and copies the write-ahead log into the file, so
//! that the writer thread stays free for rows. It changes no row.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use super::files::IdentifiedFile;
use super::owner::StoreOwner;
use super::writer::STATEMENTS;
use super::{StoreWork, migrations};

pub(super) struct QueryThread {
    /// Unbounded: each query has a caller that waits for it. `None` while the reader ends.
    queries: Option<Sender<StoreWork>>,
    thread: Option<JoinHandle<()>>,
}

impl QueryThread {
    /// Returns `None` if the file cannot be opened once more, or is another one by now.
    pub(super) fn open(file: &IdentifiedFile, owner: &Arc<StoreOwner>) -> Option<Self> {
        let mut connection = migrations::open_to_query(file.path())
            .inspect_err(|error| tracing::info!(%error, "queries run on the store's only connection"))
            .ok()?;
        if !file.is_there() {
            return None;
        }
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        let (queries, queue) = channel::<StoreWork>();
        let owner = Arc::clone(owner);
        let work = move || {
            for query in queue {
                query(Ok((&mut connection, &owner)));
            }
        };
        let thread = thread::Builder::new().name("store reader".into()).spawn(work).ok()?;
        Some(Self { queries: Some(queries), thread: Some(thread) })
    }

    /// Returns the query if the thread has ended.
    pub(super) fn run(&self, query: StoreWork) -> Option<StoreWork> {
        match &self.queries {
            Some(queries) => queries.send(query).err().map(|error| error.0),
            None => Some(query),
        }
    }
}

impl Drop for QueryThread {
    fn drop(&mut self) {
        self.queries = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("a query of the store panicked");
        }
    }
}
