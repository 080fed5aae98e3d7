//! Writing a file whole or not at all: a temporary file beside it, then one rename.
//!
//! Mode bits of the file that is replaced are kept, and a file that was reached through a symbolic link is replaced at
//! its real place, so that the link stays.

use std::io::{self, Write};
use std::path::Path;

use cap_std::fs::{Dir, OpenOptions};
use tokio_util::sync::CancellationToken;

use super::{FileError, Workspace, open_parent};
use crate::permission::Target;

impl Workspace {
    /// Puts `content` at the place that was resolved. `cancel` is looked at right before the rename: once it is
    /// cancelled the file stays as it was.
    ///
    /// # Errors
    /// The place lies outside the roots, the file is read-only, the disk says no, or `cancel` was cancelled. In each
    /// case nothing has changed but, possibly, new empty folders.
    pub fn write(
        &self,
        target: &Target,
        content: &[u8],
        cancel: &CancellationToken,
    ) -> Result<(), FileError> {
        if target.inside.is_none() {
            // The decision comes before; this is the second lock on the same door.
            let text = format!("{} is outside the session's folders", target.path.display());
            return Err(FileError::Unsuitable(text));
        }
        let failed = |error: io::Error| FileError::io(&target.path, &error);
        let (dir, name) = open_parent(target, true).map_err(failed)?;
        let permissions = match dir.symlink_metadata(&name) {
            Ok(found) if !found.is_file() => {
                return Err(FileError::Unsuitable(format!(
                    "{} is not a regular file",
                    target.path.display()
                )));
            }
            Ok(found) if found.permissions().readonly() => {
                return Err(FileError::Unsuitable(format!("{} is read-only", target.path.display())));
            }
            Ok(found) => Some(found.permissions()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        let temporary = Temporary::create(&dir, content).map_err(failed)?;
        if let Some(permissions) = permissions {
            dir.set_permissions(&temporary.name, permissions).map_err(failed)?;
        }
        if cancel.is_cancelled() {
            return Err(FileError::Unsuitable("stopped before the file was written".into()));
        }
        dir.rename(&temporary.name, &dir, Path::new(&name)).map_err(failed)?;
        temporary.keep();
        Ok(())
    }
}

/// A file that is removed unless it was renamed to its place.
struct Temporary<'d> {
    dir: &'d Dir,
    name: String,
    renamed: bool,
}

impl<'d> Temporary<'d> {
    fn create(dir: &'d Dir, content: &[u8]) -> io::Result<Self> {
        let name = format!(".modegate-{}.tmp", uuid::Uuid::now_v7().simple());
        let mut file = dir.open_with(&name, OpenOptions::new().write(true).create_new(true))?;
        let temporary = Self { dir, name, renamed: false };
        file.write_all(content)?;
        Ok(temporary)
    }

    fn keep(mut self) {
        self.renamed = true;
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.renamed
            && let Err(error) = self.dir.remove_file(&self.name)
        {
            tracing::warn!(%error, file = self.name, "a temporary file could not be removed");
        }
    }
}
