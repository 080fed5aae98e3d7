//! seccomp filter for external agents: the calls of read-only commands, and further ones, each with a reason. All
//! others fail, also calls of future kernels.

use libc::{c_int, c_long, sock_filter};

use super::bpf::{self, ALLOW, BpfRule, Calls, KILL, fail, has_bits, is, is_one_of, when};
use super::syscalls::{
    ALLOWED, ALLOWED_OLD, ATTRIBUTES, ATTRIBUTES_OLD, EXTENDED_ATTRIBUTES, FCNTL, FILE_BYPASSES, GET_FLAGS,
    MOUNTS_AND_NAMESPACES, NEW_LISTENER, NEW_NAMESPACES, OTHER_PROCESSES, OWN_ARCHITECTURE, PRCTL, SHARED,
    SIGNALS, SYS_CACHESTAT, SYS_FUTEX_REQUEUE, SYS_FUTEX_WAIT, SYS_FUTEX_WAKE, SYS_IO_PGETEVENTS,
    SYS_LISTMOUNT, SYS_MAP_SHADOW_STACK, SYS_MSEAL, SYS_STATMOUNT, SYSTEM_SETTINGS, TERMINALS, pairs,
    requests,
};
use super::workspace_syscalls::{
    IOPRIO_WHO_PROCESS, PRIO_PROCESS, limits_of_others, priority_of_others, scheduling_of_others,
};
use crate::kernel;

/// Calls that the filter for read-only commands refuses, and the reason why agents have them.
#[rustfmt::skip]
const BEYOND_READING: &[(&str, &[c_long])] = &[
    ("an agent uses the internet", &[
        libc::SYS_connect, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4,
        libc::SYS_sendmmsg, libc::SYS_recvmmsg,
    ]),
    ("an agent reads every file, so its attributes, too", &[
        libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr, libc::SYS_listxattr, libc::SYS_llistxattr,
        libc::SYS_flistxattr,
    ]),
    ("watches files that the agent could read", &[
        libc::SYS_inotify_init1, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch,
    ]),
    ("reads and writes descriptors that Landlock let the agent open", &[
        libc::SYS_io_setup, libc::SYS_io_destroy, libc::SYS_io_submit, libc::SYS_io_cancel,
        libc::SYS_io_getevents, SYS_IO_PGETEVENTS,
    ]),
    ("concerns the memory and the machine type of the caller alone", &[
        libc::SYS_personality, libc::SYS_remap_file_pages, libc::SYS_set_mempolicy_home_node,
        libc::SYS_memfd_secret, SYS_MAP_SHADOW_STACK, SYS_MSEAL,
    ]),
    ("waits for and wakes threads that share memory with the caller", &[
        SYS_FUTEX_WAKE, SYS_FUTEX_WAIT, SYS_FUTEX_REQUEUE,
    ]),
    ("writes to the disk earlier what is written anyway", &[libc::SYS_sync, libc::SYS_syncfs]),
    ("reads what /proc shows, too", &[SYS_CACHESTAT, SYS_STATMOUNT, SYS_LISTMOUNT]),
    ("gives up capabilities, of which the agent has none; browsers insist on it", &[libc::SYS_capset]),
    ("an agent ends its programs; with Landlock ABI 6 signals reach no others", SIGNALS),
];

#[cfg(target_arch = "x86_64")]
const BEYOND_READING_OLD: &[(&str, &[c_long])] = &[
    ("watches files that the agent could read", &[libc::SYS_inotify_init]),
    ("concerns the memory of the caller alone", &[libc::SYS_modify_ldt]),
];
#[cfg(target_arch = "aarch64")]
const BEYOND_READING_OLD: &[(&str, &[c_long])] = &[];

/// Calls of which agents have more by their arguments than read-only commands, and the reason.
#[cfg(test)]
const BEYOND_READING_BY_ARGUMENTS: &[(&str, c_long)] = &[
    ("the internet, and the list of its interfaces", libc::SYS_socket),
    ("requests about sockets (0x89) read, or need a capability", libc::SYS_ioctl),
    ("limits of other processes can be read", libc::SYS_prlimit64),
    ("`F_SETOWN` sends signals as `kill` does", libc::SYS_fcntl),
];

/// Beyond [`FCNTL`]: operations on the signals of a descriptor, which reach the same processes as `kill`.
const FCNTL_SIGNALS: &[i32] = &[libc::F_SETOWN, F_SETSIG, F_GETSIG, F_SETOWN_EX, F_GETOWN_EX];
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;

