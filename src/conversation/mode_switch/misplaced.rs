//! Finds `mode_switch` blocks in places where no block is applied, so that the model learns of it: in fences that
//! are not marked as YAML, and in the fences of lists, quotes and indented code. Pure; removes nothing.

use super::key::FirstKey;
use super::{MAX_LINE, fence, is_closing};

const NOT_YAML: &str = "its fence is not marked as `yaml`";

const IN_CONTAINER: &str = "its fence is in a list, a quote or indented code, not at the start of a line";

#[derive(Debug, Default)]
pub(super) struct Misplaced {
    /// Start of the current line, at most [`MAX_LINE`] bytes.
    line: String,
    is_line_cut: bool,
    open: Option<OpenFence>,
    reason: Option<&'static str>,
}

#[derive(Debug, PartialEq, Eq)]
struct OpenFence {
    mark: u8,
    length: usize,
    container: Container,
    /// `None` if the block is of no interest, or its first key is known.
    first_key: Option<FirstKey>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    /// The start of a line, after at most three spaces.
    Document,
    Quote,
    /// A list item or indented code, whose lines have at least this indentation.
    Indented(usize),
}

impl Misplaced {
    /// `part` has at most one newline, at its end.
    pub(super) fn push_part(&mut self, part: &str) {
        if !self.is_line_cut {
            let end = part.floor_char_boundary(MAX_LINE - self.line.len());
            self.line.push_str(&part[..end]);
            self.is_line_cut = end < part.len();
        }
        if part.ends_with('\n') {
            self.end_line();
        }
    }

    /// Ends a run of text, and with it an open fence.
    pub(super) fn flush(&mut self) {
        self.end_line();
        self.open = None;
    }

    /// The reason that a block was not applied.
    pub(super) fn take(&mut self) -> Option<&'static str> {
        self.reason.take()
    }

    /// True if a line is in a fence of a list, a quote or indented code, so that it opens no fence of its own.
    pub(super) fn is_inside_container(&self, line: &str) -> bool {
        self.open
            .as_ref()
            .is_some_and(|open| open.container != Container::Document && open.content(line).is_some())
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        self.is_line_cut = false;
        let line = line.trim_end_matches(['\n', '\r']);
        if let Some(open) = &mut self.open
            && let Some(content) = open.content(line)
        {
            if is_closing(content, open.mark, open.length) {
                self.open = None;
            } else if open.is_switch(content) {
                let in_document = open.container == Container::Document;
                self.reason = Some(if in_document { NOT_YAML } else { IN_CONTAINER });
            }
            return;
        }
        self.open = OpenFence::opened_by(line);
    }
}

impl OpenFence {
    fn opened_by(line: &str) -> Option<Self> {
        let (container, rest) = match fence(line) {
            Some(_) => (Container::Document, line),
            None => container(line)?,
        };
        let (mark, length, info) = fence(rest)?;
        if length < 3 || (mark == b'`' && info.contains('`')) {
            return None;
        }
        let language = info.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
        let is_watched = match language.as_str() {
            "" | "json" | "jsonc" | "json5" => true,
            "yaml" | "yml" => container != Container::Document,
            _ => false,
        };
        Some(Self { mark, length, container, first_key: is_watched.then(FirstKey::default) })
    }

    /// The line without the marks of the container; `None` if the line ends the container.
    fn content<'a>(&self, line: &'a str) -> Option<&'a str> {
        let text = line.trim_start_matches(' ');
        match self.container {
            Container::Document => Some(line),
            Container::Quote => text.starts_with('>').then(|| text.trim_start_matches(['>', ' '])),
            Container::Indented(columns) if line.len() - text.len() >= columns => Some(&line[columns..]),
            Container::Indented(_) => text.trim().is_empty().then_some(text),
        }
    }

    fn is_switch(&mut self, content: &str) -> bool {
        let Some(first_key) = &mut self.first_key else { return false };
        first_key.push(content);
        first_key.push("\n");
        let is_switch = first_key.is_switch();
        if is_switch.is_some() {
            self.first_key = None;
        }
        is_switch == Some(true)
    }
}

/// The innermost container that a line begins, and the rest of the line. `None` if the line begins none.
fn container(line: &str) -> Option<(Container, &str)> {
    let (mut rest, mut is_quote) = (line, false);
    loop {
        rest = rest.trim_start_matches(' ');
        if let Some(quoted) = rest.strip_prefix('>') {
            is_quote = true;
            rest = quoted;
        } else if let Some(item) = after_list_marker(rest) {
            rest = item;
        } else {
            break;
        }
    }
    let columns = line.len() - rest.len();
    let container = if is_quote { Container::Quote } else { Container::Indented(columns) };
    (columns > 0).then_some((container, rest))
}

fn after_list_marker(text: &str) -> Option<&str> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let marks: &[char] = if digits == 0 { &['-', '*', '+'] } else { &['.', ')'] };
    text[digits..].strip_prefix(marks).filter(|rest| digits < 10 && rest.starts_with(' '))
}
