//! Recognises the start of a YAML document whose first key is `mode_switch`, in any spelling. Pure, and linear
//! in the length of the text.
//!
//! ```text
//! document = { blank | comment | "---" } [ "{" { blank | comment } ] [ "? " ] key { blank } ":"
//! key      = "mode_switch" | "\"mode_switch\"" | "'mode_switch'"
//! ```

const KEY: &[u8] = b"mode_switch";

/// Maximum bytes before the end of the key. A document with more blanks and comments before it is no switch.
const MAX_BEFORE: usize = 4096;

/// Reads a document piece by piece until its first key is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct FirstKey {
    state: KeyState,
    is_in_flow: bool,
    read: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum KeyState {
    #[default]
    Start,
    Comment,
    /// The number of dashes read of a document marker.
    Marker(u8),
    /// Behind the `?` of an explicit key.
    Explicit,
    Key {
        quote: Option<u8>,
        read: usize,
    },
    AfterKey,
    Known(bool),
}

impl FirstKey {
    /// True if the first key of a whole text is `mode_switch`.
    pub(super) fn is_first_in(text: &str) -> bool {
        let mut first_key = Self::default();
        first_key.push(text);
        first_key.is_switch() == Some(true)
    }

    pub(super) fn push(&mut self, text: &str) {
        for byte in text.bytes() {
            if let KeyState::Known(_) = self.state {
                return;
            }
            self.read += 1;
            self.state = if self.read > MAX_BEFORE { KeyState::Known(false) } else { self.next(byte) };
        }
    }

    /// `None` while only blanks, comments or a part of the key have been read.
    pub(super) fn is_switch(&self) -> Option<bool> {
        match self.state {
            KeyState::Known(is_switch) => Some(is_switch),
            _ => None,
        }
    }

    #[allow(clippy::match_same_arms, reason = "one arm for each transition")]
    fn next(&mut self, byte: u8) -> KeyState {
        let is_blank = byte.is_ascii_whitespace();
        match (self.state, byte) {
            (KeyState::Comment, b'\n') => KeyState::Start,
            (KeyState::Comment, _) => KeyState::Comment,
            (KeyState::Start | KeyState::Explicit, _) if is_blank => self.state,
            (KeyState::Start, b'#') => KeyState::Comment,
            (KeyState::Start, b'-') => KeyState::Marker(1),
            (KeyState::Marker(read @ 1..=2), b'-') => KeyState::Marker(read + 1),
            (KeyState::Marker(3), _) if is_blank => KeyState::Start,
            (KeyState::Start, b'{') if !self.is_in_flow => {
                self.is_in_flow = true;
                KeyState::Start
            }
            (KeyState::Start, b'?') => KeyState::Explicit,
            (KeyState::Start | KeyState::Explicit, b'"' | b'\'') => {
                KeyState::Key { quote: Some(byte), read: 0 }
            }
            (KeyState::Start | KeyState::Explicit, b'm') => KeyState::Key { quote: None, read: 1 },
            (KeyState::Key { quote, read }, _) if KEY.get(read) == Some(&byte) => {
                KeyState::Key { quote, read: read + 1 }
            }
            (KeyState::Key { quote: Some(quote), read }, _) if read == KEY.len() && byte == quote => {
                KeyState::AfterKey
            }
            (KeyState::Key { quote: None, read }, _) if read == KEY.len() && is_blank => KeyState::AfterKey,
            (KeyState::Key { quote: None, read }, b':') if read == KEY.len() => KeyState::Known(true),
            (KeyState::AfterKey, _) if is_blank => KeyState::AfterKey,
            (KeyState::AfterKey, b':') => KeyState::Known(true),
            _ => KeyState::Known(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_key_is_known_in_every_spelling() {
        for (text, expected) in [
            ("mode_switch:", Some(true)),
            ("\n  mode_switch :", Some(true)),
            ("# why\n---\nmode_switch:", Some(true)),
            ("'mode_switch':", Some(true)),
            ("\"mode_switch\" :", Some(true)),
            ("{mode_switch:", Some(true)),
            ("{\n  # why\n  \"mode_switch\":", Some(true)),
            ("? mode_switch\n:", Some(true)),
            ("? \"mode_switch\"\n  :", Some(true)),
            ("", None),
            (" \n# mode_switch:", None),
            ("--", None),
            ("mode_sw", None),
            ("mode_switch", None),
            ("? mode_switch\n", None),
            ("a: 1\nmode_switch:", Some(false)),
            ("mode_switches:", Some(false)),
            ("'mode_switch\":", Some(false)),
            ("- mode_switch:", Some(false)),
            ("[mode_switch:", Some(false)),
            ("{{mode_switch:", Some(false)),
            ("mode_switch x:", Some(false)),
        ] {
            let mut first_key = FirstKey::default();
            first_key.push(text);
            assert_eq!(first_key.is_switch(), expected, "{text:?}");
        }
    }
}
