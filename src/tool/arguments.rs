//! Reads the arguments of a call. A value of another type is converted if only one meaning is possible; errors
//! name the argument, so that the model can correct the call. Pure.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::ToolError;
use crate::mode::definition::is_misspelt;
use crate::text::shorten;

/// Maximum characters of a wrong value, or of invalid JSON before its fault, in an error.
const SHOWN: usize = 40;

pub(super) fn read<Arguments: DeserializeOwned>(
    given: Value,
    schema: &Value,
) -> Result<Arguments, ToolError> {
    let mut members = Value::Object(object(given)?);
    let mut faults = Vec::new();
    fit("", &mut members, schema, &mut faults);
    if !faults.is_empty() {
        let reason = format!("{}. {}", faults.join("; "), signature(schema));
        return Err(ToolError::Arguments(reason));
    }
    serde_json::from_value(members)
        .map_err(|error| ToolError::arguments(format!("{error}. {}", signature(schema))))
}

/// The arguments with their types.
fn signature(schema: &Value) -> String {
    let Some(properties) = schema["properties"].as_object().filter(|all| !all.is_empty()) else {
        return "It has no arguments.".into();
    };
    let arguments = properties.iter().map(|(name, property)| {
        let optional = if is_required(schema, name) { "" } else { ", optional" };
        format!("{name} ({}{optional})", property["type"].as_str().unwrap_or("any"))
    });
    format!("Its arguments: {}.", arguments.collect::<Vec<_>>().join(", "))
}

fn is_required(schema: &Value, name: &str) -> bool {
    schema["required"].as_array().is_some_and(|required| required.iter().any(|known| known == name))
}

/// Text is the invalid JSON of a model's call, or an object that the model encoded twice.
pub(super) fn object(given: Value) -> Result<Map<String, Value>, ToolError> {
    match given {
        Value::Null => Ok(Map::new()),
        Value::Object(members) => Ok(members),
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(members) => Ok(members),
            Err(error) => Err(ToolError::Arguments(fault(&text, &error))),
        },
        other => Err(ToolError::Arguments(format!("expected an object, not {}", shown(&other)))),
    }
}

fn fault(text: &str, error: &serde_json::Error) -> String {
    if error.is_data() {
        return "expected an object".into();
    }
    let lines = text.split_inclusive('\n').take(error.line().saturating_sub(1));
    let place = lines.map(str::len).sum::<usize>() + error.column().saturating_sub(1);
    let at = if error.is_eof() { text.len() } else { text.floor_char_boundary(place) };
    let before: Vec<char> = text[..at].chars().rev().take(SHOWN).collect();
    let before: String = before.into_iter().rev().collect();
    let hint = if error.is_eof() { "; the end is missing, so send less at once" } else { "" };
    format!("not valid JSON: {error}, after {before:?}{hint}")
}

/// Converts the values in place. `place` is the argument's name, empty for the arguments as a whole.
fn fit(place: &str, value: &mut Value, schema: &Value, faults: &mut Vec<String>) {
    let Some(expected) = schema["type"].as_str() else { return };
    convert(value, expected);
    let is_right = match expected {
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    };
    if !is_right {
        faults.push(format!("{place} is {}; expected {}", shown(value), named(expected)));
        return;
    }
    match value {
        Value::Array(items) => {
            for (at, item) in items.iter_mut().enumerate() {
                fit(&format!("{place}[{at}]"), item, &schema["items"], faults);
            }
        }
        Value::Object(members) => fit_members(place, members, schema, faults),
        Value::String(word) => {
            let Some(words) = schema["enum"].as_array() else { return };
            let mut words = words.iter().filter_map(Value::as_str);
            if !words.clone().any(|known| known == word) {
                let known: Vec<&str> = words.by_ref().collect();
                faults.push(format!("{place} is {}; expected {}", shown(value), known.join(", ")));
            }
        }
        _ => {}
    }
}

fn fit_members(place: &str, members: &mut Map<String, Value>, schema: &Value, faults: &mut Vec<String>) {
    let Some(properties) = schema["properties"].as_object() else { return };
    // Schemas do not mention that an optional argument may be null.
    members.retain(|name, value| !(value.is_null() && properties.contains_key(name)));
    let placed = |name: &str| if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
    let missing: Vec<&String> =
        properties.keys().filter(|name| is_required(schema, name) && !members.contains_key(*name)).collect();
    let free: Vec<&str> =
        properties.keys().map(String::as_str).filter(|name| !members.contains_key(*name)).collect();
    for (name, value) in &mut *members {
        match properties.get(name) {
            Some(property) => fit(&placed(name), value, property, faults),
            None => faults.push(unknown(&placed(name), name, &free)),
        }
    }
    faults.extend(missing.into_iter().map(|name| format!("`{}` is missing", placed(name))));
}

