//! The mode gate: what is running holds a permit, and tightening ends what no longer fits.
//!
//! Whoever runs an effect keeps its [`Permit`] until the effect is over, also on another thread. [`Gate::end`] cancels
//! the permits of what a new mode denies and waits, within a bound, until they are given back; what was not given back
//! in time is named, never claimed.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::acp::ToolCallId;
use crate::permission::{CallFacts, Claim, Effect, FilesBelow, Target};

/// Leave to run one effect. Dropping it says that the effect is over.
#[derive(Debug)]
pub struct Permit {
    /// Cancelled when the effect has to end: a writer looks at it right before its last step.
    pub cancel: CancellationToken,
    /// Cancelled when a mode denies the effect, or its session is over: what was called off and may go on elsewhere has to end.
    pub denied: CancellationToken,
    /// What the effect was decided to be.
    pub effect: Effect,
    /// The server's word on which that decision rests.
    pub claim: Option<Claim>,
    /// What it may read below its targets. `None`: everything.
    pub files: Option<FilesBelow>,
    over: oneshot::Sender<Lost>,
    /// Tells that it was given back.
    _given_back: DropGuard,
}

/// An effect that runs, for what it wants while it does.
#[derive(Debug, Clone)]
pub struct Active {
    /// Its call.
    pub call: ToolCallId,
    cancel: CancellationToken,
    given_back: CancellationToken,
}

impl Active {
    /// Waits until it is over, or is to end.
    pub async fn over(&self) {
        tokio::select! {
            () = self.cancel.cancelled() => {}
            () = self.given_back.cancelled() => {}
        }
    }
}

/// Nobody can say whether the effect is over.
#[derive(Debug)]
struct Lost;

impl Permit {
    /// Whether the effect may read a file below one of its targets, or name it.
    pub fn admits(&self, file: &Target) -> bool {
        self.files.as_ref().is_none_or(|files| files.admits(file))
    }

    /// Gives it back without vouching for the end of the effect: from now on it is named whenever a mode denies it.
    pub fn give_back_unconfirmed(self) {
        // The session may be over, and then nobody asks.
        let _ = self.over.send(Lost);
    }
}

#[derive(Debug)]
struct Running {
    call_id: ToolCallId,
    facts: CallFacts,
    turn: u64,
    cancel: CancellationToken,
    denied: CancellationToken,
    given_back: CancellationToken,
    over: oneshot::Receiver<Lost>,
    is_lost: bool,
}

/// What ended because a mode changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Calls that are over.
    pub confirmed: Vec<ToolCallId>,
    /// Calls that did not end in time.
    pub unconfirmed: Vec<ToolCallId>,
}

/// The permits that are out, owned by one session.
#[derive(Debug, Default)]
pub struct Gate {
    running: HashMap<u64, Running>,
    next: u64,
    /// What goes on after its turn hangs on this.
    session: CancellationToken,
}

impl Gate {
    /// Admits an effect that was decided to be allowed. It ends with `cancel`, its turn's, unless it is to go on after it.
    pub fn admit(
        &mut self,
        call_id: ToolCallId,
        facts: CallFacts,
        turn: u64,
        cancel: &CancellationToken,
    ) -> Permit {
        self.forget_what_is_over();
        let (to_gate, over) = oneshot::channel();
        let cancel = if facts.is_background { self.session.child_token() } else { cancel.child_token() };
        let (denied, given_back) = (CancellationToken::new(), CancellationToken::new());
        let (effect, claim) = (facts.effect, facts.claim.clone());
        self.next += 1;
        self.running.insert(
            self.next,
            Running {
                call_id,
                facts,
                turn,
                cancel: cancel.clone(),
                denied: denied.clone(),
                given_back: given_back.clone(),
                over,
                is_lost: false,
            },
        );
        Permit {
            cancel,
            denied,
            effect,
            claim,
            files: None,
            over: to_gate,
            _given_back: given_back.drop_guard(),
        }
    }

    /// The first of the effects that run, are not called off, and are meant.
    pub fn active(&mut self, is_meant: impl Fn(&CallFacts) -> bool) -> Option<Active> {
        self.forget_what_is_over();
        let running =
            self.running.values().filter(|running| !running.is_lost && !running.cancel.is_cancelled());
        let first =
            running.filter(|running| is_meant(&running.facts)).min_by_key(|running| &running.call_id.0)?;
        let Running { call_id, cancel, given_back, .. } = first;
        Some(Active { call: call_id.clone(), cancel: cancel.clone(), given_back: given_back.clone() })
    }

    /// Takes over what another could not end, as of a session below that is over itself: it is named here from now on, as
    /// `name` says.
    pub fn take_over(&mut self, mut other: Self, name: impl Fn(&ToolCallId) -> ToolCallId) {
        other.forget_what_is_over();
        for running in other.running.into_values() {
            self.next += 1;
            // It is of no turn of this session, and was called off with its own.
            let running = Running { call_id: name(&running.call_id), turn: 0, ..running };
            self.running.insert(self.next, running);
        }
    }

