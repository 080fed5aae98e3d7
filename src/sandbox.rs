//! Sandbox of commands: the policy as one typed value, [`Confinement`], and its enforcement by the kernel. A
//! command does not start if a required part cannot be enforced. Descendants inherit the sandbox and cannot
//! leave it.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use denied_changes::DeniedChanges;
use denied_reads::DeniedReads;
use host::AllowedHosts;

pub mod denied_changes;
pub mod denied_reads;
pub mod host;
pub mod seatbelt;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
mod missing;
#[cfg(target_os = "linux")]
pub use crate::kernel::wipe_variable;
#[cfg(target_os = "linux")]
pub use linux::{
    ATTRIBUTES, ATTRIBUTES_OLD, EXTENDED_ATTRIBUTES, READABLE_DEVICES, REPORTED_NAMESPACES, REPORTED_TRACING,
    SYS_FCHMODAT2, TMPFILE, changes_entries, confine, controlling_terminal, restrict_new_sockets, support,
};
#[cfg(target_os = "macos")]
pub use macos::{command, support, wipe_variable};
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub use missing::{command, support, wipe_variable};

/// Variables with the folder for temporary files, which is the command's own if its sandbox has one. tmux knows only
/// its own variable.
pub const TEMPORARY_VARIABLES: [&str; 4] = ["TMPDIR", "TMP", "TEMP", "TMUX_TMPDIR"];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "one for each process, moved once")]
pub enum Confinement {
    /// Reads the listed paths; writes only its own folders and the null devices. Its network, if it has one, reaches
    /// nothing but itself. Denies UNIX sockets, changes of attributes, and access to processes that the command did
    /// not start. Changes of permissions and times are suspended for the supervisor.
    ReadOnly {
        read: Vec<PathBuf>,
        /// The command's second folder, which outlasts it.
        build: Option<PathBuf>,
        /// The supervisor opens all other files for the command. `None` if there are none.
        denied: Option<DeniedReads>,
    },
    /// Reads everything, writes the listed paths. Signals only its own descendants, if the kernel supports
    /// that.
    Workspace {
        write: Vec<PathBuf>,
    },
    /// Reads everything, uses the internet, and writes the listed paths, its own folder and the null devices.
    /// Other local programs are reachable only over the network. Changes of permissions, times and attributes
    /// do nothing and report success.
    Agent {
        write: Vec<PathBuf>,
    },
    /// Like [`Self::Agent`]. Calls that change files are suspended for the supervisor, which carries out what
    /// the policy allows.
    Brokered {
        write: Vec<PathBuf>,
        broker: Brokered,
    },
    Off,
}

/// Files that a supervisor changes for its command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brokered {
    pub roots: Vec<PathBuf>,
    /// Caches of build tools, temporary folders, and git folders outside of the roots. Changed like the roots, but not
    /// recorded.
    pub unrecorded: Vec<PathBuf>,
    /// The caches among them. New files that are open there are deleted if the policy becomes tighter.
    pub caches: Vec<PathBuf>,
    /// Files and folders that are never changed.
    pub protected: Vec<PathBuf>,
    pub policy: BrokerPolicy,
    /// Folder for the record of changes, out of the command's reach. Without it nothing is recorded.
    pub record: Option<PathBuf>,
    /// Folder of the locks that all writers of this user share. `None`: the supervisor locks for itself only.
    pub locks: Option<PathBuf>,
    /// Hosts under [`Egress::Hosts`]. `None` if the network is open under every policy.
    pub hosts: Option<AllowedHosts>,
    /// Until the first change of the policy.
    pub egress: Egress,
    /// UNIX sockets outside of the command's folders that it may connect to while it may change something.
    pub sockets: Vec<PathBuf>,
    /// Never read. The supervisor opens all other files. `None` if there are none.
    pub denied: Option<DeniedReads>,
    /// Never made, whatever the policy. `None` if there are none.
    pub denied_changes: Option<DeniedChanges>,
}

/// Files that a brokered command may change besides those in its own folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokerPolicy {
    Nothing,
    /// Files below the roots, each after an answer.
    Ask,
    Roots,
}

/// Network of a brokered command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Egress {
    Open,
    /// Allowed hosts, and ports of this machine at which the command listens itself.
    Hosts,
}

impl Egress {
    /// A command that may change nothing may send to few hosts only.
    pub fn under(policy: BrokerPolicy) -> Self {
        match policy {
            BrokerPolicy::Nothing => Self::Hosts,
            BrokerPolicy::Ask | BrokerPolicy::Roots => Self::Open,
        }
    }
}

/// The sandbox that this system has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    Linux {
        /// Newest supported Landlock ABI; 0 if none.
        landlock: u32,
        seccomp: bool,
    },
    /// Of macOS, after its trial.
    Seatbelt,
    /// The reason, as a sentence.
    None(String),
}

/// ABI 3 (Linux 6.2) is the first that restricts `truncate`.
pub const OLDEST_LANDLOCK: u32 = 3;

impl Confinement {
    pub fn has_own_folder(&self) -> bool {
        matches!(self, Self::ReadOnly { .. } | Self::Agent { .. } | Self::Brokered { .. })
    }
}

impl Support {
    /// Of read-only commands, and of external agents without the broker.
    pub fn read_only(&self) -> bool {
        match self {
            Self::Linux { landlock, seccomp } => *landlock >= OLDEST_LANDLOCK && *seccomp,
            Self::Seatbelt => true,
            Self::None(_) => false,
        }
    }

    pub fn workspace(&self) -> bool {
        match self {
            Self::Linux { landlock, .. } => *landlock >= OLDEST_LANDLOCK,
            Self::Seatbelt => true,
            Self::None(_) => false,
        }
    }

    /// Also of commands that may not read the files of some rules.
    pub fn broker(&self) -> bool {
        matches!(self, Self::Linux { .. }) && self.read_only()
    }

    pub fn missing(&self) -> Option<String> {
        match self {
            Self::None(reason) => Some(reason.clone()),
            Self::Linux { landlock: 0, .. } => {
                Some("this kernel has no Landlock, or it is switched off (boot parameter lsm=)".into())
            }
            Self::Linux { landlock, .. } if *landlock < OLDEST_LANDLOCK => {
                Some(format!("Landlock ABI {landlock} is too old: {OLDEST_LANDLOCK} is needed (Linux 6.2)"))
            }
            Self::Linux { seccomp: false, .. } => Some("system calls cannot be filtered here".into()),
            Self::Linux { .. } | Self::Seatbelt => None,
        }
    }
}

impl Display for Support {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linux { landlock, seccomp: true } => write!(f, "Landlock ABI {landlock}, seccomp"),
            Self::Linux { landlock, seccomp: false } => write!(f, "Landlock ABI {landlock}"),
            Self::Seatbelt => write!(f, "Seatbelt; a trial has shown that it denies what it must"),
            Self::None(reason) => f.write_str(reason),
        }
    }
}
