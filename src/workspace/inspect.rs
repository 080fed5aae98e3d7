//! Looking at what stands at a path, following no link: a part of the path that is a link or no folder means that nothing is there.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};

use cap_fs_ext::{FollowSymlinks, OpenOptionsFollowExt};
use cap_std::fs::{Dir, File, Metadata, OpenOptions, Permissions};

use super::{FileState, open_parent};
use crate::ids::hash_bytes;
use crate::permission::Target;

/// The largest file whose content is looked at, in bytes: as large as the tools for files read and write.
const MAX_FILE: u64 = 10 * 1024 * 1024;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// What stands there, and the content, if it is a file.
    State(FileState, Option<Vec<u8>>),
    /// It cannot be told what stands there; why, after the path's name: `is …`.
    Unknown(String),
}

/// Looks at a path.
pub(super) fn inspect(target: &Target) -> Found {
    let looked = open_standing_parent(target).and_then(|open| match open {
        Some((dir, name)) => inspect_in(&dir, &name),
        None => Ok(Found::State(FileState::Absent, None)),
    });
    looked.unwrap_or_else(|error| Found::Unknown(format!("cannot be read ({error})")))
}

/// Whether anything stands at a path.
pub(super) fn stands(target: &Target) -> io::Result<bool> {
    let Some((dir, name)) = open_standing_parent(target)? else { return Ok(false) };
    match dir.symlink_metadata(name) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Looks at an entry of a folder that is open.
fn inspect_in(dir: &Dir, name: &OsStr) -> io::Result<Found> {
    let metadata = match dir.symlink_metadata(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Found::State(FileState::Absent, None));
        }
        metadata => metadata?,
    };
    if metadata.is_symlink() {
        return Ok(Found::State(FileState::Link { to: dir.read_link_contents(name)? }, None));
    }
    if metadata.is_dir() {
        return Ok(Found::State(FileState::Folder { mode: mode(&metadata) }, None));
    }
    if !metadata.is_file() {
        return Ok(Found::Unknown("is neither a file nor a folder nor a link".into()));
    }
    let (mut file, metadata) = open_file(dir, name)?;
    let mut content = Vec::new();
    // The file may grow meanwhile: the limit holds for what is read.
    if metadata.len() <= MAX_FILE {
        file.by_ref().take(MAX_FILE + 1).read_to_end(&mut content)?;
    }
    if metadata.len().max(content.len() as u64) > MAX_FILE {
        return Ok(Found::Unknown(format!("is larger than {} MiB", MAX_FILE >> 20)));
    }
    let state = FileState::File { hash: hash_bytes(&content), mode: mode(&metadata) };
    Ok(Found::State(state, Some(content)))
}

/// Opens a regular file of a folder that is open. Opening does not wait, whatever has come there.
pub(super) fn open_file(dir: &Dir, name: &OsStr) -> io::Result<(File, Metadata)> {
    let mut options = OpenOptions::new();
    options.read(true).follow(FollowSymlinks::No);
    #[cfg(unix)]
    {
        use cap_fs_ext::OpenOptionsSyncExt;
        options.nonblock(true);
    }
    let file = dir.open_with(name, &options)?;
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok((file, metadata)) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Opens the folder above a target; none: there is no such folder, so nothing stands at the target either.
pub(super) fn open_standing_parent(target: &Target) -> io::Result<Option<(Dir, OsString)>> {
    match open_parent(target, false) {
        Ok(open) => Ok(Some(open)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if blocks(target)?.is_some() => {
            tracing::debug!(%error, path = %target.path.display(), "a part of a path is no folder");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The first of the folders above a target, from the root on, where something stands that is no folder.
pub(super) fn blocks(target: &Target) -> io::Result<Option<std::path::PathBuf>> {
    let Some(inside) = &target.inside else { return Ok(None) };
    let depth = inside.components().count();
    // From the outermost on: what lies above an entry was looked at before it.
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

/// The permission bits.
#[cfg(unix)]
pub(super) fn mode(metadata: &Metadata) -> u32 {
    use cap_std::fs::MetadataExt;
    metadata.mode() & 0o7777
}

/// The permission bits, where there are none.
#[cfg(not(unix))]
pub(super) fn mode(metadata: &Metadata) -> u32 {
    if metadata.is_dir() { 0o755 } else { 0o644 }
}

/// Permission bits as the file system takes them; none where there are none.
#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere there are none")]
pub(super) fn permissions(mode: u32) -> Option<Permissions> {
    use cap_std::fs::PermissionsExt;
    Some(Permissions::from_mode(mode))
}

/// Permission bits as the file system takes them; none where there are none.
#[cfg(not(unix))]
pub(super) fn permissions(_: u32) -> Option<Permissions> {
    None
}
