//! Limits the rate at which a server's output is read, so that no server can starve the process.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;

/// Burst and refill per second, in bytes.
const BYTES: (f64, f64) = (16.0 * 1024.0 * 1024.0, 4.0 * 1024.0 * 1024.0);

/// Burst and refill per second, in lines.
const LINES: (f64, f64) = (2000.0, 1000.0);

const WAIT: Duration = Duration::from_millis(20);

/// Maximum bytes to read from a server that does not read its input.
const MAX_UNREAD: usize = 16 * 1024 * 1024;

#[derive(Debug, Clone, Default)]
pub(super) struct ReadMonitor {
    is_blocked: Arc<AtomicBool>,
    stalled: CancellationToken,
}

impl ReadMonitor {
    pub(super) async fn stalled(&self) {
        self.stalled.cancelled().await;
    }
}

/// Stops if the server does not read its input, because answers to its requests would pile up.
pub(super) struct RateLimited<R> {
    reader: R,
    monitor: ReadMonitor,
    unread: usize,
    bytes: f64,
    lines: f64,
    counted: Instant,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<R> RateLimited<R> {
    /// Requires a running runtime.
    pub(super) fn new(reader: R, monitor: ReadMonitor) -> Self {
        Self {
            reader,
            monitor,
            unread: 0,
            bytes: BYTES.0,
            lines: LINES.0,
            counted: Instant::now(),
            waiting: None,
        }
    }

    fn refill(&mut self) {
        let now = Instant::now();
        let seconds = now.duration_since(self.counted).as_secs_f64();
        self.counted = now;
        self.bytes = (self.bytes + seconds * BYTES.1).min(BYTES.0);
        self.lines = (self.lines + seconds * LINES.1).min(LINES.0);
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for RateLimited<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if let Some(waiting) = &mut self.waiting {
                ready!(waiting.as_mut().poll(cx));
                self.waiting = None;
            }
            if self.bytes > 0.0 && self.lines > 0.0 {
                break;
            }
            self.refill();
            if self.bytes <= 0.0 || self.lines <= 0.0 {
                self.waiting = Some(Box::pin(sleep(WAIT)));
            }
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.reader).poll_read(cx, buffer))?;
        let read = &buffer.filled()[before..];
        #[allow(clippy::cast_precision_loss, reason = "a buffer is far smaller than that")]
        let (bytes, lines) = (read.len() as f64, memchr::memchr_iter(b'\n', read).count() as f64);
        let read = read.len();
        self.unread = if self.monitor.is_blocked.load(Ordering::Relaxed) { self.unread + read } else { 0 };
        if self.unread > MAX_UNREAD {
            self.monitor.stalled.cancel();
            return Poll::Pending;
        }
        self.bytes -= bytes;
        self.lines -= lines;
        Poll::Ready(Ok(()))
    }
}

pub(super) struct MonitoredWriter<W> {
    writer: W,
    monitor: ReadMonitor,
}

impl<W> MonitoredWriter<W> {
    pub(super) fn new(writer: W, monitor: ReadMonitor) -> Self {
        Self { writer, monitor }
    }

    fn note<T>(&self, done: Poll<T>) -> Poll<T> {
        self.monitor.is_blocked.store(done.is_pending(), Ordering::Relaxed);
        done
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for MonitoredWriter<W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.writer).poll_write(cx, bytes);
        self.note(done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.writer).poll_flush(cx);
        self.note(done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    /// The paused clock advances only during waits.
    #[tokio::test(start_paused = true)]
    async fn only_floods_are_rate_limited() {
        let started = Instant::now();
        let line = "x".repeat(1000) + "\n";
        let mut read = String::new();
        RateLimited::new(line.repeat(1000).as_bytes(), ReadMonitor::default())
            .read_to_string(&mut read)
            .await
            .unwrap();
        assert_eq!((read.len(), started.elapsed()), (1_001_000, Duration::ZERO));
        RateLimited::new("\n".repeat(7000).as_bytes(), ReadMonitor::default())
            .read_to_string(&mut read)
            .await
            .unwrap();
        let taken = started.elapsed();
        assert!(taken >= Duration::from_secs(4) && taken < Duration::from_secs(6), "{taken:?}");
    }
}
