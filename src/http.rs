//! The HTTP clients: here the one for models, in [`fetch_client`] those for addresses that models name. Knows bytes, headers
//! and time limits, not what they mean.
//!
//! It is built with the first session of a provider's model, off the main thread, because reading the system's certificates takes a while.
//! Redirects are not followed: a key goes to the address that was configured and nowhere else. Proxies are taken from
//! the usual variables (`HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`), except for servers on this machine.

use std::error::Error as _;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::OnceCell;

pub mod fetch_client;
mod public;

/// How long reaching a server may take.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a server may be silent. Models think for minutes.
const SILENCE: Duration = Duration::from_secs(300);

/// How long a body that is read as a whole may take.
const TEXT: Duration = Duration::from_secs(5);

/// Bytes of a body that is read as a whole.
const MAX_TEXT: usize = 64 * 1024;

/// The client. It keeps connections open between requests.
#[derive(Debug, Default)]
pub struct Http {
    client: OnceCell<reqwest::Client>,
    /// For servers on this machine without encryption: no proxy, and no certificates to be read.
    local: OnceCell<reqwest::Client>,
}

/// A request to be made.
#[derive(Debug)]
pub struct Post {
    /// Where to.
    pub url: String,
    /// Without the content type, which is JSON.
    pub headers: Vec<(&'static str, SecretString)>,
    /// JSON; cheap to clone.
    pub body: Bytes,
}

/// A response whose head has come.
#[derive(Debug)]
pub struct Response(reqwest::Response);

/// Why there is no response, or no more of it. The text names no key and no address beyond the host.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address, a header or the certificates are no good: asking again does not help.
    #[error("{0}")]
    Unusable(String),
    /// The address is one that may not be reached.
    #[error("{0}")]
    Refused(String),
    /// The server could not be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The server broke off, or is silent.
    #[error("{0}")]
    Broken(String),
}

impl Http {
    /// Builds the client, so that the first request does not wait for it. That it cannot be built, the first request says.
    pub async fn prepare(&self, url: &str) {
        if let Err(error) = self.client(url).await {
            tracing::debug!(%error, "no HTTP client yet");
        }
    }

    /// Makes a request. Dropping the future, or the response, ends it.
    pub async fn post(&self, post: Post) -> Result<Response, HttpError> {
        let client = self.client(&post.url).await?;
        let mut request = client.post(&post.url).header("content-type", "application/json").body(post.body);
        for (name, value) in post.headers {
            let mut value = HeaderValue::from_str(value.expose_secret()).map_err(|_| {
                HttpError::Unusable(format!("the value for {name} has characters that no header may have"))
            })?;
            value.set_sensitive(true);
            request = request.header(HeaderName::from_static(name), value);
        }
        request.send().await.map(Response).map_err(explain)
    }
}

impl Http {
    /// The client itself, for a library that makes its own requests.
    ///
    /// # Errors
    /// It cannot be built.
    pub async fn client_for(&self, url: &str) -> Result<reqwest::Client, HttpError> {
        self.client(url).await.cloned()
    }

    async fn client(&self, url: &str) -> Result<&reqwest::Client, HttpError> {
        if is_local(url) {
            return self.local.get_or_try_init(|| build(true)).await;
        }
        self.client.get_or_try_init(|| build(false)).await
    }
}

/// Headers, whose values are not shown.
///
/// # Errors
/// A name or a value has characters that no header may have; the value is not named.
pub fn headers(
    pairs: &[(String, SecretString)],
) -> Result<std::collections::HashMap<HeaderName, HeaderValue>, HttpError> {
    let header = |(name, value): &(String, SecretString)| {
        let unusable = |what: &str| {
            HttpError::Unusable(format!("the {what} of the header {name:?} is none that can be sent"))
        };
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unusable("name"))?;
        let mut value = HeaderValue::from_str(value.expose_secret()).map_err(|_| unusable("value"))?;
        value.set_sensitive(true);
        Ok((key, value))
    };
    pairs.iter().map(header).collect()
}

/// Whether an address is this machine's, without encryption.
fn is_local(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else { return false };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match host.split_once(']') {
        Some((number, _)) => number,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let is_number =
        host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    is_number || host.eq_ignore_ascii_case("localhost")
}

impl Response {
    /// The status code.
    pub fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    /// The status code with the words that go with it: `404 Not Found`.
    pub fn status_text(&self) -> String {
        self.0.status().to_string()
    }

    /// A header's value, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.0.headers().get(name)?.to_str().ok()
    }

    /// More of the body; none at its end.
    pub async fn chunk(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, HttpError> {
        self.0.chunk().await.map_err(explain)
    }

    /// The start of the body as text.
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
        // What has come by then is enough to say what is wrong.
        let _ = tokio::time::timeout(TEXT, read).await;
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

async fn build(is_local: bool) -> Result<reqwest::Client, HttpError> {
    let build = move || {
        let builder = builder();
        finish(if is_local { builder.no_proxy().tls_certs_only([]) } else { builder })
    };
    off_thread(build).await
}

/// What all clients have in common: no redirects, no cookies, and patience that ends.
fn builder() -> reqwest::ClientBuilder {
    // Somebody else's choice would do as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .connect_timeout(CONNECT)
        .read_timeout(SILENCE)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("modegate/", env!("CARGO_PKG_VERSION")))
        .tcp_nodelay(true)
}

fn finish(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, HttpError> {
    builder.build().map_err(|error| HttpError::Unusable(format!("no HTTP client: {}", chain(&error))))
}

/// Makes a client where it does not hold anybody up.
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
            "the address is not one of http:// or https:// that can be used: {}",
            chain(&error)
        ));
    }
    match (error.is_connect(), error.is_timeout()) {
        (true, true) => {
            HttpError::Unreachable(format!("it cannot be reached within {} s", CONNECT.as_secs()))
        }
        (true, false) => HttpError::Unreachable(format!("it cannot be reached: {}", root(&error))),
        (false, true) => HttpError::Broken(format!("no answer within {} s", SILENCE.as_secs())),
        (false, false) => HttpError::Broken(format!("the connection broke: {}", root(&error))),
    }
}

fn chain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

/// What the library of this room says went wrong, for a library that makes its own requests.
pub type LibraryError = reqwest::Error;

/// The innermost cause, which is the one that says something. Those around it have the address.
pub fn root(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn only_this_machine_is_local() {
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
