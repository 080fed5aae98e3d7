//! Files as the system knows them: real paths, rights, identities and programs.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use cap_std::fs::Dir;

use super::Platform;

pub use super::system::{
    Identity, account_home, check_write_access, copy_identity, copy_link, create_private_file,
    create_private_folder, create_private_folders, device, exchange, hidden_from_users, identity, is_file,
    is_program, keep_private, link, link_count, mode, nonblocking, number, open_private, others_rights,
    permissions_of, private, read_administrators_file, rename_to_new, reserve, special_kind, times,
};
/// Returns the path without symbolic links. On Windows it has no prefix `\\?\`, if programs can do without.
pub fn real_path(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    dunce::canonicalize(path)
}

/// Resolves the part of a path that exists, and appends the rest.
pub fn real_place(path: &Path) -> PathBuf {
    match path
        .ancestors()
        .find_map(|above| Some((real_path(above).ok()?, path.strip_prefix(above).ok()?.to_owned())))
    {
        Some((real, rest)) if rest.as_os_str().is_empty() => real,
        Some((real, rest)) => real.join(rest),
        None => path.to_owned(),
    }
}

/// Between the check and the move, another process can take the new name.
pub(super) fn rename_if_new(from: (&Dir, &OsStr), to: (&Dir, &OsStr)) -> io::Result<()> {
    if to.0.symlink_metadata(to.1).is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    from.0.rename(from.1, to.0, to.1)
}

/// Seconds and nanoseconds since 1970.
pub type UnixTime = (i64, i64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    pub modified: UnixTime,
    /// Set by the system alone, at every change. `None` if the system does not tell.
    pub changed: Option<UnixTime>,
}

/// As the system finds it: by a path relative to `cwd`, or by a name in `folders`. `endings` is the variable
/// `PATHEXT` of Windows.
pub fn find_program(
    program: &str,
    cwd: &Path,
    folders: impl IntoIterator<Item = PathBuf>,
    endings: Option<&str>,
) -> Option<PathBuf> {
    let names = Platform::HERE.program_names(program, endings);
    let is_path = program.contains('/') || (Platform::HERE == Platform::Windows && program.contains('\\'));
    let in_folder =
        |folder: PathBuf| names.iter().map(|name| folder.join(name)).find(|file| is_program(file));
    if is_path { in_folder(cwd.to_owned()) } else { folders.into_iter().find_map(in_folder) }
}

#[cfg(unix)]
#[cfg(test)]
pub fn make_fifo(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success(), "{}", path.display());
}
