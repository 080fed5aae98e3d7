//! The key that signs audit logs: a file of the user, created when it is first needed.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, bail};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::environment::Environment;
use super::user_file::{self, check_private, create_private};
use crate::bounded_file;
use crate::signing::SigningKey;

/// In the folder of the settings.
const KEY: &str = "evidence-key.pem";

const MAX_FILE: u64 = 16 * 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EvidenceSettings {
    /// Audit logs are signed; the key is created if there is none. With `false`, they never are. Default: they are
    /// signed as soon as there is a key.
    #[serde(default)]
    pub sign: Option<bool>,
    /// File with an Ed25519 key in PEM, readable by you alone (0600). Default: `evidence-key.pem` beside this file.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
}

/// Returns the place of the key, or `None` without a home folder.
pub fn place(settings: &EvidenceSettings, environment: &Environment) -> Option<PathBuf> {
    let own = environment.config_folder.as_ref().map(|folder| folder.join(KEY));
    settings.key_file.clone().or(own)
}

/// Returns the key that signs from now on, or `None` if nothing is to be signed. Fails if the key cannot be used.
pub fn for_signing(
    settings: &EvidenceSettings,
    environment: &Environment,
) -> anyhow::Result<Option<SigningKey>> {
    if settings.sign != Some(true) {
        return existing(settings, environment);
    }
    let path = place(settings, environment);
    let path = path.context("evidence: sign: there is no home directory for the key; set key_file")?;
    read_or_create(&path).map(Some)
}

/// Returns the key that signs, without creating one.
pub fn existing(
    settings: &EvidenceSettings,
    environment: &Environment,
) -> anyhow::Result<Option<SigningKey>> {
    match place(settings, environment).filter(|_| settings.sign != Some(false)) {
        Some(path) => read(&path),
        None => Ok(None),
    }
}

/// Returns the user's key, and creates it if there is none.
pub fn own(environment: &Environment) -> anyhow::Result<SigningKey> {
    let settings = user_file::read(environment.config_folder.as_deref())?.evidence.unwrap_or_default();
    let path = place(&settings, environment).context("there is no home directory for the key")?;
    read_or_create(&path)
}

/// Creates the key if there is none. If another process does so at the same time, both use the same key.
fn read_or_create(path: &Path) -> anyhow::Result<SigningKey> {
    if let Some(key) = read(path)? {
        return Ok(key);
    }
    let pem = SigningKey::generate().with_context(|| path.display().to_string())?;
    create(path, &pem).with_context(|| format!("writing {}", path.display()))?;
    read(path)?.with_context(|| format!("{} is gone", path.display()))
}

/// Leaves an existing file as it is.
fn create(path: &Path, pem: &SecretString) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidFilename)?;
    let draft = path.with_extension(format!("{}.new", std::process::id()));
    create_private(folder, &draft, pem.expose_secret())?;
    // Unlike a rename, a link never replaces a file.
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

/// Returns `None` if there is no such file.
fn read(path: &Path) -> anyhow::Result<Option<SigningKey>> {
    let text = match bounded_file::read_own_text(path, MAX_FILE) {
        Ok(text) => SecretString::from(text),
        Err(error) if error.is_missing() => return Ok(None),
        Err(error) => bail!("{} {error}", path.display()),
    };
    check_private(path)?;
    let key = SigningKey::from_pem(text.expose_secret());
    key.map(Some).with_context(|| format!("{} cannot be used", path.display()))
}
