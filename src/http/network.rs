//! How requests reach a server: the proxy for an address, the addresses that need none, and the certificates
//! that are trusted. Pure.

use std::net::IpAddr;
use std::path::PathBuf;

use url::{Host, Url};

use super::is_local;

#[derive(Clone, Default)]
pub struct UserNetwork {
    https: Option<NamedProxy>,
    http: Option<NamedProxy>,
    exceptions: Vec<Exception>,
    /// Certificates in PEM that are trusted beside the system's.
    pub ca_file: Option<PathBuf>,
    /// `SSL_CERT_FILE` and `SSL_CERT_DIR`, which take the place of the system's certificates.
    stores: Vec<(String, String)>,
}

#[derive(Clone)]
pub struct NamedProxy {
    pub url: String,
    pub variable: &'static str,
}

impl std::fmt::Debug for UserNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Security: the address of a proxy may contain a password.
        f.debug_struct("Network").field("exceptions", &self.exceptions).finish_non_exhaustive()
    }
}

/// Without a user name and a password.
impl std::fmt::Display for NamedProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "proxy {} of {}", self.host(), self.variable)
    }
}

impl NamedProxy {
    fn host(&self) -> String {
        let rest = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        let rest = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        rest.rsplit('@').next().unwrap_or(rest).to_owned()
    }
}

/// An entry of `NO_PROXY`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Exception {
    host: ExemptHost,
    /// `None` for every port.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ExemptHost {
    All,
    /// An address, and the number of leading bits that have to be the same.
    Addresses(IpAddr, u8),
    /// A name, with all names below it.
    Name(String),
}

