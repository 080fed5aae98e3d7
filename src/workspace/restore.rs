//! Putting back what changed, all of it or nothing: whatever can stand in the way is looked for before anything is touched.
//!
//! Only what is as it was left is put back: a path that somebody has changed since is named, and nothing happens. Every path
//! is opened component by component without following links, and what belongs to version control is never written.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Component, Path, PathBuf};

use cap_fs_ext::DirExt;
use cap_std::fs::Dir;

use super::change::write;
use super::file_state::gaps;
use super::inspect::{Found, blocks, inspect, open_file, permissions};
use super::journal::{Intent, Temporaries};
use super::{Changed, FileState, Gap, Workspace, compose, is_version_control, open_dir, open_parent};
use crate::ids::hash_bytes;
use crate::permission::Target;

/// Why nothing, or not everything, was put back. The text is for people; paths are absolute.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Somebody else changed some of these. Nothing was put back.
    #[error("{}", conflicts(since, between))]
    Conflict {
        /// These are not as they were left.
        since: Vec<PathBuf>,
        /// These were changed between two changes that are to be put back.
        between: Vec<Gap>,
    },
    /// The contents of these are not at hand. Nothing was put back.
    #[error("the earlier content is not kept, so nothing was put back: {}", list(.0))]
    Missing(Vec<PathBuf>),
    /// These are not below the session's folders, or belong to version control. Nothing was put back.
    #[error("outside of what may be put back, so nothing was: {}", list(.0))]
    Outside(Vec<PathBuf>),
    /// The disk said no in the middle.
    #[error(
        "{}: {reason}. Put back: {}. Not put back: {}",
        path.display(),
        list(restored),
        list(missing)
    )]
    Stopped {
        /// Where.
        path: PathBuf,
        /// The system's reason.
        reason: String,
        /// What is as it was before.
        restored: Vec<PathBuf>,
        /// What is not.
        missing: Vec<PathBuf>,
    },
}

fn list(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "nothing".into();
    }
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn conflicts(since: &[PathBuf], between: &[Gap]) -> String {
    let mut text = Vec::new();
    if !since.is_empty() {
        text.push(format!("changed since, so nothing was put back: {}", list(since)));
    }
    let gap = |Gap { path, number, of }: &Gap| {
        format!("{} (before change {number} of {of}, from which on it could be undone)", path.display())
    };
    if !between.is_empty() {
        text.push(format!(
            "changed between two of the agent's changes, by you, another program or an uncovered command, so nothing was put \
             back: {}",
            between.iter().map(gap).collect::<Vec<_>>().join(", ")
        ));
    }
    text.join("; ")
}

impl Workspace {
    /// The paths that are not as `changed.after` says any more, in path order. A folder is as it was left as long as it is a folder.
    pub fn conflicts(&self, changed: &[Changed]) -> Vec<PathBuf> {
        let list = compose(changed.iter().cloned());
        list.iter().filter(|changed| !self.is_as_left(changed)).map(|changed| changed.path.clone()).collect()
    }

    /// Puts everything back as it was before, and names the folders that were created and are left because something else
    /// lies in them by now. `content` finds a content by its hash. Changes of one path count as one, in their order. The names
    /// of temporary files have `token` in them; see [`Self::announce_restore`].
    ///
    /// # Errors
    /// Something is not as it was left, a content is missing or a path is not below the roots: nothing has happened. Or the disk
    /// said no, and the error says what was put back and what was not.
    pub fn restore(
        &self,
        changed: &[Changed],
        content: impl Fn(&str) -> Option<Vec<u8>>,
        token: &str,
    ) -> Result<Vec<PathBuf>, RestoreError> {
        let list = compose(changed.iter().cloned());
        let outside = paths_of(list.iter().filter(|changed| !self.may_restore(&changed.path)));
        if !outside.is_empty() {
            return Err(RestoreError::Outside(outside));
        }
        let since = self.obstacles(&list);
        let between = self.interruptions(&list, changed);
        if !since.is_empty() || !between.is_empty() {
            return Err(RestoreError::Conflict { since, between });
        }
        let contents = contents(&list, content)?;
        let temporaries = Temporaries::of(token.to_owned());
        let mut work = Work { contents, temporaries, steps: BTreeMap::new(), remaining_folders: Vec::new() };
        // What is as before already, there is nothing to do about: an attempt that was stopped half way did it, or the user.
        for changed in list.into_iter().filter(|changed| !self.stands(changed, &changed.before)) {
            let target = self.place(changed.path.clone());
            work.steps.insert(changed.path.clone(), Step { target, changed, is_done: false });
        }
        match work.perform() {
            Ok(()) => Ok(work.remaining_folders),
            Err((path, error)) => Err(work.stopped(path, &error)),
        }
    }

    /// The gaps between the changes of paths that would be written to.
    fn interruptions(&self, list: &[Changed], changed: &[Changed]) -> Vec<Gap> {
        let mut gaps = gaps(changed);
        let to_write = |gap: &Gap| list.iter().find(|changed| changed.path == gap.path);
        gaps.retain(|gap| to_write(gap).is_some_and(|changed| !self.stands(changed, &changed.before)));
        gaps
    }

