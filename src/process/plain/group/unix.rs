//! A process group. Descendants that change their group or session leave it, so its end cannot be confirmed.

use std::io;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// How a command ends together with its descendants.
pub const ENDING: &str =
    "a command ends with its process group; a descendant that leaves the group is not ended or noticed";

/// Dropping kills the group, if its command has not exited.
#[derive(Debug)]
pub(in crate::process::plain) struct Group {
    /// `None` once the number may belong to another process, or if the command shares the group of this process.
    leader: Option<Pid>,
    was_killed: bool,
}

impl Group {
    /// A command that keeps its terminal stays in the group of this process.
    pub(in crate::process::plain) fn spawn(
        command: &mut Command,
        keeps_terminal: bool,
    ) -> io::Result<(Child, Self)> {
        if !keeps_terminal {
            command.process_group(0);
        }
        let child = command.spawn()?;
        let leader = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok((child, Self { leader: leader.filter(|_| !keeps_terminal), was_killed: false }))
    }

    pub(in crate::process::plain) fn request_exit(&mut self) {
        self.send(Signal::TERM);
    }

    pub(in crate::process::plain) fn kill(&mut self) {
        self.was_killed = true;
        self.send(Signal::KILL);
    }

    /// Kills the remaining processes.
    pub(in crate::process::plain) fn leader_exited(&mut self) {
        self.send(Signal::KILL);
        self.leader = None;
    }

    /// False if a process may still run. A command that was not killed is trusted to have left none.
    #[allow(clippy::unused_async, reason = "on Windows the same function waits")]
    pub(in crate::process::plain) async fn is_gone(&self) -> bool {
        !self.was_killed
    }

    fn send(&self, signal: Signal) {
        if let Some(leader) = self.leader
            && let Err(error) = kill_process_group(leader, signal)
        {
            tracing::debug!(%error, "a process group had already ended");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.send(Signal::KILL);
    }
}
