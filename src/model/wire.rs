//! Wire formats: encode requests, and decode frames of the response into events. Equal requests give equal
//! bytes, and blocks keep their order, so that a request starts with the bytes of the one before. Pure.

use std::borrow::Cow;
use std::collections::VecDeque;

use secrecy::SecretString;
use serde_json::{Value, json};

use super::known::ModelFacts;
use super::provider_error::{IMAGE, ProviderError};
use super::{Block, Effort, Image, Message, ModelEvent, ModelId, ModelRequest};
use framing::Framing;

use crate::text::shorten;

pub mod anthropic;
pub mod chat;
pub mod encoded_history;
pub mod framing;
pub mod gemini;
mod lenient;
pub mod ollama;
pub mod responses;
mod text_messages;
mod thought_tags;

#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    pub request: &'a ModelRequest,
    pub name: &'a str,
    pub facts: &'a ModelFacts,
    /// True for the provider's own address, which takes parts that compatible servers may not know.
    pub is_official: bool,
    /// Optional parts that the server rejected.
    pub without: &'a [&'static str],
    /// Keys of images that the server cannot process.
    pub left_out_images: &'a [u64],
}

impl Ask<'_> {
    /// Returns `None` for the provider's default, or for a model without efforts.
    pub fn effort(&self) -> Option<Effort> {
        self.facts.nearest(self.request.effort)
    }

    pub fn may_send(&self, part: &str) -> bool {
        !self.without.contains(&part)
    }

    pub fn may_send_images(&self) -> bool {
        self.facts.images && self.may_send(IMAGE)
    }

    /// Says why an image is not sent. `None` if it is.
    pub fn image_omission(&self, image: &Image) -> Option<&'static str> {
        if !self.may_send_images() {
            return Some(NO_IMAGE);
        }
        // Without refused images, none is hashed.
        let is_left_out = !self.left_out_images.is_empty() && self.left_out_images.contains(&image.key());
        is_left_out.then_some(UNREADABLE_IMAGE)
    }

    /// True if the state came from this model and can go back.
    pub fn is_own(&self, origin: &ModelId) -> bool {
        *origin == self.request.model && self.may_send(SIGNATURE)
    }
}

/// Adds a path to an address, before its query: Azure has the version there.
fn joined(base: &str, path: &str) -> String {
    match base.split_once('?') {
        Some((base, query)) => format!("{}{path}?{query}", base.trim_end_matches('/')),
        None => format!("{base}{path}"),
    }
}

pub trait Wire: Send + Sync {
    fn url(&self, base: &str, name: &str) -> String;

    fn headers(
        &self,
        key: Option<&SecretString>,
        without: &[&'static str],
    ) -> Vec<(&'static str, SecretString)>;

    /// Parts that a server may reject. The request is then sent again without them.
    fn optional(&self) -> &'static [&'static str] {
        &[]
    }

    /// Address of the server's list of models. `None` if only its own provider uses the format.
    fn models_url(&self, _: &str) -> Option<String> {
        None
    }

    fn body(&self, ask: &Ask<'_>) -> Vec<u8>;

    fn framing(&self) -> Framing {
        Framing::Events
    }

    fn decoder(&self) -> Box<dyn Decode>;
}

pub trait Decode: Send + Sync {
    fn frame(&mut self, frame: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError>;

    /// Ends the response without a stop event. Returns an error if the reply is incomplete.
    fn end(&mut self, _: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        Err(ProviderError::cut())
    }
}

/// Judges a frame that cannot be read. Returns an error if the frame reports one, or has one of the
/// `call_marks`, which stand in every part of a call. Otherwise, the reply is readable without the frame, and
/// the returned error counts only if nothing else came.
pub(super) fn unreadable(
    frame: &str,
    reason: &serde_json::Error,
    call_marks: &[&str],
) -> Result<ProviderError, ProviderError> {
    let error =
        serde_json::from_str::<Value>(frame).ok().and_then(|mut value| Some(value.get_mut("error")?.take()));
    if let Some(error) = error.filter(|error| !lenient::is_blank(error)) {
        return Err(error_message(&error));
    }
    let start = shorten(frame, 80);
    let error =
        ProviderError::transient(format!("the server sent an invalid part of a reply ({reason}): {start}"));
    if call_marks.iter().any(|mark| frame.contains(mark)) { Err(error) } else { Ok(error) }
}

/// Parses a frame. Returns `None` if the reply is readable without it.
pub(super) fn parse<'a, T: serde::Deserialize<'a>>(
    frame: &'a str,
    call_marks: &[&str],
) -> Result<Option<T>, ProviderError> {
    match serde_json::from_str(frame) {
        Ok(value) => Ok(Some(value)),
        Err(reason) => unreadable(frame, &reason, call_marks).map(|_| None),
    }
}

/// An error that a provider reports in place of a reply, as a text or an object.
pub(super) fn error_message(error: &Value) -> ProviderError {
    let word = |key: &str| match &error[key] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let message = error.as_str().map_or_else(|| word("message"), str::to_owned);
    let upstream = error["metadata"]["raw"].as_str().unwrap_or_default();
    let message = if upstream.is_empty() { message } else { format!("{message}: {upstream}") };
    ProviderError::reported(&format!("{} {}", word("code"), word("type")), &message)
}

/// Invalid JSON stays a string, which the tool rejects with a reason.
pub(super) fn arguments(text: &str) -> Value {
    if text.trim().is_empty() {
        return json!({});
    }
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Wraps other values in an object, because providers accept nothing else.
pub(super) fn as_object(arguments: &Value) -> Cow<'_, Value> {
    match arguments {
        Value::Object(_) => Cow::Borrowed(arguments),
        Value::Null => Cow::Owned(json!({})),
        other => Cow::Owned(json!({ "invalid_arguments": other })),
    }
}

/// Optional part that covers all provider state, for servers that reject this state.
pub const SIGNATURE: &str = "signature";

/// An id that every provider accepts: letters, digits, `_` and `-`, at most 40 bytes. Others get a stable
/// replacement.
pub(super) fn call_id(id: &str) -> Cow<'_, str> {
    if !id.is_empty()
        && id.len() <= 40
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
    {
        return Cow::Borrowed(id);
    }
    // FNV-1a.
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Cow::Owned(format!("call_{hash:016x}"))
}

/// A new id if the server sent none.
pub(super) fn id_or_new(id: Option<String>, prefix: &str) -> String {
    id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("{prefix}{}", uuid::Uuid::now_v7().simple()))
}

pub(super) fn result_text(text: &str, is_error: bool) -> Cow<'_, str> {
    match (is_error, text.is_empty()) {
        (true, _) => Cow::Owned(format!("Error: {text}")),
        (false, true) => Cow::Borrowed("(no output)"),
        (false, false) => Cow::Borrowed(text),
    }
}

const UNREADABLE_IMAGE: &str = "[image omitted: the model's server cannot process it]";

const NO_IMAGE: &str = "[image omitted: this model does not accept images]";

pub(super) fn to_bytes(body: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("a body has string keys and no failing parts")
}

/// False for blank text, which some providers reject.
pub(super) fn has_content(block: &Block) -> bool {
    match block {
        Block::Text(text) | Block::Note(text) | Block::Reminder(text) => !text.trim_start().is_empty(),
        Block::Thought(_)
        | Block::ProviderState(_)
        | Block::Image(_)
        | Block::ToolCall { .. }
        | Block::ToolResult { .. } => true,
    }
}

pub(super) fn blocks(message: &Message) -> impl Iterator<Item = &Block> {
    message.blocks.iter().filter(|block| has_content(block))
}
