//! Opens files for reading for a command that rules keep from reading some files.
//!
//! Landlock cannot deny single files, so every call that opens a file for reading is suspended. Such a call never
//! runs: between a look at its path and the call, the path could change. It gets a descriptor of the file that was
//! checked.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::moved::{self, MovedEntry};
use super::operation::CallPath;
use super::resolve::ResolvedPath;
use super::terminals::{Terminal, Terminals};
use super::tracee::{self, NamedFile, Tracee};
use crate::sandbox::READABLE_DEVICES;
use crate::sandbox::denied_reads::{DeniedFiles, DeniedReads};

/// Files of other processes in `/proc` that every user may read.
const PUBLIC: [&str; 11] = [
    "cgroup",
    "cmdline",
    "comm",
    "limits",
    "mountinfo",
    "mounts",
    "oom_score",
    "oom_score_adj",
    "stat",
    "statm",
    "status",
];

/// Always readable.
const NULL_DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];

const PROC_TYPE: rustix::fs::FsWord = 0x9fa0;

/// Flags of the caller that apply to a file that exists.
const FLAGS: OFlags = OFlags::CLOEXEC
    .union(OFlags::NONBLOCK)
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOATIME)
    .union(OFlags::DIRECT)
    .union(OFlags::APPEND)
    .union(OFlags::SYNC);

#[derive(Debug)]
pub(in crate::supervisor) struct Reads {
    denied: DeniedFiles,
    /// Files and folders that the command may read; `None` for all.
    readable: Option<Vec<PathBuf>>,
    /// Locked while an entry is moved: what is moved is looked through first.
    pub(super) moving: Mutex<()>,
}

pub(super) enum OpenedForReading {
    File(OwnedFd),
    /// A named pipe, by a path descriptor. Opening it waits for a writer.
    Pipe(OwnedFd),
}

impl Reads {
    /// # Errors
    /// Returns a sentence if a pattern is no glob.
    pub(in crate::supervisor) fn new(
        denied: &DeniedReads,
        readable: Option<Vec<PathBuf>>,
    ) -> Result<Self, String> {
        Ok(Self { denied: denied.compile()?, readable, moving: Mutex::default() })
    }

    pub(super) fn deny(&self, path: &Path) -> bool {
        self.denied.contain(path)
    }

    /// Opens an existing file for a caller that is still suspended.
    ///
    /// # Errors
    /// Returns the error of the call.
    pub(super) fn open(
        &self,
        tracee: &Tracee<'_>,
        at: &CallPath,
        flags: OFlags,
        terminals: &Terminals,
    ) -> Result<OpenedForReading, Errno> {
        let (mut file, descriptor) = find(tracee, at, flags)?;
        let mut stat = rustix::fs::fstat(&file)?;
        let mut path = tracee::name_of(&file)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if is_in_proc(&file)? {
            if let Some(path_of_caller) = path_of_caller(tracee, &path)? {
                file = open_path(CWD, &path_of_caller, OFlags::empty())?;
                stat = rustix::fs::fstat(&file)?;
                path = path_of_caller;
            }
            check_process(tracee, &path, kind)?;
        }
        match kind {
            FileType::Symlink => return Err(Errno::LOOP),
            FileType::Socket => return Err(Errno::NXIO),
            // Holds the content of all files.
            FileType::BlockDevice => return Err(Errno::ACCESS),
            _ => {}
        }
        if let (FileType::CharacterDevice, Some(terminal)) = (kind, Terminal::named(&path)) {
            if !tracee.is_suspended() {
                return Err(Errno::SRCH);
            }
            let opened = terminals.open(terminal, flags, tracee).unwrap_or(Err(Errno::NXIO));
            return opened.map(OpenedForReading::File);
        }
        // Other devices have input, output or files of the user.
        if kind == FileType::CharacterDevice
            && !READABLE_DEVICES.iter().any(|device| path == Path::new(device))
        {
            return Err(Errno::ACCESS);
        }
        self.check(&path, &stat, kind, descriptor)?;
        if !tracee.is_suspended() {
            return Err(Errno::SRCH);
        }
        if kind == FileType::Fifo && path.is_absolute() && !flags.contains(OFlags::NONBLOCK) {
            return Ok(OpenedForReading::Pipe(file));
        }
        // Never waits, because no mode can be changed meanwhile.
        let wanted = flags & FLAGS | OFlags::NOCTTY;
        let opened = rustix::fs::open(tracee::own_path(&file), wanted | OFlags::NONBLOCK, Mode::empty())?;
        if !flags.contains(OFlags::NONBLOCK) {
            let set = rustix::fs::fcntl_getfl(&opened)?;
            rustix::fs::fcntl_setfl(&opened, set - OFlags::NONBLOCK)?;
        }
        Ok(OpenedForReading::File(opened))
    }