/// Further calls that fail with `EPERM`. For read-only commands most of them have no rule, and fail with `ENOSYS`.
const REFUSED_TO_AGENTS: &[c_long] =
    &[libc::SYS_fsconfig, libc::SYS_fspick, libc::SYS_kexec_load, libc::SYS_vhangup, libc::SYS_nfsservctl];

#[cfg(target_arch = "x86_64")]
const REFUSED_TO_AGENTS_OLD: &[c_long] = &[libc::SYS_kexec_file_load, libc::SYS_iopl, libc::SYS_ioperm];
#[cfg(target_arch = "aarch64")]
const REFUSED_TO_AGENTS_OLD: &[c_long] = &[];

/// Second byte of `ioctl` requests about sockets.
const SOCKETS: c_int = 0x8900;

/// The number of a pseudo-terminal, and its lock.
pub(super) const PSEUDO_TERMINALS: [c_int; 2] = [0x8004_5430_u32.cast_signed(), 0x4004_5431];

pub(super) fn filter() -> Result<(), String> {
    kernel::filter(&program(calls()))
}

/// Calls without a rule fail with `ENOSYS`, also those of x32 and of later kernels; programs fall back to older calls.
pub(super) fn program(calls: Calls) -> Vec<sock_filter> {
    // 32-bit programs have other call numbers, so they are killed.
    bpf::program(&[(OWN_ARCHITECTURE, calls)], fail(libc::ENOSYS), KILL)
}

pub(super) fn calls() -> Calls {
    let mut calls = Calls::default();
    let refused = fail(libc::EPERM);
    for others in [
        OTHER_PROCESSES,
        MOUNTS_AND_NAMESPACES,
        FILE_BYPASSES,
        SHARED,
        SYSTEM_SETTINGS,
        REFUSED_TO_AGENTS,
        REFUSED_TO_AGENTS_OLD,
    ] {
        calls.set(others, refused);
    }
    let beyond = BEYOND_READING.iter().chain(BEYOND_READING_OLD).map(|(_, calls)| *calls);
    for allowed in [ALLOWED, ALLOWED_OLD].into_iter().chain(beyond) {
        calls.set(allowed, ALLOW);
    }
    // Landlock cannot limit these calls to the agent's own files. They do nothing and report success.
    for attributes in [ATTRIBUTES, EXTENDED_ATTRIBUTES, ATTRIBUTES_OLD] {
        calls.set(attributes, fail(0));
    }
    calls.set(&[libc::SYS_socket], sockets(refused));
    calls.set(&[libc::SYS_socketpair], pairs(refused));
    calls.set(&[libc::SYS_ioctl], agent_requests(&[]));
    calls.set(&[libc::SYS_prlimit64], limits_of_others(refused));
    calls.set(&[libc::SYS_setpriority], priority_of_others(PRIO_PROCESS, refused));
    calls.set(&[libc::SYS_ioprio_set], priority_of_others(IOPRIO_WHO_PROCESS, refused));
    calls.set(
        &[
            libc::SYS_sched_setparam,
            libc::SYS_sched_setscheduler,
            libc::SYS_sched_setattr,
            libc::SYS_sched_setaffinity,
        ],
        scheduling_of_others(refused),
    );
    let invalid = fail(libc::EINVAL);
    calls.set(&[libc::SYS_fcntl], when(is_one_of(1, &[FCNTL, FCNTL_SIGNALS].concat()), ALLOW, invalid));
    calls.set(&[libc::SYS_prctl], when(is_one_of(0, PRCTL), ALLOW, invalid));
    calls.set(&[libc::SYS_seccomp], when(has_bits(1, NEW_LISTENER), fail(libc::ENOSYS), ALLOW));
    calls.set(&[libc::SYS_clone], when(has_bits(0, NEW_NAMESPACES), refused, ALLOW));
    calls
}

/// Allows IPv4, IPv6 and route netlink. Unix sockets reach local programs that would write for any caller.
fn sockets(refused: u32) -> BpfRule {
    let routes = when(is(2, 0), ALLOW, refused);
    let others = when(is(0, libc::AF_NETLINK), routes, refused);
    when(is_one_of(0, &[libc::AF_INET, libc::AF_INET6]), ALLOW, others)
}

/// `further` requests are allowed.
pub(super) fn agent_requests(further: &[c_int]) -> BpfRule {
    let allowed = [&[GET_FLAGS], further].concat();
    requests(fail(libc::EPERM), &allowed, &[TERMINALS, SOCKETS], fail(libc::ENOTTY))
}

#[cfg(test)]
mod tests;
