//! The filter, in an interpreter of BPF programs.

use super::super::bpf::number;
use super::*;

/// Runs a program for a call.
pub(in crate::sandbox::linux) fn run(
    program: &[sock_filter],
    number: u32,
    architecture: u32,
    arguments: [u64; 6],
) -> u32 {
    let word = |at: u32| match at {
        0 => number,
        4 => architecture,
        8 | 12 => 0,
        _ => {
            let bytes = arguments[(at as usize - 16) / 8].to_le_bytes();
            u32::from_le_bytes(bytes[at as usize % 8..][..4].try_into().unwrap())
        }
    };
    let (mut at, mut value) = (0, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        let conditional = |holds: bool| usize::from(if holds { jt } else { jf });
        at += 1;
        match code {
            0x20 => value = word(k),
            0x54 => value &= k,
            0x05 => at += k as usize,
            0x15 => at += conditional(value == k),
            0x25 => at += conditional(value > k),
            0x35 => at += conditional(value >= k),
            0x45 => at += conditional(value & k != 0),
            0x06 => return k,
            _ => panic!("instruction {code:#x}"),
        }
    }
}

const LIMITS: ReaderLimits = ReaderLimits { signals_held: true, has_network: false, limits_reads: false };

const IN_OWN_NETWORK: ReaderLimits = ReaderLimits { has_network: true, ..LIMITS };

fn check(call: c_long, arguments: [u64; 2], expected: u32) {
    let [first, second] = arguments;
    for suspends in [true, false] {
        let found =
            run(&program(LIMITS, suspends), number(call), OWN_ARCHITECTURE, [first, second, 0, 0, 0, 0]);
        assert_eq!(found, expected, "{call} {arguments:x?}");
    }
}

#[test]
fn each_listed_call_gets_its_answer() {
    for call in ALLOWED.iter().chain(ALLOWED_OLD).chain(SIGNALS) {
        check(*call, [1, 1], ALLOW);
    }
    for call in UNSUPPORTED.iter().chain(EXTENDED_ATTRIBUTES) {
        check(*call, [0; 2], fail(libc::EOPNOTSUPP));
    }
    for call in REFUSED_GROUPS.iter().copied().flatten() {
        check(*call, [0; 2], fail(libc::EPERM));
    }
    for call in [libc::SYS_clone3, libc::SYS_personality, 462, 1000, 0x4000_0000, 0xffff_ffff] {
        check(call, [0; 2], UNKNOWN);
    }
    for call in ATTRIBUTES.iter().chain(ATTRIBUTES_OLD) {
        let answer = |suspends| run(&program(LIMITS, suspends), number(*call), OWN_ARCHITECTURE, [0; 6]);
        assert_eq!([true, false].map(answer), [libc::SECCOMP_RET_USER_NOTIF, fail(libc::EPERM)], "{call}");
    }
    let held = |signals_held| {
        let limits = ReaderLimits { signals_held, ..LIMITS };
        run(&program(limits, true), number(libc::SYS_kill), OWN_ARCHITECTURE, [0; 6])
    };
    assert_eq!([true, false].map(held), [ALLOW, fail(libc::EPERM)]);
    let foreign = run(&program(LIMITS, true), number(libc::SYS_read), 0x4000_0003, [0; 6]);
    assert_eq!(foreign, KILL, "a 32-bit program");
}

#[test]
fn arguments_decide_about_some_calls() {
    for call in SELF_ONLY {
        check(*call, [0, 1], ALLOW);
        check(*call, [1, 0], UNKNOWN);
    }
    for (call, allowed, unknown) in [
        (libc::SYS_clone, [[0x0120_0011, 0], [0, 0]], [[0x1000_0000, 0], [0x0002_0011, 0]]),
        (libc::SYS_seccomp, [[1, 0], [1, 0x11]], [[1, 8], [1, 0x19]]),
        (libc::SYS_socketpair, [[1, 1], [1, 0x80005]], [[1, 2], [2, 1]]),
        (libc::SYS_fcntl, [[0, 0], [0, 1030]], [[0, 8], [0, 1024]]),
        (libc::SYS_fcntl, [[0, 1031], [0, 5]], [[0, 10], [0, 1026]]),
        (libc::SYS_setpriority, [[0, 0], [0x1_0000_0000, 0]], [[0, 1], [1, 0]]),
        (libc::SYS_ioprio_set, [[1, 0], [1, 0]], [[0, 0], [1, 7]]),
        (libc::SYS_ioctl, [[0, 0x5401], [0, 0x8008_6601]], [[0, 0x5412], [0, 0x4008_6602]]),
        (libc::SYS_ioctl, [[0, 0x5413], [0, 0x54ff]], [[0, 0x541c], [0, 0x541d]]),
    ] {
        for arguments in allowed {
            check(call, arguments, ALLOW);
        }
        for arguments in unknown {
            check(call, arguments, UNKNOWN);
        }
    }
}

#[test]
fn operations_of_prctl_are_an_allowlist() {
    for operation in [4, 15, 22, 36, 38, 0x5356_4d41] {
        check(libc::SYS_prctl, [operation, 0], ALLOW);
    }
    for operation in [0, 35, 62, 100, 0x7fff_ffff] {
        check(libc::SYS_prctl, [operation, 0], fail(libc::EINVAL));
    }
}

#[test]
fn only_internet_sockets_are_made_in_an_own_network() {
    let answer = |limits, call, arguments: [u64; 3]| {
        let [first, second, third] = arguments;
        let arguments = [first, second, third, 0, 0, 0];
        run(&program(limits, true), number(call), OWN_ARCHITECTURE, arguments)
    };
    // TCP and UDP over IPv4 and IPv6, and the addresses of the interfaces.
    for socket in [[2, 1, 0], [10, 0x80801, 6], [2, 2, 17], [10, 2, 0], [16, 3, 0]] {
        assert_eq!(answer(IN_OWN_NETWORK, libc::SYS_socket, socket), ALLOW, "{socket:?}");
        assert_eq!(answer(LIMITS, libc::SYS_socket, socket), fail(libc::EPERM), "{socket:?}");
    }
    // UNIX, raw, multipath TCP, other netlink protocols, packets, VM sockets.
    for socket in [[1, 1, 0], [1, 2, 0], [2, 3, 1], [2, 1, 262], [16, 3, 15], [17, 3, 0], [40, 1, 0]] {
        assert_eq!(answer(IN_OWN_NETWORK, libc::SYS_socket, socket), fail(libc::EPERM), "{socket:?}");
    }
    for call in [libc::SYS_connect, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept4] {
        assert_eq!(answer(IN_OWN_NETWORK, call, [3, 0, 0]), ALLOW);
        assert_eq!(answer(LIMITS, call, [3, 0, 0]), fail(libc::EPERM));
    }
}
