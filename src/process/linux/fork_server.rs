//! The fork server, started from this binary before the first command, forks the supervisor of every command:
//! starting this binary takes longer than most commands run.
//!
//! It has one thread, so it may fork. It keeps no descriptor of a command, reads no request and ends with
//! Modegate, which has the other end of its standard input.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use rustix::process;

use super::{descriptors, supervisor};
use crate::sandbox::kernel::{self, Fork};

pub(super) const ARGUMENT: &str = "__supervise";

/// The descriptors of a supervisor: one message for each command, in the order of the fields.
pub(super) struct Handed<Fd> {
    /// To Modegate; its end kills everything.
    pub(super) connection: Fd,
    /// The command's working directory.
    pub(super) folder: Fd,
    pub(super) output: Fd,
    pub(super) errors: Fd,
}

impl Handed<BorrowedFd<'_>> {
    pub(super) fn all(&self) -> [BorrowedFd<'_>; descriptors::MAX] {
        [self.connection, self.folder, self.output, self.errors]
    }
}

/// Forks supervisors until Modegate closes the connection. Returns again in every supervisor.
pub(super) fn run(requests: OwnedFd) -> ExitCode {
    match serve(UnixStream::from(requests)) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(handed)) => supervise(handed),
        Err(error) => {
            // Standard error may be closed.
            let _ = writeln!(io::stderr(), "modegate: this subcommand is internal to Modegate: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns in a supervisor with its descriptors, and in the fork server with `None` at the end of the connection.
fn serve(requests: UnixStream) -> io::Result<Option<Handed<OwnedFd>>> {
    // A signal to the process group must not end it.
    kernel::block_signals()?;
    kernel::ignore_ended_children(true)?;
    process::chdir("/")?;
    loop {
        let handed = match receive(&requests)? {
            Received::Command(handed) => handed,
            // Modegate sees that the connection is closed.
            Received::Incomplete => continue,
            Received::End => return Ok(None),
        };
        // After a failure, too, Modegate sees that the connection is closed.
        if let Ok(Fork::Child) = kernel::fork() {
            drop(requests);
            kernel::ignore_ended_children(false)?;
            return Ok(Some(handed));
        }
    }
}

enum Received {
    Command(Handed<OwnedFd>),
    /// The limit of open files was reached.
    Incomplete,
    End,
}

fn receive(requests: &UnixStream) -> io::Result<Received> {
    let (count, handed) = descriptors::receive(requests, &mut [0])?;
    if count == 0 {
        return Ok(Received::End);
    }
    Ok(match <[OwnedFd; descriptors::MAX]>::try_from(handed) {
        Ok([connection, folder, output, errors]) => {
            Received::Command(Handed { connection, folder, output, errors })
        }
        Err(_) => Received::Incomplete,
    })
}

/// Reports the supervisor's number as 4 bytes (little endian), and supervises the command.
fn supervise(handed: Handed<OwnedFd>) -> ExitCode {
    let Handed { connection, folder, output, errors } = handed;
    let mut connection = UnixStream::from(connection);
    let entered = || -> io::Result<()> {
        connection.write_all(&process::getpid().as_raw_nonzero().get().to_le_bytes())?;
        rustix::stdio::dup2_stdin(connection.as_fd())?;
        rustix::stdio::dup2_stdout(&output)?;
        rustix::stdio::dup2_stderr(&errors)?;
        process::fchdir(&folder)?;
        Ok(())
    }();
    drop((folder, output, errors));
    supervisor::run(&connection, entered)
}
