//! `OpenAI`'s Responses API without state at the server: every request contains the whole conversation.
//!
//! Encrypted reasoning goes back unchanged, before the output that followed it. The reminder is a separate
//! message at the end.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::chat::bearer;
use super::encoded_history::{Format, with_messages};
use super::lenient::{call_arguments, maybe_number, number, or_default};
use super::{
    Ask, Decode, Wire, as_object, blocks, call_id, error_message, id_or_new, joined, parse, result_text,
};
use crate::model::known::Thinking;
use crate::model::provider_error::ProviderError;
use crate::model::{Block, Effort, Message, ModelEvent, ModelStop, Role, ToolOffer, Usage};

#[derive(Debug)]
pub struct Responses;

impl Wire for Responses {
    fn url(&self, base: &str, _: &str) -> String {
        joined(base, "/responses")
    }

    fn headers(&self, key: Option<&SecretString>, _: &[&'static str]) -> Vec<(&'static str, SecretString)> {
        bearer(key)
    }

    fn optional(&self) -> &'static [&'static str] {
        &["prompt_cache_key", "tool_choice", "include", "encrypted_content"]
    }

    fn body(&self, ask: &Ask<'_>) -> Vec<u8> {
        let request = ask.request;
        let has_tools = !request.tools.is_empty();
        let choice = request.allowed.as_ref().filter(|_| has_tools && ask.may_send("tool_choice"));
        let reasons = ask.facts.thinking == Thinking::ByEffort;
        let body = ResponsesBody {
            model: ask.name,
            stream: true,
            store: false,
            include: (reasons && ask.may_send("include")).then_some(["reasoning.encrypted_content"]),
            reasoning: reasons
                .then(|| Reasoning { effort: ask.effort().map(Effort::as_str), summary: "auto" }),
            prompt_cache_key: ask.may_send("prompt_cache_key").then_some(&*request.session.0),
            tools: request.tools.iter().map(ResponsesTool::from).collect(),
            tool_choice: choice.map(|names| allowed_tools(names)),
            instructions: &request.system,
            input: [],
        };
        with_messages(ask, &body, &Format { name: "responses", open_replies: 0, elements })
    }

    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(ResponsesDecoder::default())
    }
}

#[derive(Serialize)]
struct ResponsesBody<'a> {
    model: &'a str,
    stream: bool,
    store: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    include: Option<[&'static str; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Reasoning>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<ResponsesTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
    instructions: &'a str,
    /// See [`with_messages`].
    input: [(); 0],
}

#[derive(Serialize)]
struct Reasoning {
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<&'static str>,
    summary: &'static str,
}

#[derive(Serialize)]
struct ResponsesTool<'a> {
    r#type: &'static str,
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
    strict: bool,
}

impl<'a> From<&'a ToolOffer> for ResponsesTool<'a> {
    fn from(offer: &'a ToolOffer) -> Self {
        let ToolOffer { name, description, schema } = offer;
        Self { r#type: "function", name, description, parameters: schema.as_json(), strict: false }
    }
}

fn allowed_tools(names: &[String]) -> Value {
    if names.is_empty() {
        return json!("none");
    }
    let tools: Vec<Value> = names.iter().map(|name| json!({ "type": "function", "name": name })).collect();
    json!({ "type": "allowed_tools", "mode": "auto", "tools": tools })
}

