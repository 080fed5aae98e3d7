//! Reads JSON with the faults that have one reading: raw line ends and tabs in a text, `\'`, a comma before a closing
//! bracket, a bracket too many, a fence, and a dictionary of Python. Pure.

use serde_json::{Deserializer, Value};

mod python_literal;

/// Closing brackets too many that are left out.
const MAX_CLOSING: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JsonRepair {
    ControlCharacter,
    TrailingComma,
    EscapedQuote,
    ClosingBracket,
    Fence,
    PythonLiteral,
}

impl JsonRepair {
    pub(super) fn advice(self) -> &'static str {
        match self {
            Self::ControlCharacter => r"in JSON, a line end in a text is \n",
            Self::TrailingComma => "JSON has no comma before a closing bracket",
            Self::EscapedQuote => r"in JSON, ' has no backslash",
            Self::ClosingBracket => "the JSON had a closing bracket too many",
            Self::Fence => "JSON needs no code fence",
            Self::PythonLiteral => r#"JSON has " around texts and names"#,
        }
    }
}

/// Returns the value and its repairs. `None` if the text has other faults, or none.
pub(super) fn repaired(text: &str) -> Option<(Value, Vec<JsonRepair>)> {
    if serde_json::from_str::<Value>(text).is_ok() {
        return None;
    }
    let fenced = without_fence(text);
    let mut repairs: Vec<JsonRepair> = fenced.map(|_| JsonRepair::Fence).into_iter().collect();
    let text = fenced.unwrap_or(text);
    let value = match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(_) => plain(text, &mut repairs),
    };
    let value = value.or_else(|| {
        repairs.retain(|repair| *repair == JsonRepair::Fence);
        repairs.push(JsonRepair::PythonLiteral);
        python_literal::dictionary(text)
    });
    Some((value?, repairs))
}

fn without_fence(text: &str) -> Option<&str> {
    let body = text.trim().strip_prefix("```")?.strip_suffix("```")?;
    let (language, body) = body.split_once('\n')?;
    matches!(language.trim(), "" | "json").then_some(body.trim())
}

/// Corrects one fault after the other, and reads the result.
fn plain(text: &str, repairs: &mut Vec<JsonRepair>) -> Option<Value> {
    let mut json = String::with_capacity(text.len());
    let (mut in_text, mut is_escaped) = (false, false);
    // Quotes in the current text, with and without a backslash.
    let (mut escaped_quotes, mut bare_quotes) = (0, 0);
    for (at, c) in text.char_indices() {
        if in_text {
            match (is_escaped, c) {
                // A backslash before a raw line end could also mean the line end, or nothing.
                (true, '\0'..='\u{1f}') => return None,
                (true, '\'') => {
                    escaped_quotes += 1;
                    json.pop();
                    note(repairs, JsonRepair::EscapedQuote);
                }
                (false, '\'') => bare_quotes += 1,
                (false, '\0'..='\u{1f}') => {
                    json += &format!("\\u{:04x}", u32::from(c));
                    note(repairs, JsonRepair::ControlCharacter);
                    continue;
                }
                (false, '"') => {
                    // Both forms in one text have two readings: the backslash may belong to the text.
                    if escaped_quotes > 0 && bare_quotes > 0 {
                        return None;
                    }
                    in_text = false;
                }
                _ => {}
            }
            is_escaped = !is_escaped && c == '\\';
        } else if c == '"' {
            in_text = true;
            (escaped_quotes, bare_quotes) = (0, 0);
        } else if c == ','
            && text[at + 1..].trim_start().starts_with(['}', ']'])
            && !json.trim_end().ends_with(['{', '[', ',', ':'])
        {
            note(repairs, JsonRepair::TrailingComma);
            continue;
        }
        json.push(c);
    }
    let mut values = Deserializer::from_str(&json).into_iter::<Value>();
    let value = values.next()?.ok()?;
    let rest = json[values.byte_offset()..].trim();
    if !rest.is_empty() {
        note(repairs, JsonRepair::ClosingBracket);
    }
    let is_closing = rest.len() <= MAX_CLOSING && rest.chars().all(|c| matches!(c, '}' | ']'));
    (is_closing && (rest.is_empty() || value.is_object())).then_some(value)
}

fn note(repairs: &mut Vec<JsonRepair>, repair: JsonRepair) {
    if !repairs.contains(&repair) {
        repairs.push(repair);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn faults_with_one_reading_are_repaired() {
        let check = |text: &str, value: Value, repairs: &[JsonRepair]| {
            assert_eq!(repaired(text), Some((value, repairs.to_vec())), "{text:?}");
        };
        check("{\"a\": \"x\ny\t\r\nz\"}", json!({ "a": "x\ny\t\r\nz" }), &[JsonRepair::ControlCharacter]);
        check("{\"a\": [1, 2,\n], }", json!({ "a": [1, 2] }), &[JsonRepair::TrailingComma]);
        check(
            "{\"a\": \",}\\\"\n\",}",
            json!({ "a": ",}\"\n" }),
            &[JsonRepair::ControlCharacter, JsonRepair::TrailingComma],
        );
        check(
            r"{'path': 'c', 'all': True}",
            json!({ "path": "c", "all": true }),
            &[JsonRepair::PythonLiteral],
        );
        check(r#"{"a": "say \'hi\'\n"}"#, json!({ "a": "say 'hi'\n" }), &[JsonRepair::EscapedQuote]);
        check(r#"{"a": {"b": 1}}}"#, json!({ "a": { "b": 1 } }), &[JsonRepair::ClosingBracket]);
        check("```json\n{\"a\": 1}\n```", json!({ "a": 1 }), &[JsonRepair::Fence]);
        check("```\n{'a': 1}\n```\n", json!({ "a": 1 }), &[JsonRepair::Fence, JsonRepair::PythonLiteral]);
        check(
            "```json\n{\"a\": \"x\ny\",}\n```",
            json!({ "a": "x\ny" }),
            &[JsonRepair::Fence, JsonRepair::ControlCharacter, JsonRepair::TrailingComma],
        );
    }

    #[test]
    fn other_faults_are_not_repaired() {
        for text in [
            // Cut off.
            "{\"a\": \"x\n",
            "{\"a\": 1,",
            // A quote that ends the text, or belongs to it.
            "{\"a\": \"say \"x\"\n\"}",
            // A line that goes on, or a backslash before a line end.
            "{\"a\": \"x\\\ny\"}",
            "{\"a\" 1}",
            "{\"a\": ,}",
            "{,}",
            "[1,,]",
            // The backslash may belong to the text.
            r#"{"a": "x = 'don\'t'"}"#,
            r#"{"a": "grep 'it'\''s' f"}"#,
            r#"{"a": "\d+"}"#,
            // Not only brackets follow, or too many.
            "{\"a\": 1} {\"a\": 2}",
            "{\"a\": 1}}}}",
            "```sh\nls\n```",
            // No fault.
            "{\"a\": 1}",
        ] {
            assert_eq!(repaired(text), None, "{text:?}");
        }
    }
}
