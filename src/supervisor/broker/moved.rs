//! Looks through the files and folders that move with an entry. Changes nothing.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::resolve::{BENEATH, ResolvedPath, trim};

/// Most entries of a folder that is moved.
const MAX_MOVED: usize = 200_000;

/// Most levels of a folder that is moved. Each is open while it is looked through.
const MAX_DEPTH: usize = 200;

/// Most bytes of the names in a question about a folder.
const MAX_NAMED: usize = 256 * 1024;

/// An entry that moves, with its path before and after.
pub(super) struct MovedEntry<'a> {
    pub old: &'a Path,
    pub new: &'a Path,
    pub is_folder: bool,
}

/// Returns true if `is_sought` returns true for the entry, or for one below it. False if there is no such entry.
///
/// # Errors
/// Returns an error if a folder cannot be looked through.
pub(super) fn any(
    entry: &ResolvedPath,
    to: &Path,
    mut is_sought: impl FnMut(&MovedEntry<'_>) -> bool,
) -> Result<bool, Errno> {
    let old = entry.path.as_path();
    match open_folder(&entry.folder, trim(&entry.name)) {
        Ok(folder) => {
            let is_found = is_sought(&MovedEntry { old, new: to, is_folder: true });
            Ok(is_found || contains(&folder, old, to, &mut is_sought, &mut LookLimits::new())?)
        }
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(is_sought(&MovedEntry { old, new: to, is_folder: false })),
        Err(Errno::NOENT | Errno::NAMETOOLONG) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The files that move with an entry, relative to it. Empty if the entry is no folder.
///
/// # Errors
/// Returns an error if the folder cannot be looked through or its files are too many for a question.
pub(super) fn files_below(entry: &ResolvedPath) -> Result<Vec<PathBuf>, Errno> {
    let folder = match open_folder(&entry.folder, trim(&entry.name)) {
        Ok(folder) => folder,
        Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT | Errno::NAMETOOLONG) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let (mut files, mut length) = (Vec::new(), 0);
    let mut add = |file: &MovedEntry<'_>| {
        if file.is_folder {
            return false;
        }
        length += file.old.as_os_str().len();
        files.push(file.old.to_owned());
        // A question is text.
        length > MAX_NAMED || file.old.to_str().is_none()
    };
    let is_cut = contains(&folder, Path::new(""), Path::new(""), &mut add, &mut LookLimits::new())?;
    if is_cut { Err(Errno::TOOBIG) } else { Ok(files) }
}

fn open_folder(folder: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(folder, name, flags, Mode::empty(), BENEATH)
}

/// The rest of the limits of a look through a folder.
struct LookLimits {
    entries: usize,
    levels: usize,
}

impl LookLimits {
    fn new() -> Self {
        Self { entries: MAX_MOVED, levels: MAX_DEPTH }
    }
}

/// Returns true if `is_sought` returns true for an entry below a folder.
fn contains(
    folder: &OwnedFd,
    old: &Path,
    new: &Path,
    is_sought: &mut impl FnMut(&MovedEntry<'_>) -> bool,
    left: &mut LookLimits,
) -> Result<bool, Errno> {
    left.levels = left.levels.checked_sub(1).ok_or(Errno::TOOBIG)?;
    let mut below = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        left.entries = left.entries.checked_sub(1).ok_or(Errno::TOOBIG)?;
        let text = OsStr::from_bytes(name.to_bytes());
        let (old, new) = (old.join(text), new.join(text));
        let is_folder = match entry.file_type() {
            FileType::Unknown => return Err(Errno::OPNOTSUPP),
            kind => kind.is_dir(),
        };
        if is_sought(&MovedEntry { old: &old, new: &new, is_folder }) {
            return Ok(true);
        }
        if is_folder {
            below.push((name.to_owned(), old, new));
        }
    }
    for (name, old, new) in below {
        let is_found = match open_folder(folder, OsStr::from_bytes(name.to_bytes())) {
            Ok(inner) => contains(&inner, &old, &new, is_sought, left)?,
            // Another thread has removed the folder, or replaced it by a file.
            Err(Errno::NOENT) => false,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                is_sought(&MovedEntry { old: &old, new: &new, is_folder: false })
            }
            Err(error) => return Err(error),
        };
        if is_found {
            return Ok(true);
        }
    }
    left.levels += 1;
    Ok(false)
}
