//! Google's Gemini API: `streamGenerateContent` as server-sent events.
//!
//! Thought signatures go back in the part that contained them. A reminder after results is a separate
//! content, because some servers reject text beside results.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::encoded_history::{Format, with_messages};
use super::lenient::{is_blank, number, or_default};
use super::{Ask, Decode, SIGNATURE, Wire, as_object, blocks, id_or_new, parse};
use crate::model::known::Thinking;
use crate::model::provider_error::ProviderError;
use crate::model::{Block, Effort, Message, ModelEvent, ModelStop, Role, ToolOffer, Usage};

/// Replaces the signature of a call by another model.
const NOT_OURS: &str = "skip_thought_signature_validator";

#[derive(Debug)]
pub struct Gemini;

impl Wire for Gemini {
    fn url(&self, base: &str, name: &str) -> String {
        format!("{base}/v1beta/models/{name}:streamGenerateContent?alt=sse")
    }

    fn headers(&self, key: Option<&SecretString>, _: &[&'static str]) -> Vec<(&'static str, SecretString)> {
        key.map(|key| ("x-goog-api-key", key.clone())).into_iter().collect()
    }

    fn optional(&self) -> &'static [&'static str] {
        &[SIGNATURE]
    }

    fn body(&self, ask: &Ask<'_>) -> Vec<u8> {
        let request = ask.request;
        let tools: Vec<GeminiFunction<'_>> = request.tools.iter().map(GeminiFunction::from).collect();
        let body = GeminiBody {
            tools: (!tools.is_empty()).then_some([GeminiTools { function_declarations: tools }]),
            tool_config: request
                .allowed
                .as_ref()
                .filter(|_| !request.tools.is_empty())
                .map(|names| allowed(names)),
            system_instruction: GeminiContent {
                role: None,
                parts: vec![GeminiPart::Text { text: &request.system }],
            },
            generation_config: generation(ask),
            contents: [],
        };
        with_messages(ask, &body, &Format { name: "gemini", open_replies: 0, elements })
    }

    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(GeminiDecoder::default())
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GeminiBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<[GeminiTools<'a>; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_config: Option<Value>,
    system_instruction: GeminiContent<'a>,
    generation_config: Value,
    /// See [`with_messages`].
    contents: [(); 0],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GeminiTools<'a> {
    function_declarations: Vec<GeminiFunction<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GeminiFunction<'a> {
    name: &'a str,
    description: &'a str,
    parameters_json_schema: &'a RawValue,
}

impl<'a> From<&'a ToolOffer> for GeminiFunction<'a> {
    fn from(offer: &'a ToolOffer) -> Self {
        Self {
            name: &offer.name,
            description: &offer.description,
            parameters_json_schema: offer.schema.reduced(),
        }
    }
}

fn allowed(names: &[String]) -> Value {
    if names.is_empty() {
        return json!({ "functionCallingConfig": { "mode": "NONE" } });
    }
    json!({ "functionCallingConfig": { "mode": "VALIDATED", "allowedFunctionNames": names } })
}

fn generation(ask: &Ask<'_>) -> Value {
    let thinking = match (ask.facts.thinking, ask.effort()) {
        (Thinking::Never, _) => return json!({ "maxOutputTokens": ask.facts.output }),
        (_, None) => json!({ "includeThoughts": true }),
        (Thinking::ByEffort, Some(effort)) => {
            json!({ "includeThoughts": true, "thinkingLevel": effort.as_str() })
        }
        (Thinking::ByBudget, Some(effort)) => {
            json!({ "includeThoughts": effort != Effort::None, "thinkingBudget": effort.budget() })
        }
    };
    json!({ "maxOutputTokens": ask.facts.output, "thinkingConfig": thinking })
}

#[derive(Serialize)]
struct GeminiContent<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    parts: Vec<GeminiPart<'a>>,
}

#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum GeminiPart<'a> {
    Text {
        text: &'a str,
    },
    Image {
        inline_data: Data<'a>,
    },
    Call {
        function_call: GeminiCall<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        thought_signature: Option<&'a str>,
    },
    Result {
        function_response: GeminiFunctionResponse<'a>,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Data<'a> {
    mime_type: &'a str,
    data: &'a str,
}

#[derive(Serialize)]
struct GeminiCall<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    name: &'a str,
    args: Cow<'a, Value>,
}

#[derive(Serialize)]
struct GeminiFunctionResponse<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    name: &'a str,
    response: Value,
}

/// Prefix of our ids for calls without an id. The model does not know them.
const OWN_ID: &str = "own_";

fn id(id: &str) -> Option<&str> {
    Some(id).filter(|id| !id.starts_with(OWN_ID))
}

fn elements<'a>(ask: &Ask<'a>, messages: &'a [Arc<Message>]) -> Vec<GeminiContent<'a>> {
    messages.iter().flat_map(|message| contents(message, ask)).collect()
}

