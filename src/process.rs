//! Every child process: started through this binary itself as a small supervisor, which takes all of it down again.
//!
//! The supervisor ([`supervisor`]) is a process of one thread. It confines and starts the command, adopts whatever the
//! command leaves behind, and ends all of it when it is told to, when the command is over, or when this process is gone,
//! however that happened. A [`Process`] is over when the supervisor has said that nothing is left.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use crate::sandbox::Confinement;

#[cfg(target_os = "linux")]
mod children;
#[cfg(target_os = "linux")]
pub mod orphans;
#[cfg(target_os = "linux")]
mod supervised;
#[cfg(target_os = "linux")]
pub mod supervisor;
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

/// Starts processes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Processes {
    /// This binary.
    binary: PathBuf,
    /// Where folders of commands' own are made.
    scratch: PathBuf,
}

/// What is to be started.
#[derive(Debug, Clone)]
pub struct Command {
    /// The program, by name or path.
    pub program: String,
    /// What it is told.
    pub arguments: Vec<String>,
    /// Where it works.
    pub cwd: PathBuf,
    /// Its environment: this process's own, or exactly this one.
    pub environment: Option<Vec<(OsString, OsString)>>,
    /// Variables that are set besides.
    pub settings: &'static [(&'static str, &'static str)],
    /// Variables that the command alone gets, once it is held: they may be somebody else's.
    pub own: Vec<(String, SecretString)>,
    /// What it may touch.
    pub confinement: Confinement,
    /// Where its errors go.
    pub errors: Errors,
    /// It is spoken to: its input and its output are handed out ([`Process::take_stdio`]). Its errors have to go apart.
    pub has_stdio: bool,
    /// It may ask the person at this process's terminal.
    pub keeps_terminal: bool,
}

/// Where a command's standard error goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errors {
    /// Into the output, in the order in which both were written.
    Merged,
    /// Into a pipe of its own.
    Apart,
}

/// Both ways of speaking to a process: what it writes, and where it reads.
pub struct ChildStdio {
    /// Its standard output.
    pub from: Box<dyn AsyncRead + Send + Unpin>,
    /// Its standard input, which ends when this is dropped.
    pub to: Box<dyn AsyncWrite + Send + Unpin>,
}

/// What happens to a process, in order; [`Event::Gone`] is the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It wrote this.
    Output(Vec<u8>),
    /// It wrote this as an error, where errors go apart.
    Error(Vec<u8>),
    /// The command itself is over; what it left behind is being ended.
    Exited(Exit),
    /// It could not be started, or not be confined. One sentence.
    Failed(String),
    /// Nothing of it is left.
    Gone {
        /// How many processes the command had left behind.
        left_behind: usize,
        /// The supervisor vouches for it. If not, something may still run.
        confirmed: bool,
    },
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By itself, with this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
}

/// What the supervisor is told first.
#[derive(Debug, Serialize, Deserialize)]
struct SpawnRequest {
    program: String,
    arguments: Vec<String>,
    confinement: Confinement,
    /// What it alone may write: made for it, and taken away again.
    own_folder: Option<PathBuf>,
    keeps_terminal: bool,
    /// Variables that the command alone gets.
    own: Vec<(String, String)>,
}

/// What the supervisor reports, one line each.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Report {
    Failed(String),
    Exited(Exit),
    Gone { left_behind: usize },
}

/// What one byte tells the supervisor: ask the command to end. The end of the connection ends it without asking.
#[cfg(target_os = "linux")]
const ASK_TO_END: u8 = b't';

/// One byte goes ahead of the order. If the command has an input, it comes with this byte.
#[cfg(target_os = "linux")]
const AHEAD: u8 = b'o';

impl Processes {
    /// Starts processes through `binary`, which is this one.
    pub fn new(binary: PathBuf, scratch: PathBuf) -> Self {
        Self { binary, scratch }
    }

    /// This binary, whatever has become of its file since it was started.
    pub fn own_binary() -> PathBuf {
        PathBuf::from("/proc/self/exe")
    }

    fn own_folder(&self, confinement: &Confinement) -> Option<PathBuf> {
        let name = || format!("modegate-{}", uuid::Uuid::now_v7());
        confinement.has_own_folder().then(|| self.scratch.join(name()))
    }

    fn binary(&self) -> &Path {
        &self.binary
    }
}

/// Reads from a pipe that is still open; pends on one that is not.
async fn read(pipe: &mut Option<impl AsyncRead + Unpin>, buffer: &mut Vec<u8>) -> std::io::Result<usize> {
    match pipe {
        Some(pipe) => pipe.read_buf(buffer).await,
        None => std::future::pending().await,
    }
}
