//! Decodes and encodes text files: byte order mark, line endings, binary data. Never writes.

use std::io::Read;

use super::ToolError;
use crate::permission::Target;
use crate::workspace::{self, ContentHash, FileError};

pub(super) const MAX_FILE: u64 = 10 * 1024 * 1024;

/// Bytes searched for NUL, which marks a binary file.
const SNIFFED_BYTES: usize = 8192;

pub(super) const BOM: &str = "\u{feff}";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TextFile {
    pub bom: bool,
    /// Without the byte order mark, with the file's line endings.
    pub text: String,
    /// Invalid UTF-8 was replaced, so the text must not be written back.
    pub lossy: bool,
    pub unsaved: bool,
    /// Hash of the file's bytes or, for unsaved text, of the bytes that saving would write.
    pub content_hash: ContentHash,
}

impl TextFile {
    pub(super) fn read(target: &Target) -> Result<Self, ToolError> {
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
        Self::decode(bytes).map_err(|what| ToolError::Failed(format!("{path} is {what} ({length} bytes).")))
    }

    pub(super) fn decode(bytes: Vec<u8>) -> Result<Self, &'static str> {
        let content_hash = ContentHash::of(&bytes);
        if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
            return Err("UTF-16 text, which is not supported");
        }
        if bytes.iter().take(SNIFFED_BYTES).any(|byte| *byte == 0) {
            return Err("a binary file");
        }
        let (text, lossy) = match String::from_utf8(bytes) {
            Ok(text) => (text, false),
            Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), true),
        };
        match text.strip_prefix(BOM) {
            Some(rest) => Ok(Self { bom: true, text: rest.to_owned(), lossy, unsaved: false, content_hash }),
            None => Ok(Self { bom: false, text, lossy, unsaved: false, content_hash }),
        }
    }

    /// Returns the file as the editor shows it. Editors may hide byte order marks and carriage returns, so a
    /// text that differs only in these is the saved text. Any other text gets the saved file's mark and line
    /// endings.
    #[must_use]
    pub(super) fn shown_as(self, shown: &str) -> Self {
        let shown = shown.strip_prefix(BOM).unwrap_or(shown);
        if self.lossy || self.text.replace("\r\n", "\n") == shown.replace("\r\n", "\n") {
            return self;
        }
        let text = self.with_endings(shown);
        let content_hash = ContentHash::of(&encode(self.bom, &text));
        Self { text, unsaved: true, content_hash, ..self }
    }

    /// Converts `text` to CRLF if this file uses CRLF throughout.
    pub(super) fn with_endings(&self, text: &str) -> String {
        if self.is_crlf() { to_crlf(text) } else { text.to_owned() }
    }

    pub(super) fn is_crlf(&self) -> bool {
        let newlines = self.text.matches('\n').count();
        newlines > 0 && self.text.matches("\r\n").count() == newlines
    }
}

pub(super) fn is_text(target: &Target) -> bool {
    TextFile::read(target).is_ok_and(|file| !file.lossy)
}

pub(super) fn encode(bom: bool, text: &str) -> Vec<u8> {
    if bom { [BOM, text].concat().into_bytes() } else { text.as_bytes().to_vec() }
}

/// Returns an error if a file is not as the model last saw it (`last_seen`) or as a permission request showed it
/// (`shown`).
pub(super) fn check_unchanged(
    name: &str,
    before: ContentHash,
    last_seen: Option<ContentHash>,
    shown: Option<ContentHash>,
) -> Result<(), ToolError> {
    if shown.is_some_and(|shown| shown != before) {
        return Err(ToolError::Failed(format!(
            "{name} changed while the permission request was open. Read it again."
        )));
    }
    if before != ContentHash::Absent && last_seen.is_some_and(|last_seen| last_seen != before) {
        return Err(ToolError::Failed(format!("{name} has changed since you read it. Read it again.")));
    }
    Ok(())
}

fn to_crlf(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\n', "\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bom_and_line_endings_round_trip() {
        let file = TextFile::decode("\u{feff}a\r\nb\r\n".into()).unwrap();
        assert_eq!((file.bom, file.text.as_str(), file.is_crlf()), (true, "a\r\nb\r\n", true));
        assert_eq!(encode(file.bom, &file.with_endings("x\ny\n")), "\u{feff}x\r\ny\r\n".as_bytes());
        let file = TextFile::decode("a\r\nb\n".into()).unwrap();
        assert_eq!(file.with_endings("x\ny"), "x\ny");
    }

    #[test]
    fn editor_text_replaces_the_saved_file_only_if_different() {
        let saved = TextFile::decode("\u{feff}a\r\nb\r\n".into()).unwrap();
        for same in ["a\nb\n", "a\r\nb\r\n", "\u{feff}a\r\nb\r\n"] {
            assert_eq!(saved.clone().shown_as(same), saved);
        }
        let shown = saved.shown_as("a\nc\n");
        assert_eq!((shown.bom, shown.text.as_str(), shown.unsaved), (true, "a\r\nc\r\n", true));
        assert_eq!(shown.content_hash, ContentHash::of("\u{feff}a\r\nc\r\n".as_bytes()));
        let lossy = TextFile::decode(b"caf\xe9".to_vec()).unwrap();
        assert_eq!(lossy.clone().shown_as("cafe"), lossy);
    }

    #[test]
    fn binary_and_utf16_files_are_recognised() {
        assert_eq!(TextFile::decode(b"a\0b".to_vec()), Err("a binary file"));
        assert!(TextFile::decode(b"\xff\xfea\0".to_vec()).unwrap_err().starts_with("UTF-16"));
        assert!(TextFile::decode(b"caf\xe9".to_vec()).unwrap().lossy);
    }
}
