//! The loop of a session: one owner, one mailbox, kept live while a turn is under way.
//!
//! A turn is a task of its own without session state. It asks and reports through a channel; only this loop changes the
//! session, so whatever a turn wants to do is decided by the mode that is on when it asks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::authorize::{Answer, DenialCount, OpenQuestion};
use super::change_mode::BOUND;
use super::checkpoint::Undoer;
use super::encoder;
use super::handle::{Mail, Prompt, PromptEnd, SessionCommand};
use super::record::title;
use super::request::Offers;
use super::switch::OpenSwitch;
use super::turn::{self, Turn, TurnError};
use super::turn_message::TurnMessage;
use super::{Origin, Session, Shared};
use crate::acp::{MessageId, StopReason};
use crate::client::Client;
use crate::error::AgentError;
use crate::event::{Compaction, SessionEvent, ToolCallUpdateEvent};
use crate::gate::Gate;
use crate::model::{Failure, ModelError};
use crate::tool::SharedShadow;
use crate::workspace::Changes;

/// Prompts that may wait behind the running one.
const MAX_WAITING: usize = 8;

/// Messages from a turn that wait for the loop. Small, so that a client that does not read slows the turn down.
const FROM_TURN: usize = 64;

pub(super) struct Actor {
    pub(super) session: Session,
    pub(super) shared: Shared,
    pub(super) client: Client,
    /// What is running, by permit.
    pub(super) gate: Gate,
    /// Questions to the user that are open, by the id of the request to the client.
    pub(super) questions: HashMap<u64, OpenQuestion>,
    /// Their answers on the way.
    pub(super) answers: FuturesUnordered<BoxFuture<'static, (u64, Answer)>>,
    /// Denials of one call in a row.
    pub(super) denials: DenialCount,
    /// Questions about the mode that are open, by the id of the request to the client.
    pub(super) switches: HashMap<u64, OpenSwitch>,
    /// Such questions that the model's own text has led to.
    pub(super) switches_asked: u64,
    /// Switches that were rejected in this turn.
    pub(super) switch_rejections: u32,
    /// The turn that runs, if one does.
    pub(super) turn: Option<RunningTurn>,
    queue: VecDeque<Prompt>,
    /// Ends when the answer to the last prompt is on its way: what comes next waits for it.
    telling: Option<oneshot::Receiver<()>>,
    /// The tools of the last request.
    pub(super) offers: Offers,
    /// The user has been told that the record fails.
    pub(super) record_failed: bool,
    /// What calls have changed, by their turns. No bound: a call tells once or twice.
    pub(super) changes: (mpsc::UnboundedSender<Change>, mpsc::UnboundedReceiver<Change>),
    /// Copies of the session's files, once a command ran.
    pub(super) shadow: Option<SharedShadow>,
}

/// What a call of a turn has changed.
pub(super) type Change = (u64, Changes);

pub(super) struct RunningTurn {
    messages: mpsc::Receiver<TurnMessage>,
    pub(super) cancel: CancellationToken,
    task: JoinHandle<Result<StopReason, TurnError>>,
    reply: oneshot::Sender<Result<PromptEnd, AgentError>>,
}

/// Runs a session until it is closed or every handle is gone.
pub(super) async fn run(
    session: Session,
    origin: Origin,
    shared: Shared,
    client: Client,
    mut mailbox: mpsc::UnboundedReceiver<Mail>,
) {
    let mut actor = Actor::new(session, shared, client);
    if let Err(error) = actor.begin(origin).await {
        // Whoever waits for the session learns that it is not there.
        tracing::error!(%error, "a session cannot be taken up again");
        return;
    }
    loop {
        tokio::select! {
            // Commands first: a cancel or a mode change comes before what a turn wants meanwhile.
            biased;
            command = mailbox.recv() => match command {
                Some((SessionCommand::Close(done), _)) => {
                    actor.close().await;
                    // Whoever closed may have stopped waiting.
                    let _ = done.send(actor.session.head);
                    return;
                }
                Some((command, _slot)) => actor.command(command).await,
                None => return actor.close().await,
            },
            Some((number, answer)) = actor.answers.next() => {
                if !actor.switch_answered(number, &answer).await {
                    actor.answered(number, answer).await;
                }
            }
            // What a call changed is kept before it is over.
            Some((turn, changes)) = actor.changes.1.recv() => actor.keep_changes(turn, changes),
            message = next_message(&mut actor.turn) => match message {
                Some(message) => actor.turn_message(message).await,
                None => actor.turn_over().await,
            },
            () = told(&mut actor.telling) => actor.start_next().await,
        }
    }
}

/// Ends when the last answer is on its way. Pends while there is none.
async fn told(telling: &mut Option<oneshot::Receiver<()>>) {
    match telling {
        // It is never sent, only dropped.
        Some(telling) => drop(telling.await),
        None => std::future::pending().await,
    }
}

/// The turn's next message. Pends while no turn runs.
async fn next_message(turn: &mut Option<RunningTurn>) -> Option<TurnMessage> {
    match turn {
        Some(turn) => turn.messages.recv().await,
        None => std::future::pending().await,
    }
}

