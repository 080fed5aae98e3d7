//! Kills processes whose supervisor died, if the guard was killed, too: they are then children of this process, if
//! `main` has called [`adopt`]. Otherwise their end stays unconfirmed.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{self, Pid};

use crate::supervisor::children::{self, Children};

/// Guards and supervisors. Global, because children belong to the whole process.
static KNOWN: Mutex<Option<HashSet<Pid>>> = Mutex::new(None);

/// Makes this process the parent of processes whose supervisor died.
pub(super) fn adopt() {
    if let Err(error) = process::set_child_subreaper(Some(process::getpid())) {
        tracing::warn!(%error, "processes of a dead supervisor cannot be tracked");
    }
}

/// Spawns the guard under the lock, so that [`end_all`] does not kill it.
pub(super) fn start(
    spawn: impl FnOnce() -> std::io::Result<tokio::process::Child>,
) -> std::io::Result<(tokio::process::Child, Option<Pid>)> {
    let mut locked = lock();
    let child = spawn()?;
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    locked.get_or_insert_default().extend(pid);
    Ok((child, pid))
}

/// Supervisors become children of this process when the guard and the fork server die.
pub(super) fn remember(supervisor: Pid) {
    lock().get_or_insert_default().insert(supervisor);
}

pub(super) fn forget(known: Pid) {
    if let Some(all) = lock().as_mut() {
        all.remove(&known);
    }
}

/// The numbers of supervisors and guards.
pub(super) fn known() -> Vec<i32> {
    lock().iter().flatten().map(|pid| pid.as_raw_nonzero().get()).collect()
}

/// Kills every other child. Returns true if none is left. Blocks for about a second at most.
pub(super) fn end_all() -> bool {
    // Without this flag orphans become children of another process.
    if !process::child_subreaper().is_ok_and(|own| own.is_some()) {
        return false;
    }
    let Ok(mut children) = Children::open() else { return false };
    children::end_others(&mut children, process::getpgrp(), |pid| {
        lock().as_ref().is_some_and(|known| known.contains(&pid))
    })
}

fn lock() -> MutexGuard<'static, Option<HashSet<Pid>>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}
