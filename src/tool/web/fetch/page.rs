//! Decodes a response to text for a model. Pure.

use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};
use url::Url;

use super::markdown;
use crate::tool::{ToolError, ToolOutput};

use crate::text::shorten;

const PAGE: usize = 30_000;

const MAX_ERROR_TEXT: usize = 2_000;

/// Bytes of an HTML page searched for its `charset`.
const HEAD: usize = 1024;

/// Media types without text, except for XML.
const BINARY: [&str; 5] = ["image", "audio", "video", "font", "model"];

/// Subtypes without text.
const BINARY_SUBTYPES: [&str; 8] =
    ["pdf", "zip", "gzip", "x-gzip", "x-tar", "x-7z-compressed", "vnd.rar", "wasm"];

#[derive(Debug)]
pub(super) struct Raw {
    pub url: Url,
    pub status: u16,
    pub status_text: String,
    /// The `Content-Type` header; may be empty.
    pub content_type: String,
    /// The `Content-Length` header.
    pub length: Option<u64>,
    pub bytes: Vec<u8>,
    /// True if the response was longer than the limit.
    pub is_cut: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageKind {
    Html,
    Text,
    /// Decided by the content.
    Unsaid,
    Binary,
}

impl Raw {
    fn media_type(&self) -> String {
        self.content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    fn kind(&self) -> PageKind {
        let media = self.media_type();
        match media.split_once('/') {
            Some(("text", "html") | ("application", "xhtml+xml")) => PageKind::Html,
            Some(("text" | "message", _)) => PageKind::Text,
            Some((_, of)) if ["+json", "+xml", "+yaml"].iter().any(|end| of.ends_with(end)) => PageKind::Text,
            Some((of, kind)) if BINARY.contains(&of) || BINARY_SUBTYPES.contains(&kind) => PageKind::Binary,
            Some(_) | None => PageKind::Unsaid,
        }
    }

    fn is_error(&self) -> bool {
        !(200..300).contains(&self.status)
    }

    fn binary(&self) -> ToolError {
        let media = match self.media_type() {
            media if media.is_empty() => "without a type".into(),
            media => media,
        };
        let size = match (self.length, self.is_cut) {
            (Some(length), _) => format!("{length} bytes"),
            (None, false) if !self.bytes.is_empty() => format!("{} bytes", self.bytes.len()),
            (None, true) => format!("more than {} bytes", self.bytes.len()),
            (None, false) => "unknown size".into(),
        };
        ToolError::Failed(format!("{} is not text ({media}, {size}). fetch returns only text.", self.url))
    }

    fn decode(&self) -> Result<String, ToolError> {
        let declared = charset(&self.content_type).or_else(|| {
            let head = String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(HEAD)]).into_owned();
            (self.kind() == PageKind::Html).then(|| charset(&head)).flatten()
        });
        let marked = Encoding::for_bom(&self.bytes).map(|(encoding, _)| encoding);
        let is_utf8 = match std::str::from_utf8(&self.bytes) {
            Ok(_) => true,
            // A cut response may end within a character.
            Err(error) => self.is_cut && error.error_len().is_none(),
        };
        let encoding = marked.or(declared).or(is_utf8.then_some(UTF_8));
        let is_wide = encoding.is_some_and(|encoding| !encoding.is_ascii_compatible());
        let is_binary = self.kind() == PageKind::Binary
            || !is_wide && self.bytes.contains(&0)
            || encoding.is_none() && self.kind() == PageKind::Unsaid;
        if is_binary {
            return Err(self.binary());
        }
        let (text, _, _) = encoding.unwrap_or(WINDOWS_1252).decode(&self.bytes);
        Ok(text.into_owned())
    }
}

fn charset(text: &str) -> Option<&'static Encoding> {
    let lower = text.to_ascii_lowercase();
    let (_, rest) = lower.split_once("charset=")?;
    let rest = rest.trim_start_matches(['"', '\'', ' ']);
    let end = rest.find(|c: char| c.is_whitespace() || "\"';/>".contains(c)).unwrap_or(rest.len());
    Encoding::for_label(&rest.as_bytes()[..end])
}

pub(super) fn check_type(raw: &Raw) -> Result<(), ToolError> {
    if raw.kind() == PageKind::Binary && !raw.is_error() { Err(raw.binary()) } else { Ok(()) }
}

