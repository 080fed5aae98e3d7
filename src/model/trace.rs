//! W3C trace context of a prompt, which the provider's requests of its turn carry on. Pure.

use serde_json::{Map, Value};

/// Longest `tracestate` that is carried on. The standard asks for at least this.
const MAX_STATE: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    pub parent: String,
    pub state: Option<String>,
}

impl TraceContext {
    /// Reads `traceparent` and `tracestate`. Returns `None` without a valid `traceparent`, as the standard asks.
    pub fn from_meta(meta: Option<&Map<String, Value>>) -> Option<Self> {
        let text = |key: &str| meta.and_then(|meta| meta.get(key)).and_then(Value::as_str);
        let parent = text("traceparent").filter(|parent| is_parent(parent))?;
        let state = text("tracestate").filter(|state| is_state(state));
        Some(Self { parent: parent.to_owned(), state: state.map(str::to_owned) })
    }
}

/// `version-trace-span-flags` in lower-case hexadecimal digits. Later versions may add parts.
fn is_parent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, span, flags, rest @ ..] = parts.as_slice() else { return false };
    is_hex(version, 2)
        && *version != "ff"
        && is_hex(trace, 32)
        && is_hex(span, 16)
        && [trace, span].iter().all(|id| id.bytes().any(|byte| byte != b'0'))
        && is_hex(flags, 2)
        && (rest.is_empty()
            || (*version != "00"
                && rest.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_alphanumeric()))
                && text.len() <= MAX_STATE))
}

fn is_hex(part: &str, length: usize) -> bool {
    part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_state(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_STATE && text.bytes().all(|byte| (0x20..=0x7e).contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_contexts_are_read() {
        let read = |parent: &str, state: &str| {
            let meta = serde_json::json!({ "traceparent": parent, "tracestate": state });
            TraceContext::from_meta(meta.as_object())
        };
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let valid = format!("00-{trace}-{span}-01");
        let context = |state: Option<&str>| {
            Some(TraceContext { parent: valid.clone(), state: state.map(str::to_owned) })
        };
        assert_eq!(read(&valid, "a=b,c=d"), context(Some("a=b,c=d")));
        for state in ["", "a\nb", "é", &"x".repeat(MAX_STATE + 1)] {
            assert_eq!(read(&valid, state), context(None), "{state}");
        }
        assert!(read(&format!("01-{trace}-{span}-01-more"), "").is_some());
        for invalid in [
            String::new(),
            format!("ff-{trace}-{span}-01"),
            format!("00-{trace}-{span}"),
            format!("00-{trace}-{span}-01-more"),
            format!("01-{trace}-{span}-01-\r\nx"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{trace}-{span}-1"),
        ] {
            assert_eq!(read(&invalid, "a=b"), None, "{invalid}");
        }
        assert_eq!(TraceContext::from_meta(None), None);
    }
}
