//! `read_multiple_files`: reads several text files. An unreadable file yields its error in place of the text.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::buffers::Buffers;
use super::content::code_span;
use super::{PreparedCall, RunContext, Tool, ToolError, ToolOutput, ToolSpec, arguments, effect, resolve};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::workspace::Workspace;

const MAX_FILES: usize = 50;

const MAX_BYTES: usize = 400 * 1024;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// Paths of the files, absolute or relative to the working directory; at most 50.
    paths: Vec<String>,
}

pub(super) struct ReadMultipleFiles(ToolSpec);

impl ReadMultipleFiles {
    pub(super) fn new() -> Self {
        Self(ToolSpec::new::<Arguments>(
            "read_multiple_files",
            ToolKind::Read,
            Effect::Read,
            "Read several text files at once, each whole and under its path.",
        ))
    }
}

#[async_trait]
impl Tool for ReadMultipleFiles {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let Arguments { paths } = arguments(&self.0.name, given)?;
        if paths.is_empty() || paths.len() > MAX_FILES {
            let reason = format!("paths has {} entries; 1 to {MAX_FILES} are read", paths.len());
            return Err(ToolError::arguments(&self.0.name, reason));
        }
        let mut targets = Vec::new();
        for path in paths {
            targets.push(resolve(workspace, path).await?);
        }
        Ok(Box::new(Call { targets, workspace: workspace.clone() }))
    }
}

#[derive(Debug)]
struct Call {
    targets: Vec<Target>,
    workspace: Workspace,
}

#[async_trait]
impl PreparedCall for Call {
    fn title(&self) -> String {
        let names: Vec<_> =
            self.targets.iter().map(|target| code_span(&self.workspace.display(target))).collect();
        format!("Read {}", names.join(", "))
    }

    fn targets(&self) -> &[Target] {
        &self.targets
    }

    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError> {
        let buffers = Buffers::of(&context.client_io, &self.targets, &context.permit.cancel).await?;
        effect(context.permit, move |_| {
            let mut output = ToolOutput::default();
            for target in &self.targets {
                let name = self.workspace.display(target);
                let text = match buffers.read(target) {
                    Ok(file) if output.text.len() + file.text.len() > MAX_BYTES => {
                        "[Omitted: the answer would be too long. Read this file separately.]".to_owned()
                    }
                    Ok(file) => {
                        output.seen.push((target.path.clone(), file.content_hash));
                        file.text
                    }
                    Err(error) => format!("[{error}]"),
                };
                let newline = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
                let note = buffers.note(target).map(|note| note + "\n").unwrap_or_default();
                for part in ["=== ", &name, " ===\n", &text, newline, &note] {
                    output.text.push_str(part);
                }
            }
            Ok(output)
        })
        .await
    }
}
