//! The agent's side of its connection to the client.
//!
//! One channel carries updates, requests and answers, so their order is kept. Sending never blocks: streamed
//! updates need a [`Client::send_permit`], and requests in flight limit everything else.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::acp::{
    RequestPermissionRequest, RequestPermissionResponse, SessionId, SessionNotification, SessionUpdate,
    ToolCallLocation, Update,
};
use crate::text::shorten;
pub use known_clients::{AutomaticConsent, ClientDisplay, KnownClient, known_client};
pub use request::{ClientQuestion, ClientRequest};
pub use signal::{BackgroundWork, EndedWork, SessionSignal, TerminalExit, TurnOutcome};

pub mod known_clients;
mod request;
mod signal;

const SEND_PERMITS: usize = 256;

const MAX_MESSAGE: usize = 300;

pub type ReplySender = oneshot::Sender<Result<Value, ClientError>>;

#[derive(Debug)]
pub enum Outgoing {
    /// Dropping the permit admits another streamed update.
    Update(SessionNotification, Option<OwnedSemaphorePermit>),
    /// Part of the history of a session.
    Replayed(SessionNotification, Option<OwnedSemaphorePermit>),
    /// Has no form in version 1 of the protocol.
    Signal(SessionId, SessionSignal),
    /// Dropping the reply means that no answer will come.
    Request {
        id: u64,
        request: ClientRequest,
        reply: ReplySender,
    },
    /// Answers to this request are ignored from now on.
    Withdraw(u64),
    /// Delays what follows until sent or dropped, so that events are stored before the client sees them.
    Barrier(oneshot::Receiver<()>),
    Answer {
        call: u64,
        json: Box<RawValue>,
    },
}

/// None of these errors ever counts as consent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    #[error("no client is connected to answer")]
    Gone,
    #[error("the client answered with an error: {}", message_of(.0))]
    Refused(String),
    /// The client does not know the object of the request.
    #[error("the client answered with an error: {}", message_of(.0))]
    NotFound(String),
    #[error("the client's answer is malformed: {0}")]
    Malformed(String),
    /// The client did not announce the capability, so nothing was sent.
    #[error("the client cannot do this")]
    NotOffered,
    /// The request was withdrawn.
    #[error("the client did not answer within {} s", .0.as_secs_f64())]
    Late(Duration),
}

impl ClientError {
    pub fn reason(&self) -> String {
        match self {
            Self::Refused(text) | Self::NotFound(text) => message_of(text),
            other => other.to_string(),
        }
    }
}

fn message_of(error: &str) -> String {
    let Ok(error) = serde_json::from_str::<Value>(error) else { return error.to_owned() };
    let message = error["message"].as_str().unwrap_or("no message");
    let data = &error["data"];
    let details = data.as_str().or_else(|| data["details"].as_str());
    let text = details.map_or(message.to_owned(), |details| format!("{message} ({details})"));
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    shorten(&line, MAX_MESSAGE).into_owned()
}

/// Capabilities from `initialize`, each read separately (F1, E1). The default is an absent client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a capability of its own")]
pub struct ClientCapabilities {
    pub answers: bool,
    pub reads: bool,
    pub writes: bool,
    /// The client displays output as a terminal that it does not run (`_meta.terminal_output`).
    pub shows_output: bool,
    /// The client lists work that goes on in the background, and can end each.
    pub lists_background: bool,
    pub forms: bool,
    pub urls: bool,
    /// The client answers every permission request without its user.
    pub accepts_everything: bool,
}

/// A request without an answer. Dropping it withdraws the request.
#[derive(Debug)]
pub struct PendingRequest<A> {
    id: u64,
    client: Client,
    answer: Option<oneshot::Receiver<Result<Value, ClientError>>>,
    kind: PhantomData<fn() -> A>,
}

#[derive(Debug, Clone)]
pub struct Client {
    outgoing: mpsc::UnboundedSender<Outgoing>,
    send_permits: Arc<Semaphore>,
    next_request: Arc<AtomicU64>,
    has_zero_based_lines: Arc<AtomicBool>,
}

pub type ClientEnd = mpsc::UnboundedReceiver<Outgoing>;

