//! Inspects paths without following links. A path below a link or another non-folder counts as absent.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};

use cap_fs_ext::{FollowSymlinks, OpenOptionsFollowExt};
use cap_std::fs::{Dir, File, Metadata, OpenOptions};

use super::replacement::FileStamp;
use super::{FileState, open_parent};
use crate::ids::hash_bytes;
use crate::permission::Target;
use crate::platform::files::{mode, nonblocking};

/// Same limit as in the file tools, in bytes.
const MAX_FILE: u64 = 10 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InspectedPath {
    /// The state, and the content of a file.
    State(FileState, Option<Vec<u8>>),
    /// Reason that follows the path's name, such as `is …`.
    Unknown(String),
}

pub(super) fn inspect(target: &Target) -> InspectedPath {
    look(target).0
}

/// As [`inspect`], with the metadata of a file before it was read.
pub(super) fn look(target: &Target) -> (InspectedPath, Option<FileStamp>) {
    let looked = open_existing_parent(target).and_then(|open| match open {
        Some((dir, name)) => look_in(&dir, &name),
        None => Ok((InspectedPath::State(FileState::Absent, None), None)),
    });
    looked.unwrap_or_else(|error| (InspectedPath::Unknown(format!("cannot be read ({error})")), None))
}

pub(super) fn entry_exists(target: &Target) -> io::Result<bool> {
    let Some((dir, name)) = open_existing_parent(target)? else { return Ok(false) };
    match dir.symlink_metadata(name) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// True for a FIFO, socket or device.
pub(super) fn is_special(target: &Target) -> bool {
    let metadata = open_existing_parent(target)
        .and_then(|open| open.map(|(dir, name)| dir.symlink_metadata(name)).transpose());
    metadata
        .is_ok_and(|metadata| metadata.is_some_and(|it| !it.is_file() && !it.is_dir() && !it.is_symlink()))
}

pub(super) fn inspect_in(dir: &Dir, name: &OsStr) -> io::Result<InspectedPath> {
    look_in(dir, name).map(|(found, _)| found)
}

fn look_in(dir: &Dir, name: &OsStr) -> io::Result<(InspectedPath, Option<FileStamp>)> {
    let other_than_file = |found: InspectedPath| Ok((found, None));
    let metadata = match dir.symlink_metadata(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return other_than_file(InspectedPath::State(FileState::Absent, None));
        }
        metadata => metadata?,
    };
    if metadata.is_symlink() {
        let to = dir.read_link_contents(name)?;
        return other_than_file(InspectedPath::State(FileState::Link { to }, None));
    }
    if metadata.is_dir() {
        return other_than_file(InspectedPath::State(FileState::Folder { mode: mode(&metadata) }, None));
    }
    if !metadata.is_file() {
        return other_than_file(InspectedPath::Unknown("is not a file, folder or link".into()));
    }
    let (mut file, metadata) = open_file(dir, name)?;
    let fingerprint = Some(FileStamp::of(&metadata));
    let mut content = Vec::new();
    // The file can grow while it is read.
    if metadata.len() <= MAX_FILE {
        file.by_ref().take(MAX_FILE + 1).read_to_end(&mut content)?;
    }
    if metadata.len().max(content.len() as u64) > MAX_FILE {
        return Ok((InspectedPath::Unknown(format!("is larger than {} MiB", MAX_FILE >> 20)), fingerprint));
    }
    let state = FileState::File { hash: hash_bytes(&content), mode: mode(&metadata) };
    Ok((InspectedPath::State(state, Some(content)), fingerprint))
}

/// Non-blocking, so that a FIFO in place of the file does not block.
pub(super) fn open_file(dir: &Dir, name: &OsStr) -> io::Result<(File, Metadata)> {
    let mut options = OpenOptions::new();
    options.read(true).follow(FollowSymlinks::No);
    nonblocking(&mut options);
    let file = dir.open_with(name, &options)?;
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok((file, metadata)) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Returns `None` if a parent is missing or not a folder.
pub(super) fn open_existing_parent(target: &Target) -> io::Result<Option<(Dir, OsString)>> {
    match open_parent(target, false) {
        Ok(open) => Ok(Some(open)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if blocks(target)?.is_some() => {
            tracing::debug!(%error, path = %target.path.display(), "a part of the path is not a folder");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The outermost parent that exists and is not a folder.
pub(super) fn blocks(target: &Target) -> io::Result<Option<std::path::PathBuf>> {
    let Some(inside) = &target.inside else { return Ok(None) };
    let depth = inside.components().count();
    for up in (1..depth).rev() {
        let (Some(path), Some(inside)) = (target.path.ancestors().nth(up), inside.ancestors().nth(up)) else {
            break;
        };
        let above = Target { path: path.to_owned(), inside: Some(inside.to_owned()) };
        let (dir, name) = open_parent(&above, false)?;
        match dir.symlink_metadata(&name) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Ok(Some(above.path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
