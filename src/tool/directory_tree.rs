//! `directory_tree`: lists a directory tree, indented. Respects `.gitignore`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::content::code_span;
use super::walk::{ToolWalk, globs};
use super::{PreparedCall, Tool, ToolError, ToolSpec};
use crate::acp::ToolKind;
use crate::gate::Permit;
use crate::permission::{Effect, Target};
use crate::workspace::{EntryKind, Workspace, open_dir};

const MAX_ENTRIES: usize = 1000;

const DEPTH: usize = 3;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// Path of the directory, absolute or relative to the working directory. Default: the working directory.
    #[serde(default)]
    path: Option<String>,
    /// Levels to show. Default: 3.
    #[serde(default)]
    depth: Option<usize>,
}

pub(super) fn tool() -> Arc<dyn Tool> {
    let what = "Show a directory and what lies below it, as an indented list. Files that git ignores and hidden files are \
                left out.";
    ToolSpec::new("directory_tree", ToolKind::Read, Effect::Read, what).tool(prepare)
}

fn prepare(Arguments { path, depth }: Arguments, workspace: &Workspace) -> Result<PreparedCall, ToolError> {
    let target = workspace.resolve(path.as_deref().unwrap_or("."))?;
    let title = format!("Tree of {}", code_span(&workspace.display(&target)));
    let depth = depth.unwrap_or(DEPTH).max(1);
    let (top, workspace) = (target.clone(), workspace.clone());
    Ok(PreparedCall::reading(title, target, move |permit| tree(&top, depth, &workspace, permit)))
}

fn tree(top: &Target, depth: usize, workspace: &Workspace, permit: &Permit) -> Result<String, ToolError> {
    // Gives a clear error if the target is not a directory.
    open_dir(top)?;
    let globs = globs(&top.path, None).map_err(ToolError::Failed)?;
    let mut walk = ToolWalk::new(top, globs, Some(depth), workspace, permit)?;
    let mut lines = Vec::new();
    while let Some(entry) = walk.next("the tree was complete")? {
        if lines.len() == MAX_ENTRIES {
            lines.push(format!("[More entries; the first {MAX_ENTRIES} are shown.]"));
            break;
        }
        let mark = if entry.kind == EntryKind::Folder { "/" } else { "" };
        lines.push(format!("{}{}{mark}", "  ".repeat(entry.depth - 1), entry.name().to_string_lossy()));
    }
    Ok(walk.report(lines, "[The directory is empty.]"))
}
