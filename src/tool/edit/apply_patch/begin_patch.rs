//! Parses patches between `*** Begin Patch` and `*** End Patch`, as some models write them. Pure.
//!
//! ```text
//! patch   = { blank | "*** Begin Patch" | section } ( "*** End Patch" | "```" | end of text )
//! section = "*** Add File: " PATH { "+" text | blank }
//!         | "*** Delete File: " PATH
//!         | ( "*** Update File: " | "*** Move File: " ) PATH [ "*** Move to: " PATH ] { blank | hunk }
//! ```
//!
//! Each part is a line, and `hunk` stands in [`hunk`]. Hunks have no line numbers. A header `@@ LINE` names a line
//! above the hunk, such as the head of its function.

use super::hunk::{self, PatchHunk, is_body, is_plain_header};
use super::unified::{FilePatch, PatchOperation};

const BEGIN: &str = "*** Begin Patch";
const END: &str = "*** End Patch";
const ADD: &str = "*** Add File: ";
const DELETE: &str = "*** Delete File: ";
const UPDATE: [&str; 2] = ["*** Update File: ", "*** Move File: "];
const MOVE_TO: &str = "*** Move to: ";

/// The first line of the patch; `None` if it is a unified diff.
pub(super) fn start(lines: &[&str]) -> Option<usize> {
    for (at, line) in lines.iter().enumerate() {
        if [BEGIN, ADD, DELETE, UPDATE[0], UPDATE[1]].iter().any(|start| line.starts_with(start)) {
            return Some(at);
        }
        if line.starts_with("diff --git ") || is_plain_header(lines, at) {
            return None;
        }
    }
    None
}

pub(super) fn parse(lines: &[&str], start: usize) -> Result<Vec<FilePatch>, String> {
    let lines = &lines[..end(lines)];
    let mut files = Vec::new();
    let mut at = start;
    while let Some(line) = lines.get(at).map(|line| line.trim_end()) {
        if line == END || line.starts_with("```") {
            break;
        }
        at = if line.is_empty() || line == BEGIN {
            at + 1
        } else {
            let (file, next) = section(lines, at)?;
            files.push(file);
            next
        };
    }
    Ok(files)
}

/// The end of the patch. Models indent the last line like the context above it.
fn end(lines: &[&str]) -> usize {
    let last = lines.iter().rposition(|line| !(line.trim().is_empty() || line.starts_with("```")));
    let indented = last.filter(|at| lines[*at].trim() == END && lines[*at].starts_with(' '));
    indented.filter(|_| !lines.iter().any(|line| line.trim_end() == END)).unwrap_or(lines.len())
}

fn section(lines: &[&str], at: usize) -> Result<(FilePatch, usize), String> {
    let line = lines[at].trim_end();
    let file = |operation, hunks| FilePatch { operation, executable: None, hunks };
    if let Some(name) = line.strip_prefix(ADD) {
        let (hunk, end) = added(lines, at + 1);
        return Ok((file(PatchOperation::Create(trimmed(name)), vec![hunk]), end));
    }
    if let Some(name) = line.strip_prefix(DELETE) {
        return Ok((file(PatchOperation::Remove(trimmed(name)), Vec::new()), at + 1));
    }
    let Some(name) = UPDATE.iter().find_map(|header| line.strip_prefix(header)) else {
        return Err(format!(
            "line {}: `{line}` belongs to no hunk. Every line of a hunk begins with a space, `-` or `+`, and every file with \
             `{ADD}PATH`, `{}PATH` or `{DELETE}PATH`",
            at + 1,
            UPDATE[0]
        ));
    };
    let to = lines.get(at + 1).and_then(|line| line.strip_prefix(MOVE_TO)).map(trimmed);
    let (hunks, end) = hunks(lines, at + 1 + usize::from(to.is_some()))?;
    let operation = match to {
        Some(to) if to != trimmed(name) => PatchOperation::Rename { from: trimmed(name), to },
        _ if hunks.is_empty() => return Err(format!("line {}: the section changes nothing", at + 1)),
        _ => PatchOperation::Modify(trimmed(name)),
    };
    Ok((file(operation, hunks), end))
}

fn trimmed(path: &str) -> String {
    path.trim().to_owned()
}

fn hunks(lines: &[&str], start: usize) -> Result<(Vec<PatchHunk>, usize), String> {
    let mut hunks = Vec::new();
    let mut at = start;
    loop {
        let next = hunk::after_blank(lines, at);
        // Blank lines above the first change of a hunk are its context.
        if !lines.get(next).is_some_and(|line| is_body(line) || line.starts_with("@@")) {
            return Ok((hunks, next));
        }
        let (hunk, end) = hunk::read(lines, next)?;
        hunks.push(hunk);
        at = end;
    }
}

fn added(lines: &[&str], start: usize) -> (PatchHunk, usize) {
    let mut end = start
        + lines[start..].iter().take_while(|line| line.starts_with('+') || line.trim().is_empty()).count();
    while end > start && !lines[end - 1].starts_with('+') {
        end -= 1;
    }
    let new = lines[start..end].iter().map(|line| line.strip_prefix('+').unwrap_or(line)).collect();
    (PatchHunk { line: start, new, ..PatchHunk::default() }, end)
}
