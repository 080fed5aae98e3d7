//! seccomp filter for external agents: blocks calls that Landlock does not restrict or that make other
//! programs write for the agent. Written by hand, because filters of the library allow x32 calls.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::BpfProgram;

use super::bpf::{
    self, ALLOW, ARCHITECTURE, KILL, NUMBER, answer, fail, halving, jump, jump_above, jump_bits, keep, load,
    low,
};
use super::syscalls::{
    ATTRIBUTES, ATTRIBUTES_OLD, EXTENDED_ATTRIBUTES, FILE_BYPASSES, GET_FLAGS, MOUNTS_AND_NAMESPACES,
    NEW_NAMESPACES, OTHER_PROCESSES, OWN_ARCHITECTURE, SHARED, SYSTEM_SETTINGS, TYPING, number,
};
use super::workspace_syscalls::{
    IOPRIO_WHO_PROCESS, PRIO_PROCESS, limits_of_others, priority_of_others, scheduling_of_others,
};

/// Newest reviewed call (`mseal`, Linux 6.10). Newer calls and x32 calls, whose numbers are greater, fail
/// with `ENOSYS`.
const NEWEST: u32 = 462;

/// Answered with `ENOSYS`: programs fall back to older calls, which the filter can tell apart.
const UNKNOWN: &[c_long] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

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

/// A filter that answers the listed calls by their parts, and allows the others.
pub(super) fn program(parts: &BTreeMap<u32, BpfProgram>) -> BpfProgram {
    // 32-bit programs have other call numbers, so they are killed.
    let mut program = vec![load(ARCHITECTURE), jump(OWN_ARCHITECTURE, 1, 0), answer(KILL)];
    program.extend([load(NUMBER), jump_above(NEWEST, 0, 1), answer(fail(libc::ENOSYS))]);
    program.extend(halving(parts, &[answer(ALLOW)]));
    program
}

/// What to do for a call. A later entry replaces an earlier one.
pub(super) fn parts() -> BTreeMap<u32, BpfProgram> {
    let mut parts = BTreeMap::new();
    let mut listed = |calls: &[c_long], errno: i32| {
        parts.extend(calls.iter().map(|call| (number(*call), vec![answer(fail(errno))])));
    };
    listed(UNKNOWN, libc::ENOSYS);
    for calls in
        [OTHER_PROCESSES, MOUNTS_AND_NAMESPACES, FILE_BYPASSES, SHARED, SYSTEM_SETTINGS, REFUSED, REFUSED_OLD]
    {
        listed(calls, libc::EPERM);
    }
    // Landlock cannot limit these calls to the agent's own files. They do nothing and report success.
    for calls in [ATTRIBUTES, EXTENDED_ATTRIBUTES, ATTRIBUTES_OLD] {
        listed(calls, 0);
    }
    let refused = fail(libc::EPERM);
    parts.insert(number(libc::SYS_socket), sockets());
    parts.insert(number(libc::SYS_socketpair), pairs());
    parts.insert(number(libc::SYS_ioctl), requests(&[]));
    parts.insert(number(libc::SYS_prlimit64), limits_of_others(refused));
    for (call, one) in [(libc::SYS_setpriority, PRIO_PROCESS), (libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS)] {
        parts.insert(number(call), priority_of_others(one, refused));
    }
    for call in [libc::SYS_sched_setparam, libc::SYS_sched_setscheduler, libc::SYS_sched_setattr] {
        parts.insert(number(call), scheduling_of_others(refused));
    }
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
