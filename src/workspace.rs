//! Access to the files in the session's folders. [`Workspace::resolve`] follows symbolic links once; later
//! opens follow no link below the root. A link created between the permission decision and the open therefore
//! causes an error. Only the root itself is opened by its path. No other module opens workspace files.

use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use cap_fs_ext::DirExt;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, File, Metadata};
use tokio_util::sync::CancellationToken;

use crate::file_lock::{FileLock, FileLocks, LockError};
use crate::own_files::OwnFiles;
use crate::permission::Target;
use crate::platform::Platform;
use crate::platform::files::real_path;
use file_state::is_version_control;

mod change;
mod change_recorder;
mod content_hash;
mod faults;
mod file_state;
mod in_place;
mod inspect;
mod interrupted;
mod journal;
mod operation;
mod outputs;
mod pending_write;
mod recorded;
mod replacement;
mod restore;
mod snapshot;
mod walk;

pub use change::Change;
pub use content_hash::ContentHash;
pub use file_state::{Changed, Changes, FileState, Gap, changed_files, compose};
use inspect::{InspectedPath, inspect};
pub use interrupted::Interrupted;
pub use journal::{Intent, IntentLog, Journal, Recorded};
pub use operation::{LockedChanges, RecordedOperation};
pub use outputs::{OutputFile, Outputs};
pub use pending_write::PendingWrite;
pub use recorded::{changes_so_far, create_record_folder, recorded_changes};
pub use restore::RestoreError;
pub use snapshot::WorkspaceSnapshot;
pub use walk::{EntryKind, Ignoring, Walk, WalkEntry, WalkOptions, visit_below};

#[derive(Debug, Clone)]
pub struct Workspace {
    /// Canonical and existing; the first is the working directory.
    roots: Arc<[PathBuf]>,
    outputs: Outputs,
    locks: FileLocks,
    own_files: OwnFiles,
}

#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", folder.display())]
pub struct Unusable {
    pub folder: PathBuf,
    pub error: io::Error,
}

impl Unusable {
    fn new(folder: &Path, error: io::Error) -> Self {
        Self { folder: folder.to_owned(), error }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{}: there is no such file or directory", .0.display())]
    Missing(PathBuf),
    #[error("{path}: {reason}")]
    Io { path: String, reason: String },
    #[error("{0}")]
    Unsuitable(String),
}

impl FileError {
    pub fn io(path: &Path, error: &io::Error) -> Self {
        let reason = match error.kind() {
            io::ErrorKind::NotFound => return Self::Missing(path.to_owned()),
            io::ErrorKind::AlreadyExists => "it exists already".into(),
            io::ErrorKind::PermissionDenied => "permission denied".into(),
            io::ErrorKind::IsADirectory => "it is a directory".into(),
            io::ErrorKind::NotADirectory => "a part of the path is not a directory".into(),
            _ => error.to_string(),
        };
        Self::Io { path: path.display().to_string(), reason }
    }
}

impl From<LockError> for FileError {
    fn from(error: LockError) -> Self {
        Self::Unsuitable(error.to_string())
    }
}

impl Workspace {
    pub fn new(cwd: &Path, others: &[PathBuf]) -> Result<Self, Unusable> {
        let mut roots: Vec<PathBuf> = Vec::new();
        for folder in std::iter::once(cwd).chain(others.iter().map(PathBuf::as_path)) {
            let root = real_path(folder).map_err(|error| Unusable::new(folder, error))?;
            if !root.is_dir() {
                return Err(Unusable::new(folder, io::ErrorKind::NotADirectory.into()));
            }
            if !roots.contains(&root) {
                roots.push(root);
            }
        }
        let (outputs, locks, own_files) = Default::default();
        Ok(Self { roots: roots.into(), outputs, locks, own_files })
    }

    /// Shares the locks of files with other sessions.
    #[must_use]
    pub fn with_locks(self, locks: FileLocks) -> Self {
        Self { locks, ..self }
    }

    /// Refuses tools the files of Modegate.
    #[must_use]
    pub fn with_own_files(self, own_files: OwnFiles) -> Self {
        Self { own_files, ..self }
    }

