//! Lists folders for tools, without files that git ignores, files of version control, and files that rules
//! deny.

use std::time::{Duration, Instant};

use ignore::overrides::{Override, OverrideBuilder};

use crate::gate::Permit;
use crate::permission::Target;
use crate::text::grouped;
use crate::tool::ToolError;
use crate::workspace::{EntryKind, Walk, WalkEntry, WalkOptions, Workspace};

/// Time for counting what is not shown any more.
const COUNTING: Duration = Duration::from_secs(5);

/// Compiles a glob as in `.gitignore`, which for a folder stands for all below it. In `src/*` only the files
/// of `src` are meant. `None` matches everything.
pub(super) fn globs(root: &std::path::Path, glob: Option<&str>) -> Result<Override, String> {
    let mut globs = OverrideBuilder::new(root);
    if let Some(glob) = glob {
        globs.add(glob).map_err(|error| format!("glob: {error}"))?;
        if let Some(below) = below(glob) {
            globs.add(&below).map_err(|error| format!("glob: {error}"))?;
        }
    }
    globs.build().map_err(|error| format!("glob: {error}"))
}

/// The glob of all files below the folders that a glob names.
fn below(glob: &str) -> Option<String> {
    let pattern = glob.trim_end_matches('/');
    let last = pattern.rsplit_once('/').map(|(_, last)| last);
    match last {
        _ if pattern.is_empty() || pattern.starts_with('!') => None,
        None => Some(format!("**/{pattern}/**")),
        Some(last) => (!last.contains(['*', '?', '[', '{'])).then(|| format!("{pattern}/**")),
    }
}

pub(super) struct ToolWalk<'a> {
    walk: Walk,
    workspace: &'a Workspace,
    permit: &'a Permit,
    left_out: usize,
    /// Set once entries are only counted.
    deadline: Option<Instant>,
    is_partial: bool,
}

impl<'a> ToolWalk<'a> {
    /// Starts at a directory; a file yields only itself.
    pub(super) fn new(
        target: &Target,
        globs: Override,
        depth: Option<usize>,
        workspace: &'a Workspace,
        permit: &'a Permit,
    ) -> Result<Self, ToolError> {
        let options = WalkOptions { globs, depth, gitignore_only: false, without: None };
        let walk = Walk::new(target, options)?;
        Ok(Self { walk, workspace, permit, left_out: 0, deadline: None, is_partial: false })
    }

    /// Returns an error if the call is cancelled before `what`.
    pub(super) fn next(&mut self, what: &str) -> Result<Option<WalkEntry>, ToolError> {
        for entry in self.walk.by_ref() {
            if self.permit.cancel.is_cancelled() {
                return Err(ToolError::Failed(format!("cancelled before {what}")));
            }
            if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
                self.is_partial = true;
                break;
            }
            if self.workspace.is_private(&entry.path) {
                continue;
            }
            if self.permit.admits(&self.workspace.place(entry.path.clone())) {
                return Ok(Some(entry));
            }
            self.left_out += usize::from(entry.kind != EntryKind::Folder);
        }
        Ok(None)
    }

    /// Limits the rest of the walk, whose entries are not shown, to [`COUNTING`].
    pub(super) fn only_count(&mut self) {
        self.deadline.get_or_insert_with(|| Instant::now() + COUNTING);
    }

    /// A total for the model; "more than" if the walk was not finished.
    pub(super) fn total(&self, number: usize) -> String {
        format!("{}{}", if self.is_partial { "more than " } else { "" }, grouped(number))
    }

    /// Returns the lines, or the text `none`, with notes about omitted files.
    pub(super) fn report(&self, mut lines: Vec<String>, none: &str) -> String {
        if lines.is_empty() {
            lines.push(none.into());
        }
        lines.extend(left_out(self.left_out));
        lines.extend(self.walk.problems().iter().map(|problem| format!("[{problem}]")));
        if self.walk.is_cut() {
            lines.push("[Folders below the maximum depth are omitted.]".into());
        }
        lines.join("\n")
    }
}

pub(super) fn left_out(files: usize) -> Option<String> {
    match files {
        0 => None,
        1 => Some("[1 file omitted: a rule denies it or asks for it.]".into()),
        files => Some(format!("[{files} files omitted: rules deny them or ask for them.]")),
    }
}
