//! JSON-RPC connection with one client, which ends with its input.
//!
//! One task owns all state. It polls each call once in place, so that requests reach a session's mailbox in
//! the order of their lines, and spawns only pending calls. All output passes one channel ([`crate::client`])
//! and one queue ([`crate::transport`]), in order.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jsonrpsee::core::server::{MethodCallback, MethodResponse, Methods};
use jsonrpsee::{ConnectionId, Extensions};
use jsonrpsee_types::{ErrorObjectOwned, Id, Params};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::acp::{
    CancelRequestNotification, CompleteElicitationNotification, RequestId, SessionNotification,
};
use crate::agent::Agent;
use crate::client::{Client, ClientEnd, ClientError, Outgoing};
use crate::error::{AgentError, says_not_found};
use crate::json_rpc::{self, Incoming};
use crate::transport::{Line, Transport};
use chunk_line::chunk_line;
use negotiation::{ConnectionProgress, Version};
use v2::V2Encoder;

mod chunk_line;
pub mod dispatch;
mod negotiation;
pub mod v2;

/// Unanswered calls at which the connection stops reading.
const MAX_IN_FLIGHT: usize = 16_384;

/// Time for the client to take the last messages.
const CLOSE: Duration = Duration::from_millis(700);

struct InFlight {
    id: Box<RawValue>,
    /// Cancelled by `$/cancel_request`.
    cancel: CancellationToken,
}

struct Connection {
    agent: Arc<Agent>,
    client: Client,
    requests: Methods,
    notifications: Methods,
    next_call: u64,
    in_flight: HashMap<u64, InFlight>,
    /// Unanswered requests to the client.
    pending: HashMap<u64, oneshot::Sender<Result<Value, ClientError>>>,
    progress: ConnectionProgress,
    /// `None` until version 2 is negotiated.
    v2: Option<V2Encoder>,
    /// Lines of version 2 that wait for a slot of the output's queue.
    ready: VecDeque<String>,
    disconnected: bool,
}

/// An agent with the connection to its client.
pub struct RpcServer {
    pub transport: Transport,
    pub agent: Arc<Agent>,
    pub client: Client,
    pub outgoing: ClientEnd,
}

/// Ends with the input, the output or `stop`. After the end of the input, calls in flight have `grace`, then
/// they are cancelled.
pub async fn serve(server: RpcServer, grace: Duration, stop: CancellationToken) {
    let RpcServer { transport, agent, client, mut outgoing } = server;
    let Transport { incoming: mut lines, outgoing: queue, flushed } = transport;
    let mut connection = Connection::new(Arc::clone(&agent), client);
    let mut deadline: Option<Instant> = None;
    let mut barrier = None;
    let broken = {
        // Both futures are made once, because the loop runs for each message.
        let mut stopped = pin!(stop.cancelled());
        let mut output_ended = pin!(queue.closed());
        loop {
            if connection.disconnected && connection.in_flight.is_empty() && connection.ready.is_empty() {
                break false;
            }
            let may_read = !connection.disconnected && connection.in_flight.len() < MAX_IN_FLIGHT;
            tokio::select! {
                () = &mut stopped => break true,
                () = &mut output_ended => break true,
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => break false,
                line = lines.recv(), if may_read => if let Some(line) = line {
                    connection.line(line);
                } else {
                    connection.disconnected = true;
                    connection.pending.clear();
                    deadline = Some(Instant::now() + grace);
                },
                slot = free_slot(&queue), if !connection.ready.is_empty() => connection.send_ready(slot),
                (slot, message) = next_outgoing(&queue, &mut outgoing, &mut barrier), if connection.ready.is_empty() => {
                    if let Some(line) = connection.encode(message) {
                        slot.send(line);
                    }
                }
            }
        }
    };
    agent.close().await;
    if !broken {
        // The sessions have stopped, so all their messages are in the channel.
        let drain = async {
            while !connection.in_flight.is_empty() || !connection.ready.is_empty() {
                if !connection.ready.is_empty() {
                    connection.send_ready(free_slot(&queue).await);
                    continue;
                }
                let (slot, message) = next_outgoing(&queue, &mut outgoing, &mut barrier).await;
                if let Some(line) = connection.encode(message) {
                    slot.send(line);
                }
            }
            drop(queue);
            let _ = flushed.await;
        };
        if tokio::time::timeout(CLOSE, drain).await.is_err() {
            tracing::warn!("the client did not take all that was sent before the end");
        }
    }
}

