//! The connection to an external agent, which owns all requests in flight. It stops reading while the client
//! has no send permit for the last update, so an agent cannot flood the client.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot, watch};

use super::command::{CallReply, ConnectionCommand, OnSuccess};
use super::messages::{self, PeerMessage};
use super::requests::{self, RequestRefusal, SessionIds};
use super::state::AgentState;
use crate::acp::{
    CancelNotification, ElicitationId, ElicitationMode, LoadSessionResponse, NewSessionResponse, SessionId,
    SessionUpdate, SetSessionConfigOptionResponse,
};
use crate::client::{Client, ClientCapabilities, ClientError, ClientRequest};
use crate::json_rpc;
use crate::json_rpc::line::{Line, PartialLine};
use crate::process::ChildStdio;
use crate::process::program::Program;

/// Maximum length of a line, in bytes, as in the ACP libraries.
pub(super) const MAX_LINE: usize = 32 * 1024 * 1024;

const READ: usize = 64 * 1024;

/// Maximum lines that the agent may leave unread.
const MAX_UNREAD: usize = 1024;

/// Maximum concurrent requests from the agent.
const MAX_OPEN_REQUESTS: usize = 256;

/// Maximum updates kept until the session's id is known.
const MAX_EARLY_UPDATES: usize = 256;

const MAX_LOGGED: usize = 100;

const WRITTEN: usize = 64 * 1024;

pub(super) const CLOSED: &str = "it closed its output";

enum SessionPhase {
    Starting(Vec<(SessionId, SessionUpdate)>),
    Loading,
    Open(SessionId),
}

struct PeerRequest {
    client_request: u64,
    is_permission: bool,
}

type Answering = Pin<Box<dyn Future<Output = (String, u64, Result<Value, ClientError>)> + Send>>;

/// The client that gets the agent's updates and requests, as those of a session.
pub(super) struct ConnectionClient {
    pub client: Client,
    pub session_id: SessionId,
    pub capabilities: ClientCapabilities,
}

pub(super) struct AgentConnection {
    name: String,
    client: Client,
    session_id: SessionId,
    capabilities: ClientCapabilities,
    state: watch::Sender<AgentState>,
    output: Option<mpsc::Sender<String>>,
    phase: SessionPhase,
    /// True from `session/load` until the next prompt, because some agents replay history after answering.
    may_replay: bool,
    pending: HashMap<u64, CallReply>,
    next_call: u64,
    requests: HashMap<String, PeerRequest>,
    answers: FuturesUnordered<Answering>,
    waiting: Option<SessionUpdate>,
    ignored_lines: usize,
    /// Elicitations at addresses whose completion the agent has not told.
    addresses: Vec<ElicitationId>,
}

impl AgentConnection {
    pub(super) fn start(
        name: String,
        stdio: ChildStdio,
        program: Program,
        receiver: ConnectionClient,
    ) -> (mpsc::UnboundedSender<ConnectionCommand>, watch::Receiver<AgentState>) {
        // Unbounded: each call has a caller that waits for its answer.
        let (commands, command_queue) = mpsc::unbounded_channel();
        let (state, watcher) = watch::channel(AgentState::default());
        let (output, queue) = mpsc::channel(MAX_UNREAD);
        tokio::spawn(write(stdio.to, queue));
        let ConnectionClient { client, session_id, capabilities } = receiver;
        let connection = Self {
            name,
            client,
            session_id,
            capabilities,
            state,
            output: Some(output),
            phase: SessionPhase::Starting(Vec::new()),
            may_replay: false,
            pending: HashMap::new(),
            next_call: 0,
            requests: HashMap::new(),
            answers: FuturesUnordered::new(),
            waiting: None,
            ignored_lines: 0,
            addresses: Vec::new(),
        };
        tokio::spawn(connection.run(BufReader::with_capacity(READ, stdio.from), command_queue, program));
        (commands, watcher)
    }

    async fn run(
        mut self,
        mut input: impl AsyncBufRead + Unpin,
        mut command_queue: mpsc::UnboundedReceiver<ConnectionCommand>,
        program: Program,
    ) {
        let mut partial = PartialLine::new(MAX_LINE);
        let fault = loop {
            let fault = tokio::select! {
                biased;
                command = command_queue.recv() => match command {
                    Some(command) => self.run_command(command),
                    None => break None,
                },
                Some((id, client_request, answer)) = self.answers.next() => self.forward_answer(&id, client_request, answer),
                send_permit = self.client.send_permit(), if self.waiting.is_some() => {
                    if let Some(update) = self.waiting.take() {
                        self.client.update(self.session_id.clone(), update.into(), Some(send_permit));
                    }
                    None
                }
                line = next_line(&mut input, &mut partial), if self.waiting.is_none() => match line {
                    Some(Line::Bytes(line)) => self.receive(&line),
                    Some(Line::TooLong) => Some("it sent a line of more than 32 MiB"),
                    None => Some(CLOSED),
                },
            };
            if fault.is_some() {
                break fault;
            }
        };
        if let Some(fault) = fault {
            self.state.send_modify(|state| state.fault = Some(fault));
        }
        for (_, question) in self.requests.drain() {
            self.client.withdraw(question.client_request);
        }
        // Ends the agent's input, and fails all waiting calls.
        drop(self);
        if fault.is_some() {
            program.shut_down().await;
        }
    }

