//! Processes on Linux. Each command runs under a supervisor ([`supervisor`]), forked by the fork server
//! ([`fork_server`]), which sandboxes the command and adopts its orphaned descendants. It kills all of them
//! on request, when the command exits, or when this process is gone, and reports when none is left. The
//! [`guard`] kills what a killed supervisor leaves behind.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use super::{BrokerEvent, BrokerPolicy, Exit};
use crate::sandbox::Confinement;

mod broker;
mod children;
mod descriptors;
mod fork_client;
mod fork_server;
mod guard;
mod orphans;
mod supervised;
mod supervisor;
pub mod terminal;

pub(super) use fork_client::ForkClient as Launcher;
pub use supervised::Process;

#[derive(Debug, Serialize, Deserialize)]
struct SpawnRequest {
    program: String,
    arguments: Vec<String>,
    environment: Option<Vec<(OsString, OsString)>>,
    settings: Vec<(String, String)>,
    confinement: Confinement,
    /// Created for this command alone, and removed afterwards.
    own_folder: Option<PathBuf>,
    keeps_terminal: bool,
    waits: bool,
    own: Vec<(String, String)>,
}

/// Sent by the supervisor, one JSON line each.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Report {
    Failed(String),
    Exited(Exit),
    Broker(BrokerEvent),
    Gone { left_behind: usize },
}

/// Sent to the supervisor after the request, one JSON line each. Closing the connection kills the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SupervisorOrder {
    /// Asks the command's process group for a graceful end.
    RequestExit,
    /// Has a waiting command executed.
    Release,
    /// [`BrokerEvent::RecordSaved`] follows.
    SaveRecord,
    /// [`BrokerEvent::PolicySet`] follows.
    SetPolicy(BrokerPolicy),
    Answer {
        question: u64,
        allows: bool,
    },
}

/// Byte that has a waiting command executed, from the supervisor to the command's process.
const RELEASE: u8 = b'g';

/// First byte, sent before the request, with an optional descriptor for the command's stdin.
const HANDSHAKE: u8 = b'o';

pub const ENDING: &str = "a supervisor ends a command with all its descendants, and confirms it";

/// Runs a process of Modegate's own on the input, if the first argument says so. Any other process becomes the parent
/// of processes whose supervisor and guard died.
pub fn begin(first_argument: Option<OsString>, input: &io::Stdin, output: &io::Stdout) -> Option<ExitCode> {
    let argument = first_argument.unwrap_or_default();
    let done = if argument == fork_server::ARGUMENT {
        let requests = input.as_fd().try_clone_to_owned();
        let guarded = output.as_fd().try_clone_to_owned();
        requests.and_then(|requests| Ok(fork_server::start(requests, guarded?)))
    } else if argument == guard::ARGUMENT {
        input.as_fd().try_clone_to_owned().map(guard::run)
    } else {
        orphans::adopt();
        return None;
    };
    Some(done.unwrap_or_else(|error| {
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "modegate: {error}");
        ExitCode::FAILURE
    }))
}
