//! Calls that open or create a file for writing, and terminals.

use std::os::unix::ffi::OsStrExt;
use std::sync::PoisonError;

use rustix::fs::{FileType, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::{CallHandler, path_failure};
use crate::sandbox::BrokerPolicy;
use crate::supervisor::broker::operation::{CallPath, FileReference, OpenHow};
use crate::supervisor::broker::outcome::{CallOutcome, EarlyEnd, Postponed, WaitReason};
use crate::supervisor::broker::perform::{self, Opened};
use crate::supervisor::broker::recorder::Touched;
use crate::supervisor::broker::resolve::{self, ResolvedPath};
use crate::supervisor::broker::revoke::past_own_leases;
use crate::supervisor::broker::terminals::Terminal;
use crate::supervisor::broker::tracee::{self, Tracee};

pub(super) fn open(handler: &CallHandler<'_>, at: &CallPath, how: OpenHow) -> Result<CallOutcome, EarlyEnd> {
    let flags = OFlags::from_bits_retain(u32::try_from(how.flags).map_err(|_| EarlyEnd::Continue)?);
    let resolve = ResolveFlags::from_bits(how.resolve).ok_or(EarlyEnd::Continue)?;
    if !how.writes() || tracee::is_null_device(&at.path) {
        return Err(EarlyEnd::Continue);
    }
    if resolve.contains(ResolveFlags::CACHED) {
        // Callers try again without it.
        return Err(Errno::AGAIN.into());
    }
    if !perform::are_flags_valid(how) {
        return Err(Errno::INVAL.into());
    }
    let OpenedEntry { opened, entry, is_new } = if how.is_unnamed() {
        let opened = open_unnamed(handler, &folder(handler, at, flags, resolve)?, how)?;
        OpenedEntry { opened, entry: None, is_new: true }
    } else if at.path.as_os_str().as_bytes().ends_with(b"/") {
        // Stands for a folder, which cannot be written.
        return Err(EarlyEnd::Continue);
    } else {
        let mut looks = 0..resolve::MAX_LOOKS;
        // The policy and the rules are about the file to which a link leads.
        let broker = handler.broker;
        let is_decided =
            handler.policy == BrokerPolicy::Ask || broker.reads.is_some() || broker.ruled_changes.is_some();
        let mut may_be_link = follows_link(flags) && !is_decided && resolve.is_empty();
        loop {
            match open_entry(handler, at, how, may_be_link) {
                // A symbolic link, which another thread can have put there.
                Err(EarlyEnd::Error(Errno::LOOP)) if follows_link(flags) && looks.next().is_some() => {
                    may_be_link = false;
                }
                // Another program has moved the file out of its folder.
                Err(EarlyEnd::Error(Errno::XDEV)) if looks.next().is_some() => {}
                opened => break opened?,
            }
        }
    };
    let mut handed_over = handler.broker.handed_over.lock().unwrap_or_else(PoisonError::into_inner);
    match opened {
        Opened::File(file, identity) => {
            handed_over.add(&file, identity, entry.as_ref(), is_new)?;
            Ok(CallOutcome::hand_over(file, flags))
        }
        Opened::Pipe(file) => {
            handed_over.add_pipe(&file)?;
            Ok(CallOutcome::hand_over(file, flags))
        }
        Opened::ReadPipe(pipe) => Ok(CallOutcome::Postponed(Postponed::OpenPipe { pipe, flags })),
        Opened::Waits => Ok(CallOutcome::Postponed(Postponed::Wait(WaitReason::Reader))),
        // A device, for which the broker has no rule.
        Opened::Special => Err(EarlyEnd::Continue),
    }
}

struct OpenedEntry {
    opened: Opened,
    /// `None` for an unnamed file.
    entry: Option<ResolvedPath>,
    /// There was no such file before.
    is_new: bool,
}

/// Opens a file of the workspace by its name. If `may_be_link` is true, the call fails with `ELOOP` at a symbolic link:
/// there are few, and the file is looked at in any case.
fn open_entry(
    handler: &CallHandler<'_>,
    at: &CallPath,
    how: OpenHow,
    may_be_link: bool,
) -> Result<OpenedEntry, EarlyEnd> {
    let flags = OFlags::from_bits_retain(u32::try_from(how.flags).map_err(|_| EarlyEnd::Continue)?);
    let limits = ResolveFlags::from_bits_retain(how.resolve);
    let (roots, tracee) = (&handler.broker.roots, &handler.tracee);
    let resolved = match may_be_link.then(|| roots.direct_entry(tracee, at)).flatten() {
        Some(entry) => Ok(Some(entry)),
        None if follows_link(flags) => roots.entry_to_open(tracee, at, limits),
        None => roots.entry(tracee, at, limits),
    };
    let resolved = resolved.map_err(|error| path_failure(Some(&at.path), error))?;
    let entry = resolved.filter(ResolvedPath::is_brokered).ok_or(EarlyEnd::Continue)?;
    if flags & OFlags::ACCMODE != OFlags::WRONLY {
        handler.check_readable(&entry)?;
    }
    handler.check_opened(&entry, flags)?;
    let lock = handler.lock([&entry])?;
    let recording = handler.begin_change();
    let found = entry.stat();
    if may_be_link && is_of_type(found, FileType::Symlink) {
        return Err(Errno::LOOP.into());
    }
    if flags.contains(OFlags::CREATE) {
        handler.check_replaceable(&entry)?;
    }
    let is_new = flags.contains(OFlags::CREATE) && matches!(found, Err(Errno::NOENT));
    handler.record_before(&[Touched::Content(&entry, Some(found))])?;
    let opened = past_own_leases(&handler.broker.handed_over, || open_found(tracee, &entry, how, found));
    let opened = match opened {
        Err(Errno::AGAIN) if !flags.contains(OFlags::NONBLOCK) => {
            return Err(EarlyEnd::Postponed(Postponed::Wait(WaitReason::Lease)));
        }
        opened => opened.map_err(|error| open_failure(&entry, error))?,
    };
    drop(recording);
    drop(lock);
    Ok(OpenedEntry { opened, entry: Some(entry), is_new })
}

/// Opens an entry after a look at it.
fn open_found(
    tracee: &Tracee<'_>,
    entry: &ResolvedPath,
    how: OpenHow,
    found: Result<Stat, Errno>,
) -> Result<Opened, Errno> {
    let flags = OFlags::from_bits_retain(u32::try_from(how.flags).map_err(|_| Errno::INVAL)?);
    if !flags.contains(OFlags::CREATE) {
        return tracee.if_suspended(|| perform::open(entry, how));
    }
    // In sticky folders, the kernel forbids to open other users' files with this flag.
    let needs_flag = flags.contains(OFlags::EXCL) || entry.is_sticky;
    // With slashes after the name, the error depends on the flag.
    let is_plain_file = is_of_type(found, FileType::RegularFile) && resolve::trim(&entry.name) == entry.name;
    if !needs_flag && is_plain_file {
        // The umask takes long to read, and only a new file needs it.
        match tracee.if_suspended(|| perform::open(entry, how.of_existing())) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
    }
    tracee.with_umask(|| perform::open(entry, how))
}

fn is_of_type(found: Result<Stat, Errno>, kind: FileType) -> bool {
    found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == kind)
}

