//! `find_files`: files by a glob over their paths; `.gitignore` is honoured.

use async_trait::async_trait;
use ignore::overrides::Override;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::reading::Reading;
use super::walk::{globs, walk};
use super::{PreparedCall, Tool, ToolError, ToolSpec, arguments, resolve};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::workspace::{FileError, Workspace};

/// Paths in one answer.
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

/// The tool.
pub struct FindFiles(ToolSpec);

impl FindFiles {
    pub fn new() -> Self {
        Self(ToolSpec::new::<Arguments>(
            "find_files",
            ToolKind::Search,
            Effect::Read,
            "Find files by a glob over their paths. Files that git ignores and hidden files are left out.",
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
        Ok(Reading::boxed(format!("Find {glob}"), target, move |cancel| call.find(cancel)))
    }
}

#[derive(Debug)]
struct Call {
    target: Target,
    globs: Override,
    workspace: Workspace,
}

impl Call {
    fn find(&self, cancel: &CancellationToken) -> Result<String, ToolError> {
        let target = &self.target;
        // A place that is not there has no matches, but that is not what is to be said of it.
        target.path.symlink_metadata().map_err(|error| FileError::io(&target.path, &error))?;
        let mut paths = Vec::new();
        for entry in walk(&self.target.path, self.globs.clone(), None) {
            if cancel.is_cancelled() {
                return Err(ToolError::Failed("stopped before the search was done".into()));
            }
            // What cannot be read, or vanished meanwhile, is not there to be found.
            let Ok(entry) = entry else { continue };
            if entry.file_type().is_none_or(|kind| kind.is_dir()) {
                continue;
            }
            if paths.len() == MAX_PATHS {
                paths.push(format!("[More files match; the first {MAX_PATHS} are shown.]"));
                break;
            }
            let path = entry.path();
            paths.push(path.strip_prefix(self.workspace.cwd()).unwrap_or(path).display().to_string());
        }
        if paths.is_empty() {
            return Ok("[No file matches.]".into());
        }
        Ok(paths.join("\n"))
    }
}
