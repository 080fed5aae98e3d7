//! The agent's view of whoever it talks to.
//!
//! A [`Client`] is a channel end, not a trait: whoever holds the [`ClientEnd`] *is* the client (the connection in
//! [`crate::rpc`], the command line in [`crate::headless`], a test). One channel carries updates, requests and answers,
//! so that what was sent first arrives first. It never blocks its sender; what streams asks for [`Client::send_permit`] before
//! it makes more, and everything else is bounded by the requests in flight.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::acp::{
    RequestPermissionRequest, RequestPermissionResponse, SessionId, SessionNotification, Update,
};
pub use request::{ClientRequest, Question};

mod request;

/// Streamed updates that may be on their way before the sender has to wait.
const SEND_PERMITS: usize = 256;

/// Characters that are shown of a client's error.
const MAX_MESSAGE: usize = 300;

/// One message on its way out.
#[derive(Debug)]
pub enum Outgoing {
    /// A `session/update`. The permit, if there is one, is room for the next streamed update.
    Update(SessionNotification, Option<OwnedSemaphorePermit>),
    /// A request to the client. Dropping the reply means that nobody will answer.
    Request {
        /// Unique while the process lives; the id on the wire.
        id: u64,
        /// What is asked.
        request: ClientRequest,
        /// Where the answer goes.
        reply: oneshot::Sender<Result<Value, ClientError>>,
    },
    /// The request with this id is no longer of interest; an answer to it is void.
    Withdraw(u64),
    /// Whatever follows waits until this is sent or dropped: what the client is shown next has to be stored first.
    Barrier(oneshot::Receiver<()>),
    /// The answer to a call that the connection made of the agent.
    Answer {
        /// The connection's own number for the call.
        call: u64,
        /// A complete JSON-RPC response with that number as its id.
        json: Box<RawValue>,
    },
}

/// Why a request to the client has no usable answer. None of these is ever consent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The client has left, or nobody answers for it.
    #[error("nobody is there to answer")]
    Gone,
    /// The client answered with this JSON-RPC error.
    #[error("the client answered with an error: {}", message_of(.0))]
    Refused(String),
    /// The client answered that it does not know what it was asked about.
    #[error("the client answered with an error: {}", message_of(.0))]
    NotFound(String),
    /// The answer does not have the shape that the protocol gives it.
    #[error("the client's answer is malformed: {0}")]
    Malformed(String),
    /// The client has not said that it can do this, so it was not asked.
    #[error("the client cannot do this")]
    NotOffered,
    /// The answer did not come in time, and the question was taken back.
    #[error("the client did not answer within {} s", .0.as_secs_f64())]
    Late(Duration),
}

impl ClientError {
    /// Why, for people: of an error of the client's the message, which is in JSON.
    pub fn reason(&self) -> String {
        match self {
            Self::Refused(text) | Self::NotFound(text) => message_of(text),
            other => other.to_string(),
        }
    }
}

/// The sentence in a JSON-RPC error: its message, with the details that some clients put into its data.
fn message_of(error: &str) -> String {
    let Ok(error) = serde_json::from_str::<Value>(error) else { return error.to_owned() };
    let message = error["message"].as_str().unwrap_or("no message");
    let data = &error["data"];
    let details = data.as_str().or_else(|| data["details"].as_str());
    let text = details.map_or(message.to_owned(), |details| format!("{message} ({details})"));
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(MAX_MESSAGE).collect()
}

/// What a client can do, each by itself, as its `initialize` said (F1, E1). Without one nobody is there: nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a capability of its own")]
pub struct ClientCapabilities {
    /// Somebody is there who can be asked for permission, which every client is.
    pub answers: bool,
    /// `fs/read_text_file`.
    pub reads: bool,
    /// `fs/write_text_file`.
    pub writes: bool,
    /// `terminal/*`.
    pub terminals: bool,
    /// It shows the output of a call as a terminal that it does not run (`_meta.terminal_output`).
    pub shows_output: bool,
    /// `elicitation/create` with a form.
    pub forms: bool,
    /// `elicitation/create` with an address.
    pub urls: bool,
}

/// A request that has no answer yet. Dropping it takes it back.
#[derive(Debug)]
pub struct Open<A> {
    id: u64,
    client: Client,
    /// None once the answer is here, or nobody can give it any more.
    answer: Option<oneshot::Receiver<Result<Value, ClientError>>>,
    kind: PhantomData<fn() -> A>,
}

/// The sending end. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    outgoing: mpsc::UnboundedSender<Outgoing>,
    send_permits: Arc<Semaphore>,
    next_request: Arc<AtomicU64>,
}

/// The receiving end: whoever holds it is the client.
pub type ClientEnd = mpsc::UnboundedReceiver<Outgoing>;

/// Makes a client and the end that stands for it.
pub fn channel() -> (Client, ClientEnd) {
    // The channel itself has no bound: updates are bounded by `room`, the rest by the calls in flight.
    let (outgoing, end) = mpsc::unbounded_channel();
    let client = Client {
        outgoing,
        send_permits: Arc::new(Semaphore::new(SEND_PERMITS)),
        next_request: Arc::default(),
    };
    (client, end)
}

