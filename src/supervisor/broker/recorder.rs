//! Records each path before its first change, with a copy of its content, until the record is saved.
//!
//! A path counts as absent only after a look. What cannot be kept is recorded as unknown, and so is the new place of
//! what was moved from there: undo touches neither.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::resolve::{BENEATH, FileIdentity, ResolvedPath, is_same};
use super::revoke;
use crate::kernel;
use crate::supervisor::record::{CopyPlace, MAX_FILE, RecordEntry, RecordLine, StateBefore, VERSION_CONTROL};
use additions::{Additions, DiskEntry};
pub(in crate::supervisor) use copies::{CallCopies, CopyFolder, CopyRequest};
use record_file::RecordFile;

mod additions;
mod copies;
mod record_file;

/// Most paths and bytes of one record.
const MAX_ENTRIES: usize = 30_000;
const MAX_BYTES: u64 = 256 * 1024 * 1024;

/// Most components of a recorded path. Folders are recorded by recursion.
const MAX_LEVELS: usize = 200;

#[derive(Debug)]
pub(in crate::supervisor) struct RecordWriter {
    copies: Arc<CopyFolder>,
    file: RecordFile,
    /// Folders that are not recorded, except for the roots in them.
    excluded: Vec<PathBuf>,
    roots: Vec<PathBuf>,
    entries: BTreeMap<PathBuf, StateBefore>,
    uncovered: BTreeSet<String>,
    /// Files of which all names below the roots are recorded.
    linked: HashSet<FileIdentity>,
    bytes: u64,
}

