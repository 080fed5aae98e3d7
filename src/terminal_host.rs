//! The process of `modegate run` that has the user's terminal. It passes bytes between this terminal and that of the
//! program. There it behaves as a shell expects of a program: it stops, continues, and ends with the program's code.
//!
//! The session, the record and the program belong to the hosted process, which this one starts. Bytes pass unchanged and
//! none is dropped: this process reads from one side only as much as the other takes. One thread, without a runtime.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::{Child, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{self, Pid, Signal};
use rustix::termios::Winsize;

use crate::kernel;
use crate::terminal_run::control::{Order, TerminalReport};
use crate::terminal_run::mode_limit::limit_text;
use crate::terminal_run::short;
use hosted_process::{HostedProcess, ReportReader};
use keys::PanelKey;
use overlay::{Overlay, TypedInput};
use panel::{Panel, PanelEffect};
use pending_bytes::PendingBytes;
use program_terminal::ProgramTerminal;
use user_terminal::UserTerminal;

pub use settings::{QuestionSignal, TerminalSettings};

mod boundary;
mod hosted_process;
pub mod keys;
mod overlay;
mod panel;
mod pending_bytes;
mod phrase;
mod program_terminal;
mod screen_model;
mod screen_modes;
mod settings;
mod user_terminal;
mod window_title;

/// Time between looks for changes without an event: shells send no signal to a job that they put into the foreground.
const INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Time between two changes of the size, which a program would else see as none.
const REDRAW_PAUSE: Duration = Duration::from_millis(150);

/// Columns and rows of a terminal that does not tell its size.
const DEFAULT_SIZE: (u16, u16) = (80, 24);

const CHUNK: usize = 64 * 1024;

/// Most times to wait for the user's terminal before the next event.
const MAX_PARTS: usize = 256;

/// Exit code if the terminal is gone.
const HUNG_UP: u8 = 128 + 1;

const SIGNALS: [Signal; 8] = [
    Signal::CHILD,
    Signal::CONT,
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::TSTP,
    Signal::WINCH,
];

/// The hosted process is started, and the terminal is as it was.
pub struct TerminalHost {
    user: UserTerminal,
    /// `None` after the user's terminal is gone, which the program's terminal then is, too.
    program: Option<ProgramTerminal>,
    hosted: Child,
    reports: ReportReader,
    signals: OwnedFd,
    to_user: PendingBytes,
    to_program: PendingBytes,
    is_background: bool,
    takes_input: bool,
    overlay: Overlay,
    /// The program's terminal has another size until then, so that the program draws its screen again.
    redraw_at: Option<Instant>,
    start_line: Option<StartLine>,
    /// Lines that wait for the end of the program.
    late: Vec<String>,
    chunk: Vec<u8>,
}

/// Parts of the line at the start.
struct StartLine {
    key: PanelKey,
    phrase: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitSource {
    UserInput,
    UserOutput,
    Program,
    Reports,
    Signals,
}

impl TerminalHost {
    /// Starts the hosted process. `arguments` are those of this one.
    ///
    /// # Errors
    /// Fails if the system has no terminals left, or the process cannot be started.
    pub fn start(
        arguments: &[OsString],
        settings: TerminalSettings,
        input: &io::Stdin,
        output: &io::Stdout,
    ) -> io::Result<Self> {
        let user = UserTerminal::open(input, output)?;
        let program = ProgramTerminal::open(&user)?;
        // Before signals are blocked, because processes inherit that.
        let HostedProcess { child, reports } = HostedProcess::start(arguments, program.end()?)?;
        let signals = kernel::receive_signals(&SIGNALS)?;
        let TerminalSettings { key, is_quiet, .. } = settings;
        let [.., first, second] = uuid::Uuid::now_v7().into_bytes();
        let start_line =
            key.filter(|_| !is_quiet).map(|key| StartLine { key, phrase: phrase::new([first, second]) });
        let shown = start_line.as_ref().map(|line| line.phrase.clone());
        let panel = Panel::new(key.unwrap_or_default(), shown);
        let size = user.size().map_or(DEFAULT_SIZE, |size| (size.ws_col, size.ws_row));
        Ok(Self {
            overlay: Overlay::new(panel, settings, size),
            redraw_at: None,
            start_line,
            late: Vec::new(),
            chunk: vec![0; CHUNK],
            user,
            program: Some(program),
            hosted: child,
            reports,
            signals,
            to_user: PendingBytes::default(),
            to_program: PendingBytes::default(),
            is_background: false,
            takes_input: true,
        })
    }