/// Pending for ever once the output has ended.
async fn free_slot(queue: &mpsc::Sender<String>) -> mpsc::Permit<'_, String> {
    match queue.reserve().await {
        Ok(slot) => slot,
        Err(_) => std::future::pending().await,
    }
}

/// Reserves a queue slot before it takes a message. The caller owns `barrier`, because this future may be
/// dropped at any time.
async fn next_outgoing<'q>(
    queue: &'q mpsc::Sender<String>,
    outgoing: &mut ClientEnd,
    barrier: &mut Option<oneshot::Receiver<()>>,
) -> (mpsc::Permit<'q, String>, Outgoing) {
    let slot = free_slot(queue).await;
    loop {
        if let Some(after) = barrier {
            // A dropped sender lifts the barrier.
            let _ = after.await;
            *barrier = None;
        }
        match outgoing.recv().await {
            Some(Outgoing::Barrier(after)) => *barrier = Some(after),
            Some(message) => return (slot, message),
            None => std::future::pending().await,
        }
    }
}

impl Connection {
    fn new(agent: Arc<Agent>, client: Client) -> Self {
        Self {
            requests: dispatch::requests(Arc::clone(&agent)),
            notifications: dispatch::notifications(Arc::clone(&agent)),
            agent,
            client,
            next_call: 0,
            in_flight: HashMap::new(),
            pending: HashMap::new(),
            progress: ConnectionProgress::default(),
            v2: None,
            ready: VecDeque::new(),
            disconnected: false,
        }
    }

    fn line(&mut self, line: Line) {
        let Line::Bytes(bytes) = line else {
            return self.refuse(None, AgentError::InvalidRequest("the line is too long".into()));
        };
        match json_rpc::sort(&bytes) {
            Incoming::Blank => {}
            Incoming::Request { id, method, params } => {
                let chosen = match self.choose_version(id, &method, params) {
                    Ok(chosen) => chosen,
                    Err(error) => return self.refuse(Some(id), error),
                };
                if let Some((call, response)) = self.request(id, &method, params, chosen) {
                    // The call has a copy of its parameters, and a line may have many megabytes.
                    drop(bytes);
                    self.poll(call, response, chosen);
                }
            }
            Incoming::Notification { method, params } => self.notification(&method, params),
            Incoming::Answer { id, outcome } => self.answered(id, outcome),
            Incoming::NoAnswer => tracing::debug!("ignored an answer without a legal id"),
            Incoming::NotJson => self.refuse(None, AgentError::NotJson),
            Incoming::Invalid { id, why } => self.refuse(id, AgentError::InvalidRequest(why.into())),
        }
    }

    /// Returns the call and its future, unless the request is refused.
    fn request(
        &mut self,
        id: &RawValue,
        method: &str,
        params: Option<&RawValue>,
        chosen: Option<Version>,
    ) -> Option<(u64, BoxFuture<'static, MethodResponse>)> {
        if let Err(error) = self.may_call(method) {
            self.refuse(Some(id), error);
            return None;
        }
        let call = self.open_call(id);
        let cancel = self.in_flight[&call].cancel.clone();
        let table = match chosen {
            Some(Version::Two) if self.v2.is_none() => &v2::requests(Arc::clone(&self.agent)),
            _ => &self.requests,
        };
        Some((call, call_table(table, call, method, params, cancel)))
    }

