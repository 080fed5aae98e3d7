//! The loop of a session: one owner of its state, served while a turn runs.
//!
//! A turn is a separate task without session state. Only this loop changes the session, so each request of a
//! turn is decided under the current mode.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::authorize::{Answer, Approvals};
use super::change_mode::DEADLINE;
use super::checkpoint::{Checkpoints, Undoer};
use super::event_log::EventLog;
use super::handle::{Closed, CommandEnd, Mail, Prompt, PromptEnd, SessionCommand};
use super::model_notes::Notes;
use super::model_selection::Models;
use super::options::{self, ModelSelection};
use super::policy::Policy;
use super::replay::Replays;
use super::request::Requests;
use super::servers::Servers;
use super::subagent_relay::Report;
use super::subagents::Subagents;
use super::switch::Switches;
use super::turn::TurnError;
use super::turn_life::Turns;
use super::turn_message::TurnMessage;
use super::{Origin, SessionContext, SessionInit};
use crate::acp::StopReason;
use crate::client::Client;
use crate::error::AgentError;
use crate::external_agent::session::{self as external_agent, ExternalAgentSession};
use crate::gate::Gate;
use crate::store::Row;
use crate::tool::mcp::ServerEvent;
use crate::tool::{ClientIo, Job};
use crate::workspace::{Changes, Workspace};

mod effects;

const MAX_WAITING: usize = 8;

pub(super) struct Actor {
    pub(super) context: Arc<SessionContext>,
    pub(super) workspace: Workspace,
    pub(super) client_io: ClientIo,
    pub(super) gate: Gate,
    pub(super) log: EventLog,
    pub(super) policy: Policy,
    pub(super) models: Models,
    pub(super) notes: Notes,
    pub(super) requests: Requests,
    pub(super) approvals: Approvals,
    pub(super) switches: Switches,
    pub(super) turns: Turns,
    pub(super) checkpoints: Checkpoints,
    pub(super) jobs: Vec<Job>,
    pub(super) subagents: Subagents,
    pub(super) external_agent: ExternalAgentSession,
    pub(super) servers: Servers,
    pub(super) replays: Replays,
    mailbox: mpsc::UnboundedReceiver<Mail>,
}

pub(super) type Change = (u64, Changes);

pub(super) struct RunningTurn {
    pub(super) messages: mpsc::Receiver<TurnMessage>,
    pub(super) cancel: CancellationToken,
    pub(super) task: JoinHandle<Result<StopReason, TurnError>>,
    pub(super) reply: oneshot::Sender<Result<PromptEnd, AgentError>>,
    /// End of the command whose only work is this turn.
    pub(super) command: Option<CommandEnd>,
}

/// Everything that makes a session act.
enum Event {
    Command(Mail),
    /// The last handle is gone.
    NoHandle,
    /// The answer to a question with this request id.
    Answer(u64, Answer),
    Report(Report),
    ExternalAgent(external_agent::Message),
    Changes(Change),
    Turn(TurnMessage),
    TurnOver,
    /// The answer of the last turn is on its way.
    Acked,
    Server(ServerEvent),
    /// The client has room for the next update of a replay.
    Replay(OwnedSemaphorePermit),
}

/// Runs a session until it is closed or its last handle is dropped.
pub(super) async fn run(mut actor: Actor, origin: Origin) {
    if let Err(error) = actor.begin(origin).await {
        tracing::error!(%error, "cannot restore a session");
        return actor.release().await;
    }
    loop {
        match actor.next().await {
            Event::Command((SessionCommand::Close(done), _)) => {
                actor.close().await;
                let Actor { log, policy, gate: unfinished, .. } = actor;
                let unrecorded_modes = policy.unrecorded_modes;
                let _ = done.send(Closed { head: log.head, unrecorded_modes, unfinished });
                return;
            }
            Event::NoHandle => return actor.close().await,
            event => actor.handle(event).await,
        }
    }
}

async fn acked(awaiting_ack: &mut Option<oneshot::Receiver<()>>) {
    match awaiting_ack {
        // The sender is only ever dropped.
        Some(awaiting_ack) => drop(awaiting_ack.await),
        None => std::future::pending().await,
    }
}

async fn next_message(turn: &mut Option<RunningTurn>) -> Option<TurnMessage> {
    match turn {
        Some(turn) => turn.messages.recv().await,
        None => std::future::pending().await,
    }
}