    /// Returns the exit code when the hosted process has ended.
    ///
    /// # Errors
    /// Fails if the terminal cannot be set, or the system cannot wait for events.
    pub fn run(mut self) -> io::Result<ExitCode> {
        self.is_background = !self.user.is_foreground();
        if !self.is_background {
            self.enter_foreground()?;
        }
        loop {
            for (source, events) in self.wait()? {
                match source {
                    WaitSource::UserInput => self.read_user(),
                    WaitSource::UserOutput => self.write_user(),
                    WaitSource::Program => {
                        if events.contains(PollFlags::OUT) {
                            self.write_program();
                        }
                        if events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                            self.read_program();
                        }
                    }
                    WaitSource::Reports => self.read_reports()?,
                    WaitSource::Signals => {
                        if let Some(status) = self.receive_signals()? {
                            return self.finish(status);
                        }
                    }
                }
            }
            if self.is_background && self.user.is_foreground() {
                self.resume()?;
            }
            self.advance();
        }
    }

    /// Returns the sources at which something can be done now.
    fn wait(&self) -> io::Result<Vec<(WaitSource, PollFlags)>> {
        let mut sources = vec![WaitSource::Signals];
        let mut descriptors = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if !self.reports.is_ended() {
            sources.push(WaitSource::Reports);
            descriptors.push(PollFd::new(self.reports.stream(), PollFlags::IN));
        }
        if let Some(program) = &self.program {
            if self.takes_input && !self.is_background && !self.to_program.is_full() {
                sources.push(WaitSource::UserInput);
                descriptors.push(PollFd::from_borrowed_fd(self.user.input(), PollFlags::IN));
            }
            if !self.to_user.is_empty() {
                sources.push(WaitSource::UserOutput);
                descriptors.push(PollFd::from_borrowed_fd(self.user.output(), PollFlags::OUT));
            }
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, !self.to_user.is_full() && !self.overlay.is_full());
            wanted.set(PollFlags::OUT, !self.to_program.is_empty());
            if !wanted.is_empty() && !program.is_closed() {
                sources.push(WaitSource::Program);
                descriptors.push(PollFd::from_borrowed_fd(program.descriptor(), wanted));
            }
        }
        let looks_again = self.is_background || self.redraw_at.is_some() || self.overlay.is_waiting();
        match poll(&mut descriptors, looks_again.then_some(&INTERVAL)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = sources.into_iter().zip(&descriptors).map(|(source, waited)| (source, waited.revents()));
        Ok(ready.filter(|(_, events)| !events.is_empty()).collect())
    }