impl Client {
    /// Waits until the client has room for one more streamed update.
    pub async fn send_permit(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.send_permits).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// The same, unless that is cancelled: whoever ends has little left to say, and waits for no client that does not read.
    pub async fn send_permit_unless(&self, cancel: &CancellationToken) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            send_permit = self.send_permit() => Some(send_permit),
        }
    }

    /// Sends a `session/update`. With the client gone it goes nowhere; the connection's end stops the session.
    pub fn update(&self, session_id: SessionId, update: Update, send_permit: Option<OwnedSemaphorePermit>) {
        let _ = self.outgoing.send(Outgoing::Update(SessionNotification { session_id, update }, send_permit));
    }

    /// Asks the user, through the client. Returns the request's id, for [`Self::withdraw`], and its answer.
    pub fn request_permission(
        &self,
        request: RequestPermissionRequest,
    ) -> (u64, impl Future<Output = Result<RequestPermissionResponse, ClientError>> + use<>) {
        let (id, answer) = self.request(ClientRequest::RequestPermission(Box::new(request)));
        let answer = async move {
            let answer = answer.await.unwrap_or(Err(ClientError::Gone))?;
            serde_json::from_value(answer).map_err(|error| ClientError::Malformed(error.to_string()))
        };
        (id, answer)
    }

    /// Asks anything else of the client. Dropped without an answer, the question is taken back.
    pub fn ask<Q: Question>(&self, question: Q) -> Open<Q::Answer> {
        let (id, answer) = self.request(question.into());
        Open { id, client: self.clone(), answer: Some(answer), kind: PhantomData }
    }

    /// Passes a request of somebody else's on, whose answer goes to `reply`. Returns its id, for [`Self::withdraw`].
    pub fn forward(&self, request: ClientRequest, reply: oneshot::Sender<Result<Value, ClientError>>) -> u64 {
        let id = self.next_request.fetch_add(1, Ordering::Relaxed);
        // With the client gone the reply is dropped here, and the answer is that nobody is there.
        let _ = self.outgoing.send(Outgoing::Request { id, request, reply });
        id
    }

    /// Takes a request back: whatever the client still says to it is void, and its answer is [`ClientError::Gone`].
    pub fn withdraw(&self, id: u64) {
        let _ = self.outgoing.send(Outgoing::Withdraw(id));
    }

    /// Holds back whatever is sent from now on until the returned end is used or dropped. The sender itself does not wait.
    pub fn barrier(&self) -> oneshot::Sender<()> {
        let (done, after) = oneshot::channel();
        // With the client gone nothing is held back.
        let _ = self.outgoing.send(Outgoing::Barrier(after));
        done
    }

    /// Passes the answer to one of the connection's calls down the same channel as the updates before it.
    pub fn answer(&self, call: u64, json: Box<RawValue>) {
        let _ = self.outgoing.send(Outgoing::Answer { call, json });
    }

    fn request(&self, request: ClientRequest) -> (u64, oneshot::Receiver<Result<Value, ClientError>>) {
        let (reply, answer) = oneshot::channel();
        (self.forward(request, reply), answer)
    }
}

impl<A: DeserializeOwned> Open<A> {
    /// Waits for the answer. May be given up and asked again; after an answer nobody is there.
    ///
    /// # Errors
    /// The client refuses, is gone, or says something else than what the protocol has for it.
    pub async fn answer(&mut self) -> Result<A, ClientError> {
        let Some(receiver) = &mut self.answer else { return Err(ClientError::Gone) };
        let answer = receiver.await;
        self.answer = None;
        let answer = answer.unwrap_or(Err(ClientError::Gone))?;
        serde_json::from_value(answer).map_err(|error| ClientError::Malformed(error.to_string()))
    }

    /// Waits for the answer, and takes the question back when it does not come in time.
    ///
    /// # Errors
    /// As for [`Self::answer`], and that it is late.
    pub async fn within(mut self, deadline: Duration) -> Result<A, ClientError> {
        tokio::time::timeout(deadline, self.answer()).await.unwrap_or(Err(ClientError::Late(deadline)))
    }
}

impl<A> Drop for Open<A> {
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

    fn reply(end: &mut ClientEnd) -> oneshot::Sender<Result<Value, ClientError>> {
        match end.try_recv() {
            Ok(Outgoing::Request { reply, .. }) => reply,
            other => panic!("no request: {other:?}"),
        }
    }

    #[tokio::test]
    async fn an_answer_has_the_shape_of_its_question_or_is_an_error() {
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
            assert!(end.try_recv().is_err(), "what was answered is not taken back");
        }
    }

    #[test]
    fn an_error_of_the_client_is_a_sentence_without_json() {
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
    async fn a_question_that_is_given_up_is_taken_back_and_one_to_nobody_ends_at_once() {
        let (client, mut end) = channel();
        let late = client.ask(read()).within(Duration::ZERO).await;
        assert_eq!(late, Err(ClientError::Late(Duration::ZERO)));
        let nobody = reply(&mut end);
        assert!(matches!(end.try_recv(), Ok(Outgoing::Withdraw(0))));
        assert!(nobody.is_closed(), "its answer is void");
        drop(end);
        assert_eq!(client.ask(read()).answer().await, Err(ClientError::Gone));
    }
}
