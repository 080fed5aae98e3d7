//! HTTP clients: here for models, in [`fetch_client`] for addresses that models name.
//!
//! Redirects are not followed, so that a key goes only to the configured address. [`network`] chooses the proxy,
//! except for servers on this machine. A client is built off the main thread, because loading the system's
//! certificates is slow.

use std::borrow::Cow;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::OnceCell;

use network::UserNetwork;

pub mod fetch_client;
pub mod network;
mod public;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum silence of a server. Models may think for minutes.
const READ_TIMEOUT: Duration = Duration::from_mins(5);

/// Timeout for a body that is read as a whole.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum bytes of a body that is read as a whole.
const MAX_TEXT: usize = 64 * 1024;

/// Maximum bytes of an answer to a library's request.
const MAX_ANSWER: usize = 1024 * 1024;

#[derive(Debug, Default)]
pub struct Http {
    network: UserNetwork,
    direct: OnceCell<reqwest::Client>,
    /// For addresses with a proxy.
    proxied: OnceCell<reqwest::Client>,
    /// For unencrypted servers on this machine: no proxy and no certificates.
    local: OnceCell<reqwest::Client>,
}

/// Names and values of headers.
pub type Headers = Vec<(Cow<'static, str>, SecretString)>;

#[derive(Debug)]
pub struct Post {
    pub url: String,
    /// Without the content type, which is JSON.
    pub headers: Headers,
    pub body: Bytes,
}

#[derive(Debug)]
pub struct Response(reqwest::Response);

/// Error of a request or its response. The text contains no key, and no address beyond the host.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// An invalid address, header, certificate or certificate store. A retry does not help.
    #[error("{0}")]
    Unusable(String),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    Broken(String),
}

impl Http {
    pub fn new(network: UserNetwork) -> Self {
        Self { network, ..Self::default() }
    }

    /// Builds the client, so that the first request does not wait. An error appears with that request.
    pub async fn prepare(&self, url: &str) {
        if let Err(error) = self.client(url).await {
            tracing::debug!(%error, "the HTTP client cannot be built yet");
        }
    }

    /// Dropping the future or the response cancels the request.
    pub async fn post(&self, post: Post) -> Result<Response, HttpError> {
        let client = self.client(&post.url).await?;
        let request = client.post(&post.url).header("content-type", "application/json").body(post.body);
        self.send(&post.url, request, post.headers).await
    }

    /// Dropping the future or the response cancels the request.
    pub async fn get(&self, url: String, headers: Headers) -> Result<Response, HttpError> {
        self.send(&url, self.client(&url).await?.get(&url), headers).await
    }