pub fn channel() -> (Client, ClientEnd) {
    // Unbounded: updates are limited by send permits, the rest by the requests in flight.
    let (outgoing, end) = mpsc::unbounded_channel();
    let client = Client {
        outgoing,
        send_permits: Arc::new(Semaphore::new(SEND_PERMITS)),
        next_request: Arc::default(),
        has_zero_based_lines: Arc::default(),
    };
    (client, end)
}

/// Makes lines, which count from 1 in the protocol, count from 0.
fn to_zero_based(locations: &mut [ToolCallLocation]) {
    for location in locations {
        location.line = location.line.map(|line| line.saturating_sub(1));
    }
}

impl Client {
    pub async fn send_permit(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.send_permits).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// `None` once cancelled: an ending turn must not wait for a client that does not read.
    pub async fn send_permit_unless(&self, cancel: &CancellationToken) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            send_permit = self.send_permit() => Some(send_permit),
        }
    }

    /// Selects whether the client counts the `line` of a location from 0, and not from 1 as in the protocol.
    pub fn set_zero_based_lines(&self, has_zero_based_lines: bool) {
        self.has_zero_based_lines.store(has_zero_based_lines, Ordering::Relaxed);
    }

    fn has_zero_based_lines(&self) -> bool {
        self.has_zero_based_lines.load(Ordering::Relaxed)
    }

    /// Drops the update if the client is gone; the end of the connection stops the session.
    pub fn update(&self, session_id: SessionId, update: Update, send_permit: Option<OwnedSemaphorePermit>) {
        let notification = SessionNotification { session_id, update: self.adapted(update) };
        let _ = self.outgoing.send(Outgoing::Update(notification, send_permit));
    }

    /// Like [`Self::update`], for an update of the history.
    pub fn replay(&self, session_id: SessionId, update: Update, send_permit: Option<OwnedSemaphorePermit>) {
        let notification = SessionNotification { session_id, update: self.adapted(update) };
        let _ = self.outgoing.send(Outgoing::Replayed(notification, send_permit));
    }

    fn adapted(&self, mut update: Update) -> Update {
        if self.has_zero_based_lines()
            && let Update::Schema(update) = &mut update
        {
            match &mut **update {
                SessionUpdate::ToolCall(call) => to_zero_based(&mut call.locations),
                SessionUpdate::ToolCallUpdate(call) => {
                    to_zero_based(call.fields.locations.as_deref_mut().unwrap_or_default());
                }
                _ => {}
            }
        }
        update
    }

    pub fn signal(&self, session_id: SessionId, signal: SessionSignal) {
        // The client may be gone.
        let _ = self.outgoing.send(Outgoing::Signal(session_id, signal));
    }

    pub fn request_permission(
        &self,
        request: RequestPermissionRequest,
    ) -> (u64, impl Future<Output = Result<RequestPermissionResponse, ClientError>> + use<>) {
        let (id, answer) = self.request(ClientRequest::RequestPermission(Box::new(request)));
        (id, async move { decode(answer.await.unwrap_or(Err(ClientError::Gone))) })
    }

    /// Dropping the result without an answer withdraws the request.
    pub fn ask<Q: ClientQuestion>(&self, question: Q) -> PendingRequest<Q::Answer> {
        let (id, answer) = self.request(question.into());
        PendingRequest { id, client: self.clone(), answer: Some(answer), kind: PhantomData }
    }

    pub fn forward(&self, request: ClientRequest, reply: ReplySender) -> u64 {
        let id = self.reserve_id();
        self.send_request(id, request, reply);
        id
    }

    /// Returns the id of a later request.
    pub fn reserve_id(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    pub fn send_request(&self, id: u64, mut request: ClientRequest, reply: ReplySender) {
        if self.has_zero_based_lines()
            && let ClientRequest::RequestPermission(request) = &mut request
        {
            to_zero_based(request.tool_call.fields.locations.as_deref_mut().unwrap_or_default());
        }
        // If the client is gone, dropping the reply reads as [`ClientError::Gone`].
        let _ = self.outgoing.send(Outgoing::Request { id, request, reply });
    }

    /// Ignores any later answer; the caller gets [`ClientError::Gone`].
    pub fn withdraw(&self, id: u64) {
        let _ = self.outgoing.send(Outgoing::Withdraw(id));
    }

    /// Delays all later messages until the returned sender is used or dropped, without blocking the caller.
    pub fn barrier(&self) -> oneshot::Sender<()> {
        let (done, after) = oneshot::channel();
        let _ = self.outgoing.send(Outgoing::Barrier(after));
        done
    }

    pub fn answer(&self, call: u64, json: Box<RawValue>) {
        let _ = self.outgoing.send(Outgoing::Answer { call, json });
    }

    fn request(&self, request: ClientRequest) -> (u64, oneshot::Receiver<Result<Value, ClientError>>) {
        let (reply, answer) = oneshot::channel();
        (self.forward(request, reply), answer)
    }
}

