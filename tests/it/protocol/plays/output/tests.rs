use serde_json::{Map, Value, json};

use super::super::layout;
use super::{Standard, has_text, rows};

/// Messages and their lines.
fn table() -> Vec<(Value, &'static str)> {
    [updates(), calls(), requests_and_answers()].concat()
}

fn update(update: &Value) -> Value {
    let params = json!({ "sessionId": "sess_1", "update": update });
    json!({ "method": "session/update", "params": params })
}

fn with(mut value: Value, name: &str, member: Value) -> Value {
    value[name] = member;
    value
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn content(content: &str) -> Value {
    json!([{ "type": "content", "content": text(content) }])
}

fn updates() -> Vec<(Value, &'static str)> {
    let mode = json!({ "sessionUpdate": "current_mode_update", "currentModeId": "plan", "modeId": "plan" });
    let chunk = |kind: &str, words: &str| json!({ "sessionUpdate": kind, "content": text(words), "messageId": "msg_1_1" });
    vec![
        (update(&mode), "<- mode plan"),
        (
            json!({ "method": "session/update", "params": { "sessionId": "sess_2", "update": mode } }),
            "<- sess_2 mode plan",
        ),
        (
            update(&json!({ "sessionUpdate": "config_option_update", "configOptions": options("code") })),
            "<- options mode=code model=offline",
        ),
        (
            update(&json!({ "sessionUpdate": "available_commands_update", "availableCommands": commands() })),
            "<- commands plan help",
        ),
        (update(&json!({ "sessionUpdate": "session_info_update", "title": "Hello" })), "<- title \"Hello\""),
        (
            update(&json!({ "sessionUpdate": "session_info_update", "_meta": { "modegate/mode_switch":
                { "from": "code", "to": "", "analysis": "Why.", "outcome": "malformed" } } })),
            "<- mode_switch code to \"\" malformed \"Why.\"",
        ),
        (update(&chunk("agent_message_chunk", "a\nb")), "<- text msg_1_1 \"a\\nb\""),
        (update(&chunk("agent_thought_chunk", "Hm.")), "<- thought msg_1_1 \"Hm.\""),
        (update(&chunk("user_message_chunk", "Hi.")), "<- user msg_1_1 \"Hi.\""),
        (
            update(&with(
                chunk("agent_message_chunk", "Careful."),
                "_meta",
                json!({ "modegate/notice": true }),
            )),
            "<- notice msg_1_1 \"Careful.\"",
        ),
    ]
}

fn calls() -> Vec<(Value, &'static str)> {
    let call_update = |status: &str| json!({ "sessionUpdate": "tool_call_update", "toolCallId": "call_1_1", "status": status });
    vec![
        (
            update(&json!({ "sessionUpdate": "tool_call", "toolCallId": "call_1_1", "title": "Read `a b`",
                "name": "read_file", "kind": "read", "locations": [{ "path": "$cwd/a b", "line": 2 }, { "path": "$cwd/c" }],
                "rawInput": { "path": "a b" } })),
            r#"<- call call_1_1 read_file read "Read `a b`" at "$cwd/a b":2 $cwd/c {"path":"a b"}"#,
        ),
        (
            update(
                &json!({ "sessionUpdate": "tool_call", "toolCallId": "call_1_1", "title": "shell", "name": "shell" }),
            ),
            "<- call call_1_1 shell - \"shell\"",
        ),
        (update(&call_update("in_progress")), "<- call_1_1 in_progress"),
        (update(&with(call_update("completed"), "content", content("one"))), "<- call_1_1 completed \"one\""),
        (update(&with(call_update("completed"), "content", json!([]))), "<- call_1_1 completed no content"),
        (
            update(&with(
                with(call_update("failed"), "content", content("No.")),
                "_meta",
                json!({ "modegate/denied": "access" }),
            )),
            "<- call_1_1 failed denied=access \"No.\"",
        ),
        (
            update(&with(
                with(call_update("pending"), "title", json!("Leave?")),
                "content",
                json!([
                    { "type": "diff", "path": "$cwd/a", "oldText": "1", "newText": "2" },
                    { "type": "diff", "path": "$cwd/b", "newText": "2" },
                ]),
            )),
            r#"<- call_1_1 pending title "Leave?"
   diff $cwd/a "1" -> "2"
   diff $cwd/b -> "2""#,
        ),
        (
            update(&json!({ "sessionUpdate": "usage_update", "used": 10, "size": 100 })),
            r#"<- update {"sessionUpdate":"usage_update","used":10,"size":100}"#,
        ),
    ]
}

fn requests_and_answers() -> Vec<(Value, &'static str)> {
    vec![
        (
            json!({ "id": 0, "method": "session/request_permission", "params": { "sessionId": "sess_1",
                "toolCall": { "toolCallId": "call_1_1", "kind": "edit", "status": "pending", "title": "Write a",
                    "name": "write_file", "content": content("x"), "locations": [], "rawInput": {} },
                "options": [{ "optionId": "allow_once", "name": "Allow", "kind": "allow_once" },
                    { "optionId": "no", "name": "Reject", "kind": "reject_once" }] } }),
            r#"<- 0 permission call_1_1 write_file edit "Write a" at - {}
   "x"
   - allow_once "Allow"
   - no "Reject" (reject_once)"#,
        ),
        (
            json!({ "id": 1, "method": "fs/read_text_file", "params": { "path": "a" } }),
            r#"<- 1 fs/read_text_file {"path":"a"}"#,
        ),
        (
            json!({ "method": "$/cancel_request", "params": { "requestId": 0 } }),
            r#"<- $/cancel_request {"requestId":0}"#,
        ),
        (json!({ "id": 1, "result": { "stopReason": "end_turn" } }), "<- 1 end_turn"),
        (
            json!({ "id": 1, "result": { "stopReason": "cancelled", "_meta": { "modegate/head":
                { "length": 2, "hash": "$hash" } } } }),
            "<- 1 cancelled head=2",
        ),
        (
            json!({ "id": 1, "result": { "_meta": { "modegate/effect": { "applies": "immediate", "ended": [],
                "unconfirmed": [], "closedRequests": ["call_1_1"] } } } }),
            r#"<- 1 ok applies=immediate closedRequests=["call_1_1"]"#,
        ),
        (
            json!({ "id": "a", "result": { "sessionId": "sess_2", "modes": { "currentModeId": "plan",
                "availableModes": modes() }, "configOptions": options("plan") } }),
            r#"<- "a" session sess_2 mode plan options mode=plan model=offline"#,
        ),
        (json!({ "id": 1, "result": initialized() }), "<- 1 initialized"),
        (json!({ "id": null, "result": {} }), "<- null ok"),
        (json!({ "id": 1, "result": { "sessions": [] } }), r#"<- 1 result {"sessions":[]}"#),
        (
            json!({ "id": 1, "error": { "code": -32602, "message": "no", "data": { "details": "no" } } }),
            "<- 1 error -32602 \"no\"",
        ),
        (
            json!({ "id": 1, "error": { "code": -32602, "message": "no", "data": { "a": 1, "details": "no" } } }),
            r#"<- 1 error -32602 "no" {"a":1}"#,
        ),
        (
            json!({ "id": 1, "error": { "code": -32602, "message": "no", "data": { "details": "other" } } }),
            r#"<- {"id":1,"error":{"code":-32602,"message":"no","data":{"details":"other"}}}"#,
        ),
    ]
}

fn initialized() -> Value {
    json!({ "protocolVersion": 1, "agentInfo": { "name": "modegate" } })
}

fn modes() -> Value {
    json!([{ "id": "plan", "name": "Plan", "description": "Reads." }])
}

fn options(mode: &str) -> Value {
    json!([
        { "id": "mode", "currentValue": mode, "options": [{ "value": "plan" }, { "value": "code" }] },
        { "id": "model", "currentValue": "offline", "options": [{ "value": "offline" }] },
    ])
}

fn commands() -> Value {
    json!([{ "name": "plan", "description": "Switch." }, { "name": "help", "description": "List." }])
}

fn standard() -> Standard {
    let session =
        json!({ "result": { "modes": { "availableModes": modes() }, "configOptions": options("ask") } });
    let initialized = json!({ "result": initialized() });
    Standard::new(
        &initialized,
        &session,
        &json!({ "params": { "update": { "availableCommands": commands() } } }),
    )
}

fn lines(message: &Value, standard: &Standard) -> String {
    layout::lines("<-", &rows(message, standard)).join("\n")
}

/// Returns all values that differ from this one in one place: a changed, added, removed or moved member.
fn variations(value: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    match value {
        Value::Null => all.push(json!(1)),
        Value::Bool(is) => all.push(json!(!is)),
        Value::Number(number) => all.extend([json!(number.as_i64().unwrap() + 1), json!(number.to_string())]),
        Value::String(text) => {
            all.extend([json!(format!("{text}x")), json!(format!("{text} ")), json!(""), Value::Null]);
        }
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                let (before, after) = (&items[..n], &items[n + 1..]);
                all.extend(variations(item).into_iter().map(|item| [before, &[item], after].concat().into()));
                all.push([before, after].concat().into());
            }
            all.push([items.as_slice(), &[json!("x")]].concat().into());
            all.push([items.as_slice(), &[json!({})]].concat().into());
        }
        Value::Object(members) => {
            let members: Vec<(String, Value)> = members.clone().into_iter().collect();
            let mut add =
                |members: Vec<(String, Value)>| all.push(members.into_iter().collect::<Map<_, _>>().into());
            for n in 0..=members.len() {
                for extra in ["extra", "_meta", "title", "content", "name"] {
                    if members.iter().all(|(name, _)| name != extra) {
                        let extra = (extra.to_owned(), json!({}));
                        add([&members[..n], &[extra], &members[n..]].concat());
                    }
                }
            }
            for (n, (name, value)) in members.iter().enumerate() {
                add([&members[..n], &members[n + 1..]].concat());
                if n > 0 {
                    let mut moved = members.clone();
                    moved.swap(n - 1, n);
                    add(moved);
                }
                for value in variations(value) {
                    add([&members[..n], &[(name.clone(), value)], &members[n + 1..]].concat());
                }
            }
        }
    }
    let text = value.to_string();
    all.retain(|other| !has_text(other, &text));
    all
}

#[test]
fn messages_have_their_lines() {
    for (message, expected) in table() {
        assert_eq!(lines(&message, &standard()), expected, "{message}");
    }
}

#[test]
fn a_message_that_differs_has_other_lines() {
    let standard = standard();
    for (message, expected) in table() {
        let variations = variations(&message);
        assert!(variations.len() > 20);
        for other in variations {
            assert_ne!(lines(&other, &standard), expected, "{other}\nis printed like\n{message}");
        }
    }
}

#[test]
fn lists_are_printed_in_full_without_a_standard() {
    let message = json!({ "id": 1, "result": { "configOptions": options("plan") } });
    assert_eq!(lines(&message, &standard()), "<- 1 options mode=plan model=offline");
    let full = lines(&message, &Standard::default());
    assert!(full.starts_with("<- 1 result {") && full.contains(r#""options":[{"value":"plan"}"#), "{full}");
}
