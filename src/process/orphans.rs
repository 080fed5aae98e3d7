//! Kills processes whose supervisor died. They become children of this process only after [`adopt`], which
//! `main` calls; otherwise their end stays unconfirmed.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{self, Pid, WaitOptions};

use super::children::{self, Children};

const DEADLINE: Duration = Duration::from_secs(1);

/// Global, because children belong to the whole process.
static SUPERVISORS: Mutex<Option<HashSet<Pid>>> = Mutex::new(None);

/// Makes this process the parent of processes whose supervisor died.
pub fn adopt() {
    if let Err(error) = process::set_child_subreaper(Some(process::getpid())) {
        tracing::warn!(%error, "processes of a dead supervisor cannot be tracked");
    }
}

/// Spawns under the lock, so that [`end_all`] does not kill the new supervisor.
pub fn start(
    spawn: impl FnOnce() -> std::io::Result<tokio::process::Child>,
) -> std::io::Result<tokio::process::Child> {
    let mut supervisors = lock();
    let child = spawn()?;
    if let Some(pid) = pid_of(&child) {
        supervisors.get_or_insert_default().insert(pid);
    }
    Ok(child)
}

pub fn forget(supervisor: Option<u32>) {
    if let (Some(pid), Some(known)) =
        (supervisor.and_then(|pid| Pid::from_raw(pid.cast_signed())), lock().as_mut())
    {
        known.remove(&pid);
    }
}

/// Kills every child that is not a supervisor. Returns true if none is left. Blocks for about a second at
/// most.
pub fn end_all() -> bool {
    // Without this flag orphans become children of another process.
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
            children::kill(orphan);
            let _ = process::waitpid(Some(orphan), WaitOptions::NOHANG);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn pid_of(child: &tokio::process::Child) -> Option<Pid> {
    child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()))
}

fn lock() -> MutexGuard<'static, Option<HashSet<Pid>>> {
    SUPERVISORS.lock().unwrap_or_else(PoisonError::into_inner)
}
