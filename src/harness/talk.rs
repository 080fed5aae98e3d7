//! The task that speaks to a harness: one owner of what is in flight in both directions.
//!
//! It reads one line at a time, and none while the client has no room for the last update; so what a harness says keeps its
//! order, and one that floods waits for its client.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};

use super::asked::{self, Refusal};
use super::command::{Command, Means, Reply};
use super::heard::{self, Heard};
use super::lines::{End, Lines};
use super::said::Said;
use crate::acp::{
    CancelNotification, LoadSessionResponse, NewSessionResponse, SessionId, SessionUpdate,
    SetSessionConfigOptionResponse,
};
use crate::client::{Abilities, Client, ClientError, ClientRequest};
use crate::process::Speech;
use crate::process::program::Program;

/// Lines to a harness that it may leave unread.
const UNREAD: usize = 1024;

/// Requests of a harness's that may be open at once.
const OPEN: usize = 256;

/// Updates that are kept until it is known which session they are about.
const EARLY: usize = 256;

/// Lines of no use that are logged.
const LOGGED: usize = 100;

/// Bytes that are written at once.
const WRITTEN: usize = 64 * 1024;

/// What the end of every process looks like from here.
pub const CLOSED: &str = "it closed its output";

/// What is known of a session's begin.
enum Stage {
    /// Its id is not known. Updates that came all the same.
    Before(Vec<(SessionId, SessionUpdate)>),
    /// What is said to have happened is what the client knows already.
    Loading,
    /// It is there.
    Open(SessionId),
}

/// A request of a harness's that the client has.
struct Question {
    /// The client's number for it.
    at_client: u64,
    is_permission: bool,
}

/// The future of an answer of the client's: the id of the harness's request, the client's number for it, and what was said.
type Answering = Pin<Box<dyn Future<Output = (String, u64, Result<Value, ClientError>)> + Send>>;

/// Everything that the task has, but for the lines that it reads.
pub struct Talk {
    name: String,
    client: Client,
    /// Our session's id.
    ours: SessionId,
    /// What it was told that the client can do.
    can: Abilities,
    said: watch::Sender<Said>,
    /// Lines on their way; none: its input has ended.
    out: Option<mpsc::Sender<Vec<u8>>>,
    stage: Stage,
    /// It may still tell what happened before: it loads its session, or has, and was not prompted since. Some go on with it
    /// after they have answered.
    tells_again: bool,
    /// Our requests without an answer.
    pending: HashMap<u64, Reply>,
    next_call: u64,
    /// Its requests without an answer, by their ids as it wrote them.
    questions: HashMap<String, Question>,
    answers: FuturesUnordered<Answering>,
    /// An update for which the client has no room yet.
    waiting: Option<SessionUpdate>,
    useless: usize,
}

#[derive(Serialize)]
struct Message<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: P,
}

impl Talk {
    /// Begins to speak to a harness. The watch says what it has said of itself.
    pub fn begin(
        name: String,
        speech: Speech,
        program: Program,
        (client, ours, can): (Client, SessionId, Abilities),
    ) -> (mpsc::UnboundedSender<Command>, watch::Receiver<Said>) {
        // Commands have no bound of their own: each comes of a call that waits for its answer.
        let (commands, told) = mpsc::unbounded_channel();
        let (said, known) = watch::channel(Said::default());
        let (out, queue) = mpsc::channel(UNREAD);
        tokio::spawn(write(speech.to, queue));
        let talk = Self {
            name,
            client,
            ours,
            can,
            said,
            out: Some(out),
            stage: Stage::Before(Vec::new()),
            tells_again: false,
            pending: HashMap::new(),
            next_call: 0,
            questions: HashMap::new(),
            answers: FuturesUnordered::new(),
            waiting: None,
            useless: 0,
        };
        tokio::spawn(talk.run(Lines::new(speech.from), told, program));
        (commands, known)
    }

