//! Takes back the sockets that the command opened while the network was open: afterwards none leads to a host that
//! is not allowed or to a UNIX socket of another program, and none listens beyond this machine.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketType, sockopt};
use rustix::process::Pid;

use super::{EgressBroker, check_bound_to_loopback};
use crate::kernel;
use crate::supervisor::broker::tracee;
use crate::supervisor::children::descendants;

/// Looks at the sockets of the command: a call that was running before the change may end after the first.
const LOOKS: usize = 3;

const INTERVAL: Duration = Duration::from_millis(2);

/// The number of a socket, which is the same for all its descriptors.
type SocketNumber = u64;

impl EgressBroker {
    /// Closes the connections of the command and its listeners. Returns false if a socket could not be closed.
    pub(in crate::supervisor::broker) fn take_back(&self) -> bool {
        if !self.was_open.load(Ordering::SeqCst) {
            return true;
        }
        let mut is_complete = true;
        let mut done = HashSet::new();
        for look in 0..LOOKS {
            if look > 0 {
                thread::sleep(INTERVAL);
            }
            let processes = descendants();
            let sockets = sockets(&processes, &mut is_complete);
            let pairs: HashSet<_> = sockets.values().filter_map(pair).collect();
            for (number, socket) in &sockets {
                if !done.contains(number) {
                    let closed = if is_of(socket, &[AddressFamily::UNIX]) {
                        close_unix(socket, &processes)
                    } else {
                        self.close(socket, &pairs)
                    };
                    match closed {
                        Ok(true) => drop(done.insert(*number)),
                        // A connection that is allowed, or none yet.
                        Ok(false) => {}
                        Err(_) => is_complete = false,
                    }
                }
            }
        }
        self.was_open.store(!is_complete, Ordering::SeqCst);
        is_complete
    }

    /// Returns true if the socket leads nowhere any more.
    fn close(&self, socket: &OwnedFd, pairs: &HashSet<(SocketAddr, SocketAddr)>) -> Result<bool, Errno> {
        if sockopt::socket_type(socket)? != SocketType::STREAM {
            // Could send to any address, also after its end.
            kernel::tie_to_loopback(socket.as_fd()).map_err(|_| Errno::PERM)?;
            return shut(socket);
        }
        if sockopt::socket_acceptconn(socket)? {
            return if check_bound_to_loopback(socket).is_ok() { Ok(false) } else { shut(socket) };
        }
        let Some((local, peer)) = pair(socket) else {
            // Not connected, or about to be.
            rustix::net::connect_unspec(socket)?;
            return Ok(false);
        };
        let is_allowed = self.allows_address(peer.ip(), peer.port()) || self.is_known_address(peer);
        if is_allowed || pairs.contains(&(peer, local)) { Ok(false) } else { shut(socket) }
    }

    /// Returns true if an allowed name has had the address.
    fn is_known_address(&self, peer: SocketAddr) -> bool {
        let names = self.names();
        names.names_of(peer.ip()).any(|name| self.hosts().allow_name(name, Some(peer.port())))
    }
}

/// Closes a connection to a UNIX socket with a name, unless one of the processes listens there. Pairs of sockets have
/// no names.
fn close_unix(socket: &OwnedFd, processes: &[Pid]) -> Result<bool, Errno> {
    let Ok(Some(peer)) = rustix::net::getpeername(socket) else { return Ok(false) };
    let is_named = SocketAddrUnix::try_from(peer).is_ok_and(|peer| peer.path_bytes().is_some());
    let is_own = || sockopt::socket_peercred(socket).is_ok_and(|peer| processes.contains(&peer.pid));
    if is_named && !is_own() { shut(socket) } else { Ok(false) }
}

/// Ends a connection, and listening. Datagram sockets send nothing any more.
fn shut(socket: &OwnedFd) -> Result<bool, Errno> {
    match rustix::net::shutdown(socket, Shutdown::Both) {
        Ok(()) | Err(Errno::NOTCONN) => Ok(true),
        Err(error) => Err(error),
    }
}

/// The two ends of a connection, in the form that both ends of a connection in this machine have.
fn pair(socket: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    let local = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    let peer = SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()?;
    Some((canonical(local), canonical(peer)))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Copies of the processes' sockets of the internet, and of their UNIX sockets.
fn sockets(processes: &[Pid], is_complete: &mut bool) -> HashMap<SocketNumber, OwnedFd> {
    let mut sockets = HashMap::new();
    for process in processes {
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for thread in threads {
            add_sockets(&thread.path(), &mut sockets, is_complete);
        }
    }
    sockets
}

fn add_sockets(thread: &Path, sockets: &mut HashMap<SocketNumber, OwnedFd>, is_complete: &mut bool) {
    let Some(id) = thread.file_name().and_then(number) else { return };
    // A thread that has ended has no descriptors.
    for descriptor in fs::read_dir(thread.join("fd")).into_iter().flatten().flatten() {
        let target = fs::read_link(descriptor.path()).unwrap_or_default();
        let Some(socket) = target.to_str().and_then(socket_number) else { continue };
        let Some(fd) = number(&descriptor.file_name()).and_then(|fd| i32::try_from(fd).ok()) else {
            continue;
        };
        if sockets.contains_key(&socket) {
            continue;
        }
        match tracee::copy_descriptor(id, fd) {
            Ok(copy) if is_of(&copy, &[AddressFamily::INET, AddressFamily::INET6, AddressFamily::UNIX]) => {
                drop(sockets.insert(socket, copy));
            }
            Ok(_) | Err(Errno::BADF | Errno::SRCH) => {}
            Err(_) => *is_complete = false,
        }
    }
}

fn number(name: &OsStr) -> Option<u32> {
    name.to_str()?.parse().ok()
}

fn is_of(socket: &OwnedFd, families: &[AddressFamily]) -> bool {
    sockopt::socket_domain(socket).is_ok_and(|family| families.contains(&family))
}

fn socket_number(target: &str) -> Option<SocketNumber> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_told_from_files() {
        assert_eq!(socket_number("socket:[12]"), Some(12));
        for other in ["pipe:[12]", "/dev/null", "socket:[]", "/tmp/socket:[12]", "socket:[12"] {
            assert_eq!(socket_number(other), None, "{other}");
        }
    }
}
