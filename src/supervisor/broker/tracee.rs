//! The thread that made a suspended call. What is read here belongs to the caller only if the call is still
//! suspended afterwards; see [`Tracee::is_suspended`].

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{self, Pid, PidfdFlags, PidfdGetfdFlags};

use super::notification::{self, CallListener, SuspendedCall};

pub(super) struct Tracee<'a> {
    pub(super) listener: &'a CallListener,
    pub(super) call: &'a SuspendedCall,
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
        self.listener.is_suspended(self.call)
    }

    /// Runs `action` if the call is still suspended: only then did its arguments come from its caller.
    pub(super) fn if_suspended<T>(&self, action: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        if self.is_suspended() { action() } else { Err(Errno::SRCH) }
    }

    /// Runs `action` with the caller's umask if the call is still suspended. The thread must have a umask of its own.
    pub(super) fn with_umask<T>(&self, action: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let umask = self.umask().ok_or(Errno::SRCH)?;
        self.if_suspended(|| {
            process::umask(umask);
            action()
        })
    }

    /// The folder of a relative path; `None` is the working directory.
    pub(super) fn folder(&self, descriptor: Option<i32>) -> Result<OwnedFd, Errno> {
        match descriptor {
            Some(number) => self.descriptor(number),
            None => open_path(&self.folder_link(None)),
        }
    }

    /// The link of `/proc` that leads to the folder of a relative path.
    pub(super) fn folder_link(&self, descriptor: Option<i32>) -> String {
        let thread = self.call.thread;
        match descriptor {
            Some(number) => format!("/proc/{thread}/fd/{number}"),
            None => format!("/proc/{thread}/cwd"),
        }
    }

    pub(super) fn descriptor(&self, number: i32) -> Result<OwnedFd, Errno> {
        let opened = open_path(&self.folder_link(Some(number)));
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

    /// A path that leads through a link of `/proc` that only the caller's own process can follow: to one of its
    /// descriptors, folders or its program. Returns the file, and the rest of the path if there is one.
    pub(super) fn own_file(
        &self,
        path: &Path,
    ) -> Result<Option<(OwnedFd, NamedFile, Option<PathBuf>)>, Errno> {
        let parts: Option<Vec<&str>> = path.iter().map(OsStr::to_str).collect();
        let Some(parts) = parts else { return Ok(None) };
        let thread = self.call.thread;
        let inside = match &parts[..] {
            ["/", "dev", "stdin"] => return self.own_descriptor("0", &[]).map(Some),
            ["/", "dev", "stdout"] => return self.own_descriptor("1", &[]).map(Some),
            ["/", "dev", "stderr"] => return self.own_descriptor("2", &[]).map(Some),
            ["/", "dev", "fd", number, rest @ ..] => return self.own_descriptor(number, rest).map(Some),
            ["/", "proc", "self" | "thread-self", inside @ ..] => inside,
            ["/", "proc", number, inside @ ..] if self.is_own(number) => inside,
            _ => return Ok(None),
        };
        let (file, rest) = match inside {
            ["fd", number, rest @ ..] => return self.own_descriptor(number, rest).map(Some),
            [name @ ("cwd" | "root" | "exe"), rest @ ..] => {
                (open_path(&format!("/proc/{thread}/{name}"))?, rest)
            }
            // The process's own folder is that of its first thread.
            _ if parts[2] == "thread-self" => {
                let process = self.process().ok_or(Errno::SRCH)?;
                (open_path(&format!("/proc/{process}/task/{thread}"))?, inside)
            }
            _ => {
                let process = self.process().ok_or(Errno::SRCH)?;
                (open_path(&format!("/proc/{process}"))?, inside)
            }
        };
        Ok(Some((file, NamedFile { is_readable: false }, joined(rest))))
    }

    fn own_descriptor(
        &self,
        number: &str,
        rest: &[&str],
    ) -> Result<(OwnedFd, NamedFile, Option<PathBuf>), Errno> {
        let number = number.parse().map_err(|_| Errno::NOENT)?;
        let file = self.named(number)?;
        Ok((file, NamedFile { is_readable: self.is_readable(number) }, joined(rest)))
    }

    fn is_own(&self, number: &str) -> bool {
        let number: Option<u32> = number.parse().ok();
        number.is_some_and(|number| number == self.call.thread || Some(number) == self.process())
    }

    /// Returns true if the caller has opened a descriptor for reading.
    fn is_readable(&self, number: i32) -> bool {
        let info =
            fs::read_to_string(format!("/proc/{}/fdinfo/{number}", self.call.thread)).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        flags.map(OFlags::from_bits_retain).is_some_and(|flags| {
            !flags.contains(OFlags::PATH) && matches!(flags & OFlags::ACCMODE, OFlags::RDONLY | OFlags::RDWR)
        })
    }

    /// The process of the thread.
    pub(super) fn process(&self) -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.call.thread)).ok()?;
        status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
    }

    fn umask(&self) -> Option<Mode> {
        // The second line. The first has a name of at most 64 characters, each with at most four.
        let mut start = [0; 512];
        let mut status = File::open(format!("/proc/{}/status", self.call.thread)).ok()?;
        let length = status.read(&mut start).ok()?;
        umask_of(&start[..length])
    }
}

/// The umask in the whole lines at the start of a thread's status.
fn umask_of(status: &[u8]) -> Option<Mode> {
    let mut lines = status.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
    let umask = str::from_utf8(lines.find_map(|line| line.strip_prefix(b"Umask:"))?).ok()?;
    u32::from_str_radix(umask.trim(), 8).ok().map(Mode::from_raw_mode)
}

/// A file that was found by a descriptor of the caller, or by another link of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct NamedFile {
    /// True for a descriptor that was opened for reading.
    pub(super) is_readable: bool,
}

fn joined(parts: &[&str]) -> Option<PathBuf> {
    (!parts.is_empty()).then(|| parts.iter().collect())
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

/// Returns true if the path leads to files of whatever process resolves it.
pub(super) fn depends_on_process(path: &Path) -> bool {
    let mut parts = path.iter().filter_map(OsStr::to_str);
    let (root, folder, name) = (parts.next(), parts.next(), parts.next());
    root == Some("/")
        && match (folder, name) {
            (Some("proc"), Some(name)) => matches!(name, "self" | "thread-self"),
            (Some("dev"), Some(name)) => matches!(name, "fd" | "stdin" | "stdout" | "stderr"),
            _ => false,
        }
}

/// Landlock lets the null device be written under every policy, and nothing is opened more often.
pub(super) fn is_null_device(path: &Path) -> bool {
    path.as_os_str() == "/dev/null"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn umask_is_read_from_whole_lines_only() {
        let status = b"Name:\tUmask:\\n0777\nUmask:\t0027\nState:\tS (sleeping)\n";
        assert_eq!(umask_of(status), Some(Mode::from_raw_mode(0o027)));
        for start in [&b""[..], b"Name:\tsh\n", b"Name:\tsh\nUmask:\t00", b"Name:\tsh\nUmask:\t0027"] {
            assert_eq!(umask_of(start), None, "{:?}", String::from_utf8_lossy(start));
        }
    }
}