    async fn run<R: tokio::io::AsyncRead + Unpin>(
        mut self,
        mut lines: Lines<R>,
        mut told: mpsc::UnboundedReceiver<Command>,
        program: Program,
    ) {
        let fault = loop {
            let fault = tokio::select! {
                biased;
                command = told.recv() => match command {
                    Some(command) => self.obey(command),
                    // Nobody has it any more.
                    None => break None,
                },
                Some((id, at_client, said)) = self.answers.next() => self.pass_answer(&id, at_client, said),
                room = self.client.room(), if self.waiting.is_some() => {
                    if let Some(update) = self.waiting.take() {
                        self.client.update(self.ours.clone(), update.into(), Some(room));
                    }
                    None
                }
                line = lines.next(), if self.waiting.is_none() => match line {
                    Ok(line) => self.hear(line),
                    Err(End::TooLong) => Some("it sent a line of more than 32 MiB"),
                    Err(End::Closed) => Some(CLOSED),
                },
            };
            if fault.is_some() {
                break fault;
            }
        };
        if let Some(fault) = fault {
            self.said.send_modify(|said| said.fault = Some(fault));
        }
        self.give_up_questions();
        // Its input ends with this, and whoever waits for an answer hears that there is none.
        drop(self);
        if fault.is_some() {
            program.let_end().await;
        }
    }

