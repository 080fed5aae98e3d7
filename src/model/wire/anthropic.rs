//! Anthropic's Messages API. Cache markers are on the last tool that a mode change keeps, on the system prompt,
//! which covers the tools before it, and on the last block of the last two user messages that is no reminder:
//! the previous request marked one of these.

use std::borrow::Cow;
use std::sync::Arc;

use secrecy::SecretString;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::encoded_history::{Format, with_messages};
use super::{Ask, Decode, SIGNATURE, Wire, as_object, blocks, call_id};
use crate::model::known::Thinking;
use crate::model::{Block, Effort, Message, ModelRequest, Role};

mod decode;

const VERSION: &str = "2023-06-01";

/// Lets the server drop thoughts that a changed prefix invalidates, instead of rejecting the request. A
/// reminder that is gone or a mode that removes tools changes the prefix.
const BETA: &str = "thinking-binding-controls-2026-08-01";

const BETA_HEADER: &str = "anthropic-beta";

/// Request member that [`BETA`] permits.
const BINDING: &str = "block_binding";

const ADAPTIVE: &str = "adaptive thinking";

/// Maximum tokens of a reply, including thoughts, if the model permits as many.
const MAX_TOKENS: u64 = 64_000;

const MARKED: usize = 2;

#[derive(Debug)]
pub struct Anthropic;

impl Wire for Anthropic {
    fn url(&self, base: &str, _: &str) -> String {
        format!("{base}/v1/messages")
    }

    fn headers(
        &self,
        key: Option<&SecretString>,
        without: &[&'static str],
    ) -> Vec<(&'static str, SecretString)> {
        let mut headers = vec![("anthropic-version", VERSION.into())];
        let has_beta = ![BETA_HEADER, BINDING].iter().any(|part| without.contains(part));
        headers.extend(has_beta.then(|| (BETA_HEADER, BETA.into())));
        headers.extend(key.map(|key| ("x-api-key", key.clone())));
        headers
    }

    fn optional(&self) -> &'static [&'static str] {
        &[BETA_HEADER, BINDING, ADAPTIVE, SIGNATURE]
    }

    fn body(&self, ask: &Ask<'_>) -> Vec<u8> {
        let request = ask.request;
        let max_tokens = ask.facts.output.min(MAX_TOKENS);
        let effort = ask.effort();
        let body = AnthropicBody {
            model: ask.name,
            max_tokens,
            stream: true,
            tools: tools(request),
            system: [AnthropicPart::Text { text: &request.system, cache_control: Some(MARKER) }],
            thinking: thinking(ask, max_tokens),
            output_config: effort
                .filter(|effort| {
                    ask.facts.thinking == Thinking::ByEffort
                        && *effort != Effort::None
                        && ask.may_send(ADAPTIVE)
                })
                .map(|effort| OutputConfig { effort: effort.as_str() }),
            messages: [],
        };
        with_messages(
            ask,
            &body,
            &Format { name: "anthropic", open_replies: MARKED - 1, elements: marked_elements },
        )
    }

    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(decode::AnthropicDecoder::default())
    }
}

#[derive(Serialize)]
struct AnthropicBody<'a> {
    model: &'a str,
    max_tokens: u64,
    stream: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<AnthropicTool<'a>>,
    system: [AnthropicPart<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<OutputConfig>,
    /// See [`with_messages`].
    messages: [(); 0],
}

#[derive(Serialize)]
struct OutputConfig {
    effort: &'static str,
}

#[derive(Serialize)]
struct AnthropicTool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<Marker>,
}

fn tools(request: &ModelRequest) -> Vec<AnthropicTool<'_>> {
    let tools = request.tools.iter().enumerate().map(|(at, offer)| AnthropicTool {
        name: &offer.name,
        description: &offer.description,
        input_schema: offer.schema.as_json(),
        cache_control: (at + 1 == request.lasting_tools).then_some(MARKER),
    });
    tools.collect()
}

#[derive(Serialize)]
struct AnthropicMessage<'a> {
    role: &'static str,
    content: Vec<AnthropicPart<'a>>,
}

#[derive(Clone, Copy, Serialize)]
struct Marker {
    r#type: &'static str,
}

const MARKER: Marker = Marker { r#type: "ephemeral" };

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AnthropicPart<'a> {
    Text {
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Marker>,
    },
    /// Text without a marker, because the next request may lack it.
    #[serde(rename = "text")]
    Reminder {
        text: &'a str,
    },
    Image {
        source: AnthropicSource<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Marker>,
    },
    Thinking {
        thinking: &'a str,
        signature: &'a str,
    },
    RedactedThinking {
        data: &'a str,
    },
    ToolUse {
        id: Cow<'a, str>,
        name: &'a str,
        input: Cow<'a, Value>,
    },
    ToolResult {
        tool_use_id: Cow<'a, str>,
        #[serde(skip_serializing_if = "str::is_empty")]
        content: &'a str,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Marker>,
    },
}

