//! The store's files: for their owner alone, and whether the one that was opened is still there.

use std::io;
use std::path::{Path, PathBuf};

/// A file that was opened.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    #[cfg(unix)]
    number: (u64, u64),
}

impl Place {
    /// The file at a path, as it is now.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            #[cfg(unix)]
            number: number(path)?,
        })
    }

    /// Whether the path still leads to it.
    pub fn is_there(&self) -> bool {
        #[cfg(unix)]
        {
            number(&self.path).is_ok_and(|number| number == self.number)
        }
        #[cfg(not(unix))]
        {
            self.path.exists()
        }
    }
}

#[cfg(unix)]
fn number(path: &Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(unix)]
pub(super) fn private_folder(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(unix)]
pub(super) fn private_file(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    let permissions = file.metadata()?.permissions();
    if permissions.mode() & 0o077 != 0 {
        // One that was made by something else: what is in it from now on is for its owner alone, if that is this user.
        let outcome = file.set_permissions(std::fs::Permissions::from_mode(0o600));
        tracing::warn!(path = %path.display(), ?outcome, "the store's file could be read by others");
    }
    Ok(())
}

#[cfg(not(unix))]
pub(super) fn private_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)
}

#[cfg(not(unix))]
pub(super) fn private_file(path: &Path) -> std::io::Result<()> {
    // Elsewhere the file has the rights that its folder gives it; docs/security.md says so.
    std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).map(drop)
}
