//! Invented addresses, which stand for allowed names. The command never learns the real ones, so each
//! connection has a name.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// 198.18.0.0/15, which is set aside for tests of networks.
const FIRST: u32 = 0xc612_0000;
const LAST: u32 = 0xc613_ffff;

/// After this time, the system may know other addresses.
const LIFETIME: Duration = Duration::from_mins(1);

/// Most addresses of a name.
const MAX_ADDRESSES: usize = 4;

/// Names, allowed ones only. More fail.
const MAX_NAMES: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct InventedNames {
    names: Vec<AllowedName>,
    numbers: HashMap<String, usize>,
}

#[derive(Debug)]
struct AllowedName {
    text: String,
    /// Addresses of the system and the time of its answer.
    real: Vec<Ipv4Addr>,
    known_at: Option<Instant>,
}

impl InventedNames {
    /// Returns the real addresses of a name, or `None` if they are unknown or too old.
    pub(super) fn real(&self, name: &str, now: Instant) -> Option<&[Ipv4Addr]> {
        let name = self.names.get(*self.numbers.get(name)?)?;
        let is_new = name.known_at.is_some_and(|at| now.saturating_duration_since(at) < LIFETIME);
        is_new.then_some(&*name.real)
    }

    /// Remembers the real addresses of a name, and returns as many invented ones: always the same for one name.
    /// Returns `None` if there are too many names.
    pub(super) fn invent(&mut self, name: &str, real: &[Ipv4Addr], now: Instant) -> Option<Vec<Ipv4Addr>> {
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None if self.names.len() >= MAX_NAMES => return None,
            None => {
                self.names.push(AllowedName { text: name.to_owned(), real: Vec::new(), known_at: None });
                self.numbers.insert(name.to_owned(), self.names.len() - 1);
                self.names.len() - 1
            }
        };
        let entry = &mut self.names[number];
        entry.real = real.iter().copied().take(MAX_ADDRESSES).collect();
        entry.known_at = Some(now);
        Some((0..entry.real.len()).filter_map(|index| invented(number, index)).collect())
    }

    /// Returns the name of an invented address and the index among its addresses.
    pub(super) fn name(&self, address: Ipv4Addr) -> Option<(&str, usize)> {
        let offset = usize::try_from(address.to_bits().checked_sub(FIRST)?).ok()?;
        let name = self.names.get(offset / MAX_ADDRESSES)?;
        Some((&name.text, offset % MAX_ADDRESSES))
    }

    /// Returns the names whose last known addresses contain this one.
    pub(super) fn names_of(&self, address: IpAddr) -> impl Iterator<Item = &str> {
        let names = self.names.iter();
        names.filter(move |name| name.real.iter().any(|real| *real == address)).map(|name| name.text.as_str())
    }
}

pub(super) fn is_invented(address: Ipv4Addr) -> bool {
    (FIRST..=LAST).contains(&address.to_bits())
}

fn invented(number: usize, index: usize) -> Option<Ipv4Addr> {
    let offset = u32::try_from(number * MAX_ADDRESSES + index).ok()?;
    FIRST.checked_add(offset).filter(|bits| *bits <= LAST).map(Ipv4Addr::from_bits)
}

/// Asks the system, which can take seconds. Returns `None` if it does not know the name.
pub(super) fn resolve(name: &str) -> Option<Vec<Ipv4Addr>> {
    let addresses = (name, 0).to_socket_addrs().ok()?.filter_map(|address| match address {
        SocketAddr::V4(address) => Some(*address.ip()),
        SocketAddr::V6(_) => None,
    });
    let mut addresses: Vec<_> = addresses.collect();
    addresses.dedup();
    Some(addresses)
}

/// Returns the names of an address in a file like `/etc/hosts`.
pub(super) fn listed(hosts: &str, address: IpAddr) -> Vec<&str> {
    let lines = hosts.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let is_of_address = words.next()?.parse::<IpAddr>().is_ok_and(|listed| listed == address);
        is_of_address.then_some(words)
    });
    lines.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_addresses_stand_for_names() {
        let mut names = InventedNames::default();
        let now = Instant::now();
        let real = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
        let one = names.invent("one.example", &real, now).unwrap();
        assert_eq!(one, [Ipv4Addr::new(198, 18, 0, 0), Ipv4Addr::new(198, 18, 0, 1)]);
        let two = names.invent("two.example", &real[..1], now).unwrap();
        assert_eq!(names.name(two[0]), Some(("two.example", 0)));
        assert_eq!(names.name(one[1]), Some(("one.example", 1)));
        assert_eq!(names.invent("one.example", &real, now).unwrap(), one, "they stay the same");
        for unknown in [Ipv4Addr::new(198, 18, 0, 9), Ipv4Addr::new(198, 17, 255, 255), real[0]] {
            assert_eq!(names.name(unknown), None);
        }
    }

    #[test]
    fn real_addresses_grow_old() {
        let mut names = InventedNames::default();
        let now = Instant::now();
        assert_eq!(names.real("a", now), None);
        names.invent("a", &[Ipv4Addr::LOCALHOST], now).unwrap();
        assert_eq!(names.real("a", now), Some(&[Ipv4Addr::LOCALHOST][..]));
        assert_eq!(names.real("a", now + LIFETIME), None);
    }

    #[test]
    fn names_and_addresses_are_bounded() {
        let mut names = InventedNames::default();
        let now = Instant::now();
        for number in 0..MAX_NAMES {
            let invented = names.invent(&number.to_string(), &[Ipv4Addr::LOCALHOST; 9], now).unwrap();
            assert_eq!(invented.len(), MAX_ADDRESSES);
            assert!(invented.iter().all(|address| is_invented(*address)));
        }
        assert_eq!(names.invent("more", &[Ipv4Addr::LOCALHOST], now), None);
        assert!(names.invent("0", &[Ipv4Addr::LOCALHOST], now).is_some());
    }

    #[test]
    fn hosts_file_lists_names() {
        let text = "127.0.0.1 localhost a # b\n#127.0.0.1 c\n::1 d\n\nx e\n127.0.0.1\tf\n";
        assert_eq!(listed(text, Ipv4Addr::LOCALHOST.into()), ["localhost", "a", "f"]);
    }
}
