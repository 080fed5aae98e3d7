//! The invariants of all requests. Each call has its result after it, roles alternate as the provider
//! demands, no block is empty, and there is at most one reminder, which is no part of a result.

use serde_json::Value;

/// Checks the body of a request to a provider.
pub(crate) fn check(provider: &str, body: &Value) {
    let seen = match provider {
        "anthropic" => anthropic(body),
        "openai" | "ollama" => chat(body),
        "openai-responses" => responses(body),
        "gemini" => gemini(body),
        _ => panic!("{provider}"),
    };
    assert!(!seen.is_empty(), "{provider}: nothing is asked");
    check_calls(provider, body, &seen);
    let mut open: Vec<&str> = Vec::new();
    for (number, piece) in seen.iter().enumerate() {
        let at = || format!("{provider}: piece {number} of {seen:#?}");
        match piece {
            Piece::Call(id) => open.push(id),
            Piece::Result { id, .. } => {
                let known = open.iter().position(|open| open == id);
                open.remove(known.unwrap_or_else(|| panic!("a result without a call: {}", at())));
            }
            Piece::Text { role, text } => {
                assert!(!text.trim().is_empty(), "an empty text: {}", at());
                assert!(*role != "user" || open.is_empty(), "calls without a result: {}", at());
            }
            Piece::Other => {}
        }
    }
    assert!(open.is_empty(), "{provider}: calls without a result: {open:?}");
    let count = |text: &str| text.matches("<system-reminder>").count();
    let reminders = seen.iter().map(|piece| match piece {
        Piece::Text { role: "user", text } => count(text),
        Piece::Result { text, .. } => {
            assert_eq!(count(text), 0, "{provider}: a reminder in a result: {text}");
            0
        }
        _ => 0,
    });
    assert!(reminders.sum::<usize>() <= 1, "{provider}: {seen:#?}");
}

/// Strict servers reject duplicate ids, and names that no tool can have. Gemini's calls need no id.
fn check_calls(provider: &str, body: &Value, seen: &[Piece]) {
    let calls = seen.iter().filter_map(|piece| match piece {
        Piece::Call(id) => Some(id),
        _ => None,
    });
    let mut ids: Vec<&String> = calls.collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert!(provider == "gemini" || ids.len() == count, "{provider}: ids are unique: {body:#}");
    let messages = body["messages"].as_array().into_iter().flatten();
    let calls = messages.flat_map(|message| message["tool_calls"].as_array().into_iter().flatten());
    for call in calls {
        let name = call["function"]["name"].as_str().unwrap();
        let is_valid = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        assert!(!name.is_empty() && name.len() <= 64 && name.chars().all(is_valid), "{provider}: {call}");
    }
}

#[derive(Debug)]
enum Piece {
    Call(String),
    Result {
        id: String,
        text: String,
    },
    Text {
        role: &'static str,
        text: String,
    },
    /// An image, a thought or a signature.
    Other,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

fn role(value: &Value) -> &'static str {
    match value.as_str() {
        Some("user") => "user",
        Some("assistant" | "model") => "assistant",
        Some("system") => "system",
        Some("tool") => "tool",
        other => panic!("no role: {other:?}"),
    }
}

fn anthropic(body: &Value) -> Vec<Piece> {
    let mut seen = Vec::new();
    let mut last = "assistant";
    let mut markers = 0;
    for message in body["messages"].as_array().unwrap() {
        let role = role(&message["role"]);
        assert_ne!(role, last, "roles alternate: {body:#}");
        last = role;
        let blocks = message["content"].as_array().unwrap();
        assert!(!blocks.is_empty(), "an empty message: {body:#}");
        let last_kind = blocks.last().unwrap()["type"].as_str().unwrap();
        assert!(!last_kind.ends_with("thinking"), "a thought with nothing behind it: {body:#}");
        let mut has_text = false;
        for block in blocks {
            markers += usize::from(block.get("cache_control").is_some());
            seen.push(match block["type"].as_str().unwrap() {
                "text" => {
                    has_text = true;
                    Piece::Text { role, text: text(&block["text"]) }
                }
                "tool_use" => {
                    assert!(block["input"].is_object(), "arguments are an object: {block}");
                    Piece::Call(text(&block["id"]))
                }
                "tool_result" => {
                    assert!(!has_text, "results come first: {message}");
                    Piece::Result { id: text(&block["tool_use_id"]), text: block["content"].to_string() }
                }
                "thinking" => {
                    assert!(!text(&block["signature"]).is_empty());
                    Piece::Other
                }
                _ => Piece::Other,
            });
        }
    }
    assert_eq!(last, "user", "the user has the last word: {body:#}");
    assert!(markers <= 2, "{markers} markers in messages");
    assert!(
        body.to_string().matches("cache_control").count() <= 4,
        "the server allows four markers: {body:#}"
    );
    seen
}

