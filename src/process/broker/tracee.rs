//! The thread that made a suspended call. What is read here belongs to the caller only if the call is still
//! suspended afterwards; see [`Tracee::is_suspended`].

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{self, Pid, PidfdFlags, PidfdGetfdFlags};

use crate::sandbox::kernel::notification::{self, Call};

pub(super) struct Tracee<'a> {
    pub(super) listener: &'a OwnedFd,
    pub(super) call: &'a Call,
}

impl Tracee<'_> {
    /// Copies as many bytes as are readable.
    pub(super) fn memory(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        let count = notification::read_memory(self.call.thread, address, &mut bytes).ok()?;
        bytes.truncate(count);
        Some(bytes)
    }

    pub(super) fn is_suspended(&self) -> bool {
        notification::is_suspended(self.listener, self.call.id)
    }

    /// The folder of a relative path; `None` is the working directory.
    pub(super) fn folder(&self, descriptor: Option<i32>) -> Result<OwnedFd, Errno> {
        match descriptor {
            Some(number) => self.descriptor(number),
            None => open_path(&format!("/proc/{}/cwd", self.call.thread)),
        }
    }

    pub(super) fn descriptor(&self, number: i32) -> Result<OwnedFd, Errno> {
        let opened = open_path(&format!("/proc/{}/fd/{number}", self.call.thread));
        opened.map_err(|error| if error == Errno::NOENT { Errno::BADF } else { error })
    }

    /// A copy of the caller's own descriptor.
    pub(super) fn copy(&self, number: i32) -> Result<OwnedFd, Errno> {
        copy_descriptor(self.call.thread, number)
    }

    /// The descriptor that a path in `/proc/self/fd` stands for.
    pub(super) fn named(&self, number: i32) -> Result<OwnedFd, Errno> {
        self.descriptor(number).map_err(|error| if error == Errno::BADF { Errno::NOENT } else { error })
    }

    pub(super) fn umask(&self) -> Option<Mode> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.call.thread)).ok()?;
        let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
        u32::from_str_radix(umask.trim(), 8).ok().map(Mode::from_raw_mode)
    }
}

/// Flag of `pidfd_open` since Linux 6.9. Threads can have tables of their own.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());

/// Copies a descriptor of a thread.
pub(super) fn copy_descriptor(thread: u32, number: i32) -> Result<OwnedFd, Errno> {
    let thread = i32::try_from(thread).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let thread = process::pidfd_open(thread, PIDFD_THREAD)?;
    process::pidfd_getfd(thread, number, PidfdGetfdFlags::empty())
}

fn open_path(path: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// The number of the caller's own descriptor that the path names.
pub(super) fn named_descriptor(path: &Path) -> Option<i32> {
    match path.to_str()? {
        "/dev/stdin" => Some(0),
        "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        text => {
            let folders = ["/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/"];
            let name = folders.iter().find_map(|folder| text.strip_prefix(folder))?;
            name.bytes().all(|byte| byte.is_ascii_digit()).then(|| name.parse().ok())?
        }
    }
}

/// A path of this process that leads to the descriptor's file.
pub(super) fn own_path(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

/// The file's name, without symbolic links.
pub(super) fn name_of(file: impl AsFd) -> Result<PathBuf, Errno> {
    let name = rustix::fs::readlinkat(CWD, own_path(file), Vec::new())?;
    Ok(OsString::from_vec(name.into_bytes()).into())
}
