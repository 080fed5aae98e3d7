//! One writer at a time: a lock for each path, shared by all sessions and processes of this user.
//!
//! The locks are bytes of one file in Modegate's own folder. The system releases them when a process ends for any
//! reason. This module takes no runtime, and touches no file but its own.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::platform::files::{create_private_folders, open_private};

/// How long a writer waits for the others, in all.
pub const MAX_WAIT: Duration = Duration::from_secs(10);

/// First and last pause before another attempt. No system call waits for a lock until a time.
const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(10)];

/// Most files that stay open between locks: one for each thread that changes files.
const MAX_IDLE: usize = 4;

/// Cheap to clone. The default locks paths within this process only.
#[derive(Debug, Clone, Default)]
pub struct FileLocks(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// `None` if there is no folder for it.
    file: Option<PathBuf>,
    /// Numbers of the locked paths. Contains also those of this process that the file cannot lock.
    held: Mutex<BTreeSet<u64>>,
    /// The file, opened before and without locks: opening it takes longer than locking.
    idle: Mutex<Vec<LockFile>>,
}

/// An open file of locks, whose locks are of no other open file.
#[derive(Debug)]
struct LockFile {
    file: File,
    /// `None` where the system does not tell.
    identity: Option<LockFileIdentity>,
}

/// Device and number, which no other file has while this one is open.
type LockFileIdentity = (u64, u64);

/// Locked paths, released on drop.
#[derive(Debug)]
#[must_use = "the paths are unlocked when this value is dropped"]
pub struct FileLock {
    shared: Arc<Shared>,
    file: Option<LockFile>,
    numbers: BTreeSet<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("stopped before anything was changed")]
    Stopped,
    #[error(
        "{} is being changed by another session, an editor or a command, for more than {} s. Nothing was changed. Try \
         again later", .0.display(), MAX_WAIT.as_secs()
    )]
    Busy(PathBuf),
    #[error("cannot lock files with {}, so nothing was changed: {error}", path.display())]
    Unusable { path: PathBuf, error: io::Error },
}

impl FileLocks {
    /// Locks paths for all processes that use this folder. The folder is created with the first lock.
    pub fn in_folder(folder: &Path) -> Self {
        Self(Arc::new(Shared { file: Some(folder.join("file-locks")), ..Shared::default() }))
    }

    /// Locks absolute paths, all or none. Blocks until they are free, at most [`MAX_WAIT`], or until
    /// `is_stopped`.
    pub fn lock<'a>(
        &self,
        paths: impl IntoIterator<Item = &'a Path>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<FileLock, LockError> {
        let mut named: Vec<(u64, &Path)> = paths.into_iter().map(|path| (number(path), path)).collect();
        // All holders lock in this order, so that no two wait for each other.
        named.sort_unstable();
        named.dedup_by_key(|(number, _)| *number);
        let mut lock =
            FileLock { shared: Arc::clone(&self.0), file: self.0.open()?, numbers: BTreeSet::new() };
        let (started, mut pause) = (Instant::now(), PAUSES[0]);
        for (number, path) in named {
            while !lock.try_add(number)? {
                if is_stopped() {
                    return Err(LockError::Stopped);
                }
                if started.elapsed() > MAX_WAIT {
                    return Err(LockError::Busy(path.to_owned()));
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSES[1]);
            }
        }
        Ok(lock)
    }
}

impl Shared {
    /// A folder in which nothing can be written limits the locks to this process: the files may be writable.
    fn open(&self) -> Result<Option<LockFile>, LockError> {
        let Some(path) = &self.file else { return Ok(None) };
        if let Some(file) = self.idle_file(path) {
            return Ok(Some(file));
        }
        let opened = open_private(path).or_else(|error| match (error.kind(), path.parent()) {
            (io::ErrorKind::NotFound, Some(folder)) => {
                create_private_folders(folder).and_then(|()| open_private(path))
            }
            _ => Err(error),
        });
        match opened {
            Ok(file) => {
                let identity = file.metadata().ok().as_ref().and_then(identity);
                Ok(Some(LockFile { file, identity }))
            }
            Err(error) if cannot_share(&error) => {
                tracing::debug!(%error, path = %path.display(), "files are locked within this process only");
                Ok(None)
            }
            Err(error) => Err(LockError::Unusable { path: path.clone(), error }),
        }
    }

    /// A file that was opened before, if the path still leads to it: other processes lock the file of the path.
    fn idle_file(&self, path: &Path) -> Option<LockFile> {
        let file = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        let named = std::fs::metadata(path).ok().as_ref().and_then(identity);
        (named.is_some() && named == file.identity).then_some(file)
    }

    fn keep(&self, file: LockFile) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if file.identity.is_some() && idle.len() < MAX_IDLE {
            idle.push(file);
        }
    }

    fn held(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        // A panic elsewhere cannot make the set inconsistent.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true for a folder in which nothing can be written, and for a file system without locks.
fn cannot_share(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, StorageFull, Unsupported};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | StorageFull | Unsupported)
        || has_no_locks(error)
}

