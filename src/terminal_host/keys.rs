//! Keys as terminals send them. Pure.

use std::ops::Range;
use std::str::FromStr;

const ESCAPE: u8 = 0x1b;

/// A key with Ctrl, which opens the panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PanelKey(u8);

impl Default for PanelKey {
    fn default() -> Self {
        Self(b']')
    }
}

impl FromStr for PanelKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        let key = lower.strip_prefix("ctrl-").or_else(|| lower.strip_prefix('^'));
        match key.map(str::as_bytes) {
            Some([key @ (b'a'..=b'z' | b'\\' | b']' | b'^' | b'_')]) => Ok(Self(*key)),
            _ => Err("a key is ctrl- with a letter or one of \\ ] ^ _, such as ctrl-]".into()),
        }
    }
}

impl std::fmt::Display for PanelKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Ctrl-{}", char::from(self.0.to_ascii_uppercase()))
    }
}

impl PanelKey {
    /// The byte that terminals send, unless a program has asked for another form.
    pub(super) fn byte(self) -> u8 {
        self.0 & 0x1f
    }

    pub(super) fn as_key(self) -> PressedKey {
        PressedKey::Control(self.0)
    }

    /// Finds the key among typed bytes, but not within pasted text.
    pub(super) fn find(self, bytes: &[u8]) -> Option<Range<usize>> {
        let (mut at, mut is_pasted) = (0, false);
        while at < bytes.len() {
            let (key, length) = next(&bytes[at..]);
            let range = at..at + length;
            match key {
                PressedKey::PasteStart => is_pasted = true,
                PressedKey::PasteEnd => is_pasted = false,
                PressedKey::Control(key) if key == self.0 && !is_pasted => return Some(range),
                _ => {}
            }
            at = range.end;
        }
        None
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PressedKey {
    Char(char),
    /// Ctrl and the lower-case key.
    Control(u8),
    Enter,
    Escape,
    Tab,
    Backspace,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    PasteStart,
    PasteEnd,
    /// Of the terminal to a question of the program.
    Reply,
    /// Mouse reports, and keys that mean nothing here.
    Other,
}

/// Longest reply of a terminal that is kept until it is complete.
const MAX_REPLY: usize = 64 * 1024;

/// Reads the keys for the panel. Text that is pasted, or is a reply of the terminal to the program, is no key.
#[derive(Debug, Default)]
pub(super) struct KeyReader {
    /// The start of a sequence whose end has not come.
    unfinished: Vec<u8>,
    is_pasted: bool,
}

/// Keys of the panel, and the replies between them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PanelInput {
    pub keys: Vec<PressedKey>,
    /// For the program, which has asked the terminal.
    pub replies: Vec<u8>,
}

impl KeyReader {
    /// `reads_text` is true while the keys are a text, which may be typed fast.
    pub(super) fn read(&mut self, typed: &[u8], reads_text: bool) -> PanelInput {
        let mut bytes = std::mem::take(&mut self.unfinished);
        bytes.extend_from_slice(typed);
        let (mut input, mut at) = (PanelInput::default(), 0);
        while at < bytes.len() {
            if is_unfinished(&bytes[at..]) && bytes.len() - at < MAX_REPLY {
                self.unfinished = bytes.split_off(at);
                break;
            }
            let (key, length) = next(&bytes[at..]);
            match key {
                PressedKey::PasteStart => self.is_pasted = true,
                PressedKey::PasteEnd => self.is_pasted = false,
                PressedKey::Reply => input.replies.extend_from_slice(&bytes[at..at + length]),
                key if !self.is_pasted => input.keys.push(key),
                _ => {}
            }
            at += length;
        }
        // Some terminals do not mark pasted text.
        if !reads_text && input.keys.iter().filter(|key| matches!(key, PressedKey::Char(_))).count() > 1 {
            input.keys.retain(|key| !matches!(key, PressedKey::Char(_) | PressedKey::Enter));
        }
        input
    }
}

impl KeyReader {
    /// True if ESC came, which is a key unless more follows soon.
    pub(super) fn has_escape(&self) -> bool {
        self.unfinished == [0x1b]
    }

