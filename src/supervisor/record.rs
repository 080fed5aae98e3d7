//! The broker's record of changed files: the state of each path before its first change. Plain data, as files of JSON
//! lines in a folder that only Modegate writes. A line is written before its change, so that the record is complete
//! up to the last change if its writer is killed. A line that cannot be read costs nothing but itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::path_bytes;

/// Ending of the files of finished records; the name before it is a number.
pub const ENDING: &str = "jsonl";

/// Ending of the file of the record that grows. A supervisor that ends leaves none.
pub const GROWING: &str = "growing";

/// Ending of the file of a record's small copies. The name before it is the number of the record.
pub const COPIES: &str = "copies";

/// Folders that are never recorded nor restored, because other programs rely on their consistency.
pub const VERSION_CONTROL: [&str; 3] = [".git", ".hg", ".svn"];

/// Largest file whose content is kept, in bytes.
pub const MAX_FILE: u64 = 10 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordLine {
    /// Replaces an earlier entry of the path.
    Entry(RecordEntry),
    /// The change of this path failed.
    Withdrawn(#[serde(with = "path_bytes")] PathBuf),
    /// A sentence for the user about changes that are not recorded.
    Uncovered(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordEntry {
    /// Absolute, without symbolic links.
    #[serde(with = "path_bytes")]
    pub path: PathBuf,
    pub before: StateBefore,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateBefore {
    Absent,
    Folder {
        mode: u32,
    },
    Link {
        #[serde(with = "path_bytes")]
        to: PathBuf,
    },
    File {
        copy: CopyPlace,
        mode: u32,
    },
    /// The state was not kept, so an undo must not touch the path.
    Unknown {
        /// Follows the path in a sentence.
        why: String,
    },
}

/// Where the copy of a file is, in the folder of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyPlace {
    /// A file with this name.
    File(u64),
    /// Bytes of the file with the ending [`COPIES`].
    Part { start: u64, length: u64 },
}

/// Content of a record's file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub entries: BTreeMap<PathBuf, StateBefore>,
    /// Sentences for the user about changes that are not recorded.
    pub uncovered: BTreeSet<String>,
    /// Number of whole lines that cannot be read.
    pub unreadable: usize,
    /// True if the last line is not whole.
    pub is_cut: bool,
}

/// Completeness of the record of a command's changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordState {
    #[default]
    Complete,
    /// Lines are missing. Contains why, without a full stop.
    Incomplete(String),
    /// The supervisor was killed: the record ends with the last change before that, and is not finished.
    Cut,
}

/// Writes lines as they stand in a file.
///
/// # Errors
/// Never fails in practice: every path can be written.
pub fn to_text(lines: &[RecordLine]) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut text, line)?;
        text.push(b'\n');
    }
    Ok(text)
}

/// Reads a file of a record, whatever it contains.
pub fn read(text: &[u8]) -> Record {
    let mut record = Record { is_cut: text.last().is_some_and(|last| *last != b'\n'), ..Record::default() };
    let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    for line in text[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line) {
            Ok(RecordLine::Entry(RecordEntry { path, before })) => drop(record.entries.insert(path, before)),
            Ok(RecordLine::Withdrawn(path)) => drop(record.entries.remove(&path)),
            Ok(RecordLine::Uncovered(sentence)) => drop(record.uncovered.insert(sentence)),
            Err(_) => record.unreadable += 1,
        }
    }
    record
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::*;

    fn path() -> impl Strategy<Value = PathBuf> {
        prop_oneof![
            proptest::collection::vec(1u8..=255, 1..40).prop_map(|bytes| OsString::from_vec(bytes).into()),
            "/[a-z\\n\"\\\\é]{1,20}".prop_map(PathBuf::from),
        ]
    }

    fn copy() -> impl Strategy<Value = CopyPlace> {
        prop_oneof![
            any::<u64>().prop_map(CopyPlace::File),
            any::<(u64, u64)>().prop_map(|(start, length)| CopyPlace::Part { start, length }),
        ]
    }

    fn line() -> impl Strategy<Value = RecordLine> {
        let before = prop_oneof![
            Just(StateBefore::Absent),
            any::<u32>().prop_map(|mode| StateBefore::Folder { mode }),
            path().prop_map(|to| StateBefore::Link { to }),
            (copy(), any::<u32>()).prop_map(|(copy, mode)| StateBefore::File { copy, mode }),
            any::<String>().prop_map(|why| StateBefore::Unknown { why }),
        ];
        prop_oneof![
            (path(), before).prop_map(|(path, before)| RecordLine::Entry(RecordEntry { path, before })),
            any::<String>().prop_map(RecordLine::Uncovered),
        ]
    }

    /// What lines say if each is read.
    fn content(lines: &[RecordLine]) -> Record {
        let mut record = Record::default();
        for line in lines.iter().cloned() {
            match line {
                RecordLine::Entry(RecordEntry { path, before }) => {
                    record.entries.insert(path, before);
                }
                RecordLine::Uncovered(sentence) => drop(record.uncovered.insert(sentence)),
                RecordLine::Withdrawn(path) => drop(record.entries.remove(&path)),
            }
        }
        record
    }

    proptest! {
        #[test]
        fn every_path_is_read_as_it_was_written(lines in proptest::collection::vec(line(), 0..12)) {
            prop_assert_eq!(read(&to_text(&lines).unwrap()), content(&lines));
        }

        #[test]
        fn cut_record_has_all_whole_lines(
            lines in proptest::collection::vec(line(), 1..12),
            cut in any::<proptest::sample::Index>(),
        ) {
            let text = to_text(&lines).unwrap();
            let at = cut.index(text.len());
            let parts = text[..at].split_inclusive(|byte| *byte == b'\n');
            let whole = parts.filter(|line| line.ends_with(b"\n")).count();
            let is_cut = at > 0 && text[at - 1] != b'\n';
            prop_assert_eq!(read(&text[..at]), Record { is_cut, ..content(&lines[..whole]) });
        }

        #[test]
        fn damaged_line_costs_itself(
            lines in proptest::collection::vec(line(), 1..12),
            damage in proptest::collection::vec(any::<u8>().prop_filter("one line", |byte| *byte != b'\n'), 1..40),
            at in any::<proptest::sample::Index>(),
        ) {
            let at = at.index(lines.len() + 1);
            let mut text = to_text(&lines[..at]).unwrap();
            text.extend([b'!']);
            text.extend(damage);
            text.push(b'\n');
            text.extend(to_text(&lines[at..]).unwrap());
            prop_assert_eq!(read(&text), Record { unreadable: 1, ..content(&lines) });
        }

        #[test]
        fn any_bytes_can_be_read(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            read(&text);
        }
    }

    #[test]
    fn withdrawn_and_replaced_entries_do_not_count() {
        let entry = |path: &str, before| RecordLine::Entry(RecordEntry { path: path.into(), before });
        let why = || "is open".to_owned();
        let lines = [
            entry("/a", StateBefore::File { copy: CopyPlace::File(1), mode: 0o644 }),
            entry("/b", StateBefore::Absent),
            RecordLine::Withdrawn("/b".into()),
            entry("/a", StateBefore::Unknown { why: why() }),
        ];
        let entries = BTreeMap::from([(PathBuf::from("/a"), StateBefore::Unknown { why: why() })]);
        assert_eq!(read(&to_text(&lines).unwrap()), Record { entries, ..Record::default() });
    }
}
