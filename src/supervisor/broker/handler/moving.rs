//! Moves and hard links: both names are decided, and all that moves with a folder.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{MutexGuard, PoisonError};

use rustix::fs::{AtFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use super::{CallHandler, EXCHANGE, path_failure};
use crate::sandbox::BrokerPolicy;
use crate::supervisor::broker::operation::{CallPath, FileReference};
use crate::supervisor::broker::outcome::EarlyEnd;
use crate::supervisor::broker::questions::AskedChange;
use crate::supervisor::broker::recorder::Touched;
use crate::supervisor::broker::resolve::{self, ResolvedPath};
use crate::supervisor::broker::{moved, perform};
use crate::supervisor::protocol::ChangeKind;

pub(super) fn rename(
    handler: &CallHandler<'_>,
    from: &CallPath,
    to: &CallPath,
    flags: u32,
) -> Result<(), EarlyEnd> {
    let entry = handler.resolve(from)?;
    // Programs often move within a folder.
    let sibling = entry.as_ref().and_then(|entry| handler.broker.roots.sibling(entry, [from, to]));
    let to = sibling.map_or_else(|| handler.resolve(to), |sibling| Ok(Some(sibling)))?;
    let (from, to) = within_workspace(entry, to)?;
    handler.check_replaceable(&from)?;
    handler.check_replaceable(&to)?;
    let keeps = RenameFlags::from_bits_retain(flags).contains(RenameFlags::NOREPLACE);
    if keeps && handler.policy == BrokerPolicy::Ask && perform::kind(&to).is_some() {
        // Without asking, the call fails.
        return Err(Errno::EXIST.into());
    }
    if perform::kind(&from).is_some() {
        check_rules(handler, &from, &to, flags)?;
    }
    let files = moved_files(handler, &from, &to, flags)?;
    let to_path = Some(to.path.clone());
    let change = AskedChange::new(ChangeKind::Move, &from.path);
    handler.check_existing(&from, AskedChange { to: to_path, files, ..change })?;
    let _moving = check_moved(handler, &from, &to, flags)?;
    let _lock = handler.lock([&from, &to])?;
    let touched = [Touched::Moved { from: &from, to: &to }, Touched::Moved { from: &to, to: &from }];
    let count = if flags & EXCHANGE == 0 { 1 } else { 2 };
    let _recorded = handler.record(&touched[..count])?;
    Ok(handler.tracee.if_suspended(|| perform::rename(&from, &to, flags))?)
}

/// The files that move with a folder. A rule can deny some of them.
fn moved_files(
    handler: &CallHandler<'_>,
    from: &ResolvedPath,
    to: &ResolvedPath,
    flags: u32,
) -> Result<Vec<PathBuf>, Errno> {
    if handler.policy != BrokerPolicy::Ask {
        return Ok(Vec::new());
    }
    let moved = [Some(from), (flags & EXCHANGE != 0).then_some(to)];
    let files = moved.into_iter().flatten().map(moved::files_below).collect::<Result<Vec<_>, _>>();
    // Programs then move each file.
    files.map(|files| files.concat()).map_err(|_| Errno::XDEV)
}

/// Ends the call early if a rule denies to move an entry, or something that moves with it.
fn check_rules(
    handler: &CallHandler<'_>,
    from: &ResolvedPath,
    to: &ResolvedPath,
    flags: u32,
) -> Result<(), EarlyEnd> {
    let Some(rules) = &handler.broker.ruled_changes else { return Ok(()) };
    let moves = [Some((from, to)), (flags & EXCHANGE != 0).then_some((to, from))];
    for (entry, to) in moves.into_iter().flatten() {
        // Programs then move each file.
        if let Some(refusal) = rules.refused_move(entry, &to.path).map_err(|_| Errno::XDEV)? {
            return Err(EarlyEnd::Refused(refusal));
        }
    }
    Ok(())
}

/// Ends the call early if the move would make a denied file readable. Until the guard is dropped, nothing else is
/// moved.
fn check_moved<'a>(
    handler: &CallHandler<'a>,
    from: &ResolvedPath,
    to: &ResolvedPath,
    flags: u32,
) -> Result<Option<MutexGuard<'a, ()>>, Errno> {
    let Some(reads) = &handler.broker.reads else { return Ok(None) };
    let guard = reads.moving.lock().unwrap_or_else(PoisonError::into_inner);
    let is_denied =
        reads.deny_moving(from, &to.path) || flags & EXCHANGE != 0 && reads.deny_moving(to, &from.path);
    if is_denied { Err(Errno::ACCESS) } else { Ok(Some(guard)) }
}

