//! The JSON of `modegate sessions`, which `modegate schema` describes.

use std::collections::BTreeMap;
use std::path::Path;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::audit::HeadOutput;
use crate::store::sessions::StoredSession;
use crate::workspace::{Changed, changed_files};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ExportFormat {
    /// Markdown page
    Markdown,
    /// One JSON object per line
    Jsonl,
}

/// A line of `modegate sessions list --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct SessionOutput {
    id: String,
    cwd: String,
    additional_directories: Vec<String>,
    /// The mode in which the session would open.
    mode: Option<String>,
    title: Option<String>,
    /// Milliseconds since 1970, as all times.
    created_at: i64,
    updated_at: i64,
    turns: u64,
    events: u64,
    /// True if a process has the session open.
    open: bool,
    forked_from: Option<String>,
    /// The last entry of the audit log.
    head: HeadOutput,
}

impl SessionOutput {
    pub(super) fn new(session: &StoredSession) -> Self {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        Self {
            id: session.id.to_string(),
            cwd: text(&session.cwd),
            additional_directories: session.directories.iter().map(|folder| text(folder)).collect(),
            mode: session.mode.clone(),
            title: session.title.clone(),
            created_at: session.created_at,
            updated_at: session.updated_at,
            turns: session.turns,
            events: session.events,
            open: session.is_open_elsewhere,
            forked_from: session.forked_from.clone(),
            head: HeadOutput { length: session.head.length, hash: session.head.hash.clone() },
        }
    }
}

/// The output of `modegate sessions show ID --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct SessionDetails {
    session: SessionOutput,
    /// The session that started this one, for a sub-agent.
    parent: Option<String>,
    agent: Option<String>,
    /// The files that each turn changed, also if the turn was undone.
    changed_files: Vec<TurnChangesOutput>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TurnChangesOutput {
    turn: u64,
    files: Vec<String>,
}

impl TurnChangesOutput {
    fn new((turn, changed): (u64, Vec<Changed>)) -> Self {
        let files = changed_files(&changed).iter().map(|file| file.display().to_string()).collect();
        Self { turn, files }
    }
}

impl SessionDetails {
    pub(super) fn new(session: &StoredSession, changes: BTreeMap<u64, Vec<Changed>>) -> Self {
        Self {
            session: SessionOutput::new(session),
            parent: session.parent.as_ref().map(ToString::to_string),
            agent: session.agent.clone(),
            changed_files: changes.into_iter().map(TurnChangesOutput::new).collect(),
        }
    }
}
