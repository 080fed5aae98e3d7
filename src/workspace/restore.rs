//! Restores changed files to their previous states, all or none. A path that no longer matches its recorded
//! state is a conflict, and nothing is restored. No link is followed, and version control files are never
//! written.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::file_state::{gaps, to_undo};
use super::inspect::{InspectedPath, blocks, inspect, is_special};
use super::journal::Temporaries;
use super::{Changed, FileError, FileState, Gap, Workspace, compose, is_version_control, open_dir};
use crate::file_lock::LockError;
use crate::ids::hash_bytes;
use step::{RestoreStep, is_content_there};

mod step;

/// Texts are for the user; paths are absolute.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("{}", conflicts(since, between))]
    Conflict {
        /// Paths that differ from their recorded state.
        since: Vec<PathBuf>,
        /// Paths changed between two recorded changes.
        between: Vec<Gap>,
    },
    #[error(
        "a FIFO, socket or device is in the place of a file or folder, and undo never removes one, so nothing was \
         restored: {}. Remove it, and undo again", list(.0)
    )]
    Special(Vec<PathBuf>),
    #[error("the earlier content is not available, so nothing was restored: {}", list(.0))]
    Missing(Vec<PathBuf>),
    #[error("outside the session's folders or in version control, so nothing was restored: {}", list(.0))]
    Outside(Vec<PathBuf>),
    #[error(transparent)]
    Locked(#[from] LockError),
    #[error(
        "{}: {reason}. Restored: {}. Not restored: {}",
        path.display(),
        list(restored),
        list(missing)
    )]
    Stopped { path: PathBuf, reason: String, restored: Vec<PathBuf>, missing: Vec<PathBuf> },
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
        text.push(format!(
            "these files have changed since, so nothing was restored: {}. Restore them as the turn left them, and undo again",
            list(since)
        ));
    }
    if !between.is_empty() {
        text.push(format!(
            "changed between two of the agent's changes by you, another program or a command that undo does not \
             cover, so nothing was restored: {}",
            between.iter().map(gap_text).collect::<Vec<_>>().join(", ")
        ));
    }
    text.join("; ")
}

fn gap_text(Gap { path, number, of }: &Gap) -> String {
    format!("{} (before change {number} of {of}; that change and later ones could be undone)", path.display())
}

impl Workspace {
    /// Paths in neither their previous nor their changed state. For a changed folder any folder matches.
    pub fn conflicts(&self, changed: &[Changed]) -> Vec<PathBuf> {
        let list = compose(changed.iter().cloned());
        paths_of(list.iter().filter(|changed| {
            !self.is_in_state(changed, &changed.before) && !self.is_in_state(changed, &changed.after)
        }))
    }

    /// Restores the state before `changed`. Returns created folders that stay because they contain other
    /// entries. `content` finds a content by its hash; names of temporary files contain `token`.
    ///
    /// # Errors
    /// Returns an error on any conflict. Only [`RestoreError::Stopped`] can leave changes on disk.
    pub fn restore(
        &self,
        changed: &[Changed],
        content: impl Fn(&str) -> Option<Vec<u8>>,
        token: &str,
    ) -> Result<Vec<PathBuf>, RestoreError> {
        let list = to_undo(changed);
        let outside = paths_of(list.iter().filter(|changed| !self.may_restore(&changed.path)));
        if !outside.is_empty() {
            return Err(RestoreError::Outside(outside));
        }
        let paths = list.iter().map(|changed| changed.path.as_path());
        let _lock = self.locks.lock(paths, &|| false)?;
        let since = self.obstacles(&list);
        let special: Vec<PathBuf> =
            since.iter().filter(|path| is_special(&self.place((*path).clone()))).cloned().collect();
        if !special.is_empty() {
            return Err(RestoreError::Special(special));
        }
        let between = self.interruptions(&compose(changed.iter().cloned()), changed);
        if !since.is_empty() || !between.is_empty() {
            return Err(RestoreError::Conflict { since, between });
        }
        let contents = contents(&list, content)?;
        let temporaries = Temporaries::of(token.to_owned());
        let mut work =
            RestoreWork { contents, temporaries, steps: BTreeMap::new(), remaining_folders: Vec::new() };
        // Restored already, by an interrupted attempt or by the user.
        for changed in list.into_iter().filter(|changed| !self.is_in_state(changed, &changed.before)) {
            let target = self.place(changed.path.clone());
            work.steps.insert(changed.path.clone(), RestoreStep { target, changed, is_done: false });
        }
        match work.perform() {
            Ok(()) => Ok(work.remaining_folders),
            Err((path, error)) => Err(work.stopped(path, &error)),
        }
    }

