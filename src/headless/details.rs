//! What `--verbose` adds about a call or a request. Pure.

use serde_json::Value;

use super::report::TokenCount;
use crate::text;

/// The most characters of a value of an argument.
const VALUE: usize = 60;

/// The most characters of a line.
const LINE: usize = 200;

/// The most lines of a result.
const LINES: usize = 3;

/// The arguments of a call: `path=a.txt content=12 lines`. `None` if there are none.
pub(super) fn arguments(input: Option<&Value>) -> Option<String> {
    let members = input?.as_object().filter(|members| !members.is_empty())?;
    let members: Vec<_> = members.iter().map(|(name, value)| format!("{name}={}", argument(value))).collect();
    Some(text::plain(&members.join(" "), LINE))
}

fn argument(value: &Value) -> String {
    match value.as_str() {
        Some(value) if value.lines().count() > 1 => text::counted(value.lines().count(), "line", "lines"),
        Some(value) => text::shorten(&text::visible_line(value), VALUE).into_owned(),
        None => text::shorten(&value.to_string(), VALUE).into_owned(),
    }
}

/// The first lines of a result.
pub(super) fn first_lines(result: &str) -> Vec<String> {
    let mut lines = result.lines().filter(|line| !line.trim().is_empty());
    let mut first: Vec<_> =
        lines.by_ref().take(LINES).map(|line| text::plain(&line.replace('\t', " "), LINE)).collect();
    let others = lines.count();
    if others > 0 {
        first.push(format!("… {}", text::counted(others, "more line", "more lines")));
    }
    first
}

/// The tokens of a request; `None` if the provider reports none.
pub(super) fn tokens(count: TokenCount) -> Option<String> {
    let TokenCount { input_tokens, cache_read_tokens, output_tokens, .. } = count;
    let cached = if cache_read_tokens > 0 { format!(" ({cache_read_tokens} cached)") } else { String::new() };
    (count.sum() > 0).then(|| format!("tokens: {input_tokens} in{cached}, {output_tokens} out"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_one_short_line() {
        let check = |input: Value, expected: Option<&str>| {
            assert_eq!(arguments(Some(&input)).as_deref(), expected, "{input}");
        };
        check(json!({ "path": "a.txt", "content": "x\ny\n" }), Some("path=a.txt content=2 lines"));
        check(json!({ "command": "printf '\u{1b}[1m'", "n": 3 }), Some("command=printf '\\u{1b}[1m' n=3"));
        check(json!({ "a": "x".repeat(80) }), Some(&format!("a={}…", "x".repeat(60))));
        check(json!({}), None);
    }

    #[test]
    fn results_are_shortened_to_three_lines() {
        assert_eq!(first_lines("a\n\n\tb\nc\u{1b}[0m\n"), ["a", " b", "c[0m"]);
        assert_eq!(first_lines("a\nb\nc\nd\ne\n"), ["a", "b", "c", "… 2 more lines"]);
    }
}
