//! Reads JSON with the faults that have one reading: raw line ends and tabs in a text, and a comma before a closing
//! bracket. Pure.

use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JsonRepair {
    ControlCharacter,
    TrailingComma,
}

impl JsonRepair {
    pub(super) fn advice(self) -> &'static str {
        match self {
            Self::ControlCharacter => r"in JSON, a line end in a text is \n",
            Self::TrailingComma => "JSON has no comma before a closing bracket",
        }
    }
}

/// Returns the value and its repairs. `None` if the text has other faults, or none.
pub(super) fn repaired(text: &str) -> Option<(Value, Vec<JsonRepair>)> {
    if serde_json::from_str::<Value>(text).is_ok() {
        return None;
    }
    let (mut json, mut repairs) = (String::with_capacity(text.len()), Vec::new());
    let (mut in_text, mut is_escaped) = (false, false);
    for (at, c) in text.char_indices() {
        if in_text {
            match (is_escaped, c) {
                // A backslash before a raw line end could also mean the line end, or nothing.
                (true, '\0'..='\u{1f}') => return None,
                (false, '\0'..='\u{1f}') => {
                    json += &format!("\\u{:04x}", u32::from(c));
                    note(&mut repairs, JsonRepair::ControlCharacter);
                    continue;
                }
                (false, '"') => in_text = false,
                _ => {}
            }
            is_escaped = !is_escaped && c == '\\';
        } else if c == '"' {
            in_text = true;
        } else if c == ','
            && text[at + 1..].trim_start().starts_with(['}', ']'])
            && !json.trim_end().ends_with(['{', '[', ',', ':'])
        {
            note(&mut repairs, JsonRepair::TrailingComma);
            continue;
        }
        json.push(c);
    }
    Some((serde_json::from_str(&json).ok()?, repairs))
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
            // No fault.
            "{\"a\": 1}",
        ] {
            assert_eq!(repaired(text), None, "{text:?}");
        }
    }
}
