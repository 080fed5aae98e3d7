//! Creates the store's files for their owner alone, and detects if an open file was deleted or replaced.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Length of the header of an SQLite database.
const HEADER: usize = 100;

#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    #[cfg(unix)]
    number: (u64, u64),
}

impl Place {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            #[cfg(unix)]
            number: number(path)?,
        })
    }

    /// True if the path still leads to this file.
    pub(super) fn is_there(&self) -> bool {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The file is missing, empty, or a database that may be a store.
    Usable,
    NoDatabase,
    /// A database with tables that no Modegate has created.
    OtherDatabase,
}

/// Reads the header only, so that a foreign file keeps its content and its rights.
pub(super) fn kind(path: &Path) -> io::Result<Kind> {
    let mut header = Vec::new();
    match std::fs::File::open(path) {
        Ok(file) => file.take(HEADER as u64).read_to_end(&mut header)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kind::Usable),
        Err(error) => return Err(error),
    };
    if header.is_empty() {
        return Ok(Kind::Usable);
    }
    if header.len() < HEADER || !header.starts_with(b"SQLite format 3\0") {
        return Ok(Kind::NoDatabase);
    }
    // Each migration sets the user version together with its tables.
    let is_set = |offset: usize| header[offset..offset + 4] != [0; 4];
    let (has_schema, has_version, has_application_id) = (is_set(40), is_set(60), is_set(68));
    Ok(if has_application_id || (has_schema && !has_version) { Kind::OtherDatabase } else { Kind::Usable })
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
        // Created by another program. From now on others cannot read it, if this user owns it.
        let outcome = file.set_permissions(std::fs::Permissions::from_mode(0o600));
        tracing::warn!(path = %path.display(), ?outcome, "the store's file was readable by others");
    }
    Ok(())
}

#[cfg(not(unix))]
pub(super) fn private_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)
}

#[cfg(not(unix))]
pub(super) fn private_file(path: &Path) -> std::io::Result<()> {
    // The file inherits the rights of its folder here (see docs/security.md).
    std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).map(drop)
}