    /// The announcement of putting things back. It only names temporary files: what a killed process did not put back, the
    /// next undo does.
    pub fn announce_restore(&self, changed: &[Changed]) -> Intent {
        let folders: BTreeSet<PathBuf> =
            changed.iter().filter_map(|changed| changed.path.parent().map(Path::to_owned)).collect();
        let token = Temporaries::new().token().to_owned();
        Intent { token, folders: folders.into_iter().collect(), ..Intent::default() }
    }

    fn is_as_left(&self, changed: &Changed) -> bool {
        self.stands(changed, &changed.before) || self.stands(changed, &changed.after)
    }

    /// Whether this stands at the path. A folder does as long as it is a folder, if that is what it was made into.
    fn stands(&self, changed: &Changed, state: &FileState) -> bool {
        let target = self.place(changed.path.clone());
        match (state, inspect(&target)) {
            (_, _) if target.inside.is_none() => false,
            (_, Found::Unknown(_)) => false,
            (FileState::Folder { .. }, Found::State(found, _)) if state == &changed.after => {
                matches!(found, FileState::Folder { .. })
            }
            (state, Found::State(found, _)) => *state == found,
        }
    }

    /// Whether a path lies below a root, as it is written, and belongs to no version control.
    fn may_restore(&self, path: &Path) -> bool {
        self.place(path.to_owned()).inside.is_some_and(|inside| {
            let is_plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
            is_plain && !inside.as_os_str().is_empty() && !is_version_control(&inside)
        })
    }

    /// Everything that stands in the way.
    fn obstacles(&self, list: &[Changed]) -> Vec<PathBuf> {
        let mut found = self.conflicts(list);
        let by_path: BTreeMap<&Path, &Changed> =
            list.iter().map(|changed| (changed.path.as_path(), changed)).collect();
        for changed in list {
            if changed.before != FileState::Absent {
                // A folder on the way has become something else, and not by one of these changes.
                match blocks(&self.place(changed.path.clone())) {
                    Ok(Some(path)) => {
                        let is_put_back = by_path
                            .get(path.as_path())
                            .is_some_and(|it| matches!(it.before, FileState::Folder { .. }));
                        if !is_put_back {
                            found.push(path);
                        }
                    }
                    Ok(None) => {}
                    Err(_) => found.push(changed.path.clone()),
                }
            }
            let makes_way = matches!(changed.before, FileState::File { .. } | FileState::Link { .. });
            if makes_way && matches!(changed.after, FileState::Folder { .. }) {
                self.strangers(&changed.path, &by_path, &mut found);
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// What lies in a folder that has to make way, and is not removed by one of the changes.
    fn strangers(&self, folder: &Path, list: &BTreeMap<&Path, &Changed>, found: &mut Vec<PathBuf>) {
        let Ok(entries) = open_dir(&self.place(folder.to_owned()))
            .and_then(|dir| dir.entries().map_err(|error| super::FileError::io(folder, &error)))
        else {
            return found.push(folder.to_owned());
        };
        for entry in entries.flatten() {
            let path = folder.join(entry.file_name());
            match list.get(path.as_path()) {
                Some(Changed { before: FileState::Absent, after: FileState::Folder { .. }, .. }) => {
                    self.strangers(&path, list, found);
                }
                Some(Changed { before: FileState::Absent, .. }) => {}
                _ => found.push(path),
            }
        }
    }
}

fn paths_of<'a>(list: impl Iterator<Item = &'a Changed>) -> Vec<PathBuf> {
    list.map(|changed| changed.path.clone()).collect()
}

/// The contents that are to be written, by their hashes.
fn contents(
    list: &[Changed],
    find: impl Fn(&str) -> Option<Vec<u8>>,
) -> Result<HashMap<String, Vec<u8>>, RestoreError> {
    let mut contents = HashMap::new();
    let mut missing = Vec::new();
    for changed in list {
        let FileState::File { hash, .. } = &changed.before else { continue };
        if contents.contains_key(hash) || is_content_there(changed) {
            continue;
        }
        match find(hash).filter(|content| hash_bytes(content) == *hash) {
            Some(content) => {
                contents.insert(hash.clone(), content);
            }
            None => missing.push(changed.path.clone()),
        }
    }
    if missing.is_empty() { Ok(contents) } else { Err(RestoreError::Missing(missing)) }
}

/// Whether the file has the content that it had, and only its mode bits differ.
fn is_content_there(changed: &Changed) -> bool {
    match (&changed.before, &changed.after) {
        (FileState::File { hash: before, .. }, FileState::File { hash: after, .. }) => before == after,
        _ => false,
    }
}

/// One path that is put back.
struct Step {
    target: Target,
    changed: Changed,
    is_done: bool,
}

struct Work {
    contents: HashMap<String, Vec<u8>>,
    temporaries: Temporaries,
    /// In path order, so that a folder comes before what lies in it.
    steps: BTreeMap<PathBuf, Step>,
    /// Folders that were created and are not empty.
    remaining_folders: Vec<PathBuf>,
}

/// A path where the disk said no, and what it said.
type Refusal = (PathBuf, io::Error);

impl Work {
    fn perform(&mut self) -> Result<(), Refusal> {
        let Self { contents, temporaries, steps, remaining_folders } = self;
        let open_up = |step: &mut Step| step.open_up();
        let put = |step: &mut Step| step.put(contents, temporaries);
        each(steps.values_mut(), open_up)?;
        each(steps.values_mut().rev(), |step| step.remove(remaining_folders))?;
        each(steps.values_mut(), put)?;
        // Last, because nothing can be put into a folder that may not be written.
        each(steps.values_mut().rev(), Step::close)?;
        remaining_folders.sort();
        Ok(())
    }

    fn stopped(self, path: PathBuf, error: &io::Error) -> RestoreError {
        let (done, open): (Vec<_>, Vec<_>) = self.steps.into_iter().partition(|(_, step)| step.is_done);
        let paths = |steps: Vec<(PathBuf, Step)>| steps.into_iter().map(|(path, _)| path).collect();
        RestoreError::Stopped { path, reason: error.to_string(), restored: paths(done), missing: paths(open) }
    }
}

fn each<'a>(
    steps: impl Iterator<Item = &'a mut Step>,
    mut work: impl FnMut(&mut Step) -> io::Result<()>,
) -> Result<(), Refusal> {
    for step in steps {
        work(step).map_err(|error| (step.changed.path.clone(), error))?;
    }
    Ok(())
}

impl Step {
    /// Makes a folder whose mode bits were changed one that can be worked in.
    fn open_up(&mut self) -> io::Result<()> {
        match (&self.changed.before, &self.changed.after) {
            (FileState::Folder { mode }, FileState::Folder { .. }) => self.set_mode(mode | 0o700),
            _ => Ok(()),
        }
    }

