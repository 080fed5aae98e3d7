//! Looks at entries before a call changes them. Nothing is recorded if copies of files are missing.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::copies::{CallCopies, CopyLookup, CopyRequest};
use super::{ExcludedPath, MAX_BYTES, MAX_LEVELS, RecordWriter, Touched};
use crate::supervisor::broker::resolve::{BENEATH, FileIdentity, ResolvedPath, trim};
use crate::supervisor::record::{CopyPlace, MAX_FILE, StateBefore};

/// Copies that are made before the call is looked at again.
const MAX_REQUESTS: usize = 500;

/// Entries that are recorded together before a call.
pub(super) struct Additions<'a> {
    recorder: &'a RecordWriter,
    copies: &'a CallCopies,
    pub(super) entries: BTreeMap<PathBuf, StateBefore>,
    pub(super) uncovered: BTreeSet<String>,
    /// Files that get another name, and have one.
    pub(super) linked: Vec<FileIdentity>,
    pub(super) bytes: u64,
    /// Files of which copies are missing.
    pub(super) missing: Vec<CopyRequest>,
}

/// An entry on disk.
pub(super) struct DiskEntry<'a> {
    /// `None` if the folder does not exist.
    folder: Option<&'a OwnedFd>,
    pub(super) name: &'a OsStr,
    pub(super) path: &'a Path,
    /// The first look at it.
    stat: OnceCell<Result<Stat, Errno>>,
}

impl<'a> DiskEntry<'a> {
    pub(super) fn of(resolved: &'a ResolvedPath) -> Self {
        Self::new(Some(&resolved.folder), trim(&resolved.name), &resolved.path)
    }

    fn new(folder: Option<&'a OwnedFd>, name: &'a OsStr, path: &'a Path) -> Self {
        Self { folder, name, path, stat: OnceCell::new() }
    }

    fn seen(resolved: &'a ResolvedPath, stat: Option<Result<Stat, Errno>>) -> Self {
        Self { stat: stat.map(OnceCell::from).unwrap_or_default(), ..Self::of(resolved) }
    }

    pub(super) fn folder(&self) -> Result<&'a OwnedFd, Errno> {
        self.folder.ok_or(Errno::NOENT)
    }

    pub(super) fn stat(&self) -> Result<Stat, Errno> {
        *self.stat.get_or_init(|| rustix::fs::statat(self.folder()?, self.name, AtFlags::SYMLINK_NOFOLLOW))
    }

    fn is_folder(&self) -> bool {
        self.stat().is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir())
    }

    fn link_target(&self) -> Result<PathBuf, Errno> {
        let target = rustix::fs::readlinkat(self.folder()?, self.name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    /// `None` if the entry is no folder, or has too many levels above it.
    fn open_folder(&self) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let is_too_deep = self.path.iter().count() >= MAX_LEVELS;
        let folder = self.folder.filter(|_| !is_too_deep && self.is_folder())?;
        rustix::fs::openat2(folder, self.name, flags, Mode::empty(), BENEATH).ok()
    }
}

/// Tells if the content of an entry can be restored from the record, or made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Yes,
    No,
}

impl Kept {
    fn of(before: &StateBefore) -> Self {
        match before {
            StateBefore::Unknown { .. } => Self::No,
            StateBefore::Absent
            | StateBefore::Folder { .. }
            | StateBefore::Link { .. }
            | StateBefore::File { .. } => Self::Yes,
        }
    }
}

impl<'a> Additions<'a> {
    pub(super) fn new(recorder: &'a RecordWriter, copies: &'a CallCopies) -> Self {
        Self {
            recorder,
            copies,
            entries: BTreeMap::new(),
            uncovered: BTreeSet::new(),
            linked: Vec::new(),
            bytes: 0,
            missing: Vec::new(),
        }
    }

    pub(super) fn look(&mut self, touched: &Touched<'_>) {
        match touched {
            Touched::Entry(entry) => {
                self.look_at(&DiskEntry::of(entry));
            }
            Touched::Content(entry, stat) => {
                let entry = DiskEntry::seen(entry, *stat);
                self.look_at(&entry);
                self.check_names(&entry);
            }
            Touched::Linked { from, to } => {
                let from = DiskEntry::of(from);
                let is_kept = self.look_at(&from);
                self.look_at_target(&DiskEntry::of(to), &from, is_kept);
                let only_name = from.stat().ok().filter(|stat| stat.st_nlink == 1);
                self.linked.extend(only_name.map(|stat| (stat.st_dev, stat.st_ino)));
            }
            Touched::Moved { from, to } => self.look_below(&DiskEntry::of(from), &DiskEntry::of(to)),
        }
    }