    /// Returns the fault that ends the connection, as do the methods below.
    fn run_command(&mut self, command: ConnectionCommand) -> Option<&'static str> {
        match command {
            ConnectionCommand::Call { method, params, reply } => {
                let id = self.next_call;
                self.next_call += 1;
                match &reply.on_success {
                    OnSuccess::SessionStarted(Some(_)) => {
                        (self.phase, self.may_replay) = (SessionPhase::Loading, true);
                    }
                    OnSuccess::TurnEnded => self.may_replay = false,
                    _ => {}
                }
                self.output.as_ref()?;
                self.pending.insert(id, reply);
                self.send(json_rpc::call_line(Some(id), method, &params))
            }
            ConnectionCommand::Cancel => self.cancel(),
            ConnectionCommand::CloseInput => {
                self.output = None;
                None
            }
        }
    }

    fn cancel(&mut self) -> Option<&'static str> {
        let SessionPhase::Open(agent_session) = &self.phase else { return None };
        let params = CancelNotification::new(agent_session.clone());
        let fault = self.send(json_rpc::call_line(None, "session/cancel", &params));
        let open: Vec<_> = self.requests.extract_if(|_, question| question.is_permission).collect();
        open.into_iter().fold(fault, |fault, (id, question)| {
            self.client.withdraw(question.client_request);
            fault.or(self.answer(&id, &Ok(requests::cancelled())))
        })
    }

    fn receive(&mut self, line: &[u8]) -> Option<&'static str> {
        match messages::read(line) {
            PeerMessage::Update { session, update } => self.receive_update(&session, *update),
            PeerMessage::Response { id, outcome } => match self.pending.remove(&id) {
                Some(reply) => self.receive_response(reply, outcome),
                None => self.note("its response matches no request", line),
            },
            PeerMessage::Request { id, method, params } => return self.receive_request(id, &method, params),
            PeerMessage::Cancelled(id) => {
                let question = self.requests.remove(id.get())?;
                self.client.withdraw(question.client_request);
                let refusal = RequestRefusal::new(requests::CANCELLED, "the request was withdrawn");
                return self.answer(id.get(), &Err(refusal));
            }
            PeerMessage::ElicitationCompleted(id) => match self.addresses.iter().position(|open| *open == id)
            {
                Some(at) => self.client.complete_elicitation(self.addresses.swap_remove(at)),
                None => self.note("it completes an unknown elicitation", line),
            },
            PeerMessage::Invalid(why) => self.note(why, line),
        }
        None
    }

    fn receive_update(&mut self, session: &str, update: SessionUpdate) {
        match &mut self.phase {
            SessionPhase::Starting(early) if early.len() < MAX_EARLY_UPDATES => {
                early.push((SessionId::new(session), update));
            }
            SessionPhase::Starting(_) => {
                self.note("it sends too many updates before its session exists", b"");
            }
            // A loaded session may announce changed options and commands.
            SessionPhase::Loading => self.forward_unless_replayed(update),
            SessionPhase::Open(agent_session) if &*agent_session.0 == session => {
                self.forward_unless_replayed(update);
            }
            SessionPhase::Open(_) => self.note("its update is about another session", b""),
        }
    }

    fn forward_unless_replayed(&mut self, update: SessionUpdate) {
        self.update_state(&update);
        let happened = matches!(
            update,
            SessionUpdate::UserMessageChunk(_)
                | SessionUpdate::AgentMessageChunk(_)
                | SessionUpdate::AgentThoughtChunk(_)
                | SessionUpdate::ToolCall(_)
                | SessionUpdate::ToolCallUpdate(_)
                | SessionUpdate::Plan(_)
        );
        if !(happened && self.may_replay) {
            self.waiting = Some(update);
        }
    }

    fn update_state(&self, update: &SessionUpdate) {
        self.state.send_if_modified(|state| state.apply(update));
    }

    fn receive_response(
        &mut self,
        CallReply { to, on_success }: CallReply,
        outcome: Result<&RawValue, &RawValue>,
    ) {
        if let Ok(result) = outcome {
            match on_success {
                OnSuccess::Ignore | OnSuccess::TurnEnded => {}
                OnSuccess::SessionStarted(old) => self.open(old, result.get()),
                OnSuccess::ModeSet(mode) => self.state.send_modify(|state| state.set_mode(&mode)),
                OnSuccess::OptionsSet => {
                    if let Ok(all) = serde_json::from_str::<SetSessionConfigOptionResponse>(result.get()) {
                        self.state.send_modify(|state| state.options = all.config_options);
                    }
                }
            }
        }
        let _ = to.send(outcome.map(RawValue::to_owned).map_err(RawValue::to_owned));
    }

    /// Forwards the early updates, which are few, without a send permit.
    fn open(&mut self, old: Option<SessionId>, answer: &str) {
        let (agent_session, modes, options) = match old {
            Some(agent_session) => {
                let started: Option<LoadSessionResponse> = serde_json::from_str(answer).unwrap_or_default();
                started.map_or((agent_session.clone(), None, None), |started| {
                    (agent_session, started.modes, started.config_options)
                })
            }
            None => match serde_json::from_str::<NewSessionResponse>(answer) {
                Ok(started) => (started.session_id, started.modes, started.config_options),
                Err(_) => return,
            },
        };
        self.state.send_modify(|state| state.session_started(modes, options));
        let phase = std::mem::replace(&mut self.phase, SessionPhase::Open(agent_session.clone()));
        if let SessionPhase::Starting(early) = phase {
            for (_, update) in early.into_iter().filter(|(session, _)| *session == agent_session) {
                self.update_state(&update);
                self.client.update(self.session_id.clone(), update.into(), None);
            }
        }
    }

    fn receive_request(&mut self, id: &RawValue, method: &str, params: &str) -> Option<&'static str> {
        let invalid = |why| Err(RequestRefusal::new(requests::INVALID_REQUEST, why));
        let outcome = match &self.phase {
            _ if self.requests.len() >= MAX_OPEN_REQUESTS => invalid("too many requests are open"),
            _ if self.requests.contains_key(id.get()) => invalid("a request with this id is already open"),
            SessionPhase::Open(agent_session) => {
                let sessions = SessionIds { agent: agent_session, client: &self.session_id };
                requests::request(method, params, sessions, self.capabilities)
            }
            SessionPhase::Starting(_) | SessionPhase::Loading => invalid("there is no session yet"),
        };
        let request = match outcome {
            Ok(request) => request,
            Err(refusal) => return self.answer(id.get(), &Err(refusal)),
        };
        let is_permission = matches!(request, ClientRequest::RequestPermission(_));
        if let ClientRequest::CreateElicitation(request) = &request
            && let ElicitationMode::Url(address) = &request.mode
            && self.addresses.len() < MAX_OPEN_REQUESTS
        {
            self.addresses.push(address.elicitation_id.clone());
        }
        let (reply, answer) = oneshot::channel();
        let client_request = self.client.forward(request, reply);
        let id = id.get().to_owned();
        self.requests.insert(id.clone(), PeerRequest { client_request, is_permission });
        self.answers.push(Box::pin(async move {
            (id, client_request, answer.await.unwrap_or(Err(ClientError::Gone)))
        }));
        None
    }

    /// Ignores the answer to a withdrawn request, whose id may be in use again.
    fn forward_answer(
        &mut self,
        id: &str,
        client_request: u64,
        answer: Result<Value, ClientError>,
    ) -> Option<&'static str> {
        self.requests.get(id).filter(|question| question.client_request == client_request)?;
        self.requests.remove(id);
        self.answer(id, &requests::to_result(answer))
    }

    fn answer(&mut self, id: &str, outcome: &Result<Value, RequestRefusal>) -> Option<&'static str> {
        let id: &RawValue = serde_json::from_str(id).ok()?;
        let outcome = match outcome {
            Ok(result) => to_raw_value(result).map(Ok),
            Err(refusal) => to_raw_value(refusal).map(Err),
        };
        let outcome = outcome.expect("the protocol's types are JSON");
        self.send(json_rpc::answer_line(id, outcome.as_deref().map_err(|error| &**error)))
    }

    fn send(&mut self, line: String) -> Option<&'static str> {
        match self.output.as_ref()?.try_send(line) {
            Ok(()) => None,
            Err(mpsc::error::TrySendError::Full(_)) => Some("it does not read its input"),
            Err(mpsc::error::TrySendError::Closed(_)) => {
                self.output = None;
                None
            }
        }
    }

    fn note(&mut self, why: &'static str, line: &[u8]) {
        self.ignored_lines += 1;
        if !why.is_empty() && self.ignored_lines <= MAX_LOGGED {
            tracing::debug!(harness = self.name, bytes = line.len(), "ignored an invalid line: {why}");
        }
    }
}

/// `None` at the end of the output, which may cut the last line. Cancel safe: `partial` keeps the rest.
async fn next_line(input: &mut (impl AsyncBufRead + Unpin), partial: &mut PartialLine) -> Option<Line> {
    loop {
        // A read error on a pipe means that the process has ended.
        let chunk = input.fill_buf().await.ok().filter(|chunk| !chunk.is_empty())?;
        let (taken, line) = partial.take(chunk);
        input.consume(taken);
        // The end of a line that is too long may never come.
        if line.is_some() || partial.is_too_long() {
            return line.or(Some(Line::TooLong));
        }
    }
}

async fn write(mut to: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<String>) {
    while let Some(mut lines) = queue.recv().await {
        while lines.len() < WRITTEN
            && let Ok(line) = queue.try_recv()
        {
            lines.push_str(&line);
        }
        if to.write_all(lines.as_bytes()).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}
