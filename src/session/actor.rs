//! The loop of a session: one owner, one mailbox, kept live while a turn is under way.
//!
//! A turn is a task of its own without session state. It asks and reports through a channel; only this loop changes the
//! session, so whatever a turn wants to do is decided by the mode that is on when it asks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::authorize::{Answer, DenialCount, OpenQuestion};
use super::change_mode::BOUND;
use super::checkpoint::Undoer;
use super::children::Children;
use super::handle::{Closed, Mail, Prompt, PromptEnd, SessionCommand};
use super::harness::Outer;
use super::request::Offers;
use super::restore::{Showing, room_to_show};
use super::switch::OpenSwitch;
use super::turn::TurnError;
use super::turn_message::TurnMessage;
use super::{Origin, Session, Shared};
use crate::acp::{McpServer, StopReason};
use crate::client::Client;
use crate::error::AgentError;
use crate::event::SessionEvent;
use crate::gate::Gate;
use crate::permission::Ceilings;
use crate::store::Row;
use crate::tool::mcp::ServerEvent;
use crate::tool::{Editor, SharedShadow};
use crate::workspace::Changes;

/// Prompts that may wait behind the running one.
const MAX_WAITING: usize = 8;

pub(super) struct Actor {
    pub(super) session: Session,
    pub(super) shared: Shared,
    pub(super) client: Client,
    /// By which tools reach the client.
    pub(super) editor: Editor,
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
    pub(super) telling: Option<oneshot::Receiver<()>>,
    /// The tools of the last request.
    pub(super) offers: Offers,
    /// Something was handed to the store, and nobody has waited for it.
    pub(super) is_posted: bool,
    /// The user has been told that the record fails.
    pub(super) record_failed: bool,
    /// What calls have changed, by their turns. No bound: a call tells once or twice.
    pub(super) changes: (mpsc::UnboundedSender<Change>, mpsc::UnboundedReceiver<Change>),
    /// Copies of the session's files, once a command ran.
    pub(super) shadow: Option<SharedShadow>,
    /// What is to be said of operations that were interrupted, unless the client sees it with all the rest.
    pub(super) interruptions: Vec<SessionEvent>,
    /// What is being shown to the client again.
    pub(super) showings: VecDeque<Showing>,
    /// Its place in the queue for the client's room.
    place: Option<BoxFuture<'static, OwnedSemaphorePermit>>,
    /// The last turn in which servers asked the user something, and how often.
    pub(super) server_questions: (u64, u32),
    /// The sessions that work for this one.
    pub(super) children: Children,
    /// Somebody else's agent, where it answers here.
    pub(super) outer: Outer,
    /// What this session holds those below it to.
    pub(super) standing: watch::Sender<Arc<Ceilings>>,
    /// What the session's servers report.
    servers: mpsc::UnboundedReceiver<ServerEvent>,
}

/// What a call of a turn has changed.
pub(super) type Change = (u64, Changes);

pub(super) struct RunningTurn {
    pub(super) messages: mpsc::Receiver<TurnMessage>,
    pub(super) cancel: CancellationToken,
    pub(super) task: JoinHandle<Result<StopReason, TurnError>>,
    pub(super) reply: oneshot::Sender<Result<PromptEnd, AgentError>>,
}

