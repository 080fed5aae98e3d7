//! Calls that open a file for reading only, of a command that rules keep from reading some files. They never run.

use std::os::unix::ffi::OsStrExt;

use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{CONTINUE, CallHandler, CallOutcome, Postponed, refusal};
use crate::sandbox::BrokerPolicy;
use crate::supervisor::broker::area::Area;
use crate::supervisor::broker::notification::CallAnswer;
use crate::supervisor::broker::operation::{CallPath, OpenHow};
use crate::supervisor::broker::perform::{self, Opened};
use crate::supervisor::broker::reads::{self, OpenedForReading, Reads};
use crate::supervisor::broker::resolve;

impl CallHandler<'_> {
    /// Opens a file for reading only.
    pub(super) fn open_limited(&self, reads: &Reads, at: &CallPath, how: OpenHow) -> CallOutcome {
        let Ok(flags) = u32::try_from(how.flags).map(OFlags::from_bits_retain) else {
            return refusal(Errno::INVAL);
        };
        // Opens or creates a file in the workspace or in the command's own folders.
        if flags.contains(OFlags::CREATE) {
            match self.open_created(at, how) {
                CallOutcome::Answer(CallAnswer::Continue) => {}
                outcome => return outcome,
            }
            let names_folder =
                resolve::split(&at.path).is_none_or(|(_, name)| name.as_bytes().ends_with(b"/"));
            if names_folder {
                return refusal(self.folder_error(at, flags));
            }
            if flags.contains(OFlags::EXCL) {
                let error = reads::find(&self.tracee, at, OFlags::NOFOLLOW).err();
                return refusal(error.map_or(Errno::EXIST, |error| self.creation_error(at, error)));
            }
        }
        match reads.open(&self.tracee, at, flags, self.terminals) {
            Ok(OpenedForReading::File(file)) => {
                CallOutcome::HandOver { file, closes_on_exec: flags.contains(OFlags::CLOEXEC) }
            }
            Ok(OpenedForReading::Pipe(pipe)) => CallOutcome::Postponed(Postponed::OpenPipe { pipe, flags }),
            Err(error) if flags.contains(OFlags::CREATE) => refusal(self.creation_error(at, error)),
            Err(error) => refusal(error),
        }
    }

    /// The error of a call that would create a file at the path of a folder.
    fn folder_error(&self, at: &CallPath, flags: OFlags) -> Errno {
        let error = reads::find(&self.tracee, at, OFlags::empty()).err();
        match (error, resolve::split(&at.path)) {
            (Some(Errno::ACCESS), _) => Errno::ACCESS,
            (_, Some(_)) => {
                let parent = self.roots.entry(&self.tracee, at, ResolveFlags::empty());
                parent.err().unwrap_or(Errno::ISDIR)
            }
            (None, None) if flags.contains(OFlags::EXCL) => Errno::EXIST,
            (error, None) => error.unwrap_or(Errno::ISDIR),
        }
    }

    /// The error of a call that cannot create a file, after the error for an existing file.
    fn creation_error(&self, at: &CallPath, error: Errno) -> Errno {
        if error != Errno::NOENT {
            return error;
        }
        self.roots.opened(&self.tracee, at, ResolveFlags::empty()).err().unwrap_or(Errno::ACCESS)
    }

    /// The call continues if the policy does not allow to create the file.
    fn open_created(&self, at: &CallPath, how: OpenHow) -> CallOutcome {
        if self.policy != BrokerPolicy::Nothing {
            let outcome = self.open(at, how).unwrap_or_else(|outcome| outcome);
            if !matches!(outcome, CallOutcome::Answer(CallAnswer::Continue)) {
                return outcome;
            }
        }
        let opened = self.roots.opened(&self.tracee, at, ResolveFlags::empty());
        let Some(entry) = opened.ok().flatten().filter(|entry| entry.area == Area::Own) else {
            return CONTINUE;
        };
        match self.with_umask(|| perform::open(&entry, how)) {
            Ok(Opened::File(file)) => {
                let closes_on_exec = how.flags & u64::from(OFlags::CLOEXEC.bits()) != 0;
                CallOutcome::HandOver { file, closes_on_exec }
            }
            Ok(_) => CONTINUE,
            Err(error) => refusal(error),
        }
    }
}
