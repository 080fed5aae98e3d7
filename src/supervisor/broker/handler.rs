//! Decides one suspended call, and carries it out where the policy allows that.
//!
//! The modules below have a function for each kind of operation. [`CallHandler`] has their common steps, in this order:
//! resolve the names, compare with the policy, lock out other writers, record the change.

use std::cell::RefCell;
use std::path::Path;
use std::sync::{PoisonError, RwLockReadGuard};

use rustix::fs::{FileType, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use super::attributes;
use super::network_call::{NetworkCall, network_call};
use super::operation::{self, AttributeChange, CallPath, FileOperation, FileReference};
use super::outcome::{CallOutcome, EarlyEnd, Postponed, WaitReason};
use super::pending::PendingCall;
use super::questions::AskedChange;
use super::recorder::{CallCopies, Touched};
use super::resolve::{self, ResolvedFile, ResolvedPath};
use super::revoke::past_own_leases;
use super::tracee::{self, Tracee};
use super::{Broker, perform};
use crate::file_lock::{FileLock, LockError};
use crate::sandbox::{self, BrokerPolicy};
use crate::supervisor::protocol::{ChangeKind, RuleRefusal};

mod moving;
mod opening;
mod reading;
mod unix_sockets;

/// Flag of `renameat2`.
const EXCHANGE: u32 = RenameFlags::EXCHANGE.bits();

pub(super) struct CallHandler<'a> {
    pub(super) broker: &'a Broker,
    /// Cannot change meanwhile.
    pub(super) policy: BrokerPolicy,
    pub(super) pending: &'a PendingCall,
    pub(super) tracee: Tracee<'a>,
    /// Made for this call.
    pub(super) copies: &'a RefCell<CallCopies>,
}

impl<'a> CallHandler<'a> {
    pub(super) fn outcome(&self) -> CallOutcome {
        self.decide().unwrap_or_else(CallOutcome::from)
    }

    fn decide(&self) -> Result<CallOutcome, EarlyEnd> {
        let (broker, call) = (self.broker, self.tracee.call);
        // Other network calls have answers of their own.
        if let Some(kind @ (NetworkCall::Bind | NetworkCall::Connect)) = network_call(call) {
            return unix_sockets::bind_or_connect(self, kind);
        }
        let changes_attributes = operation::changes_attributes(call.number);
        if !changes_attributes && !sandbox::changes_entries(call.number) {
            // No call runs that the broker does not know.
            return Err(Errno::PERM.into());
        }
        let changes_nothing = self.policy == BrokerPolicy::Nothing && !changes_attributes;
        let memory = |address, length| self.tracee.memory(address, length);
        let operation = operation::operation(call, &memory);
        if let Some(FileOperation::Open { at, how }) = &operation
            && let Some(opened) = opening::open_terminal(self, at, *how)
        {
            return Ok(opened?);
        }
        let shared =
            operation.as_ref().and_then(|operation| broker.memory.carry_out(&self.tracee, operation));
        if let Some(outcome) = shared {
            return Ok(outcome?);
        }
        let is_decided = self.policy == BrokerPolicy::Ask || broker.ruled_changes.is_some();
        let moves = is_decided && matches!(operation, Some(FileOperation::Rename { .. }));
        let _alone = moves.then(|| broker.moving.write().unwrap_or_else(PoisonError::into_inner));
        let _shared = (!moves).then(|| broker.moving.read().unwrap_or_else(PoisonError::into_inner));
        if let Some(reads) = &broker.reads
            && let Some(flags) = operation::flags_for_reading(call)
        {
            if !operation::is_valid(flags) {
                return Err(Errno::INVAL.into());
            }
            return match &operation {
                Some(FileOperation::Open { at, how }) => reading::open(self, reads, at, *how),
                _ => Err(operation::path_error(call, &memory).into()),
            };
        }
        match operation {
            _ if changes_nothing => Err(EarlyEnd::Continue),
            Some(operation) => self.carry_out(&operation),
            // Landlock does not know attributes, so these calls never run.
            None if changes_attributes => Err(operation::attribute_error(call, &memory).into()),
            // The kernel reports what is wrong with the arguments.
            None => Err(EarlyEnd::Continue),
        }
    }

