//! The agent's view of whoever it talks to.
//!
//! A [`Client`] is a channel end, not a trait: whoever holds the [`ClientEnd`] *is* the client (the connection in
//! [`crate::rpc`], the command line in [`crate::headless`], a test). One channel carries updates, requests and answers,
//! so that what was sent first arrives first. It never blocks its sender; what streams asks for [`Client::room`] before
//! it makes more, and everything else is bounded by the requests in flight.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::acp::{
    RequestPermissionRequest, RequestPermissionResponse, SessionId, SessionNotification, Update,
};

/// Streamed updates that may be on their way before the sender has to wait.
const STREAM_ROOM: usize = 256;

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
    /// The answer to a call that the connection made of the agent.
    Answer {
        /// The connection's own number for the call.
        call: u64,
        /// A complete JSON-RPC response with that number as its id.
        json: Box<RawValue>,
    },
}

/// What the agent may ask of the client.
#[derive(Debug)]
pub enum ClientRequest {
    /// `session/request_permission`.
    RequestPermission(Box<RequestPermissionRequest>),
}

/// Why a request to the client has no usable answer. None of these is ever consent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The client has left, or nobody answers for it.
    #[error("nobody is there to answer")]
    Gone,
    /// The client answered with an error.
    #[error("the client answered with an error: {0}")]
    Refused(String),
    /// The answer does not have the shape that the protocol gives it.
    #[error("the client's answer is malformed: {0}")]
    Malformed(String),
}

/// The sending end. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    outgoing: mpsc::UnboundedSender<Outgoing>,
    room: Arc<Semaphore>,
    next_request: Arc<AtomicU64>,
}

/// The receiving end: whoever holds it is the client.
pub type ClientEnd = mpsc::UnboundedReceiver<Outgoing>;

/// Makes a client and the end that stands for it.
pub fn channel() -> (Client, ClientEnd) {
    // The channel itself has no bound: updates are bounded by `room`, the rest by the calls in flight.
    let (outgoing, end) = mpsc::unbounded_channel();
    let client =
        Client { outgoing, room: Arc::new(Semaphore::new(STREAM_ROOM)), next_request: Arc::default() };
    (client, end)
}

impl Client {
    /// Waits until the client has room for one more streamed update.
    pub async fn room(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.room).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Sends a `session/update`. With the client gone it goes nowhere; the connection's end stops the session.
    pub fn update(&self, session_id: SessionId, update: Update, room: Option<OwnedSemaphorePermit>) {
        let _ = self.outgoing.send(Outgoing::Update(SessionNotification { session_id, update }, room));
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

    /// Takes a request back: whatever the client still says to it is void, and its answer is [`ClientError::Gone`].
    pub fn withdraw(&self, id: u64) {
        let _ = self.outgoing.send(Outgoing::Withdraw(id));
    }

    /// Passes the answer to one of the connection's calls down the same channel as the updates before it.
    pub fn answer(&self, call: u64, json: Box<RawValue>) {
        let _ = self.outgoing.send(Outgoing::Answer { call, json });
    }

    fn request(&self, request: ClientRequest) -> (u64, oneshot::Receiver<Result<Value, ClientError>>) {
        let id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        // With the client gone the reply is dropped here, and the answer is that nobody is there.
        let _ = self.outgoing.send(Outgoing::Request { id, request, reply });
        (id, answer)
    }
}