#[derive(Serialize)]
#[serde(untagged)]
enum ResponsesItem<'a> {
    Message(ResponsesMessage<'a>),
    Reasoning(&'a Value),
    Call { r#type: &'static str, call_id: Cow<'a, str>, name: &'a str, arguments: String },
    Output { r#type: &'static str, call_id: Cow<'a, str>, output: Cow<'a, str> },
}

#[derive(Serialize)]
struct ResponsesMessage<'a> {
    r#type: &'static str,
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'a str>,
    content: Vec<ResponsesContent<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponsesContent<'a> {
    InputText { text: &'a str },
    OutputText { text: &'a str },
    InputImage { image_url: String, detail: &'static str },
}

fn elements<'a>(ask: &Ask<'a>, messages: &'a [Arc<Message>]) -> Vec<ResponsesItem<'a>> {
    messages.iter().flat_map(|message| items(message, ask)).collect()
}

fn items<'a>(message: &'a Message, ask: &Ask<'a>) -> Vec<ResponsesItem<'a>> {
    let role = match message.role {
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    let say = |content| {
        ResponsesItem::Message(ResponsesMessage {
            r#type: "message",
            role,
            phase: None,
            content: vec![content],
        })
    };
    let mut items: Vec<ResponsesItem<'a>> = Vec::with_capacity(message.blocks.len());
    for block in blocks(message) {
        let item = match block {
            Block::Text(text) if message.role == Role::Assistant => {
                say(ResponsesContent::OutputText { text })
            }
            Block::Text(text) | Block::Note(text) | Block::Reminder(text) => {
                say(ResponsesContent::InputText { text })
            }
            Block::Image(image) => say(match ask.image_omission(image) {
                Some(text) => ResponsesContent::InputText { text },
                None => ResponsesContent::InputImage {
                    image_url: format!("data:{};base64,{}", image.mime_type, image.data),
                    detail: "auto",
                },
            }),
            Block::Thought(_) => continue,
            Block::ProviderState(state)
                if !ask.is_own(&state.origin) || !ask.may_send("encrypted_content") =>
            {
                continue;
            }
            Block::ProviderState(state) => {
                match (&state.data["reasoning"], &state.data["phase"], items.last_mut()) {
                    (item @ Value::Object(_), _, _) => ResponsesItem::Reasoning(item),
                    (_, Value::String(phase), Some(ResponsesItem::Message(input))) => {
                        input.phase = Some(phase);
                        continue;
                    }
                    _ => continue,
                }
            }
            Block::ToolCall { id, name, arguments } => {
                let arguments = as_object(arguments).to_string();
                ResponsesItem::Call { r#type: "function_call", call_id: call_id(id), name, arguments }
            }
            Block::ToolResult { id, text, is_error, .. } => ResponsesItem::Output {
                r#type: "function_call_output",
                call_id: call_id(id),
                output: result_text(text, *is_error),
            },
        };
        items.push(item);
    }
    // The server rejects reasoning without output after it, which interrupted replies leave.
    while matches!(items.last(), Some(ResponsesItem::Reasoning(_))) {
        items.pop();
    }
    items
}

/// Text in the parts of a stream that have a whole call.
const CALL_MARKS: [&str; 1] = ["function_call"];

#[derive(Deserialize)]
#[serde(tag = "type")]
enum ResponsesFrame {
    #[serde(rename = "response.output_text.delta")]
    Text { delta: String },
    #[serde(rename = "response.refusal.delta")]
    Refusal { delta: String },
    #[serde(rename = "response.reasoning_summary_text.delta", alias = "response.reasoning_text.delta")]
    Thought { delta: String },
    #[serde(rename = "response.reasoning_summary_part.added")]
    Paragraph {
        #[serde(default, deserialize_with = "number")]
        summary_index: u64,
    },
    #[serde(rename = "response.output_item.added")]
    Added { item: Value },
    #[serde(rename = "response.output_item.done")]
    Done { item: Value },
    #[serde(rename = "response.completed", alias = "response.incomplete", alias = "response.failed")]
    Over { response: ResponsesEnd },
    #[serde(rename = "error")]
    Error { error: Option<Value>, code: Option<String>, message: Option<String> },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct ResponsesEnd {
    #[serde(default, deserialize_with = "or_default")]
    status: String,
    error: Option<Value>,
    incomplete_details: Option<Value>,
    usage: Option<ResponsesCounts>,
}

#[derive(Deserialize)]
struct ResponsesCounts {
    #[serde(default, deserialize_with = "number")]
    input_tokens: u64,
    #[serde(default, deserialize_with = "number")]
    output_tokens: u64,
    input_tokens_details: Option<CountDetails>,
}

#[derive(Deserialize)]
struct CountDetails {
    #[serde(default, deserialize_with = "maybe_number")]
    cached_tokens: Option<u64>,
    #[serde(default, deserialize_with = "maybe_number")]
    cache_write_tokens: Option<u64>,
}

#[derive(Default)]
struct ResponsesDecoder {
    refused: bool,
}

impl Decode for ResponsesDecoder {
    fn frame(&mut self, frame: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        if frame.trim() == "[DONE]" {
            return Ok(());
        }
        let Some(frame) = parse(frame, &CALL_MARKS)? else { return Ok(()) };
        match frame {
            ResponsesFrame::Text { delta } => events.push_back(ModelEvent::Text(delta)),
            ResponsesFrame::Refusal { delta } => {
                self.refused = true;
                events.push_back(ModelEvent::Text(delta));
            }
            ResponsesFrame::Thought { delta } => events.push_back(ModelEvent::Thought(delta)),
            ResponsesFrame::Paragraph { summary_index } if summary_index > 0 => {
                events.push_back(ModelEvent::Thought("\n\n".into()));
            }
            ResponsesFrame::Added { item } => events.extend(call_started(&item)),
            ResponsesFrame::Done { item } => events.extend(done(item)),
            ResponsesFrame::Over { response } => return over(response, self.refused, events),
            ResponsesFrame::Error { error: Some(error), .. } => return Err(error_message(&error)),
            ResponsesFrame::Error { error: None, code, message } => {
                return Err(ProviderError::reported(&code.unwrap_or_default(), &message.unwrap_or_default()));
            }
            ResponsesFrame::Paragraph { .. } | ResponsesFrame::Other => {}
        }
        Ok(())
    }
}

fn over(
    response: ResponsesEnd,
    refused: bool,
    events: &mut VecDeque<ModelEvent>,
) -> Result<(), ProviderError> {
    if let Some(error) = response.error.filter(|error| !error.is_null()) {
        return Err(error_message(&error));
    }
    if let Some(ResponsesCounts { input_tokens, output_tokens, input_tokens_details }) = response.usage {
        let details = input_tokens_details.as_ref();
        events.push_back(ModelEvent::Usage(Usage {
            used: input_tokens + output_tokens,
            cache_read: details.and_then(|details| details.cached_tokens).unwrap_or(0),
            cache_write: details.and_then(|details| details.cache_write_tokens).unwrap_or(0),
            output: output_tokens,
            ..Usage::default()
        }));
    }
    let reason = response.incomplete_details.as_ref().and_then(|details| details["reason"].as_str());
    events.push_back(ModelEvent::Stop(match (response.status.as_str(), reason) {
        (_, Some("content_filter")) => ModelStop::Refusal,
        ("incomplete", _) => ModelStop::MaxTokens,
        _ if refused => ModelStop::Refusal,
        _ => ModelStop::Done,
    }));
    Ok(())
}

fn call_started(item: &Value) -> Option<ModelEvent> {
    (item["type"] == "function_call").then_some(())?;
    let [id, name] = ["call_id", "name"].map(|key| item[key].as_str().map(str::to_owned));
    Some(ModelEvent::ToolCallStarted { id: id?, name: name? })
}

fn done(mut item: Value) -> Option<ModelEvent> {
    match item["type"].as_str()? {
        "reasoning" => {
            let members = item.as_object_mut()?;
            members.shift_remove("status");
            let is_sealed = members.get("encrypted_content").is_some_and(Value::is_string);
            is_sealed.then(|| ModelEvent::ProviderState(json!({ "reasoning": item })))
        }
        "message" => item["phase"].as_str().map(|phase| ModelEvent::ProviderState(json!({ "phase": phase }))),
        // The token limit cut off this call.
        "function_call" if item["status"] == "incomplete" => None,
        "function_call" => Some(ModelEvent::ToolCall {
            id: id_or_new(item["call_id"].as_str().map(str::to_owned), "call_"),
            name: item["name"].as_str().unwrap_or_default().to_owned(),
            arguments: match &item["arguments"] {
                Value::String(text) => call_arguments(text),
                Value::Null => json!({}),
                arguments => arguments.clone(),
            },
        }),
        _ => None,
    }
}
