//! Splits the output of an external agent into lines.

use tokio::io::{AsyncRead, AsyncReadExt};

/// In bytes, as in the ACP libraries.
pub(super) const LONGEST: usize = 32 * 1024 * 1024;

const CHUNK: usize = 64 * 1024;

pub(super) struct Lines<R> {
    from: R,
    buffer: Vec<u8>,
    start: usize,
    /// No line ends between `start` and here.
    searched: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// A partial last line is lost.
    Closed,
    TooLong,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, buffer: Vec::new(), start: 0, searched: 0 }
    }

    /// Returns the next line without its line feed. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<&[u8], End> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.searched..]) {
                let (start, end) = (self.start, self.searched + at);
                self.start = end + 1;
                self.searched = self.start;
                return Ok(&self.buffer[start..end]);
            }
            self.buffer.drain(..self.start);
            self.start = 0;
            self.searched = self.buffer.len();
            if self.searched > LONGEST {
                return Err(End::TooLong);
            }
            if self.buffer.is_empty() && self.buffer.capacity() > 4 * CHUNK {
                self.buffer = Vec::new();
            }
            self.buffer.reserve(CHUNK);
            match self.from.read_buf(&mut self.buffer).await {
                Ok(1..) => {}
                // A read error on a pipe means that the process has ended.
                Ok(0) | Err(_) => return Err(End::Closed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(bytes: &[u8]) -> (Vec<String>, End) {
        let mut lines = Lines::new(bytes);
        let mut seen = Vec::new();
        loop {
            match lines.next().await {
                Ok(line) => seen.push(String::from_utf8_lossy(line).into_owned()),
                Err(end) => return (seen, end),
            }
        }
    }

    #[tokio::test]
    async fn lines_are_read_whole_up_to_the_limit() {
        let strings = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        assert_eq!(all(b"a\n\nbc\r\nrest").await, (strings(&["a", "", "bc\r"]), End::Closed));
        let long = "x".repeat(3 * CHUNK + 1);
        let text = format!("{long}\nb\n");
        assert_eq!(all(text.as_bytes()).await, (strings(&[&long, "b"]), End::Closed));
        let too_long = vec![b'x'; LONGEST + CHUNK + 1];
        assert_eq!(all(&too_long).await, (Vec::new(), End::TooLong));
    }
}
