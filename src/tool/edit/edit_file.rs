//! `edit_file`: replaces a text in a file.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::text_change::{self, Plan};
use super::text_match::{self, Edited, MAX_COUNTED, MAX_NAMED, MatchRefusal};
use crate::acp::ToolKind;
use crate::conversation::content::ToolContent;
use crate::permission::{Effect, Target};
use crate::text::shorten;
use crate::tool::file::buffers::Buffers;
use crate::tool::file::last_seen::not_applied;
use crate::tool::file::text_file::MAX_FILE;
use crate::tool::{PreparedCall, Tool, ToolError, ToolSpec};
use crate::workspace::Workspace;

/// Characters shown of a line that an ambiguous text is in.
const MAX_LINE: usize = 160;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EditFileArguments {
    /// Path of the file.
    path: String,
    /// The text to replace, as it stands in the file, with enough around it to occur only once.
    old_text: String,
    /// The text to put there.
    new_text: String,
    /// Replace every occurrence. Default: false.
    #[serde(default)]
    replace_all: bool,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description =
        "Replace text in a file. The old text must occur exactly once, unless replace_all is set.";
    ToolSpec::new("edit_file", ToolKind::Edit, Effect::Edit, description).waiting_for_user().tool(prepare)
}

fn prepare(edit: EditFileArguments, workspace: &Workspace) -> Result<PreparedCall, ToolError> {
    let target = workspace.resolve(&edit.path)?;
    let name = workspace.display(&target);
    let (title, targets) = (format!("Edit {name}"), vec![target.clone()]);
    Ok(text_change::prepared(title, targets, workspace, move |buffers| plan(&edit, &target, &name, buffers)))
}

fn plan(edit: &EditFileArguments, target: &Target, name: &str, buffers: &Buffers) -> Result<Plan, ToolError> {
    let file = buffers.read_to_edit(target, name)?;
    let new_lines = buffers.new_lines(target, name, &file);
    let edited = match replace(&file.text, edit) {
        // In a changed file, only the text as it is tells the place that the model means.
        Ok(edited) if new_lines.is_some() && edited.is_loose => {
            let ignored = edited.ignored.join(" and ");
            Err(format!("old_text occurs only if {ignored} are ignored."))
        }
        replaced => replaced,
    };
    let edited = match edited {
        Ok(edited) => edited,
        Err(reason) => {
            return Err(not_applied(format!("{name}: {reason}"), new_lines, &target.path, &file));
        }
    };
    let mut plan = Plan::new(summary(name, &edited));
    if edited.is_loose {
        let now = text_match::lines_now(&edited.text, &edited.now);
        plan.note(&format!("Its lines now:\n{}", now.trim_end_matches('\n')));
    }
    plan.diffs.extend(ToolContent::diffs(&target.path, Some(&file.text), &edited.text, 1));
    plan.edits(0, name, &file);
    plan.write(target, None, file.encode(name, &edited.text)?, Some(&file));
    plan.note_new_lines(target, new_lines);
    Ok(plan)
}

fn replace(text: &str, edit: &EditFileArguments) -> Result<Edited, String> {
    if edit.old_text.is_empty() {
        return Err("old_text is empty. Use write_file for a new file.".into());
    }
    if edit.old_text == edit.new_text {
        return Err("old_text and new_text are the same.".into());
    }
    let max_bytes = usize::try_from(MAX_FILE).unwrap_or(usize::MAX);
    let edited = text_match::replace(text, &edit.old_text, &edit.new_text, edit.replace_all, max_bytes);
    edited.map_err(|refusal| match refusal {
        MatchRefusal::Missing(Some(listing)) => format!(
            "old_text does not occur. The nearest lines, and after `>` what old_text has instead:\n{listing}"
        ),
        MatchRefusal::Missing(None) => {
            "old_text does not occur, and no lines are similar. Read the file again.".into()
        }
        MatchRefusal::Ambiguous { lines, count } => ambiguous(text, &lines, count),
        MatchRefusal::Unchanged => "the file has new_text already.".into(),
        MatchRefusal::Elided(line) => format!(
            "new_text has the line `{}`, and old_text has not: the code that it stands for would be lost. Write that code, or \
             give old_text the same line between two parts that occur once.",
            shorten(&line, MAX_LINE)
        ),
        MatchRefusal::Large(bytes) => {
            format!("the result would have {bytes} bytes; at most {MAX_FILE} are written.")
        }
    })
}

