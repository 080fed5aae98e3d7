//! Detects if an open file of the store was deleted or replaced, or belongs to another program.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::owner::folder_beside;
use crate::platform::files::{Identity, identity};

/// Length of the header of an SQLite database.
const HEADER: usize = 100;

#[derive(Debug)]
pub(super) struct IdentifiedFile {
    path: PathBuf,
    identity: Identity,
}

impl IdentifiedFile {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// True if the path still leads to this file.
    pub(super) fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|identity| identity == self.identity)
    }
}

/// Endings of the names of the files that SQLite keeps beside a database.
pub(super) const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];

pub(super) fn companion(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

pub(super) fn with_companions(path: &Path) -> Vec<PathBuf> {
    let beside = COMPANIONS.map(|ending| companion(path, ending));
    [path.to_owned(), folder_beside(path)].into_iter().chain(beside).collect()
}

/// Returns a companion that is no file, such as a FIFO, which SQLite would read from forever.
pub(super) fn unusable_companion(path: &Path) -> Option<PathBuf> {
    let companions = COMPANIONS.map(|ending| companion(path, ending));
    companions.into_iter().find(|path| std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreFileKind {
    /// The file is missing, empty, or a database that may be a store.
    Usable,
    /// A folder, a device or a FIFO.
    NoFile,
    NoDatabase,
    /// A database with tables that no Modegate has created.
    OtherDatabase,
}

/// Reads the header only, so that a foreign file keeps its content and its rights.
pub(super) fn kind(path: &Path) -> io::Result<StoreFileKind> {
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return Ok(StoreFileKind::NoFile),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(StoreFileKind::Usable),
        Err(error) => return Err(error),
    }
    let mut header = Vec::new();
    std::fs::File::open(path)?.take(HEADER as u64).read_to_end(&mut header)?;
    if header.is_empty() {
        return Ok(StoreFileKind::Usable);
    }
    if header.len() < HEADER || !header.starts_with(b"SQLite format 3\0") {
        return Ok(StoreFileKind::NoDatabase);
    }
    // Each migration sets the user version together with its tables.
    let is_set = |offset: usize| header[offset..offset + 4] != [0; 4];
    let (has_schema, has_version, has_application_id) = (is_set(40), is_set(60), is_set(68));
    Ok(if has_application_id || (has_schema && !has_version) {
        StoreFileKind::OtherDatabase
    } else {
        StoreFileKind::Usable
    })
}
