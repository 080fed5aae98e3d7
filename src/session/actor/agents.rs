//! Flows of a session with its external agent, its sub-agents and a new agent of its own.

use std::future::Future;
use std::sync::Arc;

use super::Actor;
use crate::acp::{ConfigOptionUpdate, SessionUpdate, ToolCallId};
use crate::agents::AgentSpec;
use crate::event::SessionEvent;
use crate::external_agent::session::{Effect, Message, Turn, Waiting};
use crate::session::ancestry::Parent;
use crate::session::approval::record_denial;
use crate::session::checkpoint::record_uncovered;
use crate::session::spawn::{Delegation, Inherited, Spawned};
use crate::session::subagent_relay::Report;
use crate::session::{DEADLINE, handoff, intents};
use crate::store::Row;
use crate::store::entry::Entry;
use crate::tool::SessionAction;

impl Actor {
    pub(super) async fn ready_external_agent(&mut self, reply: Option<Waiting>) {
        let effects = self.external_agent.ready(reply, &self.policy.limits());
        self.carry_out(effects).await;
    }

    pub(super) async fn external_agent_message(&mut self, message: Message) {
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
                Effect::Denied { call, tool, rule } => {
                    record_denial(call, tool.to_owned(), rule, &self.policy, &mut self.log);
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

    pub(super) async fn report(&mut self, report: Report) {
        let Some(note) = self.subagents.handle(report, &mut self.gate, &mut self.log).await else { return };
        if !self.turns.is_running() {
            self.notes.for_user.push(format!("{note}\n\n"));
        }
        self.note_for_model(note);
    }

    /// Handles reports of sub-agents during `work`: the calls that `work` ends may need the client. An
    /// external agent may need the gate, so its messages wait.
    pub(super) async fn handle_reports_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                Some(report) = self.subagents.next() => self.report(report).await,
            }
        }
    }

    pub(super) async fn start_session_action(&mut self, call: ToolCallId, action: SessionAction) -> Spawned {
        let delegation = match action {
            SessionAction::Delegate { agent, task, is_background } => {
                Delegation::to_agent(agent.as_deref(), task, is_background, &self.policy)
            }
            SessionAction::Skill { skill, task } => Delegation::to_skill(&skill, &task, &self.policy),
            SessionAction::Handoff { agent } => match handoff::proposed(&agent, &self.policy) {
                Ok(agent) => {
                    let text =
                        format!("{} continues from the next step on. The mode stays the same.", agent.id);
                    self.become_agent(agent).await;
                    return Spawned::Done(text);
                }
                Err(text) => Err(text),
            },
        };
        let delegation = match delegation {
            Ok(delegation) => delegation,
            Err(text) => return Spawned::Refused(text),
        };
        let Self { policy, log, checkpoints, workspace, .. } = self;
        let parent = Parent {
            session: log.id.clone(),
            turn: log.turns,
            changes: checkpoints.sender(),
            intents: intents::intent_log(&policy.ancestry, log),
            snapshot: checkpoints.shared_snapshot(&policy.ancestry, workspace, log).await,
        };
        let inherited =
            Inherited { parent, workspace: workspace.clone(), chosen: self.models.chosen.clone() };
        let (spawned, discarded) = self.subagents.spawn(call, delegation, inherited, policy, log);
        if let Some(note) = discarded {
            self.note_for_model(note);
        }
        spawned
    }

    pub(super) async fn become_agent(&mut self, agent: Arc<AgentSpec>) {
        if agent.id == self.policy.agent.id {
            return;
        }
        let before = std::mem::replace(&mut self.policy.agent, Arc::clone(&agent));
        handoff::record(&before, &agent, &mut self.log);
        if self.requests.system.take().is_some() {
            self.requests.freeze_system_prompt(&self.policy, &self.log, self.workspace.cwd()).await;
        }
        self.end_denied_calls().await;
        self.models.active = self.models.of_mode(&self.policy);
        let options = self.options();
        self.log.record_with_options(SessionEvent::AgentChange { agent: agent.id.clone() }, options).await;
    }
}
