//! seccomp filter for external agents: the calls of read-only commands, and further ones, each with a reason. All
//! others fail, also calls of future kernels. Written by hand, because filters of
//! the library allow x32 calls.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::BpfProgram;

use super::bpf::{
    self, ALLOW, ARCHITECTURE, KILL, NUMBER, answer, fail, halving, jump, jump_bits, keep, load, low,
};
use super::syscalls::{
    ALLOWED, ALLOWED_OLD, ATTRIBUTES, ATTRIBUTES_OLD, EXTENDED_ATTRIBUTES, FCNTL, FILE_BYPASSES, GET_FLAGS,
    MOUNTS_AND_NAMESPACES, NEW_LISTENER, NEW_NAMESPACES, OTHER_PROCESSES, OWN_ARCHITECTURE, PRCTL, SHARED,
    SIGNALS, SYSTEM_SETTINGS, TYPING, number, one_of_or, without,
};
use super::workspace_syscalls::{
    IOPRIO_WHO_PROCESS, PRIO_PROCESS, limits_of_others, priority_of_others, scheduling_of_others,
};

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

#[cfg(target_arch = "x86_64")]
const SYS_IO_PGETEVENTS: c_long = 333;
#[cfg(target_arch = "aarch64")]
const SYS_IO_PGETEVENTS: c_long = 292;

// The numbers are the same on every architecture. `libc` does not name them all.
const SYS_CACHESTAT: c_long = 451;
const SYS_MAP_SHADOW_STACK: c_long = 453;
const SYS_FUTEX_WAKE: c_long = 454;
const SYS_FUTEX_WAIT: c_long = 455;
const SYS_FUTEX_REQUEUE: c_long = 456;
const SYS_STATMOUNT: c_long = 457;
const SYS_LISTMOUNT: c_long = 458;
const SYS_MSEAL: c_long = 462;

/// Beyond [`FCNTL`]: operations on the signals of a descriptor, which reach the same processes as `kill`.
const FCNTL_SIGNALS: &[i32] = &[libc::F_SETOWN, F_SETSIG, F_GETSIG, F_SETOWN_EX, F_GETOWN_EX];
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;

const REFUSED: &[c_long] =
    &[libc::SYS_fsconfig, libc::SYS_fspick, libc::SYS_kexec_load, libc::SYS_vhangup, libc::SYS_nfsservctl];

#[cfg(target_arch = "x86_64")]
const REFUSED_OLD: &[c_long] = &[libc::SYS_kexec_file_load, libc::SYS_iopl, libc::SYS_ioperm];
#[cfg(target_arch = "aarch64")]
const REFUSED_OLD: &[c_long] = &[];

/// Second byte of `ioctl` requests that do not change files or disks.
const REQUESTS: [u32; 2] = [0x5400, 0x8900];

/// The number of a pseudo-terminal, and its lock.
pub(super) const PSEUDO_TERMINALS: [u32; 2] = [0x8004_5430, 0x4004_5431];

pub(super) fn filter() -> Result<(), String> {
    bpf::apply(&program(&parts()))
}

/// A filter that answers the listed calls by their parts. All others fail with `ENOSYS`, also those of x32 and of
/// later kernels; programs fall back to older calls.
pub(super) fn program(parts: &BTreeMap<u32, BpfProgram>) -> BpfProgram {
    // 32-bit programs have other call numbers, so they are killed.
    let mut program = vec![load(ARCHITECTURE), jump(OWN_ARCHITECTURE, 1, 0), answer(KILL)];
    program.push(load(NUMBER));
    program.extend(halving(parts, &[answer(fail(libc::ENOSYS))]));
    program
}