impl Actor {
    fn new(session: Session, shared: Shared, client: Client) -> Self {
        Self {
            session,
            shared,
            client,
            gate: Gate::default(),
            questions: HashMap::new(),
            answers: FuturesUnordered::new(),
            denials: DenialCount::default(),
            switches: HashMap::new(),
            switches_asked: 0,
            switch_rejections: 0,
            turn: None,
            queue: VecDeque::new(),
            telling: None,
            offers: Offers::default(),
            record_failed: false,
            changes: mpsc::unbounded_channel(),
            shadow: None,
        }
    }

    async fn command(&mut self, command: SessionCommand) {
        match command {
            SessionCommand::Prompt(prompt) => self.prompt(prompt).await,
            SessionCommand::Greet(answered) => self.greet(answered).await,
            SessionCommand::TakeBack => self.take_back(),
            SessionCommand::Cancel => self.cancel(),
            SessionCommand::SetMode { mode, source, reply } => {
                let outcome = self.change_mode(&mode, source).await;
                let outcome = outcome.map(|effect| (effect, self.options(), self.untold_head()));
                // The client may have gone; the mode has changed all the same.
                let _ = reply.send(outcome);
            }
            SessionCommand::Choose { wish, reply } => {
                let outcome = self.choose(wish).await;
                // The client may have gone; the model has changed all the same.
                let _ = reply.send(outcome);
            }
            SessionCommand::Reload { modes, rules, reply } => {
                let outcome = self.reload(modes, rules).await;
                // The client may have gone; the modes have changed all the same.
                let _ = reply.send(outcome);
            }
            SessionCommand::Look(reply) => {
                self.save().await;
                // The client may have gone; so below.
                let _ = reply.send(self.view());
            }
            SessionCommand::Show(reply) => {
                let shown = self.show().await;
                let _ = reply.send(shown);
            }
            SessionCommand::Undo { turn, reply } => {
                let undone = self.undo(turn, Undoer::CommandLine).await;
                let _ = reply.send(undone);
            }
            SessionCommand::Close(_) => unreachable!("the loop takes it"),
        }
    }

    async fn prompt(&mut self, prompt: Prompt) {
        if let Err(error) = self.check_prompt(&prompt.content) {
            let _ = prompt.reply.send(Err(error));
            return;
        }
        if self.turn.is_none() && self.telling.is_none() {
            return self.start(prompt).await;
        }
        if self.is_for_us_alone(&prompt) {
            self.obey(prompt).await;
        } else if self.queue.len() < MAX_WAITING {
            // A command before the prompt waits with it: it is about that prompt.
            self.queue.push_back(prompt);
        } else {
            let text =
                format!("{MAX_WAITING} prompts wait for this session already: wait for an answer first");
            let _ = prompt.reply.send(Err(AgentError::InvalidRequest(text)));
        }
    }

    /// Begins the turn of a prompt, unless nothing of it is for the model.
    async fn start(&mut self, prompt: Prompt) {
        if let Some(prompt) = self.obey(prompt).await {
            self.begin_turn(prompt).await;
        }
    }

