//! Changing files, all of a list or none of it: temporary files and backups first, then renames.
//!
//! Whatever can fail does so before anything has changed. Mode bits of a file that is replaced are kept, and a file that
//! was reached through a symbolic link is replaced at its real place, so that the link stays.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use cap_std::fs::{Dir, OpenOptions, Permissions};
use tokio_util::sync::CancellationToken;

use super::look::{self, mode, open_file};
use super::witness::Witness;
use super::{Changes, FileError, Way, Workspace, open_parent};
use crate::permission::Target;

/// One change to the file tree.
#[derive(Debug, Clone)]
pub enum Change {
    /// Puts a content in the place of a file, or where there was none.
    Write {
        /// Where; missing folders are created.
        target: Target,
        /// The whole content.
        content: Vec<u8>,
        /// A new file gets the mode bits of this one.
        like: Option<Target>,
    },
    /// Removes a file or a link.
    Remove {
        /// Which; see [`Workspace::resolve_entry`].
        target: Target,
    },
    /// Gives a file, a link or a folder another name.
    Rename {
        /// Which; see [`Workspace::resolve_entry`].
        from: Target,
        /// Where nothing may stand yet.
        to: Target,
    },
    /// Makes a regular file executable for whoever may read it, or for nobody. The file may come from a change before this.
    SetExecutable {
        /// Which.
        target: Target,
        /// Whether it becomes executable.
        executable: bool,
    },
}

impl Workspace {
    /// Makes all the changes, or none, and says what changed. `cancel` is looked at once everything is prepared: cancelled,
    /// nothing happens.
    ///
    /// # Errors
    /// A place lies outside the roots, a file is read-only or of the wrong kind, a name is taken, the disk says no, or
    /// `cancel` was cancelled. In each case nothing has changed but, possibly, new empty folders.
    pub fn apply(&self, changes: &[Change], cancel: &CancellationToken) -> Result<Changes, FileError> {
        // One change is one rename or removal, which the file system makes whole; only more need a way back.
        let backup = changes.len() > 1;
        let stopped = || FileError::Unsuitable("stopped before anything was changed".into());
        if cancel.is_cancelled() {
            return Err(stopped());
        }
        let witness = Witness::before(self, changes);
        let mut steps: Vec<Step> = Vec::new();
        for change in changes {
            steps.push(Step::prepare(change, backup)?);
        }
        if cancel.is_cancelled() {
            return Err(stopped());
        }
        for at in 0..steps.len() {
            if let Err(error) = steps[at].perform() {
                for done in steps[..at].iter_mut().rev() {
                    done.undo();
                }
                return Err(error);
            }
        }
        Ok(witness.after())
    }

    /// Makes way for somebody else who is to write a file: looks whether it could be written here, and makes the folders that
    /// are missing. What it returns says later what has changed, or takes the folders back.
    ///
    /// # Errors
    /// As for [`Self::apply`]: it could not be written here either.
    pub fn make_way(&self, target: &Target) -> Result<Way, FileError> {
        let change = Change::Write { target: target.clone(), content: Vec::new(), like: None };
        let way = Way::to(target, Witness::before(self, &[change]));
        let (dir, name) = open(target, true).inspect_err(|_| way.take_back())?;
        let kind = Kind::Write { temporary: unused_name("tmp"), done: false };
        Step { dir, name, target: target.clone(), kind, backup: None }.look(false)?;
        Ok(way)
    }
}

/// A change that is prepared: what it needs is on the disk, under names that are removed again when it is dropped.
struct Step {
    dir: Dir,
    name: OsString,
    target: Target,
    kind: Kind,
    /// Another name of the file that is replaced or removed.
    backup: Option<String>,
}

enum Kind {
    Write {
        temporary: String,
        done: bool,
    },
    Remove,
    Rename {
        to: Dir,
        name: OsString,
    },
    /// `before` holds the permission bits that were replaced.
    SetExecutable {
        executable: bool,
        before: Option<Permissions>,
    },
}

