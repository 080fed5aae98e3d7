//! Records each path before its first change, with a copy of its content, until the record is saved.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::resolve::{BENEATH, ResolvedPath, trim};
use super::revoke::Identity;
use crate::sandbox::record::{Before, ENDING, MAX_FILE, Record, RecordEntry, VERSION_CONTROL};

/// Most paths and bytes of one record.
const MAX_ENTRIES: usize = 30_000;
const MAX_BYTES: u64 = 256 * 1024 * 1024;

/// Most components of a recorded path. Folders are recorded by recursion.
const MAX_LEVELS: usize = 200;

#[derive(Debug)]
pub(in crate::process::linux) struct Recorder {
    folder: PathBuf,
    /// Folders that are not recorded, except for the roots in them.
    excluded: Vec<PathBuf>,
    roots: Vec<PathBuf>,
    entries: BTreeMap<PathBuf, Before>,
    uncovered: BTreeSet<String>,
    /// Files of which all names below the roots are recorded.
    linked: HashSet<Identity>,
    bytes: u64,
    copies: u64,
    saved: u64,
}

impl Recorder {
    /// `folder` must be empty and out of the command's reach.
    pub(in crate::process::linux) fn new(
        folder: PathBuf,
        excluded: Vec<PathBuf>,
        roots: Vec<PathBuf>,
    ) -> Self {
        Self {
            folder,
            excluded,
            roots,
            entries: BTreeMap::new(),
            uncovered: BTreeSet::new(),
            linked: HashSet::new(),
            bytes: 0,
            copies: 0,
            saved: 0,
        }
    }

    /// Records an entry that is about to be created, changed or removed.
    pub(super) fn add(&mut self, entry: &ResolvedPath) {
        self.add_path(&entry.folder, trim(&entry.name), &entry.path);
    }

    /// Records an entry that is about to be removed. A file without other names and without writers is kept by a
    /// hard link, which costs less than a copy. Returns true if [`Self::take_back`] must follow a failure.
    pub(super) fn add_removed(&mut self, entry: &ResolvedPath, may_link: bool) -> bool {
        let is_new = !self.entries.contains_key(&entry.path) && !self.is_excluded(&entry.path);
        if may_link
            && is_new
            && let Ok(before) = self.link(entry)
        {
            self.entries.insert(entry.path.clone(), before);
            return true;
        }
        self.add(entry);
        false
    }

    /// Removes the record of an entry that was not removed: a later change would also change the hard link.
    pub(super) fn take_back(&mut self, entry: &ResolvedPath) {
        if let Some(Before::File { copy, .. }) = self.entries.remove(&entry.path) {
            // The folder is deleted with the session.
            let _ = fs::remove_file(self.folder.join(copy));
        }
    }