/// The part of the text from character `start` on, counted from 1.
pub(super) fn show(raw: &Raw, start: usize) -> Result<ToolOutput, ToolError> {
    if raw.is_error() {
        let message = raw.decode().unwrap_or_default();
        let message = convert(raw, message);
        let message = shorten(&message, MAX_ERROR_TEXT);
        return Err(ToolError::Failed(format!(
            "{}: the server answered {}.\n{message}",
            raw.url, raw.status_text
        )));
    }
    let text = convert(raw, raw.decode()?);
    let mut notes = Vec::new();
    if raw.is_cut {
        notes.push(format!("Only the first {} bytes were read; there is more.", raw.bytes.len()));
    }
    let head = format!("[{}, {}]\n\n", raw.url, raw.media_type());
    Ok(ToolOutput::text(head + &part(&text, start, notes)?))
}

fn convert(raw: &Raw, text: String) -> String {
    if raw.kind() == PageKind::Html { markdown::from_html(&text, &raw.url) } else { text }
}

fn part(text: &str, start: usize, mut notes: Vec<String>) -> Result<String, ToolError> {
    let total = text.chars().count();
    if start > total.max(1) {
        return Err(ToolError::Failed(format!(
            "There are {total} characters; there is no character {start}."
        )));
    }
    let mut part: String = text.chars().skip(start - 1).take(PAGE).collect();
    let last = (start - 1 + PAGE).min(total);
    if total == 0 {
        notes.push("The page is empty.".into());
    } else if start > 1 || last < total {
        let next_hint =
            if last < total { format!(" Continue with start {}.", last + 1) } else { String::new() };
        notes.push(format!("Characters {start}-{last} of {total}.{next_hint}"));
    }
    for note in notes {
        let newline = if part.is_empty() || part.ends_with('\n') { "" } else { "\n" };
        part = format!("{part}{newline}[{note}]");
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(content_type: &str, bytes: &[u8]) -> Raw {
        Raw {
            url: Url::parse("https://x.example/a/").unwrap(),
            status: 200,
            status_text: "200 OK".into(),
            content_type: content_type.into(),
            length: None,
            bytes: bytes.to_vec(),
            is_cut: false,
        }
    }

    fn shown(content_type: &str, bytes: &[u8]) -> String {
        let shown = show(&raw(content_type, bytes), 1).map(|output| output.text);
        let text = shown.unwrap_or_else(|error| error.to_string());
        text.split_once("]\n\n").map_or(text.clone(), |(_, text)| text.to_owned())
    }

    #[test]
    fn page_text_is_decoded_by_its_charset() {
        assert_eq!(shown("text/plain; charset=ISO-8859-1", b"caf\xe9"), "café");
        assert_eq!(shown("text/plain", "café".as_bytes()), "café");
        assert_eq!(shown("text/plain", b"caf\xe9"), "café");
        assert_eq!(shown("text/plain", b"\xff\xfea\0b\0"), "ab");
        assert_eq!(shown("text/html", b"<meta charset='koi8-r'><p>\xd0\xd2\xc9"), "при\n");
        assert_eq!(shown("application/json; charset=utf-8", b"{\"a\": 1}"), "{\"a\": 1}");
        assert_eq!(shown("", b"plain"), "plain");
        assert_eq!(shown("application/octet-stream", b"plain"), "plain");
    }

    #[test]
    fn binary_content_is_refused_with_type_and_size() {
        for (content_type, bytes, expected) in [
            ("image/png", &b"x"[..], "image/png, 1 bytes"),
            ("application/octet-stream", b"a\0b", "application/octet-stream, 3 bytes"),
            ("", b"\xff\xd8\xff\xe0", "without a type, 4 bytes"),
            ("text/plain", b"a\0b", "text/plain, 3 bytes"),
        ] {
            assert!(shown(content_type, bytes).contains(expected), "{content_type}");
        }
        assert!(
            check_type(&raw("video/mp4", b"")).is_err() && check_type(&raw("image/svg+xml", b"")).is_ok()
        );
    }

    #[test]
    fn long_page_is_paginated_without_gaps() {
        let text = "é".repeat(PAGE + 5);
        let first = part(&text, 1, vec![]).unwrap();
        assert!(first.ends_with("é\n[Characters 1-30000 of 30005. Continue with start 30001.]"), "{first}");
        assert_eq!(part(&text, PAGE + 1, vec![]).unwrap(), "ééééé\n[Characters 30001-30005 of 30005.]");
        assert!(part(&text, PAGE + 6, vec![]).is_err());
        assert_eq!(part("", 1, vec![]).unwrap(), "[The page is empty.]");
    }
}
