//! The end of a session: ends its turn and its calls, and records their last reports.

use futures_util::FutureExt;

use super::Actor;
use crate::external_agent::session::AgentMessage;
use crate::session::DEADLINE;
use crate::session::subagent::subagents;
use crate::session::turn::turns::TurnEvent;
use crate::store::Row;

impl Actor {
    pub(super) async fn close(&mut self) {
        self.subagents.on_close();
        self.cancel();
        self.external_agent_message(AgentMessage::Closing).await;
        if self.turns.running.is_some() {
            // The turn ends soon after its cancellation. Its last messages are still recorded.
            loop {
                tokio::select! {
                    biased;
                    Some(report) = self.subagents.next() => self.report(report).await,
                    Some(message) = self.external_agent.next() => {
                        self.external_agent_message(message).await;
                    }
                    Some(report) = self.refused_changes.next() => {
                        self.refused_changes.record(report, &mut self.decider);
                    }
                    event = self.turns.next() => match event {
                        TurnEvent::Message(message) => self.turn_message(message).await,
                        TurnEvent::Acked => {}
                        TurnEvent::Over => break,
                    },
                }
            }
            self.turn_over().await;
        }
        self.close_external_agent().await;
        let mut gate = std::mem::take(&mut self.gate);
        let ended = self.handle_reports_during(gate.end(|_| true, DEADLINE)).await;
        self.gate.restore(gate);
        while let Some(report) = self.subagents.next().now_or_never().flatten() {
            self.report(report).await;
        }
        while let Some(message) = self.external_agent.next().now_or_never().flatten() {
            self.external_agent_message(message).await;
        }
        self.show_ended_work(&ended).await;
        subagents::end_calls(&mut self.decider.log);
        if !ended.unconfirmed.is_empty() {
            tracing::warn!(calls = ended.unconfirmed.len(), "calls of a session may not have ended");
        }
        if self.decider.policy.ancestry.parent.is_none() {
            // A sub-agent uses its parent's servers.
            self.decider.policy.context.tools.servers().close().await;
        }
        // The calls that have ended reported before.
        self.refused_changes.record_reported(&mut self.decider);
        self.checkpoints.record_last(&self.decider.policy.ancestry, &mut self.decider.log).await;
        self.decider.log.save().await;
        self.release().await;
    }

    /// Waits for the external agent's end, within the deadline of a mode change.
    async fn close_external_agent(&mut self) {
        self.external_agent_message(AgentMessage::Closed).await;
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while !self.external_agent.is_stopped() {
            // The agent's last messages are still recorded.
            tokio::select! {
                Some(message) = self.external_agent.next() => self.external_agent_message(message).await,
                () = tokio::time::sleep_until(deadline) => {
                    return tracing::warn!("an external agent did not end in time");
                }
            }
        }
    }

    /// Lets other processes open the session, after all its rows.
    pub(super) async fn release(&mut self) {
        self.decider.log.queue(Row::Release { session: self.decider.log.id().clone() });
        if let Err(error) = self.decider.log.store().flush().await {
            tracing::warn!(%error, "cannot release a session yet");
        }
    }
}
