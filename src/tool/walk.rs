//! Walking a folder for a tool: what git ignores and version control's own files are left out, and what rules keep back.

use ignore::overrides::{Override, OverrideBuilder};

use super::ToolError;
use crate::gate::Permit;
use crate::permission::Target;
use crate::workspace::{Entry, EntryKind, Walk, WalkOptions, Workspace};

/// Globs as in `.gitignore`, relative to a directory; none means everything. The error says what is no glob.
pub fn globs(root: &std::path::Path, glob: Option<&str>) -> Result<Override, String> {
    let mut globs = OverrideBuilder::new(root);
    if let Some(glob) = glob {
        globs.add(glob).map_err(|error| format!("glob: {error}"))?;
    }
    globs.build().map_err(|error| format!("glob: {error}"))
}

/// The entries below a directory that a call may read.
pub struct ToolWalk<'a> {
    walk: Walk,
    workspace: &'a Workspace,
    permit: &'a Permit,
    /// Files that rules keep back.
    left_out: usize,
}

impl<'a> ToolWalk<'a> {
    /// Begins to walk a directory; of a file it shows that file.
    ///
    /// # Errors
    /// There is neither there.
    pub fn new(
        target: &Target,
        globs: Override,
        depth: Option<usize>,
        workspace: &'a Workspace,
        permit: &'a Permit,
    ) -> Result<Self, ToolError> {
        let options = WalkOptions { globs, depth, hidden: false, gitignore_only: false, without: None };
        Ok(Self { walk: Walk::new(target, options)?, workspace, permit, left_out: 0 })
    }

    /// The next entry; `Err` if the call has to end, with `what` was not done.
    pub fn next(&mut self, what: &str) -> Result<Option<Entry>, ToolError> {
        for entry in self.walk.by_ref() {
            if self.permit.cancel.is_cancelled() {
                return Err(ToolError::Failed(format!("stopped before {what}")));
            }
            if self.permit.admits(&self.workspace.place(entry.path.clone())) {
                return Ok(Some(entry));
            }
            self.left_out += usize::from(entry.kind != EntryKind::Folder);
        }
        Ok(None)
    }

    /// What the model is told of what is not in the answer, in lines.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = left_out(self.left_out).into_iter().collect();
        notes.extend(self.walk.problems().iter().map(|problem| format!("[{problem}]")));
        if self.walk.is_cut() {
            notes.push("[Folders that lie too deep in one another are left out.]".into());
        }
        notes
    }
}

/// What the model is told of files that rules keep back.
pub fn left_out(files: usize) -> Option<String> {
    match files {
        0 => None,
        1 => Some("[1 file is left out: a rule denies it, or asks for it by its name.]".into()),
        files => {
            Some(format!("[{files} files are left out: rules deny them, or ask for them by their names.]"))
        }
    }
}
