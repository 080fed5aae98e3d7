//! Decodes and encodes text files: byte order mark, line endings, binary data. Never writes.

use std::io::Read;

use super::encoding::Encoding;
use crate::permission::Target;
use crate::tool::ToolError;
use crate::workspace::{self, ContentHash, FileError};

pub(in crate::tool) const MAX_FILE: u64 = 10 * 1024 * 1024;

/// Bytes searched for NUL, which marks a binary file.
const SNIFFED_BYTES: usize = 8192;

pub(in crate::tool) const BOM: &str = "\u{feff}";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tool) struct TextFile {
    pub encoding: Encoding,
    pub bom: bool,
    /// Without the byte order mark, with the file's line endings.
    pub text: String,
    /// Invalid bytes were replaced, so the text must not be written back.
    pub lossy: bool,
    pub unsaved: bool,
    /// Hash of the file's bytes or, for unsaved text, of the bytes that saving would write.
    pub content_hash: ContentHash,
    /// Hash of the bytes on disk.
    pub disk_hash: ContentHash,
}

impl TextFile {
    pub(in crate::tool) fn read(target: &Target) -> Result<Self, ToolError> {
        let path = target.path.display();
        let mut open = workspace::open(target)?;
        let length = open.metadata.len();
        if length > MAX_FILE {
            return Err(ToolError::Failed(format!(
                "{path} has {length} bytes, and at most {MAX_FILE} are read. Use search_files to find the part you need."
            )));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
        // The file may grow, so the read is limited, too.
        let taken = open.file.by_ref().take(MAX_FILE).read_to_end(&mut bytes);
        taken.map_err(|error| FileError::io(&target.path, &error))?;
        Self::decode(&bytes).map_err(|what| ToolError::Failed(format!("{path} is {what} ({length} bytes).")))
    }

    pub(in crate::tool) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let content_hash = ContentHash::of(bytes);
        let encoding = Encoding::of(bytes);
        let has_zeros = bytes.iter().take(SNIFFED_BYTES).any(|byte| *byte == 0);
        let text = encoding.decode(bytes).filter(|_| !has_zeros || encoding.is_utf16());
        if text.is_none() && (has_zeros || encoding.is_utf16()) {
            return Err("a binary file");
        }
        let lossy = text.is_none();
        let text = text.unwrap_or_else(|| String::from_utf8_lossy(bytes).into_owned());
        let rest = text.strip_prefix(BOM).map(str::to_owned);
        let bom = rest.is_some();
        Ok(Self {
            encoding,
            bom,
            text: rest.unwrap_or(text),
            lossy,
            unsaved: false,
            content_hash,
            disk_hash: content_hash,
        })
    }

    /// Returns the file as the editor shows it, or `None` if that is the saved text. Editors may hide byte order marks,
    /// carriage returns and the final newline, so a text that differs only in these is the saved one. Any other text
    /// gets the saved file's mark and line endings.
    pub(in crate::tool) fn shown_as(&self, shown: &str) -> Option<Self> {
        let shown_text = shown.strip_prefix(BOM).unwrap_or(shown);
        let [saved, plain] = [self.text.as_str(), shown_text].map(|text| text.replace("\r\n", "\n"));
        if !self.is_utf8() || saved == plain || saved.strip_suffix('\n') == Some(&plain) {
            return None;
        }
        let unsaved_file = Self { text: self.with_endings(shown_text), unsaved: true, ..*self };
        Some(Self { content_hash: ContentHash::of(&unsaved_file.bytes()), ..unsaved_file })
    }

    pub(in crate::tool) fn bytes(&self) -> Vec<u8> {
        self.encoded(&self.text).expect("a text can be encoded as it was decoded")
    }

    /// Encodes a text as this file, with its byte order mark.
    pub(in crate::tool) fn encode(&self, name: &str, text: &str) -> Result<Vec<u8>, ToolError> {
        self.encoded(text).map_err(|c| {
            let why = "Write it in ASCII, or convert the file with a command first.";
            ToolError::Failed(format!("{name} is Latin-1 text, which has no `{c}`. {why}"))
        })
    }

    fn encoded(&self, text: &str) -> Result<Vec<u8>, char> {
        if self.bom { self.encoding.encode(&[BOM, text].concat()) } else { self.encoding.encode(text) }
    }

    fn is_utf8(&self) -> bool {
        !self.lossy && self.encoding == Encoding::Utf8
    }

    /// Converts `text` to CRLF if this file uses CRLF throughout.
    pub(in crate::tool) fn with_endings(&self, text: &str) -> String {
        if self.is_crlf() { to_crlf(text) } else { text.to_owned() }
    }

    pub(super) fn is_crlf(&self) -> bool {
        let newlines = self.text.matches('\n').count();
        newlines > 0 && self.text.matches("\r\n").count() == newlines
    }
}

/// Reads text that an editor certainly shows and saves as it is. `None` for any other file.
pub(super) fn read_utf8(target: &Target) -> Option<TextFile> {
    TextFile::read(target).ok().filter(TextFile::is_utf8)
}

fn to_crlf(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\n', "\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bom_and_line_endings_round_trip() {
        let file = TextFile::decode("\u{feff}a\r\nb\r\n".as_bytes()).unwrap();
        assert_eq!((file.bom, file.text.as_str(), file.is_crlf()), (true, "a\r\nb\r\n", true));
        assert_eq!(file.encode("f", &file.with_endings("x\ny\n")).unwrap(), "\u{feff}x\r\ny\r\n".as_bytes());
        let file = TextFile::decode("a\r\nb\n".as_bytes()).unwrap();
        assert_eq!(file.with_endings("x\ny"), "x\ny");
    }

    #[test]
    fn editor_text_replaces_the_saved_file_only_if_different() {
        let saved = TextFile::decode("\u{feff}a\r\nb\r\n".as_bytes()).unwrap();
        for same in ["a\nb\n", "a\r\nb\r\n", "\u{feff}a\r\nb\r\n", "a\nb", "a\r\nb"] {
            assert_eq!(saved.shown_as(same), None);
        }
        let shown = saved.shown_as("a\nc\n").unwrap();
        assert_eq!((shown.bom, shown.text.as_str(), shown.unsaved), (true, "a\r\nc\r\n", true));
        assert_eq!(shown.content_hash, ContentHash::of("\u{feff}a\r\nc\r\n".as_bytes()));
        for other in [b"caf\xe9".to_vec(), b"caf\xe9 \xc3\xa9".to_vec()] {
            let file = TextFile::decode(&other).unwrap();
            assert_eq!(file.shown_as("cafe"), None);
        }
    }

    #[test]
    fn binary_files_are_recognised() {
        assert_eq!(TextFile::decode(b"a\0b"), Err("a binary file"));
        assert_eq!(TextFile::decode(b"\xff\xfea\0b"), Err("a binary file"));
        assert!(TextFile::decode(b"caf\xe9 \xc3\xa9").unwrap().lossy);
    }

    #[test]
    fn other_encodings_are_kept() {
        let file = TextFile::decode(b"\xff\xfea\0").unwrap();
        assert_eq!((file.bom, file.text.as_str()), (true, "a"));
        assert_eq!(file.encode("f", "é").unwrap(), b"\xff\xfe\xe9\0");
        let file = TextFile::decode(b"caf\xe9").unwrap();
        assert_eq!(file.encode("f", "é").unwrap(), b"\xe9");
        let error = file.encode("f", "λ").unwrap_err().to_string();
        assert!(error.starts_with("f is Latin-1 text, which has no `λ`."), "{error}");
    }
}
