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
            pending_continues: 0,
        };
        Ok(Self { child, reports })
    }
}

/// Exit code that a shell reports for this status.
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
    /// Number of orders to continue without an answer.
    pending_continues: usize,
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

    /// Leaves out the stops that were reported before the last order to continue was carried out.
    pub(super) fn take(&mut self) -> Option<TerminalReport> {
        loop {
            match self.messages.take()? {
                Ok(TerminalReport::ContinueDone) => {
                    self.pending_continues = self.pending_continues.saturating_sub(1);
                }
                Ok(TerminalReport::Stopped) if self.pending_continues > 0 => {}
                Ok(report) => return Some(report),
                // An unreadable message costs itself.
                Err(_) => {}
            }
        }
    }

    /// The hosted process never makes this one wait, and may be gone.
    pub(super) fn send(&mut self, order: &Order) {
        let line = protocol::encode(order).unwrap_or_default();
        let is_sent = self.stream.write_all(&line).is_ok();
        self.pending_continues += usize::from(is_sent && matches!(order, Order::Continue { .. }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_before_a_continue_are_left_out() {
        let (stream, mut hosted) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let messages = MessageReader::new(MAX_REPORT);
        let mut reports = ReportReader { stream, messages, is_ended: false, pending_continues: 0 };
        let mut taken = |orders: usize, sent: Vec<TerminalReport>| {
            (0..orders).for_each(|_| reports.send(&Order::Continue { is_foreground: true }));
            for report in sent {
                hosted.write_all(&protocol::encode(&report).unwrap()).unwrap();
            }
            reports.read();
            std::iter::from_fn(|| reports.take()).collect::<Vec<_>>()
        };
        let (stopped, done) = (|| TerminalReport::Stopped, || TerminalReport::ContinueDone);
        assert_eq!(taken(0, vec![stopped()]), [stopped()]);
        assert_eq!(taken(2, vec![stopped(), done(), stopped()]), []);
        assert_eq!(taken(0, vec![done(), stopped()]), [stopped()]);
    }
}