    fn carry_out(&self, operation: &FileOperation) -> Result<CallOutcome, EarlyEnd> {
        match operation {
            FileOperation::Open { at, how } => return opening::open(self, at, *how),
            FileOperation::MakeFolder { at, mode } => {
                let entry = self.entry(at)?;
                self.check_new(&entry, ChangeKind::CreateFolder)?;
                let _recorded = self.record(&[Touched::Entry(&entry)])?;
                self.tracee.with_umask(|| perform::make_folder(&entry, *mode))?;
            }
            FileOperation::MakeNode { at, mode } => {
                perform::check_node(*mode)?;
                let entry = self.replaceable_entry(at)?;
                self.check_new(&entry, ChangeKind::Create)?;
                let _recorded = self.record(&[Touched::Entry(&entry)])?;
                self.tracee.with_umask(|| perform::make_node(&entry, *mode))?;
            }
            FileOperation::MakeSymlink { target, .. } if target.as_os_str().is_empty() => {
                return Err(Errno::NOENT.into());
            }
            FileOperation::MakeSymlink { target, at } => {
                let entry = self.replaceable_entry(at)?;
                self.check_new(&entry, ChangeKind::Create)?;
                let _recorded = self.record(&[Touched::Entry(&entry)])?;
                self.tracee.if_suspended(|| perform::make_symlink(target, &entry))?;
            }
            FileOperation::Remove { at, is_folder } => {
                let entry = self.replaceable_entry(at)?;
                let change = if *is_folder { ChangeKind::DeleteFolder } else { ChangeKind::Delete };
                self.check_existing(&entry, AskedChange::new(change, &entry.path))?;
                let _lock = self.lock([&entry])?;
                self.remove(&entry, *is_folder)?;
            }
            FileOperation::Rename { from, to, flags } => moving::rename(self, from, to, *flags)?,
            FileOperation::Link { object, to } => moving::link(self, object, to)?,
            FileOperation::Truncate { length: ..0, .. } => return Err(Errno::INVAL.into()),
            FileOperation::Truncate { object, length } => {
                let file = self.broker.roots.file(&self.tracee, object, ResolveFlags::empty());
                let file = file.map_err(|error| path_failure(object.path(), error))?;
                let file = file.filter(|file| file.area.is_brokered()).ok_or(EarlyEnd::Continue)?;
                self.check_file(&file, ChangeKind::Write)?;
                let _lock = self.lock(&self.broker.roots.of_descriptor(&file.file))?;
                let _recorded = self.record_file(&file)?;
                let truncate = || self.tracee.if_suspended(|| perform::truncate(&file, *length));
                past_own_leases(&self.broker.handed_over, truncate).map_err(|error| match error {
                    Errno::AGAIN => EarlyEnd::Postponed(Postponed::Wait(WaitReason::Lease)),
                    error => error.into(),
                })?;
            }
            FileOperation::Change { object, change } => self.change(object, change)?,
        }
        Ok(CallOutcome::DONE)
    }

    fn remove(&self, entry: &ResolvedPath, is_folder: bool) -> Result<(), EarlyEnd> {
        if let Some(recorder) = self.broker.recorder.as_ref().filter(|_| !is_folder) {
            let _alone = self.broker.recording.write().unwrap_or_else(PoisonError::into_inner);
            let kept_file = recorder.lock().unwrap_or_else(PoisonError::into_inner).keep_removed(entry);
            if let Some(kept_file) = kept_file {
                let removed = self.tracee.if_suspended(|| perform::remove(entry, is_folder));
                let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
                recorder.removed(&kept_file, removed.is_ok());
                return Ok(removed?);
            }
        }
        let _recorded = self.record(&[Touched::Entry(entry)])?;
        Ok(self.tracee.if_suspended(|| perform::remove(entry, is_folder))?)
    }

    fn change(&self, object: &FileReference, change: &AttributeChange) -> Result<(), EarlyEnd> {
        let Some(file) = self.broker.roots.file(&self.tracee, object, ResolveFlags::empty())? else {
            // Programs give a new terminal to its user, who has it already.
            let is_done = self.broker.terminals.has_attributes(object, change, &self.tracee);
            return if is_done { Ok(()) } else { Err(Errno::PERM.into()) };
        };
        if file.area.is_brokered() && !self.broker.memory.owns(&file.stat) {
            if self.policy == BrokerPolicy::Nothing {
                return Err(Errno::PERM.into());
            }
            if self.policy == BrokerPolicy::Ask && attributes::are_unchanged(&file, change) {
                return Ok(());
            }
            self.check_file(&file, ChangeKind::Attributes)?;
        }
        let is_recorded = matches!(change, AttributeChange::Mode(_)) && file.area.is_brokered();
        let _recorded = is_recorded.then(|| self.record_file(&file)).transpose()?;
        Ok(self.tracee.if_suspended(|| perform::change(&file, change))?)
    }

