//! `move_file`: moves or renames a file or directory. Never overwrites.

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
use crate::workspace::{Change, Workspace};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// Path of the file or directory, absolute or relative to the working directory.
    from: String,
    /// New path, which must not exist. Missing folders are created.
    to: String,
}

pub(super) struct MoveFile(ToolSpec);

impl MoveFile {
    pub(super) fn new() -> Self {
        Self(ToolSpec::new::<Arguments>(
            "move_file",
            ToolKind::Move,
            Effect::Edit,
            "Move or rename a file or a directory. Nothing is overwritten.",
        ))
    }
}

#[async_trait]
impl Tool for MoveFile {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let Arguments { from, to } = arguments(&self.0.name, given)?;
        let targets = [resolve_entry(workspace, from).await?, resolve_entry(workspace, to).await?];
        let [from, to] = [&targets[0], &targets[1]].map(|target| workspace.display(target));
        Ok(Box::new(Call { from, to, targets, workspace: workspace.clone() }))
    }
}

#[derive(Debug)]
struct Call {
    from: String,
    to: String,
    targets: [Target; 2],
    workspace: Workspace,
}

#[async_trait]
impl PreparedCall for Call {
    fn title(&self) -> String {
        format!("Move {} to {}", code_span(&self.from), code_span(&self.to))
    }

    fn targets(&self) -> &[Target] {
        &self.targets
    }

    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError> {
        let RunContext { permit, journal, .. } = context;
        effect(permit, move |cancel| {
            let Self { from: old, to: new, targets: [from, to], workspace } = *self;
            workspace.apply(&[Change::Rename { from, to }], cancel, &journal)?;
            Ok(ToolOutput { text: format!("Moved {old} to {new}."), ..ToolOutput::default() })
        })
        .await
    }
}
