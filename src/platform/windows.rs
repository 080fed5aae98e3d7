//! Windows: a user's folders restrict access to their files, and the standard library reads no inode numbers.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::future::pending;
use std::io;
pub use std::os::windows::io::AsHandle as AsDescriptor;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use cap_std::fs::{self as cap, Dir};

use super::files::{Times, rename_if_new};

/// Known only to exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity;

pub fn identity(path: &Path) -> io::Result<Identity> {
    std::fs::metadata(path).map(|_| Identity)
}

/// Unknown here.
pub fn terminal_width<Terminal>(_: &Terminal) -> Option<usize> {
    None
}

pub fn create_private_folders(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)
}

pub fn create_private_folder(path: &Path) -> io::Result<()> {
    std::fs::create_dir(path)
}

pub fn create_private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Creates a file, or leaves an existing one.
pub fn keep_private(path: &Path) -> io::Result<()> {
    OpenOptions::new().create(true).truncate(false).write(true).open(path).map(drop)
}

/// Opens a file for reading and writing, or creates it.
pub fn open_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Reads a regular file of at most `limit` bytes. `None` if it does not exist. Its owner and access list are not checked.
///
/// # Errors
/// Returns the reason not to believe the file, as the end of a sentence that begins with its name.
pub fn read_administrators_file(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, String> {
    let found = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(|error| format!("cannot be read: {error}"))?,
    };
    if !found.is_file() {
        return Err("is not a regular file".into());
    }
    if found.len() > limit {
        return Err(format!("is larger than {} KiB", limit / 1024));
    }
    std::fs::read(path).map(Some).map_err(|error| format!("cannot be read: {error}"))
}

/// There are no permission bits.
pub fn others_rights(_: &Path) -> io::Result<Option<u32>> {
    Ok(None)
}

/// There are no permission bits.
pub fn hidden_from_users(_: &Path) -> Option<PathBuf> {
    None
}

pub fn is_program(path: &Path) -> bool {
    path.is_file()
}

/// The home folder cannot be renamed by a variable alone.
pub fn account_home() -> Option<PathBuf> {
    None
}

/// Opening a file does not wait.
pub fn nonblocking(_: &mut cap::OpenOptions) {}

/// A new file has the rights of its folder.
pub fn private(_: &mut cap::OpenOptions) {}

/// Stands for the permission bits of Unix.
pub fn mode(metadata: &cap::Metadata) -> u32 {
    if metadata.is_dir() { 0o755 } else { 0o644 }
}

/// There are no permission bits.
pub fn permissions_of(_: u32) -> Option<cap::Permissions> {
    None
}

/// The system does not tell.
pub fn device(_: &cap::Metadata) -> Option<u64> {
    None
}

/// The system does not tell.
pub fn number(_: &cap::Metadata) -> (u64, u64) {
    (0, 0)
}

pub fn times(metadata: &cap::Metadata) -> Times {
    let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = metadata.modified().map(|time| since(time.into_std())).unwrap_or_default();
    Times { modified: (time.as_secs().cast_signed(), i64::from(time.subsec_nanos())), changed: None }
}

pub fn special_kind(_: &cap::Metadata) -> &'static str {
    "a special file"
}

/// Fails if the new name is taken. Another process that takes it meanwhile loses its file.
pub fn rename_to_new(from: (&Dir, &OsStr), to: (&Dir, &OsStr)) -> io::Result<()> {
    rename_if_new(from, to)
}

/// The system cannot swap files.
pub fn exchange(_: &Dir, _: &OsStr, _: &OsStr) -> io::Result<bool> {
    Ok(false)
}

/// The attribute for read-only files is checked before.
pub fn check_write_access(_: &Dir, _: &OsStr) -> io::Result<()> {
    Ok(())
}

/// The system does not tell.
pub fn link_count(_: &cap::Metadata) -> Option<u64> {
    None
}

/// A new file has the owner and the rights of its folder.
pub fn copy_identity(_: &cap::File, _: &cap::File) -> io::Result<()> {
    Ok(())
}

/// A write tells whether there is space.
pub fn reserve(_: &cap::File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

/// Creates a symbolic link with this text. Fails without the right to create links, and for absolute paths.
pub fn link(dir: &Dir, text: &Path, name: &str) -> io::Result<()> {
    if dir.metadata(text).is_ok_and(|found| found.is_dir()) {
        dir.symlink_dir(text, name)
    } else {
        dir.symlink_file(text, name)
    }
}

pub fn copy_link(from: &Path, to: &Path) -> io::Result<()> {
    let text = std::fs::read_link(from)?;
    if from.is_dir() {
        std::os::windows::fs::symlink_dir(text, to)
    } else {
        std::os::windows::fs::symlink_file(text, to)
    }
}

/// The system does not tell.
pub fn is_file(_: &std::io::Stdin) -> bool {
    false
}

/// If a program shares the terminal, it decides about the keys that interrupt.
pub async fn stop_requested(shares_terminal: bool) {
    if shares_terminal || tokio::signal::ctrl_c().await.is_err() {
        pending::<()>().await;
    }
}
