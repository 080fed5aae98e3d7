//! The loop of a session: one owner of its state, served while a turn runs.
//!
//! A turn is a separate task without session state. Only this loop changes the session, so each request of a
//! turn is decided under the current mode.

use std::sync::Arc;

use futures_util::{FutureExt, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::event_log::EventLog;
use super::handle::{Closed, LastTurn, Mail, Prompt, SessionCommand, SessionHandle, SessionSnapshot};
use super::notes::Notes;
use super::options;
use super::servers::Servers;
use super::{DEADLINE, Origin, SessionContext, SessionInit};
use crate::client::Client;
use crate::external_agent::capability::Control;
use crate::external_agent::requested_call::Readers;
use crate::external_agent::session::{self as external_agent, ExternalAgentSession};
use crate::gate::Gate;
use crate::mode::Access;
use crate::session::command::slash_commands;
use crate::session::history::checkpoint::{Checkpoints, Undoer};
use crate::session::history::replay::Replays;
use crate::session::history::restore;
use crate::session::mode::ancestry::Change;
use crate::session::mode::approval::Approvals;
use crate::session::mode::permission_options::Answer;
use crate::session::mode::policy::Policy;
use crate::session::mode::switch::Switches;
use crate::session::subagent::jobs::Jobs;
use crate::session::subagent::list::{self, Subagents};
use crate::session::subagent::relay::Report;
use crate::session::turn::model_request::Requests;
use crate::session::turn::model_selection::Models;
use crate::session::turn::repetition::Repetition;
use crate::session::turn::scaled_images;
use crate::session::turn::turns::{TurnEvent, Turns};
use crate::store::sessions::StoredSession;
use crate::store::{ModeSource, Row, StoreError};
use crate::tool::mcp::ServerEvent;
use crate::tool::web::fetch;
use crate::tool::{self, ClientIo};
use crate::workspace::Workspace;

mod control;
mod turn;

/// Owns the components of a session, and connects them. A field is a component or a channel, never a flag or a
/// counter: state belongs to the component whose rule it serves.
struct Actor {
    workspace: Workspace,
    client_io: ClientIo,
    gate: Gate,
    log: EventLog,
    policy: Policy,
    models: Models,
    notes: Notes,
    requests: Requests,
    approvals: Approvals,
    repetition: Repetition,
    switches: Switches,
    turns: Turns,
    checkpoints: Checkpoints,
    jobs: Jobs,
    subagents: Subagents,
    external_agent: ExternalAgentSession,
    servers: Servers,
    replays: Replays,
    mailbox: mpsc::UnboundedReceiver<Mail>,
}

#[allow(clippy::large_enum_variant, reason = "one at a time, moved once")]
enum Event {
    Command(SessionCommand, Option<OwnedSemaphorePermit>),
    Close(oneshot::Sender<Closed>),
    /// The last handle is gone.
    NoHandle,
    /// The answer to a permission request with this id.
    Answer(u64, Answer),
    SwitchAnswer(u64, Answer),
    Report(Report),
    ExternalAgent(external_agent::Message),
    JobEnded(String),
    Changes(Change),
    Turn(TurnEvent),
    Server(ServerEvent),
    /// A send permit for the next update of a replay.
    Replay(OwnedSemaphorePermit),
}

impl Event {
    fn of((command, slot): Mail) -> Self {
        match *command {
            SessionCommand::Close(done) => Self::Close(done),
            command => Self::Command(command, slot),
        }
    }
}

/// Starts a session. Its task ends when the session is closed or its last handle is dropped.
pub fn start(
    mut init: SessionInit,
    servers: Option<mpsc::UnboundedReceiver<ServerEvent>>,
    context: SessionContext,
    client: Client,
) -> SessionHandle {
    let (commands, mailbox) = mpsc::unbounded_channel();
    let (workspace, client_prompt) = (init.workspace.clone(), context.client_prompt.clone());
    let origin = std::mem::replace(&mut init.origin, Origin::New);
    let actor = Box::new(Actor::new(init, context, client, servers, mailbox));
    tokio::spawn(run(actor, origin));
    SessionHandle::new(commands, workspace, client_prompt)
}

/// Its future lives as long as the session, so those of rare events are boxed, here and in [`Actor::handle`].
async fn run(mut actor: Box<Actor>, origin: Origin) {
    if let Err(error) = Box::pin(actor.begin(origin)).await {
        tracing::warn!(%error, "cannot restore a session");
        return actor.release().await;
    }
    loop {
        match actor.next().await {
            Event::Close(done) => {
                Box::pin(actor.close()).await;
                let Actor { log, policy, gate: unfinished, .. } = *actor;
                let unrecorded_modes = policy.unrecorded_modes;
                let _ = done.send(Closed { head: log.head, unrecorded_modes, unfinished });
                return;
            }
            Event::NoHandle => return Box::pin(actor.close()).await,
            event => actor.handle(event).await,
        }
    }
}

impl Actor {
    fn new(
        init: SessionInit,
        context: SessionContext,
        client: Client,
        servers: Option<mpsc::UnboundedReceiver<ServerEvent>>,
        mailbox: mpsc::UnboundedReceiver<Mail>,
    ) -> Self {
        let SessionInit { id, workspace, mode, unrecorded_modes, agent, ancestry, .. } = init;
        let models = Models::new(&context, &mode, &agent, init.chosen);
        let client_io = ClientIo::new(client.clone(), id.clone(), context.capabilities);
        let client_io = client_io.with_disk_texts(context.disk_texts.clone());
        let log = EventLog::new(id, client, &context, workspace.cwd());
        let host = external_agent::Host {
            agent: Arc::clone(&agent),
            session: log.id.clone(),
            client: log.client.clone(),
            shell: context.tools.shell().cloned().filter(|_| context.live),
            control: agent.external_agent.as_ref().map_or(Control::None, |agent| context.control_of(agent)),
            cwd: workspace.cwd().to_owned(),
            directories: workspace.roots()[1..].to_vec(),
            servers: init.servers,
            capabilities: context.capabilities,
            readers: Readers { command: tool::commands_of, address: fetch::address_of },
        };
        let checkpoints = Checkpoints::new(context.tools.records_commands());
        Self {
            policy: Policy::new(context, mode, unrecorded_modes, agent, ancestry),
            workspace,
            client_io,
            gate: Gate::default(),
            log,
            models,
            notes: Notes::new(init.pending_user_notices),
            requests: Requests::default(),
            approvals: Approvals::default(),
            repetition: Repetition::default(),
            switches: Switches::default(),
            turns: Turns::default(),
            checkpoints,
            jobs: Jobs::default(),
            subagents: Subagents::default(),
            external_agent: ExternalAgentSession::new(host),
            servers: Servers::new(servers),
            replays: Replays::default(),
            mailbox,
        }
    }

    /// Waits for the next event. Cancel-safe: a dropped call loses none.
    async fn next(&mut self) -> Event {
        tokio::select! {
            // Commands first: a cancel or a mode change precedes requests of a turn.
            biased;
            mail = self.mailbox.recv() => mail.map_or(Event::NoHandle, Event::of),
            Some((number, answer)) = self.approvals.answers.next() => Event::Answer(number, answer),
            Some((number, answer)) = self.switches.answers.next() => Event::SwitchAnswer(number, answer),
            // Reports of other agents for a call precede its end.
            Some(report) = self.subagents.next() => Event::Report(report),
            Some(message) = self.external_agent.next() => Event::ExternalAgent(message),
            Some(id) = self.jobs.next() => Event::JobEnded(id),
            // Changes of a call are recorded before its end.
            Some(change) = self.checkpoints.next() => Event::Changes(change),
            event = self.turns.next() => Event::Turn(event),
            Some(event) = self.servers.next() => Event::Server(event),
            send_permit = self.replays.send_permit(&self.log.client) => Event::Replay(send_permit),
        }
    }

    async fn handle(&mut self, event: Event) {
        match event {
            Event::Command(command, _slot) => Box::pin(self.command(command)).await,
            Event::Close(_) | Event::NoHandle => {}
            Event::Answer(number, answer) => Box::pin(self.answered(number, answer)).await,
            Event::SwitchAnswer(number, answer) => {
                Box::pin(self.switch_answered(number, &answer)).await;
            }
            Event::Report(report) => self.report(report),
            Event::ExternalAgent(message) => self.external_agent_message(message).await,
            Event::JobEnded(id) => {
                if let Some(note) = self.jobs.ended(&id).await {
                    self.notes.has_ending = true;
                    self.note_for_model(note);
                }
            }
            Event::Changes((turn, changes)) => {
                if self.client_io.capabilities().reads {
                    self.client_io.disk_texts().note_earlier(&changes);
                }
                self.checkpoints.record(turn, changes, &self.policy.ancestry, &mut self.log);
            }
            Event::Turn(TurnEvent::Message(message)) => self.turn_message(message).await,
            Event::Turn(TurnEvent::Over) => Box::pin(self.turn_over()).await,
            Event::Turn(TurnEvent::Acked) => Box::pin(self.start_next()).await,
            Event::Server(event) => {
                let is_running = self.turns.is_running();
                let question = Servers::handle(event, is_running, &mut self.notes, &mut self.log);
                if let Some(question) = question {
                    let (is_cancelled, policy, log) =
                        (self.turns.is_cancelled(), &self.policy, &mut self.log);
                    self.servers.ask(question, is_cancelled, &mut self.gate, policy, log, &self.client_io);
                }
            }
            Event::Replay(send_permit) => {
                let ended = self.replays.send_next(&self.log, &self.policy, &self.models, send_permit).await;
                if let Some((reply, outcome)) = ended {
                    // The client may be gone.
                    let _ = reply.send(outcome.map(|()| self.snapshot()));
                }
            }
        }
    }

    async fn begin(&mut self, origin: Origin) -> Result<(), StoreError> {
        match origin {
            Origin::New => restore::record_start(&self.policy, &self.workspace, &mut self.log),
            Origin::Stored(stored) => {
                self.log.resume(stored.head.clone());
                self.restore(&stored, ModeSource::Load).await?;
            }
            Origin::Copy(stored) => {
                // The hash chain of the copy starts here.
                self.log.turns = stored.turns;
                restore::post_mode_change(None, ModeSource::Fork, &self.policy, &mut self.log);
                self.restore(&stored, ModeSource::Fork).await?;
            }
        }
        Ok(())
    }

    async fn restore(&mut self, stored: &StoredSession, source: ModeSource) -> Result<(), StoreError> {
        let Self { workspace, log, policy, models, notes, .. } = self;
        log.turns = stored.turns;
        models.restore(stored.chosen.as_ref(), policy, notes);
        let restored = restore::restore((stored, source), workspace, policy, notes, log).await?;
        self.external_agent.resume(restored.events, restored.retained_context, restored.previous_mode);
        // The client's prompt may be another than the one of the stored text.
        let is_kept = self.policy.context.client_prompt.is_none();
        self.requests.resume(restored.system_prompt.filter(|_| is_kept), restored.transition);
        let has_editor = self.policy.context.capabilities.answers;
        self.policy.left_in = (source == ModeSource::Load && has_editor).then(|| self.policy.mode.clone());
        Ok(())
    }

    fn snapshot(&self) -> SessionSnapshot {
        let policy = &self.policy;
        let context = &policy.context;
        let model = Some(&self.models.active.model).filter(|_| policy.agent.external_agent.is_none());
        let unusable_model =
            options::unusable_model(&context.modes, &context.models, &policy.mode, &policy.agent);
        SessionSnapshot {
            model: model.cloned(),
            is_fallback: model.is_some_and(|model| context.models.is_fallback(model)),
            is_read_only: policy.ceilings().modes.iter().any(|mode| mode.access == Access::ReadOnly),
            modes: options::mode_state(&context.modes, &policy.mode),
            options: self.options(),
            head: self.log.head.clone(),
            has_unrecorded_modes: !policy.unrecorded_modes.is_empty(),
            unusable_model: unusable_model.filter(|_| model.is_some()),
            limited_to: policy.limited_to(),
        }
    }

    async fn command(&mut self, command: SessionCommand) {
        match command {
            SessionCommand::Prompt(prompt) => self.prompt(prompt).await,
            SessionCommand::AnnounceCommands(answered) => self.announce_commands(answered).await,
            SessionCommand::TakeBack => {
                self.withdraw_cancelled();
                if self.turns.is_cancelled() {
                    self.refuse_agent_changes().await;
                }
            }
            SessionCommand::Cancel => {
                self.cancel();
                self.refuse_agent_changes().await;
            }
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
            SessionCommand::AskReason { call, reply } => {
                let _ = reply.send(self.approvals.ask_reason(&call, &self.policy));
            }
            SessionCommand::Replay(reply) => {
                self.log.save().await;
                // A replay leaves out passing notices, and has these events otherwise.
                if !self.policy.context.updates.notices {
                    self.notes.interruptions.clear();
                }
                self.replays.begin(&self.log, &self.policy, &self.models, reply);
            }
            SessionCommand::Undo { turn, reply } => {
                let undone = self.undo(turn, Undoer::CommandLine).await;
                let _ = reply.send(undone);
            }
            SessionCommand::LastTurn(reply) => {
                let (changed_files, uncovered) =
                    self.checkpoints.changed(&self.policy.ancestry, &self.workspace, &mut self.log).await;
                let (turn, steps) = (self.log.turns, self.turns.steps);
                let _ = reply.send(LastTurn {
                    turn,
                    steps,
                    changed_files,
                    uncovered,
                    running_jobs: self.jobs.running(),
                    has_unrecorded_changes: self.checkpoints.is_unrecorded(turn),
                    unrecorded: self.log.failure().map(str::to_owned),
                });
            }
            SessionCommand::Tighten(reply) => {
                let denied = self.end_denied_calls().await;
                let _ = reply.send(denied);
            }
            SessionCommand::SetOption { option, value, reply } => {
                self.set_option(option, value, reply).await;
            }
            SessionCommand::Close(_) => unreachable!("the loop takes it"),
        }
    }

    async fn prompt(&mut self, mut prompt: Prompt) {
        self.notes.tell(self.policy.widened_by_client());
        let mut checked = self.models.check_prompt(&prompt.content, &self.policy);
        if checked.is_ok() && self.policy.agent.external_agent.is_none() {
            checked = scaled_images::fit_prompt(&mut prompt.content).await;
        }
        if let Err(error) = checked {
            let _ = prompt.reply.send(Err(error));
        } else if self.turns.is_ready() {
            self.start(prompt).await;
        } else if slash_commands::is_local(&prompt, &self.policy) {
            self.run_command(prompt).await;
        } else {
            // A command in front of the prompt waits with it.
            self.turns.wait(prompt);
        }
    }

    async fn start(&mut self, prompt: Prompt) {
        // A client that neither loads the history nor gets the commands has not seen them.
        self.notes.show_interruptions(&self.log);
        if let Some(prompt) = self.run_command(prompt).await {
            self.begin_turn(prompt).await;
        }
    }

    async fn start_next(&mut self) {
        while let Some(prompt) = self.turns.next_prompt() {
            self.start(prompt).await;
        }
    }

    async fn answered(&mut self, number: u64, answer: Answer) {
        let cancel = self.turns.cancel_token();
        let (policy, log) = (&mut self.policy, &mut self.log);
        let decided = self.approvals.answered(number, answer, cancel, policy, log, &self.client_io);
        if let Some((decided, reply)) = decided {
            // The turn may be cancelled by now.
            let _ = reply.send(self.authorization(decided).await);
        }
    }

    fn cancel(&mut self) {
        if let Some(turn) = &self.turns.running {
            turn.cancel.cancel();
        }
        self.close_questions();
        self.turns.answer_cancelled(|_| true, &mut self.log);
    }

    fn close_questions(&mut self) {
        self.approvals.close(|_| true, &self.policy, &mut self.log);
        self.switches.close(&self.policy, &self.log);
    }

    fn withdraw_cancelled(&mut self) {
        self.turns.cancel_with_joined();
        if self.turns.is_running() && self.turns.is_cancelled() {
            self.close_questions();
        }
        self.turns.answer_cancelled(|prompt| prompt.cancel.is_cancelled(), &mut self.log);
    }

    async fn close(&mut self) {
        self.subagents.on_close();
        self.cancel();
        self.external_agent.on_close();
        if self.turns.running.is_some() {
            // The turn ends soon after its cancellation. Its last messages are still recorded.
            loop {
                tokio::select! {
                    biased;
                    Some(report) = self.subagents.next() => self.report(report),
                    Some(message) = self.external_agent.next() => {
                        self.external_agent_message(message).await;
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
            self.report(report);
        }
        while let Some(message) = self.external_agent.next().now_or_never().flatten() {
            self.external_agent_message(message).await;
        }
        list::end_calls(&mut self.log);
        if !ended.unconfirmed.is_empty() {
            tracing::warn!(
                calls = ended.unconfirmed.len(),
                "cannot confirm that all calls of a session have ended"
            );
        }
        if self.policy.ancestry.parent.is_none() {
            // A sub-agent uses its parent's servers.
            self.policy.context.tools.servers().close().await;
        }
        self.checkpoints.record_last(&self.policy.ancestry, &mut self.log).await;
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
