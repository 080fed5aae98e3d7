//! States of paths, changes between states, and their composition. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::path_bytes;
use crate::supervisor::record::VERSION_CONTROL;

/// The store keeps states in this JSON form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FileState {
    Absent,
    File {
        /// SHA-256 of the content, in hexadecimal.
        hash: String,
        /// Permission bits; 0o644 on systems without them, 0o755 for folders.
        mode: u32,
    },
    Link {
        /// Text of the link, not resolved.
        #[serde(with = "path_bytes")]
        to: PathBuf,
    },
    Folder {
        mode: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Absolute, inside the roots, without symbolic links in its parents.
    pub path: PathBuf,
    pub before: FileState,
    pub after: FileState,
    /// Found by a snapshot comparison, which includes changes that tools recorded during the same period.
    pub compared: bool,
}

/// A path that something else changed between two recorded changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    pub path: PathBuf,
    /// Last recorded change that does not follow from its predecessor, counted from 1.
    pub number: usize,
    pub of: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Sorted by path, each path once.
    pub changed: Vec<Changed>,
    pub contents: Vec<(String, Vec<u8>)>,
    /// Sentences for the user about changes that cannot be undone.
    pub uncovered: Vec<String>,
    /// Sentences for the user about a record that is not complete, so that changes may be unknown.
    pub unrecorded: Vec<String>,
    pub concludes: Option<String>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty()
            && self.contents.is_empty()
            && self.uncovered.is_empty()
            && self.unrecorded.is_empty()
            && self.concludes.is_none()
    }

    /// Adds changes of another command, made later.
    pub fn append(&mut self, later: Self) {
        let changed = std::mem::take(&mut self.changed);
        self.changed = compose(changed.into_iter().chain(later.changed));
        self.contents.extend(later.contents);
        self.uncovered.extend(later.uncovered);
        self.unrecorded.extend(later.unrecorded);
        self.concludes = later.concludes.or(self.concludes.take());
    }
}

/// Merges changes in order: the first `before` and the last `after` of each path, sorted, without unchanged
/// paths.
pub fn compose(list: impl Iterator<Item = Changed>) -> Vec<Changed> {
    let mut paths: BTreeMap<PathBuf, (FileState, FileState)> = BTreeMap::new();
    for Changed { path, before, after, .. } in list {
        match paths.get_mut(&path) {
            Some((_, newest)) => *newest = after,
            None => {
                paths.insert(path, (before, after));
            }
        }
    }
    paths
        .into_iter()
        .filter(|(_, (before, after))| before != after)
        .map(|(path, (before, after))| Changed { path, before, after, compared: false })
        .collect()
}

/// Paths whose changes do not follow from one another. A snapshot comparison includes changes that tools
/// recorded during the same period, so it may begin with any earlier state.
pub(super) fn gaps(list: &[Changed]) -> Vec<Gap> {
    let mut paths: BTreeMap<&Path, Vec<&Changed>> = BTreeMap::new();
    for changed in list {
        paths.entry(&changed.path).or_default().push(changed);
    }
    let gaps = paths.into_iter().filter_map(|(path, changes)| {
        last_gap(&changes).map(|number| Gap { path: path.to_owned(), number, of: changes.len() })
    });
    gaps.collect()
}

fn last_gap(changes: &[&Changed]) -> Option<usize> {
    let mut seen: Vec<&FileState> = changes.first().map(|first| &first.before).into_iter().collect();
    let mut newest = None;
    for (at, changed) in changes.iter().enumerate() {
        let from = if changed.compared { &seen[..] } else { &seen[seen.len() - 1..] };
        let follows = from.contains(&&changed.before);
        if !follows {
            newest = Some(at + 1);
        }
        seen.push(&changed.after);
    }
    newest
}

