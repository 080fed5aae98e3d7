//! Calls that open or create a file for writing, and terminals.

use std::os::unix::ffi::OsStrExt;
use std::sync::PoisonError;

use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{CallHandler, path_failure};
use crate::supervisor::broker::operation::{CallPath, FileReference, OpenHow};
use crate::supervisor::broker::outcome::{CallOutcome, EarlyEnd, Postponed, WaitReason};
use crate::supervisor::broker::perform::{self, Opened};
use crate::supervisor::broker::recorder::Touched;
use crate::supervisor::broker::resolve::{self, ResolvedPath};
use crate::supervisor::broker::terminals::Terminal;

pub(super) fn open(handler: &CallHandler<'_>, at: &CallPath, how: OpenHow) -> Result<CallOutcome, EarlyEnd> {
    let flags = OFlags::from_bits_retain(u32::try_from(how.flags).map_err(|_| EarlyEnd::Continue)?);
    let resolve = ResolveFlags::from_bits(how.resolve).ok_or(EarlyEnd::Continue)?;
    if !how.writes() {
        return Err(EarlyEnd::Continue);
    }
    if resolve.contains(ResolveFlags::CACHED) {
        // Callers try again without it.
        return Err(Errno::AGAIN.into());
    }
    if !perform::are_flags_valid(how) {
        return Err(Errno::INVAL.into());
    }
    let OpenedEntry { opened, is_new } = if how.is_unnamed() {
        let opened = open_unnamed(handler, &folder(handler, at, flags, resolve)?, how)?;
        OpenedEntry { opened, is_new: true }
    } else if at.path.as_os_str().as_bytes().ends_with(b"/") {
        // Stands for a folder, which cannot be written.
        return Err(EarlyEnd::Continue);
    } else {
        let mut looks = 0..resolve::MAX_LOOKS;
        loop {
            match open_entry(handler, at, how, flags) {
                // Another thread has put a symbolic link there.
                Err(EarlyEnd::Error(Errno::LOOP)) if follows_link(flags) && looks.next().is_some() => {}
                // Another program has moved the file out of its folder.
                Err(EarlyEnd::Error(Errno::XDEV)) if looks.next().is_some() => {}
                opened => break opened?,
            }
        }
    };
    let mut handed_over = handler.broker.handed_over.lock().unwrap_or_else(PoisonError::into_inner);
    match opened {
        Opened::File(file) => {
            handed_over.add(&file, is_new)?;
            Ok(CallOutcome::hand_over(file, flags))
        }
        Opened::Pipe(file) => {
            handed_over.add_pipe(&file)?;
            Ok(CallOutcome::hand_over(file, flags))
        }
        Opened::ReadPipe(pipe) => Ok(CallOutcome::Postponed(Postponed::OpenPipe { pipe, flags })),
        Opened::Waits => Ok(CallOutcome::Postponed(Postponed::Wait(WaitReason::Open))),
        // A device, for which the broker has no rule.
        Opened::Special => Err(EarlyEnd::Continue),
    }
}

struct OpenedEntry {
    opened: Opened,
    /// There was no such file before.
    is_new: bool,
}

/// Opens a file of the workspace by its name.
fn open_entry(
    handler: &CallHandler<'_>,
    at: &CallPath,
    how: OpenHow,
    flags: OFlags,
) -> Result<OpenedEntry, EarlyEnd> {
    let resolve = ResolveFlags::from_bits_retain(how.resolve);
    let (roots, tracee) = (&handler.broker.roots, &handler.tracee);
    let resolved = if follows_link(flags) {
        roots.entry_to_open(tracee, at, resolve)
    } else {
        roots.entry(tracee, at, resolve)
    };
    let resolved = resolved.map_err(|error| path_failure(Some(&at.path), error))?;
    let entry = resolved.filter(ResolvedPath::is_brokered).ok_or(EarlyEnd::Continue)?;
    if flags & OFlags::ACCMODE != OFlags::WRONLY {
        handler.check_readable(&entry)?;
    }
    handler.check_opened(&entry, flags)?;
    let _lock = handler.lock([&entry])?;
    if flags.contains(OFlags::CREATE) {
        handler.check_replaceable(&entry)?;
    }
    let _recorded = handler.record(&[Touched::Content(&entry)])?;
    let is_new = flags.contains(OFlags::CREATE) && perform::kind(&entry).is_none();
    let opened = if flags.contains(OFlags::CREATE) {
        tracee.with_umask(|| perform::open(&entry, how))
    } else {
        tracee.if_suspended(|| perform::open(&entry, how))
    };
    let opened = opened.map_err(|error| open_failure(&entry, error))?;
    Ok(OpenedEntry { opened, is_new })
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
    Ok(ResolvedPath { area: folder.area, folder: folder.file, name: ".".into(), path: at.path.clone() })
}

fn open_unnamed(handler: &CallHandler<'_>, folder: &ResolvedPath, how: OpenHow) -> Result<Opened, EarlyEnd> {
    let opened = handler
        .tracee
        .with_umask(|| perform::open(folder, how))
        .map_err(|error| open_failure(folder, error))?;
    if let Opened::File(file) = &opened {
        let identity = resolve::identity(file)?;
        handler.broker.unnamed.lock().unwrap_or_else(PoisonError::into_inner).insert(identity);
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
