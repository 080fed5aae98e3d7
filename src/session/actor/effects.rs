//! Carries out what the components of a session return.

use super::Actor;
use crate::acp::{ConfigOptionUpdate, SessionUpdate};
use crate::external_agent::capability;
use crate::external_agent::session::{Effect, Message, Turn, Waiting};
use crate::session::DEADLINE;
use crate::session::approval::record_denial;
use crate::session::checkpoint::record_uncovered;
use crate::store::Row;
use crate::store::entry::Entry;

impl Actor {
    pub(in crate::session) async fn ready_external_agent(&mut self, reply: Option<Waiting>) {
        let effects = self.external_agent.ready(reply, &self.policy.limits());
        self.carry_out(effects).await;
    }

    pub(in crate::session) async fn external_agent_message(&mut self, message: Message) {
        let effects = self.external_agent.handle(message, &self.policy.limits(), &mut self.gate);
        self.carry_out(effects).await;
    }

    async fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Record(event, send_permit) => self.log.record(event, send_permit).await,
                Effect::Show(update, send_permit) => self.log.send(*update, send_permit),
                Effect::Notice(text) => self.notes.record_notice(text, &mut self.log).await,
                Effect::NoticeInTurn(text) if self.turns.is_running() => {
                    self.notes.record_notice(text, &mut self.log).await;
                }
                Effect::NoticeInTurn(text) => {
                    if !self.notes.for_user.contains(&text) {
                        self.notes.for_user.push(text);
                    }
                }
                Effect::Denied { call, rule } => {
                    let tool = capability::EXTERNAL_AGENT.to_owned();
                    record_denial(call, tool, rule, &self.policy, &mut self.log);
                }
                Effect::Uncovered(text) => {
                    record_uncovered(text, &self.policy.ancestry, &self.log);
                    self.log.save().await;
                }
                Effect::Retain { session: external_session, mode: external_mode } => {
                    let session = self.log.id.clone();
                    self.log.store.post(Row::ExternalAgent { session, external_session, external_mode });
                }
                Effect::ShowCommands => self.send_commands(),
                Effect::ShowOptions => {
                    let options = ConfigOptionUpdate::new(self.options());
                    self.log.send(SessionUpdate::ConfigOptionUpdate(options), None);
                }
                // The receivers may be gone, here and below.
                Effect::ReplyOptions(reply) => drop(reply.send(self.options())),
                Effect::Answer(reply, answer) => drop(reply.send(answer)),
                Effect::Start { is_sandboxed: sandboxed } => {
                    let (turn, at) = (self.log.turns, self.log.now_ms());
                    let agent = self.policy.agent.id.clone();
                    self.log.chain(&Entry::ExternalAgent { turn, agent, sandboxed, at });
                    self.log.save().await;
                    self.external_agent.start(sandboxed, &mut self.gate);
                }
                Effect::AskToRestart => {
                    if let Some(turn) = &self.turns.running {
                        let (number, mode) = (self.log.turns, &self.policy.mode);
                        self.external_agent.ask_to_restart(&Turn { number, mode, cancel: &turn.cancel });
                    }
                }
                Effect::BeginReply => {
                    self.policy.begin_reply();
                    self.external_agent.answer_waiting();
                }
            }
        }
    }

    /// Waits for the external agent's end, within the deadline of a mode change.
    pub(super) async fn close_external_agent(&mut self) {
        let Some(over) = self.external_agent.close() else { return };
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            // The agent's last messages are still recorded.
            tokio::select! {
                Some(message) = self.external_agent.next() => self.external_agent_message(message).await,
                () = over.cancelled() => return,
                () = tokio::time::sleep_until(deadline) => {
                    return tracing::warn!("an external agent did not end in time");
                }
            }
        }
    }
}
