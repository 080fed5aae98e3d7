//! The process that has the session, and its reports.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::process::terminal::HOSTED_ARGUMENT;
use crate::supervisor::protocol::{self, MAX_REPORT, MessageReader};
use crate::terminal_run::control::{Order, TerminalReport};

pub(super) struct HostedProcess {
    pub child: Child,
    pub reports: ReportReader,
}

impl HostedProcess {
    /// Starts this binary again, with the program's end of the new terminal.
    pub(super) fn start(arguments: &[OsString], terminal: OwnedFd) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(HOSTED_ARGUMENT).args(arguments.iter().skip(1)).stdin(OwnedFd::from(theirs));
        let errors = io::stderr();
        if errors.is_terminal() {
            command.stderr(terminal.try_clone()?);
        } else {
            command.stderr(Stdio::inherit());
        }
        let child = command.stdout(terminal).spawn()?;
        let reports = ReportReader {
            stream: ours,
            messages: MessageReader::new(MAX_REPORT),
            is_ended: false,
            continues: 0,
        };
        Ok(Self { child, reports })
    }
}

/// The exit code that a shell has for an end.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, signal) => {
            u8::try_from(signal.unwrap_or_default()).map_or(1, |signal| signal.saturating_add(128))
        }
    }
}

pub(super) struct ReportReader {
    stream: UnixStream,
    messages: MessageReader,
    is_ended: bool,
    /// Number of orders to continue that are not carried out.
    continues: usize,
}

impl ReportReader {
    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Reads all reports that have come.
    pub(super) fn read(&mut self) {
        let mut bytes = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(count @ 1..) if self.messages.add(&bytes[..count]) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => {
                    self.is_ended = true;
                    return;
                }
            }
        }
    }

    /// Leaves out the stops before an order to continue.
    pub(super) fn take(&mut self) -> Option<TerminalReport> {
        loop {
            match self.messages.take()? {
                Ok(TerminalReport::ContinueDone) => self.continues = self.continues.saturating_sub(1),
                Ok(TerminalReport::Stopped) if self.continues > 0 => {}
                Ok(report) => return Some(report),
                // An unreadable message costs itself.
                Err(_) => {}
            }
        }
    }

    /// The hosted process never makes this one wait, and may be gone.
    pub(super) fn send(&mut self, order: &Order) {
        self.continues += usize::from(matches!(order, Order::Continue { .. }));
        let line = protocol::encode(order).unwrap_or_default();
        let _ = self.stream.write_all(&line);
    }
}
