//! Applies a list of file changes, all or none: temporary files and backups first, then renames. A failure
//! during preparation changes nothing; a later failure undoes the earlier steps. A replaced file keeps its
//! mode bits.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cap_std::fs::{Dir, Metadata, OpenOptions, Permissions};
use tokio_util::sync::CancellationToken;

use super::change_recorder::ChangeRecorder;
use super::inspect::open_file;
use super::journal::Temporaries;
use super::{FileError, make_parent, open_parent, remove_folders};
use crate::permission::Target;
use crate::platform::files::{mode, permissions_of, private, rename_to_new};

#[derive(Debug, Clone)]
pub enum Change {
    Write {
        target: Target,
        content: Vec<u8>,
        /// Source of the mode bits, instead of the replaced file.
        like: Option<Target>,
    },
    Remove {
        target: Target,
    },
    /// Fails if `to` exists.
    Rename {
        from: Target,
        to: Target,
    },
    /// Sets the executable bit of each class with the read bit, or clears all executable bits.
    SetExecutable {
        target: Target,
        executable: bool,
    },
}

impl Change {
    /// The files that are written, moved or removed.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        let (first, second) = match self {
            Self::Write { target, .. } | Self::Remove { target } | Self::SetExecutable { target, .. } => {
                (target, None)
            }
            Self::Rename { from, to } => (from, Some(to)),
        };
        std::iter::once(first).chain(second)
    }
}

pub(super) struct Failure {
    pub error: FileError,
    /// True if all performed steps were undone.
    pub is_clean: bool,
}

pub(super) fn stopped() -> FileError {
    FileError::Unsuitable("stopped before anything was changed".into())
}

/// Applies all changes or none. Fails if a path outside of `touched` differs from its state in `recorder`.
pub(super) fn carry_out(
    changes: &[Change],
    cancel: &CancellationToken,
    recorder: &ChangeRecorder,
    touched: HashSet<PathBuf>,
    temporaries: &mut Temporaries,
) -> Result<(), Failure> {
    let mut made = Vec::new();
    let mut is_clean = true;
    let outcome = perform(changes, cancel, (recorder, touched), temporaries, (&mut made, &mut is_clean));
    outcome.map_err(|error| {
        remove_folders(&made);
        Failure { error, is_clean }
    })
}

fn perform(
    changes: &[Change],
    cancel: &CancellationToken,
    (recorder, mut done): (&ChangeRecorder, HashSet<PathBuf>),
    temporaries: &mut Temporaries,
    (made, is_clean): (&mut Vec<Target>, &mut bool),
) -> Result<(), FileError> {
    // A single rename or removal is atomic and needs no backup.
    let backup = changes.len() > 1;
    let mut steps: Vec<Step> = Vec::new();
    for change in changes {
        steps.push(Step::prepare(change, backup, temporaries, made)?);
    }
    if cancel.is_cancelled() {
        return Err(stopped());
    }
    for at in 0..steps.len() {
        let path = steps[at].target.path.clone();
        // An earlier step may have changed the path.
        let is_unchanged = done.contains(&path) || recorder.is_unchanged(&steps[at].target);
        let outcome = if is_unchanged { steps[at].perform() } else { Err(changed_concurrently(&path)) };
        if let Err(error) = outcome {
            for step in steps[..at].iter_mut().rev() {
                *is_clean &= step.undo();
            }
            return Err(error);
        }
        done.insert(path);
        if let Change::Rename { to, .. } = &changes[at] {
            done.insert(to.path.clone());
        }
    }
    Ok(())
}

fn changed_concurrently(path: &Path) -> FileError {
    let path = path.display();
    FileError::Unsuitable(format!("{path} changed during the call. Read it again"))
}

/// Temporary files and backups are removed on drop.
struct Step {
    dir: Dir,
    name: OsString,
    target: Target,
    kind: Kind,
    /// Hard link to the file that is replaced or removed.
    backup: Option<String>,
}

