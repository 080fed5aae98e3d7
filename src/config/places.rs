//! Folders and files that the command line and the settings name: the working folder, the store, scratch folders.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, bail};
use secrecy::ExposeSecret;

use super::Flags;
use super::environment::Environment;
use crate::platform::files::real_path;
use crate::store::StoreLocation;
use crate::tool::mcp::Logins;

/// Returns this program, and a scratch folder for replays, one per process to avoid collisions.
pub fn replay_places() -> anyhow::Result<(PathBuf, PathBuf)> {
    let binary = std::env::current_exe().context("finding this binary")?;
    let temporary = real_path(std::env::temp_dir()).context("finding the folder for temporary files")?;
    Ok((binary, temporary.join(format!("modegate-replay-{}", std::process::id()))))
}

/// The provider keys that [`Environment::take`] removed, as variables for a child process.
pub fn provider_variables(environment: &Environment) -> Vec<(String, OsString)> {
    environment.keys().map(|(name, key)| (name, key.expose_secret().into())).collect()
}

pub fn working_folder(flags: &Flags) -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("the current directory")?;
    Ok(flags.cwd.as_ref().map_or(here.clone(), |cwd| here.join(cwd)))
}

/// The logins at MCP servers, beside the keys of model providers.
pub fn logins(environment: &Environment) -> Logins {
    let folder = environment.config_folder.as_ref().map(|folder| folder.join("mcp-logins"));
    folder.map(Logins::new).unwrap_or_default()
}

/// Returns the working folder without links and `..`.
pub fn real_working_folder(flags: &Flags) -> anyhow::Result<PathBuf> {
    let cwd = working_folder(flags)?;
    real_path(&cwd).with_context(|| format!("the working folder {}", cwd.display()))
}

/// Returns the store's file, and whether it exists.
pub fn find_store(flags: &Flags, environment: &Environment) -> anyhow::Result<(PathBuf, bool)> {
    match location(flags.store.as_deref(), environment)? {
        StoreLocation::File(path) => {
            let exists = path.try_exists();
            let exists = exists.with_context(|| format!("the store {} cannot be read", path.display()))?;
            Ok((path, exists))
        }
        StoreLocation::Memory if flags.store.is_none() => {
            bail!("there is no session store, because there is no home directory: name a file with --store")
        }
        StoreLocation::Memory | StoreLocation::Reading(_) => {
            bail!("there is no session store on disk: sessions are in memory only")
        }
    }
}

pub fn scratch_folder(environment: &Environment) -> anyhow::Result<PathBuf> {
    let folder = environment.user.temporary.join(format!("modegate-doctor-{}", std::process::id()));
    std::fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
    Ok(real_path(folder)?)
}

pub(super) fn location(store: Option<&str>, environment: &Environment) -> anyhow::Result<StoreLocation> {
    match store {
        Some("memory") => Ok(StoreLocation::Memory),
        Some("") => bail!("--store: give a path, or memory"),
        Some(path) => Ok(StoreLocation::File(path.into())),
        None => Ok(environment
            .data_folder
            .as_ref()
            .map_or(StoreLocation::Memory, |folder| StoreLocation::File(folder.join("modegate.db")))),
    }
}
