//! Compares the intent of a killed process with the disk and removes temporary files.

use std::path::{Path, PathBuf};

use cap_fs_ext::DirExt;

use super::change_recorder::matches_planned;
use super::inspect::{Found, inspect};
use super::journal::prefix;
use super::{Changed, FileState, Intent, Workspace, open_dir};

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

impl Workspace {
    /// Finds the changes of an operation. Idempotent. Returns `None` if a path is outside this workspace.
    pub fn examine(&self, intent: &Intent) -> Option<Interrupted> {
        let paths = intent.changed.iter().map(|changed| &changed.path).chain(&intent.folders);
        if paths.clone().any(|path| self.place(path.clone()).inside.is_none()) {
            return None;
        }
        for folder in &intent.folders {
            self.remove_temporaries(folder, &intent.token);
        }
        let mut found = Interrupted::default();
        for changed in &intent.changed {
            match inspect(&self.place(changed.path.clone())) {
                Found::State(state, _) if state == changed.before => found.is_partial = true,
                Found::State(after, _) if is_written(changed, &after) => {
                    found.is_partial = true;
                    found.done.push(Changed { after, ..changed.clone() });
                }
                stands if matches_planned(&changed.before, &changed.after, &stands) => {
                    let Found::State(after, _) = stands else { continue };
                    found.done.push(Changed { after, ..changed.clone() });
                }
                _ => found.conflicts.push(changed.path.clone()),
            }
        }
        Some(found)
    }

    fn remove_temporaries(&self, folder: &Path, token: &str) {
        // The folder may be gone, or was never created.
        let Ok(dir) = open_dir(&self.place(folder.to_owned())) else { return };
        let entries = match dir.entries() {
            Ok(entries) => entries,
            Err(error) => {
                tracing::warn!(%error, folder = %folder.display(), "temporary files may remain");
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
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