enum Kind {
    Write { temporary: String, is_new: bool, done: bool },
    Remove,
    Rename { to: Dir, name: OsString },
    SetExecutable { executable: bool, before: Option<Permissions> },
}

impl Step {
    fn prepare(
        change: &Change,
        backup: bool,
        temporaries: &mut Temporaries,
        made: &mut Vec<Target>,
    ) -> Result<Self, FileError> {
        let (target, kind) = match change {
            Change::Write { target, .. } => {
                (target, Kind::Write { temporary: temporaries.name("tmp"), is_new: false, done: false })
            }
            Change::Remove { target } => (target, Kind::Remove),
            Change::Rename { from, to } => {
                // Checked first, so that no folders are created for a missing source.
                let (dir, name) = open(from)?;
                dir.symlink_metadata(name).map_err(|error| FileError::io(&from.path, &error))?;
                let (dir, name) = make(to, made)?;
                if dir.symlink_metadata(&name).is_ok() {
                    return Err(FileError::Unsuitable(format!("{} exists already", to.path.display())));
                }
                (from, Kind::Rename { to: dir, name })
            }
            Change::SetExecutable { target, executable } => {
                let kind = Kind::SetExecutable { executable: *executable, before: None };
                let (dir, name) = make(target, made)?;
                return Ok(Self { dir, name, target: target.clone(), kind, backup: None });
            }
        };
        let (dir, name) = match change {
            Change::Write { .. } => make(target, made)?,
            Change::Remove { .. } | Change::Rename { .. } | Change::SetExecutable { .. } => open(target)?,
        };
        let mut step = Self { dir, name, target: target.clone(), kind, backup: None };
        let found = step.inspect(backup, temporaries)?;
        if let (Change::Write { content, like, .. }, Kind::Write { temporary, is_new, .. }) =
            (change, &mut step.kind)
        {
            *is_new = found.is_none();
            let found = match like {
                Some(like) => Some(permissions(like)?),
                None => found,
            };
            let written = write(&step.dir, temporary, content, found.as_ref());
            written.map_err(|error| step.failed(&error))?;
        }
        Ok(step)
    }

    fn inspect(
        &mut self,
        backup: bool,
        temporaries: &mut Temporaries,
    ) -> Result<Option<Permissions>, FileError> {
        let found = match self.kind {
            Kind::Write { .. } => match check_writable(&self.dir, &self.name, &self.target)? {
                Some(found) => found,
                None => return Ok(None),
            },
            Kind::Rename { .. } | Kind::Remove | Kind::SetExecutable { .. } => {
                self.dir.symlink_metadata(&self.name).map_err(|error| self.failed(&error))?
            }
        };
        match self.kind {
            Kind::Rename { .. } | Kind::SetExecutable { .. } => return Ok(None),
            Kind::Remove if found.is_dir() => {
                let path = self.target.path.display();
                return Err(FileError::Unsuitable(format!("{path} is a directory; only files are deleted")));
            }
            Kind::Write { .. } | Kind::Remove => {}
        }
        if backup {
            let name = temporaries.name("old");
            self.dir.hard_link(&self.name, &self.dir, &name).map_err(|error| self.failed(&error))?;
            self.backup = Some(name);
        }
        Ok(Some(found.permissions()))
    }

    fn perform(&mut self) -> Result<(), FileError> {
        if let Kind::SetExecutable { executable, before } = &mut self.kind {
            let replaced = set_executable(&self.dir, &self.name, *executable);
            *before = Some(replaced.map_err(|error| FileError::io(&self.target.path, &error))?);
            return Ok(());
        }
        let done = match &self.kind {
            Kind::Write { temporary, is_new: true, .. } => {
                rename_to_new((&self.dir, temporary.as_ref()), (&self.dir, &self.name))
            }
            Kind::Write { temporary, .. } => self.dir.rename(temporary, &self.dir, &self.name),
            Kind::Remove => self.dir.remove_file(&self.name),
            Kind::Rename { to, name } => rename_to_new((&self.dir, &self.name), (to, name)),
            Kind::SetExecutable { .. } => Ok(()),
        };
        done.map_err(|error| self.failed(&error))?;
        if let Kind::Write { done, .. } = &mut self.kind {
            *done = true;
        }
        Ok(())
    }

