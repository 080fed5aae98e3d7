//! Storage of snapshot copies: numbered files in one folder, readable only by this user.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use cap_std::fs::File;

use crate::platform::files::{create_private_file, create_private_folder, create_private_folders};

pub(super) type CopyNumber = u64;

/// The folder is created with the first copy and removed on drop.
#[derive(Debug)]
pub(super) struct Copies {
    folder: PathBuf,
    is_made: bool,
    next: CopyNumber,
}

impl Copies {
    /// The first copy removes an existing entry at `folder`.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, is_made: false, next: 0 }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Copies at most `length` bytes. The kernel copies between files, on some file systems without moving
    /// data.
    pub(super) fn make(&mut self, file: File, length: u64) -> io::Result<CopyNumber> {
        if !self.is_made {
            self.make_folder()?;
        }
        let number = self.next;
        let mut copy = create_private_file(&self.path(number))?;
        self.next += 1;
        if let Err(error) = io::copy(&mut file.into_std().take(length), &mut copy) {
            self.forget(number);
            return Err(error);
        }
        Ok(number)
    }

    pub(super) fn read(&self, number: CopyNumber) -> io::Result<Vec<u8>> {
        std::fs::read(self.path(number))
    }

    pub(super) fn forget(&self, number: CopyNumber) {
        if let Err(error) = std::fs::remove_file(self.path(number)) {
            tracing::warn!(%error, number, "a copy of a file could not be removed");
        }
    }

    pub(super) fn clear(&mut self) {
        if !std::mem::take(&mut self.is_made) {
            return;
        }
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            tracing::warn!(%error, folder = %self.folder.display(), "copies of files could not be removed");
        }
    }

    fn make_folder(&mut self) -> io::Result<()> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if let Some(above) = self.folder.parent() {
            create_private_folders(above)?;
        }
        // Not recursive: succeeds only if this process creates the folder.
        create_private_folder(&self.folder)?;
        self.is_made = true;
        Ok(())
    }

    fn path(&self, number: CopyNumber) -> PathBuf {
        self.folder.join(number.to_string())
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.clear();
    }
}
