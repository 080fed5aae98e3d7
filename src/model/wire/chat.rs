//! `OpenAI`'s Chat Completions, for `OpenAI` and compatible servers.
//!
//! Parts that only some servers know go to `OpenAI`'s own address only. Text stays one string, because some
//! servers accept nothing else. The reminder ends the last user or tool message, because some templates
//! reject a user message after a tool message.

use std::borrow::Cow;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{
    Ask, CUT_OFF, Decode, NO_IMAGE, PICTURES, Wire, as_object, blocks, call_id, parse, result_text, to_bytes,
};
use crate::model::provider_error::{NEEDS_THOUGHTS, ProviderError};
use crate::model::{Block, Effort, Message, ModelEvent, ModelStop, Role, ToolOffer, Usage};

mod decode;

#[derive(Debug)]
pub struct Chat;

impl Wire for Chat {
    fn url(&self, base: &str, _: &str) -> String {
        format!("{base}/chat/completions")
    }

    fn headers(&self, key: Option<&SecretString>, _: &[&'static str]) -> Vec<(&'static str, SecretString)> {
        bearer(key)
    }

    fn optional(&self) -> &'static [&'static str] {
        &[
            "stream_options",
            "reasoning_effort",
            "prompt_cache_key",
            "tool_choice",
            "reasoning_content",
            "reasoning_details",
        ]
    }

    fn body(&self, ask: &Ask<'_>) -> Vec<u8> {
        let request = ask.request;
        let has_tools = !request.tools.is_empty();
        let choice =
            request.allowed.as_ref().filter(|_| ask.is_official && has_tools && ask.may_send("tool_choice"));
        to_bytes(&Body {
            model: ask.name,
            stream: true,
            stream_options: ask.may_send("stream_options").then_some(StreamOptions { include_usage: true }),
            reasoning_effort: effort(ask).filter(|_| ask.may_send("reasoning_effort")).map(Effort::as_str),
            prompt_cache_key: (ask.is_official && ask.may_send("prompt_cache_key"))
                .then_some(&*request.session.0),
            tools: request.tools.iter().map(Tool::from).collect(),
            tool_choice: choice.map(|names| allowed_tools(names)),
            messages: messages(ask),
        })
    }

    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(decode::Decoder::default())
    }
}

/// `OpenAI`'s own models accept tools in this format only with reasoning turned off.
fn effort(ask: &Ask<'_>) -> Option<Effort> {
    let off = ask.is_official && !ask.request.tools.is_empty() && ask.facts.efforts.contains(&Effort::None);
    ask.effort().or(off.then_some(Effort::None))
}

pub(super) fn bearer(key: Option<&SecretString>) -> Vec<(&'static str, SecretString)> {
    key.map(|key| ("authorization", SecretString::from(format!("Bearer {}", key.expose_secret()))))
        .into_iter()
        .collect()
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
    messages: Vec<InputMessage<'a>>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
pub(super) struct Tool<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
}

impl<'a> From<&'a ToolOffer> for Tool<'a> {
    fn from(offer: &'a ToolOffer) -> Self {
        let function = Function {
            name: &offer.name,
            description: &offer.description,
            parameters: offer.schema.as_json(),
        };
        Self { r#type: "function", function }
    }
}

fn allowed_tools(names: &[String]) -> Value {
    if names.is_empty() {
        return json!("none");
    }
    let tools: Vec<Value> =
        names.iter().map(|name| json!({ "type": "function", "function": { "name": name } })).collect();
    json!({ "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": tools } })
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
enum InputMessage<'a> {
    System {
        content: &'a str,
    },
    User {
        content: Content<'a>,
    },
    Assistant {
        content: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_details: Option<&'a Value>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Call<'a>>,
    },
    Tool {
        tool_call_id: Cow<'a, str>,
        content: Cow<'a, str>,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Value>),
}

#[derive(Serialize)]
struct Call<'a> {
    id: Cow<'a, str>,
    r#type: &'static str,
    function: Called<'a>,
}

#[derive(Serialize)]
struct Called<'a> {
    name: &'a str,
    arguments: String,
}

fn messages<'a>(ask: &Ask<'a>) -> Vec<InputMessage<'a>> {
    let mut input = vec![InputMessage::System { content: &ask.request.system }];
    for message in &ask.request.messages {
        match message.role {
            Role::Assistant => input.extend(assistant(message, ask)),
            Role::User => user(message, ask, &mut input),
        }
    }
    input
}