    /// Returns true for files that no tool reads.
    pub fn is_private(&self, path: &Path) -> bool {
        self.own_files.is_private(path)
    }

    /// Locks files against all other writers of this user. The lock lasts from the last read to the end of the change.
    /// Blocks.
    pub fn lock<'a>(
        &self,
        targets: impl IntoIterator<Item = &'a Target>,
        cancel: &CancellationToken,
    ) -> Result<FileLock, FileError> {
        let paths: Vec<_> = targets.into_iter().map(|target| target.path.as_path()).collect();
        if let Some(own) = paths.iter().find(|path| self.own_files.are_changed_by(path)) {
            return Err(refusal(own, "changes"));
        }
        self.locks.lock(paths, &|| cancel.is_cancelled()).map_err(FileError::from)
    }

    pub fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    pub fn outputs(&self) -> &Outputs {
        &self.outputs
    }

    pub fn cwd(&self) -> &Path {
        &self.roots[0]
    }

    /// Resolves a path, following symbolic links. A missing path resolves to its future location.
    pub fn resolve(&self, path: &str) -> Result<Target, FileError> {
        if path.is_empty() || path.contains('\0') {
            return Err(FileError::Unsuitable(format!("{path:?} is not a path")));
        }
        self.check_spelling(path)?;
        let requested = self.cwd().join(path);
        self.check_private(self.place(resolve_links(&requested)?))
    }

    /// Resolves an entry without following it if it is a link. Links in its parents are followed.
    pub fn resolve_entry(&self, path: &str) -> Result<Target, FileError> {
        self.check_spelling(path)?;
        let requested = self.cwd().join(path);
        let (Some(parent), Some(Component::Normal(name))) =
            (requested.parent(), requested.components().next_back())
        else {
            return Err(FileError::Unsuitable(format!("{path:?} does not name a file")));
        };
        let parent = self.resolve(&parent.to_string_lossy())?;
        self.check_private(self.place(parent.path.join(name)))
    }

    fn check_private(&self, target: Target) -> Result<Target, FileError> {
        if self.is_private(&target.path) {
            Err(refusal(&target.path, "reads or changes"))
        } else {
            Ok(target)
        }
    }

    fn check_spelling(&self, path: &str) -> Result<(), FileError> {
        match Platform::HERE.fault_of(path, &self.roots) {
            Some(fault) => Err(FileError::Unsuitable(format!("{path} {fault}"))),
            None => Ok(()),
        }
    }

    /// Returns the target for an absolute path without symbolic links.
    pub fn place(&self, path: PathBuf) -> Target {
        let inside = self.roots.iter().find_map(|root| path.strip_prefix(root).ok()).map(Path::to_owned);
        Target { path, inside }
    }

    /// The content of a file now. `None` if it is no file, is too large, or cannot be read.
    pub fn current_content(&self, path: &Path) -> Option<Vec<u8>> {
        match inspect(&self.place(path.to_owned())) {
            InspectedPath::State(_, content) => content,
            InspectedPath::Unknown(_) => None,
        }
    }

    pub fn display(&self, target: &Target) -> String {
        match target.path.strip_prefix(self.cwd()) {
            Ok(inside) if inside.as_os_str().is_empty() => ".".into(),
            Ok(inside) => inside.display().to_string(),
            Err(_) => target.path.display().to_string(),
        }
    }
}

fn refusal(path: &Path, acts: &str) -> FileError {
    FileError::Unsuitable(format!("{} belongs to Modegate: no tool {acts} it", path.display()))
}

#[derive(Debug)]
pub struct OpenFile {
    pub file: File,
    pub metadata: Metadata,
}

/// Opens a resolved file. Fails if the file is gone, is not regular, or has a link in its path by now.
pub fn open(target: &Target) -> Result<OpenFile, FileError> {
    let failed = |error: &io::Error| FileError::io(&target.path, error);
    let (parent, name) = open_parent(target, false).map_err(|error| failed(&error))?;
    // Checked before opening: opening a FIFO or a device can block or have side effects.
    let metadata = parent.symlink_metadata(&name).map_err(|error| failed(&error))?;
    if !metadata.is_file() {
        let kind = if metadata.is_dir() { "a directory" } else { "not a regular file" };
        return Err(FileError::Unsuitable(format!("{} is {kind}", target.path.display())));
    }
    match inspect::open_file(&parent, &name) {
        Ok((file, metadata)) => Ok(OpenFile { file, metadata }),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            Err(FileError::Unsuitable(format!("{} is no longer a regular file", target.path.display())))
        }
        Err(error) => Err(failed(&error)),
    }
}

