//! Hosts that a brokered command may connect to. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name in the text form of DNS, without the final dot.
const MAX_NAME: usize = 253;

const MAX_LABEL: usize = 63;

/// A host as a user writes it: `example.com`, `*.example.com`, `192.0.2.1`, `[2001:db8::1]`, or `*` for all hosts,
/// each with a port such as `:443`, or without for all ports.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostPattern {
    host: HostForm,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HostForm {
    Any,
    /// Lower case, without a final dot.
    Name(String),
    /// All names that end with a dot and this name.
    Below(String),
    /// Never an IPv4 address that is mapped to IPv6.
    Address(IpAddr),
}

/// Hosts that a brokered command may connect to where its network is limited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowedHosts {
    pub patterns: Vec<HostPattern>,
    /// Fixed addresses of names, instead of those that the system knows.
    pub addresses: Vec<(String, Ipv4Addr)>,
    /// The only hosts, also where the network is open otherwise. `None` without such a limit.
    pub ceiling: Option<Vec<HostPattern>>,
    /// True while all hosts of `ceiling` are allowed, not only those of `patterns`.
    pub is_open: bool,
}

impl AllowedHosts {
    /// Returns true if the name is allowed, for any port if `port` is `None`.
    pub fn allow_name(&self, name: &str, port: Option<u16>) -> bool {
        let name = normalized(name);
        self.allow(|pattern| pattern.has_name(&name) && pattern.has_port(port))
    }

    pub fn allow_address(&self, address: IpAddr, port: u16) -> bool {
        let address = address.to_canonical();
        self.allow(|pattern| pattern.has_address(address) && pattern.has_port(Some(port)))
    }

    /// `host` is a name or an address.
    pub fn allow_server(&self, host: &str, port: u16) -> bool {
        match host.parse() {
            Ok(address) => self.allow_address(address, port),
            Err(_) => self.allow_name(host, Some(port)),
        }
    }

    fn allow(&self, has_host: impl Fn(&HostPattern) -> bool) -> bool {
        let is_open = self.is_open && self.ceiling.is_some();
        (is_open || self.patterns.iter().any(&has_host))
            && self.ceiling.as_ref().is_none_or(|ceiling| ceiling.iter().any(&has_host))
    }

    /// Limits the hosts to those of `ceiling`, in every mode.
    #[must_use]
    pub fn below(self, ceiling: &Self) -> Self {
        Self { ceiling: Some(ceiling.patterns.clone()), ..self }
    }

    /// All of these hosts, as a limit where the network is open otherwise.
    #[must_use]
    pub fn as_ceiling(&self) -> Self {
        Self { is_open: true, ..Self::default() }.below(self)
    }
}

impl HostPattern {
    fn has_address(&self, address: IpAddr) -> bool {
        match &self.host {
            HostForm::Any => true,
            HostForm::Address(allowed) => *allowed == address,
            HostForm::Name(name) => name == "localhost" && address.is_loopback(),
            HostForm::Below(_) => false,
        }
    }

