//! Decodes the stream of the Messages API, in which blocks start, grow and stop.

use std::collections::VecDeque;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::model::provider_error::ProviderError;
use crate::model::wire::lenient::{call_arguments, maybe_number, or_default};
use crate::model::wire::{Decode, as_object, error_message, id_or_new, parse};
use crate::model::{ModelEvent, ModelStop, Usage};

/// Text in the parts of a stream that belong to a call.
const CALL_MARKS: [&str; 3] = ["tool_use", "partial_json", "content_block_stop"];

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AnthropicFrame {
    MessageStart {
        message: StartedMessage,
    },
    ContentBlockStart {
        #[serde(default)]
        index: u64,
        content_block: ContentBlock,
    },
    ContentBlockDelta {
        #[serde(default)]
        index: u64,
        delta: Delta,
    },
    ContentBlockStop {
        #[serde(default)]
        index: u64,
    },
    MessageDelta {
        #[serde(default, deserialize_with = "or_default")]
        delta: AnthropicEnding,
        #[serde(default, deserialize_with = "or_default")]
        usage: AnthropicCounts,
    },
    MessageStop,
    Error {
        error: Value,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct StartedMessage {
    #[serde(default, deserialize_with = "or_default")]
    usage: AnthropicCounts,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentBlock {
    Text {
        #[serde(default, deserialize_with = "or_default")]
        text: String,
    },
    Thinking {
        #[serde(default, deserialize_with = "or_default")]
        thinking: String,
        #[serde(default, deserialize_with = "or_default")]
        signature: String,
    },
    RedactedThinking {
        data: String,
    },
    ToolUse {
        id: Option<String>,
        #[serde(default, deserialize_with = "or_default")]
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
    Json {
        #[serde(default, deserialize_with = "or_default")]
        partial_json: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Default, Deserialize)]
struct AnthropicEnding {
    stop_reason: Option<String>,
    stop_details: Option<RefusalDetails>,
}

#[derive(Deserialize)]
struct RefusalDetails {
    explanation: Option<String>,
}

/// Totals so far, not increments.
#[derive(Debug, Default, Deserialize)]
struct AnthropicCounts {
    #[serde(default, deserialize_with = "maybe_number", rename = "input_tokens")]
    input: Option<u64>,
    #[serde(default, deserialize_with = "maybe_number", rename = "cache_creation_input_tokens")]
    cache_write: Option<u64>,
    #[serde(default, deserialize_with = "maybe_number", rename = "cache_read_input_tokens")]
    cache_read: Option<u64>,
    #[serde(default, deserialize_with = "maybe_number", rename = "output_tokens")]
    output: Option<u64>,
}

enum OpenBlock {
    Signature(String),
    Call { id: String, name: String, input: Value, json: String },
}

#[derive(Default)]
pub(super) struct AnthropicDecoder {
    open: Vec<(u64, OpenBlock)>,
    /// Calls from the first one on whose arguments are incomplete: only the stop reason tells if a limit cut
    /// it off.
    unsettled: Vec<ModelEvent>,
    counts: AnthropicCounts,
    stop: Option<ModelStop>,
    is_over: bool,
}

impl AnthropicDecoder {
    fn begin(&mut self, index: u64, block: ContentBlock, events: &mut VecDeque<ModelEvent>) {
        match block {
            ContentBlock::Text { text } => events.push_back(ModelEvent::Text(text)),
            ContentBlock::Thinking { thinking, signature } => {
                events.push_back(ModelEvent::Thought(thinking));
                self.open.push((index, OpenBlock::Signature(signature)));
            }
            ContentBlock::RedactedThinking { data } => {
                events.push_back(ModelEvent::ProviderState(json!({ "redacted": data })));
            }
            ContentBlock::ToolUse { id, name, input } => {
                let id = id_or_new(id, "toolu_");
                events.push_back(ModelEvent::ToolCallStarted { id: id.clone(), name: name.clone() });
                self.open.push((index, OpenBlock::Call { id, name, input, json: String::new() }));
            }
            ContentBlock::Other => {}
        }
    }

    fn apply_delta(&mut self, index: u64, delta: Delta, events: &mut VecDeque<ModelEvent>) {
        let open = self.open.iter_mut().find(|(at, _)| *at == index).map(|(_, open)| open);
        match (delta, open) {
            (Delta::Text { text }, _) => events.push_back(ModelEvent::Text(text)),
            (Delta::Thinking { thinking }, _) => events.push_back(ModelEvent::Thought(thinking)),
            (Delta::Signature { signature: more }, Some(OpenBlock::Signature(signature))) => {
                signature.push_str(&more);
            }
            (Delta::Json { partial_json }, Some(OpenBlock::Call { json, .. })) => {
                json.push_str(&partial_json);
            }
            (Delta::Signature { .. } | Delta::Json { .. } | Delta::Other, _) => {}
        }
    }

    fn finish(&mut self, index: u64, events: &mut VecDeque<ModelEvent>) {
        let Some(at) = self.open.iter().position(|(open, _)| *open == index) else { return };
        match self.open.remove(at).1 {
            OpenBlock::Signature(signature) if signature.is_empty() => {}
            OpenBlock::Signature(signature) => {
                events.push_back(ModelEvent::ProviderState(json!({ "signature": signature })));
            }
            OpenBlock::Call { id, name, input, json } => {
                let (arguments, is_complete) = if json.trim().is_empty() {
                    (as_object(&input).into_owned(), true)
                } else {
                    (call_arguments(&json), serde_json::from_str::<IgnoredAny>(&json).is_ok())
                };
                let call = ModelEvent::ToolCall { id, name, arguments };
                if is_complete && self.unsettled.is_empty() {
                    events.push_back(call);
                } else {
                    self.unsettled.push(call);
                }
            }
        }
    }

    /// Ends the reply. Blocks without an end are complete, unless a limit cut the reply.
    fn close(&mut self, events: &mut VecDeque<ModelEvent>) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let stop = self.stop.unwrap_or(ModelStop::Done);
        while let Some((index, _)) = self.open.first().filter(|_| !stop.is_cut()) {
            self.finish(*index, events);
        }
        events.extend(self.unsettled.drain(..).filter(|call| {
            let is_complete = matches!(call, ModelEvent::ToolCall { arguments, .. } if arguments.is_object());
            !stop.is_cut() || is_complete
        }));
        events.push_back(ModelEvent::Usage(self.usage()));
        events.push_back(ModelEvent::Stop(stop));
    }

    fn count(&mut self, counts: &AnthropicCounts) {
        let AnthropicCounts { input, cache_write, cache_read, output } = counts;
        let totals = &mut self.counts;
        totals.input = input.or(totals.input);
        totals.cache_write = cache_write.or(totals.cache_write);
        totals.cache_read = cache_read.or(totals.cache_read);
        totals.output = output.or(totals.output);
    }

    fn usage(&self) -> Usage {
        let AnthropicCounts { input, cache_write, cache_read, output } = &self.counts;
        let [input, cache_write, cache_read, output] =
            [input, cache_write, cache_read, output].map(|count| count.unwrap_or(0));
        let used = input + cache_read + cache_write + output;
        Usage { used, cache_read, cache_write, output, ..Usage::default() }
    }
}

impl Decode for AnthropicDecoder {
    fn frame(&mut self, frame: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        let Some(frame) = parse(frame, &CALL_MARKS)? else { return Ok(()) };
        match frame {
            AnthropicFrame::MessageStart { message } => self.count(&message.usage),
            AnthropicFrame::ContentBlockStart { index, content_block } => {
                self.begin(index, content_block, events);
            }
            AnthropicFrame::ContentBlockDelta { index, delta } => self.apply_delta(index, delta, events),
            AnthropicFrame::ContentBlockStop { index } => self.finish(index, events),
            AnthropicFrame::MessageDelta { delta, usage } => {
                self.count(&usage);
                self.stop = match delta.stop_reason.as_deref() {
                    None => self.stop,
                    Some("max_tokens") => Some(ModelStop::MaxTokens),
                    Some("model_context_window_exceeded") => Some(ModelStop::ContextFull),
                    Some("refusal") => Some(ModelStop::Refusal),
                    // Unknown reasons count as a normal end.
                    Some(_) => Some(ModelStop::Done),
                };
                let explanation = delta.stop_details.and_then(|details| details.explanation);
                events.extend(explanation.map(ModelEvent::Text));
            }
            AnthropicFrame::MessageStop => self.close(events),
            AnthropicFrame::Error { error } => return Err(error_message(&error)),
            AnthropicFrame::Other => {}
        }
        Ok(())
    }

    fn end(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        if self.stop.is_none() && !self.is_over {
            return Err(ProviderError::cut());
        }
        self.close(events);
        Ok(())
    }
}
