//! Converts bytes to lines and back.
//!
//! On Linux, pipes and sockets are read and written by tasks, because a hand-over between threads takes longer than
//! the rest of a short request. Files, terminals and other systems have a thread for each direction.
//!
//! The channel of lines that were read is bounded, so a flooding client blocks in its own pipe. All queued lines
//! are written together. A task also lets other tasks that are ready run first, because they may add lines.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::thread;

use tokio::sync::{mpsc, oneshot};

pub use crate::json_rpc::line::Line;
use crate::json_rpc::line::PartialLine;
use crate::platform::AsDescriptor;
#[cfg(target_os = "linux")]
use nonblocking::NonblockingStream;

#[cfg(target_os = "linux")]
mod nonblocking;

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
    /// Needs a runtime. What `input` has buffered is read first.
    pub fn start(
        input: BufReader<impl Read + AsDescriptor + Send + 'static>,
        output: impl Write + AsDescriptor + Send + 'static,
    ) -> std::io::Result<Self> {
        let (lines_tx, incoming) = mpsc::channel(INCOMING);
        let (outgoing, lines_rx) = mpsc::channel(OUTGOING);
        let (flushed_tx, flushed) = oneshot::channel();
        start_reading(input, lines_tx)?;
        start_writing(output, lines_rx, flushed_tx)?;
        Ok(Self { incoming, outgoing, flushed })
    }
}

fn start_reading(
    input: BufReader<impl Read + AsDescriptor + Send + 'static>,
    lines: mpsc::Sender<Line>,
) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    if let Some(stream) = NonblockingStream::reading(input.get_ref()) {
        let first = input.buffer().to_vec();
        tokio::spawn(read_when_ready(stream, first, lines));
        return Ok(());
    }
    thread::Builder::new().name("reader".into()).spawn(move || read_lines(input, &lines)).map(drop)
}

fn start_writing(
    output: impl Write + AsDescriptor + Send + 'static,
    lines: mpsc::Receiver<String>,
    flushed: oneshot::Sender<()>,
) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    if let Some(stream) = NonblockingStream::writing(&output) {
        tokio::spawn(async move {
            write_when_ready(stream, lines).await;
            let _ = flushed.send(());
        });
        return Ok(());
    }
    let write = move || {
        write_lines(output, lines);
        let _ = flushed.send(());
    };
    thread::Builder::new().name("writer".into()).spawn(write).map(drop)
}

#[cfg(target_os = "linux")]
async fn read_when_ready(stream: NonblockingStream, first: Vec<u8>, lines: mpsc::Sender<Line>) {
    let mut partial = PartialLine::new(MAX_LINE);
    let mut buffer = first;
    let mut length = buffer.len();
    buffer.resize(BATCH, 0);
    loop {
        let mut chunk = &buffer[..length];
        while !chunk.is_empty() {
            let (taken, line) = partial.take(chunk);
            chunk = &chunk[taken..];
            if let Some(line) = line
                && lines.send(line).await.is_err()
            {
                return;
            }
        }
        length = match stream.read(&mut buffer).await {
            Ok(length) => length,
            Err(error) => {
                tracing::warn!(%error, "reading the input failed");
                return;
            }
        };
        if length == 0 {
            // A last line without a newline counts.
            if !partial.is_empty() {
                let _ = lines.send(partial.finish()).await;
            }
            return;
        }
    }
}

#[cfg(target_os = "linux")]
async fn write_when_ready(stream: NonblockingStream, mut lines: mpsc::Receiver<String>) {
    let mut batch = String::new();
    while let Some(line) = lines.recv().await {
        batch.push_str(&line);
        // The pieces of a reply pass through several tasks one by one. The scheduler runs at most 61 of
        // them before it continues.
        tokio::task::yield_now().await;
        gather(&mut batch, &mut lines);
        if let Err(error) = stream.write_all(batch.as_bytes()).await {
            tracing::debug!(%error, "the output is gone");
            return;
        }
        batch.clear();
        batch.shrink_to(2 * BATCH);
    }
}

/// Adds the lines that wait.
fn gather(batch: &mut String, lines: &mut mpsc::Receiver<String>) {
    while batch.len() < BATCH {
        let Ok(line) = lines.try_recv() else { break };
        batch.push_str(&line);
    }
}

fn read_lines(mut input: impl BufRead, lines: &mpsc::Sender<Line>) {
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
        gather(&mut batch, &mut lines);
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

    /// Calls of `write` by this thread, without those of `send`.
    #[cfg(target_os = "linux")]
    fn write_calls() -> u32 {
        let text = std::fs::read_to_string("/proc/thread-self/io").expect("the kernel counts calls of tasks");
        let count = text.lines().find_map(|line| line.strip_prefix("syscw: "));
        count.unwrap().parse().unwrap()
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn lines_that_pass_through_tasks_one_by_one_are_written_together() {
        let (mut from, to) = std::io::pipe().unwrap();
        let stream = NonblockingStream::writing(&to).unwrap();
        drop(to);
        let (pieces, mut forwarded) = mpsc::channel(1);
        let (outgoing, lines) = mpsc::channel(OUTGOING);
        tokio::spawn(async move {
            while let Some(piece) = forwarded.recv().await {
                outgoing.send(piece).await.unwrap();
            }
        });
        let writer = tokio::spawn(write_when_ready(stream, lines));
        let expected: Vec<String> = (0..100).map(|number| format!("{number}\n")).collect();
        let before = write_calls();
        let sent = expected.clone();
        tokio::spawn(async move {
            for piece in sent {
                pieces.send(piece).await.unwrap();
            }
        });
        writer.await.unwrap();
        let calls = write_calls() - before;
        assert!((1..=25).contains(&calls), "{calls} calls");
        let mut written = String::new();
        from.read_to_string(&mut written).unwrap();
        assert_eq!(written, expected.concat());
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