    fn forget_what_is_over(&mut self) {
        self.running.retain(|_, running| match running.over.try_recv() {
            Ok(Lost) => {
                running.is_lost = true;
                true
            }
            Err(TryRecvError::Empty) => true,
            Err(TryRecvError::Closed) => running.is_lost,
        });
    }

    /// Ends every running effect that `is_denied` says no longer fits, and waits at most `bound` for each to be over.
    pub async fn end(&mut self, is_denied: impl Fn(&CallFacts) -> bool, deadline: Duration) -> Ended {
        self.end_those(|running| is_denied(&running.facts), deadline).await
    }

    /// Ends every running effect that a turn began, and waits at most `bound` for each to be over. A server's call that was
    /// called off is left to its server, until a mode denies it.
    pub async fn end_turn(&mut self, turn: u64, deadline: Duration) -> Ended {
        let is_elsewhere = |running: &Running| running.facts.is_servers();
        self.end_those(|running| running.turn == turn && !is_elsewhere(running), deadline).await
    }

    async fn end_those(&mut self, is_meant: impl Fn(&Running) -> bool, timeout: Duration) -> Ended {
        self.forget_what_is_over();
        let denied: Vec<u64> =
            self.running.iter().filter(|(_, running)| is_meant(running)).map(|(id, _)| *id).collect();
        let mut denied: Vec<(u64, Running)> =
            denied.iter().filter_map(|id| Some((*id, self.running.remove(id)?))).collect();
        for (_, running) in &denied {
            running.denied.cancel();
            running.cancel.cancel();
        }
        denied.sort_by(|(_, a), (_, b)| a.call_id.0.cmp(&b.call_id.0));
        let deadline = tokio::time::Instant::now() + timeout;
        let mut ended = Ended::default();
        for (id, mut running) in denied {
            if !running.is_lost {
                match tokio::time::timeout_at(deadline, &mut running.over).await {
                    // The permit was dropped, which is how an effect says that it is over.
                    Ok(Err(_)) => {
                        ended.confirmed.push(running.call_id);
                        continue;
                    }
                    Ok(Ok(Lost)) => running.is_lost = true,
                    Err(_) => {}
                }
            }
            ended.unconfirmed.push(running.call_id.clone());
            // It may still run: the next change asks again.
            self.running.insert(id, running);
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(effect: Effect) -> CallFacts {
        CallFacts::of_tool("tool", effect)
    }

    #[tokio::test]
    async fn what_no_longer_fits_is_cancelled_and_waited_for_and_the_rest_runs_on() {
        let mut gate = Gate::default();
        let turn = CancellationToken::new();
        let write = gate.admit(ToolCallId::new("write"), facts(Effect::Edit), 1, &turn);
        let read = gate.admit(ToolCallId::new("read"), facts(Effect::Read), 1, &turn);
        let writer = tokio::spawn(async move {
            write.cancel.cancelled().await;
            drop(write);
        });
        let ended = gate.end(|facts| facts.effect == Effect::Edit, Duration::from_secs(60)).await;
        assert_eq!(ended, Ended { confirmed: vec![ToolCallId::new("write")], unconfirmed: vec![] });
        assert!(!read.cancel.is_cancelled());
        writer.await.unwrap();
    }

    #[tokio::test]
    async fn what_is_over_already_was_not_ended_by_the_change() {
        let mut gate = Gate::default();
        drop(gate.admit(ToolCallId::new("done"), facts(Effect::Edit), 1, &CancellationToken::new()));
        assert_eq!(gate.end(|_| true, Duration::from_secs(60)).await, Ended::default());
    }

    #[tokio::test]
    async fn what_does_not_end_in_time_is_named() {
        let mut gate = Gate::default();
        let permit = gate.admit(ToolCallId::new("stuck"), facts(Effect::Edit), 1, &CancellationToken::new());
        let ended = gate.end(|_| true, Duration::ZERO).await;
        let stuck = Ended { confirmed: vec![], unconfirmed: vec![ToolCallId::new("stuck")] };
        assert_eq!(ended, stuck);
        assert_eq!(gate.end(|_| true, Duration::ZERO).await, stuck, "and named again");
        drop(permit);
        assert_eq!(gate.end(|_| true, Duration::ZERO).await, Ended::default());
    }

    #[tokio::test]
    async fn what_nobody_vouches_for_is_named_for_ever() {
        let mut gate = Gate::default();
        let permit =
            gate.admit(ToolCallId::new("lost"), facts(Effect::Execute), 1, &CancellationToken::new());
        permit.give_back_unconfirmed();
        let lost = Ended { confirmed: vec![], unconfirmed: vec![ToolCallId::new("lost")] };
        for _ in 0..2 {
            assert_eq!(gate.end(|_| true, Duration::from_secs(60)).await, lost);
        }
        assert_eq!(gate.end(|_| false, Duration::from_secs(60)).await, Ended::default());
    }
}
