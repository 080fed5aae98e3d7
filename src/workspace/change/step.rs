//! One change of an operation: prepared without an effect, performed, and undone if a later one fails.

use std::ffi::{OsStr, OsString};
use std::io;

use cap_fs_ext::DirExt;
use cap_std::fs::{Dir, File, Metadata, Permissions};

use super::{
    Attempt, Change, ChangeFailure, Preparation, WriteError, changed_concurrently, check_inside,
    check_writable, executable_mode, write,
};
use crate::permission::Target;
use crate::platform::files::{link_count, mode, permissions_of, rename_to_new};
use crate::workspace::faults::{self, Point};
use crate::workspace::in_place::InPlace;
use crate::workspace::inspect::{InspectedPath, inspect, open_file};
use crate::workspace::journal::Recorded;
use crate::workspace::replacement::{Swap, SwapOutcome};
use crate::workspace::{FileError, FileState, make_parent, open_parent};

/// Temporary files are removed on drop.
pub(super) struct ChangeStep<'a> {
    dir: Dir,
    name: OsString,
    pub target: Target,
    plan: &'a Attempt<'a>,
    kind: ChangeStepKind<'a>,
    /// Temporary names that may exist.
    temporaries: Vec<String>,
}

enum ChangeStepKind<'a> {
    Create { temporary: String, content: &'a [u8] },
    Replace { temporary: String, content: &'a [u8], old: Option<String>, spare: String },
    WriteInPlace { file: InPlace, content: &'a [u8] },
    Remove { temporary: String },
    Rename { to: Dir, name: OsString },
    SetExecutable { executable: bool, before: Option<Permissions> },
}

impl<'a> ChangeStep<'a> {
    pub(super) fn prepare(
        change: &'a Change,
        preparation: &mut Preparation<'a>,
    ) -> Result<Self, ChangeFailure> {
        let (target, kind) = match change {
            Change::Write { target, content, like } => {
                return Self::prepare_write(target, content, like.as_ref(), preparation);
            }
            Change::Remove { target } => {
                (target, ChangeStepKind::Remove { temporary: preparation.temporaries.name("old") })
            }
            Change::Rename { from, to } => {
                // Checked first, so that no folders are created for a missing source.
                let (dir, name) = open(from)?;
                dir.symlink_metadata(name).map_err(|error| FileError::io(&from.path, &error))?;
                let (dir, name) = open_or_create_parent(to, &mut preparation.new_folders)?;
                if dir.symlink_metadata(&name).is_ok() {
                    return Err(FileError::Unsuitable(format!("{} exists already", to.path.display())).into());
                }
                (from, ChangeStepKind::Rename { to: dir, name })
            }
            Change::SetExecutable { target, executable } => {
                let (dir, name) = open_or_create_parent(target, &mut preparation.new_folders)?;
                let plan = preparation.plan;
                let kind = ChangeStepKind::SetExecutable { executable: *executable, before: None };
                return Ok(Self { dir, name, target: target.clone(), plan, kind, temporaries: Vec::new() });
            }
        };
        let (dir, name) = open(target)?;
        let metadata = dir.symlink_metadata(&name).map_err(|error| FileError::io(&target.path, &error))?;
        if matches!(kind, ChangeStepKind::Remove { .. }) && metadata.is_dir() {
            let path = target.path.display();
            let text = format!("{path} is a directory; only files are deleted");
            return Err(FileError::Unsuitable(text).into());
        }
        let plan = preparation.plan;
        Ok(Self { dir, name, target: target.clone(), plan, kind, temporaries: Vec::new() })
    }

    fn prepare_write(
        target: &'a Target,
        content: &'a [u8],
        like: Option<&Target>,
        preparation: &mut Preparation<'a>,
    ) -> Result<Self, ChangeFailure> {
        let Preparation { plan, temporaries, new_folders } = preparation;
        let plan = *plan;
        let (dir, name) = open_or_create_parent(target, new_folders)?;
        let old_metadata = check_writable(&dir, &name, target)?;
        let temporary = temporaries.name("tmp");
        let kind = match &old_metadata {
            None => ChangeStepKind::Create { temporary: temporary.clone(), content },
            Some(found) if plan.in_place.contains(&target.path) => {
                let opened = InPlace::open(&dir, &name, found, content_before(target, plan)?);
                let file = opened.map_err(|error| FileError::io(&target.path, &error))?;
                ChangeStepKind::WriteInPlace { file, content }
            }
            Some(found) => {
                check_names(target, found)?;
                let spare = temporaries.name("old");
                ChangeStepKind::Replace { temporary: temporary.clone(), content, old: None, spare }
            }
        };
        let mut step = Self { dir, name, target: target.clone(), plan, kind, temporaries: Vec::new() };
        let source = match (like, &old_metadata) {
            (Some(like), _) => Some(open(like)?),
            (None, Some(_)) => {
                Some((step.dir.try_clone().map_err(|error| step.failed(&error))?, step.name.clone()))
            }
            (None, None) => None,
        };
        if !matches!(step.kind, ChangeStepKind::WriteInPlace { .. }) {
            step.temporaries.push(temporary.clone());
            let like = match source {
                Some((dir, name)) => Some(open_file(&dir, &name).map_err(|error| step.failed(&error))?.0),
                None => None,
            };
            step.write_temporary(&temporary, content, like.as_ref())?;
        }
        Ok(step)
    }

    /// The new file gets owner, mode and attributes of `like`.
    fn write_temporary(
        &self,
        temporary: &str,
        content: &[u8],
        like: Option<&File>,
    ) -> Result<(), ChangeFailure> {
        let is_replaced = matches!(self.kind, ChangeStepKind::Replace { .. });
        let Err(failure) = write(&self.dir, temporary, content, like) else { return Ok(()) };
        match failure {
            // A new file need not have the owner of its source.
            WriteError::Identity(_) if !is_replaced => self.write_as_own(temporary, content, like),
            WriteError::Identity(error) => Err(self.unreplaceable(&error)),
            WriteError::Create(error) if is_replaced && is_denied(&error) => Err(self.unreplaceable(&error)),
            WriteError::Create(error) | WriteError::Content(error) => Err(self.failed(&error).into()),
        }
    }

    /// Writes a new file with the mode of its source only.
    fn write_as_own(
        &self,
        temporary: &str,
        content: &[u8],
        like: Option<&File>,
    ) -> Result<(), ChangeFailure> {
        let failed = |error: io::Error| ChangeFailure::from(self.failed(&error));
        self.dir.remove_file(temporary).map_err(failed)?;
        write(&self.dir, temporary, content, None).map_err(|error| failed(error.into()))?;
        if let Some(like) = like {
            let permissions = like.metadata().map_err(failed)?.permissions();
            self.dir.set_permissions(temporary, permissions).map_err(failed)?;
        }
        Ok(())
    }

    /// `is_touched`: an earlier step has changed the path, so its state in the recorder no longer applies.
    pub(super) fn perform(&mut self, is_touched: bool) -> Result<(), ChangeFailure> {
        let (plan, target) = (self.plan, &self.target);
        let is_unchanged = |now: Option<&Metadata>| is_touched || plan.recorder.is_unchanged(target, now);
        let expected = plan.recorder.state(target).filter(|_| !is_touched);
        // A swap compares the entry right before and after it.
        let is_swap = matches!(self.kind, ChangeStepKind::Replace { .. } | ChangeStepKind::Remove { .. });
        if !is_swap && !is_unchanged(None) {
            return Err(changed_concurrently(&target.path).into());
        }
        let outcome = match &mut self.kind {
            ChangeStepKind::Replace { temporary, old, spare, .. } => {
                let swap = Swap { dir: &self.dir, name: &self.name, temporary, expected };
                match swap.replace(|now| is_unchanged(Some(now))) {
                    Ok(SwapOutcome::Done) => {
                        *old = Some(temporary.clone());
                        Ok(SwapOutcome::Done)
                    }
                    Ok(SwapOutcome::Unsupported) => {
                        let failed = |error: io::Error| FileError::io(&target.path, &error);
                        // A single rename is atomic and needs no backup.
                        if plan.changes.len() > 1 {
                            self.dir.hard_link(&self.name, &self.dir, &spare).map_err(failed)?;
                            self.temporaries.push(spare.clone());
                            *old = Some(spare.clone());
                        }
                        self.dir.rename(temporary, &self.dir, &self.name).map_err(failed)?;
                        Ok(SwapOutcome::Done)
                    }
                    outcome => outcome,
                }
            }
            ChangeStepKind::Remove { temporary } => {
                self.temporaries.push(temporary.clone());
                let swap = Swap { dir: &self.dir, name: &self.name, temporary, expected };
                swap.set_aside(|now| is_unchanged(Some(now)))
            }
            ChangeStepKind::Create { temporary, .. } => faults::check(Point::Rename)
                .and_then(|()| rename_to_new((&self.dir, temporary.as_ref()), (&self.dir, &self.name)))
                .map(|()| SwapOutcome::Done),
            ChangeStepKind::Rename { to, name } => faults::check(Point::Rename)
                .and_then(|()| rename_to_new((&self.dir, &self.name), (to, name)))
                .map(|()| SwapOutcome::Done),
            ChangeStepKind::SetExecutable { executable, before } => {
                let replaced = set_executable(&self.dir, &self.name, *executable);
                replaced.map(|replaced| {
                    *before = Some(replaced);
                    SwapOutcome::Done
                })
            }
            ChangeStepKind::WriteInPlace { file, content } => match file.write(content) {
                Ok(()) => Ok(SwapOutcome::Done),
                Err(failure) => {
                    let error = FileError::io(&target.path, &failure.error);
                    return Err(ChangeFailure { error, is_clean: failure.is_clean, unreplaceable: None });
                }
            },
        };
        match outcome {
            Ok(SwapOutcome::Done) => Ok(()),
            Ok(SwapOutcome::Unsupported) => Err(self.failed(&io::ErrorKind::Unsupported.into()).into()),
            Ok(SwapOutcome::Changed) => Err(changed_concurrently(&target.path).into()),
            Ok(SwapOutcome::Stranded) => Err(self.stranded().into()),
            Err(error) if matches!(self.kind, ChangeStepKind::Replace { .. }) && is_denied(&error) => {
                Err(self.unreplaceable(&error))
            }
            Err(error) => Err(self.failed(&error).into()),
        }
    }

    /// Returns true on success. Keeps a file that another program has changed since.
    pub(super) fn undo(&mut self) -> bool {
        let undone = match &mut self.kind {
            ChangeStepKind::WriteInPlace { file, .. } => file.undo(),
            // A rename needs no space, also on a disk that stays full.
            _ => faults::without(|| self.move_back()),
        };
        if let Err(error) = &undone {
            tracing::error!(%error, path = %self.target.path.display(), "a change could not be reverted");
            // The text is in it.
            self.temporaries.clear();
        }
        undone.is_ok()
    }

    fn move_back(&self) -> io::Result<()> {
        let place = (&self.dir, self.name.as_os_str());
        match &self.kind {
            ChangeStepKind::SetExecutable { before: Some(before), .. } => {
                open_file(&self.dir, &self.name)?.0.set_permissions(before.clone())
            }
            ChangeStepKind::Rename { to, name } => rename_to_new((to, name), place),
            ChangeStepKind::Remove { temporary } => rename_to_new((&self.dir, temporary.as_ref()), place),
            ChangeStepKind::Replace { old: Some(old), content, .. } => {
                let written = self.written_state(content)?;
                match self.swap(old, written.as_ref()).replace(|_| true)? {
                    SwapOutcome::Unsupported => self.dir.rename(old, &self.dir, &self.name),
                    outcome => is_done(outcome),
                }
            }
            ChangeStepKind::Create { temporary, content } => {
                let written = self.written_state(content)?;
                is_done(self.swap(temporary, written.as_ref()).set_aside(|_| true)?)
            }
            ChangeStepKind::SetExecutable { before: None, .. }
            | ChangeStepKind::Replace { old: None, .. }
            | ChangeStepKind::WriteInPlace { .. } => Ok(()),
        }
    }

    fn swap<'s>(&'s self, temporary: &'s str, expected: Option<&'s FileState>) -> Swap<'s> {
        Swap { dir: &self.dir, name: &self.name, temporary, expected }
    }

    /// State of the file that this step has written. `None` if it is too large to compare.
    ///
    /// # Errors
    /// Returns an error if another program has changed the file.
    fn written_state(&self, content: &[u8]) -> io::Result<Option<FileState>> {
        match inspect(&self.target) {
            InspectedPath::State(state, Some(now)) if now == content => Ok(Some(state)),
            InspectedPath::State(..) => Err(changed_since()),
            InspectedPath::Unknown(_) => Ok(None),
        }
    }

    fn failed(&self, error: &io::Error) -> FileError {
        FileError::io(&self.target.path, error)
    }

    /// The temporary file has the only copy of a text.
    fn stranded(&mut self) -> FileError {
        let names = self.temporaries.join(" or ");
        self.temporaries.clear();
        let path = self.target.path.display();
        FileError::Unsuitable(format!(
            "another program changed {path} during the call, and its text could not be put back: it is in {names} beside \
             the file"
        ))
    }

    /// The file cannot be replaced, and may be written in place.
    fn unreplaceable(&self, error: &io::Error) -> ChangeFailure {
        let unreplaceable = Some(self.target.path.clone());
        ChangeFailure { error: self.failed(error), is_clean: true, unreplaceable }
    }
}

