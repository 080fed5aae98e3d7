//! The terminal of the user. Its settings are restored when this process stops or ends.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process;
use rustix::termios::{self, OptionalActions, Termios, Winsize};

pub(super) struct UserTerminal {
    input: OwnedFd,
    output: OwnedFd,
    /// The settings without Modegate.
    saved: Termios,
    is_raw: bool,
}

impl UserTerminal {
    pub(super) fn open(input: &impl AsFd, output: &impl AsFd) -> io::Result<Self> {
        Ok(Self {
            saved: termios::tcgetattr(input)?,
            input: reopen(input.as_fd())?,
            output: reopen(output.as_fd())?,
            is_raw: false,
        })
    }

    pub(super) fn input(&self) -> BorrowedFd<'_> {
        self.input.as_fd()
    }

    pub(super) fn output(&self) -> BorrowedFd<'_> {
        self.output.as_fd()
    }

    pub(super) fn settings(&self) -> &Termios {
        &self.saved
    }

    pub(super) fn size(&self) -> io::Result<Winsize> {
        Ok(termios::tcgetwinsize(&self.output)?)
    }

    /// True if this process may set the terminal and read from it.
    pub(super) fn is_foreground(&self) -> bool {
        // Without job control in this terminal, there is no other process group.
        termios::tcgetpgrp(&self.input).map_or(true, |group| group == process::getpgrp())
    }

    /// Makes the terminal pass each key and each byte as it is.
    pub(super) fn set_raw(&mut self) -> Result<(), Errno> {
        if !self.is_raw {
            self.saved = termios::tcgetattr(&self.input)?;
        }
        let mut raw = self.saved.clone();
        raw.make_raw();
        termios::tcsetattr(&self.input, OptionalActions::Now, &raw)?;
        self.is_raw = true;
        Ok(())
    }

    pub(super) fn restore(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_raw) {
            match termios::tcsetattr(&self.input, OptionalActions::Now, &self.saved) {
                // The terminal is gone.
                Ok(()) | Err(Errno::IO) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Drop for UserTerminal {
    fn drop(&mut self) {
        // After a failure, which is reported.
        let _ = self.restore();
    }
}

/// A descriptor that never waits. The shell's own descriptor must go on to wait, so the terminal is opened again.
fn reopen(terminal: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", terminal.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(opened) => Ok(opened),
        // A terminal of another container, which has no name here.
        Err(_) => terminal.try_clone_to_owned(),
    }
}