fn chat(body: &Value) -> Vec<Piece> {
    let mut seen = Vec::new();
    let mut last = "";
    for message in body["messages"].as_array().unwrap() {
        let role = role(&message["role"]);
        let fits = match role {
            "system" => last.is_empty(),
            "user" => matches!(last, "system" | "assistant"),
            "assistant" => matches!(last, "user" | "tool"),
            _ => matches!(last, "assistant" | "tool"),
        };
        assert!(fits, "{role} after {last}: {body:#}");
        last = role;
        match &message["content"] {
            Value::Null => {}
            Value::Array(parts) => {
                assert!(!parts.is_empty());
                seen.extend(parts.iter().map(|part| match part.get("text") {
                    Some(words) => Piece::Text { role, text: text(words) },
                    None => Piece::Other,
                }));
            }
            content if role == "tool" => {
                assert!(!text(content).is_empty(), "an empty result: {body:#}");
            }
            content if message.get("tool_calls").is_some() && content == "" => {}
            content => seen.push(Piece::Text { role, text: text(content) }),
        }
        if role == "tool" {
            seen.push(Piece::Result { id: text(&message["tool_call_id"]), text: text(&message["content"]) });
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            match &call["function"]["arguments"] {
                Value::String(json) => assert!(serde_json::from_str::<Value>(json).unwrap().is_object()),
                other => assert!(other.is_object(), "arguments are an object: {call}"),
            }
            seen.push(Piece::Call(text(&call["id"])));
        }
    }
    assert!(matches!(last, "user" | "tool"), "the user has the last word: {body:#}");
    seen
}

fn responses(body: &Value) -> Vec<Piece> {
    let items = body["input"].as_array().unwrap();
    assert_ne!(items.last().unwrap()["role"], "assistant");
    assert_ne!(items.last().unwrap()["type"], "reasoning", "reasoning without what followed it");
    let piece = |item: &Value| match item["type"].as_str().unwrap() {
        "message" => item["content"]
            .as_array()
            .unwrap()
            .iter()
            .map(|part| match part.get("text") {
                Some(words) => Piece::Text { role: role(&item["role"]), text: text(words) },
                None => Piece::Other,
            })
            .collect(),
        "function_call" => {
            assert!(serde_json::from_str::<Value>(&text(&item["arguments"])).unwrap().is_object());
            vec![Piece::Call(text(&item["call_id"]))]
        }
        "function_call_output" => {
            assert!(!text(&item["output"]).is_empty());
            vec![Piece::Result { id: text(&item["call_id"]), text: text(&item["output"]) }]
        }
        _ => vec![Piece::Other],
    };
    items.iter().flat_map(piece).collect()
}

fn gemini(body: &Value) -> Vec<Piece> {
    let mut seen = Vec::new();
    let contents = body["contents"].as_array().unwrap();
    for content in contents {
        let role = role(&content["role"]);
        let parts = content["parts"].as_array().unwrap();
        assert!(!parts.is_empty(), "an empty content: {body:#}");
        let results = parts.iter().filter(|part| part.get("functionResponse").is_some()).count();
        assert!(results == 0 || results == parts.len(), "text beside results: {content:#}");
        for part in parts {
            let id = |call: &Value| text(call.get("id").unwrap_or(&call["name"]));
            seen.push(if let Some(call) = part.get("functionCall") {
                assert!(call["args"].is_object());
                Piece::Call(id(call))
            } else if let Some(result) = part.get("functionResponse") {
                Piece::Result { id: id(result), text: result["response"].to_string() }
            } else if let Some(words) = part.get("text") {
                Piece::Text { role, text: text(words) }
            } else {
                Piece::Other
            });
        }
    }
    assert_eq!(contents.last().unwrap()["role"], "user", "the user has the last word");
    seen
}