impl UserNetwork {
    /// `variable` returns the value of an environment variable.
    pub fn new(variable: impl Fn(&str) -> Option<String>, ca_file: Option<PathBuf>) -> Self {
        let set = |name: &str| {
            variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let proxy = |names: &[&'static str]| {
            names.iter().find_map(|&name| Some(NamedProxy { url: with_scheme(set(name)?), variable: name }))
        };
        let exceptions = set("NO_PROXY").or_else(|| set("no_proxy")).unwrap_or_default();
        // Elsewhere, the system alone decides about certificates.
        let stores: &[&str] =
            if cfg!(target_os = "linux") { &["SSL_CERT_FILE", "SSL_CERT_DIR"] } else { &[] };
        Self {
            https: proxy(&["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]),
            http: proxy(&["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]),
            exceptions: exceptions
                .split(|c: char| c == ',' || c.is_whitespace())
                .filter_map(Exception::parse)
                .collect(),
            ca_file,
            stores: stores.iter().filter_map(|name| Some(((*name).to_owned(), set(name)?))).collect(),
        }
    }

    /// Proxy for an address. `None` for an invalid one, and for an unencrypted server on this machine.
    pub fn proxy_for(&self, url: &str) -> Option<&NamedProxy> {
        if is_local(url) {
            return None;
        }
        let url = Url::parse(url).ok()?;
        let proxy = match url.scheme() {
            "https" => self.https.as_ref(),
            "http" => self.http.as_ref(),
            _ => None,
        }?;
        let port = url.port_or_known_default();
        let is_exempt =
            url.host().is_some_and(|host| self.exceptions.iter().any(|entry| entry.covers(&host, port)));
        (!is_exempt).then_some(proxy)
    }

    /// The proxies, each with the variable that names it.
    pub(super) fn proxies(
        &self,
    ) -> impl Iterator<Item = (Result<reqwest::Proxy, reqwest::Error>, &'static str)> + '_ {
        let https = self.https.iter().map(|proxy| (reqwest::Proxy::https(&proxy.url), proxy.variable));
        let http = self.http.iter().map(|proxy| (reqwest::Proxy::http(&proxy.url), proxy.variable));
        https.chain(http)
    }

    /// Names the sources of trusted certificates, for messages.
    pub fn certificates(&self) -> String {
        let stores: Vec<String> =
            self.stores.iter().map(|(name, value)| format!("{name} ({value})")).collect();
        let certificates =
            if stores.is_empty() { "the system's certificates".to_owned() } else { stores.join(" and ") };
        match &self.ca_file {
            Some(file) => format!("{certificates} and {}", file.display()),
            None => certificates,
        }
    }

    /// The first of `SSL_CERT_FILE` and `SSL_CERT_DIR` that does not exist, as `VARIABLE (PATH)`. `exists` looks.
    pub fn missing_store(&self, exists: impl Fn(&str) -> bool) -> Option<String> {
        let missing = self.stores.iter().find(|(_, value)| !value.split(':').any(&exists));
        missing.map(|(name, value)| format!("{name} ({value})"))
    }
}

/// Host and port of an address; that of IPv6 has no brackets. `None` if the address is invalid.
pub fn server_of(url: &str) -> Option<(String, u16)> {
    let url = Url::parse(url).ok()?;
    let host = match url.host()? {
        Host::Domain(name) => name.to_owned(),
        Host::Ipv4(address) => address.to_string(),
        Host::Ipv6(address) => address.to_string(),
    };
    Some((host, url.port_or_known_default()?))
}

/// Like curl, takes a proxy without a scheme as one for HTTP.
fn with_scheme(proxy: String) -> String {
    if proxy.contains("://") { proxy } else { format!("http://{proxy}") }
}

impl Exception {
    /// `None` for an entry without a host.
    fn parse(text: &str) -> Option<Self> {
        let text = text.split_once("://").map_or(text, |(_, rest)| rest).trim_end_matches('/');
        if text == "*" {
            return Some(Self { host: ExemptHost::All, port: None });
        }
        if let Some(addresses) = addresses(text) {
            return Some(Self { host: addresses, port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (text, None),
        };
        if let Some(host) = addresses(host) {
            return Some(Self { host, port });
        }
        let name = host.trim_start_matches('*').trim_matches('.').to_ascii_lowercase();
        let host = match host {
            "*" => ExemptHost::All,
            _ if name.is_empty() => return None,
            _ => ExemptHost::Name(name),
        };
        Some(Self { host, port })
    }

    fn covers(&self, host: &Host<&str>, port: Option<u16>) -> bool {
        if self.port.is_some() && self.port != port {
            return false;
        }
        match (&self.host, host) {
            (ExemptHost::All, _) => true,
            (ExemptHost::Addresses(network, bits), Host::Ipv4(address)) => {
                has_prefix(IpAddr::V4(*address), *network, *bits)
            }
            (ExemptHost::Addresses(network, bits), Host::Ipv6(address)) => {
                has_prefix(IpAddr::V6(*address), *network, *bits)
            }
            (ExemptHost::Name(name), Host::Domain(host)) => {
                let host = host.trim_end_matches('.').to_ascii_lowercase();
                host.strip_suffix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            _ => false,
        }
    }
}

/// An address, alone, in brackets or with a length of its prefix.
fn addresses(text: &str) -> Option<ExemptHost> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
        None => (text, None),
    };
    let address = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    Some(ExemptHost::Addresses(address, bits.unwrap_or(most).min(most)))
}

fn has_prefix(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let shift = 128 - u32::from(bits);
    address.is_ipv4() == network.is_ipv4()
        && address_bits(address).checked_shr(shift).unwrap_or(0)
            == address_bits(network).checked_shr(shift).unwrap_or(0)
}

fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(variables: &[(&str, &str)]) -> UserNetwork {
        let value =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        UserNetwork::new(value, None)
    }

    /// Checks addresses that `no_proxy` exempts, and others.
    fn check(no_proxy: &str, exempt: &[&str], others: &[&str]) {
        for variable in ["NO_PROXY", "no_proxy"] {
            let network = network(&[("HTTP_PROXY", "http://proxy:3128"), (variable, no_proxy)]);
            for url in exempt {
                assert!(network.proxy_for(url).is_none(), "{no_proxy:?}: {url}");
            }
            for url in others {
                assert!(network.proxy_for(url).is_some(), "{no_proxy:?}: {url}");
            }
        }
    }

    #[test]
    fn every_common_form_of_no_proxy_exempts_what_it_names_and_nothing_else() {
        check("*", &["http://a.example/", "http://10.0.0.1:8/", "http://[fd00::1]/"], &[]);
        check(
            "corp.example",
            &["http://corp.example/", "http://a.corp.example:80/", "http://CORP.example./"],
            &["http://xcorp.example/", "http://example/", "http://corp.example.org/"],
        );
        check(
            ".corp.example",
            &["http://a.corp.example/", "http://corp.example/"],
            &["http://xcorp.example/"],
        );
        check("*.corp.example", &["http://a.b.corp.example/"], &["http://xcorp.example/"]);
        check("llm:8080", &["http://llm:8080/"], &["http://llm/", "http://llm:8081/"]);
        check("llm:80", &["http://llm/"], &["http://llm:8080/"]);
        check("10.1.2.3", &["http://10.1.2.3/", "http://10.1.2.3:99/"], &["http://10.1.2.30/"]);
        check("10.1.2.3:9000", &["http://10.1.2.3:9000/"], &["http://10.1.2.3/"]);
        check("10.1.0.0/16", &["http://10.1.255.1/"], &["http://10.2.0.1/", "http://[fd00::1]/"]);
        check("0.0.0.0/0", &["http://10.2.0.1/"], &["http://[fd00::1]/", "http://name/"]);
        check("fd00::1", &["http://[fd00::1]/"], &["http://[fd00::2]/"]);
        check("[fd00::1]", &["http://[fd00:0::1]:1/"], &["http://[fd00::2]/"]);
        check("[fd00::1]:8080", &["http://[fd00::1]:8080/"], &["http://[fd00::1]/"]);
        check("fd00::/8", &["http://[fd12::1]/"], &["http://[fe00::1]/"]);
        check(
            " a.example , ,\tb.example  c.example,",
            &["http://a.example/", "http://c.example/"],
            &["http://d/"],
        );
        check("http://a.example/", &["http://a.example/"], &["http://b.example/"]);
        check("*:8080", &["http://any:8080/"], &["http://any/"]);
        check(":8080, ., a:b:c:d, x:port", &[], &["http://a/", "http://x:8080/"]);
        check("", &[], &["http://a/"]);
    }

    #[test]
    fn proxies_are_chosen_by_scheme_and_named_without_a_password() {
        let network = network(&[
            ("https_proxy", "http://user:secret@lower:1/"),
            ("HTTP_PROXY", "upper:2"),
            ("http_proxy", "http://ignored:3"),
            ("ALL_PROXY", "socks5://all:4"),
        ]);
        let named = |url: &str| {
            network.proxy_for(url).map(|proxy| (proxy.host(), proxy.variable, proxy.url.as_str()))
        };
        assert_eq!(
            named("https://a.example/"),
            Some(("lower:1".into(), "https_proxy", "http://user:secret@lower:1/"))
        );
        assert_eq!(named("http://a.example/"), Some(("upper:2".into(), "HTTP_PROXY", "http://upper:2")));
        assert_eq!(named("ftp://a.example/"), None);
        assert!(!format!("{network:?}").contains("secret"));
        let all = self::network(&[("HTTPS_PROXY", " "), ("all_proxy", "http://all:4")]);
        assert_eq!(all.proxy_for("https://a.example/").map(|proxy| proxy.variable), Some("all_proxy"));
    }

    #[test]
    fn certificate_stores_are_named() {
        let network = network(&[("SSL_CERT_FILE", "/a.pem"), ("SSL_CERT_DIR", "/b:/c")]);
        assert_eq!(network.certificates(), "SSL_CERT_FILE (/a.pem) and SSL_CERT_DIR (/b:/c)");
        assert_eq!(network.missing_store(|path| path == "/c"), Some("SSL_CERT_FILE (/a.pem)".into()));
        assert_eq!(network.missing_store(|_| true), None);
        assert_eq!(UserNetwork::default().certificates(), "the system's certificates");
    }
}
