//! Finds the addresses of models in the settings of external agents: TOML, YAML, and JSON with comments. Pure.

use std::path::Path;

use serde_json::Value;

/// The texts under these keys, at any depth. `file` tells the format. The error is a sentence.
pub fn addresses(file: &Path, text: &str, keys: &[String]) -> Result<Vec<String>, String> {
    let settings = parse(file, text)?;
    let mut found = Vec::new();
    collect(&settings, keys, &mut found);
    Ok(found)
}

fn parse(file: &Path, text: &str) -> Result<Value, String> {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => toml::from_str(text).map_err(|error| error.message().to_owned()),
        Some("yaml" | "yml") => serde_saphyr::from_str(text).map_err(|error| error.to_string()),
        _ => serde_json::from_str(&plain_json(text)).map_err(|error| error.to_string()),
    }
}

fn collect(value: &Value, keys: &[String], found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                match value {
                    Value::String(text) if keys.contains(key) => found.push(text.clone()),
                    _ => collect(value, keys, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, keys, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Replaces comments, and commas before a closing bracket, by blanks.
fn plain_json(text: &str) -> String {
    let mut json = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let length = match next {
            '"' => end_of_string(rest),
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |at| at + 2),
            _ => next.len_utf8(),
        };
        let (part, after) = rest.split_at(length);
        rest = after;
        if next == '/' {
            json.push(' ');
            continue;
        }
        if matches!(next, ']' | '}') && json.trim_end().ends_with(',') {
            json.truncate(json.trim_end().len() - 1);
        }
        json.push_str(part);
    }
    json
}

/// The length of the string at the start, with its quotes.
fn end_of_string(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            b'"' if !is_escaped => return at + 1,
            _ => is_escaped = byte == b'\\' && !is_escaped,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str, text: &str, expected: &[&str]) {
        let keys = ["base_url".to_owned(), "baseURL".to_owned()];
        assert_eq!(addresses(Path::new(file), text, &keys).unwrap(), expected, "{text}");
    }

    #[test]
    fn addresses_are_found_in_toml() {
        for (text, expected) in [
            ("base_url = \"https://a/v1\"", &["https://a/v1"][..]),
            ("'base_url' = 'https://a' # base_url = \"https://b\"", &["https://a"]),
            ("# base_url = \"https://a\"", &[]),
            ("[model_providers.own]\nname = 'own'\nbase_url = 'https://a'\n[other]\nx = 1", &["https://a"]),
            (
                "providers = [{ base_url = 'https://a' }, { base_url = \"https://b\" }]",
                &["https://a", "https://b"],
            ),
            ("[[models]]\nbase_url = 'https://a'\nsince = 2026-11-26T10:00:00Z", &["https://a"]),
            ("text = '''\nbase_url = \"https://a\"\n'''", &[]),
            ("model_providers.own.base_url = '''https://a'''", &["https://a"]),
            ("my_base_url = 'https://a'\nbase_urls = 'https://b'\nurl = 'https://c'", &[]),
            ("base_url = 1", &[]),
        ] {
            check("config.toml", text, expected);
        }
    }

    #[test]
    fn addresses_are_found_in_json_with_comments() {
        for (text, expected) in [
            ("{\"options\": {\"baseURL\": \"https://a\", \"apiKey\": \"x\"}}", &["https://a"][..]),
            (
                "{\"a\":{\"baseURL\":\"http://d:1\"},\"b\":[{\"baseURL\":\"http://e:2\"}]}",
                &["http://d:1", "http://e:2"],
            ),
            (
                "// \"baseURL\": \"https://b\"\n{\"baseURL\": \"https://a\" /* , \"baseURL\": \"https://b\" */}",
                &["https://a"],
            ),
            ("{\"baseURL\": \"https://a\", // an own server\n \"list\": [1, 2, ], }", &["https://a"]),
            ("{\"baseURL\": \"https://a/\\\"*/,]\", \"x\": \"\\\\\", }", &["https://a/\"*/,]"]),
            ("{\"text\": \"\\\"baseURL\\\": \\\"https://a\\\"\"}", &[]),
            ("{\"baseURL\": {\"baseURL\": \"https://a\"}}", &["https://a"]),
        ] {
            check("opencode.jsonc", text, expected);
        }
    }

    #[test]
    fn addresses_are_found_in_yaml() {
        for (text, expected) in [
            ("base_url: https://a # base_url: https://b", &["https://a"][..]),
            ("own:\n  - {base_url: 'https://a'}\n  - base_url: \"https://b\"", &["https://a", "https://b"]),
            ("# base_url: https://a\nx: 1", &[]),
            ("text: |\n  base_url: https://a\n", &[]),
        ] {
            check("config.yaml", text, expected);
        }
    }

    #[test]
    fn files_with_errors_have_no_addresses() {
        for (file, text) in [
            ("config.toml", "base_url = https://a"),
            ("config.toml", "base_url = 'https://a'\nbase_url = 'https://b'"),
            ("settings.json", "{\"baseURL\": \"https://a\""),
            ("settings.json", "{\"baseURL\": \"https://a"),
            ("opencode.jsonc", "{\"baseURL\": \"https://a\"} /*"),
            ("config.yaml", "base_url: [https://a"),
        ] {
            let keys = ["base_url".to_owned(), "baseURL".to_owned()];
            let is_closed = text.ends_with("/*");
            assert_eq!(addresses(Path::new(file), text, &keys).is_ok(), is_closed, "{text}");
        }
    }
}
