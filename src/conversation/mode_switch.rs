//! Parser for `mode_switch` blocks in the model's text, which are fenced as `yaml`. Pure.
//!
//! ```text
//! reply   = { line | fence | block }
//! block   = opening content closing
//! opening = at most 3 spaces, 3 or more "`" or "~", "yaml" or "yml", any text
//! closing = at most 3 spaces, at least as many of the same mark
//! content = YAML with one key, mode_switch: { analysis: TEXT, new_mode: MODE or nothing }
//! ```
//!
//! Text arrives in arbitrary pieces. A possible block is buffered, and a switch is removed from the client's
//! text. Fences in quotes, lists, other fences or indented code do not count; the model is told of a block there
//! (G27-G34, G51-G55).

use std::borrow::Cow;

use serde::Deserialize;

use self::key::FirstKey;
use self::misplaced::Misplaced;
use crate::text::{first_line, has_newline, shorten};

mod key;
mod misplaced;

/// Maximum bytes of a switch block.
const MAX_BLOCK: usize = 16 * 1024;

/// Maximum characters of the reason in a notice.
const MAX_REASON: usize = 160;

/// Maximum bytes of a buffered line. The start of a longer line decides its kind.
const MAX_LINE: usize = 256;

const NOT_FIRST: &str = "`mode_switch` is not the first key of its block";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    pub analysis: String,
    /// `None` if the model wants to stay in its mode.
    pub new_mode: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FoundSwitch {
    #[default]
    Nothing,
    One(Switch),
    /// A malformed block, with the reason.
    Invalid(String),
    /// More than one block, so no switch applies.
    Many,
}

