//! Diffs of version 2: the changed files and a git patch with absolute paths. Pure.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::updates;
use crate::acp::{Diff, ToolCallContent, ToolCallLocation, v2};
use crate::line_diff::{self, lines};

/// Converts the diffs of one call. A diff may be a region of its file, whose place the locations give: each diff
/// of an existing file has one, in order.
pub(super) struct DiffConverter<'a> {
    locations: std::slice::Iter<'a, ToolCallLocation>,
    /// Lines that earlier regions of a file have added.
    added: HashMap<PathBuf, i64>,
}

impl<'a> DiffConverter<'a> {
    pub(super) fn new(locations: &'a [ToolCallLocation]) -> Self {
        Self { locations: locations.iter(), added: HashMap::new() }
    }

    /// The patch is missing if the place of the region is unknown.
    pub(super) fn convert(&mut self, diff: &Diff) -> v2::Diff {
        let path = &diff.path;
        let Some(old) = &diff.old_text else {
            let change = v2::DiffChange::add(path.clone()).file_type(v2::DiffFileType::Text);
            return v2::Diff::patch(git_patch(path, None, &diff.new_text, (0, 0)), vec![change]);
        };
        let change = v2::DiffChange::modify(path.clone()).file_type(v2::DiffFileType::Text);
        let converted = v2::Diff::new(vec![change]);
        match self.lines_before(path, old, &diff.new_text) {
            Some(before) => {
                let text = git_patch(path, Some(old), &diff.new_text, before);
                converted.with_patch(v2::DiffPatch::new(text))
            }
            None => converted,
        }
    }

    /// Returns the numbers of lines before the region, in the old and in the new text.
    fn lines_before(&mut self, path: &Path, old: &str, new: &str) -> Option<(usize, usize)> {
        let location = self.locations.next().filter(|location| location.path == *path)?;
        let (old, new) = (lines(old), lines(new));
        let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
        let new_before = (location.line? as usize).checked_sub(same + 1)?;
        let added = self.added.entry(path.to_owned()).or_default();
        let old_before = usize::try_from(i64::try_from(new_before).ok()? - *added).ok()?;
        *added += i64::try_from(new.len()).ok()? - i64::try_from(old.len()).ok()?;
        Some((old_before, new_before))
    }
}

/// `before` has the numbers of lines before the texts in their files.
fn git_patch(path: &Path, old: Option<&str>, new: &str, before: (usize, usize)) -> String {
    let name = quoted(path);
    let (before_name, mode) =
        if old.is_some() { (name.as_str(), "") } else { ("/dev/null", "new file mode 100644\n") };
    let mut text = format!("diff --git {name} {name}\n{mode}");
    let (old, new) = (lines(old.unwrap_or_default()), lines(new));
    let hunks = line_diff::hunks(&old, &new);
    if !hunks.is_empty() {
        writeln!(text, "--- {before_name}\n+++ {name}").expect("writing to a string cannot fail");
    }
    for hunk in &hunks {
        hunk.write(&mut text, (&old, &new), before);
    }
    text
}

/// Quotes a path as git does.
fn quoted(path: &Path) -> String {
    let path = path.to_string_lossy();
    if !path.contains(|character: char| character.is_control() || matches!(character, '"' | '\\')) {
        return path.into_owned();
    }
    let mut quoted = String::from("\"");
    for character in path.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            character if character.is_control() => {
                let mut bytes = [0; 4];
                for byte in character.encode_utf8(&mut bytes).bytes() {
                    write!(quoted, "\\{byte:03o}").expect("writing to a string cannot fail");
                }
            }
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns the converted content of a call.
pub(super) fn content(
    content: &[ToolCallContent],
    locations: &[ToolCallLocation],
) -> Vec<v2::ToolCallContent> {
    let mut diffs = DiffConverter::new(locations);
    content
        .iter()
        .filter_map(|item| match item {
            ToolCallContent::Content(content) => {
                let block = updates::block(&content.content)?;
                Some(v2::ToolCallContent::Content(Box::new(v2::Content::new(block))))
            }
            ToolCallContent::Diff(diff) => Some(v2::ToolCallContent::Diff(diffs.convert(diff))),
            ToolCallContent::Terminal(terminal) => {
                Some(v2::ToolCallContent::Terminal(v2::Terminal::new(terminal.terminal_id.0.clone())))
            }
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_files_become_patches_with_absolute_paths() {
        let diff = Diff::new("/p/a b", "one\ntwo\n").old_text("one\n".to_owned());
        let locations = [ToolCallLocation::new("/p/a b").line(2)];
        let converted = DiffConverter::new(&locations).convert(&diff);
        assert_eq!(
            serde_json::to_value(converted).unwrap(),
            json!({
                "changes": [{ "operation": "modify", "path": "/p/a b", "fileType": "text" }],
                "patch": { "format": "git_patch", "text": "diff --git /p/a b /p/a b\n--- /p/a b\n+++ /p/a b\n\
                    @@ -1 +1,2 @@\n one\n+two\n" },
            })
        );
    }

    #[test]
    fn new_files_have_no_old_name() {
        let text = git_patch(Path::new("/p/\"new\""), None, "x", (0, 0));
        let name = "\"/p/\\\"new\\\"\"";
        assert_eq!(
            text,
            format!(
                "diff --git {name} {name}\nnew file mode 100644\n--- /dev/null\n+++ {name}\n@@ -0,0 +1 @@\n+x\n\
                 \\ No newline at end of file\n"
            )
        );
    }

    #[test]
    fn regions_of_a_file_keep_their_line_numbers() {
        let locations = [ToolCallLocation::new("/a").line(11), ToolCallLocation::new("/a").line(52)];
        let mut diffs = DiffConverter::new(&locations);
        let mut hunk = |old: &str, new: &str| {
            let converted = diffs.convert(&Diff::new("/a", new).old_text(old.to_owned()));
            let text = converted.patch.unwrap().text;
            text.lines().find(|line| line.starts_with("@@")).unwrap().to_owned()
        };
        assert_eq!(hunk("same\nold\n", "same\nnew\nmore\n"), "@@ -10,2 +10,3 @@");
        assert_eq!(hunk("x\n", "y\n"), "@@ -51 +52 @@");
    }

    #[test]
    fn regions_at_unknown_places_have_no_patch() {
        let converted = DiffConverter::new(&[]).convert(&Diff::new("/a", "b").old_text("a".to_owned()));
        assert_eq!(converted.patch, None);
        assert_eq!(converted.changes.len(), 1);
    }
}