    pub(super) fn take_escape(&mut self) -> Option<PressedKey> {
        let is_key = self.has_escape();
        is_key.then(|| self.unfinished.clear()).map(|()| PressedKey::Escape)
    }
}

/// The first reply of a terminal about its cursor: the row and the column.
pub(super) fn find_position(bytes: &[u8]) -> Option<(Range<usize>, (u16, u16))> {
    memchr::memchr_iter(ESCAPE, bytes).find_map(|start| {
        let parameters = bytes[start..].strip_prefix(b"\x1b[")?;
        let length = parameters.iter().position(|byte| *byte == b'R')?;
        let (row, column) = std::str::from_utf8(&parameters[..length]).ok()?.split_once(';')?;
        Some((start..start + length + 3, (row.parse().ok()?, column.parse().ok()?)))
    })
}

/// True for the start of a longer sequence.
fn is_unfinished(bytes: &[u8]) -> bool {
    match bytes {
        [0x1b, b'[', rest @ ..] => !rest.iter().any(|byte| (0x40..=0x7e).contains(byte)),
        [0x1b, b']' | b'P' | b'X' | b'^' | b'_', rest @ ..] => text_end(rest).is_none(),
        [0x1b] | [0x1b, b'O'] => true,
        _ => false,
    }
}

/// The number of bytes of a text of the terminal, with its end.
fn text_end(bytes: &[u8]) -> Option<usize> {
    let bell = bytes.iter().position(|byte| *byte == 7).map(|at| at + 1);
    let terminator = bytes.windows(2).position(|pair| pair == b"\x1b\\").map(|at| at + 2);
    [bell, terminator].into_iter().flatten().min()
}

/// The first key, and the number of its bytes.
fn next(bytes: &[u8]) -> (PressedKey, usize) {
    match bytes {
        [0x1b, b'[', rest @ ..] => {
            let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte));
            end.map_or((PressedKey::Other, bytes.len()), |end| {
                (control_sequence(&rest[..end], rest[end]), end + 3)
            })
        }
        [0x1b, b']' | b'P' | b'X' | b'^' | b'_', rest @ ..] => {
            (PressedKey::Reply, text_end(rest).map_or(bytes.len(), |length| length + 2))
        }
        [0x1b, b'O', last, ..] => (cursor_key(*last), 3),
        [0x1b] => (PressedKey::Escape, 1),
        // A key with Alt.
        [0x1b, _, ..] => (PressedKey::Other, 2),
        [b'\r' | b'\n', ..] => (PressedKey::Enter, 1),
        [b'\t', ..] => (PressedKey::Tab, 1),
        [8 | 0x7f, ..] => (PressedKey::Backspace, 1),
        [byte @ 0..0x20, ..] => (PressedKey::Control((byte | 0x40).to_ascii_lowercase()), 1),
        _ => character(bytes),
    }
}

fn character(bytes: &[u8]) -> (PressedKey, usize) {
    for length in 1..=bytes.len().min(4) {
        if let Ok(text) = std::str::from_utf8(&bytes[..length]) {
            return (text.chars().next().map_or(PressedKey::Other, PressedKey::Char), length);
        }
    }
    (PressedKey::Other, 1)
}

fn control_sequence(parameters: &[u8], last: u8) -> PressedKey {
    let text = String::from_utf8_lossy(parameters);
    let mut parts = text.split(';').map(|part| {
        let mut numbers = part.split(':').map(|number| number.parse::<u32>().unwrap_or_default());
        (numbers.next().unwrap_or_default(), numbers.next())
    });
    let (first, _) = parts.next().unwrap_or_default();
    let (second, event) = parts.next().unwrap_or_default();
    let third = parts.next().unwrap_or_default().0;
    match (last, first) {
        (b'u', _) if text.starts_with('?') => PressedKey::Reply,
        // The protocol of kitty, and that of xterm for other keys.
        (b'u', code) if event != Some(3) => with_modifiers(code, second),
        (b'~', 27) => with_modifiers(third, second),
        (b'~', 5) => PressedKey::PageUp,
        (b'~', 6) => PressedKey::PageDown,
        (b'~', 1 | 7) => PressedKey::Home,
        (b'~', 4 | 8) => PressedKey::End,
        (b'~', 200) => PressedKey::PasteStart,
        (b'~', 201) => PressedKey::PasteEnd,
        (b'c' | b'n' | b'y' | b't', _) => PressedKey::Reply,
        // Not F3, whose first number is 1.
        (b'R', row) if row > 1 => PressedKey::Reply,
        (b'u' | b'~', _) => PressedKey::Other,
        _ => cursor_key(last),
    }
}

/// `modifiers` is one more than a sum: 1 Shift, 2 Alt, 4 Ctrl, 8 to 32 other keys, 64 and more locks.
fn with_modifiers(code: u32, modifiers: u32) -> PressedKey {
    let pressed = modifiers.saturating_sub(1) & 0x3f;
    match (u8::try_from(code), pressed) {
        (Ok(code @ 0x20..=0x7e), 4) => PressedKey::Control(code.to_ascii_lowercase()),
        (Ok(code), 0) => next(&[code]).0,
        _ => PressedKey::Other,
    }
}

