//! A switch of the mode that the model writes into its own text: a fenced `yaml` block with `mode_switch`. Pure.
//!
//! The text comes in pieces that are cut anywhere. What cannot be the start of such a block is passed on at once; a block is
//! held back until it is known to be one, and then left out of what the client sees. Only whole fences at the start of a
//! line count: nothing in a quote, in another fence or indented as code does (G27-G34, G51-G55).

use std::borrow::Cow;

use serde::Deserialize;

/// Bytes of a block. What is longer is no switch.
const MAX_BLOCK: usize = 16 * 1024;

/// Characters of the model's reason in a notice. The record has all of it.
const MAX_REASON: usize = 160;

/// What every block begins with.
const KEY: &str = "mode_switch:";

/// What a model wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// Why.
    pub analysis: String,
    /// Which mode; none: it stays, and says why.
    pub new_mode: Option<String>,
}

/// What was found in a reply.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Found {
    /// No block.
    #[default]
    Nothing,
    /// One block.
    One(Switch),
    /// A block that is none, for this reason: it is not applied.
    Bad(String),
    /// More than one: none is applied.
    Many,
}

/// Reads a reply piece by piece.
#[derive(Debug, Default)]
pub struct Reader {
    place: Place,
    /// The line that is not whole yet, and how much of it was passed on.
    line: String,
    passed: usize,
    /// A block that is held back.
    held: String,
    found: Found,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Between fences.
    #[default]
    Text,
    /// In a fence that is passed on.
    Fence { mark: u8, length: usize },
    /// In a block that may be a switch.
    Block { mark: u8, length: usize },
}

impl Reader {
    /// Takes a piece, and returns what of the text can be passed on now.
    pub fn push<'a>(&mut self, piece: &'a str) -> Cow<'a, str> {
        // In the middle of a line that is none of a fence: most pieces are there.
        if self.place == Place::Text && self.passed > 0 && !piece.contains('\n') {
            return Cow::Borrowed(piece);
        }
        let mut out = String::new();
        for part in piece.split_inclusive('\n') {
            self.line.push_str(part);
            if part.ends_with('\n') {
                self.whole_line(&mut out);
            } else {
                self.part_of_line(&mut out);
            }
        }
        Cow::Owned(out)
    }

    /// The reply has ended, or something else than text came. Returns what was held back and is no block.
    pub fn flush(&mut self) -> String {
        let mut out = String::new();
        if !self.line.is_empty() {
            // A closing fence may be the last line.
            self.whole_line(&mut out);
        }
        if let Place::Block { .. } = self.place {
            if self.held_content().is_some_and(|content| begins_with_key(content) == Some(true)) {
                self.note(Found::Bad("the block is not closed".into()));
            }
            out.push_str(&std::mem::take(&mut self.held));
        }
        self.place = Place::Text;
        out
    }

    /// What was found so far; nothing afterwards.
    pub fn take(&mut self) -> Found {
        std::mem::take(&mut self.found)
    }

    fn part_of_line(&mut self, out: &mut String) {
        match self.place {
            Place::Text if self.passed == 0 && may_open(&self.line) => {}
            Place::Text | Place::Fence { .. } => self.pass(out),
            Place::Block { .. } => {
                let so_far = self.held_content().map(|content| format!("{content}{}", self.line));
                if so_far.is_some_and(|content| begins_with_key(&content) == Some(false)) {
                    self.release(out);
                    self.pass(out);
                }
            }
        }
    }

    fn pass(&mut self, out: &mut String) {
        out.push_str(&self.line[self.passed..]);
        self.passed = self.line.len();
    }

    /// Takes a line that is whole.
    fn whole_line(&mut self, out: &mut String) {
        let (line, passed) = (std::mem::take(&mut self.line), std::mem::take(&mut self.passed));
        match self.place {
            Place::Text => match opening(&line) {
                Some((mark, length, true)) if passed == 0 => {
                    self.place = Place::Block { mark, length };
                    self.held = line;
                    return;
                }
                Some((mark, length, _)) => self.place = Place::Fence { mark, length },
                None => {}
            },
            Place::Fence { mark, length } => {
                if closes(&line, mark, length) {
                    self.place = Place::Text;
                }
            }
            Place::Block { mark, length } => {
                if closes(&line, mark, length) {
                    self.place = Place::Text;
                    return self.block(&line, out);
                }
                self.held.push_str(&line);
                let is_key = self.held_content().and_then(begins_with_key);
                if is_key == Some(false) {
                    self.release(out);
                } else if self.held.len() > MAX_BLOCK {
                    self.note(Found::Bad(format!("the block is longer than {MAX_BLOCK} bytes")));
                    self.release(out);
                }
                return;
            }
        }
        out.push_str(&line[passed..]);
    }

    /// The block is none: it is passed on, and so is the rest of its fence.
    fn release(&mut self, out: &mut String) {
        out.push_str(&std::mem::take(&mut self.held));
        if let Place::Block { mark, length } = self.place {
            self.place = Place::Fence { mark, length };
        }
    }

    /// A block is whole.
    fn block(&mut self, closing: &str, out: &mut String) {
        let held = std::mem::take(&mut self.held);
        let content = held.split_once('\n').map_or("", |(_, content)| content);
        if begins_with_key(content) != Some(true) {
            out.push_str(&held);
            out.push_str(closing);
            return;
        }
        match read(content) {
            Ok(switch) => self.note(Found::One(switch)),
            Err(reason) => {
                self.note(Found::Bad(reason));
                out.push_str(&held);
                out.push_str(closing);
            }
        }
    }

    fn note(&mut self, found: Found) {
        self.found = match std::mem::take(&mut self.found) {
            Found::Nothing => found,
            Found::One(_) | Found::Bad(_) | Found::Many => Found::Many,
        };
    }

    /// What is held back behind the line that opened it.
    fn held_content(&self) -> Option<&str> {
        self.held.split_once('\n').map(|(_, content)| content)
    }
}

