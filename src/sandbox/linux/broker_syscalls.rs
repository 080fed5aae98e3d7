//! seccomp filter for brokered commands: that for external agents, with calls that could change files suspended
//! for the supervisor.

use std::os::fd::OwnedFd;

use libc::{c_long, sock_filter};

use super::bpf::{ALLOW, SUSPEND, fail, has_bits, is, when};
use super::syscalls::{ATTRIBUTES, ATTRIBUTES_OLD, EXTENDED_ATTRIBUTES, NEW_NAMESPACES, OPENS, WRITING};
use super::{agent_syscalls, network_syscalls, syscalls};
use crate::kernel;

#[rustfmt::skip]
const ENTRIES: &[c_long] = &[
    libc::SYS_openat2, libc::SYS_mkdirat, libc::SYS_mknodat, libc::SYS_symlinkat, libc::SYS_linkat,
    libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_unlinkat, libc::SYS_truncate,
];

#[rustfmt::skip]
#[cfg(target_arch = "x86_64")]
const ENTRIES_OLD: &[c_long] = &[
    libc::SYS_creat, libc::SYS_mkdir, libc::SYS_mknod, libc::SYS_symlink, libc::SYS_link, libc::SYS_rename,
    libc::SYS_rmdir, libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const ENTRIES_OLD: &[c_long] = &[];

/// A sandbox of the command's own would not bind the supervisor, which acts for the command.
const OWN_SANDBOX: &[c_long] = &[libc::SYS_landlock_create_ruleset, libc::SYS_landlock_restrict_self];

/// Calls by which a program looks into another one. Refused as without the broker, and reported.
pub const REPORTED_TRACING: &[c_long] =
    &[libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev];

/// The calls with which sandboxes and containers begin, apart from `clone` with flags for namespaces. Refused and reported,
/// too: one report for a program is enough. The other calls for mounts are refused without a report.
#[rustfmt::skip]
pub const REPORTED_NAMESPACES: &[c_long] = &[
    libc::SYS_unshare, libc::SYS_setns, libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_chroot,
];

/// System V shared memory. The supervisor knows which segments the command has made.
const SEGMENTS: &[c_long] = &[libc::SYS_shmget, libc::SYS_shmat, libc::SYS_shmctl];

/// Gives up memory of [`SEGMENTS`]. Agents without the broker have none.
pub(super) const DETACHING: c_long = libc::SYS_shmdt;

/// Returns true if the call makes, opens, moves or removes an entry of a folder, or changes the length of a file.
pub fn changes_entries(call: c_long) -> bool {
    [ENTRIES, ENTRIES_OLD, OPENS].iter().any(|calls| calls.contains(&call))
}

/// The returned descriptor receives the suspended calls.
pub(super) fn filter(limits_network: bool, limits_reads: bool) -> Result<OwnedFd, String> {
    kernel::listen(&program(limits_network, limits_reads))
        .map_err(|error| format!("system calls cannot be suspended: {error}"))
}

pub(super) fn program(limits_network: bool, limits_reads: bool) -> Vec<sock_filter> {
    let mut calls = agent_syscalls::calls();
    for suspended in [ENTRIES, ENTRIES_OLD, ATTRIBUTES, ATTRIBUTES_OLD, EXTENDED_ATTRIBUTES] {
        calls.replace(suspended, SUSPEND);
    }
    for suspended in [REPORTED_TRACING, REPORTED_NAMESPACES, SEGMENTS] {
        calls.replace(suspended, SUSPEND);
    }
    calls.set(&[DETACHING], ALLOW);
    calls.replace(&[libc::SYS_clone], when(has_bits(0, NEW_NAMESPACES), SUSPEND, ALLOW));
    calls.replace(OWN_SANDBOX, fail(libc::EOPNOTSUPP));
    syscalls::replace_opens(&mut calls, |flags| when(has_bits(flags, WRITING), SUSPEND, ALLOW));
    if limits_reads {
        syscalls::suspend_reads(&mut calls);
    }
    let requests = agent_syscalls::agent_requests(&agent_syscalls::PSEUDO_TERMINALS);
    calls.replace(&[libc::SYS_ioctl], requests);
    // The supervisor reads the memory of dumpable processes only. Reported as done.
    calls.exempt(libc::SYS_prctl, is(0, libc::PR_SET_DUMPABLE), fail(0));
    if limits_network {
        network_syscalls::limit(&mut calls);
    }
    agent_syscalls::program(calls)
}

#[cfg(test)]
mod tests {
    use super::super::bpf::number;
    use super::super::syscalls::OWN_ARCHITECTURE;
    use super::super::syscalls::tests::run;
    use super::*;

    /// The broker refuses calls that it does not know, so each suspended call must be of a known kind.
    #[test]
    fn each_suspended_call_is_known_to_the_broker() {
        let others = [libc::SYS_clone];
        let families = [
            ATTRIBUTES,
            ATTRIBUTES_OLD,
            EXTENDED_ATTRIBUTES,
            REPORTED_TRACING,
            REPORTED_NAMESPACES,
            SEGMENTS,
            &others,
        ];
        let program = program(false, true);
        let mut suspended = 0;
        for call in 0..1024 {
            let is_suspended = [0, u64::MAX]
                .iter()
                .any(|argument| run(&program, number(call), OWN_ARCHITECTURE, [*argument; 6]) == SUSPEND);
            if is_suspended {
                suspended += 1;
                let is_known = changes_entries(call) || families.iter().any(|calls| calls.contains(&call));
                assert!(is_known, "{call}");
            }
        }
        assert!(suspended > 40, "{suspended}");
    }
}
