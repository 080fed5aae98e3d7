//! The content of a file as the model last saw it, compared with the file now. Pure.
//!
//! Only hashes of the lines are kept: the model has the old lines, and the file has the new ones.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use similar::DiffOp;

use super::text_file::TextFile;
use crate::tool::ToolError;
use crate::tool::edit::text_match::diff;
use crate::workspace::ContentHash;

/// Lines of a file whose hashes are kept.
const MAX_KEPT: usize = 20_000;

/// Rows that a message shows of the changes.
const MAX_ROWS: usize = 40;

const MAX_BYTES: usize = 2048;

/// A file that the model has read or written.
#[derive(Debug, Clone)]
pub struct LastSeen {
    pub content_hash: ContentHash,
    /// False after a summary of the conversation, which may leave the content out.
    pub is_in_context: bool,
    /// Hashes of the lines; `None` if the file has too many, or is not text.
    lines: Option<Arc<[u64]>>,
}

impl LastSeen {
    pub(in crate::tool) fn absent() -> Self {
        Self { content_hash: ContentHash::Absent, is_in_context: true, lines: Some(Arc::default()) }
    }

    pub(in crate::tool) fn of(file: &TextFile) -> Self {
        let lines = hashes(file.text.split_inclusive('\n').take(MAX_KEPT + 1));
        let lines = (lines.len() <= MAX_KEPT).then(|| lines.into());
        Self { content_hash: file.content_hash, is_in_context: true, lines }
    }

    pub(in crate::tool) fn of_bytes(content: &[u8]) -> Self {
        let not_text = Self { content_hash: ContentHash::of(content), is_in_context: true, lines: None };
        TextFile::decode(content).map_or(not_text, |file| Self::of(&file))
    }

    /// The changed lines as they are now, below the headers of a diff; and whether these are all changes.
    /// `None` if they are unknown.
    pub(in crate::tool) fn changes(&self, text: &str) -> Option<(String, bool)> {
        let old = self.lines.as_deref().filter(|_| self.is_in_context)?;
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let ops = diff(old, &hashes(lines.iter().copied()));
        let mut listing = String::new();
        let mut rows = 0;
        for op in ops.iter().filter(|op| !matches!(op, DiffOp::Equal { .. })) {
            let (old, new) = (op.old_range(), op.new_range());
            let header = format!("@@ -{} +{} @@\n", range(&old), range(&new));
            for row in std::iter::once(header)
                .chain(new.map(|at| format!("{:>6}\t{}\n", at + 1, lines[at].trim_end_matches(['\r', '\n']))))
            {
                rows += 1;
                if rows > MAX_ROWS || listing.len() + row.len() > MAX_BYTES {
                    return Some((listing, false));
                }
                listing += &row;
            }
        }
        (!listing.is_empty()).then_some((listing, true))
    }
}

fn hashes<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<u64> {
    lines.map(line_hash).collect()
}

fn line_hash(line: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish()
}

/// A range of a diff's header: the first line and the count, or the line before and 0.
fn range(lines: &Range<usize>) -> String {
    format!("{},{}", lines.start + usize::from(!lines.is_empty()), lines.len())
}

/// The difference of a file from its state that the model last saw.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::tool) struct NewLines {
    /// A sentence, and the changed lines.
    pub text: String,
    /// True if the text shows all changed lines, so that the model knows the file.
    pub is_whole: bool,
}

impl NewLines {
    /// Returns `None` if the file is as the model last saw it, or the model never saw it.
    pub(super) fn of(name: &str, file: &TextFile, last_seen: Option<&LastSeen>) -> Option<Self> {
        let last_seen = last_seen.filter(|last_seen| last_seen.content_hash != file.content_hash)?;
        let changed = format!("{name} has changed since you read it.");
        let (text, is_whole) = match last_seen.changes(&file.text) {
            Some((listing, true)) => {
                (format!("{changed} Its new lines:\n{}", listing.trim_end_matches('\n')), true)
            }
            Some((listing, false)) => {
                let text =
                    format!("{changed} Some of its new lines:\n{listing}[More has changed. Read it again.]");
                (text, false)
            }
            None => (format!("{changed} Read it again."), false),
        };
        Some(Self { text, is_whole })
    }

