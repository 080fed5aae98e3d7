//! The loop of a session: one owner of its state, served while a turn runs.
//!
//! A turn is a separate task without session state. Only this loop changes the session, so each request of a
//! turn is decided under the current mode.

use std::sync::Arc;

use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::due_checks::{CheckMessage, DueChecks};
use super::event_log::EventLog;
use super::handle::{Closed, Mail, Prompt, SessionCommand, SessionHandle};
use super::notes::Notes;
use super::prompt_end::LastTurn;
use super::servers::SessionServers;
use super::session_snapshot::SessionSnapshot;
use super::spending::Spending;
use super::{Origin, SessionContext, SessionInit};
use crate::client::Client;
use crate::event::SessionEvent;
use crate::external_agent::capability::Control;
use crate::external_agent::requested_call::Readers;
use crate::external_agent::session::{AgentMessage, ExternalAgentHost, ExternalAgentSession};
use crate::gate::Gate;
use crate::model::Usage;
use crate::session::command::slash_commands;
use crate::session::history::checkpoint::{Checkpoints, Undoer};
use crate::session::history::replays::Replays;
use crate::session::history::restore;
use crate::session::mode::decider::Decider;
use crate::session::mode::permission_options::PermissionReply;
use crate::session::mode::policy::Policy;
use crate::session::mode::refused_changes::RefusedChanges;
use crate::session::mode::switch::Switches;
use crate::session::subagent::jobs::Jobs;
use crate::session::subagent::subagents::Subagents;
use crate::session::turn::message::TurnMessage;
use crate::session::turn::model_request::Requests;
use crate::session::turn::model_selection::Models;
use crate::session::turn::repetition::Repetition;
use crate::session::turn::scaled_images;
use crate::session::turn::turns::{TurnEvent, Turns};
use crate::store::sessions::StoredSession;
use crate::store::{ModeSource, StoreError};
use crate::tool::mcp::ServerEvent;
use crate::tool::web::fetch;
use crate::tool::{self, ClientIo};
use crate::workspace::Workspace;
use event::ActorEvent;

mod close;
mod control;
mod event;
mod turn;

