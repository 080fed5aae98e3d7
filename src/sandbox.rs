//! What the kernel holds a command to: Landlock for files, seccomp for system calls, no capabilities.
//!
//! The supervisor's child confines itself with [`confine`] right before it becomes the command; whatever it starts stays
//! inside, and there is no way back. A confinement that the kernel does not enforce in full is an error, never a warning:
//! then there is no command. This room and its files are the only ones that call the kernel.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod agent_syscalls;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod bpf;
#[cfg(target_os = "linux")]
pub mod kernel;
#[cfg(target_os = "linux")]
mod landlock;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod syscalls;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod workspace_syscalls;

/// What a command may touch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confinement {
    /// It reads what is listed, writes a folder of its own and the null devices, has no sockets, changes no rights, times
    /// or attributes, and reaches no process that it has not started.
    ReadOnly {
        /// What it may read and run.
        read: Vec<PathBuf>,
    },
    /// It reads everything, writes what is listed, and signals only what it has started.
    Workspace {
        /// What it may write.
        write: Vec<PathBuf>,
    },
    /// It reads what the user reads and uses the internet; it writes what is listed, a folder of its own and the null
    /// devices, reaches no other program on this machine but over the network, and changes no rights, times or attributes:
    /// it is told that these were changed.
    Agent {
        /// What it may write.
        write: Vec<PathBuf>,
    },
    /// Nothing is held.
    Off,
}

/// What this kernel can hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Support {
    /// The newest Landlock interface that both sides know; 0: none.
    pub landlock: u32,
    /// System calls can be filtered, on this machine's architecture.
    pub seccomp: bool,
}

/// The oldest Landlock interface that closes what has to be closed: 3 (Linux 6.2) holds `truncate`.
pub const OLDEST_LANDLOCK: u32 = 3;

impl Confinement {
    /// Whether a folder is made for it alone, and taken away again.
    pub fn has_own_folder(&self) -> bool {
        matches!(self, Self::ReadOnly { .. } | Self::Agent { .. })
    }
}

impl Support {
    /// Whether a read-only command can be held.
    pub fn read_only(&self) -> bool {
        self.landlock >= OLDEST_LANDLOCK && self.seccomp
    }

    /// Whether the files that a command writes can be held.
    pub fn workspace(&self) -> bool {
        self.landlock >= OLDEST_LANDLOCK
    }

    /// Whether another agent can be held.
    pub fn agent(&self) -> bool {
        self.landlock >= OLDEST_LANDLOCK && self.seccomp
    }

    /// Why a read-only command cannot be held, if it cannot.
    pub fn missing(&self) -> Option<String> {
        if !cfg!(target_os = "linux") {
            return Some("only Linux can hold commands".into());
        }
        match self.landlock {
            0 => Some("this kernel has no Landlock, or it is switched off (boot parameter lsm=)".into()),
            abi if abi < OLDEST_LANDLOCK => {
                Some(format!("Landlock ABI {abi} is too old: {OLDEST_LANDLOCK} is needed (Linux 6.2)"))
            }
            _ if !self.seccomp => Some("system calls cannot be filtered here".into()),
            _ => None,
        }
    }
}

/// What this kernel can hold. Asks it, and changes nothing.
#[cfg(target_os = "linux")]
pub fn support() -> Support {
    let seccomp = cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) && kernel::has_seccomp();
    Support { landlock: landlock::abi(), seccomp }
}

/// What this system can hold: nothing.
#[cfg(not(target_os = "linux"))]
pub fn support() -> Support {
    Support { landlock: 0, seccomp: false }
}

/// Confines the calling process, which must have one thread, and all that comes of it. `own_folder` is what was
/// made for it alone, where there is such a folder ([`Confinement::has_own_folder`]).
///
/// # Errors
/// The kernel cannot hold all of it; the process may be partly confined and must not go on.
#[cfg(target_os = "linux")]
pub fn confine(confinement: &Confinement, own_folder: Option<&std::path::Path>) -> Result<(), String> {
    match confinement {
        Confinement::Off => Ok(()),
        Confinement::Workspace { write } => {
            landlock::restrict_writes(write)?;
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            if kernel::has_seccomp() {
                workspace_syscalls::filter()?;
            }
            Ok(())
        }
        Confinement::Agent { write } => {
            // With them, a device that is made where it may write is a way to the disk.
            kernel::drop_capabilities()
                .map_err(|error| format!("capabilities cannot be dropped: {error}"))?;
            landlock::restrict_agent(write, own_folder)?;
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            return agent_syscalls::filter();
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            return Err("system calls cannot be filtered on this architecture".into());
        }
        Confinement::ReadOnly { read } => {
            kernel::drop_capabilities()
                .map_err(|error| format!("capabilities cannot be dropped: {error}"))?;
            let signals_held = landlock::restrict_to_reading(read, own_folder)?;
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            return syscalls::filter(signals_held);
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            return Err("system calls cannot be filtered on this architecture".into());
        }
    }
}
