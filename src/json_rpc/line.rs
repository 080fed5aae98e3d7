//! Joins pieces of a stream into lines of bounded length. Pure.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// Without the line feed.
    Bytes(Vec<u8>),
    /// The line exceeded the limit and was dropped.
    TooLong,
}

/// The line that is being read.
#[derive(Debug)]
pub struct PartialLine {
    limit: usize,
    bytes: Vec<u8>,
    is_too_long: bool,
}

impl PartialLine {
    pub fn new(limit: usize) -> Self {
        Self { limit, bytes: Vec::new(), is_too_long: false }
    }

    /// Takes bytes of `chunk` up to the end of the line. Returns their number, and the line if it is complete.
    pub fn take(&mut self, chunk: &[u8]) -> (usize, Option<Line>) {
        let end = memchr::memchr(b'\n', chunk);
        let taken = end.unwrap_or(chunk.len());
        self.is_too_long |= self.bytes.len() + taken > self.limit;
        if self.is_too_long {
            self.bytes = Vec::new();
        } else {
            self.bytes.extend_from_slice(&chunk[..taken]);
        }
        match end {
            Some(at) => (at + 1, Some(self.finish())),
            None => (taken, None),
        }
    }

    pub fn is_too_long(&self) -> bool {
        self.is_too_long
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && !self.is_too_long
    }

    /// Ends the line without a line feed.
    pub fn finish(&mut self) -> Line {
        let bytes = std::mem::take(&mut self.bytes);
        if std::mem::take(&mut self.is_too_long) { Line::TooLong } else { Line::Bytes(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads in pieces of three bytes, with a limit of five.
    fn lines(mut input: &[u8]) -> Vec<Line> {
        let mut partial = PartialLine::new(5);
        let mut lines = Vec::new();
        while !input.is_empty() {
            let (taken, line) = partial.take(&input[..input.len().min(3)]);
            lines.extend(line);
            input = &input[taken..];
        }
        if !partial.is_empty() {
            lines.push(partial.finish());
        }
        lines
    }

    #[test]
    fn lines_are_whole_up_to_the_limit() {
        let line = |text: &str| Line::Bytes(text.into());
        assert_eq!(lines(b"one\n\ntwo\r\nthree"), [line("one"), line(""), line("two\r"), line("three")]);
        assert_eq!(lines(b"12345\n123456\nnext\n"), [line("12345"), Line::TooLong, line("next")]);
        assert_eq!(lines(b"123456"), [Line::TooLong]);
        assert_eq!(lines(b""), []);
    }
}