    /// Why it cannot be spoken to any more, if so; and the same of the others.
    fn obey(&mut self, command: Command) -> Option<&'static str> {
        match command {
            Command::Call { method, params, reply } => {
                let id = self.next_call;
                self.next_call += 1;
                match &reply.means {
                    Means::Begun(Some(_)) => (self.stage, self.tells_again) = (Stage::Loading, true),
                    Means::Prompted => self.tells_again = false,
                    _ => {}
                }
                // Without an input, the reply is dropped: there is no answer.
                self.out.as_ref()?;
                self.pending.insert(id, reply);
                self.send(asked::line(&Message { jsonrpc: "2.0", id: Some(id), method, params }))
            }
            Command::Cancel => self.cancel(),
            Command::HangUp => {
                self.out = None;
                None
            }
        }
    }

    fn cancel(&mut self) -> Option<&'static str> {
        let Stage::Open(its) = &self.stage else { return None };
        let params = CancelNotification::new(its.clone());
        let cancel = Message { jsonrpc: "2.0", id: None, method: "session/cancel", params };
        let fault = self.send(asked::line(&cancel));
        let open = self.questions.extract_if(|_, question| question.is_permission);
        let open: Vec<_> = open.collect();
        open.into_iter().fold(fault, |fault, (id, question)| {
            self.client.withdraw(question.at_client);
            fault.or(self.answer(&id, Ok(asked::cancelled())))
        })
    }

    fn hear(&mut self, line: &[u8]) -> Option<&'static str> {
        match heard::read(line) {
            Heard::Update { session, update } => self.hear_update(&session, *update),
            Heard::Answer { id, outcome } => match self.pending.remove(&id) {
                Some(reply) => self.hear_answer(reply, outcome),
                None => self.note("it answers nothing that was asked", line),
            },
            Heard::Request { id, method, params } => return self.hear_request(id, &method, params),
            Heard::Withdrawn(id) => {
                let question = self.questions.remove(id.get())?;
                self.client.withdraw(question.at_client);
                let refusal = Refusal::new(asked::CANCELLED, "the request was taken back");
                return self.answer(id.get(), Err(refusal));
            }
            Heard::Nothing(why) => self.note(why, line),
        }
        None
    }

    fn hear_update(&mut self, session: &str, update: SessionUpdate) {
        match &mut self.stage {
            Stage::Before(early) if early.len() < EARLY => early.push((SessionId::new(session), update)),
            Stage::Before(_) => self.note("it says too much before its session is there", b""),
            // Its options, and its commands, may be others than before.
            Stage::Loading => self.pass_unless_old(update),
            Stage::Open(its) if &*its.0 == session => self.pass_unless_old(update),
            Stage::Open(_) => self.note("its update is about another session", b""),
        }
    }

    /// Passes it on, unless it is of what happened before and the client knows it already.
    fn pass_unless_old(&mut self, update: SessionUpdate) {
        self.keep(&update);
        let happened = matches!(
            update,
            SessionUpdate::UserMessageChunk(_)
                | SessionUpdate::AgentMessageChunk(_)
                | SessionUpdate::AgentThoughtChunk(_)
                | SessionUpdate::ToolCall(_)
                | SessionUpdate::ToolCallUpdate(_)
                | SessionUpdate::Plan(_)
        );
        if !(happened && self.tells_again) {
            self.waiting = Some(update);
        }
    }

    fn keep(&self, update: &SessionUpdate) {
        self.said.send_if_modified(|said| said.hear(update));
    }

    fn hear_answer(&mut self, Reply { to, means }: Reply, outcome: Result<&RawValue, &RawValue>) {
        if let Ok(result) = outcome {
            match means {
                Means::Nothing | Means::Prompted => {}
                Means::Begun(old) => self.open(old, result.get()),
                Means::Mode(mode) => self.said.send_modify(|said| said.switch(&mode)),
                Means::Options => {
                    // Whoever asked says that it is none.
                    if let Ok(all) = serde_json::from_str::<SetSessionConfigOptionResponse>(result.get()) {
                        self.said.send_modify(|said| said.options = all.config_options);
                    }
                }
            }
        }
        // Whoever asked may have given up.
        let _ = to.send(outcome.map(RawValue::to_owned).map_err(RawValue::to_owned));
    }

    /// The session is there; what was said of it before is passed on, which is bounded, whether there is room or not.
    fn open(&mut self, old: Option<SessionId>, answer: &str) {
        // An answer that is none is for whoever asked to say.
        let (its, modes, options) = match old {
            Some(its) => {
                let begun: Option<LoadSessionResponse> = serde_json::from_str(answer).unwrap_or_default();
                begun.map_or((its.clone(), None, None), |begun| (its, begun.modes, begun.config_options))
            }
            None => match serde_json::from_str::<NewSessionResponse>(answer) {
                Ok(begun) => (begun.session_id, begun.modes, begun.config_options),
                Err(_) => return,
            },
        };
        self.said.send_modify(|said| said.begin(modes, options));
        let stage = std::mem::replace(&mut self.stage, Stage::Open(its.clone()));
        if let Stage::Before(early) = stage {
            for (_, update) in early.into_iter().filter(|(session, _)| *session == its) {
                self.keep(&update);
                self.client.update(self.ours.clone(), update.into(), None);
            }
        }
    }

    fn hear_request(&mut self, id: &RawValue, method: &str, params: &str) -> Option<&'static str> {
        let asked = match &self.stage {
            _ if self.questions.len() >= OPEN => {
                Err(Refusal::new(asked::INVALID_REQUEST, "too much is open"))
            }
            _ if self.questions.contains_key(id.get()) => {
                Err(Refusal::new(asked::INVALID_REQUEST, "a request with this id is open"))
            }
            Stage::Open(its) => asked::request(method, params, (its, &self.ours), self.can),
            Stage::Before(_) | Stage::Loading => {
                Err(Refusal::new(asked::INVALID_REQUEST, "there is no session yet"))
            }
        };
        let request = match asked {
            Ok(request) => request,
            Err(refusal) => return self.answer(id.get(), Err(refusal)),
        };
        let is_permission = matches!(request, ClientRequest::RequestPermission(_));
        let (reply, answer) = oneshot::channel();
        let at_client = self.client.forward(request, reply);
        let id = id.get().to_owned();
        self.questions.insert(id.clone(), Question { at_client, is_permission });
        self.answers
            .push(Box::pin(async move { (id, at_client, answer.await.unwrap_or(Err(ClientError::Gone))) }));
        None
    }

    /// The client has answered, unless nobody wants to know any more: another question may have the id by now.
    fn pass_answer(
        &mut self,
        id: &str,
        at_client: u64,
        said: Result<Value, ClientError>,
    ) -> Option<&'static str> {
        self.questions.get(id).filter(|question| question.at_client == at_client)?;
        self.questions.remove(id);
        self.answer(id, asked::outcome(said))
    }

    fn answer(&mut self, id: &str, outcome: Result<Value, Refusal>) -> Option<&'static str> {
        let id: &RawValue = serde_json::from_str(id).ok()?;
        self.send(asked::answer(id, outcome))
    }

    fn send(&mut self, line: Vec<u8>) -> Option<&'static str> {
        match self.out.as_ref()?.try_send(line) {
            Ok(()) => None,
            Err(mpsc::error::TrySendError::Full(_)) => Some("it does not read what it is sent"),
            // It is about to be over, and its output says when.
            Err(mpsc::error::TrySendError::Closed(_)) => {
                self.out = None;
                None
            }
        }
    }

    fn give_up_questions(&mut self) {
        for (_, question) in self.questions.drain() {
            self.client.withdraw(question.at_client);
        }
    }

    fn note(&mut self, why: &'static str, line: &[u8]) {
        self.useless += 1;
        if !why.is_empty() && self.useless <= LOGGED {
            tracing::debug!(harness = self.name, bytes = line.len(), "a line is of no use: {why}");
        }
    }
}

/// Writes lines as they come, several at once if there are several.
async fn write(mut to: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Vec<u8>>) {
    while let Some(mut lines) = queue.recv().await {
        while lines.len() < WRITTEN
            && let Ok(line) = queue.try_recv()
        {
            lines.extend(line);
        }
        // Nobody reads it any more: that it is over is learnt from its output.
        if to.write_all(&lines).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}
