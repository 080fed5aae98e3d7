//! Files with the tokens of logins, one for each server, readable by the user alone. A lock beside a file keeps two
//! processes from renewing a token at once.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use rmcp::transport::auth::{AuthError, CredentialRefreshGuard, CredentialStore, StoredCredentials};
use serde::{Deserialize, Serialize};

use crate::bounded_file;
use crate::ids::hash;
use crate::platform::files::{create_private_file, create_private_folders, others_rights};

const MAX_FILE: u64 = 256 * 1024;

/// The login at one server. Its tokens are not displayed.
#[derive(Clone, Serialize, Deserialize)]
pub struct StoredLogin {
    url: String,
    client_secret: Option<String>,
    redirect_uri: String,
    credentials: StoredCredentials,
}

impl std::fmt::Debug for StoredLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredLogin").field("url", &self.url).finish_non_exhaustive()
    }
}

impl StoredLogin {
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn scopes(&self) -> &[String] {
        &self.credentials.granted_scopes
    }

    pub fn issuer(&self) -> Option<&str> {
        self.credentials.issuer.as_deref()
    }

    /// False if the authorization server refused to renew the token.
    pub fn is_usable(&self) -> bool {
        self.credentials.token_response.is_some()
    }

    pub(super) fn client_id(&self) -> &str {
        &self.credentials.client_id
    }

    pub(super) fn client_secret(&self) -> Option<&str> {
        self.client_secret.as_deref()
    }

    pub(super) fn redirect_uri(&self) -> &str {
        &self.redirect_uri
    }
}

pub(super) fn list(folder: &Path) -> Result<Vec<StoredLogin>, String> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("{} cannot be read: {error}", folder.display())),
    };
    let mut logins = Vec::new();
    for entry in entries.flatten() {
        if entry.path().extension().is_some_and(|ending| ending == "json") {
            logins.extend(read(&entry.path())?);
        }
    }
    logins.sort_by(|one, other| one.url.cmp(&other.url));
    Ok(logins)
}

fn read(path: &Path) -> Result<Option<StoredLogin>, String> {
    let text = match bounded_file::read_own_text(path, MAX_FILE) {
        Ok(text) => text,
        Err(error) if error.is_missing() => return Ok(None),
        Err(error) => return Err(format!("its login in {} {error}", path.display())),
    };
    if let Ok(Some(mode)) = others_rights(path) {
        return Err(format!(
            "its login in {} is readable by others (mode {mode:o}): run chmod 600 on it",
            path.display()
        ));
    }
    // Security: the parser's message could contain a token.
    serde_json::from_str(&text).map(Some).map_err(|_| format!("its login in {} is damaged", path.display()))
}

#[derive(Debug, Clone)]
pub(super) struct LoginFile {
    folder: PathBuf,
    path: PathBuf,
    url: String,
    /// Of a new login; a renewed one keeps those of the file.
    client: Option<(Option<String>, String)>,
}

impl LoginFile {
    pub(super) fn new(folder: &Path, url: &str) -> Self {
        // The address may contain a key, so it does not become the name.
        let path = folder.join(format!("{}.json", &hash(url)[..16]));
        Self { folder: folder.to_owned(), path, url: url.to_owned(), client: None }
    }

    pub(super) fn with_client(self, secret: Option<String>, redirect_uri: String) -> Self {
        Self { client: Some((secret, redirect_uri)), ..self }
    }

    pub(super) fn read(&self) -> Result<Option<StoredLogin>, String> {
        // A login for one address is not used for another.
        Ok(read(&self.path)?.filter(|login| login.url == self.url))
    }

    /// Returns true if there was a login.
    pub(super) fn remove(&self) -> Result<bool, String> {
        match std::fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(format!("{} cannot be removed: {error}", self.path.display())),
        }
    }

    fn write(&self, credentials: StoredCredentials) -> Result<(), String> {
        let client = self.client.clone().or_else(|| {
            let login = self.read().ok().flatten()?;
            Some((login.client_secret, login.redirect_uri))
        });
        let (client_secret, redirect_uri) = client.unwrap_or_default();
        let login = StoredLogin { url: self.url.clone(), client_secret, redirect_uri, credentials };
        let text = serde_json::to_string(&login).map_err(|error| error.to_string())?;
        self.replace(&text).map_err(|error| format!("{} cannot be written: {error}", self.path.display()))
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        create_private_folders(&self.folder)?;
        let draft = self.path.with_extension(format!("{}.draft", std::process::id()));
        let written = create_private_file(&draft)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
        let moved = written.and_then(|()| std::fs::rename(&draft, &self.path));
        if moved.is_err() {
            // Security: the draft contains tokens.
            let _ = std::fs::remove_file(&draft);
        }
        moved
    }

    /// Waits for other processes that renew the same token.
    fn lock(&self) -> io::Result<File> {
        create_private_folders(&self.folder)?;
        let path = self.path.with_extension("lock");
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        file.lock()?;
        Ok(file)
    }

    async fn off_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, String> + Send + 'static,
    ) -> Result<T, AuthError> {
        let file = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&file)).await;
        done.unwrap_or_else(|error| Err(error.to_string())).map_err(AuthError::CredentialStoreError)
    }
}

#[async_trait]
impl CredentialStore for LoginFile {
    async fn load(&self) -> Result<Option<StoredCredentials>, AuthError> {
        self.off_thread(|file| Ok(file.read()?.map(|login| login.credentials))).await
    }

    async fn save(&self, credentials: StoredCredentials) -> Result<(), AuthError> {
        self.off_thread(|file| file.write(credentials)).await
    }

    async fn clear(&self) -> Result<(), AuthError> {
        self.off_thread(|file| file.remove().map(|_| ())).await
    }

    async fn acquire_refresh_guard(&self) -> Result<Option<CredentialRefreshGuard>, AuthError> {
        Ok(Some(CredentialRefreshGuard::new(
            self.off_thread(|file| {
                file.lock().map_err(|error| format!("its login cannot be locked: {error}"))
            })
            .await?,
        )))
    }

    /// A refused token is forgotten, unless another login has replaced it.
    async fn on_refresh_token_rejected(&self, rejected: &StoredCredentials) -> Result<(), AuthError> {
        use rmcp::transport::auth::OAuthTokenResponse as Token;
        let refresh =
            |token: &Token| serde_json::to_value(token).map(|token| token["refresh_token"].clone()).ok();
        let rejected_token = rejected.token_response.as_ref().and_then(refresh);
        self.off_thread(move |file| {
            let Some(login) = file.read()? else { return Ok(()) };
            let now = login.credentials.token_response.as_ref().and_then(refresh);
            if now != rejected_token {
                return Ok(());
            }
            let mut credentials = login.credentials;
            credentials.token_response = None;
            file.write(credentials)
        })
        .await
    }
}
