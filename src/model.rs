//! Provider-neutral requests to models, and the events of a reply. Only [`wire`] knows formats.

use std::borrow::Cow;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use serde::Deserialize;
use serde_json::Value;

use crate::acp::SessionId;
use excess::Excess;
use schema::Schema;

pub mod allowed;
pub mod attempt;
pub mod busy_wait;
pub mod catalog;
pub mod endpoint;
pub mod excess;
pub mod gallery;
pub mod image_probe;
pub mod key;
pub mod key_form;
pub mod known;
pub mod learnt;
pub mod offline;
pub mod provider_error;
pub mod remote;
pub mod router;
pub mod schema;
pub mod scripted;
mod trace;
pub mod wire;
pub mod written_call;

pub use trace::TraceContext;
pub use wire::encoded_history::EncodedHistory;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    User,
    Assistant,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    Text(String),
    Thought(String),
    /// Such as the signature of the thought beside it.
    ProviderState(ProviderState),
    Image(Image),
    ToolCall {
        id: String,
        name: String,
        /// Not validated against the tool's schema.
        arguments: Value,
    },
    ToolResult {
        id: String,
        name: String,
        text: String,
        is_error: bool,
    },
    /// A fact from Modegate for the model, kept in the history.
    Note(String),
    /// The mode's reminder, part of one request and never stored. Cache markers go before it, because the next
    /// request may lack it.
    Reminder(String),
}

impl Block {
    /// Size in bytes. An image counts as the text that costs as many tokens.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text)
            | Self::Thought(text)
            | Self::Note(text)
            | Self::Reminder(text)
            | Self::ToolResult { text, .. } => text.len(),
            Self::ToolCall { name, arguments, .. } => name.len() + arguments.to_string().len(),
            Self::Image(_) => 6_000,
            Self::ProviderState(state) => state.data.to_string().len(),
        }
    }
}

/// Opaque provider state. It goes back unchanged to the model that produced it, and to no other.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderState {
    pub origin: ModelId,
    pub data: Arc<Value>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    pub mime_type: Arc<str>,
    pub data: Arc<str>,
}

impl Image {
    /// Identifies the content within this process.
    pub fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.data.hash(&mut hasher);
        hasher.finish()
    }
}

/// Model name as users write it: `offline`, `scripted:FILE` or `provider/name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelId(Arc<str>);

impl ModelId {
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(id.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn parts(&self) -> Option<(&str, &str)> {
        self.0.split_once('/')
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    #[default]
    Default,
    None,
    Minimal,
    Low,
    Medium,
    High,
    XHigh,
    Max,
}

impl Effort {
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

    /// Number of thinking tokens, for models with a budget.
    pub fn budget(self) -> u64 {
        match self {
            Self::Default | Self::None => 0,
            Self::Minimal | Self::Low => 2_048,
            Self::Medium => 8_192,
            Self::High => 20_480,
            Self::XHigh | Self::Max => 24_576,
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effort| effort.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    pub role: Role,
    pub blocks: Vec<Block>,
}

#[derive(Debug, Clone)]
pub struct ToolOffer {
    pub name: String,
    pub description: Cow<'static, str>,
    pub schema: Schema,
}

#[derive(Debug, Clone)]
pub struct ModelRequest {
    pub session: SessionId,
    pub ordinal: u64,
    pub model: ModelId,
    pub effort: Effort,
    /// Constant for the life of the session.
    pub system: Arc<str>,
    /// In a stable order, for the provider's cache.
    pub tools: Arc<[ToolOffer]>,
    /// Number of tools at the start of the list that read-only modes have, too. A mode change keeps these.
    pub lasting_tools: usize,
    /// Names of the tools that may be called now. `None` if all of them may.
    pub allowed: Option<Arc<[String]>>,
    pub messages: Vec<Arc<Message>>,
    /// Trace context of the prompt of the turn.
    pub trace: Option<Arc<TraceContext>>,
    /// Shared by the requests of a session.
    pub encoded: Arc<EncodedHistory>,
}

impl ModelRequest {
    /// Keys of the images, oldest first.
    pub fn image_keys(&self) -> Vec<u64> {
        let blocks = self.messages.iter().flat_map(|message| &message.blocks);
        let images =
            blocks.filter_map(|block| if let Block::Image(image) = block { Some(image.key()) } else { None });
        images.collect()
    }

    /// True if the last message has results of tools.
    pub fn follows_results(&self) -> bool {
        let last = self.messages.last();
        last.is_some_and(|last| last.blocks.iter().any(|block| matches!(block, Block::ToolResult { .. })))
    }
}

/// Part of a streamed reply. Texts and thoughts arrive in pieces.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    Text(String),
    Thought(String),
    /// Opaque state that the provider wants back with the output beside it.
    ProviderState(Value),
    ToolCallStarted {
        id: String,
        name: String,
    },
    ToolCall {
        id: String,
        name: String,
        arguments: Value,
    },
    Usage(Usage),
    /// The provider could not answer, and the request is retried after `wait`.
    Waiting {
        reason: String,
        wait: Duration,
        /// `None` if an editor can cancel the turn, or the provider is not busy.
        limit: Option<busy_wait::BusyLimit>,
    },
    Stop(ModelStop),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the context now: request and reply.
    pub used: u64,
    /// Context size, or 0 if unknown.
    pub size: u64,
    pub cache_read: u64,
    pub cache_write: u64,
    pub output: u64,
    /// Cost of the request in billionths of the provider's credits. `None` if the provider does not report it.
    pub cost: Option<u64>,
}

impl Usage {
    /// Converts credits to billionths. `None` for a negative amount, or one beyond 1e9.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
    fn billionths(credits: f64) -> Option<u64> {
        (0.0..=1e9).contains(&credits).then(|| (credits * 1e9).round() as u64)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelStop {
    /// Nothing more to say, or tool calls to run.
    Done,
    MaxTokens,
    Refusal,
    /// The reply filled the model's context.
    ContextFull,
    /// The reply has nothing, although results of tools came before it.
    Empty,
}

impl ModelStop {
    /// True if a limit ended the reply, maybe in a call.
    pub fn is_cut(self) -> bool {
        matches!(self, Self::MaxTokens | Self::ContextFull)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The key is missing, or the provider rejects it.
    Key,
    /// The request does not fit in the model's context, or its body is too large for the server.
    ContextTooLong(Excess),
    /// The model ended its reply without an answer.
    NoAnswer,
    /// The reply broke off after its first output, and another request may succeed after the wait.
    Interrupted {
        wait: Duration,
    },
    Other,
}

/// Error instead of a reply. The text is short, for the user, and contains no secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ModelError {
    pub failure: Failure,
    pub text: String,
}

impl ModelError {
    pub fn new(text: impl Into<String>) -> Self {
        Self { failure: Failure::Other, text: text.into() }
    }
}

/// Stream of one reply. Dropping it cancels the request.
pub type Reply = BoxStream<'static, Result<ModelEvent, ModelError>>;

pub trait Model: Send + Sync {
    fn reply(&self, request: ModelRequest) -> Reply;

    /// Announces a coming request, so that the model can prepare without blocking the caller.
    fn prepare(&self, _: &ModelId) {}

    /// Context size in tokens that the server of the model has reported. `None` if it has not.
    fn reported_context(&self, _: &ModelId) -> Option<u64> {
        None
    }
}
