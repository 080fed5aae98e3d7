//! Takes back what was handed over when the policy becomes tighter: afterwards no process below the supervisor can
//! write to a file or named pipe of the workspace through an old descriptor or mapping.
//!
//! A read lease tells whether a file is open for writing, also by a descriptor that is on its way through a socket. On
//! most file systems of this machine a shared mapping counts, too. On overlayfs it does not: there, the mappings of
//! all processes are looked through.

mod mappings;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{self, Pid, Signal};

use mappings::{MappedFile, SharedMappings};

use super::caller;
use super::resolve::{FileIdentity, ResolvedPath, identity, is_same};
use super::tracee::{self, own_path};
use crate::kernel;
use crate::supervisor::children::descendants;
use crate::supervisor::protocol::EndedWriter;

/// How long processes may go on with the files that they are writing.
const GRACE: Duration = Duration::from_millis(50);

/// How long the end of the processes that still write may take.
const DEADLINE: Duration = Duration::from_secs(1);

const INTERVAL: Duration = Duration::from_millis(2);

/// Number of remembered files after which those without a writer are forgotten.
const PRUNE_AT: usize = 512;

/// Number of remembered named pipes after which those that no process has open are forgotten.
const MAX_PIPES: usize = 64;

/// Types of file systems on which a file knows all its writers: ext2 to ext4, xfs, btrfs, f2fs, bcachefs, tmpfs.
const LOCAL: [rustix::fs::FsWord; 6] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0xca45_1a4e, 0x0102_1994];

/// A shared mapping belongs to the file of the layer below.
const OVERLAY: rustix::fs::FsWord = 0x794c_7630;

/// Files that were handed over for writing and may still have a writer.
#[derive(Debug)]
pub(super) struct HandedOver {
    /// Opened with `O_PATH`, which is no obstacle to other programs.
    files: HashMap<FileIdentity, OwnedFd>,
    /// Named pipes. No lease tells whether they have a writer. Kept open, so that no other has the number.
    pipes: HashMap<FileIdentity, OwnedFd>,
    /// New files in caches, which nothing needs while they are unfinished.
    disposable: HashSet<FileIdentity>,
    caches: Vec<PathBuf>,
    prune_at: usize,
    /// Set if the file system of a file cannot tell whether it has a writer.
    is_unknown: bool,
}

/// Opens a file for writing, again if it fails with `EAGAIN`: [`HandedOver`] takes a lease of each file for a moment.
pub(super) fn past_own_leases<T>(
    handed_over: &Mutex<HandedOver>,
    open: impl Fn() -> Result<T, Errno>,
) -> Result<T, Errno> {
    match open() {
        Err(Errno::AGAIN) => {
            let _no_leases = handed_over.lock().unwrap_or_else(PoisonError::into_inner);
            open()
        }
        opened => opened,
    }
}

impl Default for HandedOver {
    fn default() -> Self {
        Self {
            files: HashMap::new(),
            pipes: HashMap::new(),
            disposable: HashSet::new(),
            caches: Vec::new(),
            prune_at: PRUNE_AT,
            is_unknown: false,
        }
    }
}

/// The end of a tightening.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Revoked {
    /// Processes that were killed.
    pub(super) ended: Vec<EndedWriter>,
    /// False if a process may still be able to write.
    pub(super) is_complete: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writers {
    Gone,
    /// No descriptor can write, but a mapping may.
    Mapped,
    Some,
    Unknown,
}

impl HandedOver {
    pub(super) fn limit_caches(&mut self, caches: Vec<PathBuf>) {
        self.caches = caches;
    }

