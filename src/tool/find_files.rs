//! `find_files`: finds files by a glob over their paths. Honours `.gitignore`.

use async_trait::async_trait;
use ignore::overrides::Override;
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
use crate::workspace::{EntryKind, Workspace};

const MAX_PATHS: usize = 500;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// Glob over paths, as in .gitignore: `*.rs` anywhere, `src/**/*.ts`, `**/test_*`.
    glob: String,
    /// Directory to look in, absolute or relative to the working directory. Default: the working directory.
    #[serde(default)]
    path: Option<String>,
}

pub(super) struct FindFiles(ToolSpec);

impl FindFiles {
    pub(super) fn new() -> Self {
        Self(ToolSpec::new::<Arguments>(
            "find_files",
            ToolKind::Search,
            Effect::Read,
            "Find files by a glob over their paths. Files that git ignores and version control's own are left out.",
        ))
    }
}

#[async_trait]
impl Tool for FindFiles {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let Arguments { glob, path } = arguments(&self.0.name, given)?;
        let target = resolve(workspace, path.unwrap_or_else(|| ".".into())).await?;
        let globs =
            globs(&target.path, Some(&glob)).map_err(|reason| ToolError::arguments(&self.0.name, reason))?;
        let call = Call { target: target.clone(), globs, workspace: workspace.clone() };
        Ok(Reading::boxed(format!("Find {}", code_span(&glob)), target, move |permit| call.find(permit)))
    }
}

#[derive(Debug)]
struct Call {
    target: Target,
    globs: Override,
    workspace: Workspace,
}

impl Call {
    fn find(&self, permit: &Permit) -> Result<String, ToolError> {
        let mut walk = ToolWalk::new(&self.target, self.globs.clone(), None, &self.workspace, permit)?;
        let mut lines = Vec::new();
        while let Some(entry) = walk.next("the search finished")? {
            if entry.kind == EntryKind::Folder {
                continue;
            }
            if lines.len() == MAX_PATHS {
                lines.push(format!("[More files match; the first {MAX_PATHS} are shown.]"));
                break;
            }
            let path = entry.path.strip_prefix(self.workspace.cwd()).unwrap_or(&entry.path);
            lines.push(path.display().to_string());
        }
        if lines.is_empty() {
            lines.push("[No file matches.]".into());
        }
        lines.extend(walk.notes());
        Ok(lines.join("\n"))
    }
}
