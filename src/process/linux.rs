//! Processes on Linux. Each command runs under a supervisor ([`supervisor`]), forked by the fork server
//! ([`fork_server`]), which sandboxes the command and adopts its orphaned descendants. It kills all of them
//! on request, when the command exits, or when this process is gone, and reports when none is left.

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

/// Byte that asks for a graceful end. Closing the connection kills the command.
const REQUEST_EXIT: u8 = b't';

/// Byte that has a waiting command executed.
const RELEASE: u8 = b'g';

/// Byte that asks for the record of changes.
const SAVE_RECORD: u8 = b'c';

/// Bytes before the number of a question (8 bytes, little endian), which allow or refuse the change.
const ANSWERS: [(u8, bool); 2] = [(b'y', true), (b'x', false)];

/// Bytes that select a policy for the broker.
const POLICIES: [(u8, BrokerPolicy); 3] =
    [(b'n', BrokerPolicy::Nothing), (b'a', BrokerPolicy::Ask), (b'r', BrokerPolicy::Roots)];

/// First byte, sent before the request, with an optional descriptor for the command's stdin.
const HANDSHAKE: u8 = b'o';

pub const ENDING: &str = "a supervisor ends a command with all its descendants, and confirms it";

/// Runs the fork server on the input, if the first argument says so. Any other process becomes the parent of
/// processes whose supervisor died.
pub fn begin(first_argument: Option<OsString>, input: &io::Stdin) -> Option<ExitCode> {
    if first_argument.is_none_or(|argument| argument != fork_server::ARGUMENT) {
        orphans::adopt();
        return None;
    }
    Some(match input.as_fd().try_clone_to_owned() {
        Ok(requests) => fork_server::run(requests),
        Err(error) => {
            // Standard error may be closed.
            let _ = writeln!(io::stderr(), "modegate: {error}");
            ExitCode::FAILURE
        }
    })
}