    fn undo(&mut self) -> bool {
        let undone = match (&self.kind, self.backup.take()) {
            (Kind::SetExecutable { before, .. }, _) => match before {
                Some(before) => open_file(&self.dir, &self.name)
                    .and_then(|(file, _)| file.set_permissions(before.clone())),
                None => Ok(()),
            },
            (Kind::Rename { to, name }, _) => to.rename(name, &self.dir, &self.name),
            (_, Some(backup)) => self.dir.rename(backup, &self.dir, &self.name),
            (_, None) => self.dir.remove_file(&self.name),
        };
        if let Err(error) = &undone {
            tracing::error!(%error, path = %self.target.path.display(), "a change could not be reverted");
        }
        undone.is_ok()
    }

    fn failed(&self, error: &io::Error) -> FileError {
        FileError::io(&self.target.path, error)
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let temporary = match &self.kind {
            Kind::Write { temporary, done: false, .. } => Some(temporary),
            _ => None,
        };
        for name in temporary.into_iter().chain(&self.backup) {
            match self.dir.remove_file(name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%error, file = name, "a temporary file could not be removed");
                }
                _ => {}
            }
        }
    }
}

/// Returns `None` if nothing exists at the target.
pub(super) fn check_writable(
    dir: &Dir,
    name: &OsStr,
    target: &Target,
) -> Result<Option<Metadata>, FileError> {
    let path = target.path.display();
    match dir.symlink_metadata(name) {
        Ok(found) if !found.is_file() => Err(FileError::Unsuitable(format!("{path} is not a regular file"))),
        Ok(found) if found.permissions().readonly() => {
            Err(FileError::Unsuitable(format!("{path} is read-only")))
        }
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::io(&target.path, &error)),
    }
}

/// Second check, after the permission decision.
pub(super) fn check_inside(target: &Target) -> Result<(), FileError> {
    if target.inside.is_none() {
        let text = format!("{} is outside the session's folders", target.path.display());
        return Err(FileError::Unsuitable(text));
    }
    Ok(())
}

fn open(target: &Target) -> Result<(Dir, OsString), FileError> {
    check_inside(target)?;
    open_parent(target, false).map_err(|error| FileError::io(&target.path, &error))
}

fn make(target: &Target, made: &mut Vec<Target>) -> Result<(Dir, OsString), FileError> {
    check_inside(target)?;
    make_parent(target, made).map_err(|error| FileError::io(&target.path, &error))
}

fn permissions(target: &Target) -> Result<Permissions, FileError> {
    let (dir, name) = open(target)?;
    let found = dir.symlink_metadata(name).map_err(|error| FileError::io(&target.path, &error))?;
    Ok(found.permissions())
}

pub(super) fn executable_mode(before: u32, executable: bool) -> u32 {
    if executable { before | ((before & 0o444) >> 2) } else { before & !0o111 }
}

/// Returns the previous permissions.
fn set_executable(dir: &Dir, name: &OsStr, executable: bool) -> io::Result<Permissions> {
    let (file, metadata) = open_file(dir, name)?;
    let after = executable_mode(mode(&metadata), executable);
    let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
    file.set_permissions(permissions_of(after).ok_or_else(unsupported)?)?;
    Ok(metadata.permissions())
}

pub(super) fn write(
    dir: &Dir,
    name: &str,
    content: &[u8],
    permissions: Option<&Permissions>,
) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if permissions.is_some() {
        // Other users must not read the content before the file has its final permissions.
        private(&mut options);
    }
    let mut file = dir.open_with(name, &options)?;
    if let Some(permissions) = permissions {
        dir.set_permissions(name, permissions.clone())?;
    }
    file.write_all(content)
}
