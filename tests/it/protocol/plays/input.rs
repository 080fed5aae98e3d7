//! The short forms of a play's input: messages of the client and events of the scripted model. Pure.
//!
//! A short form stands for one JSON text. Ids and strings are copied unchanged. An unknown form is an error.

use serde_json::{Value, json};

use super::layout::words;

/// The session of a line without a session.
pub(crate) const SESSION: &str = "sess_1";

pub(crate) fn initialize_2() -> Value {
    json!({ "protocolVersion": 2, "info": { "name": "play", "version": "1" }, "capabilities": {} })
}

/// Returns the JSON of a client's line.
pub(crate) fn message(text: &str, is_v2: bool) -> Result<String, String> {
    if text.starts_with(['{', '[']) {
        return Ok(text.to_owned());
    }
    if let Some(raw) = text.strip_prefix("raw ") {
        return Ok(raw.to_owned());
    }
    let words = words(text);
    let (id, rest) = match words.split_first() {
        Some((id, rest)) if is_id(id) => (Some(id), rest),
        _ => (None, &words[..]),
    };
    let (session, rest) = session(rest);
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let body = match (id, rest.as_slice()) {
        (None, ["cancel"]) => method("session/cancel", &format!(r#"{{"sessionId":"{session}"}}"#)),
        (Some(_), ["prompt", first, others @ ..]) => {
            let blocks: Vec<_> = [first].into_iter().chain(others).map(|block| content(block)).collect();
            let prompt = blocks.join(",");
            method("session/prompt", &format!(r#"{{"sessionId":"{session}","prompt":[{prompt}]}}"#))
        }
        (Some(_), ["mode", mode]) if is_v2 => set_option_2(session, "mode", mode),
        (Some(_), ["option", option, value]) if is_v2 => set_option_2(session, option, value),
        (Some(_), ["mode", mode]) => {
            let mode = string(mode);
            method("session/set_mode", &format!(r#"{{"sessionId":"{session}","modeId":{mode}}}"#))
        }
        (Some(_), ["option", option, value]) => {
            let (option, value) = (string(option), string(value));
            let params = format!(r#"{{"sessionId":"{session}","configId":{option},"value":{value}}}"#);
            method("session/set_config_option", &params)
        }
        (Some(_), ["selected", option]) => {
            let option = string(option);
            format!(r#""result":{{"outcome":{{"outcome":"selected","optionId":{option}}}}}"#)
        }
        (Some(_), ["result", result]) => format!(r#""result":{result}"#),
        (Some(_), ["error", code, message]) => format!(r#""error":{{"code":{code},"message":{message}}}"#),
        (_, [name, params]) if is_method(name) && params.starts_with('{') => method(name, params),
        _ => return Err("unknown form of a message; `raw` sends a line that is not JSON".to_owned()),
    };
    let id = id.map(|id| format!("\"id\":{id},")).unwrap_or_default();
    checked(format!("{{{id}{body}}}"))
}

/// Returns the session and the JSON of an event of the model.
pub(crate) fn event(text: &str) -> Result<(String, String), String> {
    let words = words(text);
    let (session, rest) = session(&words);
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let event = match rest.as_slice() {
        [kind @ ("text" | "thought" | "fail"), text] => format!(r#"{{"{kind}":{text}}}"#),
        ["stop", reason] => format!(r#"{{"stop":{}}}"#, string(reason)),
        ["call", id, name] => format!(r#"{{"tool_call":{{"id":{},"name":{}}}}}"#, string(id), string(name)),
        ["call", id, name, arguments] => {
            let (id, name) = (string(id), string(name));
            format!(r#"{{"tool_call":{{"id":{id},"name":{name},"arguments":{arguments}}}}}"#)
        }
        [event] if event.starts_with('{') => (*event).to_owned(),
        _ => return Err("unknown form of an event".to_owned()),
    };
    Ok((session.to_owned(), checked(event)?))
}

fn session(words: &[String]) -> (&str, &[String]) {
    match words.split_first() {
        Some((session, rest)) if session.starts_with("sess_") => (session, rest),
        _ => (SESSION, words),
    }
}

fn is_id(word: &str) -> bool {
    word == "null" || word.starts_with('"') || word.parse::<f64>().is_ok()
}

fn is_method(word: &str) -> bool {
    word.contains('/') || matches!(word, "initialize" | "authenticate" | "logout")
}

fn method(name: &str, params: &str) -> String {
    format!(r#""method":"{name}","params":{params}"#)
}

fn set_option_2(session: &str, option: &str, value: &str) -> String {
    let (option, value) = (string(option), string(value));
    let params = format!(r#"{{"sessionId":"{session}","configId":{option},"type":"id","value":{value}}}"#);
    method("session/set_config_option", &params)
}

/// A string is a text block. JSON is any other block.
fn content(block: &str) -> String {
    if block.starts_with('"') { format!(r#"{{"type":"text","text":{block}}}"#) } else { block.to_owned() }
}

/// A word without quotes is also a string.
fn string(word: &str) -> String {
    if word.starts_with('"') { word.to_owned() } else { format!("\"{word}\"") }
}

fn checked(json: String) -> Result<String, String> {
    match serde_json::from_str::<Value>(&json) {
        Ok(_) => Ok(json),
        Err(error) => Err(format!("{error}: {json}")),
    }
}

#[test]
fn short_forms_of_input() {
    let check = |text: &str, expected: &str| {
        assert_eq!(message(text, false).unwrap_or_else(|error| error), expected, "{text}");
    };
    let unknown = "unknown form of a message; `raw` sends a line that is not JSON";
    let prompt = |blocks: &str| {
        let params = format!(r#"{{"sessionId":"sess_1","prompt":[{blocks}]}}"#);
        format!(r#"{{"id":1,"method":"session/prompt","params":{params}}}"#)
    };
    check(r#"1 prompt "a b""#, &prompt(r#"{"type":"text","text":"a b"}"#));
    let two = prompt(r#"{"type":"text","text":"\u00e9"},{"type":"x"}"#);
    check(r#"1 prompt "\u00e9" {"type":"x"}"#, &two);
    check(r#"1 sess_2 prompt "x""#, &prompt(r#"{"type":"text","text":"x"}"#).replace("sess_1", "sess_2"));
    check(
        "2 mode plan",
        r#"{"id":2,"method":"session/set_mode","params":{"sessionId":"sess_1","modeId":"plan"}}"#,
    );
    check(
        r#""a" option model "b c""#,
        r#"{"id":"a","method":"session/set_config_option","params":{"sessionId":"sess_1","configId":"model","value":"b c"}}"#,
    );
    check("sess_2 cancel", r#"{"method":"session/cancel","params":{"sessionId":"sess_2"}}"#);
    check("0 selected code", r#"{"id":0,"result":{"outcome":{"outcome":"selected","optionId":"code"}}}"#);
    check(r#"0 error -32603 "no""#, r#"{"id":0,"error":{"code":-32603,"message":"no"}}"#);
    check("null result {}", r#"{"id":null,"result":{}}"#);
    check("3 session/list {}", r#"{"id":3,"method":"session/list","params":{}}"#);
    check(r#"$/cancel_request {"requestId":2}"#, r#"{"method":"$/cancel_request","params":{"requestId":2}}"#);
    check(r#"{"id": 1.50}"#, r#"{"id": 1.50}"#);
    check("raw nonsense", "nonsense");
    let in_version_2 = message("2 mode plan", true).unwrap();
    assert_eq!(
        in_version_2,
        r#"{"id":2,"method":"session/set_config_option","params":{"sessionId":"sess_1","configId":"mode","type":"id","value":"plan"}}"#
    );
    for wrong in ["nonsense", "1 promt \"x\"", "cancle", "1 prompt", "1 mode", "1 cancel", "list {}"] {
        check(wrong, unknown);
    }
    assert!(message("1 prompt x", false).unwrap_err().starts_with("expected value"));
    let check = |text: &str, session: &str, expected: &str| {
        let parsed = event(text).unwrap_or_else(|error| (String::new(), error));
        assert_eq!((parsed.0.as_str(), parsed.1.as_str()), (session, expected), "{text}");
    };
    check(r#"text "One.""#, "sess_1", r#"{"text":"One."}"#);
    check(r#"sess_2 thought "Two.""#, "sess_2", r#"{"thought":"Two."}"#);
    check("stop done", "sess_1", r#"{"stop":"done"}"#);
    check(r#"fail "no""#, "sess_1", r#"{"fail":"no"}"#);
    check("call 1 list_directory", "sess_1", r#"{"tool_call":{"id":"1","name":"list_directory"}}"#);
    check("call 1 x {}", "sess_1", r#"{"tool_call":{"id":"1","name":"x","arguments":{}}}"#);
    check(r#"{"usage":{"used":10}}"#, "sess_1", r#"{"usage":{"used":10}}"#);
    check("txt \"x\"", "", "unknown form of an event");
}