/// The folder of an unnamed file, as an entry of itself.
fn folder(
    handler: &CallHandler<'_>,
    at: &CallPath,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<ResolvedPath, EarlyEnd> {
    let object = FileReference::Path { place: at.clone(), follows_link: !flags.contains(OFlags::NOFOLLOW) };
    let folder = handler.broker.roots.file(&handler.tracee, &object, resolve);
    let folder = folder.map_err(|error| path_failure(Some(&at.path), error))?;
    let folder = folder.filter(|folder| folder.area.is_brokered()).ok_or(EarlyEnd::Continue)?;
    let (area, folder) = (folder.area, folder.file);
    Ok(ResolvedPath { area, folder, is_sticky: true, name: ".".into(), path: at.path.clone() })
}

fn open_unnamed(handler: &CallHandler<'_>, folder: &ResolvedPath, how: OpenHow) -> Result<Opened, EarlyEnd> {
    let opened = handler
        .tracee
        .with_umask(|| perform::open(folder, how))
        .map_err(|error| open_failure(folder, error))?;
    if let Opened::File(_, identity) = &opened {
        handler.broker.unnamed.lock().unwrap_or_else(PoisonError::into_inner).insert(*identity);
    }
    Ok(opened)
}

/// `None` if the path names no terminal of the command.
pub(super) fn open_terminal(
    handler: &CallHandler<'_>,
    at: &CallPath,
    how: OpenHow,
) -> Option<Result<CallOutcome, Errno>> {
    let terminal = Terminal::named(&at.path).filter(|_| how.writes())?;
    let flags = OFlags::from_bits_retain(u32::try_from(how.flags).ok()?);
    let (terminals, tracee) = (&handler.broker.terminals, &handler.tracee);
    let opened = tracee.if_suspended(|| terminals.open(terminal, flags, tracee).transpose()).transpose()?;
    Some(opened.map(|file| CallOutcome::hand_over(file, flags)))
}

fn open_failure(entry: &ResolvedPath, error: Errno) -> EarlyEnd {
    // The broker has no rule for mount points.
    if error == Errno::XDEV && perform::is_mount_point(entry) { EarlyEnd::Continue } else { error.into() }
}

fn follows_link(flags: OFlags) -> bool {
    !flags.contains(OFlags::NOFOLLOW) && !flags.contains(OFlags::CREATE | OFlags::EXCL)
}
