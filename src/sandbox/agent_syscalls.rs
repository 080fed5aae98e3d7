//! seccomp for programs that use the network and write in a few folders: other people's agents. What Landlock does not see,
//! or what would have others write for them, is not there; everything else stays.
//!
//! Written by hand: the library's filters let calls by the processor's second table through.

use libc::c_long;
use seccompiler::BpfProgram;

use super::bpf::{
    ALLOW, ARCHITECTURE, KILL, NUMBER, answer, fail, jump, jump_above, jump_bits, keep, load, low, when,
};
use super::syscalls::{ATTRIBUTES, ATTRIBUTES_OLD, MACHINE, NEW_VIEWS, OTHERS, PAST_FILES, SHARED, VIEWS};
use super::workspace_syscalls::{
    IOPRIO_WHO_PROCESS, PRIO_PROCESS, limits_of_others, priority_of_others, scheduling_of_others,
};

#[cfg(target_arch = "x86_64")]
const OWN_ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const OWN_ARCHITECTURE: u32 = 0xc000_00b7;

/// The newest call that was looked at (`mseal`, Linux 6.10). Newer ones are answered as if the kernel did not know them, and so
/// are those by the second table of x86-64, whose numbers are all greater.
const NEWEST: u32 = 462;

/// What is answered as if the kernel did not know it: there are older ways, which can be told apart.
const UNKNOWN: &[c_long] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// What is refused besides what other holds refuse.
const REFUSED: &[c_long] =
    &[libc::SYS_fsconfig, libc::SYS_fspick, libc::SYS_kexec_load, libc::SYS_vhangup, libc::SYS_nfsservctl];

#[cfg(target_arch = "x86_64")]
const REFUSED_OLD: &[c_long] = &[libc::SYS_kexec_file_load, libc::SYS_iopl, libc::SYS_ioperm];
#[cfg(target_arch = "aarch64")]
const REFUSED_OLD: &[c_long] = &[];

/// The second byte of requests of `ioctl`: terminals, pipes and descriptors; sockets. Those that change files, or what lies
/// beneath them, have others.
const REQUESTS: [u32; 2] = [0x5400, 0x8900];

/// Types into a terminal, pastes into one, takes the console.
const TYPING: [u32; 3] = [0x5412, 0x541c, 0x541d];

/// Reads the attributes of a file (`FS_IOC_GETFLAGS`).
const GET_FLAGS: u32 = 0x8008_6601;

/// Takes the system calls away from the calling process and all that comes of it.
pub fn filter() -> Result<(), String> {
    seccompiler::apply_filter(&program()).map_err(|error| format!("system calls cannot be filtered: {error}"))
}

fn program() -> BpfProgram {
    let refuse = answer(fail(libc::EPERM));
    // Programs for the processor's older mode have calls of their own: they are ended.
    let mut program = vec![load(ARCHITECTURE), jump(OWN_ARCHITECTURE, 1, 0), answer(KILL)];
    program.extend([load(NUMBER), jump_above(NEWEST, 0, 1), answer(fail(libc::ENOSYS))]);
    let mut listed = |calls: &[c_long], said: i32| {
        for call in calls {
            program.extend(when(number(*call), &[answer(fail(said))]));
        }
    };
    listed(UNKNOWN, libc::ENOSYS);
    for calls in [OTHERS, VIEWS, PAST_FILES, SHARED, MACHINE, REFUSED, REFUSED_OLD] {
        listed(calls, libc::EPERM);
    }
    // Landlock does not know these, so those of its own files cannot be told from others'. It is told that they were done.
    listed(ATTRIBUTES, 0);
    listed(ATTRIBUTES_OLD, 0);
    program.extend(when(number(libc::SYS_socket), &sockets()));
    program.extend(when(number(libc::SYS_socketpair), &pairs()));
    program.extend(when(number(libc::SYS_ioctl), &requests()));
    program.extend(when(number(libc::SYS_prlimit64), &limits_of_others(fail(libc::EPERM))));
    let refused = fail(libc::EPERM);
    for (call, one) in [(libc::SYS_setpriority, PRIO_PROCESS), (libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS)] {
        program.extend(when(number(call), &priority_of_others(one, refused)));
    }
    for call in [libc::SYS_sched_setparam, libc::SYS_sched_setscheduler, libc::SYS_sched_setattr] {
        program.extend(when(number(call), &scheduling_of_others(refused)));
    }
    let views = [load(low(0)), jump_bits(NEW_VIEWS, 0, 1), refuse, answer(ALLOW)];
    program.extend(when(number(libc::SYS_clone), &views));
    program.push(answer(ALLOW));
    program
}

/// Sockets of the internet, and the one at which the kernel says which addresses there are. At others, and at names in the file
/// system before all, there are programs that would write for whoever asks.
fn sockets() -> BpfProgram {
    let families = [libc::AF_INET, libc::AF_INET6].map(i32::cast_unsigned);
    let mut part = vec![load(low(0)), jump(families[0], 5, 0), jump(families[1], 4, 0)];
    part.extend([jump(libc::AF_NETLINK.cast_unsigned(), 0, 2), load(low(2)), jump(0, 1, 0)]);
    part.extend([answer(fail(libc::EPERM)), answer(ALLOW)]);
    part
}

/// A pair of connected streams, or packets, reaches nobody else. Datagrams would: they can be sent to any name.
fn pairs() -> BpfProgram {
    let types = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(i32::cast_unsigned);
    let mut part = vec![load(low(0)), jump(libc::AF_UNIX.cast_unsigned(), 0, 4)];
    part.extend([load(low(1)), keep(0xf), jump(types[0], 2, 0), jump(types[1], 1, 0)]);
    part.extend([answer(fail(libc::EPERM)), answer(ALLOW)]);
    part
}

fn requests() -> BpfProgram {
    let mut part = vec![load(low(1))];
    for request in TYPING {
        part.extend([jump(request, 0, 1), answer(fail(libc::EPERM))]);
    }
    part.extend([jump(GET_FLAGS, 0, 1), answer(ALLOW), keep(0xffff_ff00)]);
    part.extend([jump(REQUESTS[0], 2, 0), jump(REQUESTS[1], 1, 0)]);
    part.extend([answer(fail(libc::ENOTTY)), answer(ALLOW)]);
    part
}

fn number(call: c_long) -> u32 {
    u32::try_from(call).expect("the numbers of calls are small")
}
