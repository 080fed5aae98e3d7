//! Calls that open a file for reading only, of a command that rules keep from reading some files. They never run.

use std::os::unix::ffi::OsStrExt;

use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{CallHandler, opening};
use crate::sandbox::BrokerPolicy;
use crate::supervisor::broker::area::Area;
use crate::supervisor::broker::operation::{CallPath, OpenHow};
use crate::supervisor::broker::outcome::{CallOutcome, EarlyEnd, Postponed};
use crate::supervisor::broker::perform::{self, Opened};
use crate::supervisor::broker::reads::{self, OpenedForReading, Reads};
use crate::supervisor::broker::resolve;

/// Opens a file for reading only.
pub(super) fn open(
    handler: &CallHandler<'_>,
    reads: &Reads,
    at: &CallPath,
    how: OpenHow,
) -> Result<CallOutcome, EarlyEnd> {
    let flags = u32::try_from(how.flags).map(OFlags::from_bits_retain).map_err(|_| Errno::INVAL)?;
    if flags.contains(OFlags::CREATE) {
        match open_created(handler, at, how, flags) {
            Err(EarlyEnd::Continue) => {}
            outcome => return outcome,
        }
        let names_folder = resolve::split(&at.path).is_none_or(|(_, name)| name.as_bytes().ends_with(b"/"));
        if names_folder {
            return Err(folder_error(handler, at, flags).into());
        }
        if flags.contains(OFlags::EXCL) {
            let error = reads::find(&handler.tracee, at, OFlags::NOFOLLOW).err();
            let error = error.map_or(Errno::EXIST, |error| creation_error(handler, at, error));
            return Err(error.into());
        }
    }
    match reads.open(&handler.tracee, at, flags, &handler.broker.terminals) {
        Ok(OpenedForReading::File(file)) => Ok(CallOutcome::hand_over(file, flags)),
        Ok(OpenedForReading::Pipe(pipe)) => Ok(CallOutcome::Postponed(Postponed::OpenPipe { pipe, flags })),
        Err(error) if flags.contains(OFlags::CREATE) => Err(creation_error(handler, at, error).into()),
        Err(error) => Err(error.into()),
    }
}

/// Opens or creates a file in the workspace or in the command's own folders. The call continues if the policy does not
/// allow to create the file.
fn open_created(
    handler: &CallHandler<'_>,
    at: &CallPath,
    how: OpenHow,
    flags: OFlags,
) -> Result<CallOutcome, EarlyEnd> {
    if handler.policy != BrokerPolicy::Nothing {
        match opening::open(handler, at, how) {
            Err(EarlyEnd::Continue) => {}
            outcome => return outcome,
        }
    }
    let opened = handler.broker.roots.entry_to_open(&handler.tracee, at, ResolveFlags::empty());
    let own_entry = opened.ok().flatten().filter(|entry| entry.area == Area::Own);
    let entry = own_entry.ok_or(EarlyEnd::Continue)?;
    match handler.tracee.with_umask(|| perform::open(&entry, how))? {
        Opened::File(file, _) => Ok(CallOutcome::hand_over(file, flags)),
        _ => Err(EarlyEnd::Continue),
    }
}

/// The error of a call that would create a file at the path of a folder.
fn folder_error(handler: &CallHandler<'_>, at: &CallPath, flags: OFlags) -> Errno {
    let error = reads::find(&handler.tracee, at, OFlags::empty()).err();
    match (error, resolve::split(&at.path)) {
        (Some(Errno::ACCESS), _) => Errno::ACCESS,
        (_, Some(_)) => {
            let parent = handler.broker.roots.entry(&handler.tracee, at, ResolveFlags::empty());
            parent.err().unwrap_or(Errno::ISDIR)
        }
        (None, None) if flags.contains(OFlags::EXCL) => Errno::EXIST,
        (error, None) => error.unwrap_or(Errno::ISDIR),
    }
}

/// The error of a call that cannot create a file, after the error for an existing file.
fn creation_error(handler: &CallHandler<'_>, at: &CallPath, error: Errno) -> Errno {
    if error != Errno::NOENT {
        return error;
    }
    let opened = handler.broker.roots.entry_to_open(&handler.tracee, at, ResolveFlags::empty());
    opened.err().unwrap_or(Errno::ACCESS)
}
