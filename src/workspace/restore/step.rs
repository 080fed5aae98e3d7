//! One path of a restore.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use cap_fs_ext::DirExt;
use cap_std::fs::Dir;

use crate::permission::Target;
use crate::platform::files::{link, permissions_of};
use crate::workspace::change::write;
use crate::workspace::inspect::{Found, inspect, open_file};
use crate::workspace::journal::Temporaries;
use crate::workspace::{Changed, FileState, open_parent};

pub(super) struct Step {
    pub target: Target,
    pub changed: Changed,
    pub is_done: bool,
}

impl Step {
    /// Makes a folder writable for the following steps.
    pub(super) fn make_writable(&mut self) -> io::Result<()> {
        match (&self.changed.before, &self.changed.after) {
            (FileState::Folder { mode }, FileState::Folder { .. }) => self.set_mode(mode | 0o700),
            _ => Ok(()),
        }
    }

    pub(super) fn remove(&mut self, remaining_folders: &mut Vec<PathBuf>) -> io::Result<()> {
        let is_over = match (&self.changed.before, &self.changed.after) {
            // The rename replaces the entry, the folder stays, or nothing exists.
            (
                FileState::File { .. } | FileState::Link { .. },
                FileState::File { .. } | FileState::Link { .. },
            )
            | (FileState::Folder { .. }, FileState::Folder { .. })
            | (_, FileState::Absent) => return Ok(()),
            (before, FileState::File { .. } | FileState::Link { .. }) => {
                self.check_unchanged()?;
                let (dir, name) = open_parent(&self.target, false)?;
                dir.remove_file_or_symlink(name)?;
                *before == FileState::Absent
            }
            (before, FileState::Folder { .. }) => {
                let (dir, name) = open_parent(&self.target, false)?;
                match dir.remove_dir(name) {
                    Err(error)
                        if error.kind() == io::ErrorKind::DirectoryNotEmpty
                            && *before == FileState::Absent =>
                    {
                        remaining_folders.push(self.changed.path.clone());
                        return Ok(());
                    }
                    removed => removed?,
                }
                *before == FileState::Absent
            }
        };
        self.is_done = is_over;
        Ok(())
    }

    /// Modes of folders and unchanged contents follow in [`Self::close`].
    pub(super) fn put(
        &mut self,
        contents: &HashMap<String, Vec<u8>>,
        temporaries: &mut Temporaries,
    ) -> io::Result<()> {
        if matches!(self.changed.before, FileState::File { .. } | FileState::Link { .. }) {
            self.check_unchanged()?;
        }
        match &self.changed.before {
            FileState::Absent => return Ok(()),
            FileState::Folder { .. } => {
                if !matches!(self.changed.after, FileState::Folder { .. }) {
                    let (dir, name) = open_parent(&self.target, true)?;
                    dir.create_dir(name)?;
                }
                return Ok(());
            }
            FileState::File { .. } if is_content_there(&self.changed) => return Ok(()),
            FileState::File { hash, mode } => {
                let content = contents.get(hash).ok_or(io::ErrorKind::NotFound)?;
                let permissions = permissions_of(*mode);
                let make = |dir: &Dir, temporary: &str| write(dir, temporary, content, permissions.as_ref());
                self.replace(make, temporaries)?;
            }
            FileState::Link { to } => {
                self.replace(|dir, temporary| link(dir, to, temporary), temporaries)?;
            }
        }
        self.is_done = true;
        Ok(())
    }

    /// Repeats the check right before a write.
    fn check_unchanged(&self) -> io::Result<()> {
        let expected = match self.changed.after {
            FileState::Folder { .. } => &FileState::Absent,
            ref after => after,
        };
        match inspect(&self.target) {
            Found::State(found, _) if found == *expected => Ok(()),
            _ => Err(io::Error::other("the file changed during the restore")),
        }
    }

    fn replace(
        &self,
        make: impl FnOnce(&Dir, &str) -> io::Result<()>,
        temporaries: &mut Temporaries,
    ) -> io::Result<()> {
        let (dir, name) = open_parent(&self.target, true)?;
        let temporary = temporaries.name("tmp");
        let outcome = make(&dir, &temporary).and_then(|()| dir.rename(&temporary, &dir, name));
        if outcome.is_err() {
            // The temporary file may not exist; the first error counts.
            let _ = dir.remove_file_or_symlink(&temporary);
        }
        outcome
    }

    pub(super) fn close(&mut self) -> io::Result<()> {
        match self.changed.before {
            FileState::Folder { mode } => self.set_mode(mode)?,
            // Another name of the same file (a hard link) may have been replaced before.
            FileState::File { mode, .. } if is_content_there(&self.changed) => {
                let (dir, name) = open_parent(&self.target, false)?;
                if let Some(permissions) = permissions_of(mode) {
                    open_file(&dir, &name)?.0.set_permissions(permissions)?;
                }
            }
            _ => return Ok(()),
        }
        self.is_done = true;
        Ok(())
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        let Some(permissions) = permissions_of(mode) else { return Ok(()) };
        let (dir, name) = open_parent(&self.target, false)?;
        dir.set_permissions(name, permissions)
    }
}

/// True if only the mode bits differ.
pub(super) fn is_content_there(changed: &Changed) -> bool {
    match (&changed.before, &changed.after) {
        (FileState::File { hash: before, .. }, FileState::File { hash: after, .. }) => before == after,
        _ => false,
    }
}
