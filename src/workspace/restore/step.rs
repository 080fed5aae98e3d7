//! One path of a restore.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use cap_fs_ext::DirExt;
use cap_std::fs::{Dir, File, Metadata};

use crate::permission::Target;
use crate::platform::files::{link, link_count, permissions_of, rename_to_new};
use crate::workspace::change::{WriteError, write};
use crate::workspace::in_place::InPlace;
use crate::workspace::inspect::{InspectedPath, inspect, open_file};
use crate::workspace::journal::Temporaries;
use crate::workspace::replacement::{Swap, SwapOutcome};
use crate::workspace::{Changed, FileState, open_parent};

const CHANGED: &str = "the file changed during the restore";

pub(super) struct RestoreStep {
    pub target: Target,
    pub changed: Changed,
    pub is_done: bool,
}

impl RestoreStep {
    /// Makes a folder writable for the following steps.
    pub(super) fn make_writable(&mut self) -> io::Result<()> {
        match (&self.changed.before, &self.changed.after) {
            (FileState::Folder { mode }, FileState::Folder { .. }) => self.set_mode(mode | 0o700),
            _ => Ok(()),
        }
    }

    pub(super) fn remove(
        &mut self,
        remaining_folders: &mut Vec<PathBuf>,
        temporaries: &mut Temporaries,
    ) -> io::Result<()> {
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
                let temporary = temporaries.name("old");
                let expected = Some(&self.changed.after);
                let swap = Swap { dir: &dir, name: &name, temporary: &temporary, expected };
                match swap.set_aside(|_| true)? {
                    SwapOutcome::Done => dir.remove_file_or_symlink(&temporary)?,
                    outcome => return Err(conflict(outcome, &temporary)),
                }
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
                self.put_file(content, *mode, temporaries)?;
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
            InspectedPath::State(found, _) if found == *expected => Ok(()),
            _ => Err(io::Error::other(CHANGED)),
        }
    }

    fn replace(
        &self,
        make: impl FnOnce(&Dir, &str) -> io::Result<()>,
        temporaries: &mut Temporaries,
    ) -> io::Result<()> {
        let (dir, name) = open_parent(&self.target, true)?;
        let temporary = temporaries.name("tmp");
        let outcome = make(&dir, &temporary).and_then(|()| self.take_place(&dir, &temporary, &name));
        if !matches!(outcome, Ok(SwapOutcome::Stranded)) {
            // The temporary file may not exist; the first error counts.
            let _ = dir.remove_file_or_symlink(&temporary);
        }
        match outcome? {
            SwapOutcome::Done => Ok(()),
            outcome => Err(conflict(outcome, &temporary)),
        }
    }

    fn take_place(&self, dir: &Dir, temporary: &str, name: &OsStr) -> io::Result<SwapOutcome> {
        if !matches!(self.changed.after, FileState::File { .. } | FileState::Link { .. }) {
            rename_to_new((dir, temporary.as_ref()), (dir, name))?;
            return Ok(SwapOutcome::Done);
        }
        let swap = Swap { dir, name, temporary, expected: Some(&self.changed.after) };
        match swap.replace(|_| true)? {
            SwapOutcome::Unsupported => {
                dir.rename(temporary, dir, name)?;
                Ok(SwapOutcome::Done)
            }
            outcome => Ok(outcome),
        }
    }

    /// The file keeps its owner and attributes. If it cannot, it is written in place.
    fn put_file(&self, content: &[u8], mode: u32, temporaries: &mut Temporaries) -> io::Result<()> {
        let existing =
            matches!(self.changed.after, FileState::File { .. }).then(|| self.open()).transpose()?;
        let mut denied = None;
        let written = self.replace(
            |dir, temporary| {
                let written = write(dir, temporary, content, existing.as_ref().map(|(file, _)| file));
                if let (Err(WriteError::Create(error) | WriteError::Identity(error)), Some(_)) =
                    (&written, &existing)
                {
                    denied = Some(error.kind());
                }
                written?;
                permissions_of(mode).map_or(Ok(()), |mode| dir.set_permissions(temporary, mode))
            },
            temporaries,
        );
        match (written, existing, denied) {
            // A file with other names gets one of its own, because the others did not change with it.
            (
                Err(_),
                Some((_, found)),
                Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem),
            ) if link_count(&found).is_none_or(|count| count == 1) => self.write_in_place(content, &found),
            (Err(error), Some((_, found)), _) if is_mounted(&error) => self.write_in_place(content, &found),
            (written, ..) => written,
        }
    }

    fn open(&self) -> io::Result<(File, Metadata)> {
        let (dir, name) = open_parent(&self.target, false)?;
        open_file(&dir, &name)
    }

    fn write_in_place(&self, content: &[u8], found: &Metadata) -> io::Result<()> {
        let InspectedPath::State(state, Some(old)) = inspect(&self.target) else {
            return Err(io::Error::other(CHANGED));
        };
        if state != self.changed.after {
            return Err(io::Error::other(CHANGED));
        }
        let (dir, name) = open_parent(&self.target, false)?;
        InPlace::open(&dir, &name, found, old)?.write(content).map_err(|failure| {
            if failure.is_clean {
                failure.error
            } else {
                io::Error::other(format!("{}; the file has a part of both texts", failure.error))
            }
        })?;
        let FileState::File { mode, .. } = self.changed.before else { return Ok(()) };
        let FileState::File { mode: now, .. } = state else { return Ok(()) };
        match permissions_of(mode) {
            Some(permissions) if mode != now => dir.set_permissions(&name, permissions),
            _ => Ok(()),
        }
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

fn conflict(outcome: SwapOutcome, temporary: &str) -> io::Error {
    io::Error::other(match outcome {
        SwapOutcome::Stranded => format!("{CHANGED}, and its new text is in {temporary} beside it"),
        _ => CHANGED.to_owned(),
    })
}

fn is_mounted(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::CrossesDevices)
}

/// True if only the mode bits differ.
pub(super) fn is_content_there(changed: &Changed) -> bool {
    match (&changed.before, &changed.after) {
        (FileState::File { hash: before, .. }, FileState::File { hash: after, .. }) => before == after,
        _ => false,
    }
}
