//! The voice: what a session asks of a model and what comes back. Provider-neutral.
//!
//! A provider's wire format is one file below this room. It turns a [`ModelRequest`] into its own wire form and its
//! stream into [`ModelEvent`]s; it knows nothing of modes, tools or clients.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use serde::Deserialize;
use serde_json::Value;

use crate::acp::SessionId;
use schema::Schema;

pub mod catalog;
pub mod key;
pub mod known;
pub mod offline;
pub mod provider_error;
pub mod remote;
pub mod router;
pub mod schema;
pub mod scripted;
pub mod wire;

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
    /// What a provider wants back with the block beside it, such as the signature of a thought.
    ProviderState(ProviderState),
    /// A picture.
    Image(Image),
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
    /// A fact that Modegate tells the model, kept where it was told.
    Note(String),
    /// The reminder, spliced into one request and stored nowhere. Cache markers go before it.
    Reminder(String),
}

impl Block {
    /// Bytes of what it says; a picture is taken for as many as it costs in tokens.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text)
            | Self::Thought(text)
            | Self::Note(text)
            | Self::Reminder(text)
            | Self::ToolResult { text, .. } => text.len(),
            Self::ToolCall { name, arguments, .. } => name.len() + arguments.to_string().len(),
            Self::Image(_) => 6_000,
            Self::ProviderState(_) => 0,
        }
    }
}

/// What a provider wants back unchanged, and who gave it: to any other model it means nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderState {
    /// The model that gave it.
    pub origin: ModelId,
    /// Known to the provider's wire format only.
    pub data: Arc<Value>,
}

/// A picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// Its MIME type.
    pub mime_type: Arc<str>,
    /// Its bytes in base64.
    pub data: Arc<str>,
}

/// The name of a model as users write it: `offline`, `scripted:FILE` or `provider/name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelId(Arc<str>);

impl ModelId {
    /// The id of a model.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(id.into())
    }

    /// As users write it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its provider, and its name there.
    pub fn parts(&self) -> Option<(&str, &str)> {
        self.0.split_once('/')
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How long a model is to think before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// As the provider has it.
    #[default]
    Default,
    /// Not at all.
    None,
    /// As little as can be.
    Minimal,
    /// A little.
    Low,
    /// Some.
    Medium,
    /// Long.
    High,
    /// Longer.
    XHigh,
    /// As long as it takes.
    Max,
}

impl Effort {
    /// Every effort there is, the least first.
    pub const ALL: [Self; 8] = [
        Self::Default,
        Self::None,
        Self::Minimal,
        Self::Low,
        Self::Medium,
        Self::High,
        Self::XHigh,
        Self::Max,
    ];

    /// As users and providers write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::XHigh => "xhigh",
            Self::Max => "max",
        }
    }

    /// How many tokens it is for models that count: as much as the task usually needs.
    pub fn budget(self) -> u64 {
        match self {
            Self::Default | Self::None => 0,
            Self::Minimal | Self::Low => 2_048,
            Self::Medium => 8_192,
            Self::High => 20_480,
            Self::XHigh | Self::Max => 24_576,
        }
    }

    /// Reads what [`Self::as_str`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effort| effort.as_str() == text)
    }
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
#[derive(Debug, Clone)]
pub struct ToolOffer {
    /// The name under which it is called.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// JSON Schema of its arguments.
    pub schema: Schema,
}

/// Everything a model needs for one reply.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    /// Whose request it is.
    pub session: SessionId,
    /// How many requests this session made before.
    pub ordinal: u64,
    /// Who is to answer.
    pub model: ModelId,
    /// How long it is to think.
    pub effort: Effort,
    /// Frozen for the life of the session.
    pub system: Arc<str>,
    /// The tools the model is told of, in a stable order.
    pub tools: Arc<[ToolOffer]>,
    /// The names of those that may be called now, where that is not all of them.
    pub allowed: Option<Arc<[String]>>,
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
    /// What the provider wants back with what is said beside it.
    ProviderState(Value),
    /// A tool call has begun; its arguments are on their way.
    ToolCallStarted {
        /// The model's own id for it.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// A complete tool call, announced before or not.
    ToolCall {
        /// The model's own id for it.
        id: String,
        /// The tool's name.
        name: String,
        /// The arguments, whatever their shape.
        arguments: Value,
    },
    /// What the request and the reply came to.
    Usage(Usage),
    /// Nothing yet: the provider could not answer, and is asked again after a while.
    Waiting {
        /// One short sentence for the user.
        reason: String,
        /// How long.
        wait: Duration,
    },
    /// The reply is complete.
    Stop(ModelStop),
}

/// Tokens of a request and its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// In the context now: the request and the reply.
    pub used: u64,
    /// That fit into the context; zero if unknown.
    pub size: u64,
    /// Of the request, read from the provider's cache.
    pub cache_read: u64,
    /// Of the request, written to the provider's cache.
    pub cache_write: u64,
    /// Of the reply, thoughts included.
    pub output: u64,
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

/// What stands between a request and its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The key is missing or the provider does not accept it.
    Key,
    /// The conversation is longer than the model's context.
    ContextTooLong,
    /// Anything else.
    Other,
}

/// Why there is no reply. The text is short, for the user, and without secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ModelError {
    /// What kind of problem it is.
    pub failure: Failure,
    /// What the user is told.
    pub text: String,
}

impl ModelError {
    /// A problem that is neither the key's nor the context's.
    pub fn new(text: impl Into<String>) -> Self {
        Self { failure: Failure::Other, text: text.into() }
    }
}

/// A stream of one reply. Dropping it abandons the request.
pub type Reply = BoxStream<'static, Result<ModelEvent, ModelError>>;

/// Something that answers requests.
pub trait Model: Send + Sync {
    /// Starts a reply. Every problem comes through the stream.
    fn reply(&self, request: ModelRequest) -> Reply;

    /// A model is going to be asked before long: what can be made ready for it is, without waiting.
    fn prepare(&self, _: &ModelId) {}
}
