//! `find_files`: finds files by a glob over their paths. Honours `.gitignore`.

use std::sync::Arc;

use ignore::overrides::Override;
use schemars::JsonSchema;
use serde::Deserialize;

use super::walk::{ToolWalk, globs};
use crate::acp::ToolKind;
use crate::gate::Permit;
use crate::permission::{Effect, Target};
use crate::text::code_span;
use crate::tool::{PreparedCall, Tool, ToolError, ToolSpec};
use crate::workspace::{EntryKind, Workspace};

const MAX_PATHS: usize = 500;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FindFilesArguments {
    /// Glob over paths, as in .gitignore: `*.rs` anywhere, `src/**/*.ts`, `.github` with all below it.
    glob: String,
    /// Directory to look in. Default: the working directory.
    #[serde(default)]
    path: Option<String>,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description = "Find files by a glob over their paths, hidden ones too. Files that git ignores and .git are left out.";
    ToolSpec::new("find_files", ToolKind::Search, Effect::Read, description).tool(prepare)
}

fn prepare(
    FindFilesArguments { glob, path }: FindFilesArguments,
    workspace: &Workspace,
) -> Result<PreparedCall, ToolError> {
    let target = workspace.resolve(path.as_deref().unwrap_or("."))?;
    let globs = globs(&target.path, Some(&glob)).map_err(ToolError::Arguments)?;
    let title = format!("Find {}", code_span(&glob));
    let (top, workspace) = (target.clone(), workspace.clone());
    Ok(PreparedCall::reading(title, target, move |permit| find(&top, globs, &workspace, permit)))
}

fn find(top: &Target, globs: Override, workspace: &Workspace, permit: &Permit) -> Result<String, ToolError> {
    let mut walk = ToolWalk::new(top, globs, None, workspace, permit)?;
    let (mut lines, mut total) = (Vec::new(), 0);
    while let Some(entry) = walk.next("the search finished")? {
        if entry.kind == EntryKind::Folder {
            continue;
        }
        total += 1;
        if lines.len() == MAX_PATHS {
            walk.only_count();
            continue;
        }
        let path = entry.path.strip_prefix(workspace.cwd()).unwrap_or(&entry.path);
        lines.push(path.display().to_string());
    }
    if total > MAX_PATHS {
        lines.push(format!("[{MAX_PATHS} of {} files are shown.]", walk.total(total)));
    }
    Ok(walk.report(lines, "[No file matches.]"))
}
