//! Records the effect of a list of changes by inspecting every affected path before and after, including
//! created parent folders and mode bits of new files. Paths that cannot be inspected are uncovered.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use cap_fs_ext::DirExt;
use cap_std::fs::{Dir, Metadata};

use super::change::executable_mode;
use super::inspect::{InspectedPath, inspect, look};
use super::replacement::FileStamp;
use super::{
    Change, Changed, Changes, ContentHash, FileState, Intent, Workspace, is_version_control, open_dir,
};
use crate::ids::hash_bytes;
use crate::permission::Target;

/// Limits for a moved folder. The move of a larger folder is uncovered.
const MAX_ENTRIES: usize = 1000;
const MAX_BYTES: u64 = 32 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct ChangeRecorder {
    workspace: Workspace,
    before: BTreeMap<PathBuf, Watched>,
    planned: BTreeMap<PathBuf, FileState>,
    uncovered: Vec<String>,
}

/// A path as it was before the operation.
#[derive(Debug)]
struct Watched {
    target: Target,
    found: InspectedPath,
    /// Of a file.
    fingerprint: Option<FileStamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StateTrust {
    /// Any other state on disk is a later change by another program.
    Planned,
    /// The state on disk counts.
    Seen,
}

/// Mode bits of new files and of folders are not compared.
pub(super) fn matches_planned(before: &FileState, planned: &FileState, found: &InspectedPath) -> bool {
    let InspectedPath::State(found, _) = found else { return false };
    match (before, planned, found) {
        (FileState::Absent, FileState::File { hash, .. }, FileState::File { hash: found, .. }) => {
            hash == found
        }
        (_, FileState::Folder { .. }, FileState::Folder { .. }) => true,
        _ => planned == found,
    }
}

/// Returns `None` if the path did not change.
fn trust(made: &BTreeMap<PathBuf, StateTrust>, path: &Path) -> Option<StateTrust> {
    let trust = path.ancestors().find_map(|around| made.get(around));
    trust.copied().or_else(|| {
        let next = made.range(path.to_owned()..).next();
        next.filter(|(next, _)| next.starts_with(path)).map(|_| StateTrust::Seen)
    })
}

fn plan_folders(planned: &mut BTreeMap<PathBuf, FileState>, path: &Path) {
    for above in path.ancestors().skip(1) {
        match planned.get_mut(above) {
            Some(state @ FileState::Absent) => *state = FileState::Folder { mode: 0o755 },
            _ => return,
        }
    }
}

impl ChangeRecorder {
    pub(super) fn before(workspace: &Workspace, changes: &[Change]) -> Self {
        let mut recorder = Self {
            workspace: workspace.clone(),
            before: BTreeMap::new(),
            planned: BTreeMap::new(),
            uncovered: Vec::new(),
        };
        for change in changes {
            match change {
                Change::Write { target, .. } => recorder.watch_created(target, vec![target.clone()]),
                Change::Remove { target } | Change::SetExecutable { target, .. } => {
                    recorder.watch(std::slice::from_ref(target));
                }
                Change::Rename { from, to } => match below(from) {
                    Ok(below) => {
                        let itself = std::iter::once(Path::new(""));
                        let parts = itself.chain(below.iter().map(PathBuf::as_path));
                        let pairs = parts.flat_map(|part| [joined(from, part), joined(to, part)]);
                        recorder.watch_created(to, pairs.collect());
                    }
                    Err(why) => recorder.mark_uncovered(from, &why),
                },
            }
        }
        recorder.plan(changes);
        recorder
    }

    /// The files in `in_place` are written in place, so their new contents belong to the intent.
    pub(super) fn intent(&self, token: &str, changes: &[Change], in_place: &BTreeSet<PathBuf>) -> Intent {
        let mut contents = BTreeMap::new();
        for change in changes {
            if let Change::Write { target, content, .. } = change
                && in_place.contains(&target.path)
            {
                contents.insert(hash_bytes(content), content.clone());
            }
        }
        for Watched { found, .. } in self.before.values() {
            if let InspectedPath::State(FileState::File { hash, .. }, Some(content)) = found {
                contents.entry(hash.clone()).or_insert_with(|| content.clone());
            }
        }
        let planned = self.before.iter().filter_map(|(path, Watched { found, .. })| {
            let (InspectedPath::State(before, _), Some(after)) = (found, self.planned.get(path)) else {
                return None;
            };
            let (path, before, after) = (path.clone(), before.clone(), after.clone());
            (before != after).then_some(Changed { path, before, after, compared: false })
        });
        let folders: BTreeSet<PathBuf> = changes.iter().filter_map(changed_folder).collect();
        Intent {
            token: token.to_owned(),
            changed: planned.collect(),
            contents: contents.into_iter().collect(),
            folders: folders.into_iter().collect(),
            uncovered: self.uncovered.clone(),
            in_place: in_place.iter().cloned().collect(),
        }
    }

