//! Logins at MCP servers over HTTP: OAuth 2.1 as MCP of 2025-11-25 has it. The library finds the authorization server,
//! makes the PKCE challenge, names the server as the `resource`, and checks the issuer; this module keeps the tokens
//! and decides which addresses are asked.
//!
//! Tokens are in the user's private files only: never in the log, in an error, or in the session store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rmcp::transport::auth::{
    AuthError, AuthorizationCallback, AuthorizationManager, OAuthClientConfig, OAuthHttpClient,
    OAuthHttpClientError, OAuthHttpClientFuture, OAuthHttpRequest,
};
use tokio::sync::mpsc;
use url::Url;

use self::callback::{Callback, parameter};
use self::login_file::LoginFile;
pub use self::login_file::StoredLogin;
use super::fault::explain_login;
use crate::http::{self, Http, HttpError};
use crate::text::plain;

mod callback;
mod login_file;

/// Deadline of one request to an authorization server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for the user to log in.
const LOGIN_TIMEOUT: Duration = Duration::from_mins(10);

const CLIENT_NAME: &str = "Modegate";

/// The stored logins of a user, by the address of the server.
#[derive(Debug, Clone, Default)]
pub struct Logins {
    /// `None` if there is nowhere to store them.
    folder: Option<PathBuf>,
}

/// Choices of the user for a login.
#[derive(Debug, Default)]
pub struct LoginOptions {
    /// Rights to ask for. If it is empty, those that the server names.
    pub scopes: Vec<String>,
    /// Id of a registered client, or the https address of a client id metadata document.
    pub client_id: Option<String>,
    /// Port for the answer of the browser; 0 for any.
    pub port: u16,
}

impl Logins {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder: Some(folder) }
    }

    /// All that can be read. The error says what cannot be.
    pub fn list(&self) -> Result<Vec<StoredLogin>, String> {
        self.folder.as_deref().map_or(Ok(Vec::new()), login_file::list)
    }

    pub fn find(&self, url: &str) -> Result<Option<StoredLogin>, String> {
        self.file(url).map_or(Ok(None), |file| file.read())
    }

    /// Returns true if there was a login.
    pub fn remove(&self, url: &str) -> Result<bool, String> {
        self.file(url).map_or(Ok(false), |file| file.remove())
    }

    fn file(&self, url: &str) -> Option<LoginFile> {
        Some(LoginFile::new(self.folder.as_deref()?, url))
    }

    /// Returns the client that sends the stored token and renews it. `None` without a login. The error is a sentence
    /// without a full stop.
    pub(super) async fn open(
        &self,
        url: &str,
        http: &Arc<Http>,
    ) -> Result<Option<AuthorizationManager>, String> {
        let Some(file) = self.file(url) else { return Ok(None) };
        let Some(stored) = file.read()? else { return Ok(None) };
        let mut manager = manager(url, http).await.map_err(|error| cannot_use(&error))?;
        manager.set_credential_store(file);
        if !manager.initialize_from_store().await.map_err(|error| cannot_use(&error))? {
            return Ok(None);
        }
        let mut config = OAuthClientConfig::new(stored.client_id(), stored.redirect_uri());
        if let Some(secret) = stored.client_secret() {
            config = config.with_client_secret(secret);
        }
        manager.configure_client(config).map_err(|error| cannot_use(&error))?;
        Ok(Some(manager))
    }

    /// Logs in at a server. `show` gets the address that the user opens in a browser. `pasted` gets addresses that the
    /// user copies from the browser, if that runs on another computer. The error is a sentence without a full stop.
    pub async fn log_in(
        &self,
        url: &str,
        options: &LoginOptions,
        http: &Arc<Http>,
        show: impl FnOnce(&str),
        pasted: mpsc::Receiver<String>,
    ) -> Result<(), String> {
        let file = self.file(url).ok_or("there is no home directory to store the login in")?;
        let address = Url::parse(url).map_err(|_| format!("{} is not an address", plain(url, 100)))?;
        if !is_private(&address, &address) {
            return Err("a login needs an https:// address, so that nobody else reads the tokens".into());
        }
        let mut manager = manager(url, http).await.map_err(|error| explain_login(&error))?;
        let discovered = manager.resolve_metadata().await.map_err(|error| explain_login(&error))?;
        if !discovered.source.is_discovered() {
            return Err("the server names no authorization server, so it has no login".into());
        }
        if discovered.metadata.code_challenge_methods_supported.is_none() {
            return Err("the authorization server does not support PKCE, which MCP requires".into());
        }
        let metadata = discovered.metadata.clone();
        let endpoints = [&metadata.authorization_endpoint, &metadata.token_endpoint];
        for endpoint in endpoints.into_iter().chain(&metadata.registration_endpoint) {
            if !Url::parse(endpoint).is_ok_and(|endpoint| is_private(&endpoint, &address)) {
                return Err(format!("{} is asked only over https://", plain(endpoint, 200)));
            }
        }
        manager.set_metadata(discovered.metadata);
        let scopes = match options.scopes.as_slice() {
            [] => manager.select_initial_scopes(&[]).await,
            given => given.to_vec(),
        };
        let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
        let callback = Callback::listen(options.port).await?;
        let redirect = callback.redirect_uri().to_owned();
        let reads_documents =
            metadata.additional_fields.get("client_id_metadata_document_supported") == Some(&true.into());
        let given = options.client_id.as_deref().filter(|id| reads_documents || !id.starts_with("https://"));
        let config = match given {
            Some(id) => OAuthClientConfig::new(id, redirect.as_str())
                .with_scopes(scopes.iter().map(|scope| (*scope).to_owned()).collect()),
            None if metadata.registration_endpoint.is_none() => {
                return Err(
                    "the authorization server registers no clients: register one there, and give its id \
                            with --client-id"
                        .into(),
                );
            }
            None => manager
                .register_client(CLIENT_NAME, &redirect, &scopes)
                .await
                .map_err(|error| explain_login(&error))?,
        };
        let file = file.with_client(config.client_secret.clone(), redirect);
        manager.configure_client(config).map_err(|error| explain_login(&error))?;
        manager.set_credential_store(file);
        let page = manager.get_authorization_url(&scopes).await.map_err(|error| explain_login(&error))?;
        let state = Url::parse(&page).ok().and_then(|page| parameter(&page, "state"));
        let state = state.ok_or("the login has no state")?;
        show(&page);
        let answer = tokio::time::timeout(LOGIN_TIMEOUT, callback.answer(&state, pasted)).await;
        let answer = answer.map_err(|_| "nobody logged in within 10 minutes")??;
        if let Some(error) = parameter(&answer, "error") {
            let about = parameter(&answer, "error_description").map(|about| format!(": {about}"));
            let text = format!("{error}{}", about.unwrap_or_default());
            return Err(format!("the authorization server refused: {}", plain(&text, 200)));
        }
        let answer = AuthorizationCallback::from_redirect_url(answer.as_str())
            .map_err(|error| explain_login(&error))?;
        let (code, state, issuer) = (&answer.code, &answer.csrf_token, answer.issuer.as_deref());
        let exchanged = manager.exchange_code_for_token_with_issuer(code, state, issuer).await;
        exchanged.map(|_| ()).map_err(|error| explain_login(&error))
    }
}