/// Runs a session until it is closed or every handle is gone.
pub(super) async fn run(
    session: Session,
    origin: Origin,
    shared: Shared,
    client: Client,
    (servers, its_servers): (mpsc::UnboundedReceiver<ServerEvent>, Vec<McpServer>),
    mut mailbox: mpsc::UnboundedReceiver<Mail>,
) {
    let mut actor = Actor::new(session, shared, client, servers);
    actor.outer.servers = its_servers;
    if let Err(error) = actor.begin(origin).await {
        // Whoever waits for the session learns that it is not there.
        tracing::error!(%error, "a session cannot be taken up again");
        actor.release().await;
        return;
    }
    loop {
        tokio::select! {
            // Commands first: a cancel or a mode change comes before what a turn wants meanwhile.
            biased;
            command = mailbox.recv() => match command {
                Some((SessionCommand::Close(done), _)) => {
                    actor.close().await;
                    let Actor { session: Session { head, held, .. }, gate: left, .. } = actor;
                    // Whoever closed may have stopped waiting.
                    let _ = done.send(Closed { head, held, left });
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
            // What was shown by others for a call comes before its end.
            Some(report) = actor.children.next() => actor.report(report).await,
            // What a call changed is kept before it is over.
            Some((turn, changes)) = actor.changes.1.recv() => actor.keep_changes(turn, changes),
            message = next_message(&mut actor.turn) => match message {
                Some(message) => actor.turn_message(message).await,
                None => actor.turn_over().await,
            },
            () = told(&mut actor.telling) => actor.start_next().await,
            Some(event) = actor.servers.recv() => actor.server_event(event).await,
            room = room_to_show(&actor.showings, &mut actor.place, &actor.client) => actor.show_next(room).await,
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
    fn new(
        session: Session,
        shared: Shared,
        client: Client,
        servers: mpsc::UnboundedReceiver<ServerEvent>,
    ) -> Self {
        let editor = Editor::new(client.clone(), session.id.clone(), shared.abilities);
        let (standing, _) = watch::channel(Arc::new(shared.ceilings(session.modes())));
        Self {
            session,
            shared,
            client,
            editor,
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
            is_posted: false,
            record_failed: false,
            changes: mpsc::unbounded_channel(),
            shadow: None,
            interruptions: Vec::new(),
            showings: VecDeque::new(),
            place: None,
            server_questions: (0, 0),
            children: Children::default(),
            outer: Outer::default(),
            standing,
            servers,
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
                let outcome = outcome.map(|effect| {
                    let head = effect.is_some().then(|| self.untold_head()).flatten();
                    (effect, self.options(), head)
                });
                // The client may have gone; the mode has changed all the same.
                let _ = reply.send(outcome);
            }
            SessionCommand::Recorded(reply) => {
                if let Err(error) = self.shared.store.flush().await {
                    tracing::warn!(%error, "a new session is not on the record yet");
                }
                // The client may have gone; so below.
                let _ = reply.send(());
            }
            SessionCommand::Look(reply) => {
                self.save().await;
                let _ = reply.send(self.view());
            }
            SessionCommand::Show(reply) => self.begin_to_show(reply).await,
            SessionCommand::Undo { turn, reply } => {
                let undone = self.undo(turn, Undoer::CommandLine).await;
                let _ = reply.send(undone);
            }
            SessionCommand::Tighten(reply) => {
                let denied = self.end_what_is_denied().await;
                // The session above may be over.
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
    pub(super) async fn start_next(&mut self) {
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
        let head = outcome.is_ok().then(|| self.untold_head()).flatten();
        if reply.send(outcome.map(|reason| PromptEnd { reason, head, _told: told })).is_ok() {
            self.telling = Some(telling);
        }
    }

    async fn close(&mut self) {
        self.children.is_closing = true;
        self.cancel();
        self.hurry_outer();
        if self.turn.is_some() {
            // The turn ends soon after its token; what it, and those who work for it, still have to say happened.
            loop {
                tokio::select! {
                    biased;
                    Some(report) = self.children.next() => self.report(report).await,
                    message = next_message(&mut self.turn) => match message {
                        Some(message) => self.turn_message(message).await,
                        None => break,
                    },
                }
            }
            self.turn_over().await;
        }
        self.close_outer().await;
        let mut gate = std::mem::take(&mut self.gate);
        let ended = self.hearing(gate.end(|_| true, BOUND)).await;
        self.put_back(gate);
        self.hear_the_last().await;
        if !ended.unconfirmed.is_empty() {
            tracing::warn!(
                calls = ended.unconfirmed.len(),
                "what a session began could not be confirmed to have ended"
            );
        }
        if self.session.lineage.parent.is_none() {
            // Those of a session below are its parent's.
            self.shared.tools.servers().close().await;
        }
        self.keep_last_changes().await;
        self.save().await;
        self.release().await;
    }

    /// Lets others open the session, once all that happened in it is written.
    async fn release(&mut self) {
        self.shared.store.post(Row::Release { session: self.session.id.clone() });
        if let Err(error) = self.shared.store.flush().await {
            // It is tried again with whatever is written next, and it is free once this process is gone.
            tracing::warn!(%error, "a session could not be let go of yet");
        }
    }
}
