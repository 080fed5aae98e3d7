//! seccomp filter for commands that may write.

use libc::{c_int, sock_filter};

use super::bpf::{self, ALLOW, BpfRule, Calls, fail, is, is_one_of, when};
use crate::kernel;

/// Blocks changes of other processes' limits (which can kill them), priorities and places in memory, leases, which
/// make readers and writers of any readable file wait, and typing into terminals, which are writable files. 32-bit
/// programs run, with the same limits.
pub(super) fn filter() -> Result<(), String> {
    kernel::filter(&program())
}

pub(super) fn program() -> Vec<sock_filter> {
    bpf::program(&ARCHITECTURES.each_ref().map(calls), ALLOW, ALLOW)
}

struct CallNumbers {
    architecture: u32,
    prlimit: u32,
    ioctl: u32,
    setpriority: u32,
    ioprio_set: u32,
    /// `sched_setparam`, `sched_setscheduler`, `sched_setattr`, `sched_setaffinity`, `migrate_pages` and
    /// `move_pages`.
    scheduling: [u32; 6],
    /// `fcntl`, and `fcntl64` of 32-bit programs.
    fcntl: &'static [u32],
}

/// Native architecture and its 32-bit mode.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURES: [CallNumbers; 2] = [
    CallNumbers {
        architecture: 0xc000_003e,
        prlimit: 302,
        ioctl: 16,
        setpriority: 141,
        ioprio_set: 251,
        scheduling: [142, 144, 314, 203, 256, 279],
        fcntl: &[72],
    },
    CallNumbers {
        architecture: 0x4000_0003,
        prlimit: 340,
        ioctl: 54,
        setpriority: 97,
        ioprio_set: 289,
        scheduling: [154, 156, 351, 241, 294, 317],
        fcntl: &[55, 221],
    },
];
#[cfg(target_arch = "aarch64")]
const ARCHITECTURES: [CallNumbers; 2] = [
    CallNumbers {
        architecture: 0xc000_00b7,
        prlimit: 261,
        ioctl: 29,
        setpriority: 140,
        ioprio_set: 30,
        scheduling: [118, 119, 274, 122, 238, 239],
        fcntl: &[25],
    },
    CallNumbers {
        architecture: 0x4000_0028,
        prlimit: 369,
        ioctl: 54,
        setpriority: 97,
        ioprio_set: 314,
        scheduling: [154, 156, 380, 241, 400, 344],
        fcntl: &[55, 221],
    },
];

const X32: u32 = 0x4000_0000;

fn calls(numbers: &CallNumbers) -> (u32, Calls) {
    let CallNumbers { architecture, prlimit, ioctl, setpriority, ioprio_set, scheduling, fcntl } = *numbers;
    let refused = fail(libc::EPERM);
    let mut calls = Calls::default();
    for table in [0, X32] {
        calls.set_number(prlimit | table, limits_of_others(refused));
        calls.set_number(setpriority | table, priority_of_others(PRIO_PROCESS, refused));
        calls.set_number(ioprio_set | table, priority_of_others(IOPRIO_WHO_PROCESS, refused));
        for number in scheduling {
            calls.set_number(number | table, scheduling_of_others(refused));
        }
        for number in fcntl {
            calls.set_number(*number | table, when(is(1, libc::F_SETLEASE), refused, ALLOW));
        }
    }
    for number in [ioctl, ioctl | X32, 0x202 | X32] {
        // `TIOCSTI` and `TIOCLINUX`.
        calls.set_number(number, when(is_one_of(1, &[0x5412, 0x541c]), refused, ALLOW));
    }
    (architecture, calls)
}

/// Refuses new limits for another process.
pub(super) fn limits_of_others(refused: u32) -> BpfRule {
    let reads = when(is(2, 0), when(is(2, 0).upper(), ALLOW, refused), refused);
    when(is(0, 0), ALLOW, reads)
}

/// A single process; id 0 is the calling process.
pub(super) const PRIO_PROCESS: c_int = 0;
pub(super) const IOPRIO_WHO_PROCESS: c_int = 1;

/// Refuses anything but the calling process.
pub(super) fn priority_of_others(one: c_int, refused: u32) -> BpfRule {
    when(is(0, one), when(is(1, 0), ALLOW, refused), refused)
}

pub(super) fn scheduling_of_others(refused: u32) -> BpfRule {
    when(is(0, 0), ALLOW, refused)
}
