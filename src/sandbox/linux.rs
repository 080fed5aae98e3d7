//! The sandbox on Linux: Landlock for files, seccomp for system calls, no capabilities. The supervisor's child
//! calls [`confine`] right before it executes the command.
//!
//! | confinement | filter | a call without a rule |
//! | --- | --- | --- |
//! | `ReadOnly` | `syscalls` | `ENOSYS` |
//! | `Agent` | `agent_syscalls`: the lists of `syscalls`, and further calls | `ENOSYS` |
//! | `Brokered` | `broker_syscalls`: the filter for agents, with suspended calls; `network_syscalls` limits hosts | `ENOSYS` |
//! | `Workspace` | `workspace_syscalls` | runs |
//!
//! A new call goes into `ALLOWED` of `syscalls` if read-only commands may have it, and into `BEYOND_READING` of
//! `agent_syscalls`, with the reason, if only agents may. A call that programs handle better if it fails with `EPERM`
//! goes into a group of refused calls in `syscalls`, from which both filters read, or into `REFUSED_TO_AGENTS` if only
//! agents need that error. A call that the broker decides stays in these lists, and goes into one of
//! `broker_syscalls`, too. `fixtures/system_calls.txt` has the answers of all filters. Step by step:
//! `docs/internals/adding.md#a-system-call`.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::{Confinement, Support};
use crate::kernel;

mod agent_syscalls;
mod bpf;
mod broker_syscalls;
mod landlock;
mod network_syscalls;
mod own_network;
mod syscalls;
mod workspace_syscalls;

pub use broker_syscalls::{REPORTED_NAMESPACES, REPORTED_TRACING, changes_entries};
pub use landlock::{READABLE_DEVICES, controlling_terminal, restrict_new_sockets};
use syscalls::ReaderLimits;
pub use syscalls::{ATTRIBUTES, ATTRIBUTES_OLD, EXTENDED_ATTRIBUTES, SYS_FCHMODAT2, TMPFILE};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the numbers of the system calls are known for x86_64 and aarch64 only");

pub fn support() -> Support {
    Support::Linux { landlock: landlock::abi(), seccomp: kernel::has_seccomp() }
}

/// Sandboxes the calling process, which must have one thread. After an error the process may be partly
/// sandboxed and must exit. The returned descriptor receives the calls that the sandbox suspends.
pub fn confine(confinement: &Confinement, own_folder: Option<&Path>) -> Result<Option<OwnedFd>, String> {
    match confinement {
        Confinement::Off => Ok(None),
        Confinement::Workspace { write } => {
            landlock::restrict_writes(write)?;
            if kernel::has_seccomp() {
                workspace_syscalls::filter()?;
            }
            Ok(None)
        }
        Confinement::Agent { write } | Confinement::Brokered { write, .. } => {
            // With capabilities, a new device node would give access to the disk.
            drop_capabilities()?;
            landlock::restrict_agent(write, own_folder)?;
            match confinement {
                Confinement::Brokered { broker, .. } => {
                    broker_syscalls::filter(broker.hosts.is_some(), broker.denied.is_some()).map(Some)
                }
                _ => agent_syscalls::filter().map(|()| None),
            }
        }
        Confinement::ReadOnly { read, build, denied } => {
            let has_network = own_network::enter()?;
            drop_capabilities()?;
            let own_folders: Vec<&Path> = own_folder.into_iter().chain(build.as_deref()).collect();
            let signals_held = landlock::restrict_to_reading(read, &own_folders, has_network)?;
            let can_suspend = !own_folders.is_empty();
            syscalls::filter(
                ReaderLimits { signals_held, has_network, limits_reads: denied.is_some() },
                can_suspend,
            )
        }
    }
}

fn drop_capabilities() -> Result<(), String> {
    kernel::drop_capabilities().map_err(|error| format!("capabilities cannot be dropped: {error}"))
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;