impl Step {
    fn prepare(change: &Change, backup: bool) -> Result<Self, FileError> {
        let (target, kind) = match change {
            Change::Write { target, .. } => {
                (target, Kind::Write { temporary: unused_name("tmp"), done: false })
            }
            Change::Remove { target } => (target, Kind::Remove),
            Change::Rename { from, to } => {
                let (dir, name) = open(to, true)?;
                if dir.symlink_metadata(&name).is_ok() {
                    return Err(FileError::Unsuitable(format!("{} exists already", to.path.display())));
                }
                (from, Kind::Rename { to: dir, name })
            }
            Change::SetExecutable { target, executable } => {
                let kind = Kind::SetExecutable { executable: *executable, before: None };
                let (dir, name) = open(target, true)?;
                return Ok(Self { dir, name, target: target.clone(), kind, backup: None });
            }
        };
        let (dir, name) = open(target, matches!(change, Change::Write { .. }))?;
        let mut step = Self { dir, name, target: target.clone(), kind, backup: None };
        let found = step.look(backup)?;
        if let (Change::Write { content, like, .. }, Kind::Write { temporary, .. }) = (change, &step.kind) {
            let found = match like {
                Some(like) => Some(permissions(like)?),
                None => found,
            };
            let written = write(&step.dir, temporary, content, found.as_ref());
            written.map_err(|error| step.failed(&error))?;
        }
        Ok(step)
    }

    /// Looks at what stands there, and gives it a second name if there is to be a way back.
    fn look(&mut self, backup: bool) -> Result<Option<Permissions>, FileError> {
        let path = self.target.path.display();
        let found = match self.dir.symlink_metadata(&self.name) {
            Ok(found) => found,
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && matches!(self.kind, Kind::Write { .. }) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(self.failed(&error)),
        };
        match self.kind {
            Kind::Rename { .. } | Kind::SetExecutable { .. } => return Ok(None),
            Kind::Write { .. } if !found.is_file() => {
                return Err(FileError::Unsuitable(format!("{path} is not a regular file")));
            }
            Kind::Write { .. } if found.permissions().readonly() => {
                return Err(FileError::Unsuitable(format!("{path} is read-only")));
            }
            Kind::Remove if found.is_dir() => {
                return Err(FileError::Unsuitable(format!("{path} is a directory; only files are deleted")));
            }
            Kind::Write { .. } | Kind::Remove => {}
        }
        if backup {
            let name = unused_name("old");
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
            Kind::Write { temporary, .. } => self.dir.rename(temporary, &self.dir, &self.name),
            Kind::Remove => self.dir.remove_file(&self.name),
            Kind::Rename { to, name } => self.dir.rename(&self.name, to, name),
            Kind::SetExecutable { .. } => Ok(()),
        };
        done.map_err(|error| self.failed(&error))?;
        if let Kind::Write { done, .. } = &mut self.kind {
            *done = true;
        }
        Ok(())
    }

    /// Takes a performed step back.
    fn undo(&mut self) {
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
        if let Err(error) = undone {
            tracing::error!(%error, path = %self.target.path.display(), "a change could not be taken back");
        }
    }

    fn failed(&self, error: &io::Error) -> FileError {
        FileError::io(&self.target.path, error)
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let temporary = match &self.kind {
            Kind::Write { temporary, done: false } => Some(temporary),
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

fn open(target: &Target, create: bool) -> Result<(Dir, OsString), FileError> {
    if target.inside.is_none() {
        // The decision comes before; this is the second lock on the same door.
        let text = format!("{} is outside the session's folders", target.path.display());
        return Err(FileError::Unsuitable(text));
    }
    open_parent(target, create).map_err(|error| FileError::io(&target.path, &error))
}

fn permissions(target: &Target) -> Result<Permissions, FileError> {
    let (dir, name) = open(target, false)?;
    let found = dir.symlink_metadata(name).map_err(|error| FileError::io(&target.path, &error))?;
    Ok(found.permissions())
}

/// Sets or clears the executable bits of a regular file, and returns the permissions that it had.
fn set_executable(dir: &Dir, name: &OsStr, executable: bool) -> io::Result<Permissions> {
    let (file, metadata) = open_file(dir, name)?;
    let before = mode(&metadata);
    let after = if executable { before | ((before & 0o444) >> 2) } else { before & !0o111 };
    let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
    file.set_permissions(look::permissions(after).ok_or_else(unsupported)?)?;
    Ok(metadata.permissions())
}

/// Makes a file with a content and mode bits, if they are given.
pub(super) fn write(
    dir: &Dir,
    name: &str,
    content: &[u8],
    permissions: Option<&Permissions>,
) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if permissions.is_some() {
        // Nobody else reads the content before the file has the rights of the one that it replaces.
        use cap_std::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let mut file = dir.open_with(name, &options)?;
    if let Some(permissions) = permissions {
        dir.set_permissions(name, permissions.clone())?;
    }
    file.write_all(content)
}

/// A name that nothing has.
pub(super) fn unused_name(ending: &str) -> String {
    format!(".modegate-{}.{ending}", uuid::Uuid::now_v7().simple())
}
