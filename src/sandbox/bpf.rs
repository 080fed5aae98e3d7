//! Filters of system calls that are written by hand, where the library's cannot say what they have to: pieces of a program
//! for the kernel, and how they are put together. Pure.

use seccompiler::{BpfProgram, sock_filter};

/// `struct seccomp_data`: where the number, the architecture and the halves of an argument are.
pub const NUMBER: u32 = 0;
pub const ARCHITECTURE: u32 = 4;
pub const fn low(argument: u32) -> u32 {
    16 + 8 * argument
}

/// This call is left alone.
pub const ALLOW: u32 = 0x7fff_0000;

/// The process ends.
pub const KILL: u32 = 0x8000_0000;

/// The call is not made, and answered with this error; with 0 it is answered as if it had been made.
pub const fn fail(error: i32) -> u32 {
    0x0005_0000 | error.cast_unsigned()
}

/// Loads 32 bits of what is known of the call.
pub fn load(at: u32) -> sock_filter {
    sock_filter { code: 0x20, jt: 0, jf: 0, k: at }
}

/// Ends the program with an answer.
pub fn answer(value: u32) -> sock_filter {
    sock_filter { code: 0x06, jt: 0, jf: 0, k: value }
}

/// Leaves out so many instructions if the loaded value is this one, and so many if it is not.
pub fn jump(value: u32, same: u8, other: u8) -> sock_filter {
    sock_filter { code: 0x15, jt: same, jf: other, k: value }
}

/// The same for a value that is greater than this one.
pub fn jump_above(value: u32, above: u8, other: u8) -> sock_filter {
    sock_filter { code: 0x25, jt: above, jf: other, k: value }
}

/// The same for a value that has one of these bits.
pub fn jump_bits(bits: u32, some: u8, none: u8) -> sock_filter {
    sock_filter { code: 0x45, jt: some, jf: none, k: bits }
}

/// Keeps these bits of the loaded value.
pub fn keep(bits: u32) -> sock_filter {
    sock_filter { code: 0x54, jt: 0, jf: 0, k: bits }
}

/// A part of a program that is gone through only if the loaded value is this one. It ends with an answer on every way.
pub fn when(value: u32, part: &[sock_filter]) -> BpfProgram {
    let length = u8::try_from(part.len()).expect("a part is a few dozen instructions long");
    std::iter::once(jump(value, 0, length)).chain(part.iter().cloned()).collect()
}
