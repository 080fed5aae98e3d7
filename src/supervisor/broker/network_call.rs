//! Suspended calls that lead to other hosts, or give a socket its address. Pure.

use super::notification::SuspendedCall;

/// A suspended call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NetworkCall {
    Connect,
    Bind,
    Listen,
    /// Creates a datagram socket.
    Socket,
}

/// `None` if the call is suspended for other reasons.
pub(super) fn network_call(call: &SuspendedCall) -> Option<NetworkCall> {
    match call.number {
        libc::SYS_connect => Some(NetworkCall::Connect),
        libc::SYS_bind => Some(NetworkCall::Bind),
        libc::SYS_listen => Some(NetworkCall::Listen),
        libc::SYS_socket => Some(NetworkCall::Socket),
        _ => None,
    }
}