pub(super) fn link(handler: &CallHandler<'_>, object: &FileReference, to: &CallPath) -> Result<(), EarlyEnd> {
    if let Some(file) = unnamed_file(handler, object) {
        let to = handler.resolve(to)?.filter(ResolvedPath::is_brokered).ok_or(EarlyEnd::Continue)?;
        handler.check_replaceable(&to)?;
        handler.check_new(&to, ChangeKind::Create)?;
        let _recorded = handler.record(&[Touched::Entry(&to)])?;
        return Ok(handler.tracee.if_suspended(|| perform::link_unnamed(&file, &to))?);
    }
    let from = match object {
        FileReference::Path { place, .. } if resolve::split(&place.path).is_none() => {
            return Err(EarlyEnd::Continue);
        }
        FileReference::Path { place, follows_link: true } => {
            let from = handler.broker.roots.entry_to_open(&handler.tracee, place, ResolveFlags::empty());
            from.map_err(|error| path_failure(Some(&place.path), error))?
        }
        FileReference::Path { place, .. } => handler.resolve(place)?,
        FileReference::Descriptor(_) => None,
    };
    // The kernel looks for the file before it looks at the new name.
    let to = match from.as_ref().filter(|from| from.is_brokered()) {
        Some(from) => {
            rustix::fs::statat(&from.folder, &from.name, AtFlags::SYMLINK_NOFOLLOW)?;
            handler.resolve(to)?
        }
        None => handler.resolve(to).map_err(|_| EarlyEnd::Continue)?,
    };
    let (from, to) = within_workspace(from, to)?;
    handler.check_replaceable(&to)?;
    handler.check_readable(&from)?;
    let [is_there, exists] = [&from, &to].map(|entry| perform::kind(entry).is_some());
    if handler.policy == BrokerPolicy::Ask && is_there && exists {
        return Err(Errno::EXIST.into());
    }
    // Through its new name, the file can be written.
    let change = AskedChange::new(ChangeKind::Link, &from.path);
    handler.check_existing(&from, AskedChange { to: Some(to.path.clone()), ..change })?;
    let _recorded = handler.record(&[Touched::Linked { from: &from, to: &to }])?;
    Ok(handler.tracee.if_suspended(|| perform::link(&from, &to))?)
}

/// The caller's descriptor of an unnamed file that was handed over.
fn unnamed_file(handler: &CallHandler<'_>, object: &FileReference) -> Option<OwnedFd> {
    let file = handler.tracee.descriptor(object.descriptor()?).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    // A later file can have the number of an unnamed one that is gone.
    if stat.st_nlink != 0 {
        return None;
    }
    let unnamed = handler.broker.unnamed.lock().unwrap_or_else(PoisonError::into_inner);
    unnamed.contains(&(stat.st_dev, stat.st_ino)).then_some(file)
}

/// Both ends of a move or link within the workspace, or within folders that other programs share. Otherwise, programs
/// copy after `EXDEV`: a socket of another program would become one of the workspace, which can be connected.
fn within_workspace(
    from: Option<ResolvedPath>,
    to: Option<ResolvedPath>,
) -> Result<(ResolvedPath, ResolvedPath), EarlyEnd> {
    match (from.filter(ResolvedPath::is_brokered), to.filter(ResolvedPath::is_brokered)) {
        (Some(from), Some(to)) if from.area == to.area => Ok((from, to)),
        (None, None) => Err(EarlyEnd::Continue),
        _ => Err(Errno::XDEV.into()),
    }
}