fn contents<'a>(message: &'a Message, ask: &Ask<'a>) -> Vec<GeminiContent<'a>> {
    let role = Some(match message.role {
        Role::User => "user",
        Role::Assistant => "model",
    });
    let (mut results, mut parts) = (Vec::new(), Vec::new());
    let mut signature = None;
    let mut is_first_call = true;
    for block in blocks(message) {
        match block {
            Block::Text(text) | Block::Note(text) | Block::Reminder(text) => {
                parts.push(GeminiPart::Text { text });
            }
            Block::Image(image) => parts.push(match ask.image_omission(image) {
                Some(text) => GeminiPart::Text { text },
                None => {
                    GeminiPart::Image { inline_data: Data { mime_type: &image.mime_type, data: &image.data } }
                }
            }),
            Block::ProviderState(state) if ask.is_own(&state.origin) => {
                signature = state.data["thoughtSignature"].as_str();
            }
            Block::ProviderState(_) | Block::Thought(_) => {}
            Block::ToolCall { id: call, name, arguments } => {
                let placeholder =
                    (is_first_call && ask.facts.thinking == Thinking::ByEffort).then_some(NOT_OURS);
                is_first_call = false;
                parts.push(GeminiPart::Call {
                    function_call: GeminiCall { id: id(call), name, args: as_object(arguments) },
                    thought_signature: signature.take().or(placeholder),
                });
            }
            Block::ToolResult { id: call, name, text, is_error } => {
                let response = if *is_error { json!({ "error": text }) } else { json!({ "output": text }) };
                results.push(GeminiPart::Result {
                    function_response: GeminiFunctionResponse { id: id(call), name, response },
                });
            }
        }
    }
    [results, parts]
        .into_iter()
        .filter(|parts| !parts.is_empty())
        .map(|parts| GeminiContent { role, parts })
        .collect()
}

/// Text in a part that has calls.
const CALL_MARKS: [&str; 1] = ["functionCall"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Chunk {
    error: Option<Value>,
    #[serde(default, deserialize_with = "or_default")]
    candidates: Vec<Candidate>,
    prompt_feedback: Option<Value>,
    usage_metadata: Option<GeminiCounts>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate {
    content: Option<WireMessage>,
    finish_reason: Option<String>,
    finish_message: Option<String>,
}

#[derive(Deserialize)]
struct WireMessage {
    #[serde(default, deserialize_with = "or_default")]
    parts: Vec<GeminiPiece>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiPiece {
    text: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    thought: bool,
    thought_signature: Option<String>,
    function_call: Option<GeminiFunctionCall>,
}

#[derive(Deserialize)]
struct GeminiFunctionCall {
    id: Option<String>,
    name: String,
    args: Option<Value>,
}

#[derive(Clone, Copy, Deserialize)]
struct GeminiCounts {
    #[serde(default, deserialize_with = "number", rename = "promptTokenCount")]
    prompt: u64,
    #[serde(default, deserialize_with = "number", rename = "cachedContentTokenCount")]
    cached: u64,
    #[serde(default, deserialize_with = "number", rename = "candidatesTokenCount")]
    candidates: u64,
    #[serde(default, deserialize_with = "number", rename = "thoughtsTokenCount")]
    thoughts: u64,
}

#[derive(Default)]
struct GeminiDecoder {
    counts: Option<GeminiCounts>,
    stop: Option<ModelStop>,
}

impl Decode for GeminiDecoder {
    fn frame(&mut self, frame: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        let Some(chunk) = parse::<Chunk>(frame, &CALL_MARKS)? else { return Ok(()) };
        if let Some(error) = chunk.error.filter(|error| !is_blank(error)) {
            let status = format!("{} {}", error["status"].as_str().unwrap_or_default(), error["code"]);
            return Err(ProviderError::reported(&status, error["message"].as_str().unwrap_or_default()));
        }
        if chunk.prompt_feedback.is_some_and(|feedback| feedback["blockReason"].is_string()) {
            self.stop = Some(ModelStop::Refusal);
        }
        for candidate in chunk.candidates {
            for piece in candidate.content.into_iter().flat_map(|message| message.parts) {
                say(piece, events);
            }
            if let Some(reason) = candidate.finish_reason {
                self.stop = Some(stop(&reason, &candidate.finish_message.unwrap_or_default())?);
            }
        }
        self.counts = chunk.usage_metadata.or(self.counts);
        Ok(())
    }

    fn end(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        let stop = self.stop.ok_or_else(ProviderError::cut)?;
        events.extend(self.counts.map(|counts| {
            let output = counts.candidates + counts.thoughts;
            let used = counts.prompt + output;
            ModelEvent::Usage(Usage { used, cache_read: counts.cached, output, ..Usage::default() })
        }));
        events.push_back(ModelEvent::Stop(stop));
        Ok(())
    }
}

fn stop(reason: &str, message: &str) -> Result<ModelStop, ProviderError> {
    match reason {
        "STOP" | "FINISH_REASON_UNSPECIFIED" => Ok(ModelStop::Done),
        "MAX_TOKENS" | "CONTINUATION" => Ok(ModelStop::MaxTokens),
        "MALFORMED_FUNCTION_CALL"
        | "UNEXPECTED_TOOL_CALL"
        | "TOO_MANY_TOOL_CALLS"
        | "MISSING_THOUGHT_SIGNATURE"
        | "MALFORMED_RESPONSE"
        | "OTHER" => {
            Err(ProviderError::transient(format!("the model's reply is invalid ({reason}): {message}")))
        }
        // All other reasons are content filters.
        _ => Ok(ModelStop::Refusal),
    }
}

fn say(piece: GeminiPiece, events: &mut VecDeque<ModelEvent>) {
    if let Some(call) = piece.function_call {
        let state = piece
            .thought_signature
            .map(|signature| ModelEvent::ProviderState(json!({ "thoughtSignature": signature })));
        events.extend(state);
        events.push_back(ModelEvent::ToolCall {
            id: id_or_new(call.id, OWN_ID),
            name: call.name,
            arguments: call.args.filter(|arguments| !arguments.is_null()).unwrap_or_else(|| json!({})),
        });
    } else if let Some(text) = piece.text.filter(|text| !text.is_empty()) {
        events.push_back(if piece.thought { ModelEvent::Thought(text) } else { ModelEvent::Text(text) });
    }
}
