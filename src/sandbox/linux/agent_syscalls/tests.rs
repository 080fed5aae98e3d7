//! Compares the filters of agents with that of read-only commands, call by call, in an interpreter.

use std::collections::BTreeSet;

use super::super::bpf::number;
use super::super::syscalls::tests::run;
use super::super::{broker_syscalls, syscalls};
use super::*;

/// Beyond the newest call of every kernel, and the calls of x32.
const LAST: u32 = 600;
const X32: u32 = 0x4000_0000;

/// Values that make a difference for some call, and some that make none.
#[rustfmt::skip]
const VALUES: &[u64] = &[
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 16, 17, 22, 35, 36, 37, 38, 62, 65, 0x11, 0x13, 1024, 1025, 1026,
    1027, 1030, 1031, 1032, 1033, 1034, 1035, 1036, 0x5401, 0x5402, 0x5412, 0x541c, 0x541d, 0x5423, 0x540e, 0x8901,
    0x8902, 0x8912, 0x8914, 0x8008_6601, 0x4008_6602, 0x8004_5430, 0x4004_5431, 0x1000_0000, 0x0002_0011, 0x8_0001,
    0x5356_4d41, 0xffff_ffff, 0x1_0000_0000,
];

fn argument_lists() -> Vec<[u64; 6]> {
    let mut lists = Vec::new();
    for value in VALUES {
        for other in [0, 1, 2, 10, 16] {
            for third in [0, 1, 6] {
                lists.push([*value, other, third, 0, 0, 0]);
                lists.push([other, *value, third, 0, 0, 0]);
            }
        }
    }
    lists
}

/// Calls that a filter lets run, for some arguments, and that a read-only command has not.
fn beyond_reading(program: &[sock_filter]) -> BTreeSet<u32> {
    let reading = syscalls::program(
        syscalls::ReaderLimits { signals_held: false, has_network: false, limits_reads: false },
        false,
    );
    let lists = argument_lists();
    let runs =
        |program: &[sock_filter], call, arguments| run(program, call, OWN_ARCHITECTURE, arguments) == ALLOW;
    let exceeds = |call: &u32| {
        lists.iter().any(|arguments| runs(program, *call, *arguments) && !runs(&reading, *call, *arguments))
    };
    (0..LAST).chain(X32..X32 + LAST).filter(exceeds).collect()
}

fn reasons() -> BTreeSet<u32> {
    let calls = BEYOND_READING.iter().chain(BEYOND_READING_OLD).flat_map(|(_, calls)| *calls);
    calls.chain(BEYOND_READING_BY_ARGUMENTS.iter().map(|(_, call)| call)).map(|call| number(*call)).collect()
}

#[test]
fn each_call_that_agents_have_and_read_only_commands_have_not_has_a_reason() {
    let agent = beyond_reading(&program(calls()));
    let reasons = reasons();
    let missing: Vec<_> = agent.difference(&reasons).collect();
    assert!(missing.is_empty(), "calls without a reason: {missing:?}");
    let stale: Vec<_> = reasons.difference(&agent).collect();
    assert!(stale.is_empty(), "reasons without a call: {stale:?}");
}

/// The broker has the same reasons and a call to give up shared memory, and fewer calls run: the supervisor decides
/// those that it suspends.
#[test]
fn brokered_commands_have_no_further_calls() {
    let mut reasons = reasons();
    reasons.insert(number(broker_syscalls::DETACHING));
    for (network, reads) in [(false, false), (true, false), (false, true), (true, true)] {
        let brokered = beyond_reading(&broker_syscalls::program(network, reads));
        let missing: Vec<_> = brokered.difference(&reasons).collect();
        assert!(missing.is_empty(), "{network} {reads}: calls without a reason: {missing:?}");
    }
}

#[test]
fn operations_that_reach_others_fail() {
    let program = program(calls());
    let check = |call: c_long, arguments: [u64; 2], expected: u32| {
        let [first, second] = arguments;
        let answer = run(&program, number(call), OWN_ARCHITECTURE, [first, second, 0, 0, 0, 0]);
        assert_eq!(answer, expected, "{call} {arguments:x?}");
    };
    check(libc::SYS_fcntl, [3, 1024], fail(libc::EINVAL));
    check(libc::SYS_fcntl, [3, 1026], fail(libc::EINVAL));
    check(libc::SYS_fcntl, [3, 1], ALLOW);
    check(libc::SYS_prctl, [62, 2], fail(libc::EINVAL));
    check(libc::SYS_prctl, [15, 0], ALLOW);
    check(libc::SYS_seccomp, [1, 8], fail(libc::ENOSYS));
    check(libc::SYS_seccomp, [1, 0], ALLOW);
    check(libc::SYS_semtimedop, [0, 0], fail(libc::EPERM));
    check(libc::SYS_sched_setaffinity, [7, 0], fail(libc::EPERM));
    check(libc::SYS_sched_setaffinity, [0, 0], ALLOW);
    for call in [libc::SYS_move_pages, libc::SYS_migrate_pages, libc::SYS_process_mrelease] {
        check(call, [7, 0], fail(libc::EPERM));
    }
    for call in [libc::SYS_mq_timedsend, libc::SYS_lookup_dcookie, 463, 599] {
        check(call, [0, 0], fail(libc::ENOSYS));
    }
}