    /// An unknown state counts as unchanged. `now` is the file's metadata, if there is a file.
    pub(super) fn is_unchanged(&self, target: &Target, now: Option<&Metadata>) -> bool {
        let Some(watched) = self.before.get(&target.path) else { return true };
        let InspectedPath::State(before, _) = &watched.found else { return true };
        if let (Some(fingerprint), Some(now)) = (&watched.fingerprint, now)
            && fingerprint.is_same(now, false)
        {
            return true;
        }
        matches!(inspect(target), InspectedPath::State(found, _) if found == *before)
    }

    /// `None` if the state is unknown.
    pub(super) fn state(&self, target: &Target) -> Option<&FileState> {
        match &self.before.get(&target.path)?.found {
            InspectedPath::State(state, _) => Some(state),
            InspectedPath::Unknown(_) => None,
        }
    }

    /// Returns false if a file certainly had another content.
    pub(super) fn had(&self, path: &Path, content: ContentHash) -> bool {
        match self.before.get(path).map(|watched| &watched.found) {
            Some(InspectedPath::State(FileState::Absent, _)) => content == ContentHash::Absent,
            Some(InspectedPath::State(_, found)) => {
                found.as_deref().map_or(ContentHash::Absent, ContentHash::of) == content
            }
            Some(InspectedPath::Unknown(_)) | None => true,
        }
    }

    /// `None` if there was no file, or its content is unknown.
    pub(super) fn content(&self, target: &Target) -> Option<&[u8]> {
        match &self.before.get(&target.path)?.found {
            InspectedPath::State(_, content) => content.as_deref(),
            InspectedPath::Unknown(_) => None,
        }
    }

    pub(super) fn after(mut self, made: &BTreeMap<PathBuf, StateTrust>) -> Changes {
        let mut changes = Changes::default();
        let mut retained = HashSet::new();
        for (path, Watched { target, found, .. }) in std::mem::take(&mut self.before) {
            let Some(trust) = trust(made, &path) else { continue };
            let (before, content) = match found {
                InspectedPath::State(state, content) => (state, content),
                InspectedPath::Unknown(why) => {
                    self.mark_uncovered(&target, &why);
                    continue;
                }
            };
            let after = match (inspect(&target), trust, self.planned.get(&path)) {
                // Another program's change: an undo must report a conflict.
                (found, StateTrust::Planned, Some(planned)) if !matches_planned(&before, planned, &found) => {
                    planned.clone()
                }
                (InspectedPath::State(state, _), _, _) => state,
                (InspectedPath::Unknown(why), _, _) => {
                    self.mark_uncovered(&target, &why);
                    continue;
                }
            };
            if before == after {
                continue;
            }
            if let (FileState::File { hash, .. }, Some(content)) = (&before, content)
                && retained.insert(hash.clone())
            {
                changes.contents.push((hash.clone(), content));
            }
            changes.changed.push(Changed { path, before, after, compared: false });
        }
        changes.uncovered = self.uncovered;
        changes
    }

    fn plan(&mut self, changes: &[Change]) {
        let nodes = self.before.iter().filter_map(|(path, watched)| match &watched.found {
            InspectedPath::State(state, _) => Some((path.clone(), state.clone())),
            InspectedPath::Unknown(_) => None,
        });
        let mut planned: BTreeMap<PathBuf, FileState> = nodes.collect();
        for change in changes {
            match change {
                Change::Write { target, content, like } => {
                    let like = like.as_ref().unwrap_or(target);
                    let mode = match planned.get(&like.path) {
                        Some(FileState::File { mode, .. }) => *mode,
                        _ => 0o644,
                    };
                    plan_folders(&mut planned, &target.path);
                    if let Some(state) = planned.get_mut(&target.path) {
                        *state = FileState::File { hash: hash_bytes(content), mode };
                    }
                }
                Change::Remove { target } => {
                    if let Some(state) = planned.get_mut(&target.path) {
                        *state = FileState::Absent;
                    }
                }
                Change::SetExecutable { target, executable } => {
                    if let Some(FileState::File { mode, .. }) = planned.get_mut(&target.path) {
                        *mode = executable_mode(*mode, *executable);
                    }
                }
                Change::Rename { from, to } => {
                    plan_folders(&mut planned, &to.path);
                    let moved: Vec<PathBuf> =
                        planned.keys().filter(|path| path.starts_with(&from.path)).cloned().collect();
                    for path in moved {
                        let Ok(below) = path.strip_prefix(&from.path) else { continue };
                        let new =
                            if below.as_os_str().is_empty() { to.path.clone() } else { to.path.join(below) };
                        if let Some(state) = planned.insert(path, FileState::Absent) {
                            planned.insert(new, state);
                        }
                    }
                }
            }
        }
        self.planned = planned;
    }

