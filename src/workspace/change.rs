//! Applies a list of file changes, all or none: temporary files first, then renames. A failure during preparation
//! changes nothing; a later failure undoes the earlier steps. A replaced file keeps its owner, mode and attributes;
//! where it cannot, it is written in place.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use cap_std::fs::{Dir, File, Metadata, OpenOptions, Permissions};
use tokio_util::sync::CancellationToken;

use self::step::ChangeStep;
use super::change_recorder::ChangeRecorder;
use super::faults::{self, Point};
use super::journal::{Recorded, Temporaries};
use super::{FileError, remove_folders};
use crate::permission::Target;
use crate::platform::files::{check_write_access, copy_identity, mode, private};

mod step;

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

pub(super) struct Attempt<'a> {
    pub changes: &'a [Change],
    pub recorder: &'a ChangeRecorder,
    /// Files to write in place.
    pub in_place: &'a BTreeSet<PathBuf>,
    pub recorded: Recorded,
}

struct Preparation<'a> {
    plan: &'a Attempt<'a>,
    temporaries: &'a mut Temporaries,
    /// Removed again after a failure.
    new_folders: Vec<Target>,
}

#[derive(Debug)]
pub(super) struct ChangeFailure {
    pub error: FileError,
    /// True if all performed steps were undone.
    pub is_clean: bool,
    /// A file that cannot be replaced. Another attempt may write it in place.
    pub unreplaceable: Option<PathBuf>,
}

impl From<FileError> for ChangeFailure {
    fn from(error: FileError) -> Self {
        Self { error, is_clean: true, unreplaceable: None }
    }
}

pub(super) fn stopped() -> FileError {
    FileError::Unsuitable("stopped before anything was changed".into())
}

/// Applies all changes or none. Fails if a path outside of `touched` differs from its state in the recorder.
pub(super) fn carry_out(
    plan: &Attempt<'_>,
    cancel: &CancellationToken,
    touched: HashSet<PathBuf>,
    temporaries: &mut Temporaries,
) -> Result<(), ChangeFailure> {
    let mut preparation = Preparation { plan, temporaries, new_folders: Vec::new() };
    let outcome = perform(&mut preparation, cancel, touched);
    outcome.inspect_err(|_| remove_folders(&preparation.new_folders))
}

fn perform(
    preparation: &mut Preparation<'_>,
    cancel: &CancellationToken,
    mut touched: HashSet<PathBuf>,
) -> Result<(), ChangeFailure> {
    let changes = preparation.plan.changes;
    let mut steps: Vec<ChangeStep<'_>> = Vec::new();
    for change in changes {
        steps.push(ChangeStep::prepare(change, preparation)?);
    }
    if cancel.is_cancelled() {
        return Err(stopped().into());
    }
    for (at, change) in changes.iter().enumerate() {
        let is_touched = touched.contains(&steps[at].target.path);
        if let Err(mut failure) = steps[at].perform(is_touched) {
            let mut not_undone: Vec<String> = Vec::new();
            for step in steps[..at].iter_mut().rev() {
                if !step.undo() {
                    not_undone.push(step.target.path.display().to_string());
                }
            }
            if !not_undone.is_empty() {
                failure.is_clean = false;
                let text =
                    format!("{}. Not put back, so read it again: {}", failure.error, not_undone.join(", "));
                failure.error = FileError::Unsuitable(text);
            }
            return Err(failure);
        }
        touched.extend(change.targets().map(|target| target.path.clone()));
    }
    Ok(())
}

pub(super) fn changed_concurrently(path: &Path) -> FileError {
    let path = path.display();
    FileError::Unsuitable(format!("{path} changed during the call. Read it again"))
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
        Ok(found) => match check_write_access(dir, name) {
            Ok(()) => Ok(Some(found)),
            // A replacement of the file would need the rights of its folder only.
            Err(error) => Err(FileError::Unsuitable(format!("{path} cannot be written: {}", reason(&error)))),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::io(&target.path, &error)),
    }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only".into(),
        _ => error.to_string(),
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

pub(super) fn executable_mode(before: u32, executable: bool) -> u32 {
    if executable { before | ((before & 0o444) >> 2) } else { before & !0o111 }
}

/// The step at which a file could not be written.
#[derive(Debug)]
pub(super) enum WriteError {
    Create(io::Error),
    /// It cannot get the owner or an attribute of the replaced file.
    Identity(io::Error),
    Content(io::Error),
}

impl From<WriteError> for io::Error {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Create(error) | WriteError::Identity(error) | WriteError::Content(error) => error,
        }
    }
}

/// Writes a new file with the owner, mode and attributes of another one.
pub(super) fn write(dir: &Dir, name: &str, content: &[u8], like: Option<&File>) -> Result<(), WriteError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if like.is_some() {
        // Other users must not read the content before the file has its final permissions.
        private(&mut options);
    }
    let opened = faults::check(Point::Create).and_then(|()| dir.open_with(name, &options));
    let mut file = opened.map_err(WriteError::Create)?;
    if let Some(like) = like {
        let copied = faults::check(Point::Identity).and_then(|()| copy_identity(like, &file));
        copied.map_err(WriteError::Identity)?;
    }
    faults::write_all(&mut file, content).map_err(WriteError::Content)?;
    match like.map(special_permissions).transpose().map_err(WriteError::Identity)? {
        Some(Some(permissions)) => file.set_permissions(permissions).map_err(WriteError::Identity),
        _ => Ok(()),
    }
}

/// Permissions with setuid or setgid bits, which the system takes away when an ordinary user writes. `None` without
/// such a bit.
pub(super) fn special_permissions(file: &File) -> io::Result<Option<Permissions>> {
    let metadata = file.metadata()?;
    Ok((mode(&metadata) & 0o6000 != 0).then(|| metadata.permissions()))
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
