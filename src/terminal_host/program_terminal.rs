//! The pseudo-terminal of the program, seen from the side of the user. Only this process has that side.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::process::Pid;
use rustix::pty::{self, OpenptFlags};
use rustix::termios::{self, LocalModes, OptionalActions, Winsize};

use super::user_terminal::UserTerminal;

pub(super) struct ProgramTerminal {
    descriptor: OwnedFd,
    /// No process has the other end open.
    is_closed: bool,
}

impl ProgramTerminal {
    /// A new terminal with the settings and the size of the user's.
    pub(super) fn open(user: &UserTerminal) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let descriptor = pty::openpt(flags)?;
        pty::unlockpt(&descriptor)?;
        rustix::fs::fcntl_setfl(&descriptor, OFlags::NONBLOCK)?;
        let opened = Self { descriptor, is_closed: false };
        termios::tcsetattr(opened.end()?, OptionalActions::Now, user.settings())?;
        opened.set_size(user.size()?);
        Ok(opened)
    }

    /// Opens the program's end.
    pub(super) fn end(&self) -> io::Result<OwnedFd> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        Ok(pty::ioctl_tiocgptpeer(&self.descriptor, flags)?)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Programs in the foreground get a signal if the size changes.
    pub(super) fn set_size(&self, size: Winsize) {
        // Fails if the terminal is gone.
        let _ = termios::tcsetwinsize(&self.descriptor, size);
    }

    /// False while a program draws on the terminal.
    pub(super) fn edits_lines(&self) -> bool {
        termios::tcgetattr(&self.descriptor).is_ok_and(|state| state.local_modes.contains(LocalModes::ICANON))
    }

    pub(super) fn foreground_group(&self) -> Option<Pid> {
        termios::tcgetpgrp(&self.descriptor).ok()
    }

    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }
}
