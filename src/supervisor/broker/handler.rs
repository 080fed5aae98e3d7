//! Decides one suspended call, and carries it out where the policy allows that.

use std::cell::RefCell;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

use rustix::fs::{FileType, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use super::allowed_sockets::AllowedSockets;
use super::made_files::MadeFiles;
use super::network_call::{NetworkCall, network_call};
use super::notification::CallAnswer;
use super::operation::{self, AttributeChange, CallPath, FileOperation, FileReference};
use super::perform;
use super::questions::AskedChange;
use super::reads::Reads;
use super::recorder::{CallCopies, CopyRequest, RecordWriter, Touched};
use super::resolve::{self, FileIdentity, ResolvedFile, ResolvedPath, Roots};
use super::revoke::HandedOver;
use super::shared_memory::SharedMemory;
use super::terminals::Terminals;
use super::tracee::{self, Tracee};
use crate::file_lock::{FileLock, FileLocks, LockError};
use crate::sandbox::BrokerPolicy;
use crate::supervisor::protocol::ChangeKind;

mod moving;
mod opening;
mod reading;
mod shared_memory;
mod unix_sockets;

use moving::within_workspace;

/// How the broker ends a suspended call.
pub(super) enum CallOutcome {
    Answer(CallAnswer),
    /// The command gets a descriptor of its own.
    HandOver {
        file: OwnedFd,
        closes_on_exec: bool,
    },
    Postponed(Postponed),
}

/// Reasons for a call to wait before the broker ends it.
pub(super) enum Postponed {
    /// Consent to the change.
    Ask(AskedChange),
    /// Copies of these files for the record.
    Copy(Vec<CopyRequest>),
    /// The end of what prevents it.
    Wait(WaitReason),
    /// A writer of the named pipe, which the command gets opened for reading.
    OpenPipe { pipe: OwnedFd, flags: OFlags },
    /// A server that accepts the connection of a UNIX socket.
    Connect { socket: OwnedFd, to: OwnedFd },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitReason {
    /// A named pipe has no reader, or another program has a lease of the file.
    Open,
    /// Another writer has locked the file.
    Lock,
}

const DONE: CallOutcome = CallOutcome::Answer(CallAnswer::Value(0));

/// The call runs, and Landlock decides. It allows the command's own folders only. No call runs whose path another thread
/// could turn into one that the policy allows.
const CONTINUE: CallOutcome = CallOutcome::Answer(CallAnswer::Continue);

const fn refusal(error: Errno) -> CallOutcome {
    CallOutcome::Answer(CallAnswer::Error(error.raw_os_error()))
}

/// Flag of `renameat2`.
const EXCHANGE: u32 = RenameFlags::EXCHANGE.bits();

pub(super) struct CallHandler<'a> {
    pub(super) tracee: Tracee<'a>,
    pub(super) policy: BrokerPolicy,
    /// Change that the user has allowed for this call.
    pub(super) asked: Option<&'a AskedChange>,
    pub(super) roots: &'a Roots,
    /// Devices and numbers of the unnamed files that were handed over.
    pub(super) unnamed: &'a Mutex<HashSet<FileIdentity>>,
    pub(super) handed_over: &'a Mutex<HandedOver>,
    pub(super) terminals: &'a Terminals,
    /// `None` if changes are not recorded.
    pub(super) recorder: Option<&'a Mutex<RecordWriter>>,
    /// `None` if the call has waited for locks long enough.
    pub(super) locks: Option<&'a FileLocks>,
    /// Locked for reading from the record of a change to its end.
    pub(super) recording: &'a RwLock<()>,
    /// Made for this call.
    pub(super) copies: &'a RefCell<CallCopies>,
    /// `None` if every file may be read.
    pub(super) reads: Option<&'a Reads>,
    pub(super) moving: &'a RwLock<()>,
    pub(super) sockets: &'a AllowedSockets,
    pub(super) bound: &'a MadeFiles,
    pub(super) memory: &'a SharedMemory,
}

impl<'a> CallHandler<'a> {
    pub(super) fn outcome(&self) -> CallOutcome {
        let number = self.tracee.call.number;
        // Other network calls have answers of their own.
        if let Some(kind @ (NetworkCall::Bind | NetworkCall::Connect)) = network_call(self.tracee.call) {
            return self.unix_socket(kind).unwrap_or_else(|outcome| outcome);
        }
        let changes_attributes = operation::changes_attributes(number);
        let changes_nothing = self.policy == BrokerPolicy::Nothing && !changes_attributes;
        let memory = |address, length| self.tracee.memory(address, length);
        let operation = operation::operation(self.tracee.call, &memory);
        if let Some(FileOperation::Open { at, how }) = &operation
            && let Some(outcome) = self.open_terminal(at, *how)
        {
            return outcome;
        }
        if let Some(outcome) = operation.as_ref().and_then(|operation| self.shared_memory(operation)) {
            return outcome;
        }
        let moves =
            self.policy == BrokerPolicy::Ask && matches!(operation, Some(FileOperation::Rename { .. }));
        let _alone = moves.then(|| self.moving.write().unwrap_or_else(PoisonError::into_inner));
        let _shared = (!moves).then(|| self.moving.read().unwrap_or_else(PoisonError::into_inner));
        if let Some(reads) = self.reads
            && let Some(flags) = operation::flags_for_reading(self.tracee.call)
        {
            if !operation::is_valid(flags) {
                return refusal(Errno::INVAL);
            }
            return match &operation {
                Some(FileOperation::Open { at, how }) => self.open_limited(reads, at, *how),
                _ => CallOutcome::Answer(CallAnswer::Error(operation::path_error(self.tracee.call, &memory))),
            };
        }
        match operation {
            _ if changes_nothing => CONTINUE,
            Some(operation) => self.carry_out(&operation).unwrap_or_else(|outcome| outcome),
            // Landlock does not know attributes, so these calls never run.
            None if changes_attributes => {
                CallOutcome::Answer(CallAnswer::Error(operation::attribute_error(self.tracee.call, &memory)))
            }
            // The kernel reports what is wrong with the arguments.
            None => CONTINUE,
        }
    }

    /// The error is the outcome of a call that ends early.
    fn carry_out(&self, operation: &FileOperation) -> Result<CallOutcome, CallOutcome> {
        match operation {
            FileOperation::Open { at, how } => return self.open(at, *how),
            FileOperation::MakeFolder { at, mode } => {
                let entry = self.entry(at)?;
                self.check_new(&entry, ChangeKind::CreateFolder)?;
                let _recorded = self.record(&[Touched::Entry(&entry)])?;
                self.with_umask(|| perform::make_folder(&entry, *mode))
            }
            FileOperation::MakeNode { at, mode } => {
                perform::check_node(*mode).map_err(refusal)?;
                let entry = self.replaceable_entry(at)?;
                self.check_new(&entry, ChangeKind::Create)?;
                let _recorded = self.record(&[Touched::Entry(&entry)])?;
                self.with_umask(|| perform::make_node(&entry, *mode))
            }
            FileOperation::MakeSymlink { target, .. } if target.as_os_str().is_empty() => Err(Errno::NOENT),
            FileOperation::MakeSymlink { target, at } => {
                let entry = self.replaceable_entry(at)?;
                self.check_new(&entry, ChangeKind::Create)?;
                let _recorded = self.record(&[Touched::Entry(&entry)])?;
                self.if_suspended(|| perform::make_symlink(target, &entry))
            }
            FileOperation::Remove { at, is_folder } => {
                let entry = self.replaceable_entry(at)?;
                let change = if *is_folder { ChangeKind::DeleteFolder } else { ChangeKind::Delete };
                self.check_existing(&entry, AskedChange::new(change, &entry.path))?;
                let _lock = self.lock([&entry])?;
                self.remove(&entry, *is_folder)?
            }
            FileOperation::Rename { from, to, flags } => {
                let (from, to) = within_workspace(self.resolve(from)?, self.resolve(to)?)?;
                self.check_replaceable(&from)?;
                self.check_replaceable(&to)?;
                let keeps = RenameFlags::from_bits_retain(*flags).contains(RenameFlags::NOREPLACE);
                if keeps && self.policy == BrokerPolicy::Ask && perform::kind(&to).is_some() {
                    // Without asking, the call fails.
                    return Err(refusal(Errno::EXIST));
                }
                let files = self.moved_files(&from, &to, *flags)?;
                let to_path = Some(to.path.clone());
                let change = AskedChange::new(ChangeKind::Move, &from.path);
                self.check_existing(&from, AskedChange { to: to_path, files, ..change })?;
                let _moving = self.check_moved(&from, &to, *flags)?;
                let _lock = self.lock([&from, &to])?;
                let touched =
                    [Touched::Moved { from: &from, to: &to }, Touched::Moved { from: &to, to: &from }];
                let count = if *flags & EXCHANGE == 0 { 1 } else { 2 };
                let _recorded = self.record(&touched[..count])?;
                self.if_suspended(|| perform::rename(&from, &to, *flags))
            }
            FileOperation::Link { object, to } => self.link(object, to)?,
            FileOperation::Truncate { length: ..0, .. } => Err(Errno::INVAL),
            FileOperation::Truncate { object, length } => {
                let file = self.roots.file(&self.tracee, object, ResolveFlags::empty());
                let file = file.map_err(|error| path_failure(object.path(), error))?;
                let file = file.filter(|file| file.area.is_brokered()).ok_or(CONTINUE)?;
                self.check_file(&file, ChangeKind::Write)?;
                let _lock = self.lock(&self.roots.of_descriptor(&file.file))?;
                let _recorded = self.record_file(&file)?;
                self.if_suspended(|| perform::truncate(&file, *length))
            }
            FileOperation::Change { object, change } => self.change(object, change)?,
        }
        .map(|()| DONE)
        .map_err(refusal)
    }

    fn check_readable(&self, entry: &ResolvedPath) -> Result<(), CallOutcome> {
        let is_denied = self.reads.is_some_and(|reads| reads.deny(&entry.path));
        if is_denied { Err(refusal(Errno::ACCESS)) } else { Ok(()) }
    }

    fn remove(&self, entry: &ResolvedPath, is_folder: bool) -> Result<Result<(), Errno>, CallOutcome> {
        if let Some(recorder) = self.recorder.filter(|_| !is_folder) {
            let _alone = self.recording.write().unwrap_or_else(PoisonError::into_inner);
            let kept_file = recorder.lock().unwrap_or_else(PoisonError::into_inner).keep_removed(entry);
            if let Some(kept_file) = kept_file {
                let removed = self.if_suspended(|| perform::remove(entry, is_folder));
                let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
                recorder.removed(&kept_file, removed.is_ok());
                return Ok(removed);
            }
        }
        let _recorded = self.record(&[Touched::Entry(entry)])?;
        Ok(self.if_suspended(|| perform::remove(entry, is_folder)))
    }

    /// Locks entries against the other writers of this user, from the record of a change to its end. Nothing waits here,
    /// because no mode can be changed meanwhile.
    fn lock<'e>(
        &self,
        entries: impl IntoIterator<Item = &'e ResolvedPath>,
    ) -> Result<Option<FileLock>, CallOutcome> {
        let Some(locks) = self.locks else { return Ok(None) };
        match locks.lock(entries.into_iter().map(|entry| entry.path.as_path()), &|| true) {
            Ok(lock) => Ok(Some(lock)),
            Err(LockError::Stopped | LockError::Busy(_)) => {
                Err(CallOutcome::Postponed(Postponed::Wait(WaitReason::Lock)))
            }
            // Modegate's own edits report a fault of the locks.
            Err(LockError::Unusable { .. }) => Ok(None),
        }
    }

    /// Records entries before the call changes them. Until the guard is dropped, no removed file is kept by a hard link,
    /// which a writer that opens the file meanwhile could change.
    fn record(&self, touched: &[Touched<'_>]) -> Result<RwLockReadGuard<'a, ()>, CallOutcome> {
        let guard = self.recording.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(recorder) = self.recorder {
            let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
            recorder
                .record(touched, &mut self.copies.borrow_mut())
                .map_err(|requests| CallOutcome::Postponed(Postponed::Copy(requests)))?;
        }
        Ok(guard)
    }

    fn record_file(&self, file: &ResolvedFile) -> Result<RwLockReadGuard<'a, ()>, CallOutcome> {
        let entry = self.recorder.and_then(|_| self.roots.of_descriptor(&file.file));
        let touched: Vec<_> = entry.iter().map(Touched::Content).collect();
        self.record(&touched)
    }

    /// Ends the call early if the policy requires consent for the change, and the user has not allowed it.
    fn check_asked(&self, asked: AskedChange) -> Result<(), CallOutcome> {
        if self.policy != BrokerPolicy::Ask || self.asked == Some(&asked) {
            return Ok(());
        }
        Err(CallOutcome::Postponed(Postponed::Ask(asked)))
    }

    /// Like [`Self::check_asked`]. Without asking, the call fails if the entry exists.
    fn check_new(&self, entry: &ResolvedPath, change: ChangeKind) -> Result<(), CallOutcome> {
        if self.policy == BrokerPolicy::Ask && perform::kind(entry).is_some() {
            return Err(refusal(Errno::EXIST));
        }
        self.check_asked(AskedChange::new(change, &entry.path))
    }

    /// Like [`Self::check_asked`]. Without asking, the call fails if the entry does not exist.
    fn check_existing(&self, entry: &ResolvedPath, asked: AskedChange) -> Result<(), CallOutcome> {
        if self.policy == BrokerPolicy::Ask && perform::kind(entry).is_none() {
            return Err(refusal(Errno::NOENT));
        }
        self.check_asked(asked)
    }

    fn check_file(&self, file: &ResolvedFile, change: ChangeKind) -> Result<(), CallOutcome> {
        if self.policy != BrokerPolicy::Ask {
            return Ok(());
        }
        // A question needs a name.
        let entry = self.roots.of_descriptor(&file.file).ok_or_else(|| {
            let is_deleted = rustix::fs::fstat(&file.file).is_ok_and(|stat| stat.st_nlink == 0);
            refusal(if is_deleted { Errno::NOENT } else { Errno::ACCESS })
        })?;
        self.check_asked(AskedChange::new(change, &entry.path))
    }

    fn check_opened(&self, entry: &ResolvedPath, flags: OFlags) -> Result<(), CallOutcome> {
        if self.policy != BrokerPolicy::Ask {
            return Ok(());
        }
        let change = match perform::kind(entry) {
            None if !flags.contains(OFlags::CREATE) => return Err(refusal(Errno::NOENT)),
            Some(_) if flags.contains(OFlags::CREATE | OFlags::EXCL) => return Err(refusal(Errno::EXIST)),
            Some(FileType::Directory) => return Err(refusal(Errno::ISDIR)),
            None => ChangeKind::Create,
            Some(_) => ChangeKind::Write,
        };
        self.check_asked(AskedChange::new(change, &entry.path))
    }

    /// Resolves an entry; `None` if it is not below a root. The kernel reports what is wrong with a path that names no
    /// entry.
    fn resolve(&self, place: &CallPath) -> Result<Option<ResolvedPath>, CallOutcome> {
        if resolve::split(&place.path).is_none() {
            return Err(CONTINUE);
        }
        let entry = self.roots.entry(&self.tracee, place, ResolveFlags::empty());
        entry.map_err(|error| path_failure(Some(&place.path), error))
    }

    /// Resolves an entry in the workspace.
    fn entry(&self, place: &CallPath) -> Result<ResolvedPath, CallOutcome> {
        self.resolve(place)?.filter(ResolvedPath::is_brokered).ok_or(CONTINUE)
    }

    /// Resolves an entry in the workspace that may get another meaning.
    fn replaceable_entry(&self, place: &CallPath) -> Result<ResolvedPath, CallOutcome> {
        let entry = self.entry(place)?;
        self.check_replaceable(&entry)?;
        Ok(entry)
    }

    fn check_replaceable(&self, entry: &ResolvedPath) -> Result<(), CallOutcome> {
        if self.roots.contains_protected(entry) { Err(refusal(Errno::ACCESS)) } else { Ok(()) }
    }

    /// Runs `action` if the call is still suspended: only then did its arguments come from its caller.
    fn if_suspended<T>(&self, action: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        if self.tracee.is_suspended() { action() } else { Err(Errno::SRCH) }
    }

    /// Runs `action` with the caller's umask if the call is still suspended.
    fn with_umask<T>(&self, action: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let umask = self.tracee.umask().ok_or(Errno::SRCH)?;
        self.if_suspended(|| {
            rustix::process::umask(umask);
            action()
        })
    }

    fn change(
        &self,
        object: &FileReference,
        change: &AttributeChange,
    ) -> Result<Result<(), Errno>, CallOutcome> {
        let file = self
            .roots
            .file(&self.tracee, object, ResolveFlags::empty())
            .and_then(|file| file.ok_or(Errno::PERM))
            .map_err(refusal)?;
        if file.area.is_brokered() && !self.memory.owns(&file.stat) {
            if self.policy == BrokerPolicy::Nothing {
                return Err(refusal(Errno::PERM));
            }
            self.check_file(&file, ChangeKind::Attributes)?;
        }
        let is_recorded = matches!(change, AttributeChange::Mode(_)) && file.area.is_brokered();
        let _recorded = is_recorded.then(|| self.record_file(&file)).transpose()?;
        Ok(self.if_suspended(|| perform::change(&file, change)))
    }
}

/// The outcome of a call whose path cannot be resolved. The call does not run: another thread may have made the missing
/// folder by then, and Landlock would deny a change that the policy allows.
fn path_failure(path: Option<&Path>, error: Errno) -> CallOutcome {
    // The broker follows no links that lead elsewhere for each process, and has other ones than the caller.
    let depends_on_caller = error == Errno::LOOP || path.is_some_and(tracee::depends_on_process);
    if depends_on_caller { CONTINUE } else { refusal(error) }
}
