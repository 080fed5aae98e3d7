//! Calls that open or create a file for writing, and terminals.

use std::os::unix::ffi::OsStrExt;
use std::sync::PoisonError;

use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{CONTINUE, CallHandler, CallOutcome, Postponed, WaitReason, path_failure, refusal};
use crate::supervisor::broker::operation::{CallPath, FileReference, OpenHow};
use crate::supervisor::broker::perform::{self, Opened};
use crate::supervisor::broker::recorder::Touched;
use crate::supervisor::broker::resolve::{self, ResolvedPath};
use crate::supervisor::broker::terminals::Terminal;

impl CallHandler<'_> {
    pub(super) fn open(&self, at: &CallPath, how: OpenHow) -> Result<CallOutcome, CallOutcome> {
        let flags = OFlags::from_bits_retain(u32::try_from(how.flags).map_err(|_| CONTINUE)?);
        let resolve = ResolveFlags::from_bits(how.resolve).ok_or(CONTINUE)?;
        if !how.writes() {
            return Err(CONTINUE);
        }
        if resolve.contains(ResolveFlags::CACHED) {
            // Callers try again without it.
            return Err(refusal(Errno::AGAIN));
        }
        if !perform::are_flags_valid(how) {
            return Err(refusal(Errno::INVAL));
        }
        let opened = if how.is_unnamed() {
            let folder = self.folder(at, flags, resolve)?;
            self.with_umask(|| self.open_unnamed(&folder, how))
        } else if at.path.as_os_str().as_bytes().ends_with(b"/") {
            // Stands for a folder, which cannot be written.
            return Err(CONTINUE);
        } else {
            let mut looks = 0..resolve::MAX_LOOKS;
            loop {
                match self.open_entry(at, how, flags)? {
                    // Another thread has put a symbolic link there.
                    Err(Errno::LOOP) if follows_link(flags) && looks.next().is_some() => {}
                    opened => break opened,
                }
            }
        };
        let closes_on_exec = flags.contains(OFlags::CLOEXEC);
        match opened {
            Ok(Opened::File(file)) => {
                let mut handed_over = self.handed_over.lock().unwrap_or_else(PoisonError::into_inner);
                handed_over.add(&file).map_err(refusal)?;
                Ok(CallOutcome::HandOver { file, closes_on_exec })
            }
            Ok(Opened::Pipe(file)) => {
                let mut handed_over = self.handed_over.lock().unwrap_or_else(PoisonError::into_inner);
                handed_over.add_pipe(&file).map_err(refusal)?;
                Ok(CallOutcome::HandOver { file, closes_on_exec })
            }
            Ok(Opened::ReadPipe(pipe)) => Ok(CallOutcome::Postponed(Postponed::OpenPipe { pipe, flags })),
            Ok(Opened::Waits) => Ok(CallOutcome::Postponed(Postponed::Wait(WaitReason::Open))),
            // A device, and a mount point, for which the broker has no rule.
            Ok(Opened::Special) | Err(Errno::XDEV) => Err(CONTINUE),
            Err(error) => Err(refusal(error)),
        }
    }

    /// Opens a file of the workspace by its name.
    fn open_entry(
        &self,
        at: &CallPath,
        how: OpenHow,
        flags: OFlags,
    ) -> Result<Result<Opened, Errno>, CallOutcome> {
        let resolve = ResolveFlags::from_bits_retain(how.resolve);
        let resolved = if follows_link(flags) {
            self.roots.opened(&self.tracee, at, resolve)
        } else {
            self.roots.entry(&self.tracee, at, resolve)
        };
        let resolved = resolved.map_err(|error| path_failure(Some(&at.path), error))?;
        let entry = resolved.filter(ResolvedPath::is_brokered).ok_or(CONTINUE)?;
        if flags & OFlags::ACCMODE != OFlags::WRONLY {
            self.check_readable(&entry)?;
        }
        self.check_opened(&entry, flags)?;
        let _lock = self.lock([&entry])?;
        if flags.contains(OFlags::CREATE) {
            self.check_replaceable(&entry)?;
        }
        let _recorded = self.record(&[Touched::Content(&entry)])?;
        Ok(if flags.contains(OFlags::CREATE) {
            self.with_umask(|| perform::open(&entry, how))
        } else {
            self.if_suspended(|| perform::open(&entry, how))
        })
    }

    /// `None` if the path names no terminal of the command.
    pub(super) fn open_terminal(&self, at: &CallPath, how: OpenHow) -> Option<CallOutcome> {
        let terminal = Terminal::named(&at.path).filter(|_| how.writes())?;
        let flags = OFlags::from_bits_retain(u32::try_from(how.flags).ok()?);
        let opened = self.if_suspended(|| Ok(self.terminals.open(terminal, flags, &self.tracee)));
        Some(match opened.transpose()? {
            Ok(Ok(file)) => CallOutcome::HandOver { file, closes_on_exec: flags.contains(OFlags::CLOEXEC) },
            Ok(Err(error)) | Err(error) => refusal(error),
        })
    }

    /// The folder of an unnamed file, as an entry of itself.
    fn folder(
        &self,
        at: &CallPath,
        flags: OFlags,
        resolve: ResolveFlags,
    ) -> Result<ResolvedPath, CallOutcome> {
        let object =
            FileReference::Path { place: at.clone(), follows_link: !flags.contains(OFlags::NOFOLLOW) };
        let folder = self.roots.file(&self.tracee, &object, resolve);
        let folder = folder.map_err(|error| path_failure(Some(&at.path), error))?;
        let folder = folder.filter(|folder| folder.area.is_brokered()).ok_or(CONTINUE)?;
        Ok(ResolvedPath { area: folder.area, folder: folder.file, name: ".".into(), path: at.path.clone() })
    }

    fn open_unnamed(&self, folder: &ResolvedPath, how: OpenHow) -> Result<Opened, Errno> {
        let opened = perform::open(folder, how)?;
        if let Opened::File(file) = &opened {
            let identity = resolve::identity(file)?;
            self.unnamed.lock().unwrap_or_else(PoisonError::into_inner).insert(identity);
        }
        Ok(opened)
    }
}

fn follows_link(flags: OFlags) -> bool {
    !flags.contains(OFlags::NOFOLLOW) && !flags.contains(OFlags::CREATE | OFlags::EXCL)
}