    /// Remembers a file before it is handed over. `entry` is where it was opened, and `is_new` is true if the call has
    /// made it.
    pub(super) fn add(
        &mut self,
        file: &OwnedFd,
        identity: FileIdentity,
        entry: Option<&ResolvedPath>,
        is_new: bool,
    ) -> Result<(), Errno> {
        if !is_new {
            // Another opening may complete it.
            self.disposable.remove(&identity);
        }
        if self.files.contains_key(&identity) {
            return Ok(());
        }
        if self.files.len() >= self.prune_at {
            self.prune();
            self.prune_at = PRUNE_AT.max(2 * self.files.len());
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let path_descriptor = match entry.and_then(|entry| by_name(entry, identity)) {
            Some(found) => found,
            None => rustix::fs::open(own_path(file), flags, Mode::empty())?,
        };
        // The file is deleted only if the name still leads to it.
        let is_in_cache =
            |entry: &ResolvedPath| self.caches.iter().any(|cache| entry.path.starts_with(cache));
        if is_new && entry.map_or_else(|| self.is_in_cache(&path_descriptor), is_in_cache) {
            self.disposable.insert(identity);
        }
        self.files.insert(identity, path_descriptor);
        Ok(())
    }

    fn is_in_cache(&self, file: &OwnedFd) -> bool {
        let path = tracee::name_of(file).unwrap_or_default();
        self.caches.iter().any(|cache| path.starts_with(cache))
    }

    /// Remembers a named pipe before it is handed over.
    pub(super) fn add_pipe(&mut self, pipe: &OwnedFd) -> Result<(), Errno> {
        let identity = identity(pipe)?;
        if self.pipes.contains_key(&identity) {
            return Ok(());
        }
        if self.pipes.len() >= MAX_PIPES {
            self.pipes.retain(|_, pipe| !holders(&[WrittenFile::pipe(pipe)]).is_empty());
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        self.pipes.insert(identity, rustix::fs::open(own_path(pipe), flags, Mode::empty())?);
        Ok(())
    }

    fn prune(&mut self) {
        let mut may_be_mapped = Vec::new();
        let is_unknown = &mut self.is_unknown;
        self.files.retain(|identity, file| match writers(file) {
            Writers::Some => true,
            Writers::Gone => false,
            Writers::Mapped => {
                may_be_mapped.push(*identity);
                true
            }
            Writers::Unknown => {
                *is_unknown = true;
                false
            }
        });
        if !may_be_mapped.is_empty() {
            // From here on, none of these files can be mapped anew.
            let mappings = SharedMappings::of_descendants();
            for identity in may_be_mapped {
                self.files.retain(|found, file| *found != identity || mappings.may_have(file));
            }
        }
        self.disposable.retain(|identity| self.files.contains_key(identity));
    }

    /// Deletes unfinished files of caches, so that their writers can go on: what they write is lost with the file. The
    /// policy lets no process move the file meanwhile.
    fn dispose(&mut self) {
        for identity in std::mem::take(&mut self.disposable) {
            if let Some(file) = self.files.get(&identity).filter(|file| self.is_in_cache(file)) {
                // Otherwise the writer is killed.
                let _ = delete(file);
            }
        }
    }

    /// Files that still have a writer.
    pub(super) fn open_for_writing(&mut self) -> impl Iterator<Item = &OwnedFd> {
        self.prune();
        self.files.values()
    }

    /// Files that have a name and a writer.
    fn written(&self) -> Vec<WrittenFile> {
        self.files.values().filter(|file| is_named(file)).map(WrittenFile::file).collect()
    }

    /// Waits for writers, and kills those that do not finish. No further file may be handed over meanwhile.
    pub(super) fn revoke(&mut self) -> Revoked {
        let start = Instant::now();
        let mut ended = Vec::new();
        let mut killed = HashSet::new();
        loop {
            self.prune();
            let is_written = self.files.values().any(is_named);
            if self.is_unknown {
                return Revoked { ended, is_complete: false };
            }
            let pipes: Vec<_> = self.pipes.values().map(WrittenFile::pipe).collect();
            if !is_written && (pipes.is_empty() || holders(&pipes).is_empty()) {
                self.pipes.clear();
                return Revoked { ended, is_complete: true };
            }
            let elapsed = start.elapsed();
            if elapsed > DEADLINE {
                return Revoked { ended, is_complete: false };
            }
            if elapsed > GRACE {
                self.dispose();
                let written: Vec<_> = self.written().into_iter().chain(pipes).collect();
                for (holder, path) in holders(&written) {
                    if killed.insert(holder) {
                        let program = caller::name(holder.as_raw_pid().unsigned_abs());
                        ended.push(EndedWriter { program, path });
                    }
                    // It may have just ended.
                    let _ = process::kill_process(holder, Signal::KILL);
                }
            }
            thread::sleep(INTERVAL);
        }
    }
}

/// Opens a file by the name of its entry, which takes half as long as by its descriptor. `None` if the name leads to
/// another file by now.
fn by_name(entry: &ResolvedPath, expected: FileIdentity) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&entry.folder, &entry.name, flags, Mode::empty()).ok()?;
    identity(&file).is_ok_and(|found| found == expected).then_some(file)
}

/// A file or named pipe whose writers are looked for.
struct WrittenFile {
    identity: Option<FileIdentity>,
    /// `None` if the file cannot be mapped.
    mapped: Option<MappedFile>,
    path: PathBuf,
}

