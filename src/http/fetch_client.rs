//! Fetches addresses that a model names: public ones, and those that the user's settings allow. A request
//! contains no cookie, key or referrer. Redirects are not followed here.
//!
//! The client's own resolver looks a name up, checks the addresses and connects to them, so that no second
//! lookup can give other addresses.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::OnceCell;
use url::{Host, Url};

use super::public::why_not_public;
use super::{HttpError, Response, builder, causes, explain, finish, off_thread};

const ACCEPT: &str = "text/markdown, text/html;q=0.9, application/json;q=0.9, text/*;q=0.8, */*;q=0.1";

/// Domains of networks that are not public.
const PRIVATE_ADDRESS: [&str; 4] = ["localhost", "local", "internal", "home.arpa"];

pub trait Lookup: Send + Sync {
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

struct System;

impl Lookup for System {
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        async move { Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect()) }
            .boxed()
    }
}

/// A server outside the public network that the user allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    host: String,
    port: AllowedPort,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AllowedPort {
    SchemeDefault,
    Exact(u16),
    Any,
}

impl AllowedHost {
    /// Parses `HOST`, `HOST:PORT` or `HOST:*`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let invalid = || format!("{text:?} is not a server: use HOST, HOST:PORT or HOST:*");
        let (name, is_any) = text.strip_suffix(":*").map_or((text, false), |name| (name, true));
        if name.is_empty() || name.contains(['/', '@', '?', '#', '*', '\\']) {
            return Err(invalid());
        }
        // `Url` drops the scheme's default port, so that a written port 80 appears only with `https`.
        let url = Url::parse(&format!("http://{name}")).map_err(|_| invalid())?;
        let is_written = Url::parse(&format!("https://{name}")).is_ok_and(|url| url.port() == Some(80));
        let port = match (is_any, url.port()) {
            (true, None) => AllowedPort::Any,
            (true, Some(_)) => return Err(invalid()),
            (false, Some(port)) => AllowedPort::Exact(port),
            (false, None) if is_written => AllowedPort::Exact(80),
            (false, None) => AllowedPort::SchemeDefault,
        };
        Ok(Self { host: host_of(&url).ok_or_else(invalid)?, port })
    }

    fn is(&self, url: &Url) -> bool {
        let port = match self.port {
            AllowedPort::SchemeDefault => url.port().is_none(),
            AllowedPort::Exact(port) => url.port_or_known_default() == Some(port),
            AllowedPort::Any => true,
        };
        port && host_of(url).is_some_and(|host| host == self.host)
    }
}

pub fn host_of(url: &Url) -> Option<String> {
    url.host_str().map(|host| host.trim_end_matches('.').to_owned()).filter(|host| !host.is_empty())
}

pub struct FetchClient {
    allowed: Vec<AllowedHost>,
    proxy: Option<String>,
    lookup: Arc<dyn Lookup>,
    clients: [OnceCell<reqwest::Client>; 4],
}

impl Default for FetchClient {
    fn default() -> Self {
        Self::new(Vec::new(), None)
    }
}

impl fmt::Debug for FetchClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address of a proxy may contain a password.
        f.debug_struct("FetchClient").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

impl FetchClient {
    /// Reaches public servers through `proxy`. Ignores the environment's proxy variables.
    pub fn new(allowed: Vec<AllowedHost>, proxy: Option<String>) -> Self {
        Self { allowed, proxy, lookup: Arc::new(System), clients: Default::default() }
    }

    /// Address of the proxy for public servers.
    pub fn proxy(&self) -> Option<&str> {
        self.proxy.as_deref()
    }

    #[must_use]
    pub fn with_lookup(self, lookup: Arc<dyn Lookup>) -> Self {
        Self { lookup, ..self }
    }

    /// Dropping the future or the response cancels the request.
    pub async fn get(&self, url: &Url) -> Result<Response, HttpError> {
        let is_allowed = self.allowed.iter().any(|host| host.is(url));
        if !is_allowed {
            check(url)?;
        }
        let client = self.client(is_allowed, url.scheme() == "https").await?;
        let request = client.get(url.clone()).header("accept", ACCEPT);
        request.send().await.map(Response).map_err(|error| refusal(&error).unwrap_or_else(|| explain(error)))
    }

    async fn client(&self, is_allowed: bool, is_encrypted: bool) -> Result<&reqwest::Client, HttpError> {
        let proxy = self.proxy.clone().filter(|_| !is_allowed);
        // A proxy looks names up itself. Our resolver then looks up only the proxy.
        let is_free = is_allowed || proxy.is_some();
        let resolver = Guard { lookup: Arc::clone(&self.lookup), is_free };
        let slot = usize::from(is_allowed) * 2 + usize::from(is_encrypted);
        let client = self.clients[slot].get_or_try_init(|| {
            off_thread(move || {
                let mut builder = builder().no_proxy().dns_resolver(Arc::new(resolver));
                if let Some(proxy) = &proxy {
                    let unusable =
                        |_| HttpError::Unusable("the proxy in the settings is not a valid address".into());
                    builder = builder.proxy(reqwest::Proxy::all(proxy).map_err(unusable)?);
                } else if !is_encrypted {
                    builder = builder.tls_certs_only([]);
                }
                finish(builder)
            })
        });
        client.await
    }
}

