//! What a provider's wire format is: a request to bytes, frames of the response to events. Pure.
//!
//! One format is one file below. The bytes of a request are the same whenever the request is; the reminder is the last
//! thing in them, so that what stands before it is the start of the next request too.

use std::borrow::Cow;
use std::collections::VecDeque;

use secrecy::SecretString;
use serde_json::{Value, json};

use super::known::Facts;
use super::provider_error::ProviderError;
use super::{Block, Effort, Message, ModelEvent, ModelId, ModelRequest};
use framing::Framing;

pub mod anthropic;
pub mod chat;
pub mod framing;
pub mod gemini;
pub mod ollama;
pub mod responses;

/// A request and what has to be known to write it down.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The request.
    pub request: &'a ModelRequest,
    /// The model's name at its provider.
    pub name: &'a str,
    /// What the model can do.
    pub facts: &'a Facts,
    /// The address is the provider's own: what other servers of the same format may not know can be sent.
    pub is_official: bool,
    /// Parts of a request that this server has said it does not know.
    pub without: &'a [&'static str],
}

impl Ask<'_> {
    /// The effort to ask for; none where the provider's own is meant or the model has no such thing.
    pub fn effort(&self) -> Option<Effort> {
        self.facts.nearest(self.request.effort)
    }

    /// Whether an optional part can be sent.
    pub fn may_send(&self, part: &str) -> bool {
        !self.without.contains(&part)
    }

    /// Whether a seal is this model's own, and can go back.
    pub fn is_own(&self, origin: &ModelId) -> bool {
        *origin == self.request.model && self.may_send(SIGNATURE)
    }
}

/// A wire format.
pub trait Wire: Send + Sync {
    /// The address of a model.
    fn url(&self, base: &str, name: &str) -> String;

    /// The headers that a request needs, without optional parts that the server does not take.
    fn headers(
        &self,
        key: Option<&SecretString>,
        without: &[&'static str],
    ) -> Vec<(&'static str, SecretString)>;

    /// Parts of a request that a server may not take: it is asked again without the one that it names.
    fn optional(&self) -> &'static [&'static str] {
        &[]
    }

    /// The body of a request.
    fn body(&self, ask: &Ask<'_>) -> Vec<u8>;

    /// How the response is cut.
    fn framing(&self) -> Framing {
        Framing::Events
    }

    /// Reads one response.
    fn decoder(&self) -> Box<dyn Decode>;
}

/// Reads a response frame by frame.
pub trait Decode: Send + Sync {
    /// Takes a frame and appends what it says.
    fn frame(&mut self, frame: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError>;

    /// The response is over: a reply that is not complete is a problem.
    fn end(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError>;
}

/// A frame as the format's own type; one that does not fit is a problem that shows its start.
pub(super) fn parse<'a, T: serde::Deserialize<'a>>(frame: &'a str) -> Result<T, ProviderError> {
    serde_json::from_str(frame).map_err(|error| {
        let start: String = frame.chars().take(80).collect();
        ProviderError::garbled(format!(
            "the server sent something that is no part of a reply ({error}): {start}"
        ))
    })
}

/// Arguments as a model wrote them. Text that is no JSON stays text: the tool says what is wrong with it.
pub(super) fn arguments(text: &str) -> Value {
    if text.trim().is_empty() {
        return json!({});
    }
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Arguments as a provider takes them back: always an object.
pub(super) fn as_object(arguments: &Value) -> Cow<'_, Value> {
    match arguments {
        Value::Object(_) => Cow::Borrowed(arguments),
        Value::Null => Cow::Owned(json!({})),
        other => Cow::Owned(json!({ "invalid_arguments": other })),
    }
}

/// The optional part that is everything a provider wanted back: a server that finds it wrong is asked without.
pub const SIGNATURE: &str = "signature";

/// A call's id as every provider takes it: of letters, digits, `_` and `-`, and not long. Another one has a stand-in, the
/// same each time.
pub(super) fn call_id(id: &str) -> Cow<'_, str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !id.is_empty() && id.len() <= 40 && id.bytes().all(fits) {
        return Cow::Borrowed(id);
    }
    // FNV-1a.
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Cow::Owned(format!("call_{hash:016x}"))
}

/// The text of a tool's result where a format cannot say that it failed.
pub(super) fn result_text(text: &str, is_error: bool) -> Cow<'_, str> {
    match (is_error, text.is_empty()) {
        (true, _) => Cow::Owned(format!("Error: {text}")),
        (false, true) => Cow::Borrowed("(no output)"),
        (false, false) => Cow::Borrowed(text),
    }
}

/// Stands where a picture was that this model cannot see.
pub(super) const NO_IMAGE: &str = "[a picture that this model cannot see]";

/// What the assistant says between a tool's result and the user's next words, where it said nothing: a turn was cut off
/// there, and some templates refuse a user message after a tool's.
pub(super) const CUT_OFF: &str = "[interrupted]";

/// The same where what follows is a tool's: pictures, which its result cannot hold.
pub(super) const PICTURES: &str = "[pictures of the result]";

/// The body of a request as bytes.
pub(super) fn to_bytes(body: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("a body has string keys and no failing parts")
}

/// Whether a block is one that the provider is sent at all: text without a word is refused by some.
pub(super) fn says_something(block: &Block) -> bool {
    match block {
        Block::Text(text) | Block::Note(text) | Block::Reminder(text) => !text.trim_start().is_empty(),
        Block::Thought(_)
        | Block::ProviderState(_)
        | Block::Image(_)
        | Block::ToolCall { .. }
        | Block::ToolResult { .. } => true,
    }
}

/// The blocks of a message that say something.
pub(super) fn blocks(message: &Message) -> impl Iterator<Item = &Block> {
    message.blocks.iter().filter(|block| says_something(block))
}