impl WrittenFile {
    fn pipe(pipe: &OwnedFd) -> Self {
        let path = tracee::name_of(pipe).unwrap_or_default();
        Self { identity: identity(pipe).ok(), mapped: None, path }
    }

    fn file(file: &OwnedFd) -> Self {
        Self { mapped: mappings::listed(file), ..Self::pipe(file) }
    }
}

/// Deletes the only name of a file.
fn delete(file: &OwnedFd) -> Result<(), Errno> {
    let path = tracee::name_of(file)?;
    let (folder, name) = path.parent().zip(path.file_name()).ok_or(Errno::NOENT)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::openat2(CWD, folder, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let (named, stat) =
        (rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?, rustix::fs::fstat(file)?);
    if !is_same(&named, &stat) || stat.st_nlink != 1 {
        return Err(Errno::STALE);
    }
    rustix::fs::unlinkat(&folder, name, AtFlags::empty())
}

fn is_named(file: &OwnedFd) -> bool {
    rustix::fs::fstat(file).map_or(true, |stat| stat.st_nlink > 0)
}

fn writers(file: &OwnedFd) -> Writers {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(own_path(file), flags, Mode::empty()) else { return Writers::Unknown };
    let without_descriptor = match rustix::fs::fstatfs(&file) {
        Ok(system) if LOCAL.contains(&system.f_type) => Writers::Gone,
        Ok(system) if system.f_type == OVERLAY => Writers::Mapped,
        _ => return Writers::Unknown,
    };
    match kernel::has_writers(file.as_fd()) {
        Ok(false) => without_descriptor,
        Ok(true) => Writers::Some,
        Err(_) => Writers::Unknown,
    }
}

/// Returns true if the file's system knows all its writers.
pub(super) fn knows_writers(file: &OwnedFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| LOCAL.contains(&system.f_type))
}

/// Processes below this one that can write to one of the files, each with one of these.
fn holders(files: &[WrittenFile]) -> Vec<(Pid, PathBuf)> {
    descendants().into_iter().filter_map(|pid| Some((pid, held_by(pid, files)?.path.clone()))).collect()
}

/// A file that a thread of the process has a writable descriptor or mapping of.
fn held_by(pid: Pid, files: &[WrittenFile]) -> Option<&WrittenFile> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let by_descriptor = threads.flatten().find_map(|thread| with_descriptor(&thread.path(), files));
    by_descriptor.or_else(|| {
        let mapped = mappings::of_process(pid).unwrap_or_default();
        files.iter().find(|file| file.mapped.as_ref().is_some_and(|file| mapped.contains(file)))
    })
}

fn with_descriptor<'f>(thread: &Path, files: &'f [WrittenFile]) -> Option<&'f WrittenFile> {
    // A zombie has no descriptors.
    fs::read_dir(thread.join("fd")).ok()?.flatten().find_map(|descriptor| {
        let identity = rustix::fs::stat(descriptor.path()).ok()?;
        let identity = Some((identity.st_dev, identity.st_ino));
        let file = files.iter().find(|file| file.identity == identity)?;
        is_writable(&thread.join("fdinfo").join(descriptor.file_name())).then_some(file)
    })
}

fn is_writable(info: &Path) -> bool {
    let info = match fs::read_to_string(info) {
        Ok(info) => info,
        // The descriptor was closed by now.
        Err(error) if mappings::is_over(&error) => return false,
        Err(_) => return true,
    };
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_none_or(|flags| OFlags::from_bits_retain(flags).intersects(OFlags::WRONLY | OFlags::RDWR))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// No lease is taken: its end would send a signal to this process, which only a supervisor blocks.
    #[test]
    fn files_are_opened_again_after_the_leases_of_this_broker() {
        let handed_over = Mutex::new(HandedOver::default());
        for (results, expected) in [
            (&[Ok(1)][..], Ok(1)),
            (&[Err(Errno::AGAIN), Ok(2)], Ok(2)),
            (&[Err(Errno::AGAIN), Err(Errno::AGAIN)], Err(Errno::AGAIN)),
            (&[Err(Errno::NOENT)], Err(Errno::NOENT)),
        ] {
            let tries = Cell::new(0);
            let open = || {
                let has_leases = handed_over.try_lock().is_ok();
                // Leases are possible at first only.
                assert_eq!(has_leases, tries.get() == 0, "{results:?}");
                tries.set(tries.get() + 1);
                results[tries.get() - 1]
            };
            assert_eq!(past_own_leases(&handed_over, open), expected);
            assert_eq!(tries.get(), results.len());
        }
    }
}
