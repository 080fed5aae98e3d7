//! Output of a command: as it is for the client's terminal, and cleaned for the model. If the model gets only
//! its start and end, the whole is kept in a file.

use std::collections::VecDeque;
use std::path::Path;

use super::clean::{Cleaner, NUL};
use crate::text::grouped;
use crate::workspace::{OutputFile, Outputs};

/// Bytes of output that the model gets from the start and from the end.
const HEAD: usize = 4 * 1024;
const TAIL: usize = 6 * 1024;

/// The same for the client's terminal, whose reader may be behind.
const RAW_HEAD: usize = 12 * 1024;
const RAW_TAIL: usize = 24 * 1024;

/// Output is shown as binary if it is longer, and more than a third of its characters are no text.
const BINARY: usize = 1024;

#[derive(Debug)]
pub(super) struct JobOutput {
    pub raw: Ends,
    cleaner: Cleaner,
    text: Ends,
    /// Not yet in the file.
    unsaved: String,
    /// `None` until something is saved, and if it cannot be.
    file: Option<OutputFile>,
    is_saved: bool,
}

impl Default for JobOutput {
    fn default() -> Self {
        Self {
            raw: Ends::new(RAW_HEAD, RAW_TAIL),
            cleaner: Cleaner::default(),
            text: Ends::new(HEAD, TAIL),
            unsaved: String::new(),
            file: None,
            is_saved: false,
        }
    }
}

/// Shortens text to the start and the end that the model gets of a command. The whole is kept in a file below
/// `scratch`, if there is one. Blocks.
pub(in crate::tool) fn shortened(text: String, outputs: &Outputs, scratch: Option<&Path>) -> String {
    if text.len() <= HEAD + TAIL {
        return text;
    }
    let mut output = JobOutput::default();
    output.raw.push(text.as_bytes());
    output.push_text(&text);
    if let Some(scratch) = scratch {
        output = output.saved(outputs, scratch);
    }
    output.text()
}

impl JobOutput {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.raw.push(bytes);
        let text = self.cleaner.push(bytes);
        self.push_text(&text);
    }

    /// To be called after the last output.
    pub(super) fn finish(&mut self) {
        let text = self.cleaner.finish();
        self.push_text(&text);
    }

    fn push_text(&mut self, text: &str) {
        if !self.is_saved && self.text.written + text.len() > HEAD + TAIL {
            self.is_saved = true;
            let (head, tail) = self.text.parts();
            self.unsaved = head + &tail;
        }
        if self.is_saved {
            self.unsaved.push_str(text);
        }
        self.text.push(text.as_bytes());
    }

    /// Writes to the file what the model may not get. Blocks.
    #[must_use]
    pub(super) fn saved(mut self, outputs: &Outputs, scratch: &Path) -> Self {
        let unsaved = std::mem::take(&mut self.unsaved);
        if self.file.is_none() {
            self.file = outputs.create(scratch);
        }
        if let Some(file) = &mut self.file {
            file.append(unsaved.as_bytes());
        }
        self
    }

    /// The file with all of the output, if the model does not get all.
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(OutputFile::path)
    }

    /// Returns the text for the model from byte `from` on, and its end. An incomplete last line is returned again
    /// when it is complete.
    pub(super) fn since(&self, from: usize) -> (String, usize) {
        if from == 0 {
            return (self.text(), self.text.written);
        }
        let (text, next) = self.text.since(from, true);
        (text + &self.cleaner.rest(), next)
    }

    pub(super) fn is_unsaved(&self) -> bool {
        !self.unsaved.is_empty()
    }

    pub(super) fn text(&self) -> String {
        let (head, tail) = self.text.parts();
        let rest = self.cleaner.rest();
        let odd = head.chars().chain(tail.chars()).filter(|c| matches!(*c, '\u{fffd}' | NUL)).count();
        if head.len() > BINARY && odd > (head.chars().count() + tail.chars().count()) / 3 {
            return format!("[Binary output, {} bytes.]", grouped(self.raw.written));
        }
        let missing = self.text.missing();
        if missing == 0 {
            return head + &tail + &rest;
        }
        let head = head.rfind('\n').map_or(head.as_str(), |end| &head[..=end]);
        let tail = tail.find('\n').filter(|end| end + 1 < tail.len()).map_or(&*tail, |end| &tail[end + 1..]);
        let lines = self.text.lines - head.matches('\n').count() - tail.matches('\n').count();
        let left_out = if lines > 0 {
            format!("{} lines", grouped(lines))
        } else {
            format!("{} bytes", grouped(missing))
        };
        let place = self.file.as_ref().map(place).unwrap_or_default();
        let newline = if head.ends_with('\n') { "" } else { "\n" };
        format!("{head}{newline}[… {left_out} left out{place}]\n{tail}{rest}")
    }
}

fn place(file: &OutputFile) -> String {
    let path = Path::display(file.path());
    if file.is_full() { format!("; the start of it all: {path}") } else { format!("; all of it: {path}") }
}

/// The first and the last bytes.
#[derive(Debug)]
pub(super) struct Ends {
    max_head: usize,
    max_tail: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    pub written: usize,
    lines: usize,
}

impl Ends {
    fn new(max_head: usize, max_tail: usize) -> Self {
        Self { max_head, max_tail, head: Vec::new(), tail: VecDeque::new(), written: 0, lines: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.written += bytes.len();
        self.lines += bytes.split(|byte| *byte == b'\n').count() - 1;
        let (head, rest) = bytes.split_at(bytes.len().min(self.max_head - self.head.len()));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(self.max_tail)..];
        let surplus = (self.tail.len() + rest.len()).saturating_sub(self.max_tail);
        self.tail.drain(..surplus);
        self.tail.extend(rest);
    }

