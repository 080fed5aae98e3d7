//! Child processes. Each command runs under a supervisor ([`supervisor`]), a process forked by the fork server
//! ([`fork_server`]) that sandboxes the command and adopts its orphaned descendants. The supervisor kills all of
//! them on request, when the command exits, or when this process is gone, and reports when none is left.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use crate::sandbox::Confinement;
pub use crate::sandbox::host::{AllowedHosts, HostPattern};
pub use crate::sandbox::{BrokerPolicy, Egress};

#[cfg(target_os = "linux")]
mod broker;
#[cfg(target_os = "linux")]
mod children;
#[cfg(target_os = "linux")]
mod fork_client;
#[cfg(target_os = "linux")]
pub mod fork_server;
#[cfg(target_os = "linux")]
pub mod orphans;
#[cfg(target_os = "linux")]
mod supervised;
#[cfg(target_os = "linux")]
mod supervisor;
#[cfg(target_os = "linux")]
pub mod terminal;
#[cfg(target_os = "linux")]
pub use supervised::Process;

pub mod program;
pub mod sandbox_paths;
pub mod secrets;
pub mod shell;
pub mod state_folders;
pub mod trial;

#[cfg(any(not(target_os = "linux"), test))]
mod plain;
#[cfg(not(target_os = "linux"))]
pub use plain::Process;

#[derive(Debug, Clone)]
pub struct Processes {
    binary: PathBuf,
    scratch: PathBuf,
    #[cfg(target_os = "linux")]
    fork_server: fork_client::ForkClient,
}

#[derive(Debug, Clone)]
pub struct Command {
    pub program: String,
    pub arguments: Vec<String>,
    pub cwd: PathBuf,
    /// `None` inherits the environment of this process.
    pub environment: Option<Vec<(OsString, OsString)>>,
    pub settings: &'static [(&'static str, &'static str)],
    /// Set after the command is sandboxed. The supervisor must not see these variables, because they may be
    /// untrusted.
    pub own: Vec<(String, SecretString)>,
    pub confinement: Confinement,
    pub streams: Streams,
    /// The command stays in the session and the process group of this process.
    pub keeps_terminal: bool,
    /// The command is executed after [`Process::release`]. For brokered commands.
    pub waits: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// Without input. Standard error is part of [`Event::Output`].
    Merged,
    /// Without input. Standard error is [`Event::Error`].
    Apart,
    /// Input and output are [`Process::take_stdio`]. Standard error is [`Event::Error`].
    Piped,
    /// Those of this process.
    Own,
}

pub struct ChildStdio {
    pub from: Box<dyn AsyncRead + Send + Unpin>,
    pub to: Box<dyn AsyncWrite + Send + Unpin>,
}

/// Events in order; [`Event::Gone`] is the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Output(Vec<u8>),
    Error(Vec<u8>),
    /// The command exited; its descendants are being killed.
    Exited(Exit),
    Failed(String),
    Broker(BrokerEvent),
    Gone {
        left_behind: usize,
        /// If false, a process may still run.
        confirmed: bool,
    },
}

/// Events of a brokered command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokerEvent {
    /// A policy applies; see [`Process::set_policy`].
    PolicySet {
        /// Processes that were killed because they went on writing.
        ended: usize,
        /// If false, a process may still be able to write under a tighter policy.
        is_complete: bool,
    },
    /// The record of changes is in its folder, or could not be saved; see [`Process::save_record`].
    RecordSaved(bool),
    /// A change waits for [`Process::answer`].
    Asked(ChangeQuestion),
    /// The change with this number needs no answer any more.
    Withdrawn(u64),
    /// A connection to this host, or a question for its address, was refused for the first time. A name, or an address
    /// with its port.
    HostRefused(String),
}

/// A change that a brokered command wants to make under [`BrokerPolicy::Ask`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeQuestion {
    /// Unique for the command.
    pub number: u64,
    pub change: ChangeKind,
    /// Absolute, without symbolic links.
    pub path: PathBuf,
    /// Path after a move.
    pub to: Option<PathBuf>,
    /// Name of the program that makes the change, in its own words.
    pub program: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Create,
    CreateFolder,
    Write,
    Delete,
    DeleteFolder,
    Move,
    /// Of permissions, times or extended attributes.
    Attributes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    Status(i32),
    Signal(i32),
}

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
#[cfg(target_os = "linux")]
const REQUEST_EXIT: u8 = b't';

/// Byte that has a waiting command executed.
#[cfg(target_os = "linux")]
const RELEASE: u8 = b'g';

/// Byte that asks for the record of changes.
#[cfg(target_os = "linux")]
const SAVE_RECORD: u8 = b'c';

/// Bytes before the number of a question (8 bytes, little endian), which allow or refuse the change.
#[cfg(target_os = "linux")]
const ANSWERS: [(u8, bool); 2] = [(b'y', true), (b'x', false)];

/// Bytes that select a policy for the broker.
#[cfg(target_os = "linux")]
const POLICIES: [(u8, BrokerPolicy); 3] =
    [(b'n', BrokerPolicy::Nothing), (b'a', BrokerPolicy::Ask), (b'r', BrokerPolicy::Roots)];

/// First byte, sent before the request, with an optional descriptor for the command's stdin.
#[cfg(target_os = "linux")]
const HANDSHAKE: u8 = b'o';

impl Processes {
    pub fn new(binary: PathBuf, scratch: PathBuf) -> Self {
        Self {
            binary,
            scratch,
            #[cfg(target_os = "linux")]
            fork_server: fork_client::ForkClient::default(),
        }
    }

    /// Valid even if the binary's file is replaced or removed.
    pub fn own_binary() -> PathBuf {
        PathBuf::from("/proc/self/exe")
    }

    fn own_folder(&self, confinement: &Confinement) -> Option<PathBuf> {
        let name = || format!("modegate-{}", uuid::Uuid::now_v7());
        confinement.has_own_folder().then(|| self.scratch.join(name()))
    }

    /// Folder for temporary files.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }
}

/// Pends forever on `None`.
async fn read(pipe: &mut Option<impl AsyncRead + Unpin>, buffer: &mut Vec<u8>) -> std::io::Result<usize> {
    match pipe {
        Some(pipe) => pipe.read_buf(buffer).await,
        None => std::future::pending().await,
    }
}