/// Opens a resolved directory without following links.
pub fn open_dir(target: &Target) -> Result<Dir, FileError> {
    let opened = match open_parent(target, false) {
        Ok((parent, name)) => parent.open_dir_nofollow(name),
        // A root of the session or of the file system has no component to open.
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            Dir::open_ambient_dir(&target.path, ambient_authority())
        }
        Err(error) => Err(error),
    };
    opened.map_err(|error| FileError::io(&target.path, &error))
}

/// Opens the target's parent without following links. The descent starts at the root, so folders above the
/// root need not be readable.
fn open_parent(target: &Target, create: bool) -> io::Result<(Dir, OsString)> {
    if create { make_parent(target, &mut Vec::new()) } else { descend(target, None) }
}

/// Like [`open_parent`], and appends created folders to `made`.
fn make_parent(target: &Target, made: &mut Vec<Target>) -> io::Result<(Dir, OsString)> {
    descend(target, Some(made))
}

fn descend(target: &Target, mut made: Option<&mut Vec<Target>>) -> io::Result<(Dir, OsString)> {
    let below = target.inside.as_deref().unwrap_or_else(|| without_root(&target.path));
    let mut names: Vec<_> = below.components().collect();
    let anchor = target.path.ancestors().nth(names.len()).ok_or(io::ErrorKind::InvalidInput)?;
    let Some(name) = names.pop() else { return Err(io::ErrorKind::IsADirectory.into()) };
    let mut dir = Dir::open_ambient_dir(anchor, ambient_authority())?;
    let (mut path, mut inside) = (anchor.to_owned(), PathBuf::new());
    for part in names {
        path.push(part);
        inside.push(part);
        dir = match (dir.open_dir_nofollow(part), &mut made) {
            (Err(error), Some(made)) if error.kind() == io::ErrorKind::NotFound => {
                match dir.create_dir(part) {
                    Ok(()) => {
                        let inside = target.inside.is_some().then(|| inside.clone());
                        made.push(Target { path: path.clone(), inside });
                    }
                    // Another process created the folder first.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(error),
                }
                dir.open_dir_nofollow(part)?
            }
            (opened, _) => opened?,
        };
    }
    Ok((dir, name.as_os_str().to_owned()))
}

/// Removes created folders, deepest first, while they are empty.
fn remove_folders(made: &[Target]) {
    for folder in made.iter().rev() {
        let removed = open_parent(folder, false).and_then(|(dir, name)| dir.remove_dir(name));
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(%error, path = %folder.path.display(), "a folder could not be removed");
            return;
        }
    }
}

fn without_root(path: &Path) -> &Path {
    let mut components = path.components();
    while matches!(components.clone().next(), Some(Component::Prefix(_) | Component::RootDir)) {
        components.next();
    }
    components.as_path()
}

/// Canonicalizes the existing prefix and appends the missing components.
fn resolve_links(requested: &Path) -> Result<PathBuf, FileError> {
    let mut missing = Vec::new();
    let mut existing = requested;
    loop {
        match real_path(existing) {
            Ok(mut path) => {
                path.extend(missing.iter().rev());
                return Ok(path);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if existing.symlink_metadata().is_ok() {
                    let text = format!("{} is a dangling symbolic link", existing.display());
                    return Err(FileError::Unsuitable(text));
                }
                let (Some(parent), Some(Component::Normal(name))) =
                    (existing.parent(), existing.components().next_back())
                else {
                    return Err(FileError::io(requested, &error));
                };
                missing.push(name);
                existing = parent;
            }
            Err(error) => return Err(FileError::io(requested, &error)),
        }
    }
}

#[cfg(test)]
mod tests;