    /// Removes what has to make way.
    fn remove(&mut self, remaining_folders: &mut Vec<PathBuf>) -> io::Result<()> {
        let is_over = match (&self.changed.before, &self.changed.after) {
            // What comes to stand there takes its place, or it stays a folder, or there is nothing.
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

    /// Puts there what was there, less the mode bits of folders.
    fn put(&mut self, contents: &HashMap<String, Vec<u8>>, temporaries: &mut Temporaries) -> io::Result<()> {
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
                // Its mode bits are still to come.
                return Ok(());
            }
            FileState::File { mode, .. } if is_content_there(&self.changed) => {
                let (dir, name) = open_parent(&self.target, false)?;
                if let Some(permissions) = permissions(*mode) {
                    open_file(&dir, &name)?.0.set_permissions(permissions)?;
                }
            }
            FileState::File { hash, mode } => {
                let content = contents.get(hash).ok_or(io::ErrorKind::NotFound)?;
                let permissions = permissions(*mode);
                let make = |dir: &Dir, temporary: &str| write(dir, temporary, content, permissions.as_ref());
                self.replace(make, temporaries)?;
            }
            FileState::Link { to } => {
                self.replace(|dir, temporary| make_link(dir, to, temporary), temporaries)?;
            }
        }
        self.is_done = true;
        Ok(())
    }

    /// Makes sure that what is replaced or removed now still is what was looked at when all of it was checked.
    fn check_unchanged(&self) -> io::Result<()> {
        let expected = match self.changed.after {
            // It has made way.
            FileState::Folder { .. } => &FileState::Absent,
            ref after => after,
        };
        match inspect(&self.target) {
            Found::State(found, _) if found == *expected => Ok(()),
            _ => Err(io::Error::other("it was changed meanwhile")),
        }
    }

    /// Makes something under another name, and gives it its own in one step.
    fn replace(
        &self,
        make: impl FnOnce(&Dir, &str) -> io::Result<()>,
        temporaries: &mut Temporaries,
    ) -> io::Result<()> {
        let (dir, name) = open_parent(&self.target, true)?;
        let temporary = temporaries.name("tmp");
        let outcome = make(&dir, &temporary).and_then(|()| dir.rename(&temporary, &dir, name));
        if outcome.is_err() {
            // It may not have come to be; what counts is the first error.
            let _ = dir.remove_file_or_symlink(&temporary);
        }
        outcome
    }

    /// Gives a folder its mode bits.
    fn close(&mut self) -> io::Result<()> {
        if let FileState::Folder { mode } = self.changed.before {
            self.set_mode(mode)?;
            self.is_done = true;
        }
        Ok(())
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        let Some(permissions) = permissions(mode) else { return Ok(()) };
        let (dir, name) = open_parent(&self.target, false)?;
        dir.set_permissions(name, permissions)
    }
}

#[cfg(unix)]
fn make_link(dir: &Dir, to: &Path, name: &str) -> io::Result<()> {
    // As it was, wherever it led: making a link follows none.
    dir.symlink_contents(to, name)
}

#[cfg(not(unix))]
fn make_link(_: &Dir, _: &Path, _: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
