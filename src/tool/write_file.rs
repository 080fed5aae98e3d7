//! `write_file`: creates or replaces a whole text file.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::buffers::Buffers;
use super::save::{Planned, Planning, change_text};
use super::text_file::{MAX_FILE, check_unchanged, encode};
use super::{
    ClientIo, PreparedCall, RunContext, Tool, ToolContent, ToolError, ToolOutput, ToolSpec, arguments,
    blocking, resolve,
};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::workspace::{Change, ContentHash, Workspace};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// Path of the file, absolute or relative to the working directory. Missing folders are created.
    path: String,
    /// The whole content.
    content: String,
}

pub(super) struct WriteFile(ToolSpec);

impl WriteFile {
    pub(super) fn new() -> Self {
        Self(ToolSpec::new::<Arguments>(
            "write_file",
            ToolKind::Edit,
            Effect::Edit,
            "Write a whole text file, new or in the place of an old one. To change a part of a file, use edit_file.",
        ))
    }
}

#[async_trait]
impl Tool for WriteFile {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let Arguments { path, content } = arguments(&self.0.name, given)?;
        if content.len() as u64 > MAX_FILE {
            let reason = format!("content has {} bytes; at most {MAX_FILE} are written", content.len());
            return Err(ToolError::arguments(&self.0.name, reason));
        }
        let target = resolve(workspace, path).await?;
        let title = format!("Write {}", workspace.display(&target));
        Ok(Box::new(Call { title, targets: [target], content, workspace: workspace.clone(), shown: None }))
    }
}

#[derive(Debug, Clone)]
struct Call {
    title: String,
    targets: [Target; 1],
    content: String,
    workspace: Workspace,
    /// Hash of the content that the permission request showed.
    shown: Option<ContentHash>,
}

#[async_trait]
impl PreparedCall for Call {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn targets(&self) -> &[Target] {
        &self.targets
    }

    async fn preview(&mut self, client_io: &ClientIo) -> Result<Vec<ToolContent>, ToolError> {
        let call = self.clone();
        let buffers = Buffers::to_change(client_io, &self.targets, &CancellationToken::new()).await?;
        let plan = blocking(move || call.plan(&buffers)).await?;
        self.shown = Some(plan.before);
        Ok(vec![plan.diff])
    }

    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError> {
        let (targets, workspace) = (self.targets.clone(), self.workspace.clone());
        change_text(context, &targets, workspace, move |buffers, last_seen| {
            let plan = self.plan(buffers)?;
            let [target] = &self.targets;
            let name = self.workspace.display(target);
            check_unchanged(&name, plan.before, last_seen.first().copied().flatten(), self.shown)?;
            let done = if plan.before == ContentHash::Absent { "Created" } else { "Replaced" };
            let output = ToolOutput {
                text: format!("{done} {name} ({} bytes).", plan.bytes.len()),
                content: vec![plan.diff],
                seen: vec![(target.path.clone(), ContentHash::of(&plan.bytes))],
                ..ToolOutput::default()
            };
            let change = Change::Write { target: target.clone(), content: plan.bytes, like: None };
            let planning = Planning { change, before: plan.old, unsaved: plan.unsaved };
            Ok(Planned { changes: vec![planning], output })
        })
        .await
    }
}

struct Plan {
    before: ContentHash,
    old: Option<Vec<u8>>,
    unsaved: bool,
    bytes: Vec<u8>,
    diff: ToolContent,
}

impl Call {
    fn plan(&self, buffers: &Buffers) -> Result<Plan, ToolError> {
        let path = self.targets[0].path.clone();
        if !path.exists() {
            buffers.check_new(&self.targets[0])?;
            let diff = ToolContent::diff(&path, None, &self.content, 1);
            let bytes = self.content.clone().into_bytes();
            return Ok(Plan { before: ContentHash::Absent, old: None, unsaved: false, bytes, diff });
        }
        let old = buffers.read_to_change(&self.targets[0])?;
        if old.lossy {
            let name = self.workspace.display(&self.targets[0]);
            return Err(ToolError::Failed(format!("{name} is not UTF-8 and is not replaced as text.")));
        }
        // `encode` restores the mark; a copy by the model would double it.
        let new = old.with_endings(self.content.trim_start_matches('\u{feff}'));
        let bytes = encode(old.bom, &new);
        let diff = ToolContent::diff(&path, Some(&old.text), &new, 1);
        let (before, unsaved) = (old.content_hash, old.unsaved);
        Ok(Plan { before, old: Some(encode(old.bom, &old.text)), unsaved, bytes, diff })
    }
}
