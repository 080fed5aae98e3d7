//! seccomp filter for brokered commands: that for external agents, with calls that could change files suspended
//! for the supervisor.

use std::os::fd::OwnedFd;

use libc::c_long;
use seccompiler::BpfProgram;

use super::bpf::{ALLOW, answer, fail, jump, jump_bits, load, low};
use super::syscalls::{ATTRIBUTES, ATTRIBUTES_OLD, EXTENDED_ATTRIBUTES, TMPFILE, number};
use super::{agent_syscalls, network_syscalls, syscalls};
use crate::kernel;

const SUSPEND: u32 = libc::SECCOMP_RET_USER_NOTIF;

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

/// The returned descriptor receives the suspended calls.
pub(super) fn filter(limits_network: bool, limits_reads: bool) -> Result<OwnedFd, String> {
    kernel::listen(&program(limits_network, limits_reads))
        .map_err(|error| format!("system calls cannot be suspended: {error}"))
}

pub(super) fn program(limits_network: bool, limits_reads: bool) -> BpfProgram {
    let mut parts = agent_syscalls::parts();
    for calls in [ENTRIES, ENTRIES_OLD, ATTRIBUTES, ATTRIBUTES_OLD, EXTENDED_ATTRIBUTES] {
        parts.extend(calls.iter().map(|call| (number(*call), vec![answer(SUSPEND)])));
    }
    for call in OWN_SANDBOX {
        parts.insert(number(*call), vec![answer(fail(libc::EOPNOTSUPP))]);
    }
    parts.insert(number(libc::SYS_openat), opens(2));
    #[cfg(target_arch = "x86_64")]
    parts.insert(number(libc::SYS_open), opens(1));
    if limits_reads {
        syscalls::suspend_reads(&mut parts);
    }
    let requests = agent_syscalls::requests(&agent_syscalls::PSEUDO_TERMINALS);
    parts.insert(number(libc::SYS_ioctl), requests);
    // The supervisor reads the memory of dumpable processes only. Reported as done.
    let dumpable = [load(low(0)), jump(libc::PR_SET_DUMPABLE.cast_unsigned(), 0, 1), answer(fail(0))];
    let others = parts.remove(&number(libc::SYS_prctl)).unwrap_or_default();
    parts.insert(number(libc::SYS_prctl), dumpable.into_iter().chain(others).collect());
    if limits_network {
        network_syscalls::limit(&mut parts);
    }
    agent_syscalls::program(&parts)
}

/// Suspends calls that could write, by the argument with the flags.
fn opens(argument: u32) -> BpfProgram {
    let writing = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | TMPFILE).cast_unsigned();
    vec![load(low(argument)), jump_bits(writing, 0, 1), answer(SUSPEND), answer(ALLOW)]
}
