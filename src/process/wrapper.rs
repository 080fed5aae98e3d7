//! The wrapper: the hidden subcommand through which a command runs in a terminal that somebody else has made, such as an
//! editor. One thread, no runtime.
//!
//! The process that the editor starts is only the first of two. It connects to the Modegate that expects it, splits off the
//! supervisor ([`super::supervisor`]) and waits. The supervisor leaves the terminal's session: what ends everything in the
//! terminal does not end it, but it sees that the first is gone, ends all that came of the command, and says so to Modegate,
//! wherever that signal came from. The order comes over the connection, so where Modegate is not, nothing is run; and it is
//! signed with the command's token, as are the reports: whoever else is at the socket orders nothing and makes nothing up.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use rustix::process;

use super::token::{Says, Token};
use super::{Exit, orphans, supervisor};
use crate::sandbox::kernel::{self, Fork};

/// What the binary is called with.
pub const ARGUMENT: &str = "__terminal";

/// The variable with the path of the socket at which Modegate waits.
pub const SOCKET: &str = "MODEGATE_TERMINAL";

/// The variable with the token that Modegate has made for the command.
pub const TOKEN: &str = "MODEGATE_TERMINAL_TOKEN";

/// The exit code where nothing was run: what shells say of a command that is not there.
const NOT_RUN: u8 = 127;

/// Runs the command for which a Modegate waits at a socket, and ends as that ended. The error is a sentence.
pub fn run(socket: &Path, token: &str) -> Result<ExitCode, String> {
    let failed = |error: std::io::Error| format!("Modegate does not wait for this command any more: {error}");
    let token = Token::of(token);
    let mut connection = UnixStream::connect(socket).map_err(failed)?;
    connection.write_all(&token.seal(Says::Here, b"")).map_err(failed)?;
    // What a supervisor that is killed leaves behind comes to the first process, which then ends it.
    process::set_child_subreaper(Some(process::getpid())).map_err(|error| failed(error.into()))?;
    let (mut first, second) = UnixStream::pair().map_err(failed)?;
    match kernel::fork().map_err(failed)? {
        Fork::Child => {
            drop(first);
            // It is no leader of a group, so it can.
            process::setsid().map_err(|error| failed(error.into()))?;
            let exit = supervisor::serve(&supervisor::Line { connection, token: Some(token) }, Some(&second));
            let code = exit.map_or(NOT_RUN, code);
            // The first may have been ended.
            let _ = (&second).write_all(&[code]);
            Ok(ExitCode::from(code))
        }
        Fork::Parent(_) => {
            drop((connection, second));
            let mut code = [NOT_RUN];
            if first.read_exact(&mut code).is_err() {
                let ended = if orphans::end_all() { "was ended" } else { "may still run" };
                return Err(format!("the command's supervisor was killed; what it left behind {ended}"));
            }
            Ok(ExitCode::from(code[0]))
        }
    }
}

/// An end as shells give it.
fn code(exit: Exit) -> u8 {
    let code = match exit {
        Exit::Status(status) => status,
        Exit::Signal(signal) => 128 + signal,
    };
    u8::try_from(code).unwrap_or(u8::MAX)
}
