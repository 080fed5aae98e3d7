//! The encodings of text files that are read and written: UTF-8, UTF-16 with a byte order mark, and Latin-1. Pure.

use encoding_rs::WINDOWS_1252;

/// In Latin-1 text, letters outside ASCII rarely stand together; in other encodings they do.
const MAX_RUN: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tool) enum Encoding {
    Utf8,
    /// As Windows extends it (windows-1252).
    Latin1,
    Utf16Le,
    Utf16Be,
}

impl Encoding {
    pub(super) fn is_utf16(self) -> bool {
        matches!(self, Self::Utf16Le | Self::Utf16Be)
    }

    pub(super) fn of(bytes: &[u8]) -> Self {
        match bytes {
            [0xff, 0xfe, ..] => Self::Utf16Le,
            [0xfe, 0xff, ..] => Self::Utf16Be,
            _ if std::str::from_utf8(bytes).is_err() && is_latin1(bytes) => Self::Latin1,
            _ => Self::Utf8,
        }
    }

    /// Returns the text with its byte order mark. Returns `None` if the bytes are no valid text.
    pub(super) fn decode(self, bytes: &[u8]) -> Option<String> {
        match self {
            Self::Utf8 => std::str::from_utf8(bytes).ok().map(str::to_owned),
            Self::Latin1 => {
                WINDOWS_1252.decode_without_bom_handling_and_without_replacement(bytes).map(Into::into)
            }
            Self::Utf16Le => decode_utf16(bytes, u16::from_le_bytes),
            Self::Utf16Be => decode_utf16(bytes, u16::from_be_bytes),
        }
    }

    /// Encodes a text with its byte order mark. Returns the first character that the encoding lacks as an error.
    pub(super) fn encode(self, text: &str) -> Result<Vec<u8>, char> {
        match self {
            Self::Utf8 => Ok(text.as_bytes().to_vec()),
            Self::Latin1 => {
                let (bytes, _, is_missing) = WINDOWS_1252.encode(text);
                let missing = is_missing
                    .then(|| text.chars().find(|c| WINDOWS_1252.encode(c.encode_utf8(&mut [0; 4])).2))
                    .flatten();
                missing.map_or(Ok(bytes.into_owned()), Err)
            }
            Self::Utf16Le => Ok(text.encode_utf16().flat_map(u16::to_le_bytes).collect()),
            Self::Utf16Be => Ok(text.encode_utf16().flat_map(u16::to_be_bytes).collect()),
        }
    }
}

fn decode_utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Option<String> {
    let (pairs, rest) = bytes.as_chunks();
    let text = String::from_utf16(&pairs.iter().map(|pair| unit(*pair)).collect::<Vec<_>>());
    text.ok().filter(|text| rest.is_empty() && !text.contains('\0'))
}

fn is_latin1(bytes: &[u8]) -> bool {
    let mut runs = bytes.split(u8::is_ascii).filter(|run| !run.is_empty());
    runs.all(|run| run.len() <= MAX_RUN && std::str::from_utf8(run).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], encoding: Encoding, text: Option<&str>) {
        assert_eq!(Encoding::of(bytes), encoding, "{bytes:?}");
        assert_eq!(encoding.decode(bytes).as_deref(), text, "{bytes:?}");
        if let Some(text) = text {
            assert_eq!(encoding.encode(text).as_deref(), Ok(bytes));
        }
    }

    #[test]
    fn encodings_round_trip() {
        check("é\n".as_bytes(), Encoding::Utf8, Some("é\n"));
        check(b"caf\xe9 \x93x\x94 \x81", Encoding::Latin1, Some("café “x” \u{81}"));
        check(b"\xff\xfea\0\xe9\0=\xd8\x00\xde", Encoding::Utf16Le, Some("\u{feff}aé😀"));
        check(b"\xfe\xff\0a\0\n", Encoding::Utf16Be, Some("\u{feff}a\n"));
    }

    #[test]
    fn other_bytes_are_not_text() {
        check(b"\xff\xfea\0b", Encoding::Utf16Le, None);
        check(b"\xff\xfe\0\xd8a\0", Encoding::Utf16Le, None);
        check(b"\xff\xfe\0\0", Encoding::Utf16Le, None);
        check(b"caf\xc3\xa9 caf\xe9", Encoding::Utf8, None);
        check(b"\xcf\xf0\xe8\xe2\xe5\xf2", Encoding::Utf8, None);
        assert_eq!(Encoding::Latin1.encode("aλ"), Err('λ'));
    }
}
