//! Decodes the stream of Chat Completions. Servers leave out, rename and reorder members, so nothing but the end
//! of the reply is necessary. A part that cannot be read is left out, unless it belongs to a call: half a call
//! must not run.

use std::collections::VecDeque;

use serde_json::{Deserializer, Map, Value, json};

use super::calls::CallAssembly;
use super::chunk::{self, ChatChoice, ChatChunk, ChatDelta};
use crate::model::provider_error::ProviderError;
use crate::model::wire::lenient::{count, is_blank, items};
use crate::model::wire::thought_tags::ThoughtTags;
use crate::model::wire::{Decode, error_message, unreadable};
use crate::model::{ModelEvent, ModelStop, Usage};

/// Text in the part of a stream that belongs to a call.
const CALL_MARKS: [&str; 1] = ["tool_calls"];

#[derive(Default)]
pub(super) struct ChatDecoder {
    calls: CallAssembly,
    thought_tags: ThoughtTags,
    usage: Option<Usage>,
    stop: Option<ModelStop>,
    /// Member of the last thoughts, which the server may want back.
    thought_member: Option<&'static str>,
    details: Vec<Map<String, Value>>,
    has_output: bool,
    ended: bool,
    /// Why a part was left out.
    unread: Option<ProviderError>,
}

impl ChatDecoder {
    fn chunk(&mut self, chunk: ChatChunk, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        if let Some(error) = error_of(&chunk) {
            return Err(error);
        }
        for choice in chunk.choices.into_iter().flatten() {
            self.choice(choice, events)?;
        }
        for counts in [chunk.x_groq.as_ref().map(|groq| &groq["usage"]), chunk.usage.as_ref()] {
            self.usage = counts.and_then(usage).or(self.usage);
        }
        Ok(())
    }

    fn choice(&mut self, choice: ChatChoice, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        if let Some(error) = choice.error.filter(|error| !is_blank(error)) {
            return Err(error_message(&error));
        }
        // A whole message after its pieces repeats them.
        let whole = choice.message.filter(|_| !self.has_output);
        if let Some(delta) = choice.delta.or(whole) {
            self.delta(*delta, events);
        }
        self.usage = choice.usage.as_ref().and_then(usage).or(self.usage);
        let Some(reason) = choice.finish_reason.filter(|reason| !reason.is_empty()) else { return Ok(()) };
        match reason.to_ascii_lowercase().as_str() {
            "length" | "max_tokens" | "max_length" | "model_length" => self.stop = Some(ModelStop::MaxTokens),
            "model_context_window_exceeded" => self.stop = Some(ModelStop::ContextFull),
            "content_filter" | "safety" => self.stop = Some(ModelStop::Refusal),
            "error" | "abort" => {
                return Err(ProviderError::transient("the provider ended the reply without a reason"));
            }
            // Other reasons count as a normal end.
            _ => self.stop = self.stop.or(Some(ModelStop::Done)),
        }
        Ok(())
    }

