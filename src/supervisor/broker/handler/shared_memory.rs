//! Calls on names of shared memory that the command has made itself.

use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;

use super::{CallHandler, CallOutcome, DONE, EXCHANGE, refusal};
use crate::supervisor::broker::operation::{CallPath, FileOperation, FileReference, OpenHow};
use crate::supervisor::broker::perform::{self, Opened};

impl CallHandler<'_> {
    /// `None` for all other calls, about which the policy decides.
    pub(super) fn shared_memory(&self, operation: &FileOperation) -> Option<CallOutcome> {
        let done = match operation {
            FileOperation::Open { at, how } if how.writes() => return self.open_shared(at, *how),
            FileOperation::Remove { at, is_folder: false } => {
                let entry = self.memory.own_entry(at)?;
                self.if_suspended(|| perform::remove(&entry, false))
            }
            FileOperation::Link { object: FileReference::Path { place, .. }, to } => {
                let (from, to) = (self.memory.own_entry(place)?, self.memory.entry(to)?);
                self.if_suspended(|| perform::link(&from, &to))
            }
            FileOperation::Rename { from, to, flags } => {
                let (from, to) = (self.memory.own_entry(from)?, self.memory.entry(to)?);
                let is_own = self.memory.owns_entry(&to);
                if !is_own && (*flags & EXCHANGE != 0 || perform::kind(&to).is_some()) {
                    return None;
                }
                // Another program can make a file of this name by now.
                let keeps = if is_own { 0 } else { RenameFlags::NOREPLACE.bits() };
                self.if_suspended(|| perform::rename(&from, &to, flags | keeps))
            }
            _ => return None,
        };
        Some(done.map_or_else(refusal, |()| DONE))
    }

    fn open_shared(&self, at: &CallPath, how: OpenHow) -> Option<CallOutcome> {
        let entry = self.memory.entry(at)?;
        let flags = OFlags::from_bits_retain(u32::try_from(how.flags).ok()?);
        let is_own = self.memory.owns_entry(&entry);
        let is_made = !is_own && flags.contains(OFlags::CREATE) && perform::kind(&entry).is_none();
        if how.is_unnamed() || !perform::are_flags_valid(how) || !(is_own || is_made) {
            return None;
        }
        let exclusive = if is_made { u64::from(OFlags::EXCL.bits()) } else { 0 };
        let how = OpenHow { flags: how.flags | exclusive, resolve: 0, ..how };
        let opened = self.with_umask(|| perform::open(&entry, how));
        Some(match opened {
            // Another program was faster.
            Err(Errno::EXIST) if is_made => return None,
            Err(error) => refusal(error),
            Ok(Opened::File(file)) => {
                let known = if is_made {
                    self.memory.add(&file)
                } else {
                    // Another program may have put its own file there.
                    rustix::fs::fstat(&file)
                        .and_then(|stat| if self.memory.owns(&stat) { Ok(()) } else { Err(Errno::ACCESS) })
                };
                match known {
                    Ok(()) => CallOutcome::HandOver { file, closes_on_exec: flags.contains(OFlags::CLOEXEC) },
                    Err(error) => refusal(error),
                }
            }
            Ok(_) => return None,
        })
    }
}