    fn watch_created(&mut self, created: &Target, mut targets: Vec<Target>) {
        let insides = created.inside.iter().flat_map(|inside| inside.ancestors());
        for (path, inside) in created.path.ancestors().zip(insides).skip(1) {
            let above = Target { path: path.to_owned(), inside: Some(inside.to_owned()) };
            if inside.as_os_str().is_empty()
                || inspect(&above) != InspectedPath::State(FileState::Absent, None)
            {
                break;
            }
            targets.push(above);
        }
        self.watch(&targets);
    }

    /// The first target is what changes, before the new folders above it or the parts of a moved folder. If one of the
    /// paths cannot be covered, none is.
    fn watch(&mut self, targets: &[Target]) {
        let mut watched_paths = Vec::new();
        for target in targets {
            match &target.inside {
                // The change will be refused.
                None => return,
                Some(inside) if is_version_control(inside) => {
                    return self.mark_uncovered(target, "belongs to version control");
                }
                Some(_) => {}
            }
            match look(target) {
                (InspectedPath::Unknown(why), _) if *target == targets[0] => {
                    return self.mark_uncovered(target, &why);
                }
                (InspectedPath::Unknown(why), _) => {
                    let why = format!("cannot be covered, because {} {why}", self.workspace.display(target));
                    return self.mark_uncovered(&targets[0], &why);
                }
                (state @ InspectedPath::State(..), fingerprint) => {
                    let watched = Watched { target: target.clone(), found: state, fingerprint };
                    watched_paths.push((target.path.clone(), watched));
                }
            }
        }
        for (path, watched) in watched_paths {
            self.before.entry(path).or_insert(watched);
        }
    }

    fn mark_uncovered(&mut self, target: &Target, why: &str) {
        let name = self.workspace.display(target);
        self.uncovered.push(format!("{name} {why}: its changes cannot be undone."));
    }
}

fn changed_folder(change: &Change) -> Option<PathBuf> {
    match change {
        Change::Write { target, .. } | Change::Remove { target } => {
            target.inside.as_ref().and(target.path.parent()).map(Path::to_owned)
        }
        Change::Rename { .. } | Change::SetExecutable { .. } => None,
    }
}

fn joined(target: &Target, part: &Path) -> Target {
    if part.as_os_str().is_empty() {
        // Joining an empty path would append a slash.
        return target.clone();
    }
    let inside = target.inside.as_ref().map(|inside| inside.join(part));
    Target { path: target.path.join(part), inside }
}

/// Relative paths. The error is a reason that follows the path's name.
fn below(target: &Target) -> Result<Vec<PathBuf>, String> {
    if !matches!(inspect(target), InspectedPath::State(FileState::Folder { .. }, _)) {
        return Ok(Vec::new());
    }
    let dir = open_dir(target).map_err(|error| format!("cannot be read ({error})"))?;
    let mut listing = FolderListing { entries: Vec::new(), bytes: 0 };
    listing.add(&dir, Path::new(""))?;
    Ok(listing.entries)
}

struct FolderListing {
    entries: Vec<PathBuf>,
    bytes: u64,
}

impl FolderListing {
    fn add(&mut self, dir: &Dir, at: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot be read ({error})");
        for entry in dir.entries().map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let metadata = dir.symlink_metadata(&name).map_err(failed)?;
            let path = at.join(&name);
            if is_version_control(&path) {
                return Err("contains a version control folder".into());
            }
            self.entries.push(path.clone());
            self.bytes += if metadata.is_file() { metadata.len() } else { 0 };
            if self.entries.len() > MAX_ENTRIES || self.bytes > MAX_BYTES {
                let most = MAX_BYTES >> 20;
                return Err(format!("contains more than {MAX_ENTRIES} entries or {most} MiB"));
            }
            if metadata.is_dir() {
                self.add(&dir.open_dir_nofollow(&name).map_err(failed)?, &path)?;
            }
        }
        Ok(())
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