    /// Returns the version to use from now on, if an `initialize` request succeeds. `None` for other requests.
    fn choose_version(
        &mut self,
        id: &RawValue,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<Option<Version>, AgentError> {
        if method != "initialize" {
            self.progress.has_other_requests |= self.progress.version.is_some();
            return if self.v2.is_some() { check_id(id).map(|()| None) } else { Ok(None) };
        }
        let version = negotiation::choose(params, self.progress)?;
        if version == Version::Two {
            check_id(id)?;
        }
        Ok(Some(version))
    }

    fn begin_version(&mut self, chosen: Option<Version>) {
        self.progress.version = chosen.or(self.progress.version);
        if chosen == Some(Version::Two) && self.v2.is_none() {
            self.requests = v2::requests(Arc::clone(&self.agent));
            self.notifications = v2::notifications(Arc::clone(&self.agent));
            self.v2 = Some(V2Encoder::default());
        }
    }

    fn poll(&mut self, call: u64, mut response: BoxFuture<'static, MethodResponse>, chosen: Option<Version>) {
        // Polled in place: the handler posts to the session's mailbox before the next line is read.
        if let Some(response) = (&mut response).now_or_never() {
            self.begin_version(chosen.filter(|_| response.is_success()));
            return pass_on(&self.client, call, response);
        }
        // The client's capabilities are known. Only the methods of a wrapped agent are missing.
        self.begin_version(chosen);
        let client = self.client.clone();
        tokio::spawn(async move { pass_on(&client, call, response.await) });
    }

    fn may_call(&self, method: &str) -> Result<(), AgentError> {
        if self.progress.version.is_none() && method != "initialize" {
            return Err(AgentError::InvalidRequest("call initialize first".into()));
        }
        if self.requests.method(method).is_some() {
            return Ok(());
        }
        if self.notifications.method(method).is_some() || method == dispatch::CANCEL_REQUEST {
            let hint = format!("{method} is a notification: send it without an id");
            return Err(AgentError::InvalidRequest(hint));
        }
        Err(AgentError::MethodNotFound { method: method.to_owned() })
    }

    fn notification(&mut self, method: &str, params: Option<&RawValue>) {
        if method == dispatch::CANCEL_REQUEST {
            return self.cancel_request(params);
        }
        if self.notifications.method(method).is_none() {
            tracing::debug!(method, "ignored a notification");
            return;
        }
        let response = call_table(&self.notifications, 0, method, params, CancellationToken::new());
        // Notification handlers only post, so one poll completes them.
        if response.now_or_never().is_none_or(|response| response.is_error()) {
            tracing::debug!(method, "a notification could not be carried out");
        }
    }

    fn cancel_request(&mut self, params: Option<&RawValue>) {
        let params = params.and_then(|params| serde_json::from_str(params.get()).ok());
        let Some(CancelRequestNotification { request_id, .. }) = params else {
            tracing::debug!("ignored a malformed {}", dispatch::CANCEL_REQUEST);
            return;
        };
        for call in self.in_flight.values() {
            if serde_json::from_str(call.id.get()).is_ok_and(|id: RequestId| id == request_id) {
                call.cancel.cancel();
            }
        }
    }

    fn answered(&mut self, id: &RawValue, outcome: Result<&RawValue, &RawValue>) {
        let reply = id.get().parse().ok().and_then(|id: u64| Some((id, self.pending.remove(&id)?)));
        let Some((number, reply)) = reply else {
            tracing::debug!(id = id.get(), "ignored an answer to nothing");
            return;
        };
        if let Some(encoder) = &mut self.v2 {
            self.ready.extend(encoder.question_closed(number));
        }
        let outcome = match outcome {
            Ok(result) => {
                serde_json::from_str(result.get()).map_err(|error| ClientError::Malformed(error.to_string()))
            }
            Err(error) if says_not_found(error.get()) => Err(ClientError::NotFound(error.get().to_owned())),
            Err(error) => Err(ClientError::Refused(error.get().to_owned())),
        };
        let _ = reply.send(outcome);
    }

    fn refuse(&mut self, id: Option<&RawValue>, error: AgentError) {
        let call = self.open_call(id.unwrap_or(RawValue::NULL));
        self.client
            .answer(call, MethodResponse::error(Id::Number(call), ErrorObjectOwned::from(error)).into_json());
    }

    fn send_ready(&mut self, slot: mpsc::Permit<'_, String>) {
        if let Some(line) = self.ready.pop_front() {
            slot.send(line);
        }
    }

    fn open_call(&mut self, id: &RawValue) -> u64 {
        self.next_call += 1;
        let cancel = CancellationToken::new();
        self.in_flight.insert(self.next_call, InFlight { id: id.to_owned(), cancel });
        self.next_call
    }

    /// Returns the first line of a message. `ready` gets those that follow.
    fn encode(&mut self, message: Outgoing) -> Option<String> {
        match message {
            Outgoing::Update(notification, _room) if self.v2.is_some() => {
                self.ready.extend(self.v2.as_mut()?.update(notification));
                self.ready.pop_front()
            }
            Outgoing::Replayed(notification, _room) if self.v2.is_some() => {
                self.ready.extend(v2::update_lines(notification));
                self.ready.pop_front()
            }
            Outgoing::Update(notification, _room) | Outgoing::Replayed(notification, _room) => {
                Some(update_line(&notification))
            }
            Outgoing::Signal(session, signal) => {
                self.ready.extend(self.v2.as_mut()?.signal(&session, signal));
                self.ready.pop_front()
            }
            Outgoing::Request { id, request, reply } => {
                if self.disconnected {
                    return None;
                }
                self.pending.insert(id, reply);
                if let Some(encoder) = &mut self.v2 {
                    self.ready.extend(encoder.request(id, &request));
                    return self.ready.pop_front();
                }
                Some(json_rpc::call_line(Some(id), request.method(), &request))
            }
            Outgoing::Withdraw(id) => {
                self.pending.remove(&id)?;
                let mut is_unsent = false;
                if let Some(encoder) = &mut self.v2 {
                    is_unsent = encoder.take_back_question(id);
                    self.ready.extend(encoder.question_closed(id));
                }
                if is_unsent {
                    return self.ready.pop_front();
                }
                let params = CancelRequestNotification::new(RequestId::Number(id.cast_signed()));
                Some(json_rpc::call_line(None, dispatch::CANCEL_REQUEST, &params))
            }
            Outgoing::ElicitationCompleted(id) => {
                // Both versions have the same form.
                let params = CompleteElicitationNotification::new(id);
                Some(json_rpc::call_line(None, "elicitation/complete", &params))
            }
            // `next_outgoing` handles barriers.
            Outgoing::Barrier(_) => None,
            Outgoing::Answer { call, json } => {
                let InFlight { id, .. } = self.in_flight.remove(&call)?;
                Some(client_answer_line(&id, &json))
            }
        }
    }
}

/// Version 2 has no null ids and no fractions.
fn check_id(id: &RawValue) -> Result<(), AgentError> {
    let text = id.get();
    if text.starts_with('"') || text.parse::<i64>().is_ok() {
        return Ok(());
    }
    Err(AgentError::InvalidRequest("an id is a string or an integer".into()))
}

impl Drop for Connection {
    fn drop(&mut self) {
        tracing::debug!(sessions = self.agent.len(), "the connection has ended");
    }
}

/// Then notifies the handler that waits for it (`ResponsePayload::notify_on_completion`).
fn pass_on(client: &Client, call: u64, response: MethodResponse) {
    let is_success = response.is_success();
    let (json, waiting, _) = response.into_parts();
    client.answer(call, json);
    if let Some(waiting) = waiting {
        waiting.notify(is_success);
    }
}

/// A handler's panic becomes an internal error.
fn call_table(
    table: &Methods,
    call: u64,
    method: &str,
    params: Option<&RawValue>,
    cancel: CancellationToken,
) -> BoxFuture<'static, MethodResponse> {
    let id = Id::Number(call);
    let Some(MethodCallback::Async(handler)) = table.method(method) else {
        let error = AgentError::MethodNotFound { method: method.to_owned() };
        return std::future::ready(MethodResponse::error(id, ErrorObjectOwned::from(error))).boxed();
    };
    let mut extensions = Extensions::new();
    extensions.insert(cancel);
    let params = Params::new(params.map(RawValue::get)).into_owned();
    let response = handler(id, params, ConnectionId(0), usize::MAX, extensions);
    AssertUnwindSafe(response)
        .catch_unwind()
        .map(move |response| {
            response.unwrap_or_else(|_| {
                MethodResponse::error(Id::Number(call), ErrorObjectOwned::from(AgentError::Internal))
            })
        })
        .boxed()
}

/// With a newline.
pub fn update_line(notification: &SessionNotification) -> String {
    chunk_line(notification).unwrap_or_else(|| json_rpc::call_line(None, "session/update", notification))
}

/// Replaces the call number by the client's own id.
fn client_answer_line(id: &RawValue, response: &RawValue) -> String {
    #[derive(Deserialize)]
    struct TableAnswer<'a> {
        #[serde(borrow, default)]
        result: Option<&'a RawValue>,
        #[serde(borrow, default)]
        error: Option<&'a RawValue>,
    }
    let outcome: TableAnswer<'_> =
        serde_json::from_str(response.get()).expect("the table answers in JSON-RPC");
    let result = outcome.result.unwrap_or(RawValue::NULL);
    json_rpc::answer_line(id, outcome.error.map_or(Ok(result), Err))
}
