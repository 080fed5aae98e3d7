//! System V shared memory. The supervisor makes the segments, so it knows which belong to the command. Others can be
//! neither attached nor changed, under every policy. All arguments are numbers, so a call that runs is the one that
//! was looked at.

use std::collections::HashSet;
use std::io;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use super::notification::{CallAnswer, SuspendedCall};
use crate::kernel;

/// Most segments of a command. The kernel counts those of all programs.
const MAX_SEGMENTS: usize = 256;

/// Flags of `shmget` that are passed on: permissions, and the promise of no swap space.
const FLAGS: libc::c_int = 0o777 | libc::SHM_NORESERVE;

/// Demands a segment that does not exist.
const NEW: libc::c_int = libc::IPC_CREAT | libc::IPC_EXCL;

#[derive(Debug, Default)]
pub(super) struct Segments {
    own: Mutex<HashSet<i32>>,
}

impl Segments {
    /// `None` for other calls.
    pub(super) fn answer(&self, call: &SuspendedCall) -> Option<CallAnswer> {
        let [first, second, third, ..] = call.arguments;
        Some(match call.number {
            libc::SYS_shmget => match self.get(number(first), second, number(third)) {
                Ok(id) => CallAnswer::Value(id.into()),
                Err(error) => CallAnswer::Error(error.raw_os_error()),
            },
            libc::SYS_shmat if self.owns(number(first)) => CallAnswer::Continue,
            libc::SYS_shmctl if self.owns(number(first)) && is_permitted(number(second)) => {
                CallAnswer::Continue
            }
            libc::SYS_shmat | libc::SYS_shmctl => CallAnswer::Error(Errno::ACCESS.raw_os_error()),
            _ => return None,
        })
    }

    fn owns(&self, id: i32) -> bool {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    fn get(&self, key: i32, size: u64, flags: i32) -> Result<i32, Errno> {
        let size = usize::try_from(size).map_err(|_| Errno::INVAL)?;
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if key != libc::IPC_PRIVATE {
            match kernel::find_segment(key) {
                Ok(_) if flags & NEW == NEW => return Err(Errno::EXIST),
                // The kernel compares the size.
                Ok(id) if own.contains(&id) => {
                    return kernel::segment(key, size, 0).map_err(|error| errno(&error));
                }
                Ok(_) => return Err(Errno::ACCESS),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(errno(&error)),
            }
            if flags & libc::IPC_CREAT == 0 {
                return Err(Errno::NOENT);
            }
        }
        if own.len() >= MAX_SEGMENTS {
            return Err(Errno::NOSPC);
        }
        let id = kernel::segment(key, size, flags & FLAGS | NEW).map_err(|error| errno(&error))?;
        own.insert(id);
        Ok(id)
    }

    /// Removes the segments that are left.
    pub(super) fn clear(&self) {
        for id in self.own.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            // The command may have removed it.
            let _ = kernel::remove_segment(id);
        }
    }
}

/// Returns true for the commands of `shmctl` that concern one segment.
fn is_permitted(command: i32) -> bool {
    [libc::IPC_STAT, libc::IPC_SET, libc::IPC_RMID].contains(&command)
}

/// The kernel ignores the upper half of such an argument.
fn number(argument: u64) -> i32 {
    let [.., a, b, c, d] = argument.to_be_bytes();
    i32::from_be_bytes([a, b, c, d])
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::INVAL)
}
