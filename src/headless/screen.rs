//! The two streams of a headless run, which may be the same terminal. Keeps progress off the lines of the answer, and
//! erases the live line before anything else is written. Never chooses the texts.

use std::future::Future;
use std::io::{self, Write};
use std::time::Instant;

use super::colors::{Colors, Meaning};
use super::live_line::{FRAME_TIME, RunStatus};

/// Returns to the start of the line and clears it.
const ERASE: &str = "\r\x1b[K";

/// Columns of a terminal that does not tell how many it has.
const DEFAULT_WIDTH: usize = 80;

/// The terminal that shows the progress.
#[derive(Debug, Clone, Copy)]
pub struct ProgressTerminal {
    /// Returns the columns of the terminal, if they are known.
    pub width: fn() -> Option<usize>,
    /// True if the terminal can erase a line.
    pub is_capable: bool,
    /// True if the answer goes to a terminal, too, which may be the same one.
    pub shows_answer: bool,
    pub has_colors: bool,
}

/// How much a run tells on stderr.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verbosity {
    /// Errors, and the denials that decide the exit code.
    Quiet,
    #[default]
    Normal,
    /// Also the arguments and the results of calls, and the tokens of each request.
    Verbose,
}

pub(super) struct Screen<'a, O: Write, P: Write> {
    output: &'a mut O,
    progress: &'a mut P,
    terminal: Option<ProgressTerminal>,
    verbosity: Verbosity,
    /// True while the live line stands on the terminal.
    is_drawn: bool,
    next_frame: Instant,
    /// True if the last line of the answer has no end yet, on a terminal.
    is_in_line: bool,
    /// True if progress ended the last line of the answer.
    is_broken: bool,
}

impl<'a, O: Write, P: Write> Screen<'a, O, P> {
    pub(super) fn new(
        output: &'a mut O,
        progress: &'a mut P,
        terminal: Option<ProgressTerminal>,
        verbosity: Verbosity,
    ) -> Self {
        Self {
            output,
            progress,
            terminal,
            verbosity,
            is_drawn: false,
            next_frame: Instant::now(),
            is_in_line: false,
            is_broken: false,
        }
    }

    pub(super) fn is_verbose(&self) -> bool {
        self.verbosity == Verbosity::Verbose
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.verbosity == Verbosity::Quiet
    }

    pub(super) fn colors(&self) -> Colors {
        Colors { is_on: self.terminal.is_some_and(|terminal| terminal.has_colors) }
    }

    /// Prints a line of progress, unless the run is quiet.
    pub(super) fn note(&mut self, line: impl AsRef<str>) -> io::Result<()> {
        if self.is_quiet() { Ok(()) } else { self.report(line) }
    }

    /// Prints a line on stderr, also of a quiet run.
    pub(super) fn report(&mut self, line: impl AsRef<str>) -> io::Result<()> {
        self.end_line()?;
        self.progress.write_all(format!("{}\n", line.as_ref()).as_bytes())
    }

    /// Prints a part of the answer.
    pub(super) fn answer(&mut self, text: &str) -> io::Result<()> {
        self.erase()?;
        // The end of the line is there already.
        let text = if self.is_broken { text.strip_prefix('\n').unwrap_or(text) } else { text };
        self.output.write_all(text.as_bytes())?;
        if !text.is_empty() {
            self.is_broken = false;
            self.is_in_line =
                self.terminal.is_some_and(|terminal| terminal.shows_answer) && !text.ends_with('\n');
        }
        Ok(())
    }

    /// Ends the last line of the answer, so that progress has a line of its own.
    pub(super) fn end_line(&mut self) -> io::Result<()> {
        self.erase()?;
        if std::mem::take(&mut self.is_in_line) {
            self.output.flush()?;
            self.progress.write_all(b"\n")?;
            self.is_broken = true;
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Waits for the time to draw the live line, or forever if there is none.
    pub(super) fn next_frame(&self) -> impl Future<Output = ()> + 'static {
        let next = self.width().map(|_| self.next_frame);
        async move {
            match next {
                Some(next) => tokio::time::sleep_until(next.into()).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Draws the live line, if it is due. Never in the answer's line.
    pub(super) fn draw(&mut self, status: &RunStatus<'_>) -> io::Result<()> {
        let Some(width) = self.width().filter(|_| self.next_frame <= Instant::now()) else { return Ok(()) };
        // The last column stays free: some terminals wrap when it is written.
        let line = self.colors().paint(Meaning::Detail, status.line(width.saturating_sub(1)));
        self.next_frame = Instant::now() + FRAME_TIME;
        self.is_drawn = true;
        self.progress.write_all(format!("\r{line}\x1b[K").as_bytes())?;
        self.progress.flush()
    }

    /// Erases the live line.
    pub(super) fn erase(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_drawn) {
            self.progress.write_all(ERASE.as_bytes())?;
            self.progress.flush()?;
        }
        Ok(())
    }

    /// Draws the live line while something runs.
    pub(super) async fn during<T>(
        &mut self,
        activity: &str,
        start: Instant,
        running: impl Future<Output = T>,
    ) -> io::Result<T> {
        tokio::pin!(running);
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut running => break ended,
                () = self.next_frame() => {
                    self.draw(&RunStatus { elapsed: start.elapsed(), activity, ..RunStatus::default() })?;
                }
            }
        };
        self.erase()?;
        Ok(ended)
    }

    /// The columns for the live line; `None` if it cannot be drawn now.
    fn width(&self) -> Option<usize> {
        let terminal = self.terminal.filter(|terminal| terminal.is_capable && !self.is_quiet())?;
        (!self.is_in_line).then(|| (terminal.width)().unwrap_or(DEFAULT_WIDTH))
    }
}

/// An error leaves no live line behind.
impl<O: Write, P: Write> Drop for Screen<'_, O, P> {
    fn drop(&mut self) {
        // The terminal is gone if this fails.
        let _ = self.erase();
    }
}
