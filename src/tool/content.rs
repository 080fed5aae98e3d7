//! Builds the content that a call displays in the client. Pure; runs off the main thread.
//!
//! Outgoing lines stay below 60 KiB, because a common client cannot read longer lines. A large diff becomes
//! hunks as text; long text is cut with a note.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use similar::TextDiff;

use crate::acp::ContentBlock;

/// Maximum bytes of all diffs of one call, both sides, as JSON.
pub const DIFF: usize = 40 * 1024;

/// Maximum bytes of all texts of one call, as JSON.
pub const TEXT: usize = 24 * 1024;

/// Timeout of a diff. Later hunks are coarser, not wrong.
const TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, PartialEq)]
pub enum ToolContent {
    Text(String),
    Diff {
        path: PathBuf,
        /// `None` for a new file.
        old: Option<String>,
        new: String,
    },
    Block(Box<ContentBlock>),
    /// A display-only terminal. Valid only in the client that created it, while it lives.
    Terminal {
        id: String,
        shown: Box<ToolContent>,
    },
}

impl ToolContent {
    /// The content without terminals.
    pub fn lasting(&self) -> &Self {
        match self {
            Self::Terminal { shown, .. } => shown.lasting(),
            Self::Text(_) | Self::Diff { .. } | Self::Block(_) => self,
        }
    }

    pub fn text(text: &str) -> Self {
        Self::Text(clip(text, TEXT).into_owned())
    }

    /// Text without its middle, if it is too long.
    pub fn middle(text: &str) -> Self {
        if fitting(text, TEXT) == text.len() {
            return Self::Text(text.to_owned());
        }
        let head = &text[..fitting(text, TEXT / 3)];
        let mut start = text.ceil_char_boundary(text.len().saturating_sub(TEXT / 3));
        while fitting(&text[start..], TEXT / 2) < text.len() - start {
            start = text.ceil_char_boundary(start + 1);
        }
        let missing = start - head.len();
        Self::Text(format!("{head}\n[{missing} bytes in between are not shown]\n{}", &text[start..]))
    }

    /// The change of one of `files` files in a call, as hunks if it exceeds its share.
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

/// Cuts text whose JSON would exceed `budget` bytes.
pub fn clip(text: &str, budget: usize) -> Cow<'_, str> {
    let end = fitting(text, budget);
    if end == text.len() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}\n[{} more bytes are not shown]", &text[..end], text.len() - end))
}

/// Bytes of text that fit into `budget` bytes of JSON. At least one character, so that loops end.
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

/// Bytes of text as JSON, without the quotes.
pub fn encoded_len(text: &str) -> usize {
    text.chars().map(encoded_char).sum()
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

/// Escapes invisible characters and those that change the direction of text.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unseen(c) && c != '\n' && c != '\t' { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

/// Text as Markdown code on one line, for titles: clients such as Zed render the titles of calls as Markdown.
pub fn code_span(text: &str) -> String {
    let text: String =
        visible(text).chars().map(|c| if matches!(c, '\n' | '\t') { ' ' } else { c }).collect();
    let mut fence = "`".to_owned();
    while text.contains(&fence) {
        fence.push('`');
    }
    // CommonMark removes one space at each end, so that a backtick may stand next to the fence.
    let pad = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

/// True if a character is invisible, or reorders the characters around it.
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}'
            | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_diff_is_sent_as_truncated_hunks() {
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
    fn code_span_escapes_backticks_and_control_characters() {
        for (text, expected) in [
            ("src/__init__.py", "`src/__init__.py`"),
            ("a`b", "``a`b``"),
            ("`a` ``b``", "``` `a` ``b`` ```"),
            ("a\nb\u{202e}", "`a b\\u{202e}`"),
        ] {
            assert_eq!(code_span(text), expected);
        }
    }

    #[test]
    fn diff_of_unrelated_large_files_times_out_to_text() {
        // The worst case of a diff; without the timeout it takes minutes.
        let lines = |of: &str| (0..200_000).map(|n| format!("{of} {n}\n")).collect::<Vec<_>>().concat();
        let content = ToolContent::diff(Path::new("/a"), Some(&lines("old")), &lines("new"), 1);
        assert!(matches!(content, ToolContent::Text(_)));
    }
}
