//! What a call shows in the client, kept small: rendered where the tool works, never on the main thread. Pure.
//!
//! Outgoing lines stay below 60 KiB, because a common client reads no longer ones. A diff that is too large becomes its
//! hunks as text, and text that is too long is cut with a note.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use similar::TextDiff;

use crate::acp::ContentBlock;

/// Bytes of all diffs of one call, both sides, once they are JSON.
pub const DIFF: usize = 40 * 1024;

/// Bytes of all texts of one call once they are JSON.
pub const TEXT: usize = 24 * 1024;

/// How long hunks are looked for; after that they are coarser, not wrong.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Something to show in the client beside a call.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolContent {
    /// Text.
    Text(String),
    /// A file's content before and after.
    Diff {
        /// Absolute.
        path: PathBuf,
        /// `None` for a new file.
        old: Option<String>,
        /// The whole new content.
        new: String,
    },
    /// Anything else that the protocol can show: a picture, a sound.
    Block(Box<ContentBlock>),
    /// A terminal that the client shows and does not run. It means something only to the client that was told of it, and only now.
    Terminal {
        /// Its id.
        id: String,
        /// What is shown where there is no such terminal.
        shown: Box<ToolContent>,
    },
}

impl ToolContent {
    /// What is shown where there is no terminal.
    pub fn lasting(&self) -> &Self {
        match self {
            Self::Terminal { shown, .. } => shown.lasting(),
            Self::Text(_) | Self::Diff { .. } | Self::Block(_) => self,
        }
    }

    /// Text, cut if it is too long.
    pub fn text(text: &str) -> Self {
        Self::Text(clip(text, TEXT).into_owned())
    }

    /// Text of which the end matters as much as the start: if it is too long, what is in between is left out.
    pub fn middle(text: &str) -> Self {
        if fitting(text, TEXT) == text.len() {
            return Self::Text(text.to_owned());
        }
        let head = &text[..fitting(text, TEXT / 3)];
        let mut start = text.len().saturating_sub(TEXT / 3);
        while !text.is_char_boundary(start) || fitting(&text[start..], TEXT / 2) < text.len() - start {
            start += 1;
        }
        let missing = start - head.len();
        Self::Text(format!("{head}\n[{missing} bytes in between are not shown]\n{}", &text[start..]))
    }

    /// A change of one file out of `files` that a call changes: whole if its share allows it, else as hunks.
    pub fn diff(path: &Path, old: Option<&str>, new: &str, files: usize) -> Self {
        let files = files.max(1);
        let before = old.unwrap_or_default();
        if fits(before, DIFF / files / 2) && fits(new, DIFF / files / 2) {
            return Self::Diff { path: path.to_owned(), old: old.map(str::to_owned), new: new.to_owned() };
        }
        let diff = TextDiff::configure().timeout(TIMEOUT).diff_lines(before, new);
        let name = path.display().to_string();
        let mut hunks = String::new();
        for hunk in diff.unified_diff().context_radius(3).header(&name, &name).iter_hunks() {
            hunks.push_str(&hunk.to_string());
            if hunks.len() > TEXT {
                break;
            }
        }
        Self::Text(clip(&format!("--- {name}\n+++ {name}\n{hunks}"), TEXT / files).into_owned())
    }
}

/// Cuts text whose JSON would be longer than `budget` bytes, and says how much is missing.
pub fn clip(text: &str, budget: usize) -> Cow<'_, str> {
    let end = fitting(text, budget);
    if end == text.len() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}\n[{} more bytes are not shown]", &text[..end], text.len() - end))
}

/// How much of the text, in bytes, fits into `budget` bytes of JSON. At least one character, so that loops end.
pub fn fitting(text: &str, budget: usize) -> usize {
    if text.len() * 6 <= budget {
        return text.len();
    }
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += encoded_char(c);
        if used > budget && at > 0 {
            return at;
        }
    }
    text.len()
}

fn fits(text: &str, budget: usize) -> bool {
    text.len() <= budget && (text.is_empty() || fitting(text, budget) == text.len())
}

fn encoded_char(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        c if c < ' ' => 6,
        c => c.len_utf8(),
    }
}

/// The text with what a person could not see made visible: control characters, and those that turn the direction of
/// text or have no width.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unseen(c) && c != '\n' && c != '\t' { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

/// Whether a person could not see a character, or would see others in another order because of it.
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}'
            | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_diff_becomes_its_hunks_and_is_cut() {
        let large = "line\n".repeat(20_000);
        let text = |content| match content {
            ToolContent::Text(text) => text,
            _ => panic!("not text"),
        };
        let hunks = text(ToolContent::diff(Path::new("/a"), Some(&large), &format!("{large}end\n"), 1));
        assert!(hunks.starts_with("--- /a\n+++ /a\n@@ ") && hunks.ends_with("+end\n"), "{hunks}");
        let rewritten = text(ToolContent::diff(Path::new("/a"), Some(&large), &"x\n".repeat(20_000), 1));
        assert!(rewritten.ends_with("more bytes are not shown]"));
        assert!(rewritten.len() < TEXT + 100);
        let small = ToolContent::diff(Path::new("/a"), None, "x", 1);
        assert_eq!(small, ToolContent::Diff { path: "/a".into(), old: None, new: "x".into() });
    }

    #[test]
    fn two_large_files_that_have_no_line_in_common_become_text() {
        // The worst there is for a diff: without its patience this takes minutes. Nothing here measures that.
        let lines = |of: &str| (0..200_000).map(|n| format!("{of} {n}\n")).collect::<Vec<_>>().concat();
        let content = ToolContent::diff(Path::new("/a"), Some(&lines("old")), &lines("new"), 1);
        assert!(matches!(content, ToolContent::Text(_)));
    }
}
