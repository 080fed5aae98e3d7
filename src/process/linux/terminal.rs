//! The terminal of this process, which a program shares or has in the foreground.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{self, Pid, Signal};
use rustix::termios::{LocalModes, isatty, tcgetattr};

use crate::kernel;
use crate::supervisor::children;

/// False while a full-screen program draws on the terminal at standard error: it switches off the terminal's
/// own editing of lines.
pub fn shows_lines() -> bool {
    let errors = io::stderr();
    !isatty(&errors) || tcgetattr(&errors).is_ok_and(|state| state.local_modes.contains(LocalModes::ICANON))
}

/// First argument of the process that has a terminal of its own, and gets the connection to the process with the
/// user's terminal as its standard input.
pub const HOSTED_ARGUMENT: &str = "__terminal";

/// Makes the terminal at standard output the terminal of this process. Returns the earlier standard input.
pub fn become_hosted(input: &io::Stdin, output: &io::Stdout) -> io::Result<OwnedFd> {
    let connection = input.as_fd().try_clone_to_owned()?;
    process::setsid()?;
    process::ioctl_tiocsctty(output)?;
    rustix::stdio::dup2_stdin(output)?;
    Ok(connection)
}

/// True while a command is stopped. A report of its stop can come later than a signal that continues it.
pub fn is_stopped(command: i32) -> bool {
    Pid::from_raw(command).is_some_and(children::is_stopped)
}

/// Continues a stopped process group of this session, in the foreground of its terminal or not.
///
/// # Errors
/// Fails if the group is gone, or is one of another session.
pub fn continue_group(group: i32, is_foreground: bool) -> io::Result<()> {
    let group = Pid::from_raw(group).ok_or(io::ErrorKind::InvalidInput)?;
    if process::getsid(Some(group))? != process::getsid(None)? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let foreground = if is_foreground { group } else { process::getpgrp() };
    kernel::set_foreground(&io::stdout(), foreground)?;
    process::kill_process_group(group, Signal::CONT)?;
    Ok(())
}
