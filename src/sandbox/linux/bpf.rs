//! Building blocks of seccomp programs that the library cannot express. Pure.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, sock_filter};

/// Offsets in `struct seccomp_data`.
pub(super) const NUMBER: u32 = 0;
pub(super) const ARCHITECTURE: u32 = 4;
pub(super) const fn low(argument: u32) -> u32 {
    16 + 8 * argument
}

pub(super) const ALLOW: u32 = 0x7fff_0000;

pub(super) const KILL: u32 = 0x8000_0000;

/// Suspends the call for the supervisor.
pub(super) const SUSPEND: u32 = libc::SECCOMP_RET_USER_NOTIF;

pub(super) fn apply(program: &BpfProgram) -> Result<(), String> {
    seccompiler::apply_filter(program).map_err(|error| format!("system calls cannot be filtered: {error}"))
}

/// Skips the call and returns an error; 0 reports success.
pub(super) const fn fail(error: i32) -> u32 {
    0x0005_0000 | error.cast_unsigned()
}

pub(super) fn load(at: u32) -> sock_filter {
    sock_filter { code: 0x20, jt: 0, jf: 0, k: at }
}

pub(super) fn answer(value: u32) -> sock_filter {
    sock_filter { code: 0x06, jt: 0, jf: 0, k: value }
}

/// Skips `same` instructions if the loaded value equals `value`, otherwise `other`.
pub(super) fn jump(value: u32, same: u8, other: u8) -> sock_filter {
    sock_filter { code: 0x15, jt: same, jf: other, k: value }
}

pub(super) fn jump_above(value: u32, above: u8, other: u8) -> sock_filter {
    sock_filter { code: 0x25, jt: above, jf: other, k: value }
}

pub(super) fn jump_bits(bits: u32, some: u8, none: u8) -> sock_filter {
    sock_filter { code: 0x45, jt: some, jf: none, k: bits }
}

pub(super) fn keep(bits: u32) -> sock_filter {
    sock_filter { code: 0x54, jt: 0, jf: 0, k: bits }
}

/// Runs `part` if the loaded value equals `value`. Every path through `part` must end with an answer.
pub(super) fn when(value: u32, part: &[sock_filter]) -> BpfProgram {
    let length = u8::try_from(part.len()).expect("a part is a few dozen instructions long");
    std::iter::once(jump(value, 0, length)).chain(part.iter().cloned()).collect()
}

/// Runs the part of the loaded value, or `otherwise`. Every path through a part must end with an answer.
pub(super) fn halving(parts: &BTreeMap<u32, BpfProgram>, otherwise: &[sock_filter]) -> BpfProgram {
    // Each range lasts until the next one begins.
    let mut ranges: Vec<(u32, &[sock_filter])> = vec![(0, otherwise)];
    let mut push = |start, part| match ranges.last_mut() {
        Some(last) if last.0 == start => last.1 = part,
        Some(last) if last.1 == part => {}
        _ => ranges.push((start, part)),
    };
    for (number, part) in parts {
        push(*number, &**part);
        if !parts.contains_key(&(number + 1)) {
            push(number + 1, otherwise);
        }
    }
    among(&ranges)
}

fn among(ranges: &[(u32, &[sock_filter])]) -> BpfProgram {
    if let [(_, part)] = ranges {
        return part.to_vec();
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let (start, lower, upper) = (upper[0].0, among(lower), among(upper));
    let length = u32::try_from(lower.len()).expect("a program has at most 4096 instructions");
    // A conditional jump reaches only 255 instructions.
    let first = [jump_above(start - 1, 0, 1), jump_by(length)];
    first.into_iter().chain(lower).chain(upper).collect()
}

fn jump_by(count: u32) -> sock_filter {
    sock_filter { code: 0x05, jt: 0, jf: 0, k: count }
}
