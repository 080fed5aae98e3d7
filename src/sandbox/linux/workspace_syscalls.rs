//! seccomp filter for commands that may write.

use seccompiler::BpfProgram;

use super::bpf::{self, ALLOW, ARCHITECTURE, NUMBER, answer, fail, jump, load, low, when};

/// Blocks changes of other processes' limits (which can kill them), priorities and places in memory, leases, which
/// make readers and writers of any readable file wait, and typing into terminals, which are writable files. Written by hand, because the library's filters kill 32-bit programs.
pub(super) fn filter() -> Result<(), String> {
    bpf::apply(&workspace())
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
    fcntl: [u32; 2],
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
        fcntl: [72, 72],
    },
    CallNumbers {
        architecture: 0x4000_0003,
        prlimit: 340,
        ioctl: 54,
        setpriority: 97,
        ioprio_set: 289,
        scheduling: [154, 156, 351, 241, 294, 317],
        fcntl: [55, 221],
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
        fcntl: [25, 25],
    },
    CallNumbers {
        architecture: 0x4000_0028,
        prlimit: 369,
        ioctl: 54,
        setpriority: 97,
        ioprio_set: 314,
        scheduling: [154, 156, 380, 241, 400, 344],
        fcntl: [55, 221],
    },
];

const X32: u32 = 0x4000_0000;

fn workspace() -> BpfProgram {
    let refuse = fail(libc::EPERM);
    let mut program = Vec::new();
    for CallNumbers { architecture, prlimit, ioctl, setpriority, ioprio_set, scheduling, fcntl } in
        ARCHITECTURES
    {
        let mut calls = vec![load(NUMBER)];
        for number in [prlimit, prlimit | X32] {
            calls.extend(when(number, &limits_of_others(refuse)));
        }
        for table in [0, X32] {
            calls.extend(when(setpriority | table, &priority_of_others(PRIO_PROCESS, refuse)));
            calls.extend(when(ioprio_set | table, &priority_of_others(IOPRIO_WHO_PROCESS, refuse)));
            for number in scheduling {
                calls.extend(when(number | table, &scheduling_of_others(refuse)));
            }
            for number in fcntl {
                calls.extend(when(number | table, &leases(refuse)));
            }
        }
        for number in [ioctl, ioctl | X32, 0x202 | X32] {
            // `TIOCSTI` and `TIOCLINUX`.
            let typing =
                [load(low(1)), jump(0x5412, 1, 0), jump(0x541c, 0, 1), answer(refuse), answer(ALLOW)];
            calls.extend(when(number, &typing));
        }
        calls.push(answer(ALLOW));
        program.push(load(ARCHITECTURE));
        program.extend(when(architecture, &calls));
    }
    program.push(answer(ALLOW));
    program
}

/// Refuses new limits for another process.
pub(super) fn limits_of_others(refuse: u32) -> BpfProgram {
    let mut part = vec![load(low(0)), jump(0, 5, 0)];
    part.extend([load(low(2)), jump(0, 0, 2), load(low(2) + 4), jump(0, 1, 0)]);
    part.extend([answer(refuse), answer(ALLOW)]);
    part
}

/// A single process; id 0 is the calling process.
pub(super) const PRIO_PROCESS: u32 = 0;
pub(super) const IOPRIO_WHO_PROCESS: u32 = 1;

/// Refuses anything but the calling process.
pub(super) fn priority_of_others(one: u32, refuse: u32) -> BpfProgram {
    let which = [load(low(0)), jump(one, 0, 2)];
    let who = [load(low(1)), jump(0, 1, 0), answer(refuse), answer(ALLOW)];
    which.into_iter().chain(who).collect()
}

pub(super) fn scheduling_of_others(refuse: u32) -> BpfProgram {
    vec![load(low(0)), jump(0, 1, 0), answer(refuse), answer(ALLOW)]
}

fn leases(refuse: u32) -> BpfProgram {
    let lease = libc::F_SETLEASE.cast_unsigned();
    vec![load(low(1)), jump(lease, 0, 1), answer(refuse), answer(ALLOW)]
}
