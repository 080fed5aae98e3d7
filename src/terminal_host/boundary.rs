//! Tells where bytes of Modegate can stand in the output of a program: not within a character or an escape sequence.
//! Pure.

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Boundary {
    #[default]
    Reached,
    /// Bytes of a character that are missing.
    Character(u8),
    Escape,
    /// After an intermediate byte of a sequence without parameters.
    Intermediate,
    /// After `ESC [`.
    Control,
    /// Until `ESC \` or, if true, BEL.
    Text(bool),
    TextEscape(bool),
}

const CANCEL: [u8; 2] = [0x18, 0x1a];

impl Boundary {
    pub(super) fn is_reached(self) -> bool {
        self == Self::Reached
    }

    pub(super) fn read(&mut self, bytes: &[u8]) {
        *self = bytes.iter().fold(*self, |state, byte| state.after(*byte));
    }

    /// Reads bytes until a boundary is reached, and returns their number.
    pub(super) fn read_to_next(&mut self, bytes: &[u8]) -> usize {
        for (index, byte) in bytes.iter().enumerate() {
            *self = self.after(*byte);
            if self.is_reached() {
                return index + 1;
            }
        }
        bytes.len()
    }

    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (_, byte) if CANCEL.contains(&byte) => Self::Reached,
            (Self::Text(_) | Self::TextEscape(_), 0x1b) => match self {
                Self::Text(ends_with_bell) => Self::TextEscape(ends_with_bell),
                _ => Self::Escape,
            },
            (_, 0x1b) => Self::Escape,
            (Self::Character(missing), 0x80..=0xbf) if missing > 1 => Self::Character(missing - 1),
            (Self::Character(_), 0x80..=0xbf) | (Self::Text(true), 7) | (Self::TextEscape(_), b'\\') => {
                Self::Reached
            }
            (Self::Reached | Self::Character(_), byte) => match byte {
                0xc2..=0xdf => Self::Character(1),
                0xe0..=0xef => Self::Character(2),
                0xf0..=0xf4 => Self::Character(3),
                _ => Self::Reached,
            },
            (Self::Escape, b'[') => Self::Control,
            (Self::Escape, b']') => Self::Text(true),
            (Self::Escape, b'P' | b'X' | b'^' | b'_') => Self::Text(false),
            // Control characters act within a sequence, and bytes without a meaning are ignored there.
            (Self::Escape | Self::Intermediate | Self::Control, 0..=0x1f | 0x7f..)
            | (Self::Control, 0x20..=0x3f)
            | (Self::Text(_), _) => self,
            (Self::Escape | Self::Intermediate, 0x20..=0x2f) => Self::Intermediate,
            (Self::Escape | Self::Intermediate | Self::Control, _) => Self::Reached,
            (Self::TextEscape(_), byte) => Self::Escape.after(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_are_between_characters_and_sequences() {
        for text in [
            "a",
            "ä",
            "€",
            "😀",
            "\x1b[1;2H",
            "\x1b[?25h",
            "\x1bM",
            "\x1b(B",
            "\x1b]2;title\x07",
            "\x1b]2;title\x1b\\",
            "\x1bPq\x07#1\x1b\\",
            "\x1b_G\x1b\\",
            "\x1b[>1u",
            "\x1b[1 q",
            "\x1b([",
            "\x1b\x7f[?1h",
        ] {
            let bytes = text.as_bytes();
            for end in 1..=bytes.len() {
                let mut boundary = Boundary::default();
                boundary.read(&bytes[..end]);
                assert_eq!(boundary.is_reached(), end == bytes.len(), "{:?}", &bytes[..end]);
            }
        }
        for text in ["\x1b[1\x18", "\x1b]2;a\x1a", "\u{7f}"] {
            let mut boundary = Boundary::default();
            boundary.read(text.as_bytes());
            assert!(boundary.is_reached(), "{text:?}");
        }
    }
}
