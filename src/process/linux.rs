//! Processes on Linux: Modegate's side of the supervisors, which run the commands.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use crate::supervisor;

mod fork_client;
mod orphans;
mod supervised;
pub mod terminal;

pub(super) use fork_client::ForkClient as Launcher;
pub use supervised::Process;

pub const ENDING: &str = "a supervisor ends a command with all its descendants, and confirms it";

/// Runs another of Modegate's processes on the input, if the first argument says so. Any other process becomes the
/// parent of processes whose supervisor and guard died.
pub fn begin(first_argument: Option<OsString>, input: &io::Stdin, output: &io::Stdout) -> Option<ExitCode> {
    let done = supervisor::begin(first_argument, input, output);
    if done.is_none() {
        orphans::adopt();
    }
    done
}
