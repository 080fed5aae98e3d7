//! Ollama's own chat API, one JSON value per line. The OpenAI-compatible API of Ollama cannot set the context
//! size, and the server's default is too small for an agent.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::chat::{ChatTool, bearer};
use super::encoded_history::{Format, with_messages};
use super::framing::Framing;
use super::lenient::{call_arguments, is_blank, number, or_default, word};
use super::text_messages::{AssistantMessage, TextMessage, ToolCall, text_messages};
use super::thought_tags::{ThoughtTags, with_thoughts};
use super::{Ask, Decode, Wire, error_message, id_or_new, parse};
use crate::model::provider_error::ProviderError;
use crate::model::{Effort, Message, ModelEvent, ModelStop, Usage};

#[derive(Debug)]
pub struct Ollama;

impl Wire for Ollama {
    fn url(&self, base: &str, _: &str) -> String {
        format!("{base}/api/chat")
    }

    fn headers(&self, key: Option<&SecretString>, _: &[&'static str]) -> Vec<(&'static str, SecretString)> {
        bearer(key)
    }

    fn body(&self, ask: &Ask<'_>) -> Vec<u8> {
        let request = ask.request;
        let think = ask.effort().map(|effort| match effort {
            Effort::None => Value::Bool(false),
            effort => Value::from(effort.as_str()),
        });
        let content = Cow::Borrowed(&*request.system);
        let system = OllamaMessage { role: "system", content, ..OllamaMessage::default() };
        let body = OllamaBody {
            model: ask.name,
            stream: true,
            // An error is better than a conversation that silently lost its start.
            truncate: false,
            think,
            options: Options { num_ctx: ask.facts.context },
            tools: request.tools.iter().map(ChatTool::from).collect(),
            messages: [system],
        };
        with_messages(ask, &body, &Format { name: "ollama", open_replies: 0, elements })
    }

    fn framing(&self) -> Framing {
        Framing::Lines
    }

    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(OllamaDecoder::default())
    }
}

#[derive(Serialize)]
struct OllamaBody<'a> {
    model: &'a str,
    stream: bool,
    truncate: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    think: Option<Value>,
    options: Options,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<ChatTool<'a>>,
    messages: [OllamaMessage<'a>; 1],
}

#[derive(Serialize)]
struct Options {
    num_ctx: u64,
}

#[derive(Default, Serialize)]
struct OllamaMessage<'a> {
    role: &'static str,
    content: Cow<'a, str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<OllamaCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<Cow<'a, str>>,
}

#[derive(Serialize)]
struct OllamaCall<'a> {
    id: Cow<'a, str>,
    function: OllamaFunction<'a>,
}

#[derive(Serialize)]
struct OllamaFunction<'a> {
    name: &'a str,
    arguments: Cow<'a, Value>,
}

fn elements<'a>(ask: &Ask<'a>, messages: &'a [Arc<Message>]) -> Vec<OllamaMessage<'a>> {
    text_messages(ask, messages).into_iter().map(input_message).collect()
}

fn input_message(message: TextMessage<'_>) -> OllamaMessage<'_> {
    let call =
        |ToolCall { id, name, arguments }| OllamaCall { id, function: OllamaFunction { name, arguments } };
    match message {
        TextMessage::User { text, images } => OllamaMessage {
            role: "user",
            content: text,
            images: images.into_iter().map(|image| &*image.data).collect(),
            ..OllamaMessage::default()
        },
        TextMessage::Assistant(AssistantMessage { text, thoughts, states, calls }) => OllamaMessage {
            role: "assistant",
            tool_calls: calls.into_iter().map(call).collect(),
            ..match with_thoughts(&text, &thoughts, &states) {
                Some(content) => OllamaMessage { content, ..OllamaMessage::default() },
                None => OllamaMessage { content: text, thinking: thoughts, ..OllamaMessage::default() },
            }
        },
        TextMessage::Tool { id, name, text } => OllamaMessage {
            role: "tool",
            content: text,
            tool_name: Some(name),
            tool_call_id: Some(id),
            ..OllamaMessage::default()
        },
    }
}

/// Text in a line that has calls.
const CALL_MARKS: [&str; 1] = ["tool_calls"];

#[derive(Deserialize)]
struct OllamaLine {
    error: Option<Value>,
    #[serde(default, deserialize_with = "or_default")]
    message: OllamaPiece,
    #[serde(default, deserialize_with = "or_default")]
    done: bool,
    done_reason: Option<String>,
    #[serde(default, deserialize_with = "number")]
    prompt_eval_count: u64,
    #[serde(default, deserialize_with = "number")]
    prompt_eval_cached_count: u64,
    #[serde(default, deserialize_with = "number")]
    eval_count: u64,
}

#[derive(Default, Deserialize)]
struct OllamaPiece {
    #[serde(default, deserialize_with = "or_default")]
    content: String,
    #[serde(default, deserialize_with = "or_default")]
    thinking: String,
    #[serde(default, deserialize_with = "or_default")]
    tool_calls: Vec<OllamaRequestedCall>,
}

#[derive(Deserialize)]
struct OllamaRequestedCall {
    id: Option<Value>,
    function: OllamaRequestedFunction,
}

#[derive(Deserialize)]
struct OllamaRequestedFunction {
    name: String,
    arguments: Option<Value>,
}

#[derive(Default)]
struct OllamaDecoder {
    thought_tags: ThoughtTags,
}

impl Decode for OllamaDecoder {
    fn frame(&mut self, frame: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        let Some(line) = parse::<OllamaLine>(frame, &CALL_MARKS)? else { return Ok(()) };
        if let Some(error) = line.error.filter(|error| !is_blank(error)) {
            return Err(error_message(&error));
        }
        let OllamaPiece { content, thinking, tool_calls } = line.message;
        if !thinking.is_empty() {
            events.push_back(ModelEvent::Thought(thinking));
        }
        if !content.is_empty() {
            self.thought_tags.push(content, events);
        }
        for OllamaRequestedCall { id, function } in tool_calls {
            events.push_back(ModelEvent::ToolCall {
                id: id_or_new(id.as_ref().and_then(word), "call_"),
                name: function.name,
                arguments: match function.arguments {
                    None | Some(Value::Null) => json!({}),
                    Some(Value::String(text)) => call_arguments(&text),
                    Some(arguments) => arguments,
                },
            });
        }
        if line.done {
            let tag_state = self.thought_tags.finish(events);
            events.extend(tag_state.map(ModelEvent::ProviderState));
            events.push_back(ModelEvent::Usage(Usage {
                used: line.prompt_eval_count + line.eval_count,
                cache_read: line.prompt_eval_cached_count,
                output: line.eval_count,
                ..Usage::default()
            }));
            let is_cut = line.done_reason.as_deref() == Some("length");
            events.push_back(ModelEvent::Stop(if is_cut { ModelStop::MaxTokens } else { ModelStop::Done }));
        }
        Ok(())
    }
}
