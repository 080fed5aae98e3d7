//! The socket between the supervisor and the command's process, from the fork until the command is executed.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{self, Pid, Signal};

use super::descriptors;
use super::protocol::{self, ProcessFailure};

/// Comes beside the descriptor for suspended calls.
const LISTENER: u8 = b'l';

const RELEASE: u8 = b'g';

/// The user can stop the process just before the command is executed, which no report would tell.
const CONTINUE_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The supervisor's end.
pub(super) struct Startup(UnixStream);

/// The end of the command's process. Closed when the command is executed.
pub(super) struct StartupReport(UnixStream);

pub(super) fn pair() -> io::Result<(Startup, StartupReport)> {
    UnixStream::pair().map(|(supervisor, command)| (Startup(supervisor), StartupReport(command)))
}

impl Startup {
    /// Waits until the command is executed, or until it waits for its release. Returns the descriptor for suspended
    /// calls. The error is why the command was not executed.
    pub(super) fn wait(&self, waits: bool) -> io::Result<Option<OwnedFd>> {
        let (mut listener, mut problem) = (None, Vec::new());
        while !(waits && listener.is_some()) {
            let mut bytes = [0; 1024];
            let (count, handed) = descriptors::receive(&self.0, &mut bytes)?;
            match (handed.into_iter().next(), count) {
                (None, 0) if problem.is_empty() => return Ok(listener),
                (None, 0) => {
                    return Err(io::Error::other(serde_json::from_slice::<ProcessFailure>(&problem)?));
                }
                (None, count) => problem.extend_from_slice(&bytes[..count]),
                (received, _) => listener = received,
            }
        }
        Ok(listener)
    }

    /// Has a waiting command executed. The error is why it was not.
    pub(super) fn release(&self, command: Pid) -> io::Result<()> {
        (&self.0).write_all(&[RELEASE])?;
        while poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&CONTINUE_INTERVAL)) == Ok(0) {
            // The process may have just ended.
            let _ = process::kill_process(command, Signal::CONT);
        }
        self.wait(false).map(drop)
    }
}

impl StartupReport {
    pub(super) fn send_listener(&self, listener: &OwnedFd) -> io::Result<()> {
        descriptors::send(&self.0, LISTENER, &[listener.as_fd()])
    }

    /// Returns false if the supervisor is gone.
    pub(super) fn wait_for_release(&self) -> bool {
        (&self.0).read_exact(&mut [0]).is_ok()
    }

    pub(super) fn give_up(&self, failure: &ProcessFailure) -> ! {
        let line = protocol::encode(failure).unwrap_or_default();
        // The supervisor may be gone.
        let _ = (&self.0).write_all(&line);
        std::process::exit(127)
    }
}
