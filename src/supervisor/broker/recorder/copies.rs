//! Copies of files that a call is about to change. They are made while no lock is held, because a file can grow or its
//! disk be slow; the record takes a copy only if its file has not changed meanwhile.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FileType, Mode, OFlags, Stat};

use crate::supervisor::broker::resolve::BENEATH;
use crate::supervisor::record::MAX_FILE;

/// Maximum number of copies of a changing file for one call.
const MAX_TRIES: usize = 3;

/// Folder of a record, which has copies with numbers as their names.
#[derive(Debug)]
pub(in crate::supervisor) struct CopyFolder {
    path: PathBuf,
    next: AtomicU64,
}

impl CopyFolder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, next: AtomicU64::default() }
    }

    /// A name that no other copy has.
    pub(super) fn reserve(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn path(&self, copy: u64) -> PathBuf {
        self.path.join(copy.to_string())
    }

    pub(super) fn remove(&self, copy: u64) {
        // The folder is deleted with the session.
        let _ = fs::remove_file(self.path(copy));
    }
}

/// A file of which the record needs a copy.
#[derive(Debug)]
pub(in crate::supervisor) struct CopyRequest {
    pub(super) folder: OwnedFd,
    pub(super) name: OsString,
    pub(super) path: PathBuf,
}

/// Tells whether a file is the same and has not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion([i128; 7]);

impl FileVersion {
    fn new(found: &Stat) -> Self {
        let Stat { st_dev, st_ino, st_size, st_mtime, st_mtime_nsec, st_ctime, st_ctime_nsec, .. } = *found;
        Self([
            st_dev.into(),
            st_ino.into(),
            st_size.into(),
            st_mtime.into(),
            st_mtime_nsec.into(),
            st_ctime.into(),
            st_ctime_nsec.into(),
        ])
    }
}

/// Copies for one call. Those that the record does not take are removed.
#[derive(Debug)]
pub(in crate::supervisor) struct CallCopies {
    /// `None` if changes are not recorded.
    folder: Option<Arc<CopyFolder>>,
    made: HashMap<PathBuf, (u64, FileVersion)>,
    /// Why files could not be copied: the rest of a sentence.
    failed: HashMap<PathBuf, String>,
    /// Number of copies of each file so far.
    tries: HashMap<PathBuf, usize>,
    /// True if a copy is good enough that is not of one moment.
    accepts_changes: bool,
}

/// A look for the copy of a file.
pub(super) enum CopyLookup {
    Copy(u64),
    /// No copy can be made; the reason is the rest of a sentence.
    Failed(String),
    Missing,
}

impl CallCopies {
    pub(in crate::supervisor) fn new(folder: Option<Arc<CopyFolder>>) -> Self {
        Self {
            folder,
            made: HashMap::new(),
            failed: HashMap::new(),
            tries: HashMap::new(),
            accepts_changes: false,
        }
    }

    /// Of files that programs are writing.
    pub(in crate::supervisor) fn of_written(folder: Option<Arc<CopyFolder>>) -> Self {
        let mut copies = Self::new(folder);
        copies.accepts_changes = true;
        copies
    }

    /// Makes copies until all are made, or `is_wanted` returns false.
    pub(in crate::supervisor) fn make(&mut self, requests: Vec<CopyRequest>, is_wanted: impl Fn() -> bool) {
        let Some(folder) = self.folder.clone() else { return };
        for request in requests {
            if !is_wanted() {
                return;
            }
            if let Some((outdated, _)) = self.made.remove(&request.path) {
                folder.remove(outdated);
            }
            *self.tries.entry(request.path.clone()).or_default() += 1;
            let copy = folder.reserve();
            match copy_file(&request, &folder.path(copy)) {
                Ok(fingerprint) => drop(self.made.insert(request.path, (copy, fingerprint))),
                Err(error) => {
                    folder.remove(copy);
                    self.failed.insert(request.path, format!("cannot be copied ({error})"));
                }
            }
        }
    }

    /// The copy of a file in the state `found`. It stays until it is taken.
    pub(super) fn find(&self, path: &Path, found: &Stat) -> CopyLookup {
        if let Some(why) = self.failed.get(path) {
            return CopyLookup::Failed(why.clone());
        }
        match self.made.get(path) {
            Some((copy, fingerprint)) if self.accepts_changes || *fingerprint == FileVersion::new(found) => {
                CopyLookup::Copy(*copy)
            }
            _ if self.tries.get(path).is_some_and(|tries| *tries >= MAX_TRIES) => {
                CopyLookup::Failed("changes while it is copied".into())
            }
            _ => CopyLookup::Missing,
        }
    }

    /// The record has the copy now.
    pub(super) fn take(&mut self, path: &Path) {
        self.made.remove(path);
    }
}

impl Drop for CallCopies {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            self.made.values().for_each(|(copy, _)| folder.remove(*copy));
        }
    }
}

/// Copies as many bytes as the file has at first, at most [`MAX_FILE`]: it may grow.
fn copy_file(request: &CopyRequest, target: &Path) -> io::Result<FileVersion> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let source: File =
        rustix::fs::openat2(&request.folder, &request.name, flags, Mode::empty(), BENEATH)?.into();
    let stat = rustix::fs::fstat(&source)?;
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || size > MAX_FILE {
        return Err(io::Error::other("another file has its name"));
    }
    let target = File::create_new(target)?;
    // A clone is of one moment, but the file may have grown before.
    let is_cloned = rustix::fs::ioctl_ficlone(&target, &source).is_ok();
    if is_cloned {
        target.set_len(size)?;
    } else {
        io::copy(&mut (&source).take(size), &mut &target)?;
    }
    Ok(FileVersion::new(&stat))
}