pub fn decode<A: DeserializeOwned>(answer: Result<Value, ClientError>) -> Result<A, ClientError> {
    serde_json::from_value(answer?).map_err(|error| ClientError::Malformed(error.to_string()))
}

impl<A: DeserializeOwned> PendingRequest<A> {
    /// Cancel safe. Returns [`ClientError::Gone`] after an answer.
    pub async fn answer(&mut self) -> Result<A, ClientError> {
        let Some(receiver) = &mut self.answer else { return Err(ClientError::Gone) };
        let answer = receiver.await;
        self.answer = None;
        decode(answer.unwrap_or(Err(ClientError::Gone)))
    }

    pub async fn within(mut self, deadline: Duration) -> Result<A, ClientError> {
        tokio::time::timeout(deadline, self.answer()).await.unwrap_or(Err(ClientError::Late(deadline)))
    }
}

impl<A> Drop for PendingRequest<A> {
    fn drop(&mut self) {
        if self.answer.is_some() {
            self.client.withdraw(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::{ReadTextFileRequest, ReadTextFileResponse};

    fn read() -> ReadTextFileRequest {
        ReadTextFileRequest::new(SessionId::new("s"), "/a")
    }

    fn reply(end: &mut ClientEnd) -> ReplySender {
        match end.try_recv() {
            Ok(Outgoing::Request { reply, .. }) => reply,
            other => panic!("no request: {other:?}"),
        }
    }

    #[tokio::test]
    async fn responses_parse_or_become_errors() {
        let (client, mut end) = channel();
        for (response, expected) in [
            (Ok(serde_json::json!({ "content": "x" })), Ok(ReadTextFileResponse::new("x"))),
            (Err(ClientError::Refused("no".into())), Err(ClientError::Refused("no".into()))),
            (Err(ClientError::NotFound("no".into())), Err(ClientError::NotFound("no".into()))),
            (Ok(Value::Null), Err(ClientError::Malformed(String::new()))),
        ] {
            let mut open = client.ask(read());
            reply(&mut end).send(response).unwrap();
            match (open.answer().await, expected) {
                (Err(ClientError::Malformed(_)), Err(ClientError::Malformed(_))) => {}
                (answer, expected) => assert_eq!(answer, expected),
            }
            drop(open);
            assert!(end.try_recv().is_err(), "an answered request is not withdrawn");
        }
    }

    #[test]
    fn client_errors_are_shown_without_json() {
        for (error, expected) in [
            (r#"{"code":-32603,"message":"Internal error"}"#, "Internal error"),
            (r#"{"code":-32603,"message":"Internal error","data":"ENOENT"}"#, "Internal error (ENOENT)"),
            (r#"{"code":1,"message":"no","data":{"details":"gone\n away"}}"#, "no (gone away)"),
            (r#"{"code":1}"#, "no message"),
            ("busy", "busy"),
        ] {
            let error = ClientError::Refused(error.into());
            assert_eq!(error.reason(), expected);
            assert_eq!(error.to_string(), format!("the client answered with an error: {expected}"));
        }
    }

    #[tokio::test]
    async fn timed_out_requests_are_withdrawn_and_closed_channels_fail() {
        let (client, mut end) = channel();
        let late = client.ask(read()).within(Duration::ZERO).await;
        assert_eq!(late, Err(ClientError::Late(Duration::ZERO)));
        let late_reply = reply(&mut end);
        assert!(matches!(end.try_recv(), Ok(Outgoing::Withdraw(0))));
        assert!(late_reply.is_closed(), "a withdrawn request takes no answer");
        drop(end);
        assert_eq!(client.ask(read()).answer().await, Err(ClientError::Gone));
    }
}