fn check(url: &Url) -> Result<(), HttpError> {
    let literal = match url.host() {
        Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
        Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
        Some(Host::Domain(_)) | None => None,
    };
    let host = host_of(url).ok_or_else(|| HttpError::Unusable("the address has no host".into()))?;
    let is_inward = PRIVATE_ADDRESS.iter().any(|name| {
        host.rsplit_once(*name)
            .is_some_and(|(rest, end)| end.is_empty() && (rest.is_empty() || rest.ends_with('.')))
    });
    match literal.and_then(why_not_public).or(is_inward.then_some("the name of a network that is not public"))
    {
        Some(why) => Err(HttpError::Refused(refused(&host, why))),
        None => Ok(()),
    }
}

/// Message for the model: the reason, but no way around it.
fn refused(host: &str, why: &str) -> String {
    format!("{host} is {why}. Only public servers and those in the user's settings can be fetched.")
}

/// The client connects only to addresses from this resolver.
struct Guard {
    lookup: Arc<dyn Lookup>,
    is_free: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct PrivateAddress(String);

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let (name, is_free) = (name.as_str().to_owned(), self.is_free);
        let lookup = self.lookup.lookup(name.clone());
        async move {
            let addresses = lookup.await?;
            let addresses = if is_free { addresses } else { public(&name, addresses)? };
            let sockets: Addrs = Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(sockets)
        }
        .boxed()
    }
}

/// Returns the public addresses, or an error if there are only others. Private addresses are never used.
fn public(name: &str, addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, PrivateAddress> {
    let private = addresses.iter().find_map(|address| Some((*address, why_not_public(*address)?)));
    let public: Vec<IpAddr> =
        addresses.into_iter().filter(|address| why_not_public(*address).is_none()).collect();
    match (public.is_empty(), private) {
        (true, Some((address, why))) => {
            Err(PrivateAddress(refused(&format!("{name} resolves to {address}, which"), why)))
        }
        _ => Ok(public),
    }
}

fn refusal(error: &reqwest::Error) -> Option<HttpError> {
    let private = causes(error).find_map(|cause| cause.downcast_ref());
    private.map(|PrivateAddress(why)| HttpError::Refused(why.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn private_addresses_of_a_name_are_dropped() {
        let mixed = vec![address("127.0.0.1"), address("8.8.8.8"), address("::1")];
        assert_eq!(public("x", mixed).unwrap(), [address("8.8.8.8")]);
        let why = public("x", vec![address("10.1.2.3")]).unwrap_err().0;
        assert!(why.starts_with("x resolves to 10.1.2.3, which is a private network"), "{why}");
    }

    #[test]
    fn allowed_hosts_match_by_name_and_port() {
        let check = |allowed: &str, url: &str, expected: bool| {
            let is = AllowedHost::parse(allowed).unwrap().is(&Url::parse(url).unwrap());
            assert_eq!(is, expected, "{allowed} {url}");
        };
        check("localhost:8080", "http://LOCALHOST:8080/x", true);
        check("localhost:8080", "http://localhost./", false);
        check("localhost:8080", "http://localhost:8081/", false);
        check("localhost:80", "http://localhost/", true);
        check("localhost:80", "https://localhost/", false);
        check("localhost:*", "https://localhost:1/", true);
        check("wiki.corp", "https://wiki.corp/", true);
        check("wiki.corp", "https://wiki.corp./", true);
        check("wiki.corp", "https://wiki.corp:8443/", false);
        check("wiki.corp", "https://a.wiki.corp/", false);
        check("127.0.0.1", "http://2130706433/", true);
        check("[::1]:8080", "http://[0:0::1]:8080/", true);
        for text in ["", "http://x", "a/b", "*.corp", "u@h", "h:x", "h:1:*", "a b"] {
            assert!(AllowedHost::parse(text).unwrap_err().contains("HOST:PORT"), "{text}");
        }
    }

    #[test]
    fn private_hosts_are_refused_before_name_resolution() {
        for url in [
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://0177.0.0.1/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://169.254.169.254/latest/meta-data",
            "http://localhost/",
            "http://localhost./",
            "http://a.localhost/",
            "http://metadata.google.internal/",
            "http://printer.local/",
            "https://[fd00::1]/",
            "http://0/",
            "http://127.1/",
        ] {
            let outcome = check(&Url::parse(url).unwrap());
            assert!(matches!(outcome, Err(HttpError::Refused(_))), "{url}");
        }
        for url in ["https://docs.rs/", "http://8.8.8.8/", "https://notlocalhost/", "https://xlocal/"] {
            assert!(check(&Url::parse(url).unwrap()).is_ok(), "{url}");
        }
    }
}