impl Drop for ChangeStep<'_> {
    fn drop(&mut self) {
        for name in &self.temporaries {
            match self.dir.remove_file_or_symlink(name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%error, file = name, "a temporary file could not be removed");
                }
                _ => {}
            }
        }
    }
}

fn changed_since() -> io::Error {
    io::Error::other("another program has changed it since")
}

fn is_done(outcome: SwapOutcome) -> io::Result<()> {
    if outcome == SwapOutcome::Done { Ok(()) } else { Err(changed_since()) }
}

/// A replacement would separate the names, and a write in place would change files outside of the decision.
fn check_names(target: &Target, found: &Metadata) -> Result<(), FileError> {
    let Some(count) = link_count(found).filter(|count| *count > 1) else { return Ok(()) };
    let path = target.path.display();
    Err(FileError::Unsuitable(format!(
        "{path} has {count} names (hard links), and an edit would change only this one. Change it with a command, which \
         decides about the others, too. Nothing was changed"
    )))
}

/// A folder without write permission, a file of another user, or a mount point.
fn is_denied(error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(error.kind(), CrossesDevices | PermissionDenied | ReadOnlyFilesystem | ResourceBusy)
}

/// The content of a file before a write in place. An interruption must not lose it, so the session store has it.
fn content_before(target: &Target, plan: &Attempt<'_>) -> Result<Vec<u8>, FileError> {
    let refused = |why: &str| {
        let path = target.path.display();
        FileError::Unsuitable(format!(
            "{path} cannot be replaced without losing its owner or attributes, and {why}. Nothing was changed"
        ))
    };
    if plan.recorded == Recorded::Unconfirmed {
        return Err(refused("the session store cannot keep its content for the case of an interruption"));
    }
    match plan.recorder.content(target) {
        Some(content) => Ok(content.to_vec()),
        None => Err(refused("it is too large to be kept for the case of an interruption")),
    }
}

pub(super) fn open(target: &Target) -> Result<(Dir, OsString), FileError> {
    check_inside(target)?;
    open_parent(target, false).map_err(|error| FileError::io(&target.path, &error))
}

fn open_or_create_parent(
    target: &Target,
    new_folders: &mut Vec<Target>,
) -> Result<(Dir, OsString), FileError> {
    check_inside(target)?;
    make_parent(target, new_folders).map_err(|error| FileError::io(&target.path, &error))
}

/// Returns the previous permissions.
fn set_executable(dir: &Dir, name: &OsStr, executable: bool) -> io::Result<Permissions> {
    let (file, metadata) = open_file(dir, name)?;
    let after = executable_mode(mode(&metadata), executable);
    file.set_permissions(permissions_of(after).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?)?;
    Ok(metadata.permissions())
}