    /// Sends a request of a library and reads the whole answer, up to [`MAX_ANSWER`]. Redirects are not followed.
    pub async fn exchange(
        &self,
        request: ::http::Request<Vec<u8>>,
    ) -> Result<::http::Response<Vec<u8>>, HttpError> {
        let url = request.uri().to_string();
        let client = self.client(&url).await?;
        let request = reqwest::Request::try_from(request).map_err(explain)?;
        let mut response = client.execute(request).await.map_err(|error| self.explain(error, &url))?;
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        // An event stream may have no end.
        let is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        let mut body = Vec::new();
        while !is_stream && let Some(chunk) = response.chunk().await.map_err(explain)? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(HttpError::Broken("the answer is larger than 1 MiB".into()));
            }
            body.extend_from_slice(&chunk);
        }
        let mut answer = ::http::Response::new(body);
        *answer.status_mut() = response.status();
        *answer.headers_mut() = std::mem::take(response.headers_mut());
        Ok(answer)
    }

    pub async fn client_for(&self, url: &str) -> Result<reqwest::Client, HttpError> {
        self.client(url).await.cloned()
    }

    async fn client(&self, url: &str) -> Result<&reqwest::Client, HttpError> {
        if is_local(url) {
            return self.local.get_or_try_init(|| build(None)).await;
        }
        let is_proxied = self.network.proxy_for(url).is_some();
        let client = if is_proxied { &self.proxied } else { &self.direct };
        client.get_or_try_init(|| build(Some((self.network.clone(), is_proxied)))).await
    }

    async fn send(
        &self,
        url: &str,
        mut request: reqwest::RequestBuilder,
        headers: Headers,
    ) -> Result<Response, HttpError> {
        for (name, value) in headers {
            let mut value = HeaderValue::from_str(value.expose_secret()).map_err(|_| {
                HttpError::Unusable(format!("the value of the header {name} contains invalid characters"))
            })?;
            value.set_sensitive(true);
            let key = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| HttpError::Unusable(format!("the name of the header {name:?} is invalid")))?;
            request = request.header(key, value);
        }
        request.send().await.map(Response).map_err(|error| self.explain(error, url))
    }

    fn explain(&self, error: reqwest::Error, url: &str) -> HttpError {
        let is_permanent = is_about_certificates(&error);
        let circumstances = self.circumstances(&error, url);
        match explain(error) {
            HttpError::Unreachable(text) if is_permanent => HttpError::Unusable(text + &circumstances),
            HttpError::Unreachable(text) => HttpError::Unreachable(text + &circumstances),
            HttpError::Broken(text) => HttpError::Broken(text + &circumstances),
            other => other,
        }
    }

    /// The innermost cause of a library's error, with the proxy or the certificates. Outer causes contain the address.
    pub fn describe(&self, error: &LibraryError, url: &str) -> String {
        format!("{}{}", root(error), self.circumstances(error, url))
    }

    /// Describes the way to an address: the proxy, and the trusted certificates.
    pub fn route(&self, url: &str) -> String {
        let proxy = self.network.proxy_for(url);
        let way = proxy.map_or("without a proxy".to_owned(), |proxy| format!("through the {proxy}"));
        if url.starts_with("http:") {
            return format!("{way}, not encrypted");
        }
        format!("{way}; trusted are {}", self.network.certificates())
    }

    /// Names the proxy on the way to an address. Empty without one.
    pub fn via(&self, url: &str) -> String {
        self.network.proxy_for(url).map(|proxy| format!(" (through the {proxy})")).unwrap_or_default()
    }

    /// Names the proxy, and the certificates if they were the reason.
    fn circumstances(&self, error: &reqwest::Error, url: &str) -> String {
        let mut text = self.via(url);
        if is_about_certificates(error) {
            let certificates = self.network.certificates();
            text.push_str(&format!(
                ". Trusted are {certificates}. If a company's proxy opens TLS, set SSL_CERT_FILE to a file with all \
                 certificates, or network: ca_file in config.yaml to its own"
            ));
        }
        text
    }
}

/// Marks the values as sensitive. An error does not contain the value.
pub fn headers(
    pairs: &[(String, SecretString)],
) -> Result<std::collections::HashMap<HeaderName, HeaderValue>, HttpError> {
    let headers = pairs.iter().map(|(name, value)| {
        let unusable =
            |what: &str| HttpError::Unusable(format!("the {what} of the header {name:?} is invalid"));
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unusable("name"))?;
        let mut value = HeaderValue::from_str(value.expose_secret()).map_err(|_| unusable("value"))?;
        value.set_sensitive(true);
        Ok((key, value))
    });
    headers.collect()
}