    /// Begins what waits, once the last answer is on its way.
    async fn start_next(&mut self) {
        self.telling = None;
        while self.turn.is_none() && self.telling.is_none() {
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

    /// The client took requests back: the running turn's token may be cancelled, or those of waiting prompts.
    fn take_back(&mut self) {
        if self.turn.as_ref().is_some_and(|turn| turn.cancel.is_cancelled()) {
            self.close_questions(|_| true);
            self.close_switches();
        }
        self.answer_cancelled(|prompt| prompt.cancel.is_cancelled());
    }

    /// Answers the waiting prompts that are taken back.
    fn answer_cancelled(&mut self, taken_back: impl Fn(&Prompt) -> bool) {
        let (back, stay): (VecDeque<_>, _) = self.queue.drain(..).partition(taken_back);
        self.queue = stay;
        for prompt in back {
            self.tell(prompt.reply, Ok(StopReason::Cancelled));
        }
    }

    /// Answers a prompt. The client may have gone; what happened is recorded.
    pub(super) fn tell(
        &mut self,
        reply: oneshot::Sender<Result<PromptEnd, AgentError>>,
        outcome: Result<StopReason, AgentError>,
    ) {
        let (told, telling) = oneshot::channel();
        let head = self.untold_head();
        if reply.send(outcome.map(|reason| PromptEnd { reason, head, _told: told })).is_ok() {
            self.telling = Some(telling);
        }
    }

    async fn begin_turn(&mut self, prompt: Prompt) {
        let Prompt { content, typed, cancel, reply } = prompt;
        self.session.turns += 1;
        let turn = self.session.turns;
        self.denials = DenialCount::default();
        self.switch_rejections = 0;
        let message_id = MessageId::new(format!("msg_{turn}_0"));
        let title = (turn == 1).then(|| title(&content)).flatten();
        self.record(SessionEvent::UserMessage { message_id, content, typed }, None).await;
        if let Some(title) = title {
            self.record(SessionEvent::Title { title }, None).await;
        }
        self.freeze_system_prompt().await;
        for (number, text) in std::mem::take(&mut self.session.notices).into_iter().enumerate() {
            let message_id = MessageId::new(format!("msg_{turn}_n{number}"));
            self.record(SessionEvent::Notice { message_id, text }, None).await;
        }
        let (to_actor, messages) = mpsc::channel(FROM_TURN);
        let running = Turn {
            number: turn,
            model: Arc::clone(&self.shared.model),
            tools: self.shared.tools.clone(),
            workspace: self.session.workspace.clone(),
            parallel: self.shared.parallel,
            live: self.shared.live,
            cancel: cancel.clone(),
            client: self.client.clone(),
            actor: to_actor,
            changes: self.changes.0.clone(),
        };
        let task = tokio::spawn(turn::run(running));
        self.turn = Some(RunningTurn { messages, cancel, task, reply });
    }

    async fn turn_message(&mut self, message: TurnMessage) {
        match message {
            TurnMessage::Event(event, room) => self.record(event, room).await,
            TurnMessage::Progress { id, content, room } => {
                self.client.update(self.session.id.clone(), encoder::progress(id, &content), room);
            }
            TurnMessage::Finished { update, seen, job, room } => {
                self.session.seen.extend(seen);
                self.session.jobs.extend(job);
                self.record(SessionEvent::ToolCallUpdate(update), room).await;
            }
            TurnMessage::NextRequest { made, reply } => {
                // The turn may have been cancelled while it asked.
                let _ = reply.send(self.next_request(made));
            }
            TurnMessage::MakeRoom { reply } => {
                let _ = reply.send(self.summary_to_make_room());
            }
            TurnMessage::Summarised(summarised, room) => self.summarised(summarised, room).await,
            TurnMessage::Authorize { call, facts, fits, reply } => {
                let _ = reply.send(self.authorize(call, facts, fits).await);
            }
            TurnMessage::Jobs { reply } => {
                let _ = reply.send(self.shadow_of_jobs().await);
            }
            TurnMessage::InBand { found, reply } => self.in_band(found, reply).await,
            TurnMessage::Propose { call, proposal, reply } => self.propose(call, proposal, reply),
            TurnMessage::Ask { call, facts, preview, reply } => {
                self.ask(call, facts, &preview, reply).await;
            }
        }
    }

    async fn turn_over(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        self.close_questions(|_| true);
        self.close_switches();
        let outcome = turn.task.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a turn died");
            Err(TurnError::Died)
        });
        let cancelled = turn.cancel.is_cancelled();
        if cancelled {
            // What the turn began and was to go on after it ends with it; what earlier turns began goes on.
            self.gate.end_turn(self.session.turns, BOUND).await;
        }
        if let Some(id) = self.session.compacting.take() {
            self.record(SessionEvent::Compaction { id, stage: Compaction::Cancelled }, None).await;
        }
        let begun = std::mem::take(&mut self.session.begun_calls);
        let mut open: Vec<_> = self.session.open_calls.keys().cloned().chain(begun).collect();
        open.sort_by(|a, b| a.0.cmp(&b.0));
        for id in open {
            let result = if cancelled { "Cancelled by the user." } else { "The call was not carried out." };
            self.record(SessionEvent::ToolCallUpdate(ToolCallUpdateEvent::failed(id, result)), None).await;
        }
        let outcome = match outcome {
            _ if cancelled => Ok(StopReason::Cancelled),
            Ok(reason) => Ok(reason),
            Err(TurnError::Model(ModelError { failure: Failure::Key, text })) => {
                Err(AgentError::AuthRequired(text))
            }
            Err(TurnError::Model(error)) => Err(AgentError::Model(error.text)),
            Err(TurnError::Died) => Err(AgentError::Internal),
        };
        if let Ok(reason) = outcome {
            self.record(SessionEvent::Stop { reason }, None).await;
        }
        self.session.forget_transition_after(self.session.turns);
        self.session.for_model.retain(|(_, told)| !told);
        self.save().await;
        self.tell(turn.reply, outcome);
        if self.telling.is_none() {
            self.start_next().await;
        }
    }

    async fn close(&mut self) {
        self.cancel();
        if self.turn.is_some() {
            // The turn ends soon after its token; what it still has to say happened.
            while let Some(message) = next_message(&mut self.turn).await {
                self.turn_message(message).await;
            }
            self.turn_over().await;
        }
        let ended = self.gate.end(|_| true, BOUND).await;
        if !ended.unconfirmed.is_empty() {
            tracing::warn!(
                calls = ended.unconfirmed.len(),
                "what a session began could not be confirmed to have ended"
            );
        }
        self.save().await;
        if let Err(error) = self.shared.store.release_session(&self.session.id).await {
            // It is free once this process is gone.
            tracing::warn!(%error, "a session could not be let go of");
        }
    }
}
