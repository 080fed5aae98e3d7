//! `find_files`: finds files by a glob over their paths. Honours `.gitignore`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::walk::{ToolWalk, globs, walk_options};
use crate::acp::ToolKind;
use crate::gate::Permit;
use crate::permission::{Effect, Target};
use crate::text::code_span;
use crate::tool::{PreparedCall, Tool, ToolError, ToolSpec};
use crate::workspace::{EntryKind, WalkOptions, Workspace};

const MAX_PATHS: usize = 500;

const ELSEWHERE: &str = "[No file there matches. The glob matches these, further below:]";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FindFilesArguments {
    /// Glob over paths, as in .gitignore: `*.rs` anywhere, `src/**/*.ts`, `.github` with all below it.
    glob: String,
    /// Default: the working directory.
    #[serde(default)]
    path: Option<String>,
    /// Default: false.
    #[serde(default)]
    include_ignored: bool,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description = "Find files by a glob over their paths, hidden ones too. .git is left out, as are files that git ignores.";
    ToolSpec::new("find_files", ToolKind::Search, Effect::Read, description).tool(prepare)
}

fn prepare(
    FindFilesArguments { glob, path, include_ignored }: FindFilesArguments,
    workspace: &Workspace,
) -> Result<PreparedCall, ToolError> {
    let target = workspace.resolve(path.as_deref().unwrap_or("."))?;
    let options =
        walk_options(globs(&target.path, Some(&glob)).map_err(ToolError::Arguments)?, include_ignored);
    let title = format!("Find {}", code_span(&glob));
    let (top, workspace) = (target.clone(), workspace.clone());
    Ok(PreparedCall::reading(title, target, move |permit| {
        let files = find(&top, options, &workspace, permit)?;
        if files.lines.is_empty()
            && let Some(glob) = unanchored(&glob)
        {
            let globs = globs(&top.path, Some(&glob)).map_err(ToolError::Arguments)?;
            let mut elsewhere = find(&top, walk_options(globs, include_ignored), &workspace, permit)?;
            if !elsewhere.lines.is_empty() {
                elsewhere.lines.insert(0, ELSEWHERE.into());
                return Ok(elsewhere.report());
            }
        }
        Ok(files.report())
    }))
}

/// The glob of the same files anywhere. `None` if the glob already means files anywhere, or excludes files.
fn unanchored(glob: &str) -> Option<String> {
    let pattern = glob.trim_end_matches('/');
    let is_anchored =
        pattern.contains('/') && !pattern.starts_with(['!', '/', '.']) && !pattern.starts_with("**/");
    is_anchored.then(|| format!("**/{glob}"))
}

struct FoundFiles<'a> {
    walk: ToolWalk<'a>,
    lines: Vec<String>,
}

impl FoundFiles<'_> {
    fn report(self) -> String {
        self.walk.report(self.lines, "[No file matches.]")
    }
}

fn find<'a>(
    top: &Target,
    options: WalkOptions,
    workspace: &'a Workspace,
    permit: &'a Permit,
) -> Result<FoundFiles<'a>, ToolError> {
    let mut walk = ToolWalk::new(top, options, workspace, permit)?;
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
    Ok(FoundFiles { walk, lines })
}
