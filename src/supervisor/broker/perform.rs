//! Carries out operations at resolved paths, with the rights of the supervisor, which has no capabilities.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, StatxAttributes, StatxFlags,
    Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use super::area::Area;
use super::operation::{AttributeChange, FileTime, OpenHow};
use super::resolve::{BENEATH, FileIdentity, ResolvedFile, ResolvedPath, identity_of, trim};
use super::tracee::own_path;
use crate::kernel;
use crate::sandbox;

/// Bits of new files: all but setuid and setgid, which would give another user's rights to whoever runs the file.
const PERMISSIONS: u32 = 0o1777;

/// Flags that are valid with each other, and with any access.
const COMMON_FLAGS: OFlags = OFlags::ACCMODE
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::TRUNC)
    .union(OFlags::APPEND)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC)
    .union(OFlags::LARGEFILE);

/// Extended attributes that need no capability.
const ATTRIBUTES: [&[u8]; 2] = [b"user.", ACCESS_LISTS];
const ACCESS_LISTS: &[u8] = b"system.posix_acl_";

pub(super) enum Opened {
    File(OwnedFd, FileIdentity),
    /// A named pipe that can be written.
    Pipe(OwnedFd),
    /// A named pipe to be opened for reading, by a path descriptor. Opening it waits for a writer.
    ReadPipe(OwnedFd),
    /// A named pipe without a reader.
    Waits,
    /// Neither a file nor a named pipe.
    Special,
}

/// Opens an entry without following a symbolic link. Fails with `EAGAIN` if a program has a lease of the file. The program
/// gets a signal that the file is wanted.
pub(super) fn open(entry: &ResolvedPath, how: OpenHow) -> Result<Opened, Errno> {
    let requested = OFlags::from_bits_retain(u32::try_from(how.flags).map_err(|_| Errno::INVAL)?);
    let may_wait = !requested.contains(OFlags::NONBLOCK);
    if requested & OFlags::ACCMODE == OFlags::RDONLY && may_wait && is_pipe(entry) {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pipe = rustix::fs::openat2(&entry.folder, &entry.name, flags, Mode::empty(), BENEATH)?;
        let is_pipe = FileType::from_raw_mode(rustix::fs::fstat(&pipe)?.st_mode) == FileType::Fifo;
        if is_pipe {
            return if requested.contains(OFlags::CREATE | OFlags::EXCL) {
                Err(Errno::EXIST)
            } else {
                Ok(Opened::ReadPipe(pipe))
            };
        }
    }
    // Never waits, because no mode can be changed meanwhile.
    let flags = requested | OFlags::NONBLOCK;
    let mode = permissions(how.mode)?;
    let opened =
        rustix::fs::openat2(&entry.folder, &entry.name, flags, mode, BENEATH | ResolveFlags::NO_XDEV);
    let file = match opened {
        Ok(file) => file,
        Err(Errno::NXIO) if may_wait && is_pipe(entry) => return Ok(Opened::Waits),
        Err(error) => return Err(error),
    };
    let stat = rustix::fs::fstat(&file)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Fifo) {
        return Ok(Opened::Special);
    }
    if may_wait {
        // Leaves the flags alone that cannot be changed.
        rustix::fs::fcntl_setfl(&file, requested)?;
    }
    Ok(if kind == FileType::Fifo { Opened::Pipe(file) } else { Opened::File(file, identity_of(&stat)) })
}

/// The type of an entry. `None` if it does not exist.
pub(super) fn kind(entry: &ResolvedPath) -> Option<FileType> {
    Some(FileType::from_raw_mode(entry.stat().ok()?.st_mode))
}