fn convert(value: &mut Value, expected: &str) {
    let converted = match (expected, &*value) {
        ("boolean", Value::String(text)) if ["True", "False"].contains(&text.trim()) => {
            Some(Value::Bool(text.trim() == "True"))
        }
        ("integer" | "number" | "boolean" | "array" | "object", Value::String(text)) => {
            serde_json::from_str(text.trim()).ok()
        }
        ("integer", Value::Number(number)) => {
            let whole = number.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0);
            whole.and_then(|number| format!("{number:.0}").parse().ok())
        }
        ("string", Value::Number(_) | Value::Bool(_)) => Some(Value::String(value.to_string())),
        _ => None,
    };
    if let Some(converted) = converted {
        *value = converted;
    }
}

/// `free` are the arguments that have no value yet.
fn unknown(place: &str, name: &str, free: &[&str]) -> String {
    match free.iter().find(|known| is_misspelt(name, known)) {
        Some(known) => format!("it has no argument `{place}` (did you mean `{known}`?)"),
        None => format!("it has no argument `{place}`"),
    }
}

fn named(expected: &str) -> &str {
    match expected {
        "integer" => "a whole number",
        "number" => "a number",
        "boolean" => "true or false",
        "string" => "a text",
        "array" => "a list",
        _ => "an object",
    }
}

fn shown(value: &Value) -> String {
    shorten(&value.to_string(), SHOWN).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "short rows")]
    fn check(given: Value, expected: Result<Value, &str>) {
        let schema = json!({ "type": "object", "properties": {
            "path": { "type": "string" },
            "limit": { "type": "integer" },
            "all": { "type": "boolean" },
            "form": { "type": "string", "enum": ["long", "short"] },
            "items": { "type": "array", "items": { "type": "object", "required": ["content"], "properties": {
                "content": { "type": "string" } } } },
        } });
        let result = read::<Value>(given.clone(), &schema).map_err(|error| error.to_string());
        let arguments = "Its arguments: path (string, optional), limit (integer, optional), all (boolean, \
                         optional), form (string, optional), items (array, optional).";
        let expected = expected.map_err(|reason| match reason.strip_prefix("JSON: ") {
            Some(reason) => format!("Invalid arguments: {reason}"),
            None => format!("Invalid arguments: {reason}. {arguments}"),
        });
        assert_eq!(result, expected, "{given}");
    }

    #[test]
    fn values_of_another_type_are_converted() {
        let right = json!({ "path": "3", "limit": 30, "all": true, "items": [{ "content": "a" }] });
        for limit in [json!("30"), json!(30.0), json!(" 30 "), json!(30)] {
            let given = json!({ "path": 3, "limit": limit, "all": "true", "items": "[{\"content\":\"a\"}]" });
            check(given, Ok(right.clone()));
        }
        check(json!({ "path": "a", "limit": null, "all": null }), Ok(json!({ "path": "a" })));
        check(json!("{\"path\": \"a\"}"), Ok(json!({ "path": "a" })));
        check(json!(null), Ok(json!({})));
        check(json!({ "path": "[1]" }), Ok(json!({ "path": "[1]" })));
        check(json!({ "all": "False", "form": "long" }), Ok(json!({ "all": false, "form": "long" })));
    }

    #[test]
    fn wrong_values_and_names_are_named() {
        for (given, reason) in [
            (json!({ "limit": "many" }), "limit is \"many\"; expected a whole number"),
            (json!({ "limit": -1 }), "limit is -1; expected a whole number"),
            (json!({ "limit": 1.5 }), "limit is 1.5; expected a whole number"),
            (json!({ "all": "perhaps" }), "all is \"perhaps\"; expected true or false"),
            (json!({ "path": { "a": 1 } }), "path is {\"a\":1}; expected a text"),
            (json!({ "items": ["a"] }), "items[0] is \"a\"; expected an object"),
            (
                json!({ "items": [{ "contents": "a" }] }),
                "it has no argument `items[0].contents` (did you mean `content`?); `items[0].content` is missing",
            ),
            (json!({ "limt": 1 }), "it has no argument `limt` (did you mean `limit`?)"),
            (json!({ "limt": 1, "limit": 1 }), "it has no argument `limt`"),
            (
                json!({ "zzz": 1, "form": "tall" }),
                "it has no argument `zzz`; form is \"tall\"; expected long, short",
            ),
            (json!([1]), "JSON: expected an object, not [1]"),
            (json!("3"), "JSON: expected an object"),
        ] {
            check(given, Err(reason));
        }
    }

    #[test]
    fn invalid_json_is_answered_with_its_place() {
        for (given, reason) in [
            (
                "{\"path\": \"a\", \"content\": \"unfinis",
                "JSON: not valid JSON: EOF while parsing a string at line 1 column 33, after \
                 \"{\\\"path\\\": \\\"a\\\", \\\"content\\\": \\\"unfinis\"; the end is missing, so send less at once",
            ),
            (
                "{\n\"path\" \"a\"}",
                "JSON: not valid JSON: expected `:` at line 2 column 8, after \"{\\n\\\"path\\\" \"",
            ),
        ] {
            check(Value::String(given.into()), Err(reason));
        }
    }
}
