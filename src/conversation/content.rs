//! Builds the content that a call displays in the client. Pure; runs off the main thread.
//!
//! Outgoing lines stay below 60 KiB, because a common client cannot read longer lines. Of a large file only the
//! changed regions are shown; long text is cut with a note.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::acp::{ContentBlock, SessionId, ToolCallId};
use crate::line_diff::{self, lines};

/// Maximum bytes of all diffs of one call, both sides, as JSON.
pub const DIFF: usize = 40 * 1024;

/// Maximum bytes of all texts of one call, as JSON.
pub const TEXT: usize = 24 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    pub path: PathBuf,
    /// The line number, counted from 1.
    pub line: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathChange {
    Delete(PathBuf),
    Move { from: PathBuf, to: PathBuf },
    Copy { from: PathBuf, to: PathBuf },
}

#[derive(Debug, Clone, PartialEq)]
pub enum ToolContent {
    Text(String),
    Diff {
        path: PathBuf,
        /// `None` for a new file.
        old: Option<String>,
        new: String,
        /// The first changed line, counted from 1; `None` for a new file.
        line: Option<u32>,
    },
    Block(Box<ContentBlock>),
    /// An operation on a whole file. Its text, if it is known, is a diff of the same call.
    Operation(PathChange),
    /// The session of a sub-agent.
    Session(SessionId),
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
            Self::Text(_) | Self::Diff { .. } | Self::Block(_) | Self::Operation(_) | Self::Session(_) => {
                self
            }
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

    /// The change of one of `files` files in a call: both texts, or the changed regions if the texts exceed the
    /// file's share.
    pub fn diffs(path: &Path, old: Option<&str>, new: &str, files: usize) -> Vec<Self> {
        let share = DIFF / files.max(1);
        let (before, after) = (lines(old.unwrap_or_default()), lines(new));
        let whole = Self::region(path, &before, &after, 0, old.is_some());
        if whole.encoded_len() <= share {
            return vec![whole];
        }
        let hunks = line_diff::hunks(&before, &after);
        let mut remaining = share;
        let mut regions: Vec<Self> = Vec::new();
        for hunk in &hunks {
            let (from, to) = hunk.ranges();
            let first = to.start;
            let region = Self::region(path, &before[from], &after[to], first, old.is_some());
            if region.encoded_len() > remaining {
                break;
            }
            remaining -= region.encoded_len();
            regions.push(region);
        }
        if regions.is_empty() {
            let name = path.display().to_string();
            let text = line_diff::unified((&name, &name), &before, &after, &hunks);
            return vec![Self::Text(clip(&text, TEXT / files.max(1)).into_owned())];
        }
        let more = hunks.len() - regions.len();
        regions.extend(
            (more > 0).then(|| Self::Text(format!("[{more} more changes of the file are not shown]"))),
        );
        regions
    }

    /// `first` is the number of new lines before the region.
    fn region(path: &Path, old: &[&str], new: &[&str], first: usize, is_change: bool) -> Self {
        let same = old.iter().zip(new).take_while(|(old, new)| old == new).count();
        let line = is_change.then(|| u32::try_from(first + same + 1).unwrap_or(u32::MAX));
        Self::Diff { path: path.to_owned(), old: is_change.then(|| old.concat()), new: new.concat(), line }
    }

    /// Bytes of a diff as JSON; its path is in a location, too.
    fn encoded_len(&self) -> usize {
        let Self::Diff { path, old, new, .. } = self else { return 0 };
        path.as_os_str().len() * 2 + encoded_len(old.as_deref().unwrap_or_default()) + encoded_len(new)
    }

    /// Where the changes begin.
    pub fn location(&self) -> Option<Location> {
        let Self::Diff { path, line: Some(line), .. } = self else { return None };
        Some(Location { path: path.clone(), line: Some(*line) })
    }
}

/// The id of a call's terminal. Call ids are unique only within a session.
pub fn terminal_id(session: &SessionId, call: &ToolCallId) -> String {
    format!("{session}/{call}")
}

/// A prompt or a result as text, with names in place of pictures and files.
pub fn plain_text(content: &[ContentBlock]) -> String {
    let lines = content.iter().map(|block| match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::ResourceLink(link) => format!("[{}]({})", link.name, link.uri),
        ContentBlock::Image(_) => "(a picture)".into(),
        ContentBlock::Resource(_) => "(a file)".into(),
        // The schema may grow.
        _ => "(something else)".into(),
    });
    lines.collect::<Vec<_>>().join("\n")
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

fn encoded_char(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        c if c < ' ' => 6,
        c => c.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diffs_show_the_changed_regions_of_large_files() {
        let line = |at: usize| format!("line {at}\n");
        let large: Vec<String> = (1..20_000).map(line).collect();
        let mut changed = large.clone();
        changed[99] = "new\n".into();
        changed.remove(5_000);
        let diffs = ToolContent::diffs(Path::new("/a"), Some(&large.concat()), &changed.concat(), 1);
        let region = |old: &[String], new: &[String], line| ToolContent::Diff {
            path: "/a".into(),
            old: Some(old.concat()),
            new: new.concat(),
            line: Some(line),
        };
        let first = region(&large[96..103], &changed[96..103], 100);
        assert_eq!(diffs, [first, region(&large[4_997..5_004], &changed[4_997..5_003], 5_001)]);
        let small = ToolContent::diffs(Path::new("/a"), Some("a\nb\n"), "a\nc\n", 1);
        assert_eq!(small, [region(&["a\n".into(), "b\n".into()], &["a\n".into(), "c\n".into()], 2)]);
        let created = ToolContent::diffs(Path::new("/a"), None, "x", 1);
        assert_eq!(
            created,
            [ToolContent::Diff { path: "/a".into(), old: None, new: "x".into(), line: None }]
        );
    }

    #[test]
    fn diffs_that_are_too_large_are_cut() {
        let large = "line\n".repeat(20_000);
        let [ToolContent::Text(text)] =
            &ToolContent::diffs(Path::new("/a"), Some(&large), &"x\n".repeat(20_000), 1)[..]
        else {
            panic!("not text")
        };
        assert!(text.starts_with("--- /a\n+++ /a\n@@ ") && text.ends_with("more bytes are not shown]"));
        assert!(text.len() < TEXT + 100);
        let old: String = (0..4_000).map(|at| format!("{} line {at}\n", "x".repeat(200))).collect();
        let diffs = ToolContent::diffs(Path::new("/a"), Some(&old), &old.replace("00\n", "00x\n"), 4);
        let note = format!("[{} more changes of the file are not shown]", 39 - (diffs.len() - 1));
        assert_eq!((diffs.len(), diffs.last()), (4, Some(&ToolContent::Text(note))));
    }

    #[test]
    fn diff_of_unrelated_large_files_times_out_to_text() {
        // The worst case of a diff; without the timeout it takes minutes.
        let lines = |of: &str| (0..200_000).map(|n| format!("{of} {n}\n")).collect::<Vec<_>>().concat();
        let content = ToolContent::diffs(Path::new("/a"), Some(&lines("old")), &lines("new"), 1);
        assert!(matches!(content[..], [ToolContent::Text(_)]));
    }
}
