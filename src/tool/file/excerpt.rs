//! Lines of a text for the model, numbered. Reads a stream once and keeps only the lines that it returns.

use std::io::BufRead;

use memchr::memchr_iter;
use tokio_util::sync::CancellationToken;

use crate::tool::ToolError;

/// Default and maximum number of lines.
pub(super) const MAX_LINES: u32 = 2000;

/// Maximum bytes of all lines.
pub(super) const MAX_BYTES: usize = 50 * 1024;

/// Maximum characters of a line.
const MAX_LINE: usize = 2000;

/// Bytes behind the last line that are read to count the lines.
const COUNTED: usize = 256 * 1024 * 1024;

#[derive(Debug, Clone, Copy)]
pub(in crate::tool) struct Range {
    /// Counted from 1.
    pub first: u64,
    pub limit: usize,
}

impl Range {
    pub(in crate::tool) fn new(line: Option<u32>, limit: Option<u32>) -> Self {
        let limit = limit.unwrap_or(MAX_LINES).clamp(1, MAX_LINES);
        Self { first: line.unwrap_or(1).max(1).into(), limit: limit as usize }
    }
}

#[derive(Debug)]
pub(in crate::tool) struct Excerpt {
    /// With a note about the lines that follow.
    pub text: String,
    /// Invalid UTF-8 was replaced.
    pub lossy: bool,
}

/// Returns an error if there is no such line, if reading fails, or if the call is cancelled.
pub(in crate::tool) fn excerpt(
    mut reader: impl BufRead,
    range: Range,
    cancel: &CancellationToken,
) -> Result<Excerpt, ToolError> {
    let mut page = ExcerptPage::new(range);
    let mut counted = 0;
    loop {
        if cancel.is_cancelled() {
            return Err(ToolError::Failed("The call was cancelled.".into()));
        }
        let chunk = reader
            .fill_buf()
            .map_err(|error| ToolError::Failed(format!("The file cannot be read: {error}")))?;
        if chunk.is_empty() {
            return page.finish(true);
        }
        if page.is_full {
            if counted >= COUNTED {
                return page.finish(false);
            }
            counted += chunk.len();
        }
        page.read(chunk);
        let length = chunk.len();
        reader.consume(length);
    }
}

struct ExcerptPage {
    range: Range,
    text: String,
    last: u64,
    /// Number of complete lines so far.
    complete: u64,
    line: Vec<u8>,
    characters: usize,
    is_in_line: bool,
    is_full: bool,
    lossy: bool,
}

impl ExcerptPage {
    fn new(range: Range) -> Self {
        Self {
            range,
            text: String::new(),
            last: 0,
            complete: 0,
            line: Vec::new(),
            characters: 0,
            is_in_line: false,
            is_full: false,
            lossy: false,
        }
    }

    fn read(&mut self, chunk: &[u8]) {
        let mut at = 0;
        for end in memchr_iter(b'\n', chunk) {
            self.add(&chunk[at..end]);
            self.end_line();
            at = end + 1;
        }
        self.add(&chunk[at..]);
        self.is_in_line = at < chunk.len();
    }

    fn is_wanted(&self) -> bool {
        !self.is_full && self.complete + 1 >= self.range.first
    }

    fn add(&mut self, part: &[u8]) {
        if self.is_wanted() {
            // No character has more than four bytes. One more shows that the line is too long.
            let kept_length = part.len().min((4 * (MAX_LINE + 1)).saturating_sub(self.line.len()));
            self.line.extend_from_slice(&part[..kept_length]);
            self.characters += part.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        }
    }

    fn end_line(&mut self) {
        if self.is_wanted() {
            let line = self.numbered();
            if self.text.len() + line.len() > MAX_BYTES {
                self.is_full = true;
            } else {
                self.text.push_str(&line);
                self.last = self.complete + 1;
                self.is_full = self.last + 1 - self.range.first >= self.range.limit as u64;
            }
            self.line.clear();
            self.characters = 0;
        }
        self.complete += 1;
        self.is_in_line = false;
    }

    fn numbered(&mut self) -> String {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        let valid = std::str::from_utf8(line);
        // An incomplete character at the end was cut off here.
        self.lossy |= valid.is_err_and(|error| self.characters <= MAX_LINE || error.error_len().is_some());
        let text = String::from_utf8_lossy(line);
        let number = self.complete + 1;
        let mut row = format!("{number}\t");
        match text.char_indices().nth(MAX_LINE) {
            Some((end, _)) => {
                let more = self.characters.saturating_sub(MAX_LINE);
                row += &format!("{}[… {more} more characters]", &text[..end]);
            }
            None => row.push_str(&text),
        }
        row.push('\n');
        row
    }

