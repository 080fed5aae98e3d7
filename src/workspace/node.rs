//! What stands at a path, what changed there, and how several changes come to one. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What stands at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// Nothing.
    Absent,
    /// A regular file.
    File {
        /// The SHA-256 of its content, in hexadecimal digits.
        hash: String,
        /// Its permission bits; 0o644 where there are none.
        mode: u32,
    },
    /// A symbolic link.
    Link {
        /// What it says, as it says it.
        to: PathBuf,
    },
    /// A folder, whatever lies in it.
    Folder {
        /// Its permission bits; 0o755 where there are none.
        mode: u32,
    },
}

/// A path whose content, kind or mode bits changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Absolute, inside the roots, without symbolic links in its parents.
    pub path: PathBuf,
    /// What stood there.
    pub before: Node,
    /// What stands there now.
    pub after: Node,
}

/// What changed, and what it takes to put it back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Each path once, in path order.
    pub changed: Vec<Changed>,
    /// The contents of the files that were there before, by their hashes.
    pub contents: Vec<(String, Vec<u8>)>,
    /// What could not be covered, in sentences for people.
    pub uncovered: Vec<String>,
}

impl Changes {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.contents.is_empty() && self.uncovered.is_empty()
    }
}

/// What a list of changes, in the order in which they were made, comes to: for each path what was first there and what was
/// last there, in path order, without paths where that is the same.
pub fn compose(list: impl Iterator<Item = Changed>) -> Vec<Changed> {
    let mut paths: BTreeMap<PathBuf, (Node, Node)> = BTreeMap::new();
    for Changed { path, before, after } in list {
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
        .map(|(path, (before, after))| Changed { path, before, after })
        .collect()
}

/// Whether a path below a root belongs to a version control system, whose own files are never put back: they say more
/// than their contents, and other programs rely on them.
pub fn is_version_control(inside: &Path) -> bool {
    inside.components().any(|part| {
        let name = part.as_os_str();
        [".git", ".hg", ".svn"].iter().any(|one| name.eq_ignore_ascii_case(one))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &str) -> Node {
        Node::File { hash: content.into(), mode: 0o644 }
    }

    fn changed(path: &str, before: Node, after: Node) -> Changed {
        Changed { path: path.into(), before, after }
    }

    #[test]
    fn of_each_path_the_first_before_and_the_last_after_count() {
        let list = [
            changed("/b", file("1"), file("2")),
            changed("/a", Node::Absent, file("x")),
            changed("/c", file("same"), Node::Absent),
            changed("/b", file("2"), file("3")),
            changed("/c", Node::Absent, file("same")),
        ];
        assert_eq!(
            compose(list.into_iter()),
            [changed("/a", Node::Absent, file("x")), changed("/b", file("1"), file("3"))]
        );
    }

    #[test]
    fn what_belongs_to_version_control_is_known_by_its_folder() {
        let paths = ["a/.git/config", ".Git", "x/.hg/store", ".svn", ".github/x", ".gitignore", "git/x"];
        assert_eq!(
            paths.map(|path| is_version_control(Path::new(path))),
            [true, true, true, true, false, false, false]
        );
    }
}
