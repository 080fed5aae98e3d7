//! Changes rights and times of files in a command's own folder, on request of the command. The kernel resolves
//! every path below the folder, so no name, link or descriptor leads to a file elsewhere.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

use crate::sandbox::attributes::{Change, Object, Request, Time, request};
use crate::sandbox::kernel::{self, Call};

/// Setuid and setgid, which would give another user's rights to whoever runs the file.
const PRIVILEGES: u32 = 0o6000;

pub(super) struct OwnFolder {
    /// As the command knows it, and without symbolic links.
    names: [PathBuf; 2],
    folder: OwnedFd,
    number: u64,
}

impl OwnFolder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())?;
        let number = rustix::fs::fstat(&folder)?.st_ino;
        Ok(Self { names: [path.to_owned(), fs::canonicalize(path)?], folder, number })
    }

    /// Answers one suspended call.
    pub(super) fn answer(&self, listener: &OwnedFd) {
        // The caller may be gone.
        let Ok(call) = kernel::receive(listener) else { return };
        let outcome = self.carry_out(&call).map_err(Errno::raw_os_error);
        let _ = kernel::respond(listener, &call, outcome);
    }

    fn carry_out(&self, call: &Call) -> Result<(), Errno> {
        let memory = fs::File::open(format!("/proc/{}/mem", call.thread)).map_err(|_| Errno::PERM)?;
        let read = |address, length| {
            let mut bytes = vec![0; length];
            let count = memory.read_at(&mut bytes, address).ok()?;
            bytes.truncate(count);
            Some(bytes)
        };
        let Request { object, change } = request(call, &read).ok_or(Errno::PERM)?;
        let (file, found) = self.find(call.thread, &object)?;
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        match change {
            Change::Mode(mode) if mode & PRIVILEGES != 0 => Err(Errno::PERM),
            Change::Mode(mode) => rustix::fs::chmod(name, Mode::from_raw_mode(mode)),
            Change::Owner(user, group) => {
                let is_same = user.is_none_or(|user| user == found.st_uid)
                    && group.is_none_or(|group| group == found.st_gid);
                if is_same { Ok(()) } else { Err(Errno::PERM) }
            }
            Change::Times([last_access, last_modification]) => {
                let times = Timestamps {
                    last_access: timespec(last_access),
                    last_modification: timespec(last_modification),
                };
                rustix::fs::utimensat(CWD, name, &times, AtFlags::empty())
            }
        }
    }

    /// Opens the file if it is below the folder.
    fn find(&self, thread: u32, object: &Object) -> Result<(OwnedFd, Stat), Errno> {
        let descriptor = |number: i32| format!("/proc/{thread}/fd/{number}");
        let place = |link: String| fs::read_link(link).map_err(|_| Errno::PERM);
        let (path, follows_link) = match object {
            Object::Descriptor(number) => (place(descriptor(*number))?, false),
            Object::Path { path, follows_link, .. } if path.is_absolute() => (path.clone(), *follows_link),
            Object::Path { folder, path, follows_link } => {
                let folder = folder.map_or_else(|| format!("/proc/{thread}/cwd"), descriptor);
                (place(folder)?.join(path), *follows_link)
            }
        };
        let below = self.names.iter().find_map(|name| path.strip_prefix(name).ok()).ok_or(Errno::PERM)?;
        let no_follow = if follows_link { OFlags::empty() } else { OFlags::NOFOLLOW };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let flags = OFlags::PATH | OFlags::CLOEXEC | no_follow;
        let file =
            rustix::fs::openat2(&self.folder, below, flags, Mode::empty(), resolve).map_err(|error| {
                if matches!(error, Errno::XDEV | Errno::LOOP) { Errno::PERM } else { error }
            })?;
        let found = rustix::fs::fstat(&file)?;
        // A descriptor's name may have passed to another file.
        let is_named = match object {
            Object::Descriptor(number) => {
                let named = rustix::fs::stat(descriptor(*number))?;
                (named.st_dev, named.st_ino) == (found.st_dev, found.st_ino)
            }
            Object::Path { .. } => true,
        };
        // The folder's own rights keep other users out.
        if is_named && found.st_ino != self.number { Ok((file, found)) } else { Err(Errno::PERM) }
    }
}

fn timespec(time: Time) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds }
}
