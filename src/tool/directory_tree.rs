//! `directory_tree`: lists a directory tree, indented. Respects `.gitignore`.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::content::code_span;
use super::reading::Reading;
use super::walk::{ToolWalk, globs};
use super::{PreparedCall, Tool, ToolError, ToolSpec, arguments, resolve};
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

pub(super) struct DirectoryTree(ToolSpec);

impl DirectoryTree {
    pub(super) fn new() -> Self {
        Self(ToolSpec::new::<Arguments>(
            "directory_tree",
            ToolKind::Read,
            Effect::Read,
            "Show a directory and what lies below it, as an indented list. Files that git ignores and hidden files are \
             left out.",
        ))
    }
}

#[async_trait]
impl Tool for DirectoryTree {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let Arguments { path, depth } = arguments(&self.0.name, given)?;
        let target = resolve(workspace, path.unwrap_or_else(|| ".".into())).await?;
        let title = format!("Tree of {}", code_span(&workspace.display(&target)));
        let depth = depth.unwrap_or(DEPTH).max(1);
        let call = Call { target: target.clone(), depth, workspace: workspace.clone() };
        Ok(Reading::boxed(title, target, move |permit| call.tree(permit)))
    }
}

#[derive(Debug)]
struct Call {
    target: Target,
    depth: usize,
    workspace: Workspace,
}

impl Call {
    fn tree(&self, permit: &Permit) -> Result<String, ToolError> {
        let target = &self.target;
        // Gives a clear error if the target is not a directory.
        open_dir(target)?;
        let globs = globs(&target.path, None).map_err(ToolError::Failed)?;
        let mut walk = ToolWalk::new(target, globs, Some(self.depth), &self.workspace, permit)?;
        let mut lines = Vec::new();
        while let Some(entry) = walk.next("the tree was complete")? {
            if lines.len() == MAX_ENTRIES {
                lines.push(format!("[More entries; the first {MAX_ENTRIES} are shown.]"));
                break;
            }
            let mark = if entry.kind == EntryKind::Folder { "/" } else { "" };
            lines.push(format!("{}{}{mark}", "  ".repeat(entry.depth - 1), entry.name().to_string_lossy()));
        }
        if lines.is_empty() {
            lines.push("[The directory is empty.]".into());
        }
        lines.extend(walk.notes());
        Ok(lines.join("\n"))
    }
}
