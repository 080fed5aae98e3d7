//! What Modegate and the supervisor of a command say to each other. Plain data.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::record::RecordState;
use crate::path_bytes;
use crate::sandbox::{BrokerPolicy, Confinement};

#[derive(Debug, Serialize, Deserialize)]
pub struct SpawnRequest {
    pub program: String,
    pub arguments: Vec<String>,
    pub environment: Option<Vec<(OsString, OsString)>>,
    pub settings: Vec<(String, String)>,
    pub confinement: Confinement,
    /// Created for this command alone, and removed afterwards.
    pub own_folder: Option<PathBuf>,
    pub keeps_terminal: bool,
    pub waits: bool,
    pub own: Vec<(String, String)>,
}

/// Sent by the supervisor, one JSON line each.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    Failed(String),
    Exited(Exit),
    Broker(BrokerEvent),
    Gone { left_behind: usize },
}

/// Sent to the supervisor after the request, one JSON line each. Closing the connection kills the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Asks the command's process group for a graceful end.
    RequestExit,
    /// Has a waiting command executed.
    Release,
    /// [`BrokerEvent::RecordSaved`] follows.
    SaveRecord,
    /// [`BrokerEvent::PolicySet`] follows.
    SetPolicy(BrokerPolicy),
    Answer {
        question: u64,
        allows: bool,
    },
}

/// Events of a brokered command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokerEvent {
    /// A policy applies; see [`Order::SetPolicy`].
    PolicySet {
        /// Processes that were killed because they went on writing.
        ended: usize,
        /// If false, a process may still be able to write under a tighter policy.
        is_complete: bool,
    },
    /// The record of changes is in its folder; see [`Order::SaveRecord`]. Also comes at the end of a command whose
    /// changes are recorded.
    RecordSaved(RecordState),
    /// A change waits for [`Order::Answer`].
    Asked(ChangeQuestion),
    /// The change with this number needs no answer any more.
    Withdrawn(u64),
    /// A connection to this host, or a question for its address, was refused for the first time. A name, or an address
    /// with its port.
    HostRefused(String),
}

/// A change that a brokered command wants to make under [`BrokerPolicy::Ask`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeQuestion {
    /// Unique for the command.
    pub number: u64,
    pub change: ChangeKind,
    /// Absolute, without symbolic links.
    #[serde(with = "path_bytes")]
    pub path: PathBuf,
    /// Path after a move, or the new name of a link.
    #[serde(with = "path_bytes::option")]
    pub to: Option<PathBuf>,
    /// UTF-8. Files that move with a folder, relative to it.
    pub files: Vec<PathBuf>,
    /// Name of the program that makes the change, in its own words.
    pub program: String,
}

impl ChangeQuestion {
    /// The path, and the one after the change.
    pub fn ends(&self) -> impl Iterator<Item = &Path> + Clone {
        [Some(&self.path), self.to.as_ref()].into_iter().flatten().map(PathBuf::as_path)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Create,
    CreateFolder,
    Write,
    Delete,
    DeleteFolder,
    Move,
    /// Another name (hard link) for a file.
    Link,
    /// Of permissions, times or extended attributes.
    Attributes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    Status(i32),
    Signal(i32),
}