fn cursor_key(last: u8) -> PressedKey {
    match last {
        b'A' => PressedKey::Up,
        b'B' => PressedKey::Down,
        b'C' => PressedKey::Right,
        b'D' => PressedKey::Left,
        b'H' => PressedKey::Home,
        b'F' => PressedKey::End,
        _ => PressedKey::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panel_key_is_found_in_every_form() {
        let key = PanelKey::default();
        for (typed, expected) in [
            ("\x1d", Some(0..1)),
            ("ab\x1dc", Some(2..3)),
            ("\x1b[93;5u", Some(0..7)),
            ("\x1b[93;5:1u", Some(0..9)),
            ("\x1b[93;69u", Some(0..8)),
            ("\x1b[27;5;93~", Some(0..10)),
            ("\x1b[93;5:3u", None),
            ("\x1b[93u", None),
            ("]", None),
            ("\x1b[200~a\x1db\x1b[201~", None),
            ("\x1b[200~a\x1b[201~\x1d", Some(13..14)),
            ("\x1b[A\x1b[<0;1;1M", None),
        ] {
            assert_eq!(key.find(typed.as_bytes()), expected, "{typed:?}");
        }
    }

    #[test]
    fn keys_are_read() {
        use PressedKey::{Char, Control, Down, Enter, Escape, Other, PageUp, Tab, Up};
        for (typed, expected) in [
            ("1\r\t", &[Char('1'), Enter, Tab][..]),
            ("ä", &[Char('ä')]),
            ("\x1b", &[Escape]),
            ("\x1b[A\x1bOB\x1b[5~", &[Up, Down, PageUp]),
            ("\x1b[13u\x1b[49u", &[Enter, Char('1')]),
            ("\x1b[<0;1;1M", &[Other]),
            ("\x1bx", &[Other]),
            ("\x03", &[Control(b'c')]),
        ] {
            let mut reader = KeyReader::default();
            let mut input = reader.read(typed.as_bytes(), false);
            input.keys.extend(reader.take_escape());
            assert_eq!((&*input.keys, &*input.replies), (expected, &b""[..]), "{typed:?}");
        }
    }

    /// Nothing that a program can cause is a key: neither replies to its questions nor pasted text.
    #[test]
    fn replies_and_pasted_text_are_no_keys() {
        for (typed, replies) in [
            ("\x1b]11;rgb:1e1e/1e1e/1e1e\x1b\\", "\x1b]11;rgb:1e1e/1e1e/1e1e\x1b\\"),
            ("\x1b]52;c;MTEx\x07", "\x1b]52;c;MTEx\x07"),
            ("\x1bP1+r1111\x1b\\", "\x1bP1+r1111\x1b\\"),
            ("\x1b[?62;1c\x1b[11;1R\x1b[?1u", "\x1b[?62;1c\x1b[11;1R\x1b[?1u"),
            ("\x1b[200~1\r1\x1b[201~", ""),
            ("11", ""),
        ] {
            for cut in 0..typed.len() {
                let mut reader = KeyReader::default();
                let (mut keys, mut passed) = (Vec::new(), Vec::new());
                let parts = if typed == "11" { vec![typed] } else { vec![&typed[..cut], &typed[cut..]] };
                for part in parts {
                    let input = reader.read(part.as_bytes(), false);
                    keys.extend(input.keys);
                    passed.extend(input.replies);
                }
                assert!(
                    keys.is_empty() && passed == replies.as_bytes(),
                    "{typed:?} {cut}: {keys:?} {passed:?}"
                );
            }
        }
        let mut reader = KeyReader::default();
        assert_eq!(reader.read(b"1", false).keys, [PressedKey::Char('1')], "the control");
        assert_eq!(reader.read(b"ab", true).keys, [PressedKey::Char('a'), PressedKey::Char('b')], "a search");
    }

    #[test]
    fn reply_about_the_cursor_is_found() {
        for (typed, expected) in [
            ("\x1b[12;7R", Some((0..7, (12, 7)))),
            ("a\x1b[A\x1b[1;80Rb", Some((4..11, (1, 80)))),
            ("\x1b[?12;7R", None),
            ("\x1b[12R", None),
            ("R;R", None),
            ("\x1b[12;7", None),
        ] {
            assert_eq!(find_position(typed.as_bytes()), expected, "{typed:?}");
        }
    }

    #[test]
    fn key_is_parsed_and_shown() {
        for (text, shown) in [("ctrl-]", "Ctrl-]"), ("^a", "Ctrl-A"), ("Ctrl-X", "Ctrl-X")] {
            assert_eq!(text.parse::<PanelKey>().unwrap().to_string(), shown);
        }
        for text in ["", "x", "ctrl-", "ctrl-ab", "f1"] {
            text.parse::<PanelKey>().unwrap_err();
        }
        assert_eq!(PanelKey::default().byte(), 0x1d);
    }
}
