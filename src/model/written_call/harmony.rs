//! Reads calls in the format of gpt-oss. Pure.

use serde_json::{Deserializer, Value};

use super::WrittenCall;

/// A call in the format of gpt-oss; servers leave out some of its tokens.
pub(super) fn harmony_call(text: &str) -> Option<(WrittenCall, &str)> {
    let (_, rest) = text.split_once("to=")?;
    let rest = rest.strip_prefix("functions.")?;
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-')))?;
    let (name, mut rest) = rest.split_at(end);
    let tokens = ["<|channel|>commentary", "<|constrain|>", "<|message|>", "json", "code"];
    while let Some(after) = tokens.iter().find_map(|token| rest.trim_start().strip_prefix(token)) {
        rest = after;
    }
    let mut values = Deserializer::from_str(rest).into_iter::<Value>();
    let arguments = values.next()?.ok().filter(Value::is_object)?;
    let rest = rest[values.byte_offset()..].trim_start();
    let rest = rest.strip_prefix("<|call|>").unwrap_or(rest);
    Some((WrittenCall { name: name.to_owned(), arguments }, rest))
}
