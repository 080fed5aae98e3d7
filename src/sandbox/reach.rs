//! seccomp for commands that may write: what would reach past a hold on files is taken away, everything else stays.

use seccompiler::{BpfProgram, sock_filter};

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

/// `struct seccomp_data`: where the number, the architecture and the halves of an argument are.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const fn low(argument: u32) -> u32 {
    16 + 8 * argument
}

fn workspace() -> BpfProgram {
    let load = |at: u32| sock_filter { code: 0x20, jt: 0, jf: 0, k: at };
    let answer = |value: u32| sock_filter { code: 0x06, jt: 0, jf: 0, k: value };
    // Leaves out so many instructions if the loaded value is this one, and so many if it is not.
    let jump = |value: u32, same: u8, other: u8| sock_filter { code: 0x15, jt: same, jf: other, k: value };
    let (leave, refuse) = (0x7fff_0000, 0x0005_0000 | libc::EPERM.cast_unsigned());
    let mut program = Vec::new();
    for (architecture, prlimit, ioctl) in ARCHITECTURES {
        let mut calls = Vec::new();
        for number in [*prlimit, prlimit | X32] {
            calls.extend([load(NUMBER), jump(number, 0, 8)]);
            // About itself, or without new limits: no harm.
            calls.extend([
                load(low(0)),
                jump(0, 5, 0),
                load(low(2)),
                jump(0, 0, 2),
                load(low(2) + 4),
                jump(0, 1, 0),
            ]);
            calls.extend([answer(refuse), answer(leave)]);
        }
        // In the second table `ioctl` has another number, too.
        for number in [*ioctl, ioctl | X32, 0x202 | X32] {
            calls.extend([load(NUMBER), jump(number, 0, 4)]);
            // `TIOCSTI` and `TIOCLINUX`.
            calls.extend([load(low(1)), jump(0x5412, 1, 0), jump(0x541c, 0, 1), answer(refuse)]);
        }
        let length = u8::try_from(calls.len()).expect("a few dozen instructions");
        program.extend([load(ARCHITECTURE), jump(*architecture, 0, length)]);
        program.extend(calls);
    }
    program.push(answer(leave));
    program
}
