//! The user's terminal, which a program may share with Modegate.

use std::io;

use rustix::termios::{LocalModes, isatty, tcgetattr};

/// False while a full-screen program draws on the terminal at standard error: it switches off the terminal's
/// own editing of lines.
pub fn shows_lines() -> bool {
    let errors = io::stderr();
    !isatty(&errors) || tcgetattr(&errors).is_ok_and(|state| state.local_modes.contains(LocalModes::ICANON))
}
