//! seccomp filters: what happens to each call, and the program that the kernel runs for it. Pure.
//!
//! ```text
//! filter = { architecture: calls }, answer to all other architectures
//! calls  = { number: rule }, answer to all other numbers
//! rule   = ANSWER | if test then rule else rule
//! test   = the lower half of an argument, perhaps masked, is one of some values, or has one of some bits
//! ```
//!
//! The kernel examines a filter for every call when it is installed, so a program looks a call up by halving.

use std::collections::BTreeMap;

use libc::{c_int, c_long, sock_filter};

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

pub(super) const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

pub(super) const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

/// Suspends the call for the supervisor.
pub(super) const SUSPEND: u32 = libc::SECCOMP_RET_USER_NOTIF;

/// Skips the call and returns an error; 0 reports success.
pub(super) const fn fail(error: c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | error.cast_unsigned()
}

/// The answer to a call, or a test on which the answer depends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BpfRule {
    Answer(u32),
    If { test: Test, then: Box<BpfRule>, otherwise: Box<BpfRule> },
}

impl From<u32> for BpfRule {
    fn from(answer: u32) -> Self {
        Self::Answer(answer)
    }
}

pub(super) fn when(test: Test, then: impl Into<BpfRule>, otherwise: impl Into<BpfRule>) -> BpfRule {
    BpfRule::If { test, then: Box::new(then.into()), otherwise: Box::new(otherwise.into()) }
}

/// Looks at a half of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Test {
    offset: u32,
    mask: u32,
    comparison: Comparison,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Comparison {
    IsOneOf(Vec<u32>),
    HasBits(u32),
}

pub(super) fn is(argument: u32, value: c_int) -> Test {
    is_one_of(argument, &[value])
}

pub(super) fn is_one_of(argument: u32, values: &[c_int]) -> Test {
    let values = values.iter().map(|value| value.cast_unsigned()).collect();
    Test { offset: ARGUMENTS + 8 * argument, mask: u32::MAX, comparison: Comparison::IsOneOf(values) }
}

/// True if the argument has any of the bits.
pub(super) fn has_bits(argument: u32, bits: c_int) -> Test {
    let comparison = Comparison::HasBits(bits.cast_unsigned());
    Test { offset: ARGUMENTS + 8 * argument, mask: u32::MAX, comparison }
}

impl Test {
    /// Compares these bits only.
    pub(super) fn masked(self, mask: u32) -> Self {
        Self { mask, ..self }
    }

    /// Looks at the upper half.
    pub(super) fn upper(self) -> Self {
        Self { offset: self.offset + 4, ..self }
    }
}

impl BpfRule {
    /// Every path through the instructions ends with an answer.
    fn instructions(&self) -> Vec<sock_filter> {
        let (test, then, otherwise) = match self {
            Self::Answer(value) => return vec![answer(*value)],
            Self::If { test, then, otherwise } => (test, then.instructions(), otherwise.instructions()),
        };
        let skip_then = short(then.len());
        let mut program = vec![load(test.offset)];
        program.extend((test.mask != u32::MAX).then(|| keep(test.mask)));
        match &test.comparison {
            Comparison::HasBits(bits) => program.push(jump_bits(*bits, 0, skip_then)),
            Comparison::IsOneOf(values) => {
                let others = values.iter().zip((0..short(values.len())).rev());
                // Only the last comparison has no other one behind it.
                program
                    .extend(others.map(|(value, others)| {
                        jump(*value, others, if others == 0 { skip_then } else { 0 })
                    }));
            }
        }
        [program, then, otherwise].concat()
    }
}

/// A conditional jump reaches only 255 instructions.
fn short(length: usize) -> u8 {
    u8::try_from(length).expect("rules and lists of values are short")
}

/// The calls of one architecture that have a rule.
#[derive(Debug, Default)]
pub(super) struct Calls(BTreeMap<u32, BpfRule>);

impl Calls {
    /// Calls in two lists would have the rule of the last one, so a call has at most one rule until [`Self::replace`].
    pub(super) fn set(&mut self, calls: &[c_long], rule: impl Into<BpfRule>) {
        let rule = rule.into();
        for call in calls {
            self.set_number(number(*call), rule.clone());
        }
    }

