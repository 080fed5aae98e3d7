//! The session's end of the connection to the process that has the user's terminal. Threads read and write, so messages
//! also pass before the runtime starts, and the last one is written before the process ends.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc;

use super::control::{ControlSocket, HOST, MAX_LINE, Order, TerminalMessage, TerminalReport, to_line};

pub struct HostConnection {
    stream: UnixStream,
    reports: mpsc::UnboundedSender<TerminalReport>,
    writer: JoinHandle<()>,
}

impl HostConnection {
    pub fn open(connection: OwnedFd) -> io::Result<Self> {
        let stream = UnixStream::from(connection);
        let mut output = stream.try_clone()?;
        let (reports, mut queue) = mpsc::unbounded_channel();
        let writer = thread::spawn(move || {
            while let Some(report) = queue.blocking_recv() {
                // The other process may be gone.
                if to_line(&report).and_then(|line| output.write_all(&line)).is_err() {
                    return;
                }
            }
        });
        Ok(Self { stream, reports, writer })
    }

    /// Writes lines to the user's terminal.
    pub fn messages(&self) -> HostMessages {
        HostMessages { reports: self.reports.clone(), line: Vec::new() }
    }

    /// Makes the other process a terminal of the program.
    pub(super) fn attach(&self, control: &ControlSocket) -> io::Result<()> {
        let input = self.stream.try_clone()?;
        let to = control.messages();
        // The program is over if it cannot be sent, here and below.
        let _ = to.send(TerminalMessage::Connected(HOST, self.reports.clone()));
        thread::spawn(move || {
            let mut input = BufReader::new(input);
            let mut line = Vec::new();
            while let Ok(1..) = (&mut input).take(MAX_LINE as u64).read_until(b'\n', &mut line) {
                let Ok(order) = serde_json::from_slice(&line) else { break };
                line.clear();
                let _ = to.send(TerminalMessage::Order(HOST, order));
            }
            // If the other process is gone before the start, the program ends for want of a terminal.
            let _ = to.send(TerminalMessage::Order(HOST, Order::Start));
            let _ = to.send(TerminalMessage::Disconnected(HOST));
        });
        Ok(())
    }

    /// Returns when all messages are written.
    pub fn close(self) {
        let Self { stream, reports, writer } = self;
        drop(reports);
        // A panic there is not reported twice.
        let _ = writer.join();
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Lines for the user's terminal.
pub struct HostMessages {
    reports: mpsc::UnboundedSender<TerminalReport>,
    line: Vec<u8>,
}

impl Write for HostMessages {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            if *byte == b'\n' {
                let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
                let _ = self.reports.send(TerminalReport::Message(line));
            } else {
                self.line.push(*byte);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
