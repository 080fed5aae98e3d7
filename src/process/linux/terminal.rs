//! The user's terminal, which a program may share with Modegate.

use std::io;

use rustix::termios::{LocalModes, isatty, tcgetattr};

/// Returns false while a program draws on the terminal at standard error, as full-screen programs do: they switch off
/// the terminal's own editing of lines.
pub fn shows_lines() -> bool {
    let errors = io::stderr();
    !isatty(&errors) || tcgetattr(&errors).is_ok_and(|state| state.local_modes.contains(LocalModes::ICANON))
}
