//! Decodes the stream of Chat Completions. Servers leave out different members, so most are optional.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::model::provider_error::ProviderError;
use crate::model::wire::{Decode, arguments, id_or_new, parse};
use crate::model::{ModelEvent, ModelStop, Usage};

#[derive(Deserialize)]
#[serde(bound(deserialize = "C: Deserialize<'de>"))]
struct Chunk<C> {
    error: Option<Value>,
    #[serde(default = "Vec::new")]
    choices: Vec<Choice<C>>,
    usage: Option<Counts>,
    /// Some servers send `"object": "error"` with the message beside it.
    object: Option<String>,
    message: Option<Value>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "C: Deserialize<'de>"))]
struct Choice<C> {
    delta: Option<Delta<C>>,
    finish_reason: Option<String>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Delta<C> {
    content: Option<C>,
    refusal: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    reasoning_details: Option<Vec<Map<String, Value>>>,
    tool_calls: Option<Vec<Fragment>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Value>),
}

#[derive(Deserialize)]
struct Fragment {
    index: Option<u64>,
    id: Option<String>,
    #[serde(default)]
    function: Part,
}

#[derive(Default, Deserialize)]
struct Part {
    name: Option<String>,
    arguments: Option<Value>,
}

#[derive(Deserialize)]
struct Counts {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<Details>,
    prompt_cache_hit_tokens: Option<u64>,
    /// A number in `OpenRouter`'s replies. Other servers may send something else.
    cost: Option<Value>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
}

struct Open {
    index: Option<u64>,
    id: String,
    name: String,
    json: String,
}

#[derive(Default)]
pub(super) struct Decoder {
    open: Vec<Open>,
    usage: Option<Usage>,
    stop: Option<ModelStop>,
    /// True if thoughts came as `reasoning_content`, which the server may want back.
    has_reasoning_content: bool,
    details: Vec<Map<String, Value>>,
    ended: bool,
}

