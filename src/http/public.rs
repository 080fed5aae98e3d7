//! Classifies addresses by the IANA registries of special-purpose addresses (RFC 6890 and its updates). In
//! doubt, an address is not public. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `None` for a public address.
pub(super) fn why_not_public(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => of_four(address),
        IpAddr::V6(address) => of_six(address),
    }
}

/// The IPv4 address in an IPv6 address.
fn of_embedded(high: u16, low: u16) -> Option<&'static str> {
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    of_four(Ipv4Addr::new(a, b, c, d))
}

fn of_four(address: Ipv4Addr) -> Option<&'static str> {
    Some(match address.octets() {
        [0, ..] => "unspecified",
        [127, ..] => "this machine",
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => "a private network",
        [100, 64..=127, ..] => "a provider's own network (CGNAT)",
        [169, 254, ..] => "link-local, where clouds keep their metadata",
        [224..=239, ..] => "multicast",
        [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _]
        | [240..=255, ..] => "reserved",
        _ => return None,
    })
}

fn of_six(address: Ipv6Addr) -> Option<&'static str> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("unspecified"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("this machine"),
        // Refused even if the IPv4 address in it is public, because its plain form is available.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => {
            Some(of_embedded(high, low).unwrap_or("reserved"))
        }
        // NAT64 and 6to4 lead to the IPv4 address in them.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => of_embedded(high, low),
        [0xfc00..=0xfdff, ..] => Some("a private network"),
        [0xfe80..=0xfebf, ..] => Some("link-local"),
        [0xff00..=0xffff, ..] => Some("multicast"),
        // Teredo and its neighbours, documentation, and the first test network.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] | [0x3ffe, ..] => Some("reserved"),
        [0x2000..=0x3fff, ..] => None,
        _ => Some("reserved"),
    }
}

#[cfg(test)]
mod tests {
    use super::why_not_public;

    #[test]
    fn private_addresses_are_recognised_in_every_form() {
        let private = [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.255.254",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "169.254.169.254",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
        ];
        let octets = |text: &str| text.parse::<std::net::Ipv4Addr>().unwrap().octets();
        for text in private {
            let [a, b, c, d] = octets(text);
            let forms = [
                text.to_owned(),
                format!("::ffff:{text}"),
                format!("::{text}"),
                format!("::ffff:0:{text}"),
                format!("64:ff9b::{text}"),
                format!("64:ff9b:1::{text}"),
                format!("2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1"),
                format!("2001:0:{a:02x}{b:02x}:{c:02x}{d:02x}::1"),
                format!(
                    "2001:0:0808:0808::{:04x}:{:04x}",
                    u16::from_be_bytes([!a, !b]),
                    u16::from_be_bytes([!c, !d])
                ),
            ];
            for form in forms {
                assert!(why_not_public(form.parse().unwrap()).is_some(), "{form}");
            }
        }
        for text in [
            "::",
            "::1",
            "::2",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "2001::1",
            "2001:10::1",
            "2001:20::1",
            "2001:db8::1",
            "3fff::1",
            "3ffe::1",
            "100::1",
            "5f00::1",
            "4000::1",
            "::ffff:8.8.8.8",
        ] {
            assert!(why_not_public(text.parse().unwrap()).is_some(), "{text}");
        }
    }

    #[test]
    fn public_addresses_are_accepted() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "2001:4860:4860::8888",
            "64:ff9b::8.8.8.8",
            "2002:0808:0808::1",
        ] {
            assert_eq!(why_not_public(text.parse().unwrap()), None, "{text}");
        }
    }
}