impl Actor {
    pub(super) fn new(
        init: SessionInit,
        context: SessionContext,
        client: Client,
        servers: mpsc::UnboundedReceiver<ServerEvent>,
        mailbox: mpsc::UnboundedReceiver<Mail>,
    ) -> Self {
        let SessionInit { id, workspace, mode, unrecorded_modes, agent, ancestry, .. } = init;
        let chosen = init.chosen.unwrap_or_else(|| ModelSelection::of(&context.models));
        let active = options::entering(&context.modes, &context.models, &mode, &agent, &chosen);
        context.model.prepare(&active.model);
        let client_io = ClientIo::new(client.clone(), id.clone(), context.capabilities);
        let log = EventLog::new(id, client, &context, workspace.cwd());
        let host = external_agent::Host {
            agent: Arc::clone(&agent),
            session: log.id.clone(),
            client: log.client.clone(),
            shell: context.tools.shell().cloned().filter(|_| context.live),
            can_sandbox: agent.external_agent.as_ref().is_some_and(|agent| context.can_sandbox(agent)),
            cwd: workspace.cwd().to_owned(),
            directories: workspace.roots()[1..].to_vec(),
            servers: init.servers,
            capabilities: context.capabilities,
        };
        let context = Arc::new(context);
        Self {
            policy: Policy::new(Arc::clone(&context), mode, unrecorded_modes, agent, ancestry),
            context,
            workspace,
            client_io,
            gate: Gate::default(),
            log,
            models: Models { active, chosen },
            notes: Notes::new(init.pending_user_notices),
            requests: Requests::default(),
            approvals: Approvals::default(),
            switches: Switches::default(),
            turns: Turns::default(),
            checkpoints: Checkpoints::default(),
            jobs: Vec::new(),
            subagents: Subagents::default(),
            external_agent: ExternalAgentSession::new(host),
            servers: Servers { events: servers, questions: (0, 0) },
            replays: Replays::default(),
            mailbox,
        }
    }

    /// Waits for the next event. Cancel-safe: a dropped call loses none.
    async fn next(&mut self) -> Event {
        tokio::select! {
            // Commands first: a cancel or a mode change precedes requests of a turn.
            biased;
            command = self.mailbox.recv() => command.map_or(Event::NoHandle, Event::Command),
            Some((number, answer)) = self.approvals.answers.next() => Event::Answer(number, answer),
            // Reports of other agents for a call precede its end.
            Some(report) = self.subagents.next() => Event::Report(report),
            Some(message) = self.external_agent.next() => Event::ExternalAgent(message),
            // Changes of a call are recorded before its end.
            Some(change) = self.checkpoints.changes.1.recv() => Event::Changes(change),
            message = next_message(&mut self.turns.running) => message.map_or(Event::TurnOver, Event::Turn),
            () = acked(&mut self.turns.awaiting_ack) => Event::Acked,
            Some(event) = self.servers.events.recv() => Event::Server(event),
            send_permit = self.replays.send_permit(&self.log.client) => Event::Replay(send_permit),
        }
    }

    async fn handle(&mut self, event: Event) {
        match event {
            Event::Command((command, _slot)) => self.command(command).await,
            Event::NoHandle => {}
            Event::Answer(number, answer) => {
                if !self.switch_answered(number, &answer).await {
                    self.answered(number, answer).await;
                }
            }
            Event::Report(report) => self.report(report).await,
            Event::ExternalAgent(message) => self.external_agent_message(message).await,
            Event::Changes((turn, changes)) => self.record_changes(turn, changes),
            Event::Turn(message) => self.turn_message(message).await,
            Event::TurnOver => self.turn_over().await,
            Event::Acked => self.start_next().await,
            Event::Server(event) => self.server_event(event).await,
            Event::Replay(send_permit) => {
                let ended = self.replays.send_next(&self.log, &self.policy, &self.models, send_permit).await;
                if let Some((reply, outcome)) = ended {
                    // The client may be gone.
                    let _ = reply.send(outcome.map(|()| self.snapshot()));
                }
            }
        }
    }

    async fn command(&mut self, command: SessionCommand) {
        match command {
            SessionCommand::Prompt(prompt) => self.prompt(prompt).await,
            SessionCommand::AnnounceCommands(answered) => self.announce_commands(answered).await,
            SessionCommand::TakeBack => self.withdraw_cancelled(),
            SessionCommand::Cancel => self.cancel(),
            SessionCommand::SetMode { mode, source, reply } => {
                let outcome = self.change_mode(&mode, source).await;
                let outcome = outcome.map(|effect| {
                    let head = effect.is_some().then(|| self.log.unacked_head()).flatten();
                    (effect, self.options(), head)
                });
                // The receiver may be gone, here and below.
                let _ = reply.send(outcome);
            }
            SessionCommand::Recorded(reply) => {
                if let Err(error) = self.log.store.flush().await {
                    tracing::warn!(%error, "a new session is not stored yet");
                }
                let _ = reply.send(());
            }
            SessionCommand::Snapshot(reply) => {
                self.log.save().await;
                let _ = reply.send(self.snapshot());
            }
            SessionCommand::AskReason { call, reply } => drop(reply.send(self.ask_reason(&call))),
            SessionCommand::Replay(reply) => {
                self.log.save().await;
                // The replay includes these events.
                self.notes.interruptions.clear();
                self.replays.begin(&self.log, &self.policy, &self.models, reply);
            }
            SessionCommand::Undo { turn, reply } => {
                let undone = self.undo(turn, Undoer::CommandLine).await;
                let _ = reply.send(undone);
            }
            SessionCommand::Tighten(reply) => {
                let denied = self.end_denied_calls().await;
                let _ = reply.send(denied);
            }
            SessionCommand::SetOption { option, value, reply } => {
                self.set_option(&option, value, reply).await;
            }
            SessionCommand::Close(_) => unreachable!("the loop takes it"),
        }
    }

