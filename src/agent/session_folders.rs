//! Opens the folders of a session, and reads the configuration that is in them.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{LoadedPolicy, PolicyOf, managed_session, reading};
use crate::error::AgentError;
use crate::file_lock::FileLocks;
use crate::own_files::OwnFiles;
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

/// Reads on another thread, for one request.
pub(super) struct FolderReader {
    pub policy: PolicyOf,
    pub tools: Toolset,
    pub locks: FileLocks,
    pub own_files: OwnFiles,
}

impl FolderReader {
    pub(super) async fn open(self, cwd: &Path, directories: &[PathBuf]) -> Result<Workspace, AgentError> {
        check_absolute(cwd, directories)?;
        let (folder, others) = (cwd.to_owned(), directories.to_vec());
        let workspace = reading(SESSION_FOLDER, move || self.workspace(&folder, &others)).await?;
        workspace.map_err(|unusable| unusable_folder(cwd, &unusable))
    }

    /// Reads the configuration of open folders.
    pub(super) async fn load(self, workspace: Workspace) -> Result<LoadedFolders, AgentError> {
        reading(SESSION_FOLDER, move || self.load_now(workspace)).await
    }

    /// Does both and then `load_more`, with one hand-over to another thread.
    pub(super) async fn open_and_load<T: Send + 'static>(
        self,
        cwd: &Path,
        directories: &[PathBuf],
        load_more: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(LoadedFolders, T), AgentError> {
        check_absolute(cwd, directories)?;
        let (folder, others) = (cwd.to_owned(), directories.to_vec());
        let work = move || {
            let workspace = self.workspace(&folder, &others)?;
            Ok((self.load_now(workspace), load_more()))
        };
        reading(SESSION_FOLDER, work).await?.map_err(|unusable| unusable_folder(cwd, &unusable))
    }

    fn workspace(&self, cwd: &Path, directories: &[PathBuf]) -> Result<Workspace, Unusable> {
        let workspace = Workspace::new(cwd, directories)?;
        Ok(workspace.with_locks(self.locks.clone()).with_own_files(self.own_files.clone()))
    }

    fn load_now(self, workspace: Workspace) -> LoadedFolders {
        let policy = (self.policy)(workspace.roots());
        let tools = managed_session::limited_tools(&policy.managed, self.tools);
        let (tools, missing) = tools.for_session(&workspace, &policy.rules);
        LoadedFolders { workspace, policy, tools, missing }
    }
}

fn check_absolute(cwd: &Path, directories: &[PathBuf]) -> Result<(), AgentError> {
    let additional_folders = directories.iter().map(|folder| ("additionalDirectories", folder.as_path()));
    for (key, folder) in std::iter::once(("cwd", cwd)).chain(additional_folders) {
        if !folder.is_absolute() {
            return Err(invalid_folder(key, format!("{key} is not absolute: {}", folder.display())));
        }
    }
    Ok(())
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