    pub(super) fn into_error(self, path: &Path, file: &TextFile) -> ToolError {
        let seen = self.is_whole.then(|| (path.to_owned(), LastSeen::of(file)));
        ToolError::Stale { text: self.text, seen: seen.into_iter().collect() }
    }
}

/// The error of a change that does not apply, with the new lines if the file has changed.
pub(in crate::tool) fn not_applied(
    reason: String,
    new_lines: Option<NewLines>,
    path: &Path,
    file: &TextFile,
) -> ToolError {
    match new_lines {
        Some(NewLines { text, is_whole }) => {
            let text = format!("{}\n{text}", reason.trim_end());
            NewLines { text, is_whole }.into_error(path, file)
        }
        None => ToolError::Failed(reason),
    }
}

/// Returns an error if a file is not as the model last saw it (`last_seen`) or as a permission request showed it
/// (`shown`).
pub(in crate::tool) fn check_unchanged(
    name: &str,
    before: ContentHash,
    last_seen: Option<&LastSeen>,
    shown: Option<ContentHash>,
) -> Result<(), ToolError> {
    if shown.is_some_and(|shown| shown != before) {
        return Err(ToolError::Failed(format!(
            "{name} changed while the permission request was open. Read it again."
        )));
    }
    if before != ContentHash::Absent && last_seen.is_some_and(|last_seen| last_seen.content_hash != before) {
        return Err(ToolError::Failed(format!("{name} has changed since you read it. Read it again.")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the refusal, and whether the model then knows the file.
    fn refusal(last_seen: &LastSeen, now: &str) -> Option<(String, bool)> {
        let now = TextFile::decode(now.as_bytes()).unwrap();
        let new_lines = NewLines::of("f", &now, Some(last_seen))?;
        match new_lines.into_error(Path::new("/f"), &now) {
            ToolError::Stale { text, seen } => Some((text, !seen.is_empty())),
            error => panic!("{error}"),
        }
    }

    #[test]
    fn refusal_of_a_changed_file_shows_its_new_lines() {
        let seen = LastSeen::of_bytes(b"a\nb\nc\nd\n");
        let check = |now: &str, expected: &str| {
            let text = format!("f has changed since you read it. Its new lines:\n{expected}");
            assert_eq!(refusal(&seen, now), Some((text, true)));
        };
        assert_eq!(refusal(&seen, "a\nb\nc\nd\n"), None);
        check("a\nx\ny\nc\nd\n", "@@ -2,1 +2,2 @@\n     2\tx\n     3\ty");
        check("a\nd\nnew", "@@ -2,2 +1,0 @@\n@@ -4,0 +3,1 @@\n     3\tnew");
        check("0\na\nb\nc\nd", "@@ -0,0 +1,1 @@\n     1\t0\n@@ -4,1 +5,1 @@\n     5\td");
    }

    #[test]
    fn unknown_or_many_changes_need_a_second_read() {
        let seen = LastSeen::of_bytes(b"a\n");
        let short = "x\n".repeat(MAX_ROWS - 1);
        assert!(refusal(&seen, &short).is_some_and(|(_, is_known)| is_known), "the control");
        for long in ["x\n".repeat(MAX_ROWS), "x".repeat(MAX_BYTES)] {
            let (text, is_known) = refusal(&seen, &long).unwrap();
            assert!(text.ends_with("\n[More has changed. Read it again.]") && !is_known, "{text}");
            assert!(text.len() < MAX_BYTES + 200);
        }
        let unknown = Some(("f has changed since you read it. Read it again.".to_owned(), false));
        assert_eq!(refusal(&LastSeen { is_in_context: false, ..seen.clone() }, "b\n"), unknown);
        assert_eq!(refusal(&LastSeen::of_bytes("a\n".repeat(MAX_KEPT + 1).as_bytes()), "b\n"), unknown);
        assert_eq!(refusal(&seen, "\u{feff}a\n"), unknown);
    }
}
