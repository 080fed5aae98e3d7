//! `edit_file`: replaces an exact text in a file.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::buffers::Buffers;
use super::save::{Planned, Planning, change_text};
use super::text_file::{MAX_FILE, TextFile, check_unchanged, encode};
use super::{
    ClientIo, PreparedCall, RunContext, Tool, ToolContent, ToolError, ToolOutput, ToolSpec, arguments,
    blocking, resolve,
};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::workspace::{Change, ContentHash, Workspace};

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// Path of the file, absolute or relative to the working directory.
    path: String,
    /// The text to replace, exactly as it stands in the file, with enough around it to occur only once.
    old_text: String,
    /// The text to put there.
    new_text: String,
    /// Replace every occurrence. Default: false.
    #[serde(default)]
    replace_all: bool,
}

pub(super) struct EditFile(ToolSpec);

impl EditFile {
    pub(super) fn new() -> Self {
        Self(ToolSpec::new::<Arguments>(
            "edit_file",
            ToolKind::Edit,
            Effect::Edit,
            "Replace text in a file. The old text must occur exactly once, unless replace_all is set.",
        ))
    }
}

#[async_trait]
impl Tool for EditFile {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let edit: Arguments = arguments(&self.0.name, given)?;
        let target = resolve(workspace, edit.path.clone()).await?;
        let name = workspace.display(&target);
        Ok(Box::new(Call { name, targets: [target], edit, workspace: workspace.clone(), shown: None }))
    }
}

#[derive(Debug, Clone)]
struct Call {
    name: String,
    targets: [Target; 1],
    edit: Arguments,
    workspace: Workspace,
    /// The content in the preview, if the user saw one.
    shown: Option<ContentHash>,
}

#[async_trait]
impl PreparedCall for Call {
    fn title(&self) -> String {
        format!("Edit {}", self.name)
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
            let name = &self.name;
            check_unchanged(name, plan.before, last_seen.first().copied().flatten(), self.shown)?;
            let times = if plan.count == 1 { "once".into() } else { format!("{} times", plan.count) };
            let output = ToolOutput {
                text: format!("Edited {name}: replaced {times}."),
                content: vec![plan.diff],
                seen: vec![(self.targets[0].path.clone(), ContentHash::of(&plan.bytes))],
                ..ToolOutput::default()
            };
            let change = Change::Write { target: self.targets[0].clone(), content: plan.bytes, like: None };
            let planning = Planning { change, before: Some(plan.old), unsaved: plan.unsaved };
            Ok(Planned { changes: vec![planning], output })
        })
        .await
    }
}

struct Plan {
    before: ContentHash,
    old: Vec<u8>,
    unsaved: bool,
    bytes: Vec<u8>,
    count: usize,
    diff: ToolContent,
}

impl Call {
    fn plan(&self, buffers: &Buffers) -> Result<Plan, ToolError> {
        let file = buffers.read_to_change(&self.targets[0])?;
        if file.lossy {
            return Err(ToolError::Failed(format!("{} is not UTF-8 and is not edited as text.", self.name)));
        }
        let (new, count) = replace(&file, &self.edit)
            .map_err(|reason| ToolError::Failed(format!("{}: {reason}", self.name)))?;
        let bytes = encode(file.bom, &new);
        let diff = ToolContent::diff(&self.targets[0].path, Some(&file.text), &new, 1);
        let old = encode(file.bom, &file.text);
        Ok(Plan { before: file.content_hash, old, unsaved: file.unsaved, bytes, count, diff })
    }
}

fn replace(file: &TextFile, edit: &Arguments) -> Result<(String, usize), String> {
    if edit.old_text.is_empty() {
        return Err("old_text is empty. Use write_file for a new file.".into());
    }
    if edit.old_text == edit.new_text {
        return Err("old_text and new_text are the same.".into());
    }
    // Models write LF; a file that uses CRLF throughout keeps CRLF.
    let (old, new) = (file.with_endings(&edit.old_text), file.with_endings(&edit.new_text));
    let count = file.text.matches(&old).count();
    let length = file.text.len() - count * old.len() + count * new.len();
    match count {
        0 => {
            Err("old_text does not occur. Read the file and copy the text exactly, indentation included."
                .into())
        }
        _ if count > 1 && !edit.replace_all => Err(format!(
            "old_text occurs {count} times, at lines {}. Give more of the text around it, or set replace_all.",
            lines(&file.text, &old)
        )),
        _ if length as u64 > MAX_FILE => {
            Err(format!("the result would have {length} bytes; at most {MAX_FILE} are written."))
        }
        count => Ok((file.text.replace(&old, &new), count)),
    }
}

fn lines(text: &str, part: &str) -> String {
    let (mut line, mut from) = (1, 0);
    let shown = text.match_indices(part).take(10).map(|(at, _)| {
        line += text[from..at].matches('\n').count();
        from = at;
        line.to_string()
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str, old: &str, new: &str, expected: &str) {
        let file = TextFile::decode(file.into()).unwrap();
        let edit =
            Arguments { path: String::new(), old_text: old.into(), new_text: new.into(), replace_all: false };
        let outcome = replace(&file, &edit).map_or_else(|reason| reason, |(text, _)| text);
        assert_eq!(outcome, expected);
    }

    #[test]
    fn line_endings_and_final_newline_are_preserved() {
        check("a\nb\nc", "b", "x\ny", "a\nx\ny\nc");
        check("a\r\nb\r\nc\r\n", "a\nb", "x\ny", "x\r\ny\r\nc\r\n");
        check("a\r\nb\n", "b\n", "x\n", "a\r\nx\n");
    }

    #[test]
    fn failed_edits_explain_the_next_step() {
        check(
            "a\nb",
            "x",
            "y",
            "old_text does not occur. Read the file and copy the text exactly, indentation included.",
        );
        check(
            "a\nb\na",
            "a",
            "y",
            "old_text occurs 2 times, at lines 1, 3. Give more of the text around it, or set replace_all.",
        );
        check("a", "", "y", "old_text is empty. Use write_file for a new file.");
        check("a", "a", "a", "old_text and new_text are the same.");
    }
}