/// Incremental scanner, linear in the length of the reply.
#[derive(Debug, Default)]
pub struct SwitchReader {
    place: SwitchPlace,
    /// The incomplete last line, while its end may matter.
    line: String,
    /// `None` until the start of the line has decided its kind.
    rest: Option<FenceRest>,
    pending_block: String,
    first_key: FirstKey,
    /// True in a YAML block that begins with another key.
    is_other_yaml: bool,
    found: FoundSwitch,
    misplaced: Misplaced,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum SwitchPlace {
    /// Text outside of fences.
    #[default]
    Text,
    /// A fence that passes through.
    Fence {
        mark: u8,
        length: usize,
    },
    Block {
        mark: u8,
        length: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FenceRest {
    /// The line opens no fence.
    Plain,
    /// The line opens a fence, unless a later backtick invalidates it.
    Opens { mark: u8, length: usize },
}

impl SwitchReader {
    pub fn push<'a>(&mut self, piece: &'a str) -> Cow<'a, str> {
        if self.rest == Some(FenceRest::Plain) && !has_newline(piece) {
            self.misplaced.push_part(piece);
            return Cow::Borrowed(piece);
        }
        let mut out = String::new();
        for part in piece.split_inclusive('\n') {
            self.part(part, &mut out);
            self.misplaced.push_part(part);
        }
        Cow::Owned(out)
    }

    /// Ends a run of text. Returns buffered text that is not a switch.
    pub fn flush(&mut self) -> String {
        let mut out = String::new();
        self.rest = None;
        if !self.line.is_empty() {
            match self.place {
                SwitchPlace::Text => out.push_str(&std::mem::take(&mut self.line)),
                SwitchPlace::Fence { .. } => self.line.clear(),
                SwitchPlace::Block { mark, length } => self.line_of_block(mark, length, &mut out),
            }
        }
        if let SwitchPlace::Block { .. } = self.place {
            if self.first_key.is_switch() == Some(true) {
                self.note(FoundSwitch::Invalid("the block is not closed".into()));
            }
            out.push_str(&std::mem::take(&mut self.pending_block));
        }
        self.place = SwitchPlace::Text;
        self.is_other_yaml = false;
        self.misplaced.flush();
        out
    }

    /// Returns the result since the last call. A block in a place that does not count is invalid, if there is
    /// no other.
    pub fn take(&mut self) -> FoundSwitch {
        match (std::mem::take(&mut self.found), self.misplaced.take()) {
            (FoundSwitch::Nothing, Some(reason)) => FoundSwitch::Invalid(reason.into()),
            (found, _) => found,
        }
    }

    fn part(&mut self, part: &str, out: &mut String) {
        let is_whole = part.ends_with('\n');
        if let Some(rest) = self.rest {
            out.push_str(part);
            let rest = match rest {
                FenceRest::Opens { mark: b'`', .. } if part.contains('`') => FenceRest::Plain,
                rest => rest,
            };
            self.rest = (!is_whole).then_some(rest);
            if let (true, FenceRest::Opens { mark, length }) = (is_whole, rest) {
                self.place = SwitchPlace::Fence { mark, length };
            }
            return;
        }
        self.line.push_str(part);
        if let SwitchPlace::Block { .. } = self.place {
            self.first_key.push(part);
        }
        match (self.place, is_whole) {
            (SwitchPlace::Text, true) => self.line_of_text(out),
            (SwitchPlace::Text, false) => self.part_of_text(out),
            (SwitchPlace::Fence { mark, length }, _) => {
                out.push_str(part);
                if is_whole && is_closing(&self.line, mark, length) {
                    self.place = SwitchPlace::Text;
                    self.is_other_yaml = false;
                }
                self.finish_forwarded_line(is_whole);
            }
            (SwitchPlace::Block { mark, length }, true) => self.line_of_block(mark, length, out),
            (SwitchPlace::Block { .. }, false) => self.part_of_block(out),
        }
    }

    fn finish_forwarded_line(&mut self, is_whole: bool) {
        if is_whole || self.line.len() > MAX_LINE {
            let line = std::mem::take(&mut self.line);
            self.check_other_yaml(&line);
            self.rest = (!is_whole).then_some(FenceRest::Plain);
        }
    }

    fn check_other_yaml(&mut self, line: &str) {
        if self.is_other_yaml && has_key(line) {
            self.note(FoundSwitch::Invalid(NOT_FIRST.into()));
            self.is_other_yaml = false;
        }
    }

    fn part_of_text(&mut self, out: &mut String) {
        self.rest = Some(if self.line.len() > MAX_LINE {
            if self.misplaced.is_inside_container(&self.line) {
                FenceRest::Plain
            } else {
                long_line(&self.line)
            }
        } else if may_open(&self.line) {
            return;
        } else {
            FenceRest::Plain
        });
        out.push_str(&std::mem::take(&mut self.line));
    }

    fn line_of_text(&mut self, out: &mut String) {
        let line = std::mem::take(&mut self.line);
        let opened = if self.misplaced.is_inside_container(&line) {
            None
        } else if line.len() <= MAX_LINE {
            opening(&line)
        } else if let FenceRest::Opens { mark, length } = long_line(&line) {
            Some((mark, length, false))
        } else {
            None
        };
        match opened {
            Some((mark, length, true)) => {
                self.place = SwitchPlace::Block { mark, length };
                self.first_key = FirstKey::default();
                self.pending_block = line;
                return;
            }
            Some((mark, length, false)) => self.place = SwitchPlace::Fence { mark, length },
            None => {}
        }
        out.push_str(&line);
    }

    fn part_of_block(&mut self, out: &mut String) {
        // A shorter line may still close the block.
        let is_too_long = self.is_too_long() && self.line.len() > MAX_LINE;
        if self.is_none(is_too_long, out) {
            out.push_str(&self.line);
            self.finish_forwarded_line(false);
        }
    }

    fn line_of_block(&mut self, mark: u8, length: usize, out: &mut String) {
        if is_closing(&self.line, mark, length) {
            let line = std::mem::take(&mut self.line);
            self.place = SwitchPlace::Text;
            return self.block(&line, out);
        }
        let is_none = self.is_none(self.is_too_long(), out);
        let line = std::mem::take(&mut self.line);
        self.check_other_yaml(&line);
        (if is_none { out } else { &mut self.pending_block }).push_str(&line);
    }

    /// Returns true if the block is no switch, and forwards it.
    fn is_none(&mut self, is_too_long: bool, out: &mut String) -> bool {
        let is_switch = self.first_key.is_switch();
        if is_switch != Some(false) && !is_too_long {
            return false;
        }
        if is_switch == Some(true) {
            self.note(FoundSwitch::Invalid(format!("the block is longer than {MAX_BLOCK} bytes")));
        }
        out.push_str(&std::mem::take(&mut self.pending_block));
        if let SwitchPlace::Block { mark, length } = self.place {
            self.place = SwitchPlace::Fence { mark, length };
            self.is_other_yaml = is_switch == Some(false);
        }
        true
    }

    fn is_too_long(&self) -> bool {
        self.pending_block.len() + self.line.len() > MAX_BLOCK
    }

    fn block(&mut self, closing: &str, out: &mut String) {
        let buffered = std::mem::take(&mut self.pending_block);
        if self.first_key.is_switch() == Some(true) {
            match read(&content(&buffered)) {
                Ok(switch) => return self.note(FoundSwitch::One(switch)),
                Err(reason) => self.note(FoundSwitch::Invalid(reason)),
            }
        }
        out.push_str(&buffered);
        out.push_str(closing);
    }

    fn note(&mut self, found: FoundSwitch) {
        self.found = match std::mem::take(&mut self.found) {
            FoundSwitch::Nothing => found,
            FoundSwitch::One(_) | FoundSwitch::Invalid(_) | FoundSwitch::Many => FoundSwitch::Many,
        };
    }
}

/// The lines behind an opening fence. They lose the fence's indentation if all of them have it.
fn content(block: &str) -> String {
    let lines: Vec<&str> = block.split_inclusive('\n').skip(1).collect();
    let texts = lines.iter().filter(|line| !line.trim().is_empty());
    let common = texts.map(|line| indentation(line)).min().unwrap_or_default();
    let removed = if common < indentation(block) { 0 } else { indentation(block) };
    lines.iter().map(|line| &line[removed.min(indentation(line))..]).collect()
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// True if the line begins with the key, also as an entry of a list.
fn has_key(line: &str) -> bool {
    let line = line[..line.floor_char_boundary(MAX_LINE)].trim_start();
    let entry = line.strip_prefix("- ").unwrap_or(line);
    let is_explicit = entry.starts_with('?');
    FirstKey::is_first_in(entry) || (is_explicit && FirstKey::is_first_in(&[entry, ":"].concat()))
}

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

/// Mark and length of an opening fence; true for YAML.
fn opening(line: &str) -> Option<(u8, usize, bool)> {
    let (mark, length, rest) = fence(line)?;
    if length < 3 || (mark == b'`' && rest.contains('`')) {
        return None;
    }
    let word = rest.split_whitespace().next().unwrap_or_default();
    Some((mark, length, word.eq_ignore_ascii_case("yaml") || word.eq_ignore_ascii_case("yml")))
}

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

/// Classifies a line longer than [`MAX_LINE`], which never opens a YAML block.
fn long_line(line: &str) -> FenceRest {
    let (start, tail) = line.split_at(line.floor_char_boundary(MAX_LINE));
    match fence(start).filter(|_| may_open(start)) {
        Some((mark, length, _)) if mark != b'`' || !tail.contains('`') => FenceRest::Opens { mark, length },
        Some(_) | None => FenceRest::Plain,
    }
}

fn is_closing(line: &str, mark: u8, length: usize) -> bool {
    line.len() <= MAX_LINE
        && fence(line).is_some_and(|(own, run, rest)| own == mark && run >= length && rest.trim().is_empty())
}

/// Run of fence marks after at most three spaces, and the text behind it.
fn fence(line: &str) -> Option<(u8, usize, &str)> {
    let line = line.trim_end_matches(['\n', '\r']);
    let indent = line.bytes().take_while(|byte| *byte == b' ').count();
    let rest = &line[indent..];
    let mark = rest.bytes().next().filter(|mark| matches!(mark, b'`' | b'~'))?;
    let length = rest.bytes().take_while(|byte| *byte == mark).count();
    (indent <= 3).then(|| (mark, length, &rest[length..]))
}

/// Notice with the first line of the reason (G37).
pub fn notice(from: &str, to: &str, analysis: &str) -> String {
    let reason: String = first_line(analysis).chars().filter(|c| !c.is_control()).collect();
    format!("The agent switched from {from} mode to {to} mode: {}\n", shorten(&reason, MAX_REASON))
}

#[cfg(test)]
mod tests;
