//! What can go wrong with a request, and its one mapping to JSON-RPC codes. Nobody else names a code.
//!
//! The rows follow ACP's error page: a short sentence goes out, the whole chain goes to the log.

use jsonrpsee_types::ErrorObjectOwned;
use serde_json::{Value, json};

use crate::acp::SessionId;

/// Characters of a message.
const MAX_MESSAGE: usize = 300;

/// A request that cannot be answered with a result. The `Display` text is what the client sees.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The line is not JSON (-32700).
    #[error("the line is not valid JSON")]
    NotJson,
    /// The line is JSON but no request that can be taken now (-32600).
    #[error("{0}")]
    InvalidRequest(String),
    /// The method is unknown, or needs a capability that was not advertised (-32601).
    #[error("method not found: {method}")]
    MethodNotFound {
        /// The method that was asked for.
        method: String,
    },
    /// Parameters that do not fit; `data` says what is valid (-32602).
    #[error("{message}")]
    InvalidParams {
        /// One short sentence.
        message: String,
        /// What would have been valid.
        data: Value,
    },
    /// The session is unknown or not active on this connection (-32002).
    #[error("session not found")]
    UnknownSession(SessionId),
    /// The session ended while the request was under way (-32603).
    #[error("the session ended unexpectedly")]
    SessionDied,
    /// The model's provider has no key, or does not accept the one it has (-32000).
    #[error("{0}")]
    AuthRequired(String),
    /// The model could not answer (-32603). The text is one short sentence without secrets.
    #[error("{0}")]
    Model(String),
    /// What happened could not be recorded, so it was not done (-32603).
    #[error("the change could not be recorded, so it was not made")]
    Unrecorded,
    /// As [`Self::Unrecorded`], but the change was to tighten: the mode is what it was, and holds as the tighter one (-32603).
    #[error(
        "the change could not be recorded: the mode is still {mode}, but what {unrecorded} denies is denied"
    )]
    ModeUnrecorded {
        /// The mode that is on.
        mode: String,
        /// The mode that was asked for.
        unrecorded: String,
    },
    /// The file in which sessions are kept cannot be used (-32603).
    #[error("sessions of before cannot be read, because {0}")]
    NoStore(String),
    /// What is kept of a session cannot be read (-32603).
    #[error("the session's record cannot be read")]
    Unreadable,
    /// Anything else that is ours (-32603).
    #[error("internal error")]
    Internal,
    /// The client took the request back (-32800).
    #[error("request cancelled")]
    Cancelled,
}

impl AgentError {
    /// Says that parameters do not fit, and what would.
    pub fn invalid_params(message: impl Into<String>, data: Value) -> Self {
        Self::InvalidParams { message: message.into(), data }
    }

    /// The JSON-RPC code, as ACP's error page assigns them.
    pub fn code(&self) -> i32 {
        match self {
            Self::NotJson => -32700,
            Self::InvalidRequest(_) => -32600,
            Self::MethodNotFound { .. } => -32601,
            Self::InvalidParams { .. } => -32602,
            Self::UnknownSession(_) => -32002,
            Self::AuthRequired(_) => -32000,
            Self::SessionDied
            | Self::Model(_)
            | Self::Unrecorded
            | Self::ModeUnrecorded { .. }
            | Self::NoStore(_)
            | Self::Unreadable
            | Self::Internal => -32603,
            Self::Cancelled => -32800,
        }
    }

    fn data(&self) -> Option<Value> {
        match self {
            Self::InvalidParams { data, .. } => Some(data.clone()),
            Self::UnknownSession(id) => Some(json!({ "sessionId": shorten(&id.0) })),
            Self::NotJson
            | Self::InvalidRequest(_)
            | Self::MethodNotFound { .. }
            | Self::SessionDied
            | Self::AuthRequired(_)
            | Self::Model(_)
            | Self::Unrecorded
            | Self::ModeUnrecorded { .. }
            | Self::NoStore(_)
            | Self::Unreadable
            | Self::Internal
            | Self::Cancelled => None,
        }
    }
}

/// One line of bounded length: messages quote what the client wrote.
fn shorten(message: &str) -> String {
    let line: String =
        message.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE + 1).collect();
    match line.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

impl From<AgentError> for ErrorObjectOwned {
    fn from(error: AgentError) -> Self {
        ErrorObjectOwned::owned(error.code(), shorten(&error.to_string()), error.data())
    }
}
/// Whether an error of the client's, as JSON, says that it does not know what it was asked about: resource not found (-32002).
pub fn says_not_found(error: &str) -> bool {
    let error: Option<Value> = serde_json::from_str(error).ok();
    error.is_some_and(|error| error["code"] == -32002)
}