impl Decoder {
    fn chunk<C: Into<Content>>(
        &mut self,
        chunk: Chunk<C>,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ProviderError> {
        if let Some(error) = chunk.error {
            return Err(error_message(&error));
        }
        if chunk.object.as_deref() == Some("error") {
            return Err(error_message(&json!({ "message": chunk.message })));
        }
        for selection in chunk.choices {
            if let Some(error) = selection.error {
                return Err(error_message(&error));
            }
            if let Some(delta) = selection.delta {
                self.delta(delta, events);
            }
            match selection.finish_reason.as_deref() {
                None | Some("") => {}
                Some("length") => self.stop = Some(ModelStop::MaxTokens),
                Some("content_filter") => self.stop = Some(ModelStop::Refusal),
                // Other reasons count as a normal end.
                Some(_) => self.stop = self.stop.or(Some(ModelStop::Done)),
            }
        }
        self.usage = chunk.usage.map(usage).or(self.usage);
        Ok(())
    }

    fn delta<C: Into<Content>>(&mut self, delta: Delta<C>, events: &mut VecDeque<ModelEvent>) {
        let Delta { content, refusal, reasoning_content, reasoning, reasoning_details, tool_calls } = delta;
        self.has_reasoning_content |= reasoning_content.is_some();
        let thought = reasoning_content.filter(|text| !text.is_empty()).or(reasoning);
        events.extend(thought.filter(|text| !text.is_empty()).map(ModelEvent::Thought));
        for detail in reasoning_details.into_iter().flatten() {
            self.detail(detail);
        }
        match content.map(Into::into) {
            Some(Content::Text(text)) if !text.is_empty() => events.push_back(ModelEvent::Text(text)),
            Some(Content::Parts(parts)) => events.extend(parts.iter().filter_map(part)),
            Some(Content::Text(_)) | None => {}
        }
        if let Some(refusal) = refusal.filter(|text| !text.is_empty()) {
            events.push_back(ModelEvent::Text(refusal));
            self.stop = Some(ModelStop::Refusal);
        }
        for fragment in tool_calls.into_iter().flatten() {
            self.fragment(fragment, events);
        }
    }

    /// A fragment belongs to the call with its index or id, or to the last call. A new id starts a new call.
    fn fragment(&mut self, Fragment { index, id, function }: Fragment, events: &mut VecDeque<ModelEvent>) {
        let id = id.unwrap_or_default();
        let name = function.name.unwrap_or_default();
        let same = |open: &Open| match (index, open.index) {
            (Some(new), Some(old)) => new == old && (id.is_empty() || id == open.id),
            _ if id.is_empty() => name.is_empty(),
            _ => id == open.id,
        };
        let json = match function.arguments {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text,
            Some(value) => value.to_string(),
        };
        if let Some(open) = self.open.iter_mut().rev().find(|open| same(open)) {
            open.json.push_str(&json);
        } else {
            let id = id_or_new(Some(id), "call_");
            events.push_back(ModelEvent::ToolCallStarted { id: id.clone(), name: name.clone() });
            self.open.push(Open { index, id, name, json });
        }
    }

    /// Fragments of one piece of reasoning go back as one piece.
    fn detail(&mut self, detail: Map<String, Value>) {
        let same = |other: &Map<String, Value>| {
            other.get("index") == detail.get("index") && other.get("type") == detail.get("type")
        };
        let Some(known) = self.details.iter_mut().rev().find(|other| same(other)) else {
            return self.details.push(detail);
        };
        for (key, value) in detail {
            match (known.get_mut(&key), value) {
                (Some(Value::String(text)), Value::String(more)) if key == "text" || key == "summary" => {
                    text.push_str(&more);
                }
                (Some(old), value) if !value.is_null() => *old = value,
                (Some(_), _) => {}
                (None, value) => {
                    known.insert(key, value);
                }
            }
        }
    }

    fn finish(&mut self, events: &mut VecDeque<ModelEvent>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if self.has_reasoning_content && !self.open.is_empty() {
            events.push_back(ModelEvent::ProviderState(json!({ "reasoning_content": true })));
        }
        if !self.details.is_empty() {
            let details = std::mem::take(&mut self.details);
            events.push_back(ModelEvent::ProviderState(json!({ "reasoning_details": details })));
        }
        let stop = self.stop.unwrap_or(ModelStop::Done);
        for Open { id, name, json, .. } in self.open.drain(..) {
            // The token limit cut off this call.
            if stop == ModelStop::MaxTokens && serde_json::from_str::<Value>(&json).is_err() {
                continue;
            }
            events.push_back(ModelEvent::ToolCall { id, name, arguments: arguments(&json) });
        }
        events.extend(self.usage.map(ModelEvent::Usage));
        events.push_back(ModelEvent::Stop(stop));
    }
}

impl Decode for Decoder {
    fn frame(&mut self, frame: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        if frame.trim() == "[DONE]" {
            self.finish(events);
            return Ok(());
        }
        // Nearly always a string. Testing for it costs more than parsing the rest of the chunk.
        match serde_json::from_str::<Chunk<String>>(frame) {
            Ok(chunk) => self.chunk(chunk, events),
            Err(_) => self.chunk::<Content>(parse(frame)?, events),
        }
    }

    fn end(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        if self.stop.is_none() && !self.ended {
            return Err(ProviderError::cut());
        }
        self.finish(events);
        Ok(())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

fn part(part: &Value) -> Option<ModelEvent> {
    match part["type"].as_str()? {
        "text" => Some(ModelEvent::Text(part["text"].as_str()?.to_owned())),
        "thinking" => {
            let texts = part["thinking"].as_array()?.iter().filter_map(|part| part["text"].as_str());
            Some(ModelEvent::Thought(texts.collect()))
        }
        _ => None,
    }
}

fn usage(counts: Counts) -> Usage {
    let details = counts.prompt_tokens_details;
    let read = details.as_ref().and_then(|details| details.cached_tokens).or(counts.prompt_cache_hit_tokens);
    Usage {
        used: counts.prompt_tokens + counts.completion_tokens,
        cache_read: read.unwrap_or(0),
        cache_write: details.and_then(|details| details.cache_write_tokens).unwrap_or(0),
        output: counts.completion_tokens,
        cost: counts.cost.and_then(|credits| Usage::billionths(credits.as_f64()?)),
        ..Usage::default()
    }
}

fn error_message(error: &Value) -> ProviderError {
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
