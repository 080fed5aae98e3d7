//! Reads a dictionary as Python writes it: `{'path': 'a', 'all': True}`. Pure.

use serde_json::{Map, Value};

const MAX_DEPTH: usize = 32;

/// Returns the value of a text that is one dictionary of plain values.
pub(super) fn dictionary(text: &str) -> Option<Value> {
    let mut reader = LiteralReader { rest: text.trim() };
    let value = reader.value(0).filter(Value::is_object)?;
    reader.rest.trim().is_empty().then_some(value)
}

struct LiteralReader<'a> {
    rest: &'a str,
}

impl LiteralReader<'_> {
    fn take(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.rest = self.rest.trim_start();
        match self.rest.chars().next()? {
            '{' => self.members(depth),
            '[' => self.items(depth),
            '\'' | '"' => self.text().map(Value::String),
            _ => self.word(),
        }
    }

    fn members(&mut self, depth: usize) -> Option<Value> {
        let mut members = Map::new();
        self.take("{");
        while !self.take("}") {
            self.rest = self.rest.trim_start();
            let key = self.text()?;
            let is_new = self.take(":") && !members.contains_key(&key);
            let value = self.value(depth + 1).filter(|_| is_new)?;
            members.insert(key, value);
            if !self.take(",") && !self.rest.trim_start().starts_with('}') {
                return None;
            }
        }
        Some(Value::Object(members))
    }

    fn items(&mut self, depth: usize) -> Option<Value> {
        let mut items = Vec::new();
        self.take("[");
        while !self.take("]") {
            items.push(self.value(depth + 1)?);
            if !self.take(",") && !self.rest.trim_start().starts_with(']') {
                return None;
            }
        }
        Some(Value::Array(items))
    }

    /// `None` for an escape that JSON does not have, and for a raw line end.
    fn text(&mut self) -> Option<String> {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Some(text);
                }
                '\\' => text.push(match chars.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    c if c == '\\' || c == quote => c,
                    // A backslash before the other quote may belong to the text.
                    _ => return None,
                }),
                '\0'..='\u{1f}' => return None,
                c => text.push(c),
            }
        }
        None
    }

    fn word(&mut self) -> Option<Value> {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '+')));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        match word {
            "True" | "true" => Some(Value::Bool(true)),
            "False" | "false" => Some(Value::Bool(false)),
            "None" | "null" => Some(Value::Null),
            number => serde_json::from_str(number).ok().filter(Value::is_number),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dictionaries_of_plain_values_are_read() {
        for (text, expected) in [
            ("{'path': 'a'}", json!({ "path": "a" })),
            (
                "{'a': \"it's\", \"b\": [1, -2.5, True, None,], 'c': {}, }",
                json!({ "a": "it's", "b": [1, -2.5, true, null], "c": {} }),
            ),
            (r"{'a': 'x\n\'y\' \\'}", json!({ "a": "x\n'y' \\" })),
            ("{\"path\": \"a\", \"all\": False}", json!({ "path": "a", "all": false })),
        ] {
            assert_eq!(dictionary(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_are_not_read() {
        for text in [
            "['a']",
            "{'a': 'it's'}",
            "{'a': 'b'",
            "{'a': b}",
            "{'a'}",
            "{'a': 1 'b': 2}",
            "{'a': 1, 'a': 2}",
            r"{'a': '\x41'}",
            r#"{"a": "x = 'don\'t'"}"#,
            "{'a': 'x\ny'}",
            "{'a': 1} and more",
            "{a: 1}",
            "{,}",
        ] {
            assert_eq!(dictionary(text), None, "{text}");
        }
        let deep = "{'a':".repeat(100);
        assert_eq!(dictionary(&deep), None);
    }
}