/// `lines` are the first of the places.
fn ambiguous(text: &str, lines: &[usize], count: usize) -> String {
    let times = if count > MAX_COUNTED { format!("more than {MAX_COUNTED}") } else { count.to_string() };
    let mut reason = format!("old_text occurs {times} times:\n");
    for line in lines {
        let start = text.lines().nth(line - 1).unwrap_or_default();
        reason += &format!("{line:>6}\t{}\n", shorten(start, MAX_LINE));
    }
    if count > lines.len() {
        reason += "[…]\n";
    }
    reason + "Give more of the text around it, or set replace_all."
}

fn summary(name: &str, edited: &Edited) -> String {
    let Edited { lines, added, removed, ignored, .. } = edited;
    let places = match lines.as_slice() {
        [line] => format!("{name}:{line}"),
        lines => format!("{name} in {} places, lines {}", lines.len(), list(lines)),
    };
    let how = if ignored.is_empty() {
        String::new()
    } else {
        format!("; matched ignoring {}", ignored.join(" and "))
    };
    format!("Edited {places} (+{added} -{removed}{how})")
}

pub(super) fn list(lines: &[usize]) -> String {
    let first_lines: Vec<_> = lines.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let more = if lines.len() > MAX_NAMED { " and more" } else { "" };
    first_lines.join(", ") + more
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str, old: &str, new: &str, expected: &str) {
        assert_eq!(outcome(file, old, new), expected);
    }

    fn outcome(file: &str, old: &str, new: &str) -> String {
        let replace_all = new == "all";
        let edit = EditFileArguments {
            path: String::new(),
            old_text: old.into(),
            new_text: new.into(),
            replace_all,
        };
        replace(file, &edit).map_or_else(|reason| reason, |edited| summary("f", &edited))
    }

    #[test]
    fn results_name_lines_and_what_was_ignored() {
        check("a\nb\nc", "b", "x\ny", "Edited f:2 (+2 -1)");
        check("a\nb\na", "a", "all", "Edited f in 2 places, lines 1, 3 (+2 -2)");
        check(
            "a\n\tb\n",
            "1\ta\n2\t  b\n",
            "a\n",
            "Edited f:2 (+0 -1; matched ignoring line numbers and indentation)",
        );
    }

    #[test]
    fn failed_edits_explain_the_next_step() {
        check("a\nb", "x", "y", "old_text does not occur, and no lines are similar. Read the file again.");
        check(
            "one two\nthree\n",
            "one too\nthree",
            "y",
            "old_text does not occur. The nearest lines, and after `>` what old_text has instead:\n     \
             1\tone two\n     >\tone too\n     2\tthree\n",
        );
        check(
            "a\nb\na",
            "a",
            "y",
            "old_text occurs 2 times:\n     1\ta\n     3\ta\nGive more of the text around it, or set replace_all.",
        );
        check(
            &"x a\n".repeat(7),
            "a",
            "y",
            "old_text occurs 7 times:\n     1\tx a\n     2\tx a\n     3\tx a\n     4\tx a\n     5\tx a\n[…]\nGive more of the \
             text around it, or set replace_all.",
        );
        let many = outcome(&"a\n".repeat(MAX_COUNTED + 1), "a", "y");
        assert!(many.starts_with("old_text occurs more than 100 times:\n     1\ta\n"), "{many}");
        check("a", "", "y", "old_text is empty. Use write_file for a new file.");
        check("a", "a", "a", "old_text and new_text are the same.");
        check("\"a\"", "“a”", "\"a\"", "the file has new_text already.");
    }

    #[test]
    fn new_text_leaves_no_code_out_that_old_text_has() {
        let file = "def f(x):\n    if not x:\n        return 0\n    return 1\n";
        let line = "    # ... existing code ...\n";
        let new = format!("def f(x):\n{line}    return 2\n");
        check(
            file,
            file,
            &new,
            "new_text has the line `# ... existing code ...`, and old_text has not: the code that it stands for would be \
             lost. Write that code, or give old_text the same line between two parts that occur once.",
        );
        // The controls: both texts have the line, or the file does.
        let old = format!("def f(x):\n{line}    return 1\n");
        check(file, &old, &new, "Edited f:4 (+1 -1; matched ignoring the lines left out)");
        check(&old, &old, &new, "Edited f:3 (+1 -1)");
    }
}