    fn check(
        &self,
        path: &Path,
        stat: &Stat,
        kind: FileType,
        descriptor: Option<NamedFile>,
    ) -> Result<(), Errno> {
        match descriptor {
            // An anonymous pipe.
            Some(_) if !path.is_absolute() => return Ok(()),
            // Its name tells nothing any more. The caller may have opened it for reading before.
            Some(NamedFile { is_readable }) if stat.st_nlink == 0 && kind.is_file() => {
                return if is_readable { Ok(()) } else { Err(Errno::ACCESS) };
            }
            None if stat.st_nlink == 0 => return Err(Errno::NOENT),
            _ => {}
        }
        let is_readable = self.readable.as_ref().is_none_or(|readable| {
            let mut places = readable.iter().map(PathBuf::as_path).chain(NULL_DEVICES.map(Path::new));
            places.any(|place| path.starts_with(place))
        });
        if !is_readable || !kind.is_dir() && self.deny(path) { Err(Errno::ACCESS) } else { Ok(()) }
    }

    /// Returns true if moving an entry would make a denied file readable, or if the entry cannot be looked through.
    pub(super) fn deny_moving(&self, entry: &ResolvedPath, to: &Path) -> bool {
        // Rules deny the files of a folder, and leave its names readable.
        let frees = |file: &MovedEntry<'_>| !file.is_folder && self.deny(file.old) && !self.deny(file.new);
        moved::any(entry, to, frees).unwrap_or(true)
    }
}

/// The file that the caller's path names, by a path descriptor. Links in `/proc` are followed for the caller's own
/// descriptors, folders and program only.
pub(super) fn find(
    tracee: &Tracee<'_>,
    at: &CallPath,
    flags: OFlags,
) -> Result<(OwnedFd, Option<NamedFile>), Errno> {
    if at.path.as_os_str().is_empty() {
        return Err(Errno::NOENT);
    }
    let no_follow = flags & OFlags::NOFOLLOW;
    if let Some((file, named, rest)) = tracee.own_file(&at.path)? {
        return match rest {
            Some(rest) => open_path(&file, &rest, no_follow).map(|file| (file, None)),
            None if no_follow.is_empty() => Ok((file, Some(named))),
            None => Err(Errno::LOOP),
        };
    }
    let base = if at.path.is_absolute() { None } else { Some(tracee.folder(at.folder)?) };
    let base = base.as_ref().map_or(CWD, AsFd::as_fd);
    open_path(base, &at.path, no_follow).map(|file| (file, None))
}

fn open_path(base: impl AsFd, path: &Path, no_follow: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | no_follow;
    rustix::fs::openat2(base, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
}

fn is_in_proc(file: &OwnedFd) -> Result<bool, Errno> {
    Ok(rustix::fs::fstatfs(file)?.f_type == PROC_TYPE)
}

/// The components of a path below `/proc`.
fn proc_parts(path: &Path) -> Option<Vec<&str>> {
    path.strip_prefix("/proc").ok()?.iter().map(OsStr::to_str).collect()
}

/// Where a link such as `/proc/self` leads for the caller, if the path names this process.
fn path_of_caller(tracee: &Tracee<'_>, path: &Path) -> Result<Option<PathBuf>, Errno> {
    let parts = proc_parts(path).ok_or(Errno::ACCESS)?;
    let [first, rest @ ..] = &parts[..] else { return Ok(None) };
    if *first != std::process::id().to_string() {
        return Ok(None);
    }
    let process = tracee.process().ok_or(Errno::SRCH)?;
    let folder = PathBuf::from(format!("/proc/{process}"));
    let folder = match rest {
        ["task", _, rest @ ..] => rest
            .iter()
            .fold(folder.join("task").join(tracee.call.thread.to_string()), |at, part| at.join(part)),
        rest => rest.iter().fold(folder, |at, part| at.join(part)),
    };
    Ok(Some(folder))
}

/// The supervisor may read more of other processes than its command.
fn check_process(tracee: &Tracee<'_>, path: &Path, kind: FileType) -> Result<(), Errno> {
    let parts = proc_parts(path).ok_or(Errno::ACCESS)?;
    let Some(process) = parts.first().and_then(|first| first.parse::<u32>().ok()) else { return Ok(()) };
    if Some(process) == tracee.process() || kind.is_dir() {
        return Ok(());
    }
    let is_public = parts.last().is_some_and(|name| PUBLIC.contains(name));
    if is_public { Ok(()) } else { Err(Errno::ACCESS) }
}

/// Opens a named pipe for reading when a writer opens it.
pub(super) fn open_pipe(file: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(tracee::own_path(file), flags & FLAGS, Mode::empty())
}
