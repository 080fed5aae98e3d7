//! Announcing changes to files before the first byte changes, and concluding them.
//!
//! An [`Intent`] is plain data: what the paths are, what they are to become, and where temporary files may lie. The log that
//! keeps it is not part of this module. An intent that was never concluded is what a killed process was doing; see
//! [`super::Workspace::examine`].

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::{Changed, Changes};

/// What is about to be done to files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Intent {
    /// Names the intent, and every temporary file that belongs to it.
    pub token: String,
    /// What each path is and is to become. The mode bits of what is new are not known yet, and say nothing.
    pub changed: Vec<Changed>,
    /// The contents of the files that are there, by their hashes.
    pub contents: Vec<(String, Vec<u8>)>,
    /// The folders in which temporary files may lie.
    pub folders: Vec<PathBuf>,
    /// What cannot be told, in sentences for people.
    pub uncovered: Vec<String>,
}

/// Keeps intents until they are concluded.
pub trait IntentLog: Send + Sync + Debug {
    /// Records an intent. Blocks until it is committed; returns false if it is not, and then it may still be later.
    fn record(&self, intent: Intent) -> bool;
}

/// Where a call announces and reports its changes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Journal {
    log: Option<Arc<dyn IntentLog>>,
    pub(super) changes: mpsc::UnboundedSender<Changes>,
}

impl Journal {
    /// A journal that reports to `changes`. Without a log nothing is known of what a killed process was doing.
    pub fn new(log: Option<Arc<dyn IntentLog>>, changes: mpsc::UnboundedSender<Changes>) -> Self {
        Self { log, changes }
    }

    /// A journal that keeps nothing: for changes inside of an operation that reports them.
    pub fn silent() -> Self {
        Self { log: None, changes: mpsc::unbounded_channel().0 }
    }

    /// Reports what a call has changed.
    pub fn report(&self, changes: Changes) {
        if !changes.is_empty() {
            // Nobody may keep a record.
            let _ = self.changes.send(changes);
        }
    }

    /// Whether intents are recorded, and so have to be concluded.
    pub(super) fn keeps_intents(&self) -> bool {
        self.log.is_some()
    }

    /// Records an intent, and returns whether it is committed. Blocks.
    pub(super) fn record(&self, intent: Intent) -> bool {
        self.log.as_ref().is_some_and(|log| log.record(intent))
    }
}

/// Names of the temporary files of one operation.
#[derive(Debug, Clone)]
pub(super) struct Temporaries {
    token: String,
    next: u32,
}

impl Temporaries {
    /// Names that nothing has.
    pub(super) fn new() -> Self {
        Self::of(uuid::Uuid::now_v7().simple().to_string())
    }

    pub(super) fn of(token: String) -> Self {
        Self { token, next: 0 }
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    pub(super) fn name(&mut self, ending: &str) -> String {
        self.next += 1;
        format!("{}{}.{ending}", prefix(&self.token), self.next)
    }
}

/// How the names of an operation's temporary files begin.
pub(super) fn prefix(token: &str) -> String {
    format!(".modegate-{token}-")
}
