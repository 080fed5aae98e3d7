//! Reads which versions of files git has staged, without git: a repository's settings can name programs to run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::{GitFolder, root};
use crate::bounded_file;
use crate::ids::sha1;

const MAX_INDEX: u64 = 64 * 1024 * 1024;

/// Bytes of an entry before its flags, and of the part that is an object's id.
const FIXED: usize = 60;
const ID: usize = 20;

/// Flags of an entry: it has more flags; it is at a stage of a merge.
const EXTENDED: u16 = 0x4000;
const STAGE: u16 = 0x3000;

/// Id of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobId([u8; ID]);

impl BlobId {
    pub fn of(content: &[u8]) -> Self {
        Self(sha1(&[format!("blob {}\0", content.len()).as_bytes(), content]))
    }
}

#[derive(Debug)]
pub struct GitIndex {
    root: PathBuf,
    entries: HashMap<Vec<u8>, BlobId>,
}

impl GitIndex {
    /// The index of the repository that contains a folder. `None` if there is none, or it cannot be read.
    pub fn of(folder: &Path) -> Option<Self> {
        let root = root(folder)?;
        let git = GitFolder::of(&root.join(".git")).ok()?;
        let index = bounded_file::read_below(&git.folder, &git.folder.join("index"), MAX_INDEX).ok()?;
        Some(Self { root: root.to_owned(), entries: entries(&index)? })
    }

    /// `None` if the file is not in the index.
    pub fn blob(&self, file: &Path) -> Option<&BlobId> {
        self.entries.get(file.strip_prefix(&self.root).ok()?.as_os_str().as_encoded_bytes())
    }
}

/// Versions 2 to 4 with SHA-1 ids. `None` for any other content.
fn entries(index: &[u8]) -> Option<HashMap<Vec<u8>, BlobId>> {
    let number = |at: usize| Some(u32::from_be_bytes(index.get(at..at + 4)?.try_into().ok()?));
    let version = number(4)?;
    if !index.starts_with(b"DIRC") || !(2..=4).contains(&version) {
        return None;
    }
    let mut entries = HashMap::new();
    let (mut at, mut previous) = (12, Vec::new());
    for _ in 0..number(8)? {
        let id = index.get(at + FIXED - ID..at + FIXED)?.try_into().ok()?;
        let flags = u16::from_be_bytes(index.get(at + FIXED..at + FIXED + 2)?.try_into().ok()?);
        let start = at + FIXED + 2 + if flags & EXTENDED == 0 { 0 } else { 2 };
        let (name, end) = if version == 4 {
            let (removed, start) = offset(index, start)?;
            let (rest, end) = text(index, start)?;
            (previous.get(..previous.len().checked_sub(removed)?)?.iter().chain(rest).copied().collect(), end)
        } else {
            let (name, end) = text(index, start)?;
            // One to eight zero bytes, so that the length is a multiple of eight.
            (name.to_vec(), at + (end - 1 - at) / 8 * 8 + 8)
        };
        previous.clone_from(&name);
        if flags & STAGE == 0 {
            entries.insert(name, BlobId(id));
        }
        at = end;
    }
    Some(entries)
}

/// A text up to a zero byte, and the position after it.
fn text(index: &[u8], start: usize) -> Option<(&[u8], usize)> {
    let rest = index.get(start..)?;
    let length = rest.iter().position(|byte| *byte == 0)?;
    Some((&rest[..length], start + length + 1))
}

/// A number in the form of git's offsets, and the position after it.
fn offset(index: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let mut byte = *index.get(at)?;
    let mut value = usize::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        at += 1;
        byte = *index.get(at)?;
        value = value.checked_add(1)?.checked_mul(128)?.checked_add(usize::from(byte & 0x7f))?;
    }
    Some((value, at + 1))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn git(folder: &Path, arguments: &[&str]) {
        let settings = ["-c", "user.name=n", "-c", "user.email=e", "-c", "core.autocrlf=false"];
        let ran = Command::new("git").args(settings).args(arguments).current_dir(folder).output().unwrap();
        assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    }

    #[test]
    fn staged_files_are_found_in_each_version() {
        for version in ["2", "3", "4"] {
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path().canonicalize().unwrap();
            git(&folder, &["init", "-q"]);
            git(&folder, &["update-index", "--index-version", version]);
            std::fs::create_dir(folder.join("sub")).unwrap();
            let names = ["a", "a long name", "sub/1234567", "sub/12345678", "sub/123456789", "é"];
            for name in names {
                std::fs::write(folder.join(name), name).unwrap();
            }
            git(&folder, &["add", "-A"]);
            // Needs version 3.
            git(&folder, &["update-index", "--skip-worktree", "a"]);
            std::fs::write(folder.join("later"), "later").unwrap();
            for from in [folder.clone(), folder.join("sub")] {
                let index = GitIndex::of(&from).unwrap();
                for name in names {
                    let blob = BlobId::of(name.as_bytes());
                    assert_eq!(index.blob(&folder.join(name)), Some(&blob), "version {version}: {name}");
                }
                assert_eq!(index.blob(&folder.join("later")), None);
            }
        }
    }

    #[test]
    fn damaged_index_is_no_index() {
        let mut index = b"DIRC\0\0\0\x02\0\0\0\x01".to_vec();
        assert!(entries(&index).is_none());
        index.extend([0; 62]);
        assert!(entries(&index).is_none());
        index.extend(b"a\0\0\0\0\0\0\0\0\0");
        assert_eq!(entries(&index).unwrap().len(), 1, "the control");
        assert!(entries(b"DIRC\0\0\0\x04\xff\xff\xff\xff").is_none() && entries(b"").is_none());
    }
}
