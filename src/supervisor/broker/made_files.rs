//! Files and sockets that the command has made in folders that it shares with other programs.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use super::resolve::{FileIdentity, identity};
use super::tracee::own_path;

/// Most files that are remembered.
const MAX_FILES: usize = 256;

#[derive(Debug, Default)]
pub(super) struct MadeFiles {
    /// Opened with `O_PATH`, so that no other file gets the number.
    files: Mutex<HashMap<FileIdentity, OwnedFd>>,
}

impl MadeFiles {
    /// # Errors
    /// Fails if too many files are remembered.
    pub(super) fn add(&self, file: impl AsFd) -> Result<(), Errno> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.len() >= MAX_FILES {
            files.retain(|_, file| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink > 0));
        }
        if files.len() >= MAX_FILES {
            return Err(Errno::NOSPC);
        }
        let file = rustix::fs::open(own_path(file.as_fd()), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        files.insert(identity(&file)?, file);
        Ok(())
    }

    pub(super) fn contain(&self, stat: &Stat) -> bool {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.contains_key(&(stat.st_dev, stat.st_ino))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_files_are_known_by_their_numbers() {
        let [own, other] = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
        let files = MadeFiles::default();
        files.add(own.as_file()).unwrap();
        assert!(files.contain(&rustix::fs::fstat(own.as_file()).unwrap()));
        assert!(!files.contain(&rustix::fs::fstat(other.as_file()).unwrap()));
    }

    #[test]
    fn removed_files_make_room_for_others() {
        let folder = tempfile::tempdir().unwrap();
        let files = MadeFiles::default();
        let path = |number: usize| folder.path().join(number.to_string());
        for number in 0..MAX_FILES {
            files.add(std::fs::File::create(path(number)).unwrap()).unwrap();
        }
        let more = std::fs::File::create(folder.path().join("more")).unwrap();
        assert_eq!(files.add(&more), Err(Errno::NOSPC));
        std::fs::remove_file(path(0)).unwrap();
        assert_eq!(files.add(&more), Ok(()));
    }
}