/// True for an unencrypted address on this machine.
pub fn is_local(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else { return false };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match host.split_once(']') {
        Some((number, _)) => number,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    address.is_ok_and(|address| address.is_loopback()) || host.eq_ignore_ascii_case("localhost")
}

impl Response {
    pub fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    pub fn status_text(&self) -> String {
        self.0.status().to_string()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.0.headers().get(name)?.to_str().ok()
    }

    pub async fn chunk(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, HttpError> {
        self.0.chunk().await.map_err(explain)
    }

    /// The whole body. `None` if it is longer than `most` bytes, if it breaks off, or without success.
    pub async fn whole_text(mut self, most: usize) -> Option<String> {
        if self.status() != 200 {
            return None;
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = self.0.chunk().await.ok()? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > most {
                return None;
            }
        }
        String::from_utf8(bytes).ok()
    }

    pub async fn text(mut self) -> String {
        let mut bytes = Vec::new();
        let read = async {
            while let Ok(Some(chunk)) = self.0.chunk().await {
                bytes.extend_from_slice(&chunk);
                if bytes.len() >= MAX_TEXT {
                    break;
                }
            }
        };
        // A partial body is enough for an error message.
        let _ = tokio::time::timeout(BODY_TIMEOUT, read).await;
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Builds a client for encrypted or remote servers, with or without a proxy; without `network`, one for
/// unencrypted servers on this machine.
async fn build(network: Option<(UserNetwork, bool)>) -> Result<reqwest::Client, HttpError> {
    off_thread(move || {
        let builder = builder().no_proxy();
        let Some((network, is_proxied)) = network else { return finish(builder.tls_certs_only([])) };
        let missing = network.missing_store(|path| Path::new(path).exists());
        if let Some(missing) = missing {
            return Err(HttpError::Unusable(format!(
                "{missing} does not exist: correct or unset the variable"
            )));
        }
        let mut builder = trusting(builder, network.ca_file.as_deref())?;
        for (proxy, variable) in network.proxies().filter(|_| is_proxied) {
            builder = builder.proxy(proxy.map_err(|_| {
                HttpError::Unusable(format!("{variable} is not the address of an HTTP proxy"))
            })?);
        }
        finish(builder)
    })
    .await
}

/// Trusts the certificates of a file beside the others.
fn trusting(
    builder: reqwest::ClientBuilder,
    ca_file: Option<&Path>,
) -> Result<reqwest::ClientBuilder, HttpError> {
    let Some(file) = ca_file else { return Ok(builder) };
    let unusable = |why: String| HttpError::Unusable(format!("ca_file {}: {why}", file.display()));
    let pem = std::fs::read(file).map_err(|error| unusable(error.to_string()))?;
    let certificates =
        reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| unusable(chain(&error)))?;
    if certificates.is_empty() {
        return Err(unusable("it contains no certificate in PEM".into()));
    }
    Ok(builder.tls_certs_merge(certificates))
}

fn is_about_certificates(error: &reqwest::Error) -> bool {
    let mut next = Some(error as &(dyn Error + 'static));
    while let Some(error) = next {
        if matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_))) {
            return true;
        }
        // An I/O error leaves itself out of the chain.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    false
}

fn builder() -> reqwest::ClientBuilder {
    // Fails if another provider is installed, which would do as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("modegate/", env!("CARGO_PKG_VERSION")))
        .tcp_nodelay(true)
}

fn finish(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, HttpError> {
    builder
        .build()
        .map_err(|error| HttpError::Unusable(format!("the HTTP client cannot be built: {}", chain(&error))))
}

async fn off_thread(
    build: impl FnOnce() -> Result<reqwest::Client, HttpError> + Send + 'static,
) -> Result<reqwest::Client, HttpError> {
    tokio::task::spawn_blocking(build)
        .await
        .unwrap_or_else(|_| Err(HttpError::Unusable("no HTTP client".into())))
}

fn explain(error: reqwest::Error) -> HttpError {
    let error = error.without_url();
    if error.is_builder() {
        return HttpError::Unusable(format!(
            "the address is not a valid http:// or https:// address: {}",
            chain(&error)
        ));
    }
    match (error.is_connect(), error.is_timeout()) {
        (true, true) => {
            HttpError::Unreachable(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()))
        }
        (true, false) => HttpError::Unreachable(format!("no connection: {}", root(&error))),
        (false, true) => HttpError::Broken(format!("no answer within {} s", READ_TIMEOUT.as_secs())),
        (false, false) => HttpError::Broken(format!("the connection broke: {}", root(&error))),
    }
}

fn chain(error: &reqwest::Error) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The error itself comes first.
fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(Some(error as &(dyn Error + 'static)), |&error| error.source())
}

/// Error of the HTTP library, for a library that makes its own requests.
pub type LibraryError = reqwest::Error;

fn root(error: &reqwest::Error) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn only_plain_http_loopback_urls_are_local() {
        for url in [
            "http://127.0.0.1:8080/v1",
            "http://localhost/v1",
            "http://[::1]:1/x",
            "http://[::1]/",
            "http://127.1.2.3",
        ] {
            assert!(is_local(url), "{url}");
        }
        for url in [
            "https://localhost/v1",
            "http://localhost.example/v1",
            "http://10.0.0.1",
            "http://user@example/127.0.0.1",
            "x",
        ] {
            assert!(!is_local(url), "{url}");
        }
    }
}
