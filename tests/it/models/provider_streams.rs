//! Replies of a model as streams of each provider.

use serde_json::{Value, json};

/// The thought at the start of each reply.
pub(crate) const THOUGHT: &str = "Let me see.";

/// A reply of text.
pub(crate) fn text(provider: &str, text: &str) -> Vec<u8> {
    reply(provider, text, &[])
}

/// A reply of text, if there is any, and of calls with id, name and arguments.
pub(crate) fn reply(provider: &str, text: &str, calls: &[(&str, &str, Value)]) -> Vec<u8> {
    let frames = match provider {
        "anthropic" => anthropic(text, calls),
        "openai" => chat(text, calls),
        "openai-responses" => responses(text, calls),
        "gemini" => gemini(text, calls),
        "ollama" => return ollama(text, calls),
        _ => panic!("{provider}"),
    };
    let event = |frame: &Value| match frame["type"].as_str() {
        Some(name) => format!("event: {name}\ndata: {frame}\n\n"),
        None => format!("data: {frame}\n\n"),
    };
    let mut stream: String = frames.iter().map(event).collect();
    if provider == "openai" {
        stream.push_str("data: [DONE]\n\n");
    }
    stream.into_bytes()
}

fn anthropic(text: &str, calls: &[(&str, &str, Value)]) -> Vec<Value> {
    let usage = json!({ "input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 1 });
    let mut frames = vec![json!({ "type": "message_start", "message": { "usage": usage } })];
    let index = frames.len();
    let thinking = json!({ "type": "thinking", "thinking": "", "signature": "" });
    frames.push(json!({ "type": "content_block_start", "index": index, "content_block": thinking }));
    for delta in [
        json!({ "type": "thinking_delta", "thinking": THOUGHT }),
        json!({ "type": "signature_delta", "signature": "c2ln" }),
    ] {
        frames.push(json!({ "type": "content_block_delta", "index": index, "delta": delta }));
    }
    frames.push(json!({ "type": "content_block_stop", "index": index }));
    let mut block = |begin: Value, delta: Value| {
        let index = frames.len();
        frames.push(json!({ "type": "content_block_start", "index": index, "content_block": begin }));
        frames.push(json!({ "type": "content_block_delta", "index": index, "delta": delta }));
        frames.push(json!({ "type": "content_block_stop", "index": index }));
    };
    if !text.is_empty() {
        block(json!({ "type": "text", "text": "" }), json!({ "type": "text_delta", "text": text }));
    }
    for (id, name, arguments) in calls {
        let json = arguments.to_string();
        block(
            json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
            json!({ "type": "input_json_delta", "partial_json": json }),
        );
    }
    let reason = if calls.is_empty() { "end_turn" } else { "tool_use" };
    frames.push(json!({ "type": "message_delta", "delta": { "stop_reason": reason }, "usage": { "output_tokens": 20 } }));
    frames.push(json!({ "type": "message_stop" }));
    frames
}

fn chat(text: &str, calls: &[(&str, &str, Value)]) -> Vec<Value> {
    let chunk = |delta: Value, end: Option<&str>| json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": end }] });
    let mut frames = vec![chunk(json!({ "role": "assistant", "reasoning_content": THOUGHT }), None)];
    frames.push(chunk(json!({ "content": text }), None));
    for (index, (id, name, arguments)) in calls.iter().enumerate() {
        let function = json!({ "name": name, "arguments": arguments.to_string() });
        let call = json!({ "index": index, "id": id, "type": "function", "function": function });
        frames.push(chunk(json!({ "tool_calls": [call] }), None));
    }
    frames.push(chunk(json!({}), Some(if calls.is_empty() { "stop" } else { "tool_calls" })));
    let usage = json!({ "prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": { "cached_tokens": 90 } });
    frames.push(json!({ "choices": [], "usage": usage }));
    frames
}

fn responses(text: &str, calls: &[(&str, &str, Value)]) -> Vec<Value> {
    let mut frames = vec![json!({ "type": "response.created", "response": { "id": "r" } })];
    frames.push(json!({ "type": "response.reasoning_summary_text.delta", "delta": THOUGHT }));
    let reasoning = json!({ "id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAA" });
    frames.push(json!({ "type": "response.output_item.done", "item": reasoning }));
    if !text.is_empty() {
        frames.push(json!({ "type": "response.output_text.delta", "delta": text }));
    }
    for (id, name, arguments) in calls {
        let item = json!({ "type": "function_call", "status": "completed", "call_id": id, "name": name, "arguments": arguments.to_string() });
        frames.push(json!({ "type": "response.output_item.done", "item": item }));
    }
    let usage =
        json!({ "input_tokens": 100, "output_tokens": 20, "input_tokens_details": { "cached_tokens": 90 } });
    frames
        .push(json!({ "type": "response.completed", "response": { "status": "completed", "usage": usage } }));
    frames
}

fn gemini(text: &str, calls: &[(&str, &str, Value)]) -> Vec<Value> {
    let mut parts = vec![json!({ "text": THOUGHT, "thought": true })];
    if !text.is_empty() {
        parts.push(json!({ "text": text }));
    }
    for (id, name, arguments) in calls {
        let mut part = json!({ "functionCall": { "id": id, "name": name, "args": arguments } });
        if *id == calls[0].0 {
            part["thoughtSignature"] = "c2ln".into();
        }
        parts.push(part);
    }
    let usage = json!({ "promptTokenCount": 100, "cachedContentTokenCount": 90, "candidatesTokenCount": 20 });
    vec![
        json!({ "candidates": [{ "content": { "parts": parts }, "finishReason": "STOP" }], "usageMetadata": usage }),
    ]
}

fn ollama(text: &str, calls: &[(&str, &str, Value)]) -> Vec<u8> {
    let calls: Vec<_> = calls
        .iter()
        .map(
            |(id, name, arguments)| json!({ "id": id, "function": { "name": name, "arguments": arguments } }),
        )
        .collect();
    let said =
        json!({ "message": { "thinking": THOUGHT, "content": text, "tool_calls": calls }, "done": false });
    let end = json!({ "message": { "content": "" }, "done": true, "done_reason": "stop", "prompt_eval_count": 100, "eval_count": 20 });
    format!("{said}\n{end}\n").into_bytes()
}
