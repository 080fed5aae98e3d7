//! The voice: what a session asks of a model and what comes back. Provider-neutral.
//!
//! A provider is one file below this room. It turns a [`ModelRequest`] into its own wire form and its stream into
//! [`ModelEvent`]s; it knows nothing of modes, tools or clients.

use std::sync::Arc;

use futures_util::stream::BoxStream;
use serde_json::Value;

use crate::acp::SessionId;

pub mod offline;
pub mod scripted;

/// Who said a message. Tool results are user-side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The user, and the results of tools.
    User,
    /// The model.
    Assistant,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// Plain text.
    Text(String),
    /// The model's reasoning.
    Thought(String),
    /// The model wants a tool to be run.
    ToolCall {
        /// The model's own id for the call.
        id: String,
        /// The tool's name.
        name: String,
        /// The arguments; not necessarily what the tool's schema wants.
        arguments: Value,
    },
    /// What a tool call came to.
    ToolResult {
        /// The model's own id for the call.
        id: String,
        /// The tool's name.
        name: String,
        /// What the model reads.
        text: String,
        /// The call failed or was denied.
        is_error: bool,
    },
    /// The reminder, spliced into one request and stored nowhere. Cache markers go before it.
    Reminder(String),
}

/// A message of the conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Whose message it is; roles alternate.
    pub role: Role,
    /// Its parts, in order.
    pub blocks: Vec<Block>,
}

/// A tool, as the model is told of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOffer {
    /// The name under which it is called.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// JSON Schema of its arguments.
    pub schema: Value,
}

/// Everything a model needs for one reply.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    /// Whose request it is.
    pub session: SessionId,
    /// How many requests this session made before.
    pub ordinal: u64,
    /// Frozen for the life of the session.
    pub system: Arc<str>,
    /// The tools that may be called now, in a stable order.
    pub tools: Arc<[ToolOffer]>,
    /// The conversation, ending with a user-side message.
    pub messages: Vec<Arc<Message>>,
}

/// What a model says, piece by piece.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// More of the answer's text.
    Text(String),
    /// More of the reasoning.
    Thought(String),
    /// A complete tool call.
    ToolCall {
        /// The model's own id for it.
        id: String,
        /// The tool's name.
        name: String,
        /// The arguments, whatever their shape.
        arguments: Value,
    },
    /// Tokens used so far and the size of the context window.
    Usage {
        /// Tokens in the context now.
        used: u64,
        /// Tokens that fit.
        size: u64,
    },
    /// The reply is complete.
    Stop(ModelStop),
}

/// Why a reply is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelStop {
    /// Nothing more to say, or tool calls to run.
    Done,
    /// The reply reached its limit of tokens.
    MaxTokens,
    /// The model will not answer.
    Refusal,
}

/// Why there is no reply. The text is short, for the user, and without secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ModelError(pub String);

/// A stream of one reply. Dropping it abandons the request.
pub type Reply = BoxStream<'static, Result<ModelEvent, ModelError>>;

/// Something that answers requests.
pub trait Model: Send + Sync {
    /// Starts a reply. Every problem comes through the stream.
    fn reply(&self, request: ModelRequest) -> Reply;
}
