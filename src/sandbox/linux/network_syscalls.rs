//! Parts of the filter for brokered commands with a limited network: calls that lead to other hosts are suspended for
//! the supervisor, and ways around them are closed. So are calls that give a UNIX socket its address.

use super::bpf::{ALLOW, BpfRule, Calls, SUSPEND, fail, has_bits, is, is_one_of, when};

/// Options that send a packet to any host on the way, and to the host in the address only then.
const ROUTES: &[i32] = &[libc::IP_OPTIONS];
const ROUTES_6: &[i32] = &[libc::IPV6_RTHDR, IPV6_2292RTHDR, IPV6_2292PKTOPTIONS];

const IPV6_2292RTHDR: i32 = 5;
const IPV6_2292PKTOPTIONS: i32 = 6;

pub(super) fn limit(calls: &mut Calls) {
    calls.replace(&[libc::SYS_connect, libc::SYS_bind, libc::SYS_listen], SUSPEND);
    calls.replace(&[libc::SYS_socket], sockets());
    calls.replace(&[libc::SYS_setsockopt], options());
    // Connects, too. The argument with the flags.
    for (call, flags) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
        calls.replace(&[call], when(has_bits(flags, libc::MSG_FASTOPEN), fail(libc::EOPNOTSUPP), ALLOW));
    }
}

/// Allows TCP, UNIX streams and route netlink, and suspends datagram sockets of the internet.
fn sockets() -> BpfRule {
    let refused = fail(libc::EPERM);
    let is_kind = |kind| is(1, kind).masked(0xf);
    // Multipath TCP adds addresses of the peer. Programs fall back to TCP.
    let streams = when(is_one_of(2, &[0, libc::IPPROTO_TCP]), ALLOW, fail(libc::EPROTONOSUPPORT));
    let datagrams = when(is_kind(libc::SOCK_DGRAM), SUSPEND, refused);
    let internet = when(is_kind(libc::SOCK_STREAM), streams, datagrams);
    let routes = when(is(2, 0), ALLOW, refused);
    // Their messages cannot have an address.
    let local = when(is_kind(libc::SOCK_STREAM), when(is(2, 0), ALLOW, refused), refused);
    let others = when(is(0, libc::AF_NETLINK), routes, when(is(0, libc::AF_UNIX), local, refused));
    when(is_one_of(0, &[libc::AF_INET, libc::AF_INET6]), internet, others)
}

fn options() -> BpfRule {
    let refused = |routes| when(is_one_of(2, routes), fail(libc::EPERM), ALLOW);
    let others = when(is(1, libc::IPPROTO_IPV6), refused(ROUTES_6), ALLOW);
    when(is(1, libc::IPPROTO_IP), refused(ROUTES), others)
}