/// Effect of a call on entries.
pub(super) enum Touched<'a> {
    /// Creates, replaces or removes it.
    Entry(&'a ResolvedPath),
    /// Changes the content or the mode of a file. Contains a look at the entry, if there was one already.
    Content(&'a ResolvedPath, Option<Result<Stat, Errno>>),
    /// Gives a file another name.
    Linked { from: &'a ResolvedPath, to: &'a ResolvedPath },
    /// Moves an entry, with all that is below it.
    Moved { from: &'a ResolvedPath, to: &'a ResolvedPath },
}

/// Reason for leaving a path out of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExcludedPath {
    Cache,
    VersionControl,
    Limit(RecordLimit),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordLimit {
    Levels,
    Entries,
}

impl ExcludedPath {
    /// `None` for caches, of which the user knows.
    fn sentence(self) -> Option<String> {
        Some(match self {
            Self::Cache => return None,
            Self::VersionControl => "Undo does not cover the state of version control.".into(),
            Self::Limit(RecordLimit::Levels) => {
                format!("Undo does not cover paths with more than {MAX_LEVELS} levels.")
            }
            Self::Limit(RecordLimit::Entries) => {
                format!("More than {MAX_ENTRIES} paths changed: undo does not cover the rest.")
            }
        })
    }
}

/// A removed file that is kept by a hard link.
pub(super) struct KeptFile {
    path: PathBuf,
    copy: u64,
    /// Has a read lease, which ends when a program opens the file for writing.
    leased: OwnedFd,
}

impl RecordWriter {
    /// `folder` must be empty and out of the command's reach.
    pub(in crate::supervisor) fn new(folder: PathBuf, excluded: Vec<PathBuf>, roots: Vec<PathBuf>) -> Self {
        Self {
            copies: Arc::new(CopyFolder::new(folder.clone())),
            file: RecordFile::new(folder),
            excluded,
            roots,
            entries: BTreeMap::new(),
            uncovered: BTreeSet::new(),
            linked: HashSet::new(),
            bytes: 0,
        }
    }

    pub(super) fn copy_folder(&self) -> Arc<CopyFolder> {
        Arc::clone(&self.copies)
    }

    /// Records entries before they change.
    ///
    /// # Errors
    /// Returns the files of which copies are missing. Then nothing is recorded.
    pub(super) fn record(
        &mut self,
        touched: &[Touched<'_>],
        copies: &mut CallCopies,
    ) -> Result<(), Vec<CopyRequest>> {
        let mut additions = Additions::new(self, copies);
        for entries in touched {
            additions.look(entries);
        }
        let Additions { entries, uncovered, linked, bytes, missing, .. } = additions;
        if !missing.is_empty() {
            return Err(missing);
        }
        let mut lines = Vec::new();
        for (path, before) in entries {
            copies.take(&path);
            self.entries.insert(path.clone(), before.clone());
            lines.push(RecordLine::Entry(RecordEntry { path, before }));
        }
        for sentence in uncovered {
            if self.uncovered.insert(sentence.clone()) {
                lines.push(RecordLine::Uncovered(sentence));
            }
        }
        self.linked.extend(linked);
        self.bytes += bytes;
        self.file.append(&lines);
        Ok(())
    }

    /// Keeps a file that is about to be removed by a hard link, which costs less than a copy. `None` if that is not
    /// possible; see [`Self::record`]. No program of the command may open a file for writing until
    /// [`Self::removed`].
    pub(super) fn keep_removed(&mut self, resolved: &ResolvedPath) -> Option<KeptFile> {
        let entry = DiskEntry::of(resolved);
        if self.entries.contains_key(entry.path) || self.why_excluded(entry.path, 0).is_some() {
            return None;
        }
        let (leased, stat) = lease(&entry).ok()?;
        let copy = self.copies.reserve();
        let kept_at = self.copies.path(copy);
        rustix::fs::linkat(entry.folder().ok()?, entry.name, CWD, &kept_at, AtFlags::empty()).ok()?;
        let linked = rustix::fs::lstat(&kept_at).ok();
        if linked.is_none_or(|linked| !is_same(&linked, &stat)) {
            // Another program has replaced the file.
            self.copies.remove(copy);
            return None;
        }
        let path = entry.path.to_owned();
        let mode = stat.st_mode & 0o7777;
        self.replace(&path, StateBefore::File { copy: CopyPlace::File(copy), mode });
        Some(KeptFile { path, copy, leased })
    }

    /// A change of the file through the hard link would change what was kept. Once the removed file has no other
    /// name, only a program that opened it before could do that.
    pub(super) fn removed(&mut self, kept: &KeptFile, is_removed: bool) {
        if is_removed && kernel::has_read_lease(kept.leased.as_fd()) {
            return;
        }
        if is_removed {
            let why = "was opened for writing by another program while it was removed".into();
            self.replace(&kept.path, StateBefore::Unknown { why });
        } else {
            self.entries.remove(&kept.path);
            self.file.append(&[RecordLine::Withdrawn(kept.path.clone())]);
        }
        self.copies.remove(kept.copy);
    }

    fn replace(&mut self, path: &Path, before: StateBefore) {
        self.entries.insert(path.to_owned(), before.clone());
        self.file.append(&[RecordLine::Entry(RecordEntry { path: path.to_owned(), before })]);
    }

    /// Returns true if `more` entries leave no place for another one.
    fn is_full_with(&self, more: usize) -> bool {
        self.entries.len() + more >= MAX_ENTRIES
    }

    /// `None` for paths that are recorded, with `more` entries beside those of the record.
    fn why_excluded(&self, path: &Path, more: usize) -> Option<ExcludedPath> {
        let is_in_root =
            |folder: &Path| self.roots.iter().any(|root| root.starts_with(folder) && path.starts_with(root));
        if self.excluded.iter().any(|folder| path.starts_with(folder) && !is_in_root(folder)) {
            return Some(ExcludedPath::Cache);
        }
        let is_version_control =
            |part: &OsStr| VERSION_CONTROL.iter().any(|one| part.eq_ignore_ascii_case(one));
        if path.iter().any(is_version_control) {
            Some(ExcludedPath::VersionControl)
        } else if path.iter().count() > MAX_LEVELS {
            Some(ExcludedPath::Limit(RecordLimit::Levels))
        } else {
            self.is_full_with(more).then_some(ExcludedPath::Limit(RecordLimit::Entries))
        }
    }

    /// Finishes the record, and begins a new one unless it is the last.
    ///
    /// # Errors
    /// Returns why the record is not complete.
    pub(super) fn finish(&mut self, is_last: bool) -> Result<(), String> {
        let entries = std::mem::take(&mut self.entries);
        let uncovered = std::mem::take(&mut self.uncovered);
        self.linked.clear();
        self.bytes = 0;
        let entries =
            entries.into_iter().map(|(path, before)| RecordLine::Entry(RecordEntry { path, before }));
        let lines: Vec<RecordLine> =
            entries.chain(uncovered.into_iter().map(RecordLine::Uncovered)).collect();
        let finished = self.file.finish(&lines, is_last);
        self.copies.begin_record(self.file.number());
        finished
    }
}

/// Opens a file with a single name and no writers, which stays so until the lease ends.
fn lease(entry: &DiskEntry<'_>) -> Result<(OwnedFd, Stat), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let stat = entry.stat()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_file || stat.st_nlink != 1 || stat.st_size > MAX_FILE.cast_signed() {
        return Err(Errno::INVAL);
    }
    let file = rustix::fs::openat2(entry.folder()?, entry.name, flags, Mode::empty(), BENEATH)?;
    let opened = rustix::fs::fstat(&file)?;
    if !is_same(&stat, &opened) || !revoke::knows_writers(&file) {
        return Err(Errno::INVAL);
    }
    kernel::take_read_lease(file.as_fd()).map_err(|_| Errno::AGAIN)?;
    Ok((file, opened))
}
