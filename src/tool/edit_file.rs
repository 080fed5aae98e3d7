//! `edit_file`: replaces an exact text in a file.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::buffers::Buffers;
use super::text_change::{self, Plan};
use super::text_file::{MAX_FILE, TextFile, encode};
use super::{PreparedCall, Tool, ToolContent, ToolError, ToolSpec};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::workspace::Workspace;

#[derive(Debug, Deserialize, JsonSchema)]
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

pub(super) fn tool() -> Arc<dyn Tool> {
    let what = "Replace text in a file. The old text must occur exactly once, unless replace_all is set.";
    ToolSpec::new("edit_file", ToolKind::Edit, Effect::Edit, what).tool(prepare)
}

fn prepare(edit: Arguments, workspace: &Workspace) -> Result<PreparedCall, ToolError> {
    let target = workspace.resolve(&edit.path)?;
    let name = workspace.display(&target);
    let (title, targets) = (format!("Edit {name}"), vec![target.clone()]);
    let plan = move |buffers: &Buffers| plan(&edit, &target, &name, buffers);
    Ok(text_change::prepared(title, targets, workspace, plan))
}

fn plan(edit: &Arguments, target: &Target, name: &str, buffers: &Buffers) -> Result<Plan, ToolError> {
    let file = buffers.read_to_change(target)?;
    if file.lossy {
        return Err(ToolError::Failed(format!("{name} is not UTF-8 and is not edited as text.")));
    }
    let (new, count) =
        replace(&file, edit).map_err(|reason| ToolError::Failed(format!("{name}: {reason}")))?;
    let times = if count == 1 { "once".into() } else { format!("{count} times") };
    let mut plan = Plan::new(format!("Edited {name}: replaced {times}."));
    plan.diffs.push(ToolContent::diff(&target.path, Some(&file.text), &new, 1));
    plan.depends_on(0, name, file.content_hash);
    plan.write(target, None, encode(file.bom, &new), Some(&file));
    Ok(plan)
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
