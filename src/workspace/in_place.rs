//! Writes a file in place, where a new file could not take its place or could not have its owner and attributes.
//!
//! A process that ends in between leaves a part of each content. So the intent has both contents, by which
//! [`is_partial`] recognises this state.

use std::ffi::OsStr;
use std::io::{self, Seek, SeekFrom};

use cap_fs_ext::{FollowSymlinks, OpenOptionsFollowExt};
use cap_std::fs::{Dir, File, Metadata, OpenOptions, Permissions};

use super::change::special_permissions;
use super::faults::{self, Point};
use crate::platform::files::{nonblocking, number, reserve};

#[derive(Debug)]
pub(super) struct InPlace {
    file: File,
    before: Vec<u8>,
    /// See [`special_permissions`].
    special: Option<Permissions>,
}

/// A failed write. `is_clean` says that the file has its content from before.
#[derive(Debug)]
pub(super) struct WriteFailure {
    pub error: io::Error,
    pub is_clean: bool,
}

impl InPlace {
    /// `before` is the content of the file with this metadata.
    pub(super) fn open(dir: &Dir, name: &OsStr, found: &Metadata, before: Vec<u8>) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).follow(FollowSymlinks::No);
        nonblocking(&mut options);
        let file = dir.open_with(name, &options)?;
        if number(&file.metadata()?) == number(found) {
            let special = special_permissions(&file)?;
            Ok(Self { file, before, special })
        } else {
            Err(io::Error::other("it was replaced during the call"))
        }
    }

    /// Writes the whole content, or the content from before again.
    pub(super) fn write(&mut self, content: &[u8]) -> Result<(), WriteFailure> {
        // Fails before the first write if this user cannot set the bits again, which the write takes away.
        self.set_special().map_err(|error| WriteFailure { error, is_clean: true })?;
        let growth = content.len().saturating_sub(self.before.len());
        if growth > 0 {
            // A full disk is noticed before the first byte changes.
            faults::check(Point::Reserve)
                .and_then(|()| reserve(&self.file, self.before.len() as u64, growth as u64))
                .map_err(|error| WriteFailure { error, is_clean: true })?;
        }
        self.put(content)
            .map_err(|error| WriteFailure { error, is_clean: self.put(&self.before.clone()).is_ok() })
    }

    pub(super) fn undo(&mut self) -> io::Result<()> {
        self.put(&self.before.clone())
    }

    /// Front to back, then the length: see [`is_partial`].
    fn put(&mut self, content: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        faults::write_all(&mut self.file, content)?;
        faults::check(Point::Truncate)?;
        self.file.set_len(content.len() as u64)?;
        self.set_special()
    }

    fn set_special(&self) -> io::Result<()> {
        self.special.iter().try_for_each(|permissions| self.file.set_permissions(permissions.clone()))
    }
}

/// Returns true for a content that an interrupted write leaves: the start of the new content, then the rest of the old.
pub(super) fn is_partial(found: &[u8], old: &[u8], new: &[u8]) -> bool {
    let same = found.iter().zip(new).take_while(|(found, new)| found == new).count();
    let rest = old.get(same..).unwrap_or_default();
    found[same..] == *rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_writes_are_recognised() {
        for (old, new) in [
            ("", "new"),
            ("old", ""),
            ("old and long", "new"),
            ("old", "new and long"),
            ("abab", "abba"),
            ("same", "same"),
        ] {
            let (old, new) = (old.as_bytes(), new.as_bytes());
            for written in 0..=new.len() {
                let found = [&new[..written], old.get(written..).unwrap_or_default()].concat();
                assert!(is_partial(&found, old, new), "{found:?}");
            }
        }
        for other in ["else", "nee", "old and longer", "newold and long"] {
            assert!(!is_partial(other.as_bytes(), b"old and long", b"new"), "{other}");
        }
    }
}
