//! A folder for the builds of a session's read-only commands, outside of the workspace. Later commands find the results
//! there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::folder_removal;
use crate::platform::files::{self, create_private_file, create_private_folder, open_private, real_path};

/// In the folder for temporary files, before an id.
const NAME: &str = "modegate-build-";

/// Locked while a process uses the folder. Commands cannot reach it.
const LOCK: &str = "lock";

/// The folder for commands.
const CONTENT: &str = "content";

/// Variables that name folders of programs, here below [`CONTENT`].
#[rustfmt::skip]
const FOLDERS: &[(&str, &str)] = &[
    ("XDG_CACHE_HOME", "cache"), ("CARGO_TARGET_DIR", "cargo"), ("GOCACHE", "go"),
    ("PYTHONPYCACHEPREFIX", "python"), ("MYPY_CACHE_DIR", "mypy"), ("RUFF_CACHE_DIR", "ruff"),
    ("UV_CACHE_DIR", "uv"), ("PIP_CACHE_DIR", "pip"), ("npm_config_cache", "npm"), ("YARN_CACHE_FOLDER", "yarn"),
    ("CCACHE_DIR", "ccache"), ("SCCACHE_DIR", "sccache"), ("COVERAGE_FILE", "coverage"), ("DENO_DIR", "deno"),
];

/// Options that keep programs from writing into the workspace.
const OPTIONS: &[(&str, &str)] = &[("PYTEST_ADDOPTS", "-p no:cacheprovider")];

/// Cheap to clone. Created with the first use, and removed with the last clone, after which no command may run.
#[derive(Debug, Clone)]
pub(super) struct BuildFolder(Arc<SessionBuild>);

#[derive(Debug)]
struct SessionBuild {
    scratch: PathBuf,
    /// `None` if it cannot be made.
    made: OnceLock<Option<MadeFolder>>,
}

#[derive(Debug)]
struct MadeFolder {
    path: PathBuf,
    _lock: File,
}

impl BuildFolder {
    /// `scratch` is the folder for temporary files.
    pub(super) fn new(scratch: &Path) -> Self {
        Self(Arc::new(SessionBuild { scratch: scratch.to_owned(), made: OnceLock::new() }))
    }

    /// The folder for commands, which the first call makes. `None` if it cannot be made.
    pub(super) fn path(&self) -> Option<PathBuf> {
        let made = self.0.made.get_or_init(|| {
            remove_abandoned(&self.0.scratch);
            let made = MadeFolder::create(&self.0.scratch);
            made.inspect_err(|error| tracing::warn!(%error, "builds of read-only commands are not kept")).ok()
        });
        made.as_ref().map(|made| made.path.join(CONTENT))
    }
}

impl MadeFolder {
    fn create(scratch: &Path) -> io::Result<Self> {
        let (scratch, id) = (real_path(scratch)?, uuid::Uuid::now_v7());
        // Under the other name, no process takes it for abandoned.
        let (unlocked, path) = (scratch.join(format!("modegate-{id}")), scratch.join(format!("{NAME}{id}")));
        create_private_folder(&unlocked)?;
        create_private_folder(&unlocked.join(CONTENT))?;
        let lock = create_private_file(&unlocked.join(LOCK))?;
        lock.lock()?;
        fs::rename(unlocked, &path)?;
        Ok(Self { path, _lock: lock })
    }
}

impl Drop for SessionBuild {
    fn drop(&mut self) {
        if let Some(Some(made)) = self.made.get() {
            remove(&made.path);
        }
    }
}

/// Removes the folders of processes that were killed. Any program may make such names.
fn remove_abandoned(scratch: &Path) {
    let entries = fs::read_dir(scratch).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(NAME)) {
        let is_own = files::others_rights(&entry.path()).is_ok_and(|rights| rights.is_none());
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        // That of another user cannot be opened.
        let lock = if is_folder && is_own { existing_lock(&entry.path()) } else { None };
        if lock.is_some_and(|lock| lock.try_lock().is_ok()) {
            remove(&entry.path());
        }
    }
}

/// Opens the lock without waiting: a FIFO could stand in its place.
fn existing_lock(folder: &Path) -> Option<File> {
    let path = folder.join(LOCK);
    path.is_file().then(|| open_private(&path).ok()).flatten()
}

fn remove(folder: &Path) {
    if let Err(error) = folder_removal::remove(folder) {
        tracing::warn!(%error, "{} cannot be removed", folder.display());
    }
}

/// The variables for a command that builds in `folder`.
pub(super) fn variables(folder: &Path) -> impl Iterator<Item = (String, String)> {
    let folders = FOLDERS
        .iter()
        .filter_map(|(name, place)| Some((*name, folder.join(place).into_os_string().into_string().ok()?)));
    let options = OPTIONS.iter().map(|(name, options)| (*name, (*options).to_owned()));
    folders.chain(options).map(|(name, value)| (name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_made_once_and_removed_with_the_last_clone() {
        let scratch = tempfile::tempdir().unwrap();
        let first = BuildFolder::new(scratch.path());
        let clone = first.clone();
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0, "nothing is made before it is used");
        let folder = first.path().unwrap();
        fs::write(folder.join("kept"), "").unwrap();
        drop(first);
        assert_eq!(clone.path().as_ref(), Some(&folder));
        assert!(folder.join("kept").exists());
        drop(clone);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn abandoned_folders_are_removed_and_used_ones_stay() {
        let scratch = tempfile::tempdir().unwrap();
        let used = BuildFolder::new(scratch.path());
        let kept = used.path().unwrap();
        let abandoned = scratch.path().join(format!("{NAME}1"));
        let unfinished = scratch.path().join(format!("{NAME}2"));
        for folder in [&abandoned, &unfinished] {
            create_private_folder(folder).unwrap();
        }
        fs::create_dir_all(abandoned.join("content/deep")).unwrap();
        fs::write(abandoned.join(LOCK), "").unwrap();
        let other = BuildFolder::new(scratch.path());
        assert!(other.path().is_some());
        assert!(!abandoned.exists() && unfinished.exists() && kept.exists());
    }

    #[cfg(unix)]
    #[test]
    fn names_that_other_programs_make_are_left_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let project = tempfile::tempdir().unwrap();
        fs::write(project.path().join(LOCK), "").unwrap();
        std::os::unix::fs::symlink(project.path(), scratch.path().join(format!("{NAME}link"))).unwrap();
        let fifo = scratch.path().join(format!("{NAME}fifo"));
        create_private_folder(&fifo).unwrap();
        files::make_fifo(&fifo.join(LOCK));
        assert!(BuildFolder::new(scratch.path()).path().is_some());
        assert!(project.path().join(LOCK).exists() && fifo.exists());
    }
}