    /// Locks entries against the other writers of this user, from the record of a change to its end. Nothing waits here,
    /// because no mode can be changed meanwhile.
    fn lock<'e>(
        &self,
        entries: impl IntoIterator<Item = &'e ResolvedPath>,
    ) -> Result<Option<FileLock>, EarlyEnd> {
        if !self.pending.takes_locks {
            return Ok(None);
        }
        match self.broker.locks.lock(entries.into_iter().map(|entry| entry.path.as_path()), &|| true) {
            Ok(lock) => Ok(Some(lock)),
            Err(LockError::Stopped | LockError::Busy(_)) => {
                Err(EarlyEnd::Postponed(Postponed::Wait(WaitReason::Lock)))
            }
            // Modegate's own edits report a fault of the locks.
            Err(LockError::Unusable { .. }) => Ok(None),
        }
    }

    /// Records entries before the call changes them. Until the guard is dropped, no removed file is kept by a hard link,
    /// which a writer that opens the file meanwhile could change.
    fn record(&self, touched: &[Touched<'_>]) -> Result<RwLockReadGuard<'a, ()>, EarlyEnd> {
        let guard = self.begin_change();
        self.record_before(touched)?;
        Ok(guard)
    }

    /// Takes the guard of [`Self::record`], before the first look at the disk.
    fn begin_change(&self) -> RwLockReadGuard<'a, ()> {
        self.broker.recording.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_before(&self, touched: &[Touched<'_>]) -> Result<(), EarlyEnd> {
        let Some(recorder) = &self.broker.recorder else { return Ok(()) };
        let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
        let done = recorder.record(touched, &mut self.copies.borrow_mut());
        done.map_err(|requests| EarlyEnd::Postponed(Postponed::Copy(requests)))
    }

    fn record_file(&self, file: &ResolvedFile) -> Result<RwLockReadGuard<'a, ()>, EarlyEnd> {
        let guard = self.begin_change();
        if self.broker.recorder.is_none() {
            return Ok(guard);
        }
        // Another program can have moved it by now.
        let named = file.entry.as_ref().map(|entry| (entry, entry.stat()));
        let named = named.filter(|(_, stat)| stat.is_ok_and(|stat| resolve::is_same(&stat, &file.stat)));
        if let Some((entry, stat)) = named {
            self.record_before(&[Touched::Content(entry, Some(stat))])?;
        } else if let Some(entry) = self.broker.roots.of_descriptor(&file.file) {
            self.record_before(&[Touched::Content(&entry, None)])?;
        }
        Ok(guard)
    }

    fn check_readable(&self, entry: &ResolvedPath) -> Result<(), EarlyEnd> {
        let is_denied = self.broker.reads.as_ref().is_some_and(|reads| reads.deny(&entry.path));
        if is_denied { Err(Errno::ACCESS.into()) } else { Ok(()) }
    }

    /// Ends the call early if a rule denies the change, or if the policy requires consent for it and the user has not
    /// given that.
    fn check_change(&self, change: AskedChange) -> Result<(), EarlyEnd> {
        let refusal = self.refused(&change);
        self.end_unless_allowed(change, refusal)
    }

    fn end_unless_allowed(&self, change: AskedChange, refusal: Option<RuleRefusal>) -> Result<(), EarlyEnd> {
        if let Some(refusal) = refusal {
            return Err(EarlyEnd::Refused(refusal));
        }
        if self.policy != BrokerPolicy::Ask || self.pending.allowed.as_ref() == Some(&change) {
            return Ok(());
        }
        Err(EarlyEnd::Postponed(Postponed::Ask(change)))
    }

    fn refused(&self, change: &AskedChange) -> Option<RuleRefusal> {
        self.broker.ruled_changes.as_ref()?.refused(change)
    }

    /// Like [`Self::check_change`]. Without asking, the call fails if the entry exists.
    fn check_new(&self, entry: &ResolvedPath, change: ChangeKind) -> Result<(), EarlyEnd> {
        let change = AskedChange::new(change, &entry.path);
        let refusal = self.refused(&change);
        if self.is_decided(refusal.as_ref()) && perform::kind(entry).is_some() {
            return Err(Errno::EXIST.into());
        }
        self.end_unless_allowed(change, refusal)
    }

    /// Like [`Self::check_change`]. Without asking, the call fails if the entry does not exist.
    fn check_existing(&self, entry: &ResolvedPath, change: AskedChange) -> Result<(), EarlyEnd> {
        let refusal = self.refused(&change);
        if self.is_decided(refusal.as_ref()) && perform::kind(entry).is_none() {
            return Err(Errno::NOENT.into());
        }
        self.end_unless_allowed(change, refusal)
    }

    /// True if [`Self::end_unless_allowed`] may end the call.
    fn is_decided(&self, refusal: Option<&RuleRefusal>) -> bool {
        self.policy == BrokerPolicy::Ask || refusal.is_some()
    }

    fn check_file(&self, file: &ResolvedFile, change: ChangeKind) -> Result<(), EarlyEnd> {
        if self.broker.ruled_changes.is_some() {
            let change = AskedChange::new(change, &tracee::name_of(&file.file)?);
            self.refused(&change).map_or(Ok(()), |refusal| Err(EarlyEnd::Refused(refusal)))?;
        }
        if self.policy != BrokerPolicy::Ask {
            return Ok(());
        }
        // A question needs a name.
        let entry = self.broker.roots.of_descriptor(&file.file).ok_or_else(|| {
            let is_deleted = rustix::fs::fstat(&file.file).is_ok_and(|stat| stat.st_nlink == 0);
            if is_deleted { Errno::NOENT } else { Errno::ACCESS }
        })?;
        self.check_change(AskedChange::new(change, &entry.path))
    }

    fn check_opened(&self, entry: &ResolvedPath, flags: OFlags) -> Result<(), EarlyEnd> {
        if !self.is_decided(self.refused(&AskedChange::new(ChangeKind::Write, &entry.path)).as_ref()) {
            return Ok(());
        }
        let change = match perform::kind(entry) {
            None if !flags.contains(OFlags::CREATE) => return Err(Errno::NOENT.into()),
            Some(_) if flags.contains(OFlags::CREATE | OFlags::EXCL) => return Err(Errno::EXIST.into()),
            Some(FileType::Directory) => return Err(Errno::ISDIR.into()),
            None => ChangeKind::Create,
            Some(_) => ChangeKind::Write,
        };
        self.check_change(AskedChange::new(change, &entry.path))
    }

    /// Resolves an entry; `None` if it is not below a root. The kernel reports what is wrong with a path that names no
    /// entry.
    fn resolve(&self, place: &CallPath) -> Result<Option<ResolvedPath>, EarlyEnd> {
        if resolve::split(&place.path).is_none() {
            return Err(EarlyEnd::Continue);
        }
        let entry = self.broker.roots.entry(&self.tracee, place, ResolveFlags::empty());
        entry.map_err(|error| path_failure(Some(&place.path), error))
    }

    /// Resolves an entry in the workspace.
    fn entry(&self, place: &CallPath) -> Result<ResolvedPath, EarlyEnd> {
        self.resolve(place)?.filter(ResolvedPath::is_brokered).ok_or(EarlyEnd::Continue)
    }

    /// Resolves an entry in the workspace that may get another meaning.
    fn replaceable_entry(&self, place: &CallPath) -> Result<ResolvedPath, EarlyEnd> {
        let entry = self.entry(place)?;
        self.check_replaceable(&entry)?;
        Ok(entry)
    }

    fn check_replaceable(&self, entry: &ResolvedPath) -> Result<(), EarlyEnd> {
        if self.broker.roots.leads_to_protected(&entry.path) { Err(Errno::ACCESS.into()) } else { Ok(()) }
    }
}

/// The end of a call whose path cannot be resolved. The call does not run: another thread may have made the missing
/// folder by then, and Landlock would deny a change that the policy allows.
fn path_failure(path: Option<&Path>, error: Errno) -> EarlyEnd {
    // The broker follows no links that lead elsewhere for each process, and has other ones than the caller.
    let depends_on_caller = error == Errno::LOOP || path.is_some_and(tracee::depends_on_process);
    if depends_on_caller { EarlyEnd::Continue } else { error.into() }
}
