//! Decodes the stream of the Messages API, in which blocks start, grow and stop.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::model::provider_error::ProviderError;
use crate::model::wire::{Decode, arguments, as_object, parse};
use crate::model::{ModelEvent, ModelStop, Usage};

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Frame {
    MessageStart {
        message: Started,
    },
    ContentBlockStart {
        index: u64,
        content_block: ContentBlock,
    },
    ContentBlockDelta {
        index: u64,
        delta: Delta,
    },
    ContentBlockStop {
        index: u64,
    },
    MessageDelta {
        delta: Ending,
        #[serde(default)]
        usage: Counts,
    },
    MessageStop,
    Error {
        error: WireMessage,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Started {
    #[serde(default)]
    usage: Counts,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentBlock {
    Text {
        #[serde(default)]
        text: String,
    },
    Thinking {
        #[serde(default)]
        thinking: String,
        #[serde(default)]
        signature: String,
    },
    RedactedThinking {
        data: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[serde(default)]
        input: Value,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Delta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "input_json_delta")]
    Json { partial_json: String },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Ending {
    stop_reason: Option<String>,
    stop_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    explanation: Option<String>,
}

#[derive(Deserialize)]
struct WireMessage {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    message: String,
}

/// Totals so far, not increments.
#[derive(Debug, Default, Deserialize)]
struct Counts {
    #[serde(rename = "input_tokens")]
    input: Option<u64>,
    #[serde(rename = "cache_creation_input_tokens")]
    cache_write: Option<u64>,
    #[serde(rename = "cache_read_input_tokens")]
    cache_read: Option<u64>,
    #[serde(rename = "output_tokens")]
    output: Option<u64>,
}

enum Open {
    Signature(String),
    Call { id: String, name: String, input: Value, json: String },
}

#[derive(Default)]
pub(super) struct Decoder {
    open: Vec<(u64, Open)>,
    counts: Counts,
    stop: Option<ModelStop>,
}

impl Decoder {
    fn begin(&mut self, index: u64, block: ContentBlock, events: &mut VecDeque<ModelEvent>) {
        match block {
            ContentBlock::Text { text } => events.push_back(ModelEvent::Text(text)),
            ContentBlock::Thinking { thinking, signature } => {
                events.push_back(ModelEvent::Thought(thinking));
                self.open.push((index, Open::Signature(signature)));
            }
            ContentBlock::RedactedThinking { data } => {
                events.push_back(ModelEvent::ProviderState(json!({ "redacted": data })));
            }
            ContentBlock::ToolUse { id, name, input } => {
                events.push_back(ModelEvent::ToolCallStarted { id: id.clone(), name: name.clone() });
                self.open.push((index, Open::Call { id, name, input, json: String::new() }));
            }
            ContentBlock::Other => {}
        }
    }

    fn apply_delta(&mut self, index: u64, delta: Delta, events: &mut VecDeque<ModelEvent>) {
        let open = self.open.iter_mut().find(|(at, _)| *at == index).map(|(_, open)| open);
        match (delta, open) {
            (Delta::Text { text }, _) => events.push_back(ModelEvent::Text(text)),
            (Delta::Thinking { thinking }, _) => events.push_back(ModelEvent::Thought(thinking)),
            (Delta::Signature { signature: more }, Some(Open::Signature(signature))) => {
                signature.push_str(&more);
            }
            (Delta::Json { partial_json }, Some(Open::Call { json, .. })) => {
                json.push_str(&partial_json);
            }
            (Delta::Signature { .. } | Delta::Json { .. } | Delta::Other, _) => {}
        }
    }

    fn finish(&mut self, index: u64, events: &mut VecDeque<ModelEvent>) {
        let Some(at) = self.open.iter().position(|(open, _)| *open == index) else { return };
        match self.open.remove(at).1 {
            Open::Signature(signature) if signature.is_empty() => {}
            Open::Signature(signature) => {
                events.push_back(ModelEvent::ProviderState(json!({ "signature": signature })));
            }
            Open::Call { id, name, input, json } => {
                let arguments =
                    if json.trim().is_empty() { as_object(&input).into_owned() } else { arguments(&json) };
                events.push_back(ModelEvent::ToolCall { id, name, arguments });
            }
        }
    }

    fn count(&mut self, counts: &Counts) {
        let Counts { input, cache_write, cache_read, output } = counts;
        let totals = &mut self.counts;
        totals.input = input.or(totals.input);
        totals.cache_write = cache_write.or(totals.cache_write);
        totals.cache_read = cache_read.or(totals.cache_read);
        totals.output = output.or(totals.output);
    }

    fn usage(&self) -> Usage {
        let Counts { input, cache_write, cache_read, output } = &self.counts;
        let [input, cache_write, cache_read, output] =
            [input, cache_write, cache_read, output].map(|count| count.unwrap_or(0));
        let used = input + cache_read + cache_write + output;
        Usage { used, cache_read, cache_write, output, ..Usage::default() }
    }
}

impl Decode for Decoder {
    fn frame(&mut self, frame: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        match parse(frame)? {
            Frame::MessageStart { message } => self.count(&message.usage),
            Frame::ContentBlockStart { index, content_block } => self.begin(index, content_block, events),
            Frame::ContentBlockDelta { index, delta } => self.apply_delta(index, delta, events),
            Frame::ContentBlockStop { index } => self.finish(index, events),
            Frame::MessageDelta { delta, usage } => {
                self.count(&usage);
                self.stop = match delta.stop_reason.as_deref() {
                    None => self.stop,
                    Some("max_tokens" | "model_context_window_exceeded") => Some(ModelStop::MaxTokens),
                    Some("refusal") => Some(ModelStop::Refusal),
                    // Unknown reasons count as a normal end.
                    Some(_) => Some(ModelStop::Done),
                };
                let explanation = delta.stop_details.and_then(|details| details.explanation);
                events.extend(explanation.map(ModelEvent::Text));
            }
            Frame::MessageStop => {
                events.push_back(ModelEvent::Usage(self.usage()));
                events.push_back(ModelEvent::Stop(self.stop.unwrap_or(ModelStop::Done)));
            }
            Frame::Error { error } => return Err(ProviderError::reported(&error.r#type, &error.message)),
            Frame::Other => {}
        }
        Ok(())
    }
}