    fn missing(&self) -> usize {
        self.written - self.head.len() - self.tail.len()
    }

    /// A character on the border of the two parts stays whole while nothing is missing.
    fn parts(&self) -> (String, String) {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if self.missing() == 0 {
            return (
                String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned(),
                String::new(),
            );
        }
        (lossy_text(&self.head), lossy_text(&tail))
    }

    /// Returns the output from byte `from` on, and the offset of its end. An incomplete final character is
    /// left for the next call unless `is_over`.
    pub(super) fn since(&self, from: usize, is_over: bool) -> (String, usize) {
        let head = self.head.get(from..).unwrap_or_default();
        let first_of_tail = self.written - self.tail.len();
        let tail: Vec<u8> = self.tail.iter().skip(from.saturating_sub(first_of_tail)).copied().collect();
        let missing = first_of_tail.saturating_sub(from.max(self.head.len()));
        let mut bytes = head.to_vec();
        if missing > 0 {
            bytes.extend(format!("\n[{missing} bytes are not shown]\n").bytes());
        }
        bytes.extend(tail);
        let cut = if is_over { 0 } else { unfinished(&bytes) };
        bytes.truncate(bytes.len() - cut);
        (String::from_utf8_lossy(&bytes).into_owned(), self.written - cut)
    }
}

fn lossy_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Bytes of an incomplete character at the end.
pub(super) fn unfinished(bytes: &[u8]) -> usize {
    match std::str::from_utf8(&bytes[bytes.len().saturating_sub(4)..]) {
        Ok(_) => 0,
        Err(error) if error.error_len().is_none() => bytes.len().min(4) - error.valid_up_to(),
        Err(_) => (1..=bytes.len().min(3))
            .find(|back| {
                let end = &bytes[bytes.len() - back..];
                std::str::from_utf8(end)
                    .is_err_and(|error| error.error_len().is_none() && error.valid_up_to() == 0)
            })
            .unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_is_cut_at_lines_and_kept_in_a_file() {
        let scratch = tempfile::tempdir().unwrap();
        let outputs = Outputs::default();
        let mut output = JobOutput::default();
        for number in 0..20_000 {
            output.push(format!("{number} \t\r\n").as_bytes());
            if output.is_unsaved() {
                output = output.saved(&outputs, scratch.path());
            }
        }
        let text = output.text();
        let path = output.file.as_ref().unwrap().path();
        let (head, tail) = text.split_once("[… ").unwrap();
        assert!(
            head.starts_with("0\n1\n") && head.ends_with('\n') && tail.ends_with("19998\n19999\n"),
            "{text}"
        );
        let shown = head.lines().count() + tail.lines().count() - 1;
        assert!(text.len() - path.as_os_str().len() < HEAD + TAIL + 60, "{}", text.len());
        let note = format!("{} lines left out; all of it: {}]\n", grouped(20_000 - shown), path.display());
        assert!(tail.starts_with(&note), "{note}: {tail}");
        let whole: String = (0..20_000).map(|number| format!("{number}\n")).collect();
        assert_eq!(std::fs::read_to_string(path).unwrap(), whole);
    }

    #[test]
    fn output_that_fits_is_shown_whole_and_not_kept() {
        let mut output = JobOutput::default();
        output.push(&vec![b'x'; HEAD + TAIL]);
        output.finish();
        assert!(output.text().len() == HEAD + TAIL && !output.is_unsaved());
        output.push(b"y");
        output.finish();
        assert!(output.text().contains("[… 1 bytes left out]") && output.is_unsaved(), "{}", output.text());
    }

    #[test]
    fn only_long_output_without_text_is_hidden() {
        let mut output = JobOutput::default();
        output.push(b"\0\0PNG\xff\n");
        assert_eq!(output.text(), "\u{2400}PNG\u{fffd}\n");
        output.push(&[0x80; 4000]);
        output.finish();
        assert_eq!(output.text(), "[Binary output, 4,007 bytes.]");
    }

    #[test]
    fn incremental_reads_add_up_to_the_whole_output() {
        let text = "aé€😀\n".repeat(900);
        for (step, every) in [(1, 1), (1, 7), (3, 2), (4096, 1), (5, 3)] {
            let (mut output, mut read, mut from) = (Ends::new(HEAD, TAIL), String::new(), 0);
            for (at, bytes) in text.as_bytes().chunks(step).enumerate() {
                output.push(bytes);
                if at % every == 0 {
                    let (more, next) = output.since(from, false);
                    (read, from) = (read + &more, next);
                }
            }
            let (more, next) = output.since(from, true);
            assert_eq!((read + &more, next), (text.clone(), text.len()), "{step} {every}");
        }
        let mut output = Ends::new(HEAD, TAIL);
        output.push(&vec![b'x'; HEAD + TAIL + 10]);
        let (text, next) = output.since(0, false);
        assert!(text.contains("\n[10 bytes are not shown]\n"), "{text}");
        assert_eq!(output.since(next, true), (String::new(), next));
        output.push(&[0xc3]);
        assert_eq!(output.since(next, false), (String::new(), next));
        assert_eq!(output.since(next, true), ("\u{fffd}".to_owned(), next + 1));
    }
}