    /// Changes through one name change the file under all of them.
    fn check_names(&mut self, entry: &DiskEntry<'_>) {
        let is_shared = entry.stat().is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && stat.st_nlink > 1
                && !self.recorder.linked.contains(&(stat.st_dev, stat.st_ino))
        });
        if is_shared {
            let path = entry.path.display();
            self.uncovered.insert(format!(
                "{path} has other names (hard links), for which its changes are not undone."
            ));
        }
    }

    /// Looks at an entry that moves to `to`, and at all that is below it.
    fn look_below(&mut self, from: &DiskEntry<'_>, to: &DiskEntry<'_>) {
        let is_kept = self.look_at(from);
        self.look_at_target(to, from, is_kept);
        let Some(below) = from.open_folder() else { return };
        let Ok(entries) = rustix::fs::Dir::read_from(&below) else { return };
        let target = to.open_folder();
        for entry in entries.flatten() {
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            if name == "." || name == ".." {
                continue;
            }
            let (path, to_path) = (from.path.join(&name), to.path.join(&name));
            if self.is_full() {
                // Notes that.
                self.why_excluded(&path);
                return;
            }
            let from = DiskEntry::new(Some(&below), &name, &path);
            self.look_below(&from, &DiskEntry::new(target.as_ref(), &name, &to_path));
        }
    }

    fn is_full(&self) -> bool {
        self.recorder.is_full_with(self.entries.len())
    }

    /// Looks at the place to which `from` gets. If `from` is not kept, undo must not touch the place, whatever was there
    /// before: it would delete or overwrite the only copy.
    fn look_at_target(&mut self, to: &DiskEntry<'_>, from: &DiskEntry<'_>, is_kept: Kept) {
        let is_recorded = self.recorded(to.path).is_some();
        let before = match is_kept {
            Kept::Yes if is_recorded => return,
            _ if !is_recorded && self.why_excluded(to.path).is_some() => return,
            Kept::Yes => self.before(to),
            Kept::No => {
                let name = from.path.display();
                StateBefore::Unknown { why: format!("holds what was {name}, which was not kept") }
            }
        };
        self.entries.insert(to.path.to_owned(), before);
    }

    fn recorded(&self, path: &Path) -> Option<&StateBefore> {
        self.recorder.entries.get(path).or_else(|| self.entries.get(path))
    }

    fn look_at(&mut self, entry: &DiskEntry<'_>) -> Kept {
        if let Some(before) = self.recorded(entry.path) {
            return Kept::of(before);
        }
        match self.why_excluded(entry.path) {
            // The content of a cache can be made again.
            Some(ExcludedPath::Cache) => return Kept::Yes,
            Some(ExcludedPath::VersionControl | ExcludedPath::Limit(_)) => return Kept::No,
            None => {}
        }
        let before = self.before(entry);
        let is_kept = Kept::of(&before);
        self.entries.insert(entry.path.to_owned(), before);
        is_kept
    }

    /// `None` for paths that are recorded. Adds a note for the user.
    fn why_excluded(&mut self, path: &Path) -> Option<ExcludedPath> {
        let excluded = self.recorder.why_excluded(path, self.entries.len())?;
        self.uncovered.extend(excluded.sentence());
        Some(excluded)
    }

    /// The state of an entry. If a copy is missing, a request is added.
    fn before(&mut self, entry: &DiskEntry<'_>) -> StateBefore {
        let stat = match entry.stat() {
            Ok(stat) => stat,
            Err(Errno::NOENT | Errno::NOTDIR) => return StateBefore::Absent,
            Err(error) => return unreadable(error),
        };
        let mode = stat.st_mode & 0o7777;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => StateBefore::Folder { mode },
            FileType::Symlink => entry.link_target().map_or_else(unreadable, |to| StateBefore::Link { to }),
            FileType::RegularFile => match self.copy(entry, &stat) {
                Ok(copy) => StateBefore::File { copy, mode },
                Err(why) => StateBefore::Unknown { why },
            },
            _ => StateBefore::Unknown { why: "is not a file, folder or link".into() },
        }
    }

    /// The error follows the path in a sentence.
    fn copy(&mut self, entry: &DiskEntry<'_>, stat: &Stat) -> Result<CopyPlace, String> {
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        if size > MAX_FILE {
            return Err(format!("is larger than {} MiB", MAX_FILE >> 20));
        }
        if self.recorder.bytes + self.bytes + size > MAX_BYTES {
            return Err(format!("is beyond {} MiB of changed files", MAX_BYTES >> 20));
        }
        let copy = match self.copies.find(entry.path, stat) {
            CopyLookup::Copy(copy) => copy,
            CopyLookup::Failed(why) => return Err(why),
            CopyLookup::Missing => {
                // Each request has a descriptor. The rest follows when the call is looked at again.
                if self.missing.len() < MAX_REQUESTS {
                    let folder = entry.folder().map_err(std::io::Error::from).and_then(OwnedFd::try_clone);
                    let folder = folder.map_err(|error| format!("cannot be copied ({error})"))?;
                    let (name, path) = (entry.name.to_owned(), entry.path.to_owned());
                    self.missing.push(CopyRequest { folder, name, path });
                }
                // Not recorded: the call is looked at again.
                CopyPlace::File(0)
            }
        };
        self.bytes += size;
        Ok(copy)
    }
}

fn unreadable(error: Errno) -> StateBefore {
    StateBefore::Unknown { why: format!("cannot be read ({error})") }
}