fn assistant<'a>(message: &'a Message, ask: &Ask<'a>) -> Option<InputMessage<'a>> {
    let (mut text, mut calls, mut thoughts, mut details, mut wants_thoughts) =
        (Cow::Borrowed(""), Vec::new(), String::new(), None, false);
    for block in blocks(message) {
        match block {
            Block::Text(more) => append(&mut text, more, ""),
            Block::Thought(more) => thoughts.push_str(more),
            Block::ProviderState(state) if ask.is_own(&state.origin) => {
                wants_thoughts |= state.data.get("reasoning_content").is_some();
                details = state.data.get("reasoning_details").or(details);
            }
            Block::ToolCall { id, name, arguments } => {
                let function = Called { name, arguments: as_object(arguments).to_string() };
                calls.push(Call { id: call_id(id), r#type: "function", function });
            }
            Block::ProviderState(_)
            | Block::Image(_)
            | Block::ToolResult { .. }
            | Block::Note(_)
            | Block::Reminder(_) => {}
        }
    }
    if text.trim().is_empty() && calls.is_empty() {
        return None;
    }
    // Servers that want thoughts back want them with the calls, and some even with calls of other models.
    let is_needed = ask.without.contains(&NEEDS_THOUGHTS);
    let wants_thoughts = is_needed || (wants_thoughts && ask.may_send("reasoning_content"));
    if is_needed && thoughts.is_empty() {
        thoughts.push('.');
    }
    let reasoning_content = (wants_thoughts && !calls.is_empty()).then_some(thoughts);
    Some(InputMessage::Assistant {
        content: (!text.is_empty() || !ask.is_official).then_some(text),
        reasoning_content,
        reasoning_details: details.filter(|_| ask.may_send("reasoning_details")),
        tool_calls: calls,
    })
}

fn user<'a>(message: &'a Message, ask: &Ask<'a>, input: &mut Vec<InputMessage<'a>>) {
    let mut text = Cow::Borrowed("");
    let mut images = Vec::new();
    let mut between = CUT_OFF;
    for block in blocks(message) {
        match block {
            Block::Text(more) => {
                between = CUT_OFF;
                append(&mut text, more, "\n\n");
            }
            Block::Image(image) if ask.facts.images => {
                let url = format!("data:{};base64,{}", image.mime_type, image.data);
                images.push(json!({ "type": "image_url", "image_url": { "url": url } }));
            }
            Block::Image(_) => match input.last_mut() {
                Some(InputMessage::Tool { content, .. }) if text.is_empty() => {
                    append(content, NO_IMAGE, "\n\n");
                }
                _ => append(&mut text, NO_IMAGE, "\n\n"),
            },
            Block::ToolResult { id, text, is_error, .. } => {
                between = PICTURES;
                input.push(InputMessage::Tool {
                    tool_call_id: call_id(id),
                    content: result_text(text, *is_error),
                });
            }
            Block::Note(note) | Block::Reminder(note) => match input.last_mut() {
                Some(InputMessage::Tool { content, .. }) if text.is_empty() && images.is_empty() => {
                    append(content, note, "\n\n");
                }
                _ => append(&mut text, note, "\n\n"),
            },
            Block::Thought(_) | Block::ProviderState(_) | Block::ToolCall { .. } => {}
        }
    }
    let content = if images.is_empty() {
        if text.is_empty() {
            return;
        }
        Content::Text(text)
    } else {
        if !text.is_empty() {
            images.insert(0, json!({ "type": "text", "text": text }));
        }
        Content::Parts(images)
    };
    if matches!(input.last(), Some(InputMessage::Tool { .. } | InputMessage::User { .. })) {
        let content = Some(Cow::Borrowed(between));
        let (reasoning_content, reasoning_details) = (None, None);
        input.push(InputMessage::Assistant {
            content,
            reasoning_content,
            reasoning_details,
            tool_calls: Vec::new(),
        });
    }
    input.push(InputMessage::User { content });
}

fn append<'a>(text: &mut Cow<'a, str>, more: &'a str, between: &str) {
    if text.is_empty() {
        *text = Cow::Borrowed(more);
    } else {
        let text = text.to_mut();
        text.push_str(between);
        text.push_str(more);
    }
}
