//! `delete_file`: removes one file or symbolic link.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::content::code_span;
use super::{
    PreparedCall, RunContext, Tool, ToolError, ToolOutput, ToolSpec, arguments, effect, resolve_entry,
};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::workspace::{Change, ContentHash, Workspace};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// Path of the file, absolute or relative to the working directory.
    path: String,
}

pub(super) struct DeleteFile(ToolSpec);

impl DeleteFile {
    pub(super) fn new() -> Self {
        Self(ToolSpec::new::<Arguments>(
            "delete_file",
            ToolKind::Delete,
            Effect::Edit,
            "Delete one file. Of a symbolic link, the link is deleted. Directories are not deleted.",
        ))
    }
}

#[async_trait]
impl Tool for DeleteFile {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let Arguments { path } = arguments(&self.0.name, given)?;
        let target = resolve_entry(workspace, path).await?;
        let name = workspace.display(&target);
        Ok(Box::new(Call { name, targets: [target], workspace: workspace.clone() }))
    }
}

#[derive(Debug)]
struct Call {
    name: String,
    targets: [Target; 1],
    workspace: Workspace,
}

#[async_trait]
impl PreparedCall for Call {
    fn title(&self) -> String {
        format!("Delete {}", code_span(&self.name))
    }

    fn targets(&self) -> &[Target] {
        &self.targets
    }

    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError> {
        let RunContext { permit, journal, .. } = context;
        effect(permit, move |cancel| {
            let [target] = self.targets;
            let path = target.path.clone();
            self.workspace.apply(&[Change::Remove { target }], cancel, &journal)?;
            let text = format!("Deleted {}.", self.name);
            Ok(ToolOutput { text, seen: vec![(path, ContentHash::Absent)], ..ToolOutput::default() })
        })
        .await
    }
}