    fn link(&mut self, entry: &ResolvedPath) -> Result<Before, Errno> {
        let name = trim(&entry.name);
        let found = rustix::fs::statat(&entry.folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if !is_file || found.st_nlink != 1 || found.st_size > MAX_FILE.cast_signed() {
            return Err(Errno::INVAL);
        }
        let copy = self.copies.to_string();
        rustix::fs::linkat(&entry.folder, name, CWD, self.folder.join(&copy), AtFlags::empty())?;
        self.copies += 1;
        Ok(Before::File { copy, mode: found.st_mode & 0o7777 })
    }

    /// Records a file whose content or mode is about to change.
    pub(super) fn add_changed(&mut self, entry: &ResolvedPath) {
        self.add(entry);
        let found = rustix::fs::statat(&entry.folder, trim(&entry.name), AtFlags::SYMLINK_NOFOLLOW);
        let is_shared = |found: Stat| {
            FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
                && found.st_nlink > 1
                && !self.linked.contains(&(found.st_dev, found.st_ino))
        };
        if found.is_ok_and(is_shared) {
            let path = entry.path.display();
            self.uncovered.insert(format!(
                "{path} has other names (hard links), for which its changes are not undone."
            ));
        }
    }

    /// Records a file that is about to get another name.
    pub(super) fn add_linked(&mut self, from: &ResolvedPath, to: &ResolvedPath) {
        self.add(from);
        self.add(to);
        let found = rustix::fs::statat(&from.folder, trim(&from.name), AtFlags::SYMLINK_NOFOLLOW);
        self.linked.extend(found.ok().filter(|it| it.st_nlink == 1).map(|it| (it.st_dev, it.st_ino)));
    }

    /// Records an entry that is about to be moved, with all that is below it.
    pub(super) fn add_moved(&mut self, entry: &ResolvedPath, to: &Path) {
        self.add_below(&entry.folder, trim(&entry.name), &entry.path, to);
    }

    fn add_below(&mut self, folder: &OwnedFd, name: &OsStr, path: &Path, to: &Path) {
        if self.is_excluded(path) {
            return;
        }
        self.add_path(folder, name, path);
        self.entries.entry(to.to_owned()).or_insert(Before::Absent);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(below) = rustix::fs::openat2(folder, name, flags, Mode::empty(), BENEATH) else { return };
        let Ok(entries) = rustix::fs::Dir::read_from(&below) else { return };
        for entry in entries.flatten() {
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            if name != "." && name != ".." {
                self.add_below(&below, &name, &path.join(&name), &to.join(&name));
            }
        }
    }

    fn add_path(&mut self, folder: &OwnedFd, name: &OsStr, path: &Path) {
        if self.entries.contains_key(path) || self.is_excluded(path) {
            return;
        }
        match self.before(folder, name) {
            Ok(before) => {
                self.entries.insert(path.to_owned(), before);
            }
            Err(why) => {
                self.uncovered.insert(format!("{} {why}: its changes cannot be undone.", path.display()));
            }
        }
    }

    /// Returns true for paths that are not recorded.
    fn is_excluded(&mut self, path: &Path) -> bool {
        let is_in_root =
            |folder: &Path| self.roots.iter().any(|root| root.starts_with(folder) && path.starts_with(root));
        if self.excluded.iter().any(|folder| path.starts_with(folder) && !is_in_root(folder)) {
            return true;
        }
        let is_version_control =
            |part: &OsStr| VERSION_CONTROL.iter().any(|one| part.eq_ignore_ascii_case(one));
        if path.iter().any(is_version_control) {
            self.uncovered.insert("Undo does not cover the state of version control.".into());
            return true;
        }
        if path.iter().count() > MAX_LEVELS {
            self.uncovered.insert(format!("Undo does not cover paths with more than {MAX_LEVELS} levels."));
            return true;
        }
        if self.entries.len() >= MAX_ENTRIES {
            self.uncovered
                .insert(format!("More than {MAX_ENTRIES} paths changed: undo does not cover the rest."));
            return true;
        }
        false
    }

    /// The error is a reason that follows the path's name.
    fn before(&mut self, folder: &OwnedFd, name: &OsStr) -> Result<Before, String> {
        let unreadable = |error: Errno| format!("cannot be read ({error})");
        let found = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Before::Absent),
            Err(error) => return Err(unreadable(error)),
        };
        let mode = found.st_mode & 0o7777;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => Ok(Before::Folder { mode }),
            FileType::Symlink => {
                let to = rustix::fs::readlinkat(folder, name, Vec::new()).map_err(unreadable)?;
                Ok(Before::Link { to: OsString::from_vec(to.into_bytes()).into() })
            }
            FileType::RegularFile => Ok(Before::File { copy: self.copy(folder, name, &found)?, mode }),
            _ => Err("is not a file, folder or link".into()),
        }
    }

    fn copy(&mut self, folder: &OwnedFd, name: &OsStr, found: &Stat) -> Result<String, String> {
        let size = u64::try_from(found.st_size).unwrap_or_default();
        if size > MAX_FILE {
            return Err(format!("is larger than {} MiB", MAX_FILE >> 20));
        }
        if self.bytes + size > MAX_BYTES {
            return Err(format!("is beyond {} MiB of changed files", MAX_BYTES >> 20));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = || -> io::Result<u64> {
            let source: File = rustix::fs::openat2(folder, name, flags, Mode::empty(), BENEATH)?.into();
            let target = File::create_new(self.folder.join(self.copies.to_string()))?;
            if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
                return Ok(size);
            }
            io::copy(&mut &source, &mut &target)
        };
        let copied = open().map_err(|error| format!("cannot be copied ({error})"));
        let name = self.copies.to_string();
        self.copies += 1;
        self.bytes += copied?;
        Ok(name)
    }

    /// Saves the record, and begins a new one. Returns false if it could not be saved.
    pub(super) fn save(&mut self) -> bool {
        let entries = std::mem::take(&mut self.entries);
        let entries = entries.into_iter().map(|(path, before)| RecordEntry { path, before }).collect();
        let record = Record { entries, uncovered: std::mem::take(&mut self.uncovered).into_iter().collect() };
        self.linked.clear();
        self.bytes = 0;
        if record == Record::default() {
            return true;
        }
        let written = self.write(&record);
        self.saved += 1;
        written.is_ok()
    }

    /// Readers see the whole record or none.
    fn write(&self, record: &Record) -> io::Result<()> {
        let file = self.folder.join(self.saved.to_string());
        let unfinished = file.with_extension("new");
        fs::write(&unfinished, serde_json::to_vec(record)?)?;
        fs::rename(unfinished, file.with_extension(ENDING))
    }
}
