//! JSON-RPC messages, for the connection to a client and for those to external agents: classifies a line, and
//! encodes messages. Ids keep the spelling of the peer. Pure.
//!
//! jsonrpsee's own entry point refuses notifications, answers, batches and negative ids.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

pub mod line;

#[derive(Debug)]
pub enum Incoming<'a> {
    Blank,
    Request {
        id: &'a RawValue,
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    Notification {
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    /// Answer to an earlier request.
    Answer {
        id: &'a RawValue,
        outcome: Result<&'a RawValue, &'a RawValue>,
    },
    /// Answer without a legal id, which is ignored.
    NoAnswer,
    NotJson,
    Invalid {
        /// `None` if unreadable or illegal.
        id: Option<&'a RawValue>,
        why: &'static str,
    },
}

#[derive(Deserialize)]
struct IncomingEnvelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// Distinguishes `null` from a missing member.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Classifies a line without its line feed.
pub fn sort(line: &[u8]) -> Incoming<'_> {
    let Ok(text) = std::str::from_utf8(line) else { return Incoming::NotJson };
    let text = text.trim_ascii();
    match text.as_bytes().first() {
        None => Incoming::Blank,
        Some(b'{') => sort_object(text),
        Some(b'[') if is_json(text) => invalid(None, "batches are not part of ACP: send one object per line"),
        Some(_) if is_json(text) => invalid(None, "a message is a JSON object"),
        Some(_) => Incoming::NotJson,
    }
}

fn sort_object(text: &str) -> Incoming<'_> {
    let envelope: IncomingEnvelope<'_> = match serde_json::from_str(text) {
        Ok(envelope) => envelope,
        Err(_) if is_json(text) => return invalid(None, "the message has a duplicate member"),
        Err(_) => return Incoming::NotJson,
    };
    let IncomingEnvelope { id, method, params, result, error } = envelope;
    let legal_id = id.filter(|id| is_legal_id(id));
    let Some(method) = method else {
        // Some clients send a null error beside a result.
        let error = error.filter(|error| result.is_none() || error.get() != "null");
        return match (legal_id, result, error) {
            (Some(id), _, Some(error)) => Incoming::Answer { id, outcome: Err(error) },
            (Some(id), Some(result), None) => Incoming::Answer { id, outcome: Ok(result) },
            (None, Some(_), _) | (None, _, Some(_)) => Incoming::NoAnswer,
            (_, None, None) => {
                invalid(legal_id, "a message has a method, or an id and one of result and error")
            }
        };
    };
    let Ok(method) = serde_json::from_str::<Cow<'_, str>>(method.get()) else {
        return invalid(legal_id, "method is a string");
    };
    match (id, legal_id) {
        (None, _) => Incoming::Notification { method, params },
        (Some(_), Some(id)) => Incoming::Request { id, method, params },
        (Some(_), None) => invalid(None, "an id is a string, a number or null"),
    }
}

fn invalid<'a>(id: Option<&'a RawValue>, why: &'static str) -> Incoming<'a> {
    Incoming::Invalid { id, why }
}

fn is_legal_id(id: &RawValue) -> bool {
    matches!(id.get().as_bytes().first(), Some(b'"' | b'-' | b'0'..=b'9' | b'n'))
}

fn is_json(text: &str) -> bool {
    // `IgnoredAny` does not recurse, so deep nesting is safe.
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

#[derive(Serialize)]
struct OutgoingEnvelope<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: &'a P,
}

/// Encodes a request, or a notification if it has no id. With a newline.
pub fn call_line<P: Serialize>(id: Option<u64>, method: &str, params: &P) -> String {
    let envelope = OutgoingEnvelope { jsonrpc: "2.0", id, method, params };
    let mut line = serde_json::to_string(&envelope).expect("the protocol's types have string keys only");
    line.push('\n');
    line
}

/// Encodes the answer to a request. With a newline.
pub fn answer_line(id: &RawValue, outcome: Result<&RawValue, &RawValue>) -> String {
    let (key, value) = match outcome {
        Ok(result) => ("result", result),
        Err(error) => ("error", error),
    };
    let mut line = String::with_capacity(value.get().len() + id.get().len() + 40);
    for part in [r#"{"jsonrpc":"2.0","id":"#, id.get(), ",\"", key, "\":", value.get(), "}\n"] {
        line.push_str(part);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: &str) {
        let sorted = match sort(line.as_bytes()) {
            Incoming::Blank => "blank".to_owned(),
            Incoming::NoAnswer => "no answer".to_owned(),
            Incoming::Request { id, method, params } => {
                format!("request {} {method} {}", id.get(), params.map_or("-", RawValue::get))
            }
            Incoming::Notification { method, .. } => format!("notification {method}"),
            Incoming::Answer { id, outcome: Ok(result) } => format!("result {} {}", id.get(), result.get()),
            Incoming::Answer { id, outcome: Err(error) } => format!("error {} {}", id.get(), error.get()),
            Incoming::NotJson => "not JSON".to_owned(),
            Incoming::Invalid { id, .. } => format!("invalid {}", id.map_or("null", RawValue::get)),
        };
        assert_eq!(sorted, expected, "for {line}");
    }

    #[test]
    fn request_ids_are_returned_verbatim() {
        for id in ["0", "-7", "9223372036854775807", "1.5", r#""""#, r#""1""#, r#""\u0061""#, "null"] {
            check(&format!(r#"{{"id":{id},"method":"m"}}"#), &format!("request {id} m -"));
        }
    }

    #[test]
    fn each_message_kind_is_recognised() {
        check("  ", "blank");
        check("{\"method\":\"m\",\"params\":{}}\r", "notification m");
        check(r#" {"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1}} "#, r#"request 1 m {"a":1}"#);
        check(r#"{"id":3,"result":null}"#, "result 3 null");
        check(r#"{"id":null,"error":{"code":1}}"#, r#"error null {"code":1}"#);
    }

    #[test]
    fn invalid_messages_keep_any_readable_id() {
        check("nonsense", "not JSON");
        check(r#"{"id":1,"#, "not JSON");
        check("{\"id\":1,\"method\":\"\u{0}\"}", "not JSON");
        check(r#"[{"id":1,"method":"m"}]"#, "invalid null");
        check("[]", "invalid null");
        check("7", "invalid null");
        check(r#"{"id":{},"method":"m"}"#, "invalid null");
        check(r#"{"id":true,"method":"m"}"#, "invalid null");
        check(r#"{"id":4,"method":7}"#, "invalid 4");
        check(r#"{"id":5}"#, "invalid 5");
        check(r#"{"id":5,"id":6,"method":"m"}"#, "invalid null");
        check(r#"{"id":6,"result":1,"error":{}}"#, "error 6 {}");
        check(r#"{"id":6,"result":1,"error":null}"#, "result 6 1");
        check(r#"{"id":6,"error":null}"#, "error 6 null");
        check(r#"{"result":1}"#, "no answer");
        check(r#"{"id":{},"error":{}}"#, "no answer");
    }

    #[test]
    fn invalid_utf8_and_deep_nesting_are_survived() {
        assert!(matches!(sort(b"{\"id\":1,\"method\":\"\xff\"}"), Incoming::NotJson));
        let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
        check(&deep, "invalid null");
        check(&format!(r#"{{"id":1,"method":"m","params":{deep}}}"#), &format!("request 1 m {deep}"));
    }
}
