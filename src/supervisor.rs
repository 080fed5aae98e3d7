//! The supervisor of a command on Linux, a process of its own. It sandboxes the command, adopts the command's orphaned
//! descendants, and kills all of them on request, when the command exits, or when Modegate is gone.
//!
//! The [`fork_server`] forks supervisors; the [`guard`] kills what a killed supervisor leaves behind. Nothing here runs
//! in Modegate's own process but [`protocol`], [`record`] and what passes descriptors and lists children.

#[cfg(target_os = "linux")]
use std::{
    ffi::OsString,
    io::{self, Write},
    os::fd::AsFd,
    process::ExitCode,
};

#[cfg(target_os = "linux")]
mod broker;
#[cfg(target_os = "linux")]
pub mod children;
#[cfg(target_os = "linux")]
mod connection;
#[cfg(target_os = "linux")]
pub mod descriptors;
#[cfg(target_os = "linux")]
pub mod fork_server;
#[cfg(target_os = "linux")]
pub mod guard;
pub mod protocol;
pub mod record;
#[cfg(target_os = "linux")]
mod run;

/// First byte, sent before the request, with an optional descriptor for the command's stdin.
pub const HANDSHAKE: u8 = b'o';

/// Byte that has a waiting command executed, from the supervisor to the command's process.
#[cfg(target_os = "linux")]
const RELEASE: u8 = b'g';

/// Runs one of these processes on the input. `None` if the first argument does not say so.
#[cfg(target_os = "linux")]
pub fn begin(first_argument: Option<OsString>, input: &io::Stdin, output: &io::Stdout) -> Option<ExitCode> {
    let argument = first_argument.unwrap_or_default();
    let done = if argument == fork_server::ARGUMENT {
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