    pub(super) fn set_number(&mut self, number: u32, rule: BpfRule) {
        let earlier = self.0.insert(number, rule);
        debug_assert!(earlier.is_none(), "call {number} has a rule already");
    }

    /// Replaces the rules of these calls.
    pub(super) fn replace(&mut self, calls: &[c_long], rule: impl Into<BpfRule>) {
        let rule = rule.into();
        for call in calls {
            let earlier = self.0.insert(number(*call), rule.clone());
            debug_assert!(earlier.is_some(), "call {call} has no rule yet");
        }
    }

    /// Puts a test in front of the rule of a call.
    pub(super) fn exempt(&mut self, call: c_long, test: Test, answer: u32) {
        if let Some(rule) = self.0.remove(&number(call)) {
            self.set_number(number(call), when(test, answer, rule));
        }
    }

    fn instructions(&self, unlisted: u32) -> Vec<sock_filter> {
        let unlisted = BpfRule::from(unlisted);
        // Each range of numbers lasts until the next one begins.
        let mut ranges: Vec<(u32, &BpfRule)> = vec![(0, &unlisted)];
        let mut push = |start, rule| match ranges.last_mut() {
            Some(last) if last.0 == start => last.1 = rule,
            Some(last) if last.1 == rule => {}
            _ => ranges.push((start, rule)),
        };
        for (number, rule) in &self.0 {
            push(*number, rule);
            if !self.0.contains_key(&(number + 1)) {
                push(number + 1, &unlisted);
            }
        }
        [vec![load(NUMBER)], among(&ranges)].concat()
    }
}

pub(super) fn number(call: c_long) -> u32 {
    u32::try_from(call).expect("the numbers of calls are small")
}

fn among(ranges: &[(u32, &BpfRule)]) -> Vec<sock_filter> {
    if let [(_, rule)] = ranges {
        return rule.instructions();
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let (start, lower, upper) = (upper[0].0, among(lower), among(upper));
    [vec![jump_above(start - 1, 0, 1), jump_by(&lower)], lower, upper].concat()
}

/// A filter for some architectures. Calls of others get the answer `foreign`.
pub(super) fn program(architectures: &[(u32, Calls)], unlisted: u32, foreign: u32) -> Vec<sock_filter> {
    let mut program = vec![load(ARCHITECTURE)];
    for (architecture, calls) in architectures {
        let calls = calls.instructions(unlisted);
        program.extend([jump(*architecture, 1, 0), jump_by(&calls)]);
        program.extend(calls);
    }
    program.push(answer(foreign));
    program
}

fn load(offset: u32) -> sock_filter {
    sock_filter { code: 0x20, jt: 0, jf: 0, k: offset }
}

fn answer(value: u32) -> sock_filter {
    sock_filter { code: 0x06, jt: 0, jf: 0, k: value }
}

/// Skips `same` instructions if the loaded value equals `value`, otherwise `other`.
fn jump(value: u32, same: u8, other: u8) -> sock_filter {
    sock_filter { code: 0x15, jt: same, jf: other, k: value }
}

fn jump_above(value: u32, above: u8, other: u8) -> sock_filter {
    sock_filter { code: 0x25, jt: above, jf: other, k: value }
}

fn jump_bits(bits: u32, some: u8, none: u8) -> sock_filter {
    sock_filter { code: 0x45, jt: some, jf: none, k: bits }
}

fn keep(bits: u32) -> sock_filter {
    sock_filter { code: 0x54, jt: 0, jf: 0, k: bits }
}

fn jump_by(skipped: &[sock_filter]) -> sock_filter {
    let count = u32::try_from(skipped.len()).expect("a program has at most 4096 instructions");
    sock_filter { code: 0x05, jt: 0, jf: 0, k: count }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "has a rule already")]
    fn a_call_in_two_lists_is_a_mistake() {
        let mut calls = Calls::default();
        calls.set(&[libc::SYS_read, libc::SYS_write], ALLOW);
        calls.set(&[libc::SYS_write], fail(libc::EPERM));
    }

    #[test]
    #[should_panic(expected = "has no rule yet")]
    fn a_rule_that_replaces_none_is_a_mistake() {
        let mut calls = Calls::default();
        calls.set(&[libc::SYS_read], ALLOW);
        calls.replace(&[libc::SYS_read], fail(libc::EPERM));
        calls.replace(&[libc::SYS_write], fail(libc::EPERM));
    }
}
