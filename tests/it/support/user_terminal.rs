//! A terminal of a user, in which a test runs a program and types.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pty::{self, OpenptFlags};
use rustix::termios::{self, LocalModes, Winsize};

const DEADLINE: Duration = Duration::from_secs(90);

pub(crate) struct TestTerminal {
    terminal: OwnedFd,
    /// The end of the program, kept open so that output stays readable.
    end: OwnedFd,
    child: Killed,
    /// Output that was read.
    pub(crate) output: Vec<u8>,
    /// Start of the output that no `wait_for` has passed.
    start: usize,
    /// Start of the output whose questions are not answered.
    answered: usize,
}

impl TestTerminal {
    /// Runs a command with a new terminal as its controlling terminal.
    pub(crate) fn start(command: &Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal = pty::openpt(flags).unwrap();
        pty::unlockpt(&terminal).unwrap();
        let end = pty::ioctl_tiocgptpeer(&terminal, flags).unwrap();
        termios::tcsetwinsize(&terminal, size(80, 24)).unwrap();
        let mut start = Command::new("setsid");
        start.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => start.env(name, value),
                None => start.env_remove(name),
            };
        }
        start.current_dir(command.get_current_dir().unwrap());
        start
            .stdin(end.try_clone().unwrap())
            .stdout(end.try_clone().unwrap())
            .stderr(end.try_clone().unwrap());
        let child = Killed(start.spawn().unwrap());
        Self { terminal, end, child, output: Vec::new(), start: 0, answered: 0 }
    }

    /// The process id of the command.
    pub(crate) fn process(&self) -> u32 {
        self.child.0.id()
    }

    /// Name of the terminal in `/dev`.
    pub(crate) fn name(&self) -> String {
        pty::ptsname(&self.terminal, Vec::new()).unwrap().into_string().unwrap()
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        termios::tcsetwinsize(&self.terminal, size(columns, rows)).unwrap();
    }

    /// True while the terminal edits lines itself, as a shell's user expects.
    pub(crate) fn edits_lines(&self) -> bool {
        termios::tcgetattr(&self.end).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    pub(crate) fn send(&mut self, keys: impl AsRef<[u8]>) {
        File::from(self.terminal.try_clone().unwrap()).write_all(keys.as_ref()).unwrap();
    }

    pub(crate) fn line(&mut self, line: impl AsRef<OsStr>) {
        self.send([line.as_ref().as_encoded_bytes(), b"\n"].concat());
    }

    /// Reads once, or returns false after a moment without output.
    fn read(&mut self, moment: Duration) -> bool {
        let limit = Timespec::try_from(moment).unwrap();
        let mut waited = [PollFd::new(&self.terminal, PollFlags::IN)];
        match poll(&mut waited, Some(&limit)) {
            Ok(0) => return false,
            Ok(_) => {}
            // Another test's child has ended.
            Err(error) => {
                assert_eq!(error, Errno::INTR);
                return true;
            }
        }
        let mut bytes = [0; 16 * 1024];
        let count = rustix::io::read(&self.terminal, &mut bytes).unwrap_or(0);
        self.output.extend_from_slice(&bytes[..count]);
        self.answer_queries();
        count > 0
    }

    /// Tells a program that asks for it where the cursor is, as terminals do.
    fn answer_queries(&mut self) {
        while let Some(at) = self.output[self.answered..].windows(4).position(|part| part == b"\x1b[6n") {
            self.answered += at + 4;
            let mut emulator = vt100::Parser::new(24, 80, 0);
            emulator.process(&self.output[..self.answered]);
            let (row, column) = emulator.screen().cursor_position();
            self.send(format!("\x1b[{};{}R", row + 1, column + 1));
        }
    }

    /// Waits until the output contains a text, behind the texts of earlier calls. Returns the output before it.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let started = Instant::now();
        loop {
            let unread = &self.output[self.start..];
            if let Some(at) = unread.windows(text.len()).position(|part| part == text.as_bytes()) {
                let before = String::from_utf8_lossy(&unread[..at]).into_owned();
                self.start += at + text.len();
                return before;
            }
            let shown = String::from_utf8_lossy(unread).into_owned();
            assert!(started.elapsed() < DEADLINE, "no {text:?} in {shown:?}");
            self.read(Duration::from_millis(100));
        }
    }

    pub(crate) fn has_shown(&self, text: &str) -> bool {
        self.output.windows(text.len()).any(|part| part == text.as_bytes())
    }

    /// Waits for a condition.
    pub(crate) fn wait_until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !condition(self) {
            assert!(started.elapsed() < DEADLINE, "not {what}: {:?}", String::from_utf8_lossy(&self.output));
            self.read(Duration::from_millis(20));
        }
    }

    /// Waits for the end of the command.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.0.try_wait().unwrap() {
                while self.read(Duration::from_millis(20)) {}
                return status;
            }
            let shown = String::from_utf8_lossy(&self.output);
            assert!(started.elapsed() < DEADLINE, "it did not end: {shown:?}");
            self.read(Duration::from_millis(20));
        }
    }

    /// Closes the terminal, as a closed window does. Returns the exit status of the command.
    pub(crate) fn close(self) -> ExitStatus {
        let Self { terminal, end, mut child, .. } = self;
        drop((terminal, end));
        child.0.wait().unwrap()
    }
}

/// A process that ends with its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}
