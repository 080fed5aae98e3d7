//! Parts of the filter for brokered commands with a limited network: calls that lead to other hosts are suspended for
//! the supervisor, and ways around them are closed.
//!
//! `bind` is not among them: a bound socket has no peer until it connects or listens.

use std::collections::BTreeMap;

use seccompiler::BpfProgram;

use super::bpf::{ALLOW, SUSPEND, answer, fail, jump, jump_bits, keep, load, low, when};
use super::syscalls::number;

/// Send a packet to any host on the way, and to the host in the address only then.
const ROUTES: [(i32, i32); 4] = [
    (libc::IPPROTO_IP, libc::IP_OPTIONS),
    (libc::IPPROTO_IPV6, libc::IPV6_RTHDR),
    (libc::IPPROTO_IPV6, IPV6_2292RTHDR),
    (libc::IPPROTO_IPV6, IPV6_2292PKTOPTIONS),
];

const IPV6_2292RTHDR: i32 = 5;
const IPV6_2292PKTOPTIONS: i32 = 6;

pub(super) fn limit(parts: &mut BTreeMap<u32, BpfProgram>) {
    for call in [libc::SYS_connect, libc::SYS_listen] {
        parts.insert(number(call), vec![answer(SUSPEND)]);
    }
    parts.insert(number(libc::SYS_socket), sockets());
    parts.insert(number(libc::SYS_setsockopt), options());
    // Connects, too. The argument with the flags.
    for (call, flags) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
        let connects = libc::MSG_FASTOPEN.cast_unsigned();
        let refused = answer(fail(libc::EOPNOTSUPP));
        let part = vec![load(low(flags)), jump_bits(connects, 0, 1), refused, answer(ALLOW)];
        parts.insert(number(call), part);
    }
}

/// Allows TCP and route netlink, and suspends datagram sockets.
fn sockets() -> BpfProgram {
    let families = [libc::AF_INET, libc::AF_INET6].map(i32::cast_unsigned);
    let refused = answer(fail(libc::EPERM));
    let mut internet = vec![load(low(1)), keep(0xf)];
    // Multipath TCP adds addresses of the peer. Programs fall back to TCP.
    let unsupported = answer(fail(libc::EPROTONOSUPPORT));
    let protocols = [0, libc::IPPROTO_TCP].map(i32::cast_unsigned);
    let stream =
        [load(low(2)), jump(protocols[0], 1, 0), jump(protocols[1], 0, 1), answer(ALLOW), unsupported];
    internet.extend(when(libc::SOCK_STREAM.cast_unsigned(), &stream));
    internet.extend(when(libc::SOCK_DGRAM.cast_unsigned(), &[answer(SUSPEND)]));
    internet.push(refused.clone());
    let netlink = [load(low(2)), jump(0, 0, 1), answer(ALLOW), refused.clone()];
    let mut part = vec![load(low(0))];
    for family in families {
        part.extend(when(family, &internet));
    }
    part.extend(when(libc::AF_NETLINK.cast_unsigned(), &netlink));
    part.push(refused);
    part
}

fn options() -> BpfProgram {
    let mut part = Vec::new();
    for (level, option) in ROUTES.map(|(level, option)| (level.cast_unsigned(), option.cast_unsigned())) {
        part.extend([load(low(1)), jump(level, 0, 3), load(low(2)), jump(option, 0, 1)]);
        part.push(answer(fail(libc::EPERM)));
    }
    part.push(answer(ALLOW));
    part
}
