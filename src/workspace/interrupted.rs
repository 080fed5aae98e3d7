//! Compares the intent of a killed process with the disk and removes temporary files.

use std::path::PathBuf;

use cap_fs_ext::DirExt;

use super::change_recorder::matches_planned;
use super::in_place::is_partial;
use super::inspect::{InspectedPath, inspect};
use super::journal::prefix;
use super::{Changed, FileState, Intent, Workspace, open_dir};
use crate::permission::Target;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interrupted {
    pub done: Vec<Changed>,
    /// True if some changes are missing.
    pub is_partial: bool,
    /// Paths in neither their previous nor their planned state.
    pub conflicts: Vec<PathBuf>,
}

/// True if a file has its new content but still its previous mode bits.
fn is_written(changed: &Changed, found: &FileState) -> bool {
    match (&changed.before, &changed.after, found) {
        (
            FileState::File { mode: before, .. },
            FileState::File { hash, mode: after },
            FileState::File { hash: found, mode },
        ) => hash == found && mode == before && before != after,
        _ => false,
    }
}

/// True if a write in place stopped between the first and the last byte.
fn is_half_written(intent: &Intent, changed: &Changed, found: &[u8]) -> bool {
    let content = |state: &FileState| match state {
        FileState::File { hash, .. } => {
            intent.contents.iter().find(|(known, _)| known == hash).map(|(_, content)| content.as_slice())
        }
        FileState::Absent | FileState::Link { .. } | FileState::Folder { .. } => None,
    };
    let contents = content(&changed.before).zip(content(&changed.after));
    intent.in_place.contains(&changed.path) && contents.is_some_and(|(old, new)| is_partial(found, old, new))
}

impl Interrupted {
    /// Finds the changes of an operation. Idempotent. Returns `None` if a path is outside the workspace.
    pub fn examine(workspace: &Workspace, intent: &Intent) -> Option<Self> {
        let paths = intent.changed.iter().map(|changed| &changed.path).chain(&intent.folders);
        if paths.clone().any(|path| workspace.place(path.clone()).inside.is_none()) {
            return None;
        }
        for folder in &intent.folders {
            remove_temporaries(&workspace.place(folder.clone()), &intent.token);
        }
        let mut interrupted = Self::default();
        for changed in &intent.changed {
            match inspect(&workspace.place(changed.path.clone())) {
                InspectedPath::State(state, _) if state == changed.before => interrupted.is_partial = true,
                InspectedPath::State(after, _) if is_written(changed, &after) => {
                    interrupted.is_partial = true;
                    interrupted.done.push(Changed { after, ..changed.clone() });
                }
                stands if matches_planned(&changed.before, &changed.after, &stands) => {
                    let InspectedPath::State(after, _) = stands else { continue };
                    interrupted.done.push(Changed { after, ..changed.clone() });
                }
                InspectedPath::State(after, Some(content)) if is_half_written(intent, changed, &content) => {
                    interrupted.is_partial = true;
                    interrupted.done.push(Changed { after, ..changed.clone() });
                }
                _ => interrupted.conflicts.push(changed.path.clone()),
            }
        }
        Some(interrupted)
    }
}

fn remove_temporaries(folder: &Target, token: &str) {
    // The folder may be gone, or was never created.
    let Ok(dir) = open_dir(folder) else { return };
    let entries = match dir.entries() {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(%error, folder = %folder.path.display(), "temporary files may remain");
            return;
        }
    };
    let prefix = prefix(token);
    for name in entries.flatten().map(|entry| entry.file_name()) {
        if !name.to_string_lossy().starts_with(&prefix) {
            continue;
        }
        if let Err(error) = dir.remove_file_or_symlink(&name) {
            tracing::warn!(%error, file = %name.display(), "a temporary file could not be removed");
        }
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
