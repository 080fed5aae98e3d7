//! Converts bytes to lines and back on two threads, so that pipes, sockets, terminals and files work.
//!
//! The reader's channel is bounded, so a flooding client blocks in its own pipe. The writer writes all queued
//! lines together: a burst costs one system call, and a single line is not delayed.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::thread;

use tokio::sync::{mpsc, oneshot};

pub use crate::json_rpc::line::Line;
use crate::json_rpc::line::PartialLine;

pub const MAX_LINE: usize = 64 * 1024 * 1024;

/// Small, because the pipe is the real queue.
const INCOMING: usize = 64;

const OUTGOING: usize = 256;

/// Bytes after which the writer stops gathering.
const BATCH: usize = 64 * 1024;

/// Dropping `outgoing` lets the writer finish.
#[derive(Debug)]
pub struct Transport {
    /// Closes at the end of the input.
    pub incoming: mpsc::Receiver<Line>,
    /// Lines with their newlines. Closes when the output is gone.
    pub outgoing: mpsc::Sender<String>,
    /// Resolves when all lines are written and flushed, or the output is gone.
    pub flushed: oneshot::Receiver<()>,
}

impl Transport {
    pub fn start(
        input: impl Read + Send + 'static,
        output: impl Write + Send + 'static,
    ) -> std::io::Result<Self> {
        let (lines_tx, incoming) = mpsc::channel(INCOMING);
        let (outgoing, lines_rx) = mpsc::channel(OUTGOING);
        let (flushed_tx, flushed) = oneshot::channel();
        thread::Builder::new().name("reader".into()).spawn(move || read_lines(input, &lines_tx))?;
        thread::Builder::new().name("writer".into()).spawn(move || {
            write_lines(output, lines_rx);
            let _ = flushed_tx.send(());
        })?;
        Ok(Self { incoming, outgoing, flushed })
    }
}

fn read_lines(input: impl Read, lines: &mpsc::Sender<Line>) {
    let mut input = BufReader::with_capacity(BATCH, input);
    loop {
        match read_line(&mut input) {
            Ok(Some(line)) => {
                if lines.blocking_send(line).is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "reading the input failed");
                return;
            }
        }
    }
}

/// Returns `None` at the end of the input. A last line without a newline counts.
fn read_line(input: &mut impl BufRead) -> std::io::Result<Option<Line>> {
    let mut partial = PartialLine::new(MAX_LINE);
    loop {
        let chunk = match input.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if chunk.is_empty() {
            return Ok((!partial.is_empty()).then(|| partial.finish()));
        }
        let (taken, line) = partial.take(chunk);
        input.consume(taken);
        if line.is_some() {
            return Ok(line);
        }
    }
}

fn write_lines(mut output: impl Write, mut lines: mpsc::Receiver<String>) {
    let mut batch = String::new();
    while let Some(line) = lines.blocking_recv() {
        batch.push_str(&line);
        while batch.len() < BATCH {
            let Ok(line) = lines.try_recv() else { break };
            batch.push_str(&line);
        }
        if let Err(error) = output.write_all(batch.as_bytes()).and_then(|()| output.flush()) {
            tracing::debug!(%error, "the output is gone");
            return;
        }
        batch.clear();
        batch.shrink_to(2 * BATCH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(input: &[u8]) -> Vec<Line> {
        let mut input = BufReader::with_capacity(3, input);
        std::iter::from_fn(|| read_line(&mut input).unwrap()).collect()
    }

    #[test]
    fn unterminated_last_line_and_empty_lines_are_read() {
        let line = |text: &str| Line::Bytes(text.into());
        assert_eq!(lines_of(b"one\n\ntwo\r\nthree"), [line("one"), line(""), line("two\r"), line("three")]);
        assert_eq!(lines_of(b""), []);
    }

    #[test]
    fn overlong_line_is_reported_and_the_next_is_read() {
        let mut input = vec![b'x'; MAX_LINE + 1];
        input.extend_from_slice(b"\nnext\n");
        let mut input = BufReader::new(&input[..]);
        assert_eq!(read_line(&mut input).unwrap(), Some(Line::TooLong));
        assert_eq!(read_line(&mut input).unwrap(), Some(Line::Bytes(b"next".to_vec())));
    }
}