    fn delta(&mut self, delta: ChatDelta, events: &mut VecDeque<ModelEvent>) {
        let ChatDelta {
            content,
            parts,
            refusal,
            reasoning_content,
            reasoning,
            reasoning_details,
            tool_calls,
        } = delta;
        let events_before = events.len();
        if reasoning_content.is_some() {
            self.thought_member = Some("reasoning_content");
        }
        let mut thought = reasoning_content.filter(|text| !text.is_empty());
        if let Some(reasoning) = reasoning.filter(|text| !text.is_empty()) {
            self.thought_member = self.thought_member.or(Some("reasoning"));
            thought = thought.or(Some(reasoning));
        }
        for detail in reasoning_details.as_ref().map_or(&[][..], items) {
            let Value::Object(detail) = detail else { continue };
            thought = thought.or_else(|| text_of_detail(detail));
            self.detail(detail.clone());
        }
        events.extend(thought.map(ModelEvent::Thought));
        if let Some(text) = content.filter(|text| !text.is_empty()) {
            self.has_output = true;
            self.thought_tags.push(text, events);
        }
        for part in parts.iter().filter_map(part) {
            match part {
                ModelEvent::Text(text) if !text.is_empty() => self.thought_tags.push(text, events),
                thought => events.push_back(thought),
            }
        }
        if let Some(refusal) = refusal.filter(|text| !text.is_empty()) {
            events.push_back(ModelEvent::Text(refusal));
            self.stop = Some(ModelStop::Refusal);
        }
        for piece in tool_calls.into_iter().flatten() {
            self.calls.push(piece, events);
        }
        self.has_output |= events.len() > events_before || !self.calls.is_empty();
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

    /// Reads a frame that is not one chunk with the documented types.
    fn odd_frame(&mut self, frame: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        let mut rest = frame.trim_start_matches('\u{feff}').trim_start();
        while !rest.is_empty() && !self.ended {
            if rest.starts_with("[DONE]") {
                return self.finish(events);
            }
            let mut values = Deserializer::from_str(rest).into_iter::<Value>();
            match values.next() {
                Some(Ok(value)) => {
                    rest = rest[values.byte_offset()..].trim_start();
                    self.odd_value(&value, events)?;
                }
                Some(Err(error)) => {
                    self.unread = Some(unreadable(rest, &error, &CALL_MARKS)?);
                    return Ok(());
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    fn odd_value(&mut self, value: &Value, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        for chunk in items(value).iter().filter(|chunk| chunk.is_object()) {
            let chunk = chunk::read(chunk)
                .map_err(|_| ProviderError::transient("the server sent a call that cannot be read"))?;
            self.chunk(chunk, events)?;
        }
        Ok(())
    }

    fn finish(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        if let Some(unread) = self.unread.take().filter(|_| !self.has_output) {
            return Err(unread);
        }
        let tag_state = self.thought_tags.finish(events);
        self.calls.announce(events);
        // Details repeat the text of `reasoning`.
        let is_wanted = |member: &&str| *member != "reasoning" || self.details.is_empty();
        if let Some(member) = self.thought_member.filter(is_wanted).filter(|_| !self.calls.is_empty()) {
            events.push_back(ModelEvent::ProviderState(json!({ member: true })));
        }
        if !self.details.is_empty() {
            let details = std::mem::take(&mut self.details);
            events.push_back(ModelEvent::ProviderState(json!({ "reasoning_details": details })));
        }
        events.extend(tag_state.map(ModelEvent::ProviderState));
        let stop = self.stop.unwrap_or(ModelStop::Done);
        self.calls.finish(stop.is_cut(), events);
        events.extend(self.usage.map(ModelEvent::Usage));
        events.push_back(ModelEvent::Stop(stop));
        Ok(())
    }
}

impl Decode for ChatDecoder {
    fn frame(&mut self, frame: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        if self.ended {
            return Ok(());
        }
        if frame.trim() == "[DONE]" {
            return self.finish(events);
        }
        match serde_json::from_str::<ChatChunk>(frame) {
            Ok(chunk) => self.chunk(chunk, events),
            Err(_) => self.odd_frame(frame, events),
        }
    }

    fn end(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        if self.stop.is_none() && !self.ended {
            return Err(self.unread.take().unwrap_or_else(ProviderError::cut));
        }
        self.finish(events)
    }
}

/// The error of a chunk, under the names that servers give it.
fn error_of(chunk: &ChatChunk) -> Option<ProviderError> {
    if let Some(error) = chunk.error.as_ref().filter(|error| !is_blank(error)) {
        return Some(error_message(error));
    }
    let is_named = chunk.object.as_deref() == Some("error");
    let is_alone = chunk.choices.is_none() && chunk.usage.is_none() && chunk.x_groq.is_none();
    let message = [&chunk.message, &chunk.detail].into_iter().flatten().find(|text| !is_blank(text));
    let is_text = message.is_some_and(Value::is_string);
    (is_named || (is_alone && is_text)).then(|| error_message(&json!({ "message": message })))
}

fn text_of_detail(detail: &Map<String, Value>) -> Option<String> {
    let text = ["text", "summary"].iter().find_map(|name| detail.get(*name)?.as_str())?;
    (!text.is_empty()).then(|| text.to_owned())
}

fn part(part: &Value) -> Option<ModelEvent> {
    match part["type"].as_str()? {
        "text" => Some(ModelEvent::Text(part["text"].as_str()?.to_owned())),
        "thinking" => {
            let thinking = &part["thinking"];
            let texts = items(thinking).iter().filter_map(|part| part["text"].as_str());
            Some(ModelEvent::Thought(thinking.as_str().map_or_else(|| texts.collect(), str::to_owned)))
        }
        _ => None,
    }
}

/// Returns `None` for a report without tokens, which servers send before they know any.
fn usage(counts: &Value) -> Option<Usage> {
    let tokens = |names: [&str; 2]| names.iter().find_map(|name| count(&counts[*name])).unwrap_or(0);
    let (input, output) =
        (tokens(["prompt_tokens", "input_tokens"]), tokens(["completion_tokens", "output_tokens"]));
    let details = &counts["prompt_tokens_details"];
    let read = count(&details["cached_tokens"]).or_else(|| count(&counts["prompt_cache_hit_tokens"]));
    (input + output > 0).then(|| Usage {
        used: input + output,
        cache_read: read.unwrap_or(0),
        cache_write: count(&details["cache_write_tokens"]).unwrap_or(0),
        output,
        // A number in `OpenRouter`'s replies. Other servers may send something else.
        cost: counts["cost"].as_f64().and_then(Usage::billionths),
        ..Usage::default()
    })
}