/// The changes that an undo takes back. These are the composed ones, and the last part of changes without a result in
/// which something else came between: of a file that the agent created, the user changed and the agent deleted, the
/// deletion.
pub(super) fn to_undo(list: &[Changed]) -> Vec<Changed> {
    let mut changes = compose(list.iter().cloned());
    for Gap { path, number, .. } in gaps(list) {
        if changes.iter().any(|changed| changed.path == path) {
            continue;
        }
        let of_path: Vec<&Changed> = list.iter().filter(|changed| changed.path == path).collect();
        let (before, after) = (&of_path[number - 1].before, &of_path[of_path.len() - 1].after);
        if before != after {
            let (before, after) = (before.clone(), after.clone());
            changes.push(Changed { path, before, after, compared: false });
        }
    }
    changes.sort_by(|one, other| one.path.cmp(&other.path));
    changes
}

/// Returns the paths of the files and links that a list of changes changed as a whole.
pub fn changed_files(changed: &[Changed]) -> Vec<PathBuf> {
    let mut changed = to_undo(changed);
    changed.retain(|changed| is_file(&changed.before) || is_file(&changed.after));
    changed.into_iter().map(|changed| changed.path).collect()
}

fn is_file(state: &FileState) -> bool {
    !matches!(state, FileState::Folder { .. } | FileState::Absent)
}

pub(super) fn is_version_control(inside: &Path) -> bool {
    inside.iter().any(|part| VERSION_CONTROL.iter().any(|one| part.eq_ignore_ascii_case(one)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &str) -> FileState {
        FileState::File { hash: content.into(), mode: 0o644 }
    }

    fn changed(path: &str, before: FileState, after: FileState) -> Changed {
        Changed { path: path.into(), before, after, compared: false }
    }

    #[test]
    fn composed_changes_join_first_before_and_last_after() {
        let list = [
            changed("/b", file("1"), file("2")),
            changed("/a", FileState::Absent, file("x")),
            changed("/c", file("same"), FileState::Absent),
            changed("/b", file("2"), file("3")),
            changed("/c", FileState::Absent, file("same")),
        ];
        assert_eq!(
            compose(list.into_iter()),
            [changed("/a", FileState::Absent, file("x")), changed("/b", file("1"), file("3"))]
        );
    }

    /// Checks the gap in a list of changes, written `before>after`, or `before=after` for a comparison.
    fn check_gap(list: &str, expected: Option<usize>) {
        let state = |text: &str| match text.split_once(':') {
            _ if text == "-" => FileState::Absent,
            Some((content, mode)) => FileState::File { hash: content.into(), mode: mode.parse().unwrap() },
            None => file(text),
        };
        let list: Vec<_> = list
            .split(' ')
            .map(|change| {
                let (before, after) = change.split_once(['>', '=']).unwrap();
                Changed { compared: change.contains('='), ..changed("/a", state(before), state(after)) }
            })
            .collect();
        assert_eq!(gaps(&list).first().map(|gap| gap.number), expected, "{list:?}");
    }

    #[test]
    fn change_starting_from_another_state_is_a_gap() {
        check_gap("1>2", None);
        check_gap("1>2 2>3 3>- ->4", None);
        for list in ["1>2 x>3", "1>2 ->3", "->2 x>-", "1>- x>2", "1:644>2:644 2:600>3:600", "1>2 1>3"] {
            check_gap(list, Some(2));
        }
        check_gap("1>2 x>3 3>4 y>5", Some(4));
        check_gap("1>2 x>3 3>4", Some(2));
    }

    #[test]
    fn comparison_may_repeat_only_recorded_changes() {
        check_gap("1>2 1=2", None);
        check_gap("1>2 2>3 1=4 4>5", None);
        check_gap("1>2 2=3 3>4", None);
        check_gap("1>2 x=3", Some(2));
        check_gap("1>2 1=3 2>4", Some(3));
        check_gap("1>2 x>3 1=3", Some(2));
    }

    #[test]
    fn version_control_files_are_recognised_by_folder() {
        let paths = ["a/.git/config", ".Git", "x/.hg/store", ".svn", ".github/x", ".gitignore", "git/x"];
        assert_eq!(
            paths.map(|path| is_version_control(Path::new(path))),
            [true, true, true, true, false, false, false]
        );
    }
}