    async fn prompt(&mut self, prompt: Prompt) {
        if let Err(error) = self.check_prompt(&prompt.content) {
            let _ = prompt.reply.send(Err(error));
            return;
        }
        if self.turns.running.is_none() && self.turns.awaiting_ack.is_none() {
            return self.start(prompt).await;
        }
        if self.is_local_command(&prompt) {
            self.run_command(prompt).await;
        } else if self.turns.queue.len() < MAX_WAITING {
            // A command in front of the prompt waits with it.
            self.turns.queue.push_back(prompt);
        } else {
            let text = format!(
                "{MAX_WAITING} prompts are already waiting in this session: wait for an answer first"
            );
            let _ = prompt.reply.send(Err(AgentError::InvalidRequest(text)));
        }
    }

    async fn start(&mut self, prompt: Prompt) {
        // A client that neither loads the history nor gets the commands has not seen them.
        self.report_interruptions();
        if let Some(prompt) = self.run_command(prompt).await {
            self.begin_turn(prompt).await;
        }
    }

    pub(super) async fn start_next(&mut self) {
        self.turns.awaiting_ack = None;
        while self.turns.running.is_none() && self.turns.awaiting_ack.is_none() {
            let Some(next) = self.turns.queue.pop_front() else { return };
            self.start(next).await;
        }
    }

    fn cancel(&mut self) {
        if let Some(turn) = &self.turns.running {
            turn.cancel.cancel();
        }
        self.close_questions(|_| true);
        self.close_switches();
        self.answer_cancelled(|_| true);
    }

    fn withdraw_cancelled(&mut self) {
        if self.turns.running.as_ref().is_some_and(|turn| turn.cancel.is_cancelled()) {
            self.close_questions(|_| true);
            self.close_switches();
        }
        self.answer_cancelled(|prompt| prompt.cancel.is_cancelled());
    }

    fn answer_cancelled(&mut self, taken_back: impl Fn(&Prompt) -> bool) {
        let (back, stay): (VecDeque<_>, _) = self.turns.queue.drain(..).partition(taken_back);
        self.turns.queue = stay;
        for prompt in back {
            self.reply(prompt.reply, Ok(StopReason::Cancelled), None);
        }
    }

    pub(super) fn reply(
        &mut self,
        reply: oneshot::Sender<Result<PromptEnd, AgentError>>,
        outcome: Result<StopReason, AgentError>,
        command: Option<CommandEnd>,
    ) {
        let (ack, awaiting_ack) = oneshot::channel();
        let head = outcome.is_ok().then(|| self.log.unacked_head()).flatten();
        if reply.send(outcome.map(|reason| PromptEnd { reason, head, command, _ack: ack })).is_ok() {
            self.turns.awaiting_ack = Some(awaiting_ack);
        }
    }

    async fn close(&mut self) {
        self.subagents.is_closing = true;
        self.cancel();
        self.external_agent.on_close();
        if self.turns.running.is_some() {
            // The turn ends soon after its cancellation. Its last messages are still recorded.
            loop {
                tokio::select! {
                    biased;
                    Some(report) = self.subagents.next() => self.report(report).await,
                    Some(message) = self.external_agent.next() => {
                        self.external_agent_message(message).await;
                    }
                    message = next_message(&mut self.turns.running) => match message {
                        Some(message) => self.turn_message(message).await,
                        None => break,
                    },
                }
            }
            self.turn_over().await;
        }
        self.close_external_agent().await;
        let mut gate = std::mem::take(&mut self.gate);
        let ended = self.handle_reports_during(gate.end(|_| true, DEADLINE)).await;
        self.restore_gate(gate);
        self.take_last_reports().await;
        if !ended.unconfirmed.is_empty() {
            tracing::warn!(
                calls = ended.unconfirmed.len(),
                "cannot confirm that all calls of a session have ended"
            );
        }
        if self.policy.ancestry.parent.is_none() {
            // A sub-agent uses its parent's servers.
            self.context.tools.servers().close().await;
        }
        self.record_last_changes().await;
        self.log.save().await;
        self.release().await;
    }

    /// Lets other processes open the session, after all its rows.
    async fn release(&mut self) {
        self.log.store.post(Row::Release { session: self.log.id.clone() });
        if let Err(error) = self.log.store.flush().await {
            tracing::warn!(%error, "cannot release a session yet");
        }
    }
}
