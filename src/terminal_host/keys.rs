//! Keys as terminals send them. Pure.

use std::ops::Range;
use std::str::FromStr;

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

    pub(super) fn as_key(self) -> Key {
        Key::Control(self.0)
    }

    /// Finds the key among typed bytes, but not within pasted text.
    pub(super) fn find(self, bytes: &[u8]) -> Option<Range<usize>> {
        let (mut at, mut is_pasted) = (0, false);
        while at < bytes.len() {
            let (key, length) = next(&bytes[at..]);
            let range = at..at + length;
            match key {
                Key::PasteStart => is_pasted = true,
                Key::PasteEnd => is_pasted = false,
                Key::Control(key) if key == self.0 && !is_pasted => return Some(range),
                _ => {}
            }
            at = range.end;
        }
        None
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
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
    /// Mouse reports, replies of the terminal, keys that mean nothing here.
    Other,
}

/// All keys of typed bytes.
pub(super) fn all(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while !bytes.is_empty() {
        let (key, length) = next(bytes);
        keys.push(key);
        bytes = &bytes[length..];
    }
    keys
}

/// The first key, and the number of its bytes.
fn next(bytes: &[u8]) -> (Key, usize) {
    match bytes {
        [0x1b, b'[', rest @ ..] => {
            let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte));
            end.map_or((Key::Other, bytes.len()), |end| (control_sequence(&rest[..end], rest[end]), end + 3))
        }
        [0x1b, b'O', last, ..] => (cursor_key(*last), 3),
        [0x1b] => (Key::Escape, 1),
        // A key with Alt.
        [0x1b, _, ..] => (Key::Other, 2),
        [b'\r' | b'\n', ..] => (Key::Enter, 1),
        [b'\t', ..] => (Key::Tab, 1),
        [8 | 0x7f, ..] => (Key::Backspace, 1),
        [byte @ 0..0x20, ..] => (Key::Control((byte | 0x40).to_ascii_lowercase()), 1),
        _ => character(bytes),
    }
}

fn character(bytes: &[u8]) -> (Key, usize) {
    for length in 1..=bytes.len().min(4) {
        if let Ok(text) = std::str::from_utf8(&bytes[..length]) {
            return (text.chars().next().map_or(Key::Other, Key::Char), length);
        }
    }
    (Key::Other, 1)
}

fn control_sequence(parameters: &[u8], last: u8) -> Key {
    let text = String::from_utf8_lossy(parameters);
    let mut parts = text.split(';').map(|part| {
        let mut numbers = part.split(':').map(|number| number.parse::<u32>().unwrap_or_default());
        (numbers.next().unwrap_or_default(), numbers.next())
    });
    let (first, _) = parts.next().unwrap_or_default();
    let (second, event) = parts.next().unwrap_or_default();
    let third = parts.next().unwrap_or_default().0;
    match (last, first) {
        // The protocol of kitty, and that of xterm for other keys.
        (b'u', code) if event != Some(3) => with_modifiers(code, second),
        (b'~', 27) => with_modifiers(third, second),
        (b'~', 5) => Key::PageUp,
        (b'~', 6) => Key::PageDown,
        (b'~', 1 | 7) => Key::Home,
        (b'~', 4 | 8) => Key::End,
        (b'~', 200) => Key::PasteStart,
        (b'~', 201) => Key::PasteEnd,
        (b'u' | b'~', _) => Key::Other,
        _ => cursor_key(last),
    }
}

/// `modifiers` is one more than a sum: 1 Shift, 2 Alt, 4 Ctrl, 8 to 32 other keys, 64 and more locks.
fn with_modifiers(code: u32, modifiers: u32) -> Key {
    let pressed = modifiers.saturating_sub(1) & 0x3f;
    match (u8::try_from(code), pressed) {
        (Ok(code @ 0x20..=0x7e), 4) => Key::Control(code.to_ascii_lowercase()),
        (Ok(code), 0) => next(&[code]).0,
        _ => Key::Other,
    }
}

fn cursor_key(last: u8) -> Key {
    match last {
        b'A' => Key::Up,
        b'B' => Key::Down,
        b'C' => Key::Right,
        b'D' => Key::Left,
        b'H' => Key::Home,
        b'F' => Key::End,
        _ => Key::Other,
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
        use Key::{Char, Control, Down, Enter, Escape, Other, PageUp, Tab, Up};
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
            assert_eq!(all(typed.as_bytes()), expected, "{typed:?}");
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