    fn has_name(&self, name: &str) -> bool {
        match &self.host {
            HostForm::Any => true,
            HostForm::Name(allowed) => allowed == name,
            HostForm::Below(parent) => {
                name.strip_suffix(parent.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            HostForm::Address(_) => false,
        }
    }

    fn has_port(&self, port: Option<u16>) -> bool {
        self.port.is_none() || port.is_none() || self.port == port
    }
}

/// Lower case, without a final dot.
pub fn normalized(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

impl FromStr for HostPattern {
    type Err = String;

    /// The error is a part of a sentence.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self { host: HostForm::Address(address.to_canonical()), port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if host.is_empty() || !host.ends_with([':', '/']) => {
                let port = port.parse().ok().filter(|port| *port > 0);
                (host, Some(port.ok_or("it has no port between 1 and 65535 after the colon")?))
            }
            _ => (text, None),
        };
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bracketed.unwrap_or(host).parse::<IpAddr>() {
            Ok(address) if address.is_ipv4() || bracketed.is_some() => {
                HostForm::Address(address.to_canonical())
            }
            _ if host == "*" => HostForm::Any,
            _ => {
                let (name, is_parent) =
                    host.strip_prefix("*.").map_or((host, false), |parent| (parent, true));
                let name = normalized(name);
                if !is_name(&name) {
                    let forms = "example.com, *.example.com, an IP address or *, each with :PORT or without";
                    return Err(format!("a host has one of the forms {forms}"));
                }
                if is_parent { HostForm::Below(name) } else { HostForm::Name(name) }
            }
        };
        Ok(Self { host, port })
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME && name.split('.').all(is_label)
}

fn is_label(label: &str) -> bool {
    (1..=MAX_LABEL).contains(&label.len())
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

impl fmt::Display for HostPattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            HostForm::Any => write!(out, "*")?,
            HostForm::Name(name) => write!(out, "{name}")?,
            HostForm::Below(parent) => write!(out, "*.{parent}")?,
            HostForm::Address(IpAddr::V4(address)) => write!(out, "{address}")?,
            HostForm::Address(IpAddr::V6(address)) => write!(out, "[{address}]")?,
        }
        self.port.map_or(Ok(()), |port| write!(out, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(patterns: &[&str]) -> AllowedHosts {
        let patterns = patterns.iter().map(|text| text.parse().unwrap()).collect();
        AllowedHosts { patterns, ..AllowedHosts::default() }
    }

    #[test]
    fn names_match_without_case_and_final_dot() {
        for (pattern, name, port, expected) in [
            ("example.com", "Example.COM.", Some(80), true),
            ("EXAMPLE.com.", "example.com", None, true),
            ("example.com", "www.example.com", None, false),
            ("example.com", "badexample.com", None, false),
            ("example.com", "example.com.evil", None, false),
            ("*.example.com", "a.example.com", None, true),
            ("*.example.com", "a.b.example.com", None, true),
            ("*.example.com", "example.com", None, false),
            ("*.example.com", ".example.com", None, false),
            ("*.example.com", "badexample.com", None, false),
            ("example.com:443", "example.com", Some(443), true),
            ("example.com:443", "example.com", Some(80), false),
            ("example.com:443", "example.com", None, true),
            ("*", "anything", Some(1), true),
            ("192.0.2.1", "192.0.2.1", None, false),
        ] {
            assert_eq!(allowed(&[pattern]).allow_name(name, port), expected, "{pattern} {name}");
        }
        assert!(!allowed(&[]).allow_name("example.com", None));
    }

    #[test]
    fn addresses_match_in_every_form() {
        for (pattern, address, port, expected) in [
            ("192.0.2.1", "192.0.2.1", 80, true),
            ("192.0.2.1", "::ffff:192.0.2.1", 80, true),
            ("::ffff:192.0.2.1", "192.0.2.1", 80, true),
            ("192.0.2.1:81", "192.0.2.1", 80, false),
            ("192.0.2.1:81", "192.0.2.1", 81, true),
            ("[2001:db8::1]:443", "2001:db8::1", 443, true),
            ("2001:db8::1", "2001:db8::1", 443, true),
            ("2001:db8::1", "2001:db8::2", 443, false),
            ("example.com", "192.0.2.1", 80, false),
            ("localhost:11434", "127.0.0.1", 11434, true),
            ("localhost:11434", "::1", 11434, true),
            ("localhost:11434", "127.0.0.1", 80, false),
            ("localhost", "192.0.2.1", 80, false),
            ("*", "192.0.2.1", 80, true),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(allowed(&[pattern]).allow_address(address, port), expected, "{pattern} {address}");
        }
    }

    #[test]
    fn ceiling_limits_open_networks_too() {
        let ceiling = allowed(&["*.corp.example", "10.0.0.1"]);
        let limited = allowed(&["a.corp.example", "evil.example"]).below(&ceiling);
        let open = AllowedHosts { is_open: true, ..limited.clone() };
        for (host, is_allowed, is_allowed_if_open) in [
            ("a.corp.example", true, true),
            ("b.corp.example", false, true),
            ("evil.example", false, false),
            ("10.0.0.1", false, true),
            ("10.0.0.2", false, false),
        ] {
            assert_eq!(limited.allow_server(host, 443), is_allowed, "{host}");
            assert_eq!(open.allow_server(host, 443), is_allowed_if_open, "{host}");
            assert_eq!(ceiling.as_ceiling().allow_server(host, 443), is_allowed_if_open, "{host}");
        }
        assert!(allowed(&["evil.example"]).allow_server("evil.example", 443), "the control");
    }

    #[test]
    fn host_patterns_are_checked_and_shown() {
        for (text, shown) in [
            ("Example.com.", "example.com"),
            ("*.Example.com:8443", "*.example.com:8443"),
            ("::1", "[::1]"),
            ("[::1]:80", "[::1]:80"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("*:443", "*:443"),
            ("my_host", "my_host"),
        ] {
            assert_eq!(text.parse::<HostPattern>().unwrap().to_string(), shown);
            assert_eq!(shown.parse::<HostPattern>(), text.parse::<HostPattern>(), "{text}");
        }
        let long = "a".repeat(64);
        let names = ["", "https://example.com", "a/b", "a.*.com", "*example.com", "a..b", "bücher.de", &long];
        let ports = ["a:0", "a:65536", "a:", "a:b", ":80"];
        for text in names.into_iter().chain(ports) {
            assert!(text.parse::<HostPattern>().is_err(), "{text}");
        }
    }
}
