//! What an operation had done when its process was killed, found out from its announcement and the disk.

use std::path::{Path, PathBuf};

use cap_fs_ext::DirExt;

use super::change_recorder::becomes;
use super::inspect::{Found, inspect};
use super::journal::prefix;
use super::{Changed, FileState, Intent, Workspace, open_dir};

/// An operation that was never concluded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interrupted {
    /// What it has changed.
    pub done: Vec<Changed>,
    /// It had not come to its end.
    pub is_partial: bool,
    /// What is neither as it was before nor as it was to become: somebody else has changed it since.
    pub conflicts: Vec<PathBuf>,
}

/// Whether a file has its new content, and its mode bits were still to be changed.
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
    /// Finds out what an operation has changed, and removes its temporary files. Doing it twice gives the same. Returns
    /// `None`, and does nothing, if the operation was about something outside the folders of this workspace.
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
                stands if becomes(&changed.before, &changed.after, &stands) => {
                    let Found::State(after, _) = stands else { continue };
                    found.done.push(Changed { after, ..changed.clone() });
                }
                _ => found.conflicts.push(changed.path.clone()),
            }
        }
        Some(found)
    }

    fn remove_temporaries(&self, folder: &Path, token: &str) {
        // A folder that is gone, or was never made, holds nothing.
        let Ok(dir) = open_dir(&self.place(folder.to_owned())) else { return };
        let entries = match dir.entries() {
            Ok(entries) => entries,
            Err(error) => {
                tracing::warn!(%error, folder = %folder.display(), "temporary files may stay");
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
