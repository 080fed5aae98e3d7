//! Child processes. On Linux each command runs under a supervisor, which sandboxes it and ends it with all its
//! descendants. Elsewhere commands run without one, in a process group (macOS) or a job object (Windows).

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use secrecy::SecretString;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use crate::sandbox::Confinement;
pub use crate::sandbox::denied_changes::{DeniedActs, DenyingRule};
pub use crate::sandbox::host::{AllowedHosts, HostPattern};
pub use crate::sandbox::{BrokerPolicy, Egress};
pub use crate::supervisor::protocol::{
    BrokerEvent, ChangeKind, ChangeQuestion, EndedWriter, Executable, Exit, JobState, ProcessFailure,
    RefusalKind, RefusedCall, RuleRefusal, TerminalAccess,
};
pub use crate::supervisor::record::RecordState;

mod agent_limits;
mod build_folder;
mod command_sandbox;
pub mod hard_links;
mod made_caches;
pub mod network_variables;
pub mod program;
pub mod sandbox_paths;
pub mod secrets;
pub mod shell;
pub mod state_folders;
pub mod trial;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(not(target_os = "linux"), test))]
mod plain;
#[cfg(target_os = "linux")]
pub use linux::terminal;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use plain as system;
pub use system::{ENDING, Process, begin};

#[derive(Debug, Clone)]
pub struct Processes {
    scratch: PathBuf,
    launcher: system::Launcher,
}

#[derive(Debug, Clone)]
pub struct Command {
    pub program: String,
    pub arguments: Vec<String>,
    pub cwd: PathBuf,
    /// `None` inherits the environment of this process.
    pub environment: Option<Vec<(OsString, OsString)>>,
    pub settings: &'static [(&'static str, &'static str)],
    /// Set in the sandbox only: the supervisor must not see these variables, which may be untrusted.
    pub own: Vec<(String, SecretString)>,
    pub confinement: Confinement,
    pub streams: Streams,
    pub terminal: TerminalAccess,
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
    /// The command exited. Its descendants end, or are killed, before [`Self::Gone`].
    Exited(Exit),
    Failed(ProcessFailure),
    /// Comes only with [`TerminalAccess::Foreground`].
    Job(JobState),
    /// Comes only on Linux, from commands whose calls are suspended.
    Broker(BrokerEvent),
    Gone {
        left_behind: usize,
        /// If false, a process may still run.
        confirmed: bool,
    },
}

impl Processes {
    /// `binary` is Modegate's own, which supervises commands on Linux. `scratch` is a folder for temporary files.
    pub fn new(binary: PathBuf, scratch: PathBuf) -> Self {
        Self { scratch, launcher: system::Launcher::new(binary) }
    }

    /// Valid on Linux, even if the binary's file is replaced or removed.
    pub fn own_binary() -> PathBuf {
        PathBuf::from("/proc/self/exe")
    }

    fn own_folder(&self, confinement: &Confinement) -> Option<PathBuf> {
        confinement.has_own_folder().then(|| self.scratch.join(format!("modegate-{}", uuid::Uuid::now_v7())))
    }

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
