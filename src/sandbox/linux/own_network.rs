//! A network for one command: a loopback interface without anything behind it. So servers in tests work, and nothing
//! else can be reached.

use std::fs;
use std::io;

use rustix::process::{getgid, getuid};
use rustix::thread::UnshareFlags;

use crate::kernel;

/// Moves the calling process, which must have one thread, into a network of its own. Returns false, and changes
/// nothing that the command could notice, if the kernel or an administrator does not allow that. After an error the
/// process must exit.
///
/// Without the capability for it, the process also gets users of its own, in which it stays who it is, and files of
/// other users have no known owner.
pub(super) fn enter() -> Result<bool, String> {
    if kernel::leave_namespaces(UnshareFlags::NEWNET).is_err() {
        let (user, group) = (getuid(), getgid());
        if kernel::leave_namespaces(UnshareFlags::NEWUSER | UnshareFlags::NEWNET).is_err() {
            return Ok(false);
        }
        stay(user.as_raw(), group.as_raw())
            .map_err(|error| format!("the command would have no user: {error}"))?;
    }
    Ok(kernel::switch_on_loopback().is_ok())
}

/// Gives the process the same user and group in its new namespace.
fn stay(user: u32, group: u32) -> io::Result<()> {
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}