    fn interruptions(&self, list: &[Changed], changed: &[Changed]) -> Vec<Gap> {
        let mut gaps = gaps(changed);
        gaps.retain(|gap| {
            let to_write = list.iter().find(|changed| changed.path == gap.path);
            to_write.is_some_and(|changed| !self.is_in_state(changed, &changed.before))
        });
        gaps
    }

    /// For the folder in `after`, any folder matches.
    fn is_in_state(&self, changed: &Changed, state: &FileState) -> bool {
        let target = self.place(changed.path.clone());
        match (state, inspect(&target)) {
            (_, _) if target.inside.is_none() => false,
            (_, InspectedPath::Unknown(_)) => false,
            (FileState::Folder { .. }, InspectedPath::State(found, _)) if state == &changed.after => {
                matches!(found, FileState::Folder { .. })
            }
            (state, InspectedPath::State(found, _)) => *state == found,
        }
    }

    fn may_restore(&self, path: &Path) -> bool {
        self.place(path.to_owned()).inside.is_some_and(|inside| {
            let is_plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
            is_plain && !inside.as_os_str().is_empty() && !is_version_control(&inside)
        })
    }

    fn obstacles(&self, list: &[Changed]) -> Vec<PathBuf> {
        let mut obstacles = self.conflicts(list);
        let by_path: BTreeMap<&Path, &Changed> =
            list.iter().map(|changed| (changed.path.as_path(), changed)).collect();
        for changed in list {
            if changed.before != FileState::Absent {
                // A parent is no longer a folder, and none of the changes restores it.
                match blocks(&self.place(changed.path.clone())) {
                    Ok(Some(path)) => {
                        let is_restored = by_path
                            .get(path.as_path())
                            .is_some_and(|it| matches!(it.before, FileState::Folder { .. }));
                        if !is_restored {
                            obstacles.push(path);
                        }
                    }
                    Ok(None) => {}
                    Err(_) => obstacles.push(changed.path.clone()),
                }
            }
            let is_replaced = matches!(changed.before, FileState::File { .. } | FileState::Link { .. });
            if is_replaced && matches!(changed.after, FileState::Folder { .. }) {
                self.unrelated_entries(&changed.path, &by_path, &mut obstacles);
            }
        }
        obstacles.sort();
        obstacles.dedup();
        obstacles
    }

    /// Collects entries of a replaced folder that no change removes.
    fn unrelated_entries(&self, folder: &Path, list: &BTreeMap<&Path, &Changed>, found: &mut Vec<PathBuf>) {
        let Ok(entries) = open_dir(&self.place(folder.to_owned()))
            .and_then(|dir| dir.entries().map_err(|error| FileError::io(folder, &error)))
        else {
            return found.push(folder.to_owned());
        };
        for entry in entries.flatten() {
            let path = folder.join(entry.file_name());
            match list.get(path.as_path()) {
                Some(Changed { before: FileState::Absent, after: FileState::Folder { .. }, .. }) => {
                    self.unrelated_entries(&path, list, found);
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

struct RestoreWork {
    contents: HashMap<String, Vec<u8>>,
    temporaries: Temporaries,
    /// In path order: a folder comes before its entries.
    steps: BTreeMap<PathBuf, RestoreStep>,
    /// Created folders that are not empty.
    remaining_folders: Vec<PathBuf>,
}

type RestoreRefusal = (PathBuf, io::Error);

impl RestoreWork {
    fn perform(&mut self) -> Result<(), RestoreRefusal> {
        let Self { contents, temporaries, steps, remaining_folders } = self;
        each(steps.values_mut(), step::RestoreStep::make_writable)?;
        each(steps.values_mut().rev(), |step| step.remove(remaining_folders, temporaries))?;
        each(steps.values_mut(), |step| step.put(contents, temporaries))?;
        // Modes come last: nothing can be written into a read-only folder.
        each(steps.values_mut().rev(), RestoreStep::close)?;
        remaining_folders.sort();
        Ok(())
    }

    fn stopped(self, path: PathBuf, error: &io::Error) -> RestoreError {
        let (done, open): (Vec<_>, Vec<_>) = self.steps.into_iter().partition(|(_, step)| step.is_done);
        let paths = |steps: Vec<(PathBuf, RestoreStep)>| steps.into_iter().map(|(path, _)| path).collect();
        RestoreError::Stopped { path, reason: error.to_string(), restored: paths(done), missing: paths(open) }
    }
}

fn each<'a>(
    steps: impl Iterator<Item = &'a mut RestoreStep>,
    mut work: impl FnMut(&mut RestoreStep) -> io::Result<()>,
) -> Result<(), RestoreRefusal> {
    for step in steps {
        work(step).map_err(|error| (step.changed.path.clone(), error))?;
    }
    Ok(())
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
