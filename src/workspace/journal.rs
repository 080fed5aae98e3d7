//! Intents: file changes announced before the first byte changes. An intent without a conclusion describes an
//! operation of a killed process; see [`super::Interrupted::examine`].

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::{Changed, Changes};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Intent {
    /// Part of the names of temporary files.
    pub token: String,
    /// Mode bits of new files are not known yet.
    pub changed: Vec<Changed>,
    pub contents: Vec<(String, Vec<u8>)>,
    /// Folders that may contain temporary files.
    pub folders: Vec<PathBuf>,
    pub uncovered: Vec<String>,
    /// Files that are written in place. `contents` has their new contents, too.
    pub in_place: Vec<PathBuf>,
}

impl Intent {
    /// Announces that `changed` will be restored. Contains only folders of temporary files: after a crash the
    /// next undo restores the rest.
    pub fn of_restore(changed: &[Changed]) -> Self {
        let folders: BTreeSet<PathBuf> =
            changed.iter().filter_map(|changed| changed.path.parent().map(Path::to_owned)).collect();
        let token = Temporaries::new().token;
        Self { token, folders: folders.into_iter().collect(), ..Self::default() }
    }

    /// Announces changes that become known when the agent's turn ends.
    pub fn of_agent(agent: &str) -> Self {
        let text = format!(
            "Modegate ended during a turn of the agent {agent}. What it changed in that turn cannot be undone."
        );
        Self { token: Temporaries::new().token, uncovered: vec![text], ..Self::default() }
    }
}

pub trait IntentLog: Send + Sync + Debug {
    /// Blocks until the intent is committed.
    fn record(&self, intent: Intent) -> Recorded;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    Committed,
    /// A later commit is possible.
    Unconfirmed,
    /// No intents are kept.
    NotKept,
}

#[derive(Debug, Clone)]
pub struct Journal {
    log: Option<Arc<dyn IntentLog>>,
    pub(super) changes: mpsc::UnboundedSender<Changes>,
}

impl Journal {
    pub fn new(log: Option<Arc<dyn IntentLog>>, changes: mpsc::UnboundedSender<Changes>) -> Self {
        Self { log, changes }
    }

    /// Journal for changes that a surrounding operation reports.
    pub fn silent() -> Self {
        Self { log: None, changes: mpsc::unbounded_channel().0 }
    }

    pub fn report(&self, changes: Changes) {
        if !changes.is_empty() {
            let _ = self.changes.send(changes);
        }
    }

    pub(super) fn records_intents(&self) -> bool {
        self.log.is_some()
    }

    pub(super) fn record(&self, intent: Intent) -> Recorded {
        self.log.as_ref().map_or(Recorded::NotKept, |log| log.record(intent))
    }
}

#[derive(Debug, Clone)]
pub(super) struct Temporaries {
    token: String,
    next: u32,
}

impl Temporaries {
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

pub(super) fn prefix(token: &str) -> String {
    format!(".modegate-{token}-")
}
