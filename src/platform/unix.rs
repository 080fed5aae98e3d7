//! Unix: permission bits, device and inode numbers, signals.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::future::pending;
use std::io;
use std::os::fd::AsFd;
pub use std::os::fd::AsFd as AsDescriptor;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cap_fs_ext::{FileTypeExt, OpenOptionsSyncExt};
use cap_std::fs::{self as cap, Dir};
use rustix::fs::{Access, AtFlags, OFlags, RenameFlags, accessat, renameat_with};
use rustix::io::Errno;
use tokio::signal::unix::{SignalKind, signal};

use super::files::{Times, rename_if_new};

pub use administrator::read_administrators_file;
pub use identity::{copy_identity, reserve};

mod administrator;
mod identity;

/// Device and inode number.
pub type Identity = (u64, u64);

pub fn identity(path: &Path) -> io::Result<Identity> {
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Creates a folder and its parents for this user alone.
pub fn create_private_folders(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates a folder that must not exist, for this user alone.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Creates a file that must not exist, for this user alone.
pub fn create_private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Creates a file for this user alone, or takes the rights of others to an existing one. Fails for a device or
/// anything else that is no file, and does not change it.
pub fn keep_private(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    // A FIFO without a reader fails to open.
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    let permissions = metadata.permissions();
    if permissions.mode() & 0o077 != 0 {
        // Created by another program. From now on others cannot read it, if this user owns it.
        let outcome = file.set_permissions(std::fs::Permissions::from_mode(0o600));
        tracing::warn!(path = %path.display(), ?outcome, "the store's file was readable by others");
    }
    Ok(())
}

/// Opens a file for reading and writing, or creates it for this user alone. Fails for anything that is no file.
pub fn open_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"))
    }
}

/// Returns the permission bits of a file if others than its owner have rights.
pub fn others_rights(path: &Path) -> io::Result<Option<u32>> {
    let mode = std::fs::metadata(path)?.permissions().mode();
    Ok((mode & 0o077 != 0).then_some(mode & 0o777))
}

/// Returns the file, or the folder above it, that users other than its owner may not read. Groups and access lists are
/// not looked at.
pub fn hidden_from_users(path: &Path) -> Option<PathBuf> {
    let is_hidden = |path: &&Path| {
        let bits = if path.is_dir() { 0o001 } else { 0o004 };
        std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & bits == 0)
    };
    path.ancestors().find(is_hidden).map(Path::to_owned)
}

pub fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The home folder of this user in the system's list of users.
pub fn account_home() -> Option<PathBuf> {
    let user = std::fs::metadata("/proc/self").ok()?.uid().to_string();
    let accounts = std::fs::read("/etc/passwd").ok()?;
    String::from_utf8_lossy(&accounts).lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        fields.next().filter(|id| *id == user)?;
        fields.nth(2).map(PathBuf::from)
    })
}

/// Opens a FIFO without waiting for its other end.
pub fn nonblocking(options: &mut cap::OpenOptions) {
    options.nonblock(true);
}

/// A new file is for this user alone.
pub fn private(options: &mut cap::OpenOptions) {
    cap::OpenOptionsExt::mode(options, 0o600);
}

/// Permission bits, 0 to 0o7777.
pub fn mode(metadata: &cap::Metadata) -> u32 {
    cap::MetadataExt::mode(metadata) & 0o7777
}

/// Returns `None` on systems without permission bits.
pub fn permissions_of(mode: u32) -> Option<cap::Permissions> {
    Some(cap::PermissionsExt::from_mode(mode))
}

/// Device number. `None` if the system does not tell.
pub fn device(metadata: &cap::Metadata) -> Option<u64> {
    Some(cap::MetadataExt::dev(metadata))
}

/// Device and inode number; zeros if the system does not tell.
pub fn number(metadata: &cap::Metadata) -> (u64, u64) {
    (cap::MetadataExt::dev(metadata), cap::MetadataExt::ino(metadata))
}

pub fn times(metadata: &cap::Metadata) -> Times {
    use cap::MetadataExt;
    Times {
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: Some((metadata.ctime(), metadata.ctime_nsec())),
    }
}

/// Of an entry that is no file, folder or link.
pub fn special_kind(metadata: &cap::Metadata) -> &'static str {
    let kind = metadata.file_type();
    if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// Fails if another process has taken the new name.
pub fn rename_to_new(from: (&Dir, &OsStr), to: (&Dir, &OsStr)) -> io::Result<()> {
    match renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => rename_if_new(from, to),
        renamed => renamed.map_err(Into::into),
    }
}

/// Swaps two entries of a folder. Returns false if the file system cannot.
pub fn exchange(dir: &Dir, one: &OsStr, other: &OsStr) -> io::Result<bool> {
    match renameat_with(dir, one, dir, other, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns an error if this process may not write the file.
pub fn check_write_access(dir: &Dir, name: &OsStr) -> io::Result<()> {
    accessat(dir, name, Access::WRITE_OK, AtFlags::EACCESS).map_err(Into::into)
}

/// Number of hard links. `None` if the system does not tell.
pub fn link_count(metadata: &cap::Metadata) -> Option<u64> {
    Some(cap::MetadataExt::nlink(metadata))
}

/// Creates a symbolic link with this text. Does not follow it.
pub fn link(dir: &Dir, text: &Path, name: &str) -> io::Result<()> {
    dir.symlink_contents(text, name)
}

pub fn copy_link(from: &Path, to: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(std::fs::read_link(from)?, to)
}

pub fn is_file(input: &impl AsFd) -> bool {
    let file = input.as_fd().try_clone_to_owned().map(File::from);
    file.and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.is_file())
}

/// Time that a program has to end after its terminal is gone.
const HANG_UP_GRACE: Duration = Duration::from_secs(2);

/// The columns of a terminal. `None` if they are unknown.
#[cfg(target_os = "linux")]
pub fn terminal_width(terminal: &impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Unknown elsewhere: rustix's `termios` is a dependency on Linux alone.
#[cfg(not(target_os = "linux"))]
pub fn terminal_width(_: &impl AsFd) -> Option<usize> {
    None
}

/// If a program shares the terminal, it decides about the keys that interrupt and quit.
pub async fn stop_requested(shares_terminal: bool) {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return pending().await };
    if !shares_terminal {
        tokio::select! {
            _ = terminate.recv() => {}
            interrupted = tokio::signal::ctrl_c() => if interrupted.is_err() {
                pending::<()>().await;
            },
        }
        return;
    }
    let ignored = (signal(SignalKind::interrupt()), signal(SignalKind::quit()));
    let Ok(mut hang_up) = signal(SignalKind::hangup()) else { return pending().await };
    tokio::select! {
        _ = terminate.recv() => {}
        // The program gets the signal, too, and may save its work.
        _ = hang_up.recv() => tokio::time::sleep(HANG_UP_GRACE).await,
    }
    drop(ignored);
}
