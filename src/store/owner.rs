//! Session ownership. Two processes with one session would overwrite each other's events.
//!
//! Each process locks a file beside the store, named after a random id, and writes this id to its open
//! sessions. The operating system releases the lock when the process ends for any reason. An id whose file
//! can be locked, or is missing, has no owner.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::files::companion;
use crate::ids;
use crate::platform::files::{create_private_folders, keep_private};

const FILES: &str = "files";

#[derive(Debug)]
pub(super) struct StoreOwner {
    pub id: String,
    /// Folder of the lock files. `None` for a store in memory or read-only.
    folder: Option<PathBuf>,
    _lock: Option<File>,
}

impl StoreOwner {
    pub(super) fn alone() -> Self {
        Self { id: ids::unique(), folder: None, _lock: None }
    }

    /// Creates a lock file, and deletes the files of processes that have ended.
    pub(super) fn beside(store: &Path) -> io::Result<Self> {
        let folder = folder_beside(store);
        create_private_folders(&folder)?;
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_none()
                && let LockState::Free(_lock) = try_lock(&path)
            {
                // Under the lock: a process that just created the file waits for it, then sees that the file
                // is gone.
                remove(&path);
            }
        }
        loop {
            let id = ids::unique();
            let path = folder.join(&id);
            keep_private(&path)?;
            let Ok(lock) = OpenOptions::new().write(true).open(&path) else { continue };
            lock.lock()?;
            // Another process may have deleted the file before it was locked.
            if path.exists() {
                return Ok(Self { id, folder: Some(folder), _lock: Some(lock) });
            }
        }
    }

    /// True if no other process has the store open.
    pub(super) fn is_alone(&self) -> bool {
        self.folder.as_ref().is_some_and(|folder| !has_owner(folder, Some(&self.id)))
    }

    pub(super) fn files(&self) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(&self.id).with_extension(FILES))
    }

    /// Path of a lock file that all processes with the store share. `None` for a store in memory or read-only.
    pub(super) fn shared_lock(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(name))
    }

    /// True if a process has the store open.
    pub(super) fn is_any(store: &Path) -> bool {
        has_owner(&folder_beside(store), None)
    }

    pub(super) fn is_other(&self, id: &str) -> bool {
        let Some(folder) = &self.folder else { return false };
        // Only an id is a safe file name.
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        id != self.id && is_id && matches!(try_lock(&folder.join(id)), LockState::Locked)
    }
}

impl Drop for StoreOwner {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            remove(&folder.join(&self.id));
        }
    }
}

fn has_owner(folder: &Path, other_than: Option<&str>) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let path = entry.path();
        let is_meant = other_than.is_none_or(|id| entry.file_name() != *id);
        path.extension().is_none() && is_meant && matches!(try_lock(&path), LockState::Locked)
    })
}

pub(super) fn folder_beside(store: &Path) -> PathBuf {
    companion(store, "-owners")
}

enum LockState {
    /// Locked by another process, or unknown.
    Locked,
    Free(File),
    Gone,
}

fn try_lock(path: &Path) -> LockState {
    // Opening a FIFO would wait for its reader. Anything else that is no file is no lock either.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return LockState::Gone;
    }
    match OpenOptions::new().write(true).open(path) {
        Ok(file) => match file.try_lock() {
            Ok(()) => LockState::Free(file),
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => LockState::Locked,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => LockState::Gone,
        Err(_) => LockState::Locked,
    }
}

/// Removes the files of a process, and last its lock file.
fn remove(lock: &Path) {
    for removed in [std::fs::remove_dir_all(lock.with_extension(FILES)), std::fs::remove_file(lock)] {
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(%error, lock = %lock.display(), "the files of a process could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_owner_is_gone_and_its_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store.db");
        let (one, other) = (StoreOwner::beside(&store).unwrap(), StoreOwner::beside(&store).unwrap());
        assert!(one.is_other(&other.id) && !one.is_other(&one.id));
        let remaining = other.id.clone();
        let path = one.folder.as_ref().unwrap().join(&remaining);
        drop(other);
        std::fs::write(&path, "").unwrap();
        let files = path.with_extension(FILES);
        std::fs::create_dir_all(files.join("copies")).unwrap();
        std::fs::create_dir_all(one.files().unwrap()).unwrap();
        assert!(!one.is_other(&remaining));
        let third = StoreOwner::beside(&store).unwrap();
        assert!(!path.exists() && !files.exists() && third.is_other(&one.id));
        assert!(one.files().unwrap().exists(), "files of a live owner stay");
        for id in ["", "..", "../store.db", "never"] {
            assert!(!one.is_other(id), "{id}");
        }
    }
}
