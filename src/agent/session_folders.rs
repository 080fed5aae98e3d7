//! Opens the folders of a session, and reads the configuration that is in them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::{Agent, LoadedPolicy, managed_session, reading};
use crate::error::AgentError;
use crate::tool::Toolset;
use crate::workspace::{Unusable, Workspace};

/// What could not be read, in messages.
const SESSION_FOLDER: &str = "the session's folder";

/// A session's folders, with the configuration that was read in them.
pub(super) struct LoadedFolders {
    pub workspace: Workspace,
    pub policy: LoadedPolicy,
    pub tools: Toolset,
    /// Why there are no read-only commands.
    pub missing: Option<&'static str>,
}

impl Agent {
    pub(super) async fn workspace(
        &self,
        cwd: &Path,
        directories: &[PathBuf],
    ) -> Result<Workspace, AgentError> {
        let open = self.opening(cwd, directories)?;
        reading(SESSION_FOLDER, open).await?.map_err(|unusable| unusable_folder(cwd, &unusable))
    }

    /// Returns the work that opens a session's folders.
    fn opening(
        &self,
        cwd: &Path,
        directories: &[PathBuf],
    ) -> Result<impl FnOnce() -> Result<Workspace, Unusable> + Send + use<>, AgentError> {
        let additional_folders = directories.iter().map(|folder| ("additionalDirectories", folder.as_path()));
        for (key, folder) in std::iter::once(("cwd", cwd)).chain(additional_folders) {
            if !folder.is_absolute() {
                return Err(invalid_folder(key, format!("{key} is not absolute: {}", folder.display())));
            }
        }
        let (folder, others) = (cwd.to_owned(), directories.to_vec());
        let (locks, own_files) = (self.context.file_locks.clone(), self.context.own_files.clone());
        Ok(move || {
            let workspace = Workspace::new(&folder, &others)?;
            Ok(workspace.with_locks(locks).with_own_files(own_files))
        })
    }

    /// Reads the configuration of open folders.
    pub(super) async fn load_folders(&self, workspace: Workspace) -> Result<LoadedFolders, AgentError> {
        let load = self.loading();
        reading(SESSION_FOLDER, move || load(workspace)).await
    }

    /// Does both on one thread, without a hand-over between them.
    pub(super) async fn open_and_load_folders(
        &self,
        cwd: &Path,
        directories: &[PathBuf],
    ) -> Result<LoadedFolders, AgentError> {
        let (open, load) = (self.opening(cwd, directories)?, self.loading());
        let folders = reading(SESSION_FOLDER, move || open().map(load)).await?;
        folders.map_err(|unusable| unusable_folder(cwd, &unusable))
    }

    /// Returns the work that reads the configuration of a session's folders.
    fn loading(&self) -> impl FnOnce(Workspace) -> LoadedFolders + Send + use<> {
        let (policy, tools) = (Arc::clone(&self.host.policy), self.context.tools.clone());
        move |workspace| {
            let policy = policy(workspace.roots());
            let tools = managed_session::limited_tools(&policy.managed, tools);
            let (tools, missing) = tools.for_session(&workspace, &policy.rules);
            LoadedFolders { workspace, policy, tools, missing }
        }
    }
}

fn unusable_folder(cwd: &Path, unusable: &Unusable) -> AgentError {
    let key = if unusable.folder == cwd { "cwd" } else { "additionalDirectories" };
    invalid_folder(key, format!("{key} cannot be used: {unusable}"))
}

fn invalid_folder(key: &str, message: String) -> AgentError {
    let valid = if key == "cwd" {
        json!({ "cwd": "an absolute path of a directory that exists" })
    } else {
        json!({ key: "absolute paths of directories that exist" })
    };
    AgentError::invalid_params(message, valid)
}
