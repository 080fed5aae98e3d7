//! `read_file`: a text file, whole or a range of lines.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::buffers::Buffers;
use super::content::code_span;
use super::{PreparedCall, Tool, ToolError, ToolOutput, ToolSpec, effect};
use crate::acp::ToolKind;
use crate::permission::Effect;
use crate::workspace::Workspace;

/// Default and maximum number of lines.
pub(super) const MAX_LINES: u32 = 2000;

const MAX_BYTES: usize = 200 * 1024;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// Path of the file, absolute or relative to the working directory.
    path: String,
    /// First line to read, counted from 1. Default: 1.
    #[serde(default)]
    line: Option<u32>,
    /// Number of lines to read. Default and maximum: 2000.
    #[serde(default)]
    limit: Option<u32>,
}

pub(super) fn tool() -> Arc<dyn Tool> {
    let what = "Read a text file, whole or from a given line. Read a file before you edit it.";
    ToolSpec::new("read_file", ToolKind::Read, Effect::Read, what).tool(prepare)
}

fn prepare(given: Arguments, workspace: &Workspace) -> Result<PreparedCall, ToolError> {
    let Arguments { path, line, limit } = given;
    let target = workspace.resolve(&path)?;
    let first = line.unwrap_or(1).max(1);
    let range = match limit {
        None if first == 1 => String::new(),
        None => format!(" from line {first}"),
        Some(limit) => format!(" ({first}-{})", first.saturating_add(limit).saturating_sub(1)),
    };
    let title = format!("Read {}{range}", code_span(&workspace.display(&target)));
    let targets = vec![target.clone()];
    let call = PreparedCall::new(title, async move |context| {
        let targets = std::slice::from_ref(&target);
        let buffers = Buffers::of(&context.client_io, targets, &context.permit.cancel).await?;
        effect(context.permit, move |_| {
            let file = buffers.read(&target)?;
            let limit = limit.unwrap_or(MAX_LINES).clamp(1, MAX_LINES);
            let mut text = excerpt(&file.text, first, limit)?;
            if file.lossy {
                text.push_str("\n[The file is not UTF-8: invalid bytes are shown as \u{fffd}.]");
            }
            if let Some(note) = buffers.note(&target) {
                text.push('\n');
                text.push_str(&note);
            }
            Ok(ToolOutput { seen: vec![(target.path, file.content_hash)], ..ToolOutput::text(text) })
        })
        .await
    });
    Ok(PreparedCall { targets, line: line.filter(|line| *line > 0), ..call })
}

/// Returns the lines and, if more follow, a note with the next line number.
pub(super) fn excerpt(text: &str, first: u32, limit: u32) -> Result<String, ToolError> {
    let total = text.lines().count();
    if text.is_empty() {
        return Ok("[The file is empty.]".into());
    }
    let start = (first - 1) as usize;
    if start >= total {
        return Err(ToolError::Failed(format!("The file has {total} lines; there is no line {first}.")));
    }
    let mut excerpt = String::new();
    let mut taken = 0;
    for line in text.split_inclusive('\n').skip(start).take(limit as usize) {
        if excerpt.len() + line.len() > MAX_BYTES {
            break;
        }
        excerpt.push_str(line);
        taken += 1;
    }
    if taken == 0 {
        return Err(ToolError::Failed(format!("Line {first} alone has more than {MAX_BYTES} bytes.")));
    }
    let last = start + taken;
    if last < total {
        use std::fmt::Write;
        let newline = if excerpt.ends_with('\n') { "" } else { "\n" };
        write!(excerpt, "{newline}[Lines {first}-{last} of {total}. Continue with line {}.]", last + 1)
            .expect("writing to a string cannot fail");
    }
    Ok(excerpt)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, first: u32, limit: u32, expected: &str) {
        let excerpt = excerpt(text, first, limit).unwrap_or_else(|error| error.to_string());
        assert_eq!(excerpt, expected);
    }

    #[test]
    fn partial_reads_name_the_next_line() {
        check("a\nb\n", 1, 2000, "a\nb\n");
        check("a\r\nb", 1, 2000, "a\r\nb");
        check("a\nb\nc", 1, 2, "a\nb\n[Lines 1-2 of 3. Continue with line 3.]");
        check("a\nb\nc", 3, 2, "c");
        check("a\nb\nc", 4, 1, "The file has 3 lines; there is no line 4.");
        check("", 1, 10, "[The file is empty.]");
    }
}