async fn manager(url: &str, http: &Arc<Http>) -> Result<AuthorizationManager, AuthError> {
    let server = Url::parse(url)?;
    let client = OAuthRequests { http: Arc::clone(http), server };
    AuthorizationManager::new_with_oauth_http_client(url, Arc::new(client)).await
}

fn cannot_use(error: &AuthError) -> String {
    format!("its login cannot be used: {}", explain_login(error))
}

/// True if nobody else reads a request to `url`: it is encrypted, or does not leave the machine on which the server is.
fn is_private(url: &Url, server: &Url) -> bool {
    url.scheme() == "https" || (http::is_local(url.as_str()) && http::is_local(server.as_str()))
}

/// Sends the requests of the library with Modegate's client, its proxies and its certificates.
struct OAuthRequests {
    http: Arc<Http>,
    server: Url,
}

impl OAuthRequests {
    async fn send(
        &self,
        request: OAuthHttpRequest,
    ) -> Result<::http::Response<Vec<u8>>, OAuthHttpClientError> {
        let url = Url::parse(&request.request.uri().to_string())?;
        if !is_private(&url, &self.server) {
            let host = url.host_str().unwrap_or_default();
            return Err(HttpError::Refused(format!("{host} is asked only over https://")).into());
        }
        match tokio::time::timeout(REQUEST_TIMEOUT, self.http.exchange(request.request)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(HttpError::Broken("no answer within 30 s".into()).into()),
        }
    }
}

impl OAuthHttpClient for OAuthRequests {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(self.send(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_sent_only_where_nobody_else_reads_them() {
        for (url, server, expected) in [
            ("https://auth.example/token", "https://mcp.example/mcp", true),
            ("http://auth.example/token", "https://mcp.example/mcp", false),
            ("http://127.0.0.1:8000/token", "https://mcp.example/mcp", false),
            ("http://127.0.0.1:8000/token", "http://localhost:7000/mcp", true),
            ("https://auth.example/token", "http://localhost:7000/mcp", true),
            ("http://10.0.0.1/mcp", "http://10.0.0.1/mcp", false),
            ("file:///etc/passwd", "http://localhost:7000/mcp", false),
        ] {
            let (url, server) = (Url::parse(url).unwrap(), Url::parse(server).unwrap());
            assert_eq!(is_private(&url, &server), expected, "{url} {server}");
        }
    }
}
