//! Reads members whose JSON type differs between servers. Pure.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::arguments;

/// A whole number, also if it is written as `3.0` or `"3"`.
pub(super) fn count(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| whole(number.as_f64()?)),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
fn whole(number: f64) -> Option<u64> {
    (number.fract() == 0.0 && (0.0..9e15).contains(&number)).then_some(number as u64)
}

/// Text, also of a number, as some servers write ids.
pub(super) fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The items of a list. A single object counts as a list of one.
pub(super) fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        Value::Object(_) => std::slice::from_ref(value),
        _ => &[],
    }
}

/// True for `null`, `false`, and an empty text, list or object: servers write all of these for "none".
pub(super) fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// Reads `null` as the default.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads a number that some servers write in another form. Returns 0 if there is none.
pub(super) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(maybe_number(deserializer)?.unwrap_or(0))
}

pub(super) fn maybe_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(count(&Value::deserialize(deserializer)?))
}

/// Parses the arguments of a call. Some servers repeat them, begin with `{}`, or encode them twice.
pub(super) fn call_arguments(text: &str) -> Value {
    let value = match arguments(text) {
        Value::String(_) if serde_json::from_str::<Value>(text).is_err() => repeated(text),
        value => Some(value),
    };
    match value {
        None => Value::String(text.to_owned()),
        Some(Value::Null) => Value::Object(serde_json::Map::new()),
        Some(Value::String(inner)) => match serde_json::from_str(&inner) {
            Ok(object @ Value::Object(_)) => object,
            _ => Value::String(inner),
        },
        Some(value) => value,
    }
}

/// The only object of a text that has it several times, apart from empty objects before it.
fn repeated(text: &str) -> Option<Value> {
    let values: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(text).into_iter().collect();
    let mut values = values.ok()?;
    let last = values.pop().filter(Value::is_object)?;
    values.iter().all(|value| *value == last || is_blank(value)).then_some(last)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counts_have_several_spellings() {
        for (value, expected) in [
            (json!(3), Some(3)),
            (json!(3.0), Some(3)),
            (json!("3"), Some(3)),
            (json!(3.5), None),
            (json!(-1), None),
            (json!(1e300), None),
            (json!(null), None),
            (json!({}), None),
        ] {
            assert_eq!(count(&value), expected, "{value}");
        }
    }

    #[test]
    fn repeated_and_doubly_encoded_arguments_are_read() {
        let object = json!({ "path": "a" });
        for text in
            [r#"{"path":"a"}"#, r#"{"path":"a"}{"path": "a"}"#, r#"{}{"path":"a"}"#, r#""{\"path\":\"a\"}""#]
        {
            assert_eq!(call_arguments(text), object, "{text}");
        }
        assert_eq!(call_arguments(""), json!({}));
        assert_eq!(call_arguments("null"), json!({}));
        for text in [r#"{"path":"a"}{"path":"b"}"#, r#"{"path":"a"#] {
            assert_eq!(call_arguments(text), json!(text), "{text}");
        }
    }
}