    fn read_user(&mut self) {
        match rustix::io::read(self.user.input(), &mut self.chunk[..]) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(0) | Err(_) => self.hang_up(),
            Ok(count) => {
                let TypedInput { to_program, effects } =
                    self.overlay.input(&self.chunk[..count], Instant::now());
                self.to_program.add(&to_program);
                self.write_program();
                for effect in effects {
                    self.carry_out(effect);
                }
                self.overlay.draw(&mut self.to_user);
                self.write_user();
            }
        }
    }

    fn carry_out(&mut self, effect: PanelEffect) {
        match effect {
            PanelEffect::None => {}
            PanelEffect::Send(order) => self.reports.send(&order),
            PanelEffect::Close => self.close_panel(),
            PanelEffect::CloseAndPass => {
                self.to_program.add(&self.overlay.typed_key());
                self.close_panel();
                self.write_program();
            }
        }
    }

    fn close_panel(&mut self) {
        if self.overlay.close(&mut self.to_user)
            && let (Some(program), Ok(size)) = (&self.program, self.user.size())
        {
            program.set_size(Winsize { ws_col: size.ws_col.saturating_sub(1).max(1), ..size });
            self.redraw_at = Some(Instant::now() + REDRAW_PAUSE);
        }
        self.write_user();
    }

    /// Carries out actions that have waited for their time.
    fn advance(&mut self) {
        let now = Instant::now();
        if self.redraw_at.is_some_and(|at| now >= at) {
            self.redraw_at = None;
            self.copy_size();
        }
        if let Some(effect) = self.overlay.waited(now) {
            self.carry_out(effect);
            self.overlay.draw(&mut self.to_user);
        }
        if self.overlay.is_waiting() && !self.is_background && self.program.is_some() {
            if let Some(effect) = self.overlay.advance(self.columns_and_rows(), &mut self.to_user, now) {
                self.carry_out(effect);
            }
            self.write_user();
        }
    }

    fn columns_and_rows(&self) -> (u16, u16) {
        self.user.size().map_or(DEFAULT_SIZE, |size| (size.ws_col, size.ws_row))
    }

    fn write_user(&mut self) {
        if self.to_user.write_to(self.user.output()).is_err() {
            self.hang_up();
        }
    }

    /// Reads output of the program, unless too much waits.
    fn read_program(&mut self) {
        let Some(program) = &mut self.program else { return };
        while !self.to_user.is_full() && !self.overlay.is_full() {
            match rustix::io::read(program.descriptor(), &mut self.chunk[..]) {
                Ok(count @ 1..) => self.overlay.output(&self.chunk[..count], &mut self.to_user),
                // Nothing now.
                Err(Errno::AGAIN | Errno::INTR) => break,
                // No process has the terminal open any more.
                Ok(0) | Err(_) => {
                    program.close();
                    break;
                }
            }
        }
        self.write_user();
    }

    fn write_program(&mut self) {
        let Some(program) = &mut self.program else { return };
        if self.to_program.write_to(program.descriptor()).is_err() {
            program.close();
        }
    }

    fn read_reports(&mut self) -> io::Result<()> {
        self.reports.read();
        while let Some(report) = self.reports.take() {
            // Earlier output of the program comes first.
            self.pass_written()?;
            match report {
                TerminalReport::Message(line) => self.show(&line),
                TerminalReport::Stopped => self.suspend()?,
                report => {
                    // Later keys are for the shell.
                    self.takes_input &= report != TerminalReport::Ended;
                    if matches!(report, TerminalReport::State { .. }) {
                        self.show_start(&report);
                        self.reports.send(&Order::Start);
                    }
                    if let TerminalReport::Asked(question) = &report
                        && self.is_background
                    {
                        let title = question.title.clone();
                        self.show(&format!("modegate: {title}? Continue the program with fg to answer"));
                    }
                    let effect = self.overlay.report(report, Instant::now());
                    self.carry_out(effect);
                    self.overlay.draw(&mut self.to_user);
                    self.write_user();
                }
            }
        }
        Ok(())
    }

    fn show_start(&mut self, report: &TerminalReport) {
        if let TerminalReport::State { session, mode, limit, is_read_only, .. } = report
            && let Some(StartLine { key, phrase }) = self.start_line.take()
        {
            let session = short(session);
            let effect = if *is_read_only { ", changes fail" } else { "" };
            let limit = limit_text(limit.as_deref());
            // At most 79 columns with the built-in modes.
            self.show(&format!(
                "modegate: {key} opens panel \"{phrase}\"; {mode} mode{limit}{effect}; {session}"
            ));
        }
    }

    /// Shows a line of Modegate.
    fn show(&mut self, line: &str) {
        let mut errors = io::stderr();
        let draws = self.program.as_ref().is_some_and(|program| !program.edits_lines());
        if draws && self.takes_input && errors.is_terminal() {
            // The line would be in the middle of the program's picture.
            self.late.push(line.to_owned());
        } else if errors.is_terminal() && self.program.is_some() {
            self.overlay.output(format!("{line}\r\n").as_bytes(), &mut self.to_user);
            self.write_user();
        } else {
            // Standard error may be closed.
            let _ = writeln!(errors, "{line}");
        }
    }

    /// Returns the hosted process's end, if that has come.
    fn receive_signals(&mut self) -> io::Result<Option<ExitStatus>> {
        while let Some(signal) = kernel::next_signal(&self.signals) {
            match signal {
                Signal::CHILD => {
                    if let Some(status) = self.hosted.try_wait()? {
                        return Ok(Some(status));
                    }
                }
                Signal::WINCH => {
                    self.copy_size();
                    let size = self.columns_and_rows();
                    self.overlay.resize(size, &mut self.to_user);
                    self.write_user();
                }
                Signal::HUP => self.hang_up(),
                Signal::TERM => self.signal_hosted(signal),
                // A key sends them to the program's terminal. A process sends them to this one.
                Signal::INT | Signal::QUIT => self.signal_program(signal),
                Signal::TSTP => self.suspend()?,
                // After another process has stopped this one.
                _ if !self.is_background && self.user.is_foreground() => self.enter_foreground()?,
                _ => {}
            }
        }
        Ok(None)
    }

    fn signal_hosted(&self, signal: Signal) {
        let hosted = i32::try_from(self.hosted.id()).ok().and_then(Pid::from_raw);
        // It may have just ended.
        let _ = hosted.map(|hosted| process::kill_process(hosted, signal));
    }

    fn signal_program(&self, signal: Signal) {
        let group = self.program.as_ref().and_then(ProgramTerminal::foreground_group);
        // It may have just ended.
        let _ = group.map(|group| process::kill_process_group(group, signal));
    }

    /// Stops this process and all of its job, as the program has stopped. Returns after a shell continues it.
    fn suspend(&mut self) -> io::Result<()> {
        self.close_panel();
        self.pass_written()?;
        if self.is_background && self.user.is_foreground() {
            // The shell has continued the program since it stopped.
            return self.resume();
        }
        self.user.restore()?;
        kernel::stop_own_group()?;
        self.resume()
    }

    /// Continues the program, in the foreground of its terminal if this process is.
    fn resume(&mut self) -> io::Result<()> {
        self.is_background = !self.user.is_foreground();
        if !self.is_background {
            self.enter_foreground()?;
        }
        self.overlay.resume(Instant::now());
        self.reports.send(&Order::Continue { is_foreground: !self.is_background });
        Ok(())
    }

    fn enter_foreground(&mut self) -> io::Result<()> {
        match self.user.set_raw() {
            Ok(()) => self.copy_size(),
            Err(Errno::IO) => self.hang_up(),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn copy_size(&self) {
        let size = self.user.size();
        if let (Some(program), Ok(size)) = (&self.program, size) {
            program.set_size(size);
        }
    }

    /// The user's terminal is gone, and with it that of the program, whose processes get a signal.
    fn hang_up(&mut self) {
        // The kernel tells the leader of the session only.
        self.signal_program(Signal::HUP);
        self.signal_program(Signal::CONT);
        self.program = None;
    }

    /// Passes the output that has come, but not all of a flood.
    fn pass_written(&mut self) -> io::Result<()> {
        for _ in 0..MAX_PARTS {
            self.read_program();
            if self.program.is_none() || self.to_user.is_empty() {
                break;
            }
            let mut output = [PollFd::from_borrowed_fd(self.user.output(), PollFlags::OUT)];
            match poll(&mut output, None) {
                Ok(_) | Err(Errno::INTR) => self.write_user(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn finish(mut self, status: ExitStatus) -> io::Result<ExitCode> {
        self.close_panel();
        self.pass_written()?;
        self.takes_input = false;
        for line in std::mem::take(&mut self.late) {
            self.show(&line);
        }
        self.read_reports()?;
        self.overlay.end(&mut self.to_user);
        self.pass_written()?;
        let is_hung_up = self.program.is_none();
        self.user.restore()?;
        Ok(ExitCode::from(if is_hung_up { HUNG_UP } else { hosted_process::exit_code(status) }))
    }
}
