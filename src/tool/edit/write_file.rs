//! `write_file`: creates or replaces a whole text file.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::text_change::{self, Plan};
use super::text_match::elided;
use crate::acp::ToolKind;
use crate::conversation::content::ToolContent;
use crate::permission::{Effect, Target};
use crate::text::shorten;
use crate::tool::file::buffers::Buffers;
use crate::tool::file::text_file::MAX_FILE;
use crate::tool::{PreparedCall, Tool, ToolError, ToolSpec};
use crate::workspace::{ContentHash, Workspace};

/// Characters shown of a line that leaves code out.
const MAX_LINE: usize = 160;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WriteFileArguments {
    /// Path of the file. Missing folders are created.
    path: String,
    /// The whole content.
    content: String,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description =
        "Write a whole text file. Read an existing file first; to change a part of it, use edit_file.";
    ToolSpec::new("write_file", ToolKind::Edit, Effect::Edit, description).waiting_for_user().tool(prepare)
}

fn prepare(
    WriteFileArguments { path, content }: WriteFileArguments,
    workspace: &Workspace,
) -> Result<PreparedCall, ToolError> {
    if content.len() as u64 > MAX_FILE {
        let reason = format!("content has {} bytes; at most {MAX_FILE} are written", content.len());
        return Err(ToolError::arguments(reason));
    }
    let target = workspace.resolve(&path)?;
    let name = workspace.display(&target);
    let (title, targets) = (format!("Write {name}"), vec![target.clone()]);
    Ok(text_change::prepared(title, targets, workspace, move |buffers| {
        plan(&content, &target, &name, buffers)
    }))
}

fn plan(content: &str, target: &Target, name: &str, buffers: &Buffers) -> Result<Plan, ToolError> {
    if !target.path.exists() {
        buffers.check_new(target)?;
        let mut plan = Plan::new(format!("Created {name} ({} bytes).", content.len()));
        plan.diffs.extend(ToolContent::diffs(&target.path, None, content, 1));
        plan.depends_on(0, name, ContentHash::Absent);
        plan.write(target, None, content.into(), None);
        return Ok(plan);
    }
    let old = buffers.read_to_replace(target, name)?;
    // `encode` restores the mark; a copy by the model would double it.
    let new = old.with_endings(content.trim_start_matches('\u{feff}'));
    if let Some(line) = elided(&old.text, &new) {
        return Err(ToolError::Failed(format!(
            "content has the line `{}`, and {name} has not: the code that it stands for would be lost. Send the whole content, \
             or change a part of the file with edit_file.",
            shorten(line, MAX_LINE)
        )));
    }
    let bytes = old.encode(name, &new)?;
    let mut plan = Plan::new(format!("Replaced {name} ({} bytes).", bytes.len()));
    plan.diffs.extend(ToolContent::diffs(&target.path, Some(&old.text), &new, 1));
    plan.replaces(0, name, &old);
    plan.write(target, None, bytes, Some(&old));
    Ok(plan)
}
