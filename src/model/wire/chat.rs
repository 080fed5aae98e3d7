//! `OpenAI`'s Chat Completions, for `OpenAI` and compatible servers.
//!
//! Parts that only some servers know go to `OpenAI`'s own address only. Text stays one string, because some
//! servers accept nothing else.

use std::borrow::Cow;
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::encoded_history::{Format, with_messages};
use super::text_messages::{AssistantMessage, TextMessage, ToolCall, text_messages};
use super::{Ask, Decode, Wire, joined, thought_tags};
use crate::model::provider_error::NEEDS_THOUGHTS;
use crate::model::{Effort, Message, ToolOffer};

mod calls;
mod chunk;
mod decode;

#[derive(Debug)]
pub struct Chat;

impl Wire for Chat {
    fn url(&self, base: &str, _: &str) -> String {
        joined(base, "/chat/completions")
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
            // The shortest name comes last, because the others contain it.
            "reasoning",
        ]
    }

    fn models_url(&self, base: &str) -> Option<String> {
        Some(joined(base, "/models"))
    }

    fn body(&self, ask: &Ask<'_>) -> Vec<u8> {
        let request = ask.request;
        let has_tools = !request.tools.is_empty();
        let choice =
            request.allowed.as_ref().filter(|_| ask.is_official && has_tools && ask.may_send("tool_choice"));
        let body = ChatBody {
            model: ask.name,
            stream: true,
            stream_options: ask.may_send("stream_options").then_some(StreamOptions { include_usage: true }),
            reasoning_effort: effort(ask).filter(|_| ask.may_send("reasoning_effort")).map(Effort::as_str),
            prompt_cache_key: (ask.is_official && ask.may_send("prompt_cache_key"))
                .then_some(&*request.session.0),
            tools: request.tools.iter().map(ChatTool::from).collect(),
            tool_choice: choice.map(|names| allowed_tools(names)),
            messages: [ChatMessage::System { content: &request.system }],
        };
        with_messages(ask, &body, &Format { name: "chat", open_replies: 0, elements })
    }

    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(decode::ChatDecoder::default())
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
struct ChatBody<'a> {
    model: &'a str,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<ChatTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
    messages: [ChatMessage<'a>; 1],
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
pub(super) struct ChatTool<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
}

impl<'a> From<&'a ToolOffer> for ChatTool<'a> {
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
enum ChatMessage<'a> {
    System {
        content: &'a str,
    },
    User {
        content: ChatContent<'a>,
    },
    Assistant {
        content: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_details: Option<&'a Value>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ChatCall<'a>>,
    },
    Tool {
        tool_call_id: Cow<'a, str>,
        content: Cow<'a, str>,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum ChatContent<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Value>),
}

#[derive(Serialize)]
struct ChatCall<'a> {
    id: Cow<'a, str>,
    r#type: &'static str,
    function: ChatFunctionCall<'a>,
}

#[derive(Serialize)]
struct ChatFunctionCall<'a> {
    name: &'a str,
    arguments: String,
}

fn elements<'a>(ask: &Ask<'a>, messages: &'a [Arc<Message>]) -> Vec<ChatMessage<'a>> {
    text_messages(ask, messages).into_iter().map(|message| input_message(message, ask)).collect()
}

fn input_message<'a>(message: TextMessage<'a>, ask: &Ask<'a>) -> ChatMessage<'a> {
    match message {
        TextMessage::User { text, images } if images.is_empty() => {
            ChatMessage::User { content: ChatContent::Text(text) }
        }
        TextMessage::User { text, images } => {
            let text = (!text.is_empty()).then(|| json!({ "type": "text", "text": text }));
            let images = images.into_iter().map(|image| {
                let url = format!("data:{};base64,{}", image.mime_type, image.data);
                json!({ "type": "image_url", "image_url": { "url": url } })
            });
            ChatMessage::User { content: ChatContent::Parts(text.into_iter().chain(images).collect()) }
        }
        TextMessage::Assistant(message) => assistant(message, ask),
        TextMessage::Tool { id, text, .. } => ChatMessage::Tool { tool_call_id: id, content: text },
    }
}

fn assistant<'a>(message: AssistantMessage<'a>, ask: &Ask<'a>) -> ChatMessage<'a> {
    let AssistantMessage { text, mut thoughts, states, calls } = message;
    // Servers that want thoughts back want them with the calls, and some even with calls of other models.
    let is_needed = ask.without.contains(&NEEDS_THOUGHTS);
    let wants = |member: &str| states.iter().any(|state| state.get(member).is_some()) && ask.may_send(member);
    let wants_content = is_needed || wants("reasoning_content");
    let wants_reasoning = !wants_content && wants("reasoning");
    let tagged = thought_tags::with_thoughts(&text, &thoughts, &states);
    if is_needed && thoughts.is_empty() {
        thoughts.push('.');
    }
    let details = states.iter().rev().find_map(|state| state.get("reasoning_details"));
    let call = |ToolCall { id, name, arguments }| {
        let function = ChatFunctionCall { name, arguments: arguments.to_string() };
        ChatCall { id, r#type: "function", function }
    };
    ChatMessage::Assistant {
        content: (!text.is_empty() || !ask.is_official).then_some(tagged.unwrap_or(text)),
        reasoning: (wants_reasoning && !calls.is_empty()).then(|| thoughts.clone()),
        reasoning_content: (wants_content && !calls.is_empty()).then_some(thoughts),
        reasoning_details: details.filter(|_| ask.may_send("reasoning_details")),
        tool_calls: calls.into_iter().map(call).collect(),
    }
}
