//! Texts of span records, cut at a limit. Pure.

use serde_json::{Value, json};

use crate::acp::ContentBlock;

/// Maximum bytes of one text of a record.
pub(super) const MAX_TEXT: usize = 32 * 1024;

/// One message in the form of the conventions. Null without a text.
pub(super) fn messages(role: &str, text: &str) -> Value {
    if text.is_empty() {
        return Value::Null;
    }
    let mut message = json!({ "role": role, "parts": [{ "type": "text", "content": cut(text) }] });
    if role == "assistant" {
        message["finish_reason"] = "stop".into();
    }
    Value::Array(vec![message])
}

pub(super) fn text_of(content: &[ContentBlock]) -> String {
    let texts = content.iter().filter_map(|block| match block {
        ContentBlock::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// Arguments that are too long become the start of their JSON.
pub(crate) fn bounded(value: &Value) -> Value {
    let text = value.to_string();
    if text.len() > MAX_TEXT { cut(&text).into() } else { value.clone() }
}

/// Cuts a text at the limit of a record.
pub(crate) fn cut(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.to_owned();
    }
    format!("{}\n[cut: {} bytes in all]", &text[..text.floor_char_boundary(MAX_TEXT)], text.len())
}
