//! Ollama's own chat API, one JSON value per line. The OpenAI-compatible API of Ollama cannot set the context
//! size, and the server's default is too small for an agent.

use std::borrow::Cow;
use std::collections::VecDeque;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::chat::{Tool, bearer};
use super::framing::Framing;
use super::{Ask, Decode, Wire, as_object, blocks, call_id, parse, result_text, to_bytes};
use crate::model::provider_error::ProviderError;
use crate::model::{Block, Effort, Message, ModelEvent, ModelStop, Role, Usage};

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
        let mut messages = vec![InputMessage {
            role: "system",
            content: Cow::Borrowed(&*request.system),
            ..InputMessage::default()
        }];
        for message in &request.messages {
            match message.role {
                Role::Assistant => messages.extend(assistant(message)),
                Role::User => user(message, ask, &mut messages),
            }
        }
        to_bytes(&Body {
            model: ask.name,
            stream: true,
            // An error is better than a conversation that silently lost its start.
            truncate: false,
            think,
            options: Options { num_ctx: ask.facts.context },
            tools: request.tools.iter().map(Tool::from).collect(),
            messages,
        })
    }

    fn framing(&self) -> Framing {
        Framing::Lines
    }

    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(Decoder)
    }
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    stream: bool,
    truncate: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    think: Option<Value>,
    options: Options,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    messages: Vec<InputMessage<'a>>,
}

#[derive(Serialize)]
struct Options {
    num_ctx: u64,
}

#[derive(Default, Serialize)]
struct InputMessage<'a> {
    role: &'static str,
    content: Cow<'a, str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<Cow<'a, str>>,
}

#[derive(Serialize)]
struct Call<'a> {
    id: Cow<'a, str>,
    function: Called<'a>,
}

#[derive(Serialize)]
struct Called<'a> {
    name: &'a str,
    arguments: Cow<'a, Value>,
}

fn assistant(message: &Message) -> Option<InputMessage<'_>> {
    let mut input = InputMessage { role: "assistant", ..InputMessage::default() };
    for block in blocks(message) {
        match block {
            Block::Text(text) => input.content.to_mut().push_str(text),
            Block::Thought(text) => input.thinking.push_str(text),
            Block::ToolCall { id, name, arguments } => {
                input.tool_calls.push(Call {
                    id: call_id(id),
                    function: Called { name, arguments: as_object(arguments) },
                });
            }
            Block::ProviderState(_)
            | Block::Image(_)
            | Block::ToolResult { .. }
            | Block::Note(_)
            | Block::Reminder(_) => {}
        }
    }
    let has_content = !input.content.trim().is_empty() || !input.tool_calls.is_empty();
    has_content.then_some(input)
}

fn user<'a>(message: &'a Message, ask: &Ask<'a>, messages: &mut Vec<InputMessage<'a>>) {
    let mut input = InputMessage { role: "user", ..InputMessage::default() };
    let mut between = super::CUT_OFF;
    let append = |text: &mut Cow<'a, str>, more: &str| {
        let text = text.to_mut();
        text.push_str(if text.is_empty() { "" } else { "\n\n" });
        text.push_str(more);
    };
    for block in blocks(message) {
        match block {
            Block::Text(text) => {
                between = super::CUT_OFF;
                append(&mut input.content, text);
            }
            Block::Image(image) if ask.facts.images => input.images.push(&image.data),
            Block::Image(_) => match messages.last_mut().filter(|last| last.role == "tool") {
                Some(last) if input.content.is_empty() => append(&mut last.content, super::NO_IMAGE),
                _ => append(&mut input.content, super::NO_IMAGE),
            },
            Block::ToolResult { id, name, text, is_error } => {
                between = super::PICTURES;
                messages.push(InputMessage {
                    role: "tool",
                    content: result_text(text, *is_error),
                    tool_name: Some(name),
                    tool_call_id: Some(call_id(id)),
                    ..InputMessage::default()
                });
            }
            // Some templates reject a user message after a tool message.
            Block::Note(note) | Block::Reminder(note) => {
                match messages.last_mut().filter(|last| last.role == "tool") {
                    Some(last) if input.content.is_empty() && input.images.is_empty() => {
                        append(&mut last.content, note);
                    }
                    _ => append(&mut input.content, note),
                }
            }
            Block::Thought(_) | Block::ProviderState(_) | Block::ToolCall { .. } => {}
        }
    }
    if !input.content.is_empty() || !input.images.is_empty() {
        if messages.last().is_some_and(|last| matches!(last.role, "tool" | "user")) {
            messages.push(InputMessage {
                role: "assistant",
                content: Cow::Borrowed(between),
                ..InputMessage::default()
            });
        }
        messages.push(input);
    }
}

#[derive(Deserialize)]
struct Line {
    error: Option<String>,
    #[serde(default)]
    message: Piece,
    #[serde(default)]
    done: bool,
    done_reason: Option<String>,
    #[serde(default)]
    prompt_eval_count: u64,
    #[serde(default)]
    prompt_eval_cached_count: u64,
    #[serde(default)]
    eval_count: u64,
}

#[derive(Default, Deserialize)]
struct Piece {
    #[serde(default)]
    content: String,
    #[serde(default)]
    thinking: String,
    #[serde(default)]
    tool_calls: Vec<Request>,
}

#[derive(Deserialize)]
struct Request {
    id: Option<String>,
    function: Requested,
}

#[derive(Deserialize)]
struct Requested {
    name: String,
    arguments: Option<Value>,
}

struct Decoder;

impl Decode for Decoder {
    fn frame(&mut self, frame: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        let line: Line = parse(frame)?;
        if let Some(error) = line.error {
            return Err(ProviderError::reported("", &error));
        }
        let Piece { content, thinking, tool_calls } = line.message;
        if !thinking.is_empty() {
            events.push_back(ModelEvent::Thought(thinking));
        }
        if !content.is_empty() {
            events.push_back(ModelEvent::Text(content));
        }
        for Request { id, function } in tool_calls {
            let id = id.filter(|id| !id.is_empty());
            events.push_back(ModelEvent::ToolCall {
                id: id.unwrap_or_else(|| format!("call_{}", uuid::Uuid::now_v7().simple())),
                name: function.name,
                arguments: function.arguments.unwrap_or_else(|| json!({})),
            });
        }
        if line.done {
            events.push_back(ModelEvent::Usage(Usage {
                used: line.prompt_eval_count + line.eval_count,
                size: 0,
                cache_read: line.prompt_eval_cached_count,
                cache_write: 0,
                output: line.eval_count,
            }));
            let is_cut = line.done_reason.as_deref() == Some("length");
            events.push_back(ModelEvent::Stop(if is_cut { ModelStop::MaxTokens } else { ModelStop::Done }));
        }
        Ok(())
    }

    fn end(&mut self, _: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        Err(ProviderError::cut())
    }
}