#[derive(Serialize)]
struct AnthropicSource<'a> {
    r#type: &'static str,
    media_type: &'a str,
    data: &'a str,
}

/// Without an effort, the server decides and only returns visible thoughts.
fn thinking(ask: &Ask<'_>, max_tokens: u64) -> Option<Value> {
    match (ask.facts.thinking, ask.effort()) {
        (Thinking::ByEffort, _) if !ask.may_send(ADAPTIVE) => None,
        (Thinking::ByEffort, Some(Effort::None)) => Some(json!({ "type": "disabled" })),
        (Thinking::ByEffort, _) if ask.may_send(BINDING) && ask.may_send(BETA_HEADER) => Some(json!({
            "type": "adaptive",
            "display": "summarized",
            "block_binding": { "prefix_mismatch_behavior": "drop_block" },
        })),
        (Thinking::ByEffort, _) => Some(json!({ "type": "adaptive", "display": "summarized" })),
        (Thinking::ByBudget, Some(effort)) => {
            let tokens = effort.budget();
            (tokens > 0).then(|| json!({ "type": "enabled", "budget_tokens": tokens.min(max_tokens / 2) }))
        }
        (Thinking::ByBudget | Thinking::Never, _) => None,
    }
}

/// With cache markers, if the last message of the request is among the messages.
fn marked_elements<'a>(ask: &Ask<'a>, messages: &'a [Arc<Message>]) -> Vec<AnthropicMessage<'a>> {
    let mut elements = elements(ask, messages);
    let last = messages.last().zip(ask.request.messages.last());
    if last.is_some_and(|(one, other)| std::ptr::eq(one, other)) {
        mark(&mut elements);
    }
    elements
}

fn elements<'a>(ask: &Ask<'a>, messages: &'a [Arc<Message>]) -> Vec<AnthropicMessage<'a>> {
    let mut elements: Vec<AnthropicMessage<'a>> = Vec::with_capacity(messages.len());
    for message in messages {
        let role = match message.role {
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        let mut thought = "";
        let mut parts = Vec::with_capacity(message.blocks.len());
        for block in blocks(message) {
            if let Block::Thought(text) = block {
                thought = text;
                continue;
            }
            parts.extend(part(block, std::mem::take(&mut thought), ask));
        }
        if message.role == Role::Assistant {
            // The API rejects a trailing thought, which interrupted replies leave.
            while matches!(
                parts.last(),
                Some(AnthropicPart::Thinking { .. } | AnthropicPart::RedactedThinking { .. })
            ) {
                parts.pop();
            }
        }
        match elements.last_mut() {
            _ if parts.is_empty() => {}
            Some(last) if last.role == role => last.content.append(&mut parts),
            _ => elements.push(AnthropicMessage { role, content: parts }),
        }
    }
    elements
}

/// A thought goes back only with its signature.
fn part<'a>(block: &'a Block, thought: &'a str, ask: &Ask<'a>) -> Option<AnthropicPart<'a>> {
    Some(match block {
        Block::Text(text) | Block::Note(text) => AnthropicPart::Text { text, cache_control: None },
        Block::Reminder(text) => AnthropicPart::Reminder { text },
        Block::Image(image) => match ask.image_omission(image) {
            Some(text) => AnthropicPart::Text { text, cache_control: None },
            None => AnthropicPart::Image {
                source: AnthropicSource { r#type: "base64", media_type: &image.mime_type, data: &image.data },
                cache_control: None,
            },
        },
        Block::ProviderState(state) if ask.is_own(&state.origin) => {
            match (state.data["signature"].as_str(), state.data["redacted"].as_str()) {
                (Some(signature), _) => AnthropicPart::Thinking { thinking: thought, signature },
                (None, Some(data)) => AnthropicPart::RedactedThinking { data },
                (None, None) => return None,
            }
        }
        Block::ProviderState(_) | Block::Thought(_) => return None,
        Block::ToolCall { id, name, arguments } => {
            AnthropicPart::ToolUse { id: call_id(id), name, input: as_object(arguments) }
        }
        Block::ToolResult { id, text, is_error, .. } => AnthropicPart::ToolResult {
            tool_use_id: call_id(id),
            content: text,
            is_error: *is_error,
            cache_control: None,
        },
    })
}

fn mark(messages: &mut [AnthropicMessage<'_>]) {
    let mut remaining = MARKED;
    for message in messages.iter_mut().rev().filter(|message| message.role == "user") {
        let stable = message.content.iter_mut().rev().find_map(|part| match part {
            AnthropicPart::Text { cache_control, .. }
            | AnthropicPart::Image { cache_control, .. }
            | AnthropicPart::ToolResult { cache_control, .. } => Some(cache_control),
            AnthropicPart::Reminder { .. }
            | AnthropicPart::Thinking { .. }
            | AnthropicPart::RedactedThinking { .. }
            | AnthropicPart::ToolUse { .. } => None,
        });
        if let Some(marker) = stable {
            *marker = Some(MARKER);
            remaining -= 1;
        }
        if remaining == 0 {
            return;
        }
    }
}
