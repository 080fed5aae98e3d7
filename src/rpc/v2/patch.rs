//! Diffs of version 2: the changed files and a git patch with absolute paths. Pure.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::updates;
use crate::acp::{Diff, ToolCallContent, ToolCallLocation, v2};
use crate::conversation::acp_updates::OPERATION_META;
use crate::conversation::content::PathChange;
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
    pub(super) fn convert(&mut self, diff: &Diff, operation: Option<&PathChange>) -> v2::Diff {
        let path = &diff.path;
        let place = match &diff.old_text {
            None => Some((0, 0)),
            Some(old) => self.lines_before(path, old, &diff.new_text),
        };
        let is_new = diff.old_text.is_none();
        let change = match operation {
            Some(operation) => change(operation),
            None if is_new => v2::DiffChange::add(path.clone()),
            None => v2::DiffChange::modify(path.clone()),
        };
        let converted = v2::Diff::new(vec![change.file_type(v2::DiffFileType::Text)]);
        let Some(before) = place else { return converted };
        let (names, header) = names(path, operation, is_new);
        let texts = (diff.old_text.as_deref().unwrap_or_default(), &*diff.new_text);
        converted.with_patch(v2::DiffPatch::new(git_patch(&names, &header, texts, before)))
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

/// The names of a file in a patch.
struct PatchNames {
    /// In the first line.
    git: [String; 2],
    old: String,
    new: String,
}

/// Returns the names, and the lines after the first one.
fn names(path: &Path, operation: Option<&PathChange>, is_new: bool) -> (PatchNames, String) {
    let (name, none) = (quoted(path), "/dev/null".to_owned());
    let same = |old: String, new: String| PatchNames { git: [name.clone(), name.clone()], old, new };
    let pair = |from: &Path, what: &str| {
        let old = quoted(from);
        let header = format!("{what} from {old}\n{what} to {name}\n");
        (PatchNames { git: [old.clone(), name.clone()], old, new: name.clone() }, header)
    };
    match operation {
        Some(PathChange::Delete(_)) => (same(name.clone(), none), "deleted file mode 100644\n".to_owned()),
        Some(PathChange::Move { from, .. }) => pair(from, "rename"),
        Some(PathChange::Copy { from, .. }) => pair(from, "copy"),
        None if is_new => (same(none, name.clone()), "new file mode 100644\n".to_owned()),
        None => (same(name.clone(), name.clone()), String::new()),
    }
}

/// `before` has the numbers of lines before the texts in their files.
fn git_patch(names: &PatchNames, header: &str, texts: (&str, &str), before: (usize, usize)) -> String {
    let PatchNames { git: [old_name, new_name], old: before_name, new: after_name } = names;
    let mut text = format!("diff --git {old_name} {new_name}\n{header}");
    let (old, new) = (lines(texts.0), lines(texts.1));
    let hunks = line_diff::hunks(&old, &new);
    if !hunks.is_empty() {
        writeln!(text, "--- {before_name}\n+++ {after_name}").expect("writing to a string cannot fail");
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

/// Returns the operation that an item tells of, by the path of its file.
fn operation(item: &ToolCallContent) -> Option<(PathBuf, PathChange)> {
    let ToolCallContent::Diff(diff) = item else { return None };
    let operation = diff.meta.as_ref()?.get(OPERATION_META)?;
    Some((diff.path.clone(), serde_json::from_value(operation.clone()).ok()?))
}

/// Returns the path of a diff that has a text.
fn diff_path(item: &ToolCallContent) -> Option<&Path> {
    match item {
        ToolCallContent::Diff(diff) if operation(item).is_none() => Some(&diff.path),
        _ => None,
    }
}

fn change(operation: &PathChange) -> v2::DiffChange {
    match operation {
        PathChange::Delete(path) => v2::DiffChange::delete(path.clone()),
        PathChange::Move { from, to } => v2::DiffChange::move_file(from.clone(), to.clone()),
        PathChange::Copy { from, to } => v2::DiffChange::copy(from.clone(), to.clone()),
    }
}

/// Returns the converted content of a call.
pub(super) fn content(
    content: &[ToolCallContent],
    locations: &[ToolCallLocation],
) -> Vec<v2::ToolCallContent> {
    let mut diffs = DiffConverter::new(locations);
    let operations: HashMap<PathBuf, PathChange> = content.iter().filter_map(operation).collect();
    let shown: HashSet<&Path> = content.iter().filter_map(diff_path).collect();
    content
        .iter()
        .filter_map(|item| match item {
            ToolCallContent::Content(content) => {
                let block = updates::block(&content.content)?;
                Some(v2::ToolCallContent::Content(Box::new(v2::Content::new(block))))
            }
            ToolCallContent::Diff(diff) if operation(item).is_some() => {
                let operation = operations.get(&diff.path).filter(|_| !shown.contains(&*diff.path))?;
                Some(v2::ToolCallContent::Diff(v2::Diff::new(vec![change(operation)])))
            }
            ToolCallContent::Diff(diff) => {
                Some(v2::ToolCallContent::Diff(diffs.convert(diff, operations.get(&diff.path))))
            }
            ToolCallContent::Session(session) => {
                Some(v2::ToolCallContent::Session(v2::SessionReference::new(session.session_id.0.clone())))
            }
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
    use crate::acp::Meta;

    #[test]
    fn whole_files_become_patches_with_absolute_paths() {
        let diff = Diff::new("/p/a b", "one\ntwo\n").old_text("one\n".to_owned());
        let locations = [ToolCallLocation::new("/p/a b").line(2)];
        let converted = DiffConverter::new(&locations).convert(&diff, None);
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
        let text = DiffConverter::new(&[]).convert(&Diff::new("/p/\"new\"", "x"), None).patch.unwrap().text;
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
            let converted = diffs.convert(&Diff::new("/a", new).old_text(old.to_owned()), None);
            let text = converted.patch.unwrap().text;
            text.lines().find(|line| line.starts_with("@@")).unwrap().to_owned()
        };
        assert_eq!(hunk("same\nold\n", "same\nnew\nmore\n"), "@@ -10,2 +10,3 @@");
        assert_eq!(hunk("x\n", "y\n"), "@@ -51 +52 @@");
    }

    fn shown(operation: &PathChange, diff: Option<Diff>) -> serde_json::Value {
        let place = |diff: &Diff| ToolCallLocation::new(diff.path.clone()).line(1);
        let locations: Vec<_> = diff.iter().map(place).collect();
        let path = match operation {
            PathChange::Delete(path) => path,
            PathChange::Move { to, .. } | PathChange::Copy { to, .. } => to,
        };
        let meta = Meta::from_iter([(OPERATION_META.to_owned(), json!(operation))]);
        let mark = Diff::new(path.clone(), "").meta(meta);
        let items: Vec<ToolCallContent> = diff.into_iter().chain([mark]).map(Into::into).collect();
        let converted = content(&items, &locations);
        assert_eq!(converted.len(), 1, "one diff for a file");
        serde_json::to_value(&converted[0]).unwrap()
    }

    #[test]
    fn deleted_files_have_no_new_name() {
        let delete = PathChange::Delete("/p/a".into());
        let bare = shown(&delete, None);
        assert_eq!(bare["changes"], json!([{ "operation": "delete", "path": "/p/a" }]));
        assert_eq!(bare.get("patch"), None);
        let with_text = shown(&delete, Some(Diff::new("/p/a", "").old_text("x\n".to_owned())));
        assert_eq!(
            with_text["patch"]["text"],
            "diff --git /p/a /p/a\ndeleted file mode 100644\n--- /p/a\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        );
    }

    #[test]
    fn moved_files_have_their_old_path() {
        let moved = PathChange::Move { from: "/p/a".into(), to: "/p/b".into() };
        let diff = shown(&moved, Some(Diff::new("/p/b", "y\n").old_text("x\n".to_owned())));
        let change = json!([{ "operation": "move", "oldPath": "/p/a", "path": "/p/b", "fileType": "text" }]);
        assert_eq!(diff["changes"], change);
        assert_eq!(
            diff["patch"]["text"],
            "diff --git /p/a /p/b\nrename from /p/a\nrename to /p/b\n--- /p/a\n+++ /p/b\n@@ -1 +1 @@\n-x\n+y\n"
        );
    }

    #[test]
    fn regions_at_unknown_places_have_no_patch() {
        let converted = DiffConverter::new(&[]).convert(&Diff::new("/a", "b").old_text("a".to_owned()), None);
        assert_eq!(converted.patch, None);
        assert_eq!(converted.changes.len(), 1);
    }
}
