//! The loop of a session: one owner of its state, served while a turn runs.
//!
//! A turn is a separate task without session state. Only this loop changes the session, so each request of a
//! turn is decided under the current mode.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::authorize::{Answer, DenialCount, OpenQuestion};
use super::change_mode::DEADLINE;
use super::checkpoint::Undoer;
use super::event_log::EventLog;
use super::external_agent::ExternalAgentSession;
use super::handle::{Closed, CommandEnd, Mail, Prompt, PromptEnd, SessionCommand};
use super::request::Offers;
use super::restore::{Replay, replay_permit};
use super::subagent_relay::Report;
use super::subagents::Subagents;
use super::switch::OpenSwitch;
use super::turn::TurnError;
use super::turn_message::TurnMessage;
use super::{Origin, Session, SessionContext};
use crate::acp::{McpServer, SessionId, StopReason};
use crate::client::Client;
use crate::error::AgentError;
use crate::event::SessionEvent;
use crate::gate::Gate;
use crate::permission::Ceilings;
use crate::store::Row;
use crate::tool::mcp::ServerEvent;
use crate::tool::{ClientIo, SnapshotHandle};
use crate::workspace::Changes;

const MAX_WAITING: usize = 8;

pub(super) struct Actor {
    pub(super) session: Session,
    pub(super) context: SessionContext,
    pub(super) log: EventLog,
    pub(super) client_io: ClientIo,
    pub(super) gate: Gate,
    /// Open permission requests, by request id.
    pub(super) questions: HashMap<u64, OpenQuestion>,
    pub(super) answers: FuturesUnordered<BoxFuture<'static, (u64, Answer)>>,
    pub(super) denials: DenialCount,
    /// Open questions about a mode switch, by request id.
    pub(super) switches: HashMap<u64, OpenSwitch>,
    pub(super) switch_requests: u64,
    pub(super) switch_rejections: u32,
    pub(super) turn: Option<RunningTurn>,
    queue: VecDeque<Prompt>,
    /// Completes once the last answer is on its way; the next prompt waits for it.
    pub(super) awaiting_ack: Option<oneshot::Receiver<()>>,
    pub(super) offers: Offers,
    /// Unbounded: a call sends one or two.
    pub(super) changes: (mpsc::UnboundedSender<Change>, mpsc::UnboundedReceiver<Change>),
    pub(super) snapshot: Option<SnapshotHandle>,
    /// Notices about interrupted operations, unless a replay shows them anyway.
    pub(super) interruptions: Vec<SessionEvent>,
    pub(super) replays: VecDeque<Replay>,
    place: Option<BoxFuture<'static, OwnedSemaphorePermit>>,
    /// Last turn in which servers asked the user, and their number of questions.
    pub(super) server_questions: (u64, u32),
    pub(super) subagents: Subagents,
    pub(super) external_agent: ExternalAgentSession,
    pub(super) own_ceilings: watch::Sender<Arc<Ceilings>>,
    servers: mpsc::UnboundedReceiver<ServerEvent>,
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
                let Actor { log, session, gate: unfinished, .. } = actor;
                let unrecorded_modes = session.unrecorded_modes;
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
        session: Session,
        id: SessionId,
        context: SessionContext,
        client: Client,
        (servers, agent_servers): (mpsc::UnboundedReceiver<ServerEvent>, Vec<McpServer>),
        mailbox: mpsc::UnboundedReceiver<Mail>,
    ) -> Self {
        let client_io = ClientIo::new(client.clone(), id.clone(), context.capabilities);
        let (ceilings, _) = watch::channel(Arc::new(context.ceilings(session.modes())));
        let log = EventLog::new(id, client, &context, session.workspace.cwd());
        Self {
            session,
            context,
            log,
            client_io,
            gate: Gate::default(),
            questions: HashMap::new(),
            answers: FuturesUnordered::new(),
            denials: DenialCount::default(),
            switches: HashMap::new(),
            switch_requests: 0,
            switch_rejections: 0,
            turn: None,
            queue: VecDeque::new(),
            awaiting_ack: None,
            offers: Offers::default(),
            changes: mpsc::unbounded_channel(),
            snapshot: None,
            interruptions: Vec::new(),
            replays: VecDeque::new(),
            place: None,
            server_questions: (0, 0),
            subagents: Subagents::default(),
            external_agent: ExternalAgentSession::new(agent_servers),
            own_ceilings: ceilings,
            servers,
            mailbox,
        }
    }

    /// Waits for the next event. Cancel-safe: a dropped call loses none.
    async fn next(&mut self) -> Event {
        tokio::select! {
            // Commands first: a cancel or a mode change precedes requests of a turn.
            biased;
            command = self.mailbox.recv() => command.map_or(Event::NoHandle, Event::Command),
            Some((number, answer)) = self.answers.next() => Event::Answer(number, answer),
            // Reports of other agents for a call precede its end.
            Some(report) = self.subagents.next() => Event::Report(report),
            // Changes of a call are recorded before its end.
            Some(change) = self.changes.1.recv() => Event::Changes(change),
            message = next_message(&mut self.turn) => message.map_or(Event::TurnOver, Event::Turn),
            () = acked(&mut self.awaiting_ack) => Event::Acked,
            Some(event) = self.servers.recv() => Event::Server(event),
            send_permit = replay_permit(&self.replays, &mut self.place, &self.log.client) => Event::Replay(send_permit),
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
            Event::Changes((turn, changes)) => self.record_changes(turn, changes),
            Event::Turn(message) => self.turn_message(message).await,
            Event::TurnOver => self.turn_over().await,
            Event::Acked => self.start_next().await,
            Event::Server(event) => self.server_event(event).await,
            Event::Replay(send_permit) => self.replay_next(send_permit).await,
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
            SessionCommand::Replay(reply) => self.begin_replay(reply).await,
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
        if self.turn.is_none() && self.awaiting_ack.is_none() {
            return self.start(prompt).await;
        }
        if self.is_local_command(&prompt) {
            self.run_command(prompt).await;
        } else if self.queue.len() < MAX_WAITING {
            // A command in front of the prompt waits with it.
            self.queue.push_back(prompt);
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
        self.awaiting_ack = None;
        while self.turn.is_none() && self.awaiting_ack.is_none() {
            let Some(next) = self.queue.pop_front() else { return };
            self.start(next).await;
        }
    }

    fn cancel(&mut self) {
        if let Some(turn) = &self.turn {
            turn.cancel.cancel();
        }
        self.close_questions(|_| true);
        self.close_switches();
        self.answer_cancelled(|_| true);
    }

    fn withdraw_cancelled(&mut self) {
        if self.turn.as_ref().is_some_and(|turn| turn.cancel.is_cancelled()) {
            self.close_questions(|_| true);
            self.close_switches();
        }
        self.answer_cancelled(|prompt| prompt.cancel.is_cancelled());
    }

    fn answer_cancelled(&mut self, taken_back: impl Fn(&Prompt) -> bool) {
        let (back, stay): (VecDeque<_>, _) = self.queue.drain(..).partition(taken_back);
        self.queue = stay;
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
            self.awaiting_ack = Some(awaiting_ack);
        }
    }

    async fn close(&mut self) {
        self.subagents.is_closing = true;
        self.cancel();
        self.cancel_external_agent();
        if self.turn.is_some() {
            // The turn ends soon after its cancellation. Its last messages are still recorded.
            loop {
                tokio::select! {
                    biased;
                    Some(report) = self.subagents.next() => self.report(report).await,
                    message = next_message(&mut self.turn) => match message {
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
        if self.session.ancestry.parent.is_none() {
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
