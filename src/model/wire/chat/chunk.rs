//! A chunk of a Chat Completions stream. Nearly all chunks have the documented types, which serde reads fast;
//! [`read`] takes the others member by member. Pure.

use serde::Deserialize;
use serde_json::Value;

use crate::model::wire::lenient::{count, items, word};

#[derive(Debug, Default, Deserialize)]
pub(super) struct ChatChunk {
    pub error: Option<Value>,
    pub choices: Option<Vec<ChatChoice>>,
    pub usage: Option<Value>,
    /// Some servers send `"object": "error"` with the message beside it.
    pub object: Option<String>,
    pub message: Option<Value>,
    pub detail: Option<Value>,
    /// Groq's place of the usage.
    pub x_groq: Option<Value>,
}

/// The deltas are boxed, because a choice is moved several times while it is read and handled.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ChatChoice {
    pub delta: Option<Box<ChatDelta>>,
    /// The whole reply, which some servers send in place of pieces.
    pub message: Option<Box<ChatDelta>>,
    pub finish_reason: Option<String>,
    pub error: Option<Value>,
    /// Moonshot's place of the usage.
    pub usage: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ChatDelta {
    pub content: Option<String>,
    /// Content that is a list.
    #[serde(skip)]
    pub parts: Vec<Value>,
    pub refusal: Option<String>,
    pub reasoning_content: Option<String>,
    pub reasoning: Option<String>,
    pub reasoning_details: Option<Value>,
    pub tool_calls: Option<Vec<CallPiece>>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct CallPiece {
    pub index: Option<u64>,
    pub id: Option<String>,
    #[serde(default)]
    pub function: FunctionPiece,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct FunctionPiece {
    pub name: Option<String>,
    pub arguments: Option<Value>,
}

/// A call that has no readable form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnreadableCall;

/// Reads a chunk whose members have other types than documented. A member that has no meaning is left out.
pub(super) fn read(chunk: &Value) -> Result<ChatChunk, UnreadableCall> {
    let member = |name: &str| chunk.get(name).filter(|value| !value.is_null()).cloned();
    let choices: Result<Vec<ChatChoice>, _> =
        items(&chunk["choices"]).iter().filter(|choice| choice.is_object()).map(read_choice).collect();
    Ok(ChatChunk {
        error: member("error"),
        choices: chunk.get("choices").map(|_| choices).transpose()?,
        usage: member("usage"),
        object: word(&chunk["object"]),
        message: member("message"),
        detail: member("detail"),
        x_groq: member("x_groq"),
    })
}

fn read_choice(choice: &Value) -> Result<ChatChoice, UnreadableCall> {
    let delta = |name: &str| choice.get(name).filter(|delta| delta.is_object()).map(read_delta).transpose();
    let finish_reason = match &choice["finish_reason"] {
        Value::Null => None,
        Value::String(reason) => Some(reason.clone()),
        // An unknown reason is an end.
        _ => Some("stop".into()),
    };
    Ok(ChatChoice {
        delta: delta("delta")?,
        message: delta("message")?,
        finish_reason,
        error: choice.get("error").cloned(),
        usage: choice.get("usage").cloned(),
    })
}

fn read_delta(delta: &Value) -> Result<Box<ChatDelta>, UnreadableCall> {
    let text = |name: &str| delta[name].as_str().map(str::to_owned);
    let reasoning = match &delta["reasoning"] {
        Value::Object(members) => {
            ["content", "text"].iter().find_map(|name| members.get(*name)?.as_str().map(str::to_owned))
        }
        other => other.as_str().map(str::to_owned),
    };
    let content = &delta["content"];
    Ok(Box::new(ChatDelta {
        content: text("content"),
        parts: items(content).to_vec(),
        refusal: text("refusal"),
        reasoning_content: text("reasoning_content"),
        reasoning,
        reasoning_details: delta.get("reasoning_details").cloned(),
        tool_calls: Some(read_calls(&delta["tool_calls"])?),
    }))
}

fn read_calls(calls: &Value) -> Result<Vec<CallPiece>, UnreadableCall> {
    if matches!(calls, Value::String(text) if !text.trim().is_empty()) || calls.is_number() {
        return Err(UnreadableCall);
    }
    items(calls).iter().filter(|call| !call.is_null()).map(read_call).collect()
}

fn read_call(call: &Value) -> Result<CallPiece, UnreadableCall> {
    if !call.is_object() {
        return Err(UnreadableCall);
    }
    // Some servers leave out the level of `function`.
    let function = call.get("function").filter(|function| function.is_object()).unwrap_or(call);
    Ok(CallPiece {
        index: count(&call["index"]),
        id: word(&call["id"]),
        function: FunctionPiece {
            name: function["name"].as_str().map(str::to_owned),
            arguments: function.get("arguments").cloned(),
        },
    })
}