/// Owns the components of a session, and connects them. A field is a component or a channel, never a flag or a
/// counter: state belongs to the component whose rule it serves.
struct Actor {
    workspace: Workspace,
    client_io: ClientIo,
    gate: Gate,
    decider: Decider,
    models: Models,
    notes: Notes,
    requests: Requests,
    repetition: Repetition,
    switches: Switches,
    turns: Turns,
    spending: Spending,
    checkpoints: Checkpoints,
    refused_changes: RefusedChanges,
    checks: DueChecks,
    jobs: Jobs,
    subagents: Subagents,
    external_agent: ExternalAgentSession,
    servers: SessionServers,
    replays: Replays,
    mailbox: mpsc::UnboundedReceiver<Mail>,
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

/// This future lives as long as the session, so the futures that handle an event are boxed.
async fn run(mut actor: Box<Actor>, origin: Origin) {
    if let Err(error) = Box::pin(actor.begin(origin)).await {
        tracing::warn!(%error, "cannot restore a session");
        return actor.release().await;
    }
    loop {
        match actor.next().await {
            ActorEvent::Close(done) => {
                Box::pin(actor.close()).await;
                let Actor { decider: Decider { policy, log, .. }, gate: unfinished, .. } = *actor;
                let unrecorded_modes = policy.unrecorded_modes;
                let _ = done.send(Closed { head: log.head().clone(), unrecorded_modes, unfinished });
                return;
            }
            ActorEvent::NoHandle => return Box::pin(actor.close()).await,
            // Without a boxed future, because each chunk of streamed text comes here.
            ActorEvent::Turn(TurnEvent::Message(TurnMessage::Event(event, send_permit))) => {
                actor.record_turn_event(event, send_permit);
            }
            event => Box::pin(actor.handle(event)).await,
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
        let hooks = context.hooks.in_folder(workspace.cwd());
        let context = SessionContext { hooks: hooks.clone(), ..context };
        let models = Models::new(&context, &mode, &agent, init.chosen);
        let spending = Spending::new(&id, &ancestry);
        let client_io = ClientIo::new(client.clone(), id.clone(), context.capabilities);
        let client_io = client_io.with_disk_texts(context.disk_texts.clone());
        let log = EventLog::new(id, client, &context, workspace.cwd());
        let host = ExternalAgentHost {
            agent: Arc::clone(&agent),
            session: log.id().clone(),
            client: log.client().clone(),
            hooks,
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
            decider: Decider::new(Policy::new(context, mode, unrecorded_modes, agent, ancestry), log),
            workspace,
            client_io,
            gate: Gate::default(),
            models,
            notes: Notes::new(init.pending_user_notices),
            requests: Requests::default(),
            repetition: Repetition::default(),
            switches: Switches::default(),
            turns: Turns::default(),
            spending,
            checkpoints,
            refused_changes: RefusedChanges::default(),
            checks: DueChecks::default(),
            jobs: Jobs::default(),
            subagents: Subagents::default(),
            external_agent: ExternalAgentSession::new(host),
            servers: SessionServers::new(servers),
            replays: Replays::default(),
            mailbox,
        }
    }

    /// Waits for the next event. Cancel-safe: a dropped call loses none.
    async fn next(&mut self) -> ActorEvent {
        tokio::select! {
            // Commands first: a cancel or a mode change precedes requests of a turn.
            biased;
            mail = self.mailbox.recv() => mail.map_or(ActorEvent::NoHandle, ActorEvent::of),
            Some((number, answer)) = self.decider.answers.next() => ActorEvent::Answer(number, answer),
            Some((number, answer)) = self.switches.answers.next() => ActorEvent::SwitchAnswer(number, answer),
            // Reports of other agents for a call precede its end.
            Some(report) = self.subagents.next() => ActorEvent::Report(report),
            Some(message) = self.external_agent.next() => ActorEvent::ExternalAgent(message),
            // Refusals of a command are recorded before its end.
            Some(report) = self.refused_changes.next() => ActorEvent::ChangeRefused(report),
            Some(id) = self.jobs.next() => ActorEvent::JobEnded(id),
            // Changes of a call are recorded before its end.
            Some(change) = self.checkpoints.next() => ActorEvent::Changes(change),
            () = self.spending.due() => ActorEvent::BudgetDue,
            event = self.turns.next() => ActorEvent::Turn(event),
            Some(event) = self.servers.next() => ActorEvent::Server(event),
            send_permit = self.replays.send_permit(self.decider.log.client()) => ActorEvent::Replay(send_permit),
        }
    }

    async fn handle(&mut self, event: ActorEvent) {
        match event {
            ActorEvent::Command(command, _slot) => Box::pin(self.command(command)).await,
            ActorEvent::Close(_) | ActorEvent::CancelledCommand | ActorEvent::NoHandle => {}
            ActorEvent::Answer(number, answer) => Box::pin(self.answered(number, answer)).await,
            ActorEvent::SwitchAnswer(number, answer) => {
                Box::pin(self.switch_answered(number, &answer)).await;
            }
            ActorEvent::Report(report) => self.report(report).await,
            ActorEvent::ExternalAgent(message) => self.external_agent_message(message).await,
            ActorEvent::JobEnded(id) => {
                if let Some(end) = self.jobs.ended(&id, &self.decider.log).await {
                    self.background_ended(end).await;
                }
            }
            ActorEvent::Changes((turn, changes)) => {
                if self.client_io.capabilities().reads {
                    self.client_io.disk_texts().note_earlier(&changes);
                }
                self.checkpoints.record(turn, *changes, &self.decider.policy.ancestry, &mut self.decider.log);
            }
            ActorEvent::ChangeRefused(report) => self.refused_changes.record(report, &mut self.decider),
            ActorEvent::BudgetDue => Box::pin(self.check_budgets()).await,
            ActorEvent::Turn(TurnEvent::Message(message)) => self.turn_message(message).await,
            ActorEvent::Turn(TurnEvent::Over) => Box::pin(self.turn_over()).await,
            ActorEvent::Turn(TurnEvent::Acked) => Box::pin(self.start_next()).await,
            ActorEvent::Server(event) => {
                let is_running = self.turns.is_running();
                let (notes, log) = (&mut self.notes, &mut self.decider.log);
                let question = self.servers.handle(event, is_running, notes, log);
                if let Some(question) = question {
                    let (is_cancelled, gate) = (self.turns.is_cancelled(), &mut self.gate);
                    self.servers.ask(question, is_cancelled, gate, &mut self.decider, &self.client_io);
                }
            }
            ActorEvent::Replay(send_permit) => {
                let ended = self.replays.send_next(&mut self.decider, &self.models, send_permit).await;
                if let Some((reply, outcome)) = ended {
                    // The client may be gone.
                    let _ = reply.send(outcome.map(|()| self.snapshot()));
                }
            }
        }
    }

    async fn begin(&mut self, origin: Origin) -> Result<(), StoreError> {
        match origin {
            Origin::New => restore::record_start(&mut self.decider, &self.workspace),
            Origin::Stored(stored) => {
                self.decider.log.resume(stored.head.clone());
                self.spending.restore(&self.decider.log).await?;
                self.restore(&stored, ModeSource::Load).await?;
            }
            Origin::Copy(stored) => {
                // The hash chain of the copy starts here.
                self.decider.log.continue_turns_after(stored.turns);
                self.decider.log.traced(|trace| trace.export_after(0));
                restore::post_mode_change(None, ModeSource::Fork, &mut self.decider);
                self.restore(&stored, ModeSource::Fork).await?;
            }
        }
        self.decider.tell_of_start();
        Ok(())
    }

    async fn restore(&mut self, stored: &StoredSession, source: ModeSource) -> Result<(), StoreError> {
        let Self { workspace, decider, models, notes, .. } = self;
        decider.log.continue_turns_after(stored.turns);
        models.restore(stored.chosen.as_ref(), &decider.policy, notes);
        let restored = restore::restore(stored, source, workspace, decider, notes).await?;
        self.external_agent.resume(restored.events, restored.retained_context, restored.mode_to_restore);
        // The client's prompt may be another than the one of the stored text.
        let is_kept = self.decider.policy.context.client_prompt.is_none();
        self.requests.resume(restored.system_prompt.filter(|_| is_kept), restored.transition);
        let has_editor = self.decider.policy.context.capabilities.answers;
        self.decider.policy.left_in =
            (source == ModeSource::Load && has_editor).then(|| self.decider.policy.mode.clone());
        Ok(())
    }

    fn snapshot(&self) -> SessionSnapshot {
        self.models.snapshot(&self.decider, self.options())
    }

    async fn command(&mut self, command: SessionCommand) {
        match command {
            SessionCommand::Prompt(prompt) => self.prompt(prompt).await,
            SessionCommand::Announce { answered, has_commands } => {
                self.announce(answered, has_commands).await;
            }
            SessionCommand::TakeBack => {
                self.withdraw_cancelled();
                if self.turns.is_cancelled() {
                    self.external_agent_message(AgentMessage::TurnCancelled).await;
                }
            }
            SessionCommand::Cancel => {
                self.cancel();
                self.external_agent_message(AgentMessage::TurnCancelled).await;
            }
            SessionCommand::CancelCall { call, reply } => {
                if self.gate.withdraw(&call) {
                    let _ = reply.send(Ok(()));
                } else {
                    self.subagents.cancel_call(&call, reply);
                }
            }
            SessionCommand::CancelTerminal { terminal, reply } => {
                let _ = reply.send(self.jobs.stop(&terminal, &self.decider.log).await);
            }
            SessionCommand::Commands(reply) => {
                let _ = reply.send(self.commands());
            }
            SessionCommand::Offer(reply) => drop(reply.send(Models::offer(&mut self.decider).await)),
            SessionCommand::SetMode { mode, source, reply } => {
                let outcome = self.change_mode(&mode, source).await;
                let outcome = outcome.map(|effect| {
                    let head = effect.is_some().then(|| self.decider.log.unacked_head()).flatten();
                    let options = (source == ModeSource::ConfigOption).then(|| self.options());
                    (effect, options.unwrap_or_default(), head)
                });
                // The receiver may be gone, here and below.
                let _ = reply.send(outcome);
            }
            SessionCommand::Recorded(reply) => {
                if let Err(error) = self.decider.log.store().flush_here().await {
                    tracing::warn!(%error, "a new session is not stored yet");
                }
                let _ = reply.send(());
            }
            SessionCommand::Snapshot(reply) => {
                self.decider.log.save().await;
                let _ = reply.send(self.snapshot());
            }
            SessionCommand::AskReason { call, reply } => {
                let _ = reply.send(self.decider.ask_reason(&call));
            }
            SessionCommand::Replay { cancel, reply } => {
                self.decider.log.save().await;
                // A replay leaves out passing notices, and has these events otherwise.
                if !self.decider.policy.context.updates.notices {
                    self.notes.interruptions.clear();
                }
                self.replays.begin(&self.decider, &self.models, cancel, reply);
            }
            SessionCommand::Undo { turn, reply } => {
                let undone = self.undo(turn, Undoer::CommandLine).await;
                let _ = reply.send(undone);
            }
            SessionCommand::ChangesSoFar(reply) => self.list_changes_so_far(reply),
            SessionCommand::UndoSoFar { path, reply } => {
                let _ = reply.send(self.undo_so_far(path).await);
            }
            SessionCommand::AllowHost { host, reply } => {
                let _ = reply.send(self.allow_host(host).await);
            }
            SessionCommand::LastTurn(reply) => {
                let last_turn = self.checkpoints.last_turn(&self.workspace, &mut self.decider).await;
                let (steps, running_jobs) = (self.turns.steps, self.jobs.running());
                let failed_checks = self.checks.failed(&self.decider.policy);
                let spent = self.spending.last_turn();
                let refused_changes = self.refused_changes.of_last_turn(&mut self.decider);
                let last_turn = LastTurn { steps, running_jobs, failed_checks, spent, ..last_turn };
                let _ = reply.send(LastTurn { refused_changes, ..last_turn });
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

    async fn prompt(&mut self, prompt: Prompt) {
        let known_keys = &self.decider.log.conversation().prompt_keys;
        let Some(mut prompt) = self.turns.unless_repeated(prompt, known_keys) else { return };
        self.notes.tell(self.decider.policy.widened_by_client());
        let mut checked = self.models.check_prompt(&prompt.content, &self.decider.policy);
        if checked.is_ok() && self.decider.policy.agent.external_agent.is_none() {
            checked = scaled_images::fit_prompt(&mut prompt.content).await;
        }
        if let Err(error) = checked {
            let _ = prompt.reply.send(Err(error));
        } else if self.turns.is_ready() {
            self.start(prompt).await;
        } else if slash_commands::is_local(&prompt, &self.decider.policy) {
            self.run_command(prompt).await;
        } else {
            // A command in front of the prompt waits with it.
            self.turns.wait(prompt);
        }
    }

    async fn start(&mut self, prompt: Prompt) {
        // A client that neither loads the history nor gets the commands has not seen them.
        self.notes.show_interruptions(&mut self.decider.log);
        let Some(prompt) = self.run_command(prompt).await else { return };
        match self.spending.refusal(&mut self.notes, &mut self.decider).await {
            None => self.begin_turn(prompt).await,
            Some(exceeded) => self.refuse(prompt, exceeded).await,
        }
    }

    async fn start_next(&mut self) {
        while let Some(prompt) = self.turns.next_prompt() {
            self.start(prompt).await;
        }
    }

    async fn answered(&mut self, number: u64, answer: PermissionReply) {
        let cancel = self.turns.cancel_token();
        let decided = self.decider.answered(number, answer, cancel, &self.client_io);
        if let Some((decided, reply)) = decided {
            // The turn may be cancelled by now.
            let _ = reply.send(self.authorization(decided).await);
        }
    }

    fn record_turn_event(&mut self, event: SessionEvent, send_permit: Option<OwnedSemaphorePermit>) {
        if let SessionEvent::ToolCallUpdate(update) = &event {
            self.repetition.count(update, &self.decider);
        }
        self.checks.observe(&event, &self.decider.policy.context.checks);
        let usage = if let SessionEvent::Usage(usage) = &event { Some(*usage) } else { None };
        self.decider.log.record(event, send_permit);
        self.count(usage.as_ref());
    }

    fn count(&mut self, usage: Option<&Usage>) {
        let model = self.requests.asked.as_ref().unwrap_or(&self.models.active.model);
        self.spending.count(model, usage, &mut self.decider);
    }

    /// Ends the running turn, with its calls, if a budget is used up.
    async fn check_budgets(&mut self) {
        let Some(exceeded) = self.spending.assess(&mut self.notes, &mut self.decider) else { return };
        if self.end_by_budget(exceeded) {
            if let Some(cancel) = self.turns.cancel_token() {
                cancel.cancel();
            }
            self.close_questions();
            self.external_agent_message(AgentMessage::TurnCancelled).await;
        }
    }

    fn cancel(&mut self) {
        if let Some(turn) = &self.turns.running {
            turn.cancel.cancel();
        }
        self.close_questions();
        self.turns.answer_cancelled(|_| true, &mut self.decider.log);
    }

    fn close_questions(&mut self) {
        self.decider.close(|_| true);
        self.switches.close(&self.decider);
    }

    fn withdraw_cancelled(&mut self) {
        self.turns.cancel_with_joined();
        if self.turns.is_running() && self.turns.is_cancelled() {
            self.close_questions();
        }
        self.turns.answer_cancelled(|prompt| prompt.cancel.is_cancelled(), &mut self.decider.log);
    }

    fn check(&mut self, message: CheckMessage) {
        let changed = self.checkpoints.take_changed();
        self.checks.handle(message, &changed, &self.workspace, &mut self.decider);
    }
}
