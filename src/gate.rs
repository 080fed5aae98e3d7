//! The mode gate. A [`Permit`] exists until its effect is over. A stricter mode cancels the permits that it
//! denies and waits up to a deadline for their return; effects without a confirmed end are reported.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::acp::ToolCallId;
use crate::permission::{CallFacts, Claim, Effect, FilesBelow, Target};
pub use rule_reporter::{ReportingCall, RuleReport, RuleReporter};

mod rule_reporter;

/// Permission to run one effect. Dropping the permit confirms the end of the effect.
#[derive(Debug)]
pub struct Permit {
    /// A writer checks this token right before its last step.
    pub cancel: CancellationToken,
    /// Cancelled when a mode denies the effect or the session ends, even if the call was cancelled before.
    pub denied: CancellationToken,
    /// Cancelled when the user cancels this call alone.
    pub withdrawn: CancellationToken,
    pub effect: Effect,
    /// Server hint on which the permission decision rests.
    pub claim: Option<Claim>,
    /// Readable files below the targets; all if `None`.
    pub files: Option<FilesBelow>,
    /// Decides which instruction files near the targets the model may read. `None` denies all.
    pub instruction_files: Option<FilesBelow>,
    /// `None` for a call that runs no command, and for read-only commands.
    pub rule_reporter: Option<RuleReporter>,
    over: oneshot::Sender<Unconfirmed>,
    _released: DropGuard,
}

#[derive(Debug, Clone)]
pub struct Active {
    pub call: ToolCallId,
    cancel: CancellationToken,
    released: CancellationToken,
}

impl Active {
    pub async fn over(&self) {
        tokio::select! {
            () = self.cancel.cancelled() => {}
            () = self.released.cancelled() => {}
        }
    }
}

/// The end of the effect cannot be confirmed.
#[derive(Debug)]
struct Unconfirmed;

impl Permit {
    pub fn admits(&self, file: &Target) -> bool {
        self.files.as_ref().is_none_or(|files| files.admits(file))
    }

    /// Returns the permit without confirming the end of the effect, which stays unconfirmed in every later
    /// [`Gate::end`].
    pub fn release_unconfirmed(self) {
        // The session may be over.
        let _ = self.over.send(Unconfirmed);
    }
}

#[derive(Debug)]
struct RunningCall {
    call_id: ToolCallId,
    facts: CallFacts,
    turn: u64,
    cancel: CancellationToken,
    denied: CancellationToken,
    withdrawn: CancellationToken,
    released: CancellationToken,
    over: oneshot::Receiver<Unconfirmed>,
    is_unconfirmed: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ended {
    pub confirmed: Vec<ToolCallId>,
    pub unconfirmed: Vec<ToolCallId>,
}

impl Ended {
    pub fn contains(&self, call: &ToolCallId) -> bool {
        self.confirmed.contains(call) || self.unconfirmed.contains(call)
    }
}

#[derive(Debug, Default)]
pub struct Gate {
    running: HashMap<u64, RunningCall>,
    next: u64,
    /// Parent token of background effects, which outlive their turn.
    session: CancellationToken,
}

impl Gate {
    /// `cancel` is the token of the turn; background effects ignore it.
    pub fn admit(
        &mut self,
        call_id: ToolCallId,
        facts: CallFacts,
        turn: u64,
        cancel: &CancellationToken,
    ) -> Permit {
        self.remove_finished();
        let (to_gate, over) = oneshot::channel();
        let cancel = if facts.is_background { self.session.child_token() } else { cancel.child_token() };
        let [denied, withdrawn, released] = std::array::from_fn(|_| CancellationToken::new());
        let (effect, claim) = (facts.effect, facts.claim.clone());
        self.next += 1;
        self.running.insert(
            self.next,
            RunningCall {
                call_id,
                facts,
                turn,
                cancel: cancel.clone(),
                denied: denied.clone(),
                withdrawn: withdrawn.clone(),
                released: released.clone(),
                over,
                is_unconfirmed: false,
            },
        );
        Permit {
            cancel,
            denied,
            withdrawn,
            effect,
            claim,
            files: None,
            instruction_files: None,
            rule_reporter: None,
            over: to_gate,
            _released: released.drop_guard(),
        }
    }

    pub fn active(&mut self, is_selected: impl Fn(&CallFacts) -> bool) -> Option<Active> {
        self.remove_finished();
        let running =
            self.running.values().filter(|running| !running.is_unconfirmed && !running.cancel.is_cancelled());
        let first =
            running.filter(|running| is_selected(&running.facts)).min_by_key(|running| &running.call_id.0)?;
        let RunningCall { call_id, cancel, released, .. } = first;
        Some(Active { call: call_id.clone(), cancel: cancel.clone(), released: released.clone() })
    }

    /// Takes over effects of an ended sub-agent session. `name` maps their call ids.
    pub fn take_over(&mut self, mut other: Self, name: impl Fn(&ToolCallId) -> ToolCallId) {
        other.remove_finished();
        for running in other.running.into_values() {
            self.next += 1;
            let running = RunningCall { call_id: name(&running.call_id), turn: 0, ..running };
            self.running.insert(self.next, running);
        }
    }

    /// Restores a gate that was taken to end its effects, and keeps the effects admitted since.
    pub fn restore(&mut self, taken: Self) {
        let since = std::mem::replace(self, taken);
        self.take_over(since, ToolCallId::clone);
    }