/// What to do for a call. A later entry replaces an earlier one.
pub(super) fn parts() -> BTreeMap<u32, BpfProgram> {
    let mut parts = BTreeMap::new();
    let mut listed = |calls: &[c_long], value: u32| {
        parts.extend(calls.iter().map(|call| (number(*call), vec![answer(value)])));
    };
    let beyond = BEYOND_READING.iter().chain(BEYOND_READING_OLD).map(|(_, calls)| *calls);
    for calls in [ALLOWED, ALLOWED_OLD].into_iter().chain(beyond) {
        listed(calls, ALLOW);
    }
    let refused = fail(libc::EPERM);
    for calls in
        [OTHER_PROCESSES, MOUNTS_AND_NAMESPACES, FILE_BYPASSES, SHARED, SYSTEM_SETTINGS, REFUSED, REFUSED_OLD]
    {
        listed(calls, refused);
    }
    // Landlock cannot limit these calls to the agent's own files. They do nothing and report success.
    for calls in [ATTRIBUTES, EXTENDED_ATTRIBUTES, ATTRIBUTES_OLD] {
        listed(calls, fail(0));
    }
    parts.insert(number(libc::SYS_socket), sockets());
    parts.insert(number(libc::SYS_socketpair), pairs());
    parts.insert(number(libc::SYS_ioctl), requests(&[]));
    parts.insert(number(libc::SYS_prlimit64), limits_of_others(refused));
    for (call, one) in [(libc::SYS_setpriority, PRIO_PROCESS), (libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS)] {
        parts.insert(number(call), priority_of_others(one, refused));
    }
    for call in [
        libc::SYS_sched_setparam,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setattr,
        libc::SYS_sched_setaffinity,
    ] {
        parts.insert(number(call), scheduling_of_others(refused));
    }
    let invalid = fail(libc::EINVAL);
    parts.insert(number(libc::SYS_fcntl), one_of_or(1, &[FCNTL, FCNTL_SIGNALS].concat(), invalid));
    parts.insert(number(libc::SYS_prctl), one_of_or(0, PRCTL, invalid));
    parts.insert(number(libc::SYS_seccomp), without(1, NEW_LISTENER));
    let views = vec![load(low(0)), jump_bits(NEW_NAMESPACES, 0, 1), answer(refused), answer(ALLOW)];
    parts.insert(number(libc::SYS_clone), views);
    parts
}

/// Allows IPv4, IPv6 and route netlink. Unix sockets reach local programs that would write for any caller.
fn sockets() -> BpfProgram {
    let families = [libc::AF_INET, libc::AF_INET6].map(i32::cast_unsigned);
    let mut part = vec![load(low(0)), jump(families[0], 5, 0), jump(families[1], 4, 0)];
    part.extend([jump(libc::AF_NETLINK.cast_unsigned(), 0, 2), load(low(2)), jump(0, 1, 0)]);
    part.extend([answer(fail(libc::EPERM)), answer(ALLOW)]);
    part
}

/// Connected pairs reach no other process. Datagram sockets can send to any name.
fn pairs() -> BpfProgram {
    let types = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(i32::cast_unsigned);
    let mut part = vec![load(low(0)), jump(libc::AF_UNIX.cast_unsigned(), 0, 4)];
    part.extend([load(low(1)), keep(0xf), jump(types[0], 2, 0), jump(types[1], 1, 0)]);
    part.extend([answer(fail(libc::EPERM)), answer(ALLOW)]);
    part
}

/// `further` requests are allowed.
pub(super) fn requests(further: &[u32]) -> BpfProgram {
    let mut part = vec![load(low(1))];
    for request in TYPING {
        part.extend([jump(request, 0, 1), answer(fail(libc::EPERM))]);
    }
    for request in [GET_FLAGS].iter().chain(further) {
        part.extend([jump(*request, 0, 1), answer(ALLOW)]);
    }
    part.push(keep(0xffff_ff00));
    part.extend([jump(REQUESTS[0], 2, 0), jump(REQUESTS[1], 1, 0)]);
    part.extend([answer(fail(libc::ENOTTY)), answer(ALLOW)]);
    part
}

#[cfg(test)]
mod tests;