    /// `is_counted` is false if more lines may follow.
    fn finish(mut self, is_counted: bool) -> Result<Excerpt, ToolError> {
        if self.is_in_line && is_counted {
            self.end_line();
        }
        let (first, last, total) = (self.range.first, self.last, self.complete);
        if total == 0 {
            return Ok(Excerpt { text: "[The file is empty.]".into(), lossy: false });
        }
        if last == 0 {
            let lines = if total == 1 { "one line".to_owned() } else { format!("{total} lines") };
            return Err(ToolError::Failed(format!("The file has {lines}; there is no line {first}.")));
        }
        let next = last + 1;
        if !is_counted {
            self.text += &format!("[Lines {first}-{last} of more than {total}. Continue with line {next}.]");
        } else if last < total {
            self.text += &format!("[Lines {first}-{last} of {total}. Continue with line {next}.]");
        }
        Ok(Excerpt { text: self.text, lossy: self.lossy })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use super::*;

    fn excerpt_of(bytes: &[u8], first: u32, limit: u32) -> Excerpt {
        // Boundaries of chunks fall everywhere.
        let read = |size| {
            let range = Range::new(Some(first), Some(limit));
            excerpt(BufReader::with_capacity(size, bytes), range, &CancellationToken::new())
                .unwrap_or_else(|error| Excerpt { text: error.to_string(), lossy: false })
        };
        let whole = read(bytes.len().max(1));
        for size in [1, 2, 3, 7] {
            assert_eq!((&read(size).text, read(size).lossy), (&whole.text, whole.lossy));
        }
        whole
    }

    fn check(text: &str, first: u32, limit: u32, expected: &str) {
        assert_eq!(excerpt_of(text.as_bytes(), first, limit).text, expected);
    }

    #[test]
    fn lines_are_numbered_and_partial_reads_name_the_next_line() {
        check("a\n\nb\n", 1, 2000, "1\ta\n2\t\n3\tb\n");
        check("a\r\nb", 1, 2000, "1\ta\n2\tb\n");
        check("a\nb\nc", 1, 2, "1\ta\n2\tb\n[Lines 1-2 of 3. Continue with line 3.]");
        check("a\nb\nc\n", 2, 1, "2\tb\n[Lines 2-2 of 3. Continue with line 3.]");
        check("a\nb\nc", 3, 2, "3\tc\n");
        check("a\nb\nc", 4, 1, "The file has 3 lines; there is no line 4.");
        check("a\n", 2, 1, "The file has one line; there is no line 2.");
        check("", 1, 10, "[The file is empty.]");
        check("", 5, 10, "[The file is empty.]");
    }

    #[test]
    fn long_lines_are_clipped_with_the_number_of_characters_left_out() {
        let line = "é".repeat(MAX_LINE);
        check(&line, 1, 1, &format!("1\t{line}\n"));
        let longer = "é".repeat(MAX_LINE + 5000) + "\nb";
        check(&longer, 1, 9, &format!("1\t{line}[… 5000 more characters]\n2\tb\n"));
        let minified = "𝐬".repeat(MAX_LINE * 10);
        let excerpt = excerpt_of(minified.as_bytes(), 1, 1);
        assert!(excerpt.text.ends_with("𝐬[… 18000 more characters]\n") && !excerpt.lossy);
    }

    #[test]
    fn one_answer_is_bounded_and_the_rest_can_be_read() {
        let line = "x".repeat(999);
        let text: String = (0..300).flat_map(|_| [line.as_str(), "\n"]).collect();
        let excerpt = excerpt_of(text.as_bytes(), 1, 2000);
        assert!(excerpt.text.len() < MAX_BYTES + 100, "{}", excerpt.text.len());
        assert!(excerpt.text.ends_with("[Lines 1-51 of 300. Continue with line 52.]"), "{}", excerpt.text);
        let rest = excerpt_of(text.as_bytes(), 52, 1).text;
        assert!(rest.starts_with("52\tx"), "{rest}");
    }

    #[test]
    fn invalid_utf8_is_reported_only_for_the_lines_read() {
        let text = b"caf\xe9\nb\n";
        let excerpt = excerpt_of(text, 1, 1);
        assert!(excerpt.lossy && excerpt.text.starts_with("1\tcaf\u{fffd}\n"), "{excerpt:?}");
        assert!(!excerpt_of(text, 2, 1).lossy, "the control");
        assert!(excerpt_of(&[0x80; 3 * MAX_LINE], 1, 1).lossy);
    }

    #[test]
    fn counting_the_lines_of_a_huge_file_ends() {
        let chunk = "a\n".repeat(512 * 1024);
        let huge = std::io::repeat(0).take(1 << 40);
        let reader = BufReader::with_capacity(1 << 20, chunk.as_bytes().chain(huge));
        let cancel = CancellationToken::new();
        let text = excerpt(reader, Range::new(None, Some(1)), &cancel).unwrap().text;
        assert_eq!(text, "1\ta\n[Lines 1-1 of more than 524288. Continue with line 2.]");
    }
}
