//! What is left of a command whose supervisor has died: it becomes this process's child, and is ended here.
//!
//! That is so where `main` has asked the kernel for it; elsewhere (in tests) nobody vouches for such a command.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{self, Pid, WaitOptions};

use super::children::Children;

/// How long orphans may take to die. They are killed, not asked.
const DEADLINE: Duration = Duration::from_secs(1);

/// The supervisors of this process. For the whole process, as its children are.
static SUPERVISORS: Mutex<Option<HashSet<Pid>>> = Mutex::new(None);

/// Makes this process the parent of what a dead supervisor leaves behind.
pub fn adopt() {
    if let Err(error) = process::set_child_subreaper(Some(process::getpid())) {
        tracing::warn!(%error, "what a dead supervisor leaves behind will not be known");
    }
}

/// Starts a supervisor: nobody takes it for an orphan.
pub fn start(
    spawn: impl FnOnce() -> std::io::Result<tokio::process::Child>,
) -> std::io::Result<tokio::process::Child> {
    let mut supervisors = lock();
    let subagent = spawn()?;
    if let Some(pid) = pid_of(&subagent) {
        supervisors.get_or_insert_default().insert(pid);
    }
    Ok(subagent)
}

/// A supervisor has died or is about to.
pub fn forget(supervisor: Option<u32>) {
    if let (Some(pid), Some(known)) =
        (supervisor.and_then(|pid| Pid::from_raw(pid.cast_signed())), lock().as_mut())
    {
        known.remove(&pid);
    }
}

/// Ends every child that is no supervisor. Says whether none is left, for certain. Blocks, within a bound.
pub fn end_all() -> bool {
    // Whose children they become is known only if it is this process.
    if !process::child_subreaper().is_ok_and(|own| own.is_some()) {
        return false;
    }
    let Ok(mut children) = Children::open() else { return false };
    let started = Instant::now();
    loop {
        let orphans: Vec<Pid> = {
            let supervisors = lock();
            let is_known = |pid: &Pid| supervisors.as_ref().is_some_and(|known| known.contains(pid));
            match children.list() {
                Ok(all) => all.into_iter().filter(|pid| !is_known(pid)).collect(),
                Err(_) => return false,
            }
        };
        if orphans.is_empty() {
            return true;
        }
        if started.elapsed() > DEADLINE {
            return false;
        }
        for orphan in orphans {
            super::children::kill(orphan);
            // It may not be dead yet; then it is still there the next time.
            let _ = process::waitpid(Some(orphan), WaitOptions::NOHANG);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn pid_of(subagent: &tokio::process::Child) -> Option<Pid> {
    subagent.id().and_then(|pid| Pid::from_raw(pid.cast_signed()))
}

fn lock() -> MutexGuard<'static, Option<HashSet<Pid>>> {
    // A panic elsewhere does not make the list wrong.
    SUPERVISORS.lock().unwrap_or_else(PoisonError::into_inner)
}
