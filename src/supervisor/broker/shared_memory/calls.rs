//! Calls on names of shared memory that the command has made itself.

use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;

use super::SharedMemory;
use crate::supervisor::broker::operation::{CallPath, FileOperation, FileReference, OpenHow};
use crate::supervisor::broker::outcome::CallOutcome;
use crate::supervisor::broker::perform::{self, Opened};
use crate::supervisor::broker::tracee::Tracee;

const EXCHANGE: u32 = RenameFlags::EXCHANGE.bits();

impl SharedMemory {
    /// `None` for all other calls, about which the policy decides.
    pub(in crate::supervisor::broker) fn carry_out(
        &self,
        tracee: &Tracee<'_>,
        operation: &FileOperation,
    ) -> Option<Result<CallOutcome, Errno>> {
        let done = match operation {
            FileOperation::Open { at, how } if how.writes() => return self.open(tracee, at, *how),
            FileOperation::Remove { at, is_folder: false } => {
                let entry = self.own_entry(at)?;
                tracee.if_suspended(|| perform::remove(&entry, false))
            }
            FileOperation::Link { object: FileReference::Path { place, .. }, to } => {
                let (from, to) = (self.own_entry(place)?, self.entry(to)?);
                tracee.if_suspended(|| perform::link(&from, &to))
            }
            FileOperation::Rename { from, to, flags } => {
                let (from, to) = (self.own_entry(from)?, self.entry(to)?);
                let is_own = self.owns_entry(&to);
                if !is_own && (*flags & EXCHANGE != 0 || perform::kind(&to).is_some()) {
                    return None;
                }
                // Another program can make a file of this name by now.
                let keeps = if is_own { 0 } else { RenameFlags::NOREPLACE.bits() };
                tracee.if_suspended(|| perform::rename(&from, &to, flags | keeps))
            }
            _ => return None,
        };
        Some(done.map(|()| CallOutcome::DONE))
    }

    fn open(&self, tracee: &Tracee<'_>, at: &CallPath, how: OpenHow) -> Option<Result<CallOutcome, Errno>> {
        let entry = self.entry(at)?;
        let flags = OFlags::from_bits_retain(u32::try_from(how.flags).ok()?);
        let is_own = self.owns_entry(&entry);
        let is_made = !is_own && flags.contains(OFlags::CREATE) && perform::kind(&entry).is_none();
        if how.is_unnamed() || !perform::are_flags_valid(how) || !(is_own || is_made) {
            return None;
        }
        let exclusive = if is_made { u64::from(OFlags::EXCL.bits()) } else { 0 };
        let how = OpenHow { flags: how.flags | exclusive, resolve: 0, ..how };
        let file = match tracee.with_umask(|| perform::open(&entry, how)) {
            Ok(Opened::File(file, _)) => file,
            Ok(_) => return None,
            // Another program was faster.
            Err(Errno::EXIST) if is_made => return None,
            Err(error) => return Some(Err(error)),
        };
        let known = if is_made {
            self.files.add(&file)
        } else {
            // Another program may have put its own file there.
            rustix::fs::fstat(&file)
                .and_then(|stat| if self.owns(&stat) { Ok(()) } else { Err(Errno::ACCESS) })
        };
        Some(known.map(|()| CallOutcome::hand_over(file, flags)))
    }
}