    fn remove_finished(&mut self) {
        self.running.retain(|_, running| match running.over.try_recv() {
            Ok(Unconfirmed) => {
                running.is_unconfirmed = true;
                true
            }
            Err(TryRecvError::Empty) => true,
            Err(TryRecvError::Closed) => running.is_unconfirmed,
        });
    }

    /// Cancels the running effect of one call. Returns false if there is none.
    pub fn withdraw(&mut self, call: &ToolCallId) -> bool {
        self.remove_finished();
        let mut running = self.running.values().filter(|running| {
            running.call_id == *call && !running.is_unconfirmed && !running.facts.is_background
        });
        let Some(running) = running.next() else { return false };
        running.withdrawn.cancel();
        running.cancel.cancel();
        true
    }

    /// Ends the selected effects and waits up to `deadline` for all of them.
    pub async fn end(&mut self, is_denied: impl Fn(&CallFacts) -> bool, deadline: Duration) -> Ended {
        self.end_matching(|running| is_denied(&running.facts), deadline).await
    }

    /// Ends the effects of a turn, and its background effects unless the turn `keeps_background`. A cancelled call
    /// of an MCP server stays with its server until a mode denies it.
    pub async fn end_turn(&mut self, turn: u64, keeps_background: bool, deadline: Duration) -> Ended {
        let is_kept = |facts: &CallFacts| keeps_background && facts.is_background;
        let is_ended = |running: &RunningCall| {
            running.turn == turn && !is_at_server(running) && !is_kept(&running.facts)
        };
        self.end_matching(is_ended, deadline).await
    }

    async fn end_matching(&mut self, is_selected: impl Fn(&RunningCall) -> bool, timeout: Duration) -> Ended {
        self.remove_finished();
        let denied: Vec<u64> =
            self.running.iter().filter(|(_, running)| is_selected(running)).map(|(id, _)| *id).collect();
        let mut denied: Vec<(u64, RunningCall)> =
            denied.iter().filter_map(|id| Some((*id, self.running.remove(id)?))).collect();
        for (_, running) in &denied {
            running.denied.cancel();
            running.cancel.cancel();
        }
        denied.sort_by(|(_, a), (_, b)| a.call_id.0.cmp(&b.call_id.0));
        let deadline = tokio::time::Instant::now() + timeout;
        let mut ended = Ended::default();
        for (id, mut running) in denied {
            if !running.is_unconfirmed {
                match tokio::time::timeout_at(deadline, &mut running.over).await {
                    Ok(Err(_)) => {
                        ended.confirmed.push(running.call_id);
                        continue;
                    }
                    Ok(Ok(Unconfirmed)) => running.is_unconfirmed = true,
                    Err(_) => {}
                }
            }
            ended.unconfirmed.push(running.call_id.clone());
            // The effect may still run; the next mode change waits for it again.
            self.running.insert(id, running);
        }
        ended
    }
}

fn is_at_server(running: &RunningCall) -> bool {
    running.facts.server.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(effect: Effect) -> CallFacts {
        CallFacts::of_tool("tool", effect)
    }

    #[tokio::test]
    async fn matching_permits_are_cancelled_and_awaited() {
        let mut gate = Gate::default();
        let turn = CancellationToken::new();
        let write = gate.admit(ToolCallId::new("write"), facts(Effect::Edit), 1, &turn);
        let read = gate.admit(ToolCallId::new("read"), facts(Effect::Read), 1, &turn);
        let writer = tokio::spawn(async move {
            write.cancel.cancelled().await;
            drop(write);
        });
        let ended = gate.end(|facts| facts.effect == Effect::Edit, Duration::from_mins(1)).await;
        assert_eq!(ended, Ended { confirmed: vec![ToolCallId::new("write")], unconfirmed: vec![] });
        assert!(!read.cancel.is_cancelled());
        writer.await.unwrap();
    }

    #[tokio::test]
    async fn finished_permits_are_not_reported_as_ended() {
        let mut gate = Gate::default();
        drop(gate.admit(ToolCallId::new("done"), facts(Effect::Edit), 1, &CancellationToken::new()));
        assert_eq!(gate.end(|_| true, Duration::from_mins(1)).await, Ended::default());
    }

    #[tokio::test]
    async fn permits_open_after_the_timeout_are_unconfirmed() {
        let mut gate = Gate::default();
        let permit = gate.admit(ToolCallId::new("stuck"), facts(Effect::Edit), 1, &CancellationToken::new());
        let ended = gate.end(|_| true, Duration::ZERO).await;
        let stuck = Ended { confirmed: vec![], unconfirmed: vec![ToolCallId::new("stuck")] };
        assert_eq!(ended, stuck);
        assert_eq!(gate.end(|_| true, Duration::ZERO).await, stuck, "reported again");
        drop(permit);
        assert_eq!(gate.end(|_| true, Duration::ZERO).await, Ended::default());
    }

    #[tokio::test]
    async fn unconfirmed_permits_are_reported_every_time() {
        let mut gate = Gate::default();
        let permit =
            gate.admit(ToolCallId::new("lost"), facts(Effect::Execute), 1, &CancellationToken::new());
        permit.release_unconfirmed();
        let lost = Ended { confirmed: vec![], unconfirmed: vec![ToolCallId::new("lost")] };
        for _ in 0..2 {
            assert_eq!(gate.end(|_| true, Duration::from_mins(1)).await, lost);
        }
        assert_eq!(gate.end(|_| false, Duration::from_mins(1)).await, Ended::default());
    }
}
