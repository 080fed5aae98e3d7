//! seccomp for commands that may write: what would reach past a hold on files is taken away, everything else stays.

use seccompiler::BpfProgram;

use super::program::{ARCHITECTURE, LEAVE, NUMBER, answer, fail, jump, load, low, when};

/// Takes from the calling process, and all that comes of it, what would reach past a hold on writing: limits of other
/// processes, which can kill them, and typing into terminals, which are files that it may write.
///
/// Written by hand, because programs for a processor's older mode are to run as well: the library's filters end them.
pub fn filter() -> Result<(), String> {
    let program = workspace();
    seccompiler::apply_filter(&program).map_err(|error| format!("system calls cannot be filtered: {error}"))
}

/// Which architecture a call is of, and the numbers of `prlimit64` and `ioctl` there.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURES: &[(u32, u32, u32)] = &[(0xc000_003e, 302, 16), (0x4000_0003, 340, 54)];
#[cfg(target_arch = "aarch64")]
const ARCHITECTURES: &[(u32, u32, u32)] = &[(0xc000_00b7, 261, 29), (0x4000_0028, 369, 54)];

/// The number of a call by its second table of x86-64 has this bit.
const X32: u32 = 0x4000_0000;

fn workspace() -> BpfProgram {
    let refuse = fail(libc::EPERM);
    let mut program = Vec::new();
    for (architecture, prlimit, ioctl) in ARCHITECTURES {
        let mut calls = vec![load(NUMBER)];
        for number in [*prlimit, prlimit | X32] {
            calls.extend(when(number, &limits_of_others(refuse)));
        }
        // In the second table `ioctl` has another number, too.
        for number in [*ioctl, ioctl | X32, 0x202 | X32] {
            // `TIOCSTI` and `TIOCLINUX`.
            let typing =
                [load(low(1)), jump(0x5412, 1, 0), jump(0x541c, 0, 1), answer(refuse), answer(LEAVE)];
            calls.extend(when(number, &typing));
        }
        calls.push(answer(LEAVE));
        program.push(load(ARCHITECTURE));
        program.extend(when(*architecture, &calls));
    }
    program.push(answer(LEAVE));
    program
}

/// `prlimit64` about another process, with new limits, is refused: about itself, or without new ones, it does no harm.
pub fn limits_of_others(refuse: u32) -> BpfProgram {
    let mut part = vec![load(low(0)), jump(0, 5, 0)];
    part.extend([load(low(2)), jump(0, 0, 2), load(low(2) + 4), jump(0, 1, 0)]);
    part.extend([answer(refuse), answer(LEAVE)]);
    part
}
