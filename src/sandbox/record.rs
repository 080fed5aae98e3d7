//! The broker's record of changed files: the state of each path before its first change. Plain data, as JSON files
//! in a folder that only Modegate writes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Ending of the files that contain a [`Record`]; the name before it is a number.
pub const ENDING: &str = "json";

/// Folders that are never recorded nor restored, because other programs rely on their consistency.
pub const VERSION_CONTROL: [&str; 3] = [".git", ".hg", ".svn"];

/// Largest file whose content is kept, in bytes.
pub const MAX_FILE: u64 = 10 * 1024 * 1024;

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Sorted by path, each path once.
    pub entries: Vec<RecordEntry>,
    /// Sentences for the user about changes that are not recorded.
    pub uncovered: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordEntry {
    /// Absolute, without symbolic links.
    pub path: PathBuf,
    pub before: Before,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Before {
    Absent,
    Folder {
        mode: u32,
    },
    Link {
        to: PathBuf,
    },
    File {
        /// Name of the copy in the folder of the record.
        copy: String,
        mode: u32,
    },
}
