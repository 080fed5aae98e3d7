//! Request errors, and their only mapping to JSON-RPC codes, which follows ACP's error page.

use jsonrpsee_types::ErrorObjectOwned;
use serde_json::{Value, json};

use crate::acp::SessionId;
use crate::text::one_line;

const MAX_MESSAGE: usize = 300;

/// Clients see the `Display` text.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AgentError {
    #[error("the line is not valid JSON")]
    NotJson,
    /// JSON, but not a request that is valid now.
    #[error("{0}")]
    InvalidRequest(String),
    /// The method is unknown, or needs a capability that was not advertised.
    #[error("method not found: {method}")]
    MethodNotFound { method: String },
    #[error("{message}")]
    InvalidParams { message: String, data: Value },
    /// No version of the protocol up to this one is offered. Only version 2 has this error.
    #[error("protocol version {requested} is not supported")]
    UnsupportedVersion { requested: u16 },
    /// The request was cancelled before it had an effect.
    #[error("the request was cancelled")]
    Cancelled,
    /// The session is unknown or not active on this connection.
    #[error("session not found")]
    UnknownSession(SessionId),
    #[error("the session ended unexpectedly")]
    SessionDied,
    /// The provider has no key, or rejects it.
    #[error("{0}")]
    AuthRequired(String),
    /// A short sentence without secrets.
    #[error("{0}")]
    Model(String),
    #[error("the change could not be stored, so it was not made")]
    Unrecorded,
    /// A tightening mode change was not stored: `mode` stays, but the denials of `unrecorded` apply, too.
    #[error(
        "the mode change could not be stored: the mode is still {mode}, but calls that {unrecorded} denies are denied"
    )]
    ModeUnrecorded { mode: String, unrecorded: String },
    #[error("stored sessions cannot be read, because {0}")]
    NoStore(String),
    #[error("the stored session cannot be read")]
    Unreadable,
    #[error("internal error")]
    Internal,
}

impl AgentError {
    /// For an error of a semaphore.
    pub fn too_many_requests<E>(_: E) -> Self {
        let text = "too many requests wait for this session: wait for some answers first";
        Self::InvalidRequest(text.into())
    }

    pub fn is_invalid_params(&self) -> bool {
        matches!(self, Self::InvalidParams { .. })
    }

    pub fn invalid_params(message: impl Into<String>, data: Value) -> Self {
        Self::InvalidParams { message: message.into(), data }
    }

    pub fn not_cancellable(what: &str, id: &str) -> Self {
        Self::invalid_params(format!("the {what} {id:?} cannot be cancelled now"), json!({ "id": id }))
    }

    pub fn code(&self) -> i32 {
        match self {
            Self::NotJson => -32700,
            Self::InvalidRequest(_) => -32600,
            Self::MethodNotFound { .. } => -32601,
            Self::InvalidParams { .. } => -32602,
            Self::UnsupportedVersion { .. } => -32022,
            Self::Cancelled => -32800,
            Self::UnknownSession(_) => -32002,
            Self::AuthRequired(_) => -32000,
            Self::SessionDied
            | Self::Model(_)
            | Self::Unrecorded
            | Self::ModeUnrecorded { .. }
            | Self::NoStore(_)
            | Self::Unreadable
            | Self::Internal => -32603,
        }
    }

    /// The `data` member: `details` has the message again, for clients that show nothing else, beside members of the error.
    fn data(&self, message: &str) -> Value {
        let mut data = match self {
            Self::InvalidParams { data, .. } => data.clone(),
            Self::UnsupportedVersion { requested } => json!({ "requested": requested, "supported": [1, 2] }),
            Self::UnknownSession(id) => json!({ "sessionId": one_line(&id.0, MAX_MESSAGE) }),
            _ => json!({}),
        };
        if let Some(members) = data.as_object_mut() {
            members.entry("details").or_insert_with(|| message.into());
        }
        data
    }
}

impl From<AgentError> for ErrorObjectOwned {
    fn from(error: AgentError) -> Self {
        // One line, because messages quote the client's input.
        let message = one_line(&error.to_string(), MAX_MESSAGE);
        let data = error.data(&message);
        ErrorObjectOwned::owned(error.code(), message, Some(data))
    }
}

/// True for ACP's "resource not found" (-32002).
pub fn says_not_found(error: &str) -> bool {
    let error: Option<Value> = serde_json::from_str(error).ok();
    error.is_some_and(|error| error["code"] == -32002)
}
