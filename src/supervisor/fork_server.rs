//! The fork server, started from this binary before the first command, forks the supervisor of every command:
//! starting this binary takes longer than most commands run.
//!
//! It has one thread, so it may fork. It keeps no descriptor of a command, reads no request and ends after
//! Modegate, which has the other end of its standard input, and after its supervisors. Its parent is the guard.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use rustix::process::{self, WaitOptions};

use super::descriptors::{self, SupervisorDescriptors};
use super::{guard, supervision};
use crate::kernel::{self, Fork};

/// Forks the fork server, and turns this process into its parent, the guard. `guarded` leads from the guard to
/// Modegate.
pub(super) fn start(requests: OwnedFd, guarded: OwnedFd) -> ExitCode {
    let forked = io::pipe().and_then(|pipe| Ok((fork()?, pipe)));
    match forked {
        Ok((Fork::Parent(_), parted)) => {
            drop(requests);
            drop(parted);
            guard::begin(&guarded)
        }
        Ok((Fork::Child, (mut parted, of_guard))) => {
            drop((guarded, of_guard));
            // As long as the guard has the connection, too, Modegate would not see that a killed fork server is gone.
            // The end of the pipe says that the guard has closed it.
            let _ = parted.read(&mut [0]);
            drop(parted);
            fork_supervisors(requests)
        }
        Err(error) => fail(&error),
    }
}

fn fork() -> io::Result<Fork> {
    // A signal to the process group must end neither.
    kernel::block_signals()?;
    process::set_child_subreaper(Some(process::getpid()))?;
    // The requests have a descriptor of their own. Supervisors would keep this one until they have their streams.
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let forked = kernel::fork()?;
    if matches!(forked, Fork::Child) {
        rustix::stdio::dup2_stdout(File::options().write(true).open("/dev/null")?)?;
    }
    Ok(forked)
}

fn fail(error: &io::Error) -> ExitCode {
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "modegate: this subcommand is internal to Modegate: {error}");
    ExitCode::FAILURE
}

/// Forks supervisors until Modegate closes the connection. Returns again in every supervisor.
fn fork_supervisors(requests: OwnedFd) -> ExitCode {
    match serve(UnixStream::from(requests)) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(handed)) => supervise(handed),
        Err(error) => fail(&error),
    }
}

/// Returns in a supervisor with its descriptors, and in the fork server with `None` at the end of the connection.
fn serve(requests: UnixStream) -> io::Result<Option<SupervisorDescriptors<OwnedFd>>> {
    kernel::ignore_ended_children(true)?;
    process::chdir("/")?;
    loop {
        let handed = match receive(&requests)? {
            ForkRequest::Command(handed) => handed,
            // Modegate sees that the connection is closed.
            ForkRequest::Incomplete => continue,
            ForkRequest::End => {
                // Otherwise supervisors that are still at work would be orphans, which the guard ends.
                while process::wait(WaitOptions::empty()).is_ok() {}
                return Ok(None);
            }
        };
        // After a failure, too, Modegate sees that the connection is closed.
        if let Ok(Fork::Child) = kernel::fork() {
            drop(requests);
            kernel::ignore_ended_children(false)?;
            return Ok(Some(handed));
        }
    }
}

enum ForkRequest {
    Command(SupervisorDescriptors<OwnedFd>),
    /// The limit of open files was reached.
    Incomplete,
    End,
}

fn receive(requests: &UnixStream) -> io::Result<ForkRequest> {
    let (count, handed) = descriptors::receive(requests, &mut [0])?;
    if count == 0 {
        return Ok(ForkRequest::End);
    }
    Ok(match <[OwnedFd; descriptors::MAX]>::try_from(handed) {
        Ok([connection, folder, output, errors]) => {
            ForkRequest::Command(SupervisorDescriptors { connection, folder, output, errors })
        }
        Err(_) => ForkRequest::Incomplete,
    })
}

/// Reports the supervisor's number as 4 bytes (little endian), and supervises the command.
fn supervise(handed: SupervisorDescriptors<OwnedFd>) -> ExitCode {
    let SupervisorDescriptors { connection, folder, output, errors } = handed;
    let connection = UnixStream::from(connection);
    let entered = enter(&connection, &folder, &output, &errors);
    drop((folder, output, errors));
    supervision::run(&connection, entered)
}

/// Enters the working directory, and takes the connection and the pipes as standard streams.
fn enter(
    mut connection: &UnixStream,
    folder: &OwnedFd,
    output: &OwnedFd,
    errors: &OwnedFd,
) -> io::Result<()> {
    connection.write_all(&process::getpid().as_raw_nonzero().get().to_le_bytes())?;
    rustix::stdio::dup2_stdin(connection.as_fd())?;
    rustix::stdio::dup2_stdout(output)?;
    rustix::stdio::dup2_stderr(errors)?;
    process::fchdir(folder)?;
    Ok(())
}