impl FileLock {
    fn try_add(&mut self, number: u64) -> Result<bool, LockError> {
        if !self.shared.held().insert(number) {
            return Ok(false);
        }
        let mut locked = self.file.as_ref().map_or(Ok(true), |open| try_lock_byte(&open.file, number));
        if locked.as_ref().is_err_and(cannot_share) {
            // Locks that this value has already taken were none.
            self.file = None;
            locked = Ok(true);
        }
        match (locked, &self.shared.file) {
            (Ok(true), _) => {
                self.numbers.insert(number);
                Ok(true)
            }
            (Ok(false), _) => {
                self.shared.held().remove(&number);
                Ok(false)
            }
            (Err(error), path) => {
                self.shared.held().remove(&number);
                Err(LockError::Unusable { path: path.clone().unwrap_or_default(), error })
            }
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if let Some(open) = self.file.take() {
            // A process that is about to execute a program may have a copy of the descriptor.
            if unlock_all(&open.file) {
                self.shared.keep(open);
            }
        }
        let mut held = self.shared.held();
        for number in &self.numbers {
            held.remove(number);
        }
    }
}

/// FNV-1a, which is the same in all versions of Modegate. A lock of another path with the same number only waits.
fn number(path: &Path) -> u64 {
    let bytes = path.as_os_str().as_encoded_bytes();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    // Offsets in a file are signed.
    hash >> 2
}

#[cfg(target_os = "linux")]
use crate::kernel::{has_no_locks, try_lock_byte, unlock_all};

#[cfg(not(target_os = "linux"))]
fn has_no_locks(_: &io::Error) -> bool {
    false
}

/// On other systems a lock is one of the whole file, so writers of different files wait for each other, too.
#[cfg(not(target_os = "linux"))]
fn try_lock_byte(file: &File, _: u64) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(std::fs::TryLockError::WouldBlock) => Ok(false),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Closing the file unlocks it, too.
#[cfg(not(target_os = "linux"))]
fn unlock_all(file: &File) -> bool {
    file.unlock().is_ok()
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "other systems do not tell")]
fn identity(file: &std::fs::Metadata) -> Option<LockFileIdentity> {
    use std::os::unix::fs::MetadataExt;
    Some((file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn identity(_: &std::fs::Metadata) -> Option<LockFileIdentity> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths<'a>(names: &[&'a str]) -> Vec<&'a Path> {
        names.iter().map(|name| Path::new(*name)).collect()
    }

    /// Returns true if the paths are free.
    fn is_free(locks: &FileLocks, names: &[&str]) -> bool {
        match locks.lock(paths(names), &|| true) {
            Ok(_lock) => true,
            Err(LockError::Stopped) => false,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn locks_exclude_each_other_by_path_within_and_between_processes() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        let here = FileLocks::in_folder(&folder);
        // A handle of its own has open files and a table of its own, as another process does.
        for other in [here.clone(), FileLocks::in_folder(&folder)] {
            let lock = here.lock(paths(&["/b", "/a", "/b"]), &|| false).unwrap();
            assert!(!is_free(&other, &["/a"]) && !is_free(&other, &["/c", "/b"]));
            assert!(is_free(&other, &["/c", "/d"]) || cfg!(not(target_os = "linux")), "the control");
            drop(lock);
            assert!(is_free(&other, &["/a", "/b"]));
        }
        assert!(is_free(&here, &["/a"]) && is_free(&FileLocks::default(), &["/a"]));
    }

    #[cfg(unix)]
    #[test]
    fn file_stays_open_while_its_path_leads_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let here = FileLocks::in_folder(dir.path());
        let identity = || here.lock(paths(&["/a"]), &|| false).unwrap().file.as_ref().unwrap().identity;
        let first = identity();
        assert_eq!((identity(), here.0.idle.lock().unwrap().len()), (first, 1));
        // Another program replaces it: a new session locks the new file.
        std::fs::rename(dir.path().join("file-locks"), dir.path().join("old")).unwrap();
        let lock = here.lock(paths(&["/a"]), &|| false).unwrap();
        assert!(!is_free(&FileLocks::in_folder(dir.path()), &["/a"]));
        drop(lock);
        assert_ne!(identity(), first);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn locks_of_one_file_do_not_share_an_open_file() {
        let dir = tempfile::tempdir().unwrap();
        let here = FileLocks::in_folder(dir.path());
        let locks: Vec<_> =
            ["/a", "/b", "/c"].map(|path| here.lock(paths(&[path]), &|| false).unwrap()).into();
        drop(locks);
        assert_eq!(here.0.idle.lock().unwrap().len(), 3);
        let [one, other] = ["/a", "/b"].map(|path| here.lock(paths(&[path]), &|| false).unwrap());
        drop(one);
        // The end of a lock leaves the others.
        let elsewhere = FileLocks::in_folder(dir.path());
        assert!(!is_free(&elsewhere, &["/b"]) && is_free(&elsewhere, &["/a"]));
        drop(other);
        assert!(is_free(&elsewhere, &["/b"]));
    }

    #[test]
    fn waiting_writers_exclude_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let count = Mutex::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let locks = FileLocks::in_folder(dir.path());
                let count = &count;
                scope.spawn(move || {
                    for _ in 0..50 {
                        let _lock = locks.lock(paths(&["/x", "/y"]), &|| false).unwrap();
                        let mut alone = count.try_lock().expect("no other thread is under the lock");
                        *alone += 1;
                    }
                });
            }
        });
        assert_eq!(count.into_inner().unwrap(), 200);
    }

    #[cfg(unix)]
    #[test]
    fn foreign_file_in_the_locks_place_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("file-locks");
        crate::platform::files::make_fifo(&place);
        let error = FileLocks::in_folder(dir.path()).lock(paths(&["/a"]), &|| false).unwrap_err();
        assert!(matches!(error, LockError::Unusable { .. }), "{error}");
        std::fs::remove_file(&place).unwrap();
        assert!(is_free(&FileLocks::in_folder(dir.path()), &["/a"]), "the control");
    }
}
