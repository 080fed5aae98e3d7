//! Moves and hard links: both names are decided, and all that moves with a folder.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{MutexGuard, PoisonError};

use rustix::fs::{AtFlags, ResolveFlags};
use rustix::io::Errno;

use super::{CONTINUE, CallHandler, CallOutcome, EXCHANGE, path_failure, refusal};
use crate::sandbox::BrokerPolicy;
use crate::supervisor::broker::operation::{CallPath, FileReference};
use crate::supervisor::broker::questions::AskedChange;
use crate::supervisor::broker::recorder::Touched;
use crate::supervisor::broker::resolve::{self, ResolvedPath};
use crate::supervisor::broker::{perform, reads, tracee};
use crate::supervisor::protocol::ChangeKind;

impl CallHandler<'_> {
    /// The files that move with a folder. A rule can deny some of them.
    pub(super) fn moved_files(
        &self,
        from: &ResolvedPath,
        to: &ResolvedPath,
        flags: u32,
    ) -> Result<Vec<PathBuf>, CallOutcome> {
        if self.policy != BrokerPolicy::Ask {
            return Ok(Vec::new());
        }
        let moved = [Some(from), (flags & EXCHANGE != 0).then_some(to)];
        let files = moved.into_iter().flatten().map(reads::files_below).collect::<Result<Vec<_>, _>>();
        // Programs then move each file.
        files.map(|files| files.concat()).map_err(|_| refusal(Errno::XDEV))
    }

    /// Ends the call early if the move would make a denied file readable. Until the guard is dropped, nothing else is
    /// moved.
    pub(super) fn check_moved(
        &self,
        from: &ResolvedPath,
        to: &ResolvedPath,
        flags: u32,
    ) -> Result<Option<MutexGuard<'_, ()>>, CallOutcome> {
        let Some(reads) = self.reads else { return Ok(None) };
        let guard = reads.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let is_denied =
            reads.deny_moving(from, &to.path) || flags & EXCHANGE != 0 && reads.deny_moving(to, &from.path);
        if is_denied { Err(refusal(Errno::ACCESS)) } else { Ok(Some(guard)) }
    }

    pub(super) fn link(
        &self,
        object: &FileReference,
        to: &CallPath,
    ) -> Result<Result<(), Errno>, CallOutcome> {
        if let Some(file) = self.unnamed_file(object) {
            let to = self.resolve(to)?.filter(ResolvedPath::is_brokered).ok_or(CONTINUE)?;
            self.check_replaceable(&to)?;
            self.check_new(&to, ChangeKind::Create)?;
            let _recorded = self.record(&[Touched::Entry(&to)])?;
            return Ok(self.if_suspended(|| perform::link_unnamed(&file, &to)));
        }
        let from = match object {
            FileReference::Path { place, .. } if resolve::split(&place.path).is_none() => {
                return Err(CONTINUE);
            }
            FileReference::Path { place, follows_link: true } => {
                let from = self.roots.opened(&self.tracee, place, ResolveFlags::empty());
                from.map_err(|error| path_failure(Some(&place.path), error))?
            }
            FileReference::Path { place, .. } => self.resolve(place)?,
            FileReference::Descriptor(_) => None,
        };
        // The kernel looks for the file before it looks at the new name.
        let to = match from.as_ref().filter(|from| from.is_brokered()) {
            Some(from) => {
                rustix::fs::statat(&from.folder, &from.name, AtFlags::SYMLINK_NOFOLLOW).map_err(refusal)?;
                self.resolve(to)?
            }
            None => self.resolve(to).map_err(|_| CONTINUE)?,
        };
        let (from, to) = within_workspace(from, to)?;
        self.check_replaceable(&to)?;
        self.check_readable(&from)?;
        let [is_there, exists] = [&from, &to].map(|entry| perform::kind(entry).is_some());
        if self.policy == BrokerPolicy::Ask && is_there && exists {
            return Err(refusal(Errno::EXIST));
        }
        // Through its new name, the file can be written.
        let change = AskedChange::new(ChangeKind::Link, &from.path);
        self.check_existing(&from, AskedChange { to: Some(to.path.clone()), ..change })?;
        let _recorded = self.record(&[Touched::Linked { from: &from, to: &to }])?;
        Ok(self.if_suspended(|| perform::link(&from, &to)))
    }

    /// The caller's descriptor of an unnamed file that was handed over.
    fn unnamed_file(&self, object: &FileReference) -> Option<OwnedFd> {
        let number = match object {
            FileReference::Descriptor(number) => *number,
            FileReference::Path { place, follows_link: true } => tracee::named_descriptor(&place.path)?,
            FileReference::Path { .. } => return None,
        };
        let file = self.tracee.descriptor(number).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        // A later file can have the number of an unnamed one that is gone.
        if stat.st_nlink != 0 {
            return None;
        }
        let identity = (stat.st_dev, stat.st_ino);
        let is_known = self.unnamed.lock().unwrap_or_else(PoisonError::into_inner).contains(&identity);
        is_known.then_some(file)
    }
}

/// Both ends of a move or link within the workspace, or within folders that other programs share. Otherwise, programs
/// copy after `EXDEV`: a socket of another program would become one of the workspace, which can be connected.
pub(super) fn within_workspace(
    from: Option<ResolvedPath>,
    to: Option<ResolvedPath>,
) -> Result<(ResolvedPath, ResolvedPath), CallOutcome> {
    match (from.filter(ResolvedPath::is_brokered), to.filter(ResolvedPath::is_brokered)) {
        (Some(from), Some(to)) if from.area == to.area => Ok((from, to)),
        (None, None) => Err(CONTINUE),
        _ => Err(refusal(Errno::XDEV)),
    }
}
