//! Turns a process into the fork server or the guard.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use super::protocol::FORK_SERVER_ARGUMENT;
use super::{fork_server, guard};

/// Runs the process that the first argument names on the input. `None` if it names none.
pub fn begin(first_argument: Option<OsString>, input: &io::Stdin, output: &io::Stdout) -> Option<ExitCode> {
    let argument = first_argument.unwrap_or_default();
    let done = if argument == FORK_SERVER_ARGUMENT {
        let requests = input.as_fd().try_clone_to_owned();
        let guarded = output.as_fd().try_clone_to_owned();
        requests.and_then(|requests| Ok(fork_server::start(requests, guarded?)))
    } else if argument == guard::ARGUMENT {
        input.as_fd().try_clone_to_owned().map(guard::run)
    } else {
        return None;
    };
    Some(done.unwrap_or_else(|error| {
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "modegate: {error}");
        ExitCode::FAILURE
    }))
}
