//! Files that only the administrator can change: root owns them and all folders above them, and others may not write.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, open, openat, statat};
use rustix::io::Errno;

/// Write permission of the group and of others. With an access list, the bits of the group are those that no entry of
/// the list exceeds, so the list needs no look of its own.
const OTHERS_MAY_WRITE: u32 = 0o022;

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// `NONBLOCK`: another file may have taken the place of the one that `statat` has found.
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Reads a regular file of at most `limit` bytes at an absolute path. `None` if the file does not exist, and the folder
/// around it either does not exist or is the administrator's.
///
/// # Errors
/// Returns the reason not to believe the file, as the end of a sentence that begins with its name.
pub fn read_administrators_file(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, String> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err("is not the path of a file".into());
    };
    let Some((folder, doubt)) = open_folder(parent)? else { return Ok(None) };
    if let Some(doubt) = doubt {
        // Also without the file, which others could have removed.
        return Err(doubt);
    }
    let found = match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(None),
        found => found.map_err(unreadable)?,
    };
    check_kind(&found)?;
    let file = openat(&folder, name, FILE, Mode::empty()).map_err(unreadable)?;
    // The open file decides: the name may lead to another one by now.
    let opened = fstat(&file).map_err(unreadable)?;
    check_kind(&opened)?;
    if let Some(doubt) = doubt_of(&opened) {
        return Err(doubt);
    }
    let mut bytes = Vec::new();
    let read = File::from(file).take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > limit {
        return Err(format!("is larger than {} KiB", limit / 1024));
    }
    Ok(Some(bytes))
}

/// Opens a folder without following a link. Also returns why the folder or one above it cannot be trusted. `None` if
/// there is no such folder.
fn open_folder(path: &Path) -> Result<Option<(OwnedFd, Option<String>)>, String> {
    let mut place = PathBuf::from("/");
    let mut folder = open(&place, FOLDER, Mode::empty()).map_err(|error| in_folder(&place, error))?;
    let mut doubt = doubt_of_folder(&folder, &place)?;
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    for name in names {
        place.push(name);
        folder = match open_below(&folder, name) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(|error| in_folder(&place, error))?,
        };
        let of_folder = doubt_of_folder(&folder, &place)?;
        doubt = doubt.or(of_folder);
    }
    Ok(Some((folder, doubt)))
}

fn open_below(folder: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(folder, name, FOLDER, Mode::empty())
}

fn doubt_of_folder(folder: impl AsFd, place: &Path) -> Result<Option<String>, String> {
    let stat = fstat(folder).map_err(|error| in_folder(place, error))?;
    Ok(doubt_of(&stat).map(|doubt| format!("is in the folder {}, which {doubt}", place.display())))
}

fn doubt_of(stat: &Stat) -> Option<String> {
    if stat.st_uid != 0 {
        return Some(format!("belongs to the user {}, not to root", stat.st_uid));
    }
    #[allow(clippy::useless_conversion, reason = "the type differs between systems")]
    let mode = u32::from(stat.st_mode);
    (mode & OTHERS_MAY_WRITE != 0)
        .then(|| format!("can be written by others than root (mode {:o})", mode & 0o7777))
}

fn check_kind(stat: &Stat) -> Result<(), String> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Symlink => Err("is a symbolic link, which is not followed here".into()),
        FileType::Directory => Err("is a folder, not a regular file".into()),
        _ => Err("is not a regular file".into()),
    }
}

fn in_folder(place: &Path, error: Errno) -> String {
    let place = place.display();
    match error {
        Errno::NOTDIR | Errno::LOOP => format!("is below {place}, which is a link or no folder"),
        _ => format!("is below {place}, which cannot be opened: {}", io::Error::from(error)),
    }
}

fn unreadable(error: Errno) -> String {
    format!("cannot be read: {}", io::Error::from(error))
}