/// Whether the first line that is not empty begins with the key. None: that cannot be said yet.
fn begins_with_key(content: &str) -> Option<bool> {
    let first = content.split_inclusive('\n').find(|line| !line.trim().is_empty())?;
    if first.len() < KEY.len() && !first.ends_with('\n') && KEY.starts_with(first) {
        return None;
    }
    Some(first.starts_with(KEY))
}

/// The payload, strictly.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Payload {
    mode_switch: Inner,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Inner {
    analysis: String,
    #[serde(default)]
    new_mode: Option<String>,
}

fn read(content: &str) -> Result<Switch, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    let payload: Payload =
        serde_saphyr::from_str_with_options(content, options).map_err(|error| error.to_string())?;
    let Inner { analysis, new_mode } = payload.mode_switch;
    let analysis = analysis.trim().to_owned();
    if analysis.is_empty() {
        return Err("`analysis` is empty".into());
    }
    let new_mode = new_mode.map(|mode| mode.trim().to_owned()).filter(|mode| !mode.is_empty());
    Ok(Switch { analysis, new_mode })
}

/// The mark and the length of the fence that a line opens, and whether it is one of YAML.
fn opening(line: &str) -> Option<(u8, usize, bool)> {
    let (mark, length, rest) = fence(line)?;
    if length < 3 || (mark == b'`' && rest.contains('`')) {
        return None;
    }
    let word = rest.split_whitespace().next().unwrap_or_default();
    Some((mark, length, word.eq_ignore_ascii_case("yaml") || word.eq_ignore_ascii_case("yml")))
}

/// Whether a line that is not whole may come to open a fence.
fn may_open(part: &str) -> bool {
    let indent = part.bytes().take_while(|byte| *byte == b' ').count();
    if indent > 3 {
        return false;
    }
    match fence(part) {
        None => part.len() == indent,
        Some((mark, length, rest)) => {
            (length >= 3 && !(mark == b'`' && rest.contains('`'))) || rest.is_empty()
        }
    }
}

fn closes(line: &str, mark: u8, length: usize) -> bool {
    fence(line).is_some_and(|(own, run, rest)| own == mark && run >= length && rest.trim().is_empty())
}

/// The run of marks at the start of a line, indented by three blanks at most, and what follows it.
fn fence(line: &str) -> Option<(u8, usize, &str)> {
    let line = line.trim_end_matches(['\n', '\r']);
    let indent = line.bytes().take_while(|byte| *byte == b' ').count();
    let rest = &line[indent..];
    let mark = rest.bytes().next().filter(|mark| matches!(mark, b'`' | b'~'))?;
    let length = rest.bytes().take_while(|byte| *byte == mark).count();
    (indent <= 3).then(|| (mark, length, &rest[length..]))
}

/// What the user reads of a switch in the model's own text (G37): the modes, and the first line of the reason.
pub(super) fn notice(from: &str, to: &str, analysis: &str) -> String {
    let reason = analysis.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let reason: String = reason.chars().filter(|c| !c.is_control()).collect();
    let end = reason.char_indices().nth(MAX_REASON).map_or(reason.len(), |(end, _)| end);
    let more = if end < reason.len() { "…" } else { "" };
    format!("The agent switched from {from} mode to {to} mode: {}{more}\n", &reason[..end])
}

#[cfg(test)]
mod tests;
