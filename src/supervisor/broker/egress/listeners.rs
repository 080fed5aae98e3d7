//! Sockets of the command that listen for connections from this machine.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::supervisor::children::descendants;

/// State of a socket that listens, in the kernel's list.
const LISTENING: &str = "0A";

/// Returns true if a connection to the address reaches a process below the supervisor. `target` is no mapped address.
pub(super) fn is_own(target: SocketAddr) -> bool {
    let lists = ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .map(|path| fs::read_to_string(path).unwrap_or_default());
    let sockets: Vec<&str> = lists.iter().flat_map(|list| sockets_at(list, target)).collect();
    if sockets.is_empty() {
        return false;
    }
    let names: Vec<String> = sockets.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let mut is_held = vec![false; names.len()];
    for process in descendants() {
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        for target in descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok()) {
            if let Some(index) = names.iter().position(|name| target.as_os_str() == name.as_str()) {
                is_held[index] = true;
            }
        }
    }
    // With several, the kernel chooses.
    is_held.into_iter().all(|is_held| is_held)
}

/// Returns the numbers of the sockets that listen at the address.
fn sockets_at(list: &str, target: SocketAddr) -> Vec<&str> {
    let lines = list.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let local = address(fields.nth(1)?)?;
        let is_listening = fields.nth(1)? == LISTENING;
        let inode = fields.nth(5)?;
        let is_there = local.ip().is_unspecified() || local.ip() == target.ip();
        (is_listening && is_there && local.port() == target.port()).then_some(inode)
    });
    lines.collect()
}

/// Reads an address such as `0100007F:1F90`: words in the order of this machine, the port as a number.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn list_of_the_kernel_is_read() {
        let list = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100\n\
            1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0 100\n\
            2: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 100\n\
            3: 0200007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 14 1 0 100\n\
            4: 0000000000000000FFFF00000100007F:1F90 0:0 0A 0:0 00:0 0 0 0 15 1 0\n\
            5: 00000000000000000000000001000000:1F90 0:0 0A 0:0 00:0 0 0 0 16 1 0\n\
            6: broken\n";
        let at = |text: &str| sockets_at(list, text.parse().unwrap());
        assert_eq!(at("127.0.0.1:8080"), ["11", "12", "15"]);
        assert_eq!(at("127.0.0.3:8080"), ["12"]);
        assert_eq!(at("[::1]:8080"), ["12", "16"]);
        assert!(at("127.0.0.1:8081").is_empty());
    }
}