pub(super) fn is_mount_point(entry: &ResolvedPath) -> bool {
    let (name, flags) = (trim(&entry.name), AtFlags::SYMLINK_NOFOLLOW);
    rustix::fs::statx(&entry.folder, name, flags, StatxFlags::TYPE)
        .is_ok_and(|file| file.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn is_pipe(entry: &ResolvedPath) -> bool {
    kind(entry) == Some(FileType::Fifo)
}

fn permissions(mode: u64) -> Result<Mode, Errno> {
    let mode = u32::try_from(mode).map_err(|_| Errno::INVAL)?;
    // `openat2` refuses other bits.
    if mode & !0o7777 == 0 { Ok(Mode::from_raw_mode(mode & PERMISSIONS)) } else { Err(Errno::INVAL) }
}

pub(super) fn make_folder(entry: &ResolvedPath, mode: u32) -> Result<(), Errno> {
    rustix::fs::mkdirat(&entry.folder, &entry.name, Mode::from_raw_mode(mode & PERMISSIONS))
}

/// Returns false if the kernel refuses the flags, the mode or the limits before it looks at the path.
pub(super) fn are_flags_valid(how: OpenHow) -> bool {
    let (Ok(flags), Ok(mode)) = (u32::try_from(how.flags), u32::try_from(how.mode)) else { return false };
    let (flags, mode) = (OFlags::from_bits_retain(flags), Mode::from_bits_retain(mode));
    if how.resolve == 0 && are_common(flags, mode) {
        return true;
    }
    let opened = rustix::fs::openat2(CWD, "", flags, mode, ResolveFlags::from_bits_retain(how.resolve));
    !matches!(opened, Err(Errno::INVAL))
}

/// Returns true for flags and modes that every kernel takes together.
fn are_common(flags: OFlags, mode: Mode) -> bool {
    let largest = if flags.contains(OFlags::CREATE) { 0o7777 } else { 0 };
    COMMON_FLAGS.contains(flags) && flags & OFlags::ACCMODE != OFlags::ACCMODE && mode.bits() & !largest == 0
}

/// The kernel looks at the type of a node before the path.
pub(super) fn check_node(mode: u32) -> Result<(), Errno> {
    match mode & 0o170_000 {
        0o040_000 => Err(Errno::PERM),
        0 | 0o010_000 | 0o020_000 | 0o060_000 | 0o100_000 | 0o140_000 => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

/// Makes an empty file or a named pipe.
pub(super) fn make_node(entry: &ResolvedPath, mode: u32) -> Result<(), Errno> {
    let kind = match FileType::from_raw_mode(mode) {
        FileType::Fifo => FileType::Fifo,
        FileType::RegularFile => FileType::RegularFile,
        _ if mode & 0o170_000 == 0 => FileType::RegularFile,
        _ => return Err(Errno::PERM),
    };
    rustix::fs::mknodat(&entry.folder, &entry.name, kind, Mode::from_raw_mode(mode & PERMISSIONS), 0)
}

pub(super) fn make_symlink(target: &Path, entry: &ResolvedPath) -> Result<(), Errno> {
    rustix::fs::symlinkat(target, &entry.folder, &entry.name)
}

pub(super) fn link(from: &ResolvedPath, to: &ResolvedPath) -> Result<(), Errno> {
    rustix::fs::linkat(&from.folder, &from.name, &to.folder, &to.name, AtFlags::empty())
}

/// Gives a UNIX socket its name. The calling thread must have a working directory of its own, because a relative name
/// is always short enough for an address.
pub(super) fn bind(socket: &OwnedFd, entry: &ResolvedPath) -> Result<(), Errno> {
    let name = Path::new(trim(&entry.name));
    // Programs ask for the addresses of their temporary sockets, to pass them on.
    if entry.area == Area::Own
        && let Ok(address) = SocketAddrUnix::new(entry.path.with_file_name(name))
    {
        return bind_below(socket, &entry.folder, &address);
    }
    let address = SocketAddrUnix::new(name)?;
    rustix::process::fchdir(&entry.folder)?;
    let bound = rustix::net::bind(socket, &address);
    rustix::process::chdir("/")?;
    bound
}

/// Binds by a path that must lead below the folder. The command can replace a part of the path by a link, so a thread
/// that makes sockets in no other folder follows it.
fn bind_below(socket: &OwnedFd, folder: &OwnedFd, address: &SocketAddrUnix) -> Result<(), Errno> {
    let bound = thread::scope(|scope| {
        let binder = scope.spawn(|| {
            sandbox::restrict_new_sockets(folder.as_fd()).map_err(|_| Errno::ACCESS)?;
            rustix::net::bind(socket, address)
        });
        binder.join()
    });
    bound.unwrap_or(Err(Errno::ACCESS))
}

/// Gives an unnamed file its first name.
pub(super) fn link_unnamed(file: &OwnedFd, to: &ResolvedPath) -> Result<(), Errno> {
    rustix::fs::linkat(CWD, own_path(file), &to.folder, &to.name, AtFlags::SYMLINK_FOLLOW)
}

pub(super) fn rename(from: &ResolvedPath, to: &ResolvedPath, flags: u32) -> Result<(), Errno> {
    let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
    if flags.contains(RenameFlags::WHITEOUT) {
        return Err(Errno::PERM);
    }
    rustix::fs::renameat_with(&from.folder, &from.name, &to.folder, &to.name, flags)
}

pub(super) fn remove(entry: &ResolvedPath, is_folder: bool) -> Result<(), Errno> {
    let flags = if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    rustix::fs::unlinkat(&entry.folder, &entry.name, flags)
}

/// Fails with `EAGAIN` like [`open`].
pub(super) fn truncate(target: &ResolvedFile, length: i64) -> Result<(), Errno> {
    let length = u64::try_from(length).map_err(|_| Errno::INVAL)?;
    match FileType::from_raw_mode(target.stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(Errno::ISDIR),
        _ => return Err(Errno::INVAL),
    }
    // The descriptor leads to a regular file, so opening it never waits.
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(own_path(&target.file), flags, Mode::empty())?;
    rustix::fs::ftruncate(&file, length)
}

pub(super) fn change(target: &ResolvedFile, change: &AttributeChange) -> Result<(), Errno> {
    let is_link = FileType::from_raw_mode(target.stat.st_mode) == FileType::Symlink;
    if target.leads_to_protected && changes_rights(change) {
        return Err(Errno::PERM);
    }
    match change {
        AttributeChange::Mode(_) if is_link => Err(Errno::OPNOTSUPP),
        AttributeChange::Mode(mode) if !is_mode_permitted(target, *mode) => Err(Errno::PERM),
        AttributeChange::Mode(mode) => match kernel::change_mode(target.file.as_fd(), mode & 0o7777) {
            Ok(()) => Ok(()),
            // Before Linux 6.6, or in a container that denies a call which it does not know.
            Err(_) => rustix::fs::chmod(own_path(&target.file), Mode::from_raw_mode(mode & 0o7777)),
        },
        AttributeChange::Owner(user, group) => {
            let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
            rustix::fs::chownat(&target.file, "", user, group, AtFlags::EMPTY_PATH)
        }
        AttributeChange::Times([last_access, last_modification]) => {
            let times = Timestamps {
                last_access: timespec(*last_access),
                last_modification: timespec(*last_modification),
            };
            rustix::fs::utimensat(&target.file, "", &times, AtFlags::EMPTY_PATH)
        }
        AttributeChange::SetAttribute { .. } | AttributeChange::RemoveAttribute { .. } if is_link => {
            Err(Errno::PERM)
        }
        AttributeChange::SetAttribute { name: attribute, value, flags } => {
            permitted(attribute.as_bytes())?;
            if is_own_root(target) && changes_rights(change) {
                return Err(Errno::PERM);
            }
            let flags = XattrFlags::from_bits(*flags).ok_or(Errno::INVAL)?;
            rustix::fs::setxattr(own_path(&target.file), attribute, value, flags)
        }
        AttributeChange::RemoveAttribute { name: attribute } => {
            permitted(attribute.as_bytes())?;
            rustix::fs::removexattr(own_path(&target.file), attribute)
        }
    }
}

/// A folder in the workspace may hand its group on. The rights of a command's own folder keep other users out.
fn is_mode_permitted(target: &ResolvedFile, mode: u32) -> bool {
    let is_folder = FileType::from_raw_mode(target.stat.st_mode).is_dir();
    let special = match target.area {
        Area::Workspace | Area::Unrecorded if is_folder => 0o1000 | 0o2000,
        Area::Workspace | Area::Unrecorded | Area::Own => 0o1000,
    };
    let opens = mode & 0o077 & !target.stat.st_mode != 0;
    mode & 0o7777 & !(0o777 | special) == 0 && !(is_own_root(target) && opens)
}

fn is_own_root(target: &ResolvedFile) -> bool {
    target.is_root && target.area == Area::Own
}

/// Returns true if the change decides who may use the file.
fn changes_rights(change: &AttributeChange) -> bool {
    match change {
        AttributeChange::Mode(_) | AttributeChange::Owner(..) => true,
        AttributeChange::Times(_) => false,
        AttributeChange::SetAttribute { name, .. } | AttributeChange::RemoveAttribute { name } => {
            name.as_bytes().starts_with(ACCESS_LISTS)
        }
    }
}

fn permitted(attribute: &[u8]) -> Result<(), Errno> {
    let is_permitted = ATTRIBUTES.iter().any(|prefix| attribute.starts_with(prefix));
    if is_permitted { Ok(()) } else { Err(Errno::PERM) }
}

fn timespec(time: FileTime) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_takes_common_flags() {
        let parts: Vec<OFlags> = COMMON_FLAGS.iter().collect();
        let (mut common, mut count) = (0, 0);
        for chosen in 0..1_u32 << parts.len() {
            let chosen = parts.iter().enumerate().filter(|(index, _)| chosen >> index & 1 == 1);
            let flags: OFlags = chosen.map(|(_, flag)| *flag).collect();
            for mode in [0, 0o644, 0o7777, 0o10_000] {
                let mode = Mode::from_bits_retain(mode);
                let opened = rustix::fs::openat2(CWD, "", flags, mode, ResolveFlags::empty());
                count += 1;
                if are_common(flags, mode) {
                    common += 1;
                    assert_eq!(opened.err(), Some(Errno::NOENT), "{flags:?} {mode:?}");
                }
            }
        }
        assert!(common > 100 && common < count);
        for (flags, mode) in [(OFlags::CREATE | OFlags::DIRECTORY, 0), (OFlags::WRONLY, 0o644)] {
            assert!(!are_common(flags, Mode::from_raw_mode(mode)), "{flags:?}");
        }
    }
}
