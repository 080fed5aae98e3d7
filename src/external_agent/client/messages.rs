//! Parses one line from an external agent. Pure.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::acp::{CompleteElicitationNotification, ElicitationId, SessionUpdate};
use crate::json_rpc::{self, Incoming};

#[derive(Debug)]
pub(super) enum PeerMessage<'a> {
    Update { session: Cow<'a, str>, update: Box<SessionUpdate> },
    Cancelled(&'a RawValue),
    ElicitationCompleted(ElicitationId),
    Request { id: &'a RawValue, method: Cow<'a, str>, params: &'a str },
    Response { id: u64, outcome: Result<&'a RawValue, &'a RawValue> },
    Invalid(&'static str),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct UpdateNotification<'a> {
    #[serde(borrow)]
    session_id: Cow<'a, str>,
    update: Box<SessionUpdate>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CancelParams<'a> {
    #[serde(borrow)]
    request_id: &'a RawValue,
}

pub(super) fn read(line: &[u8]) -> PeerMessage<'_> {
    match json_rpc::sort(line) {
        Incoming::Request { id, .. } if id.get() == "null" => {
            PeerMessage::Invalid("a request has an id that is neither a number nor a text")
        }
        Incoming::Request { id, method, params } => {
            PeerMessage::Request { id, method, params: params.map_or("{}", RawValue::get) }
        }
        Incoming::Notification { method, params } => {
            notification(&method, params.map_or("{}", RawValue::get))
        }
        Incoming::Answer { id, outcome } => match id.get().parse() {
            Ok(id) => PeerMessage::Response { id, outcome },
            Err(_) => PeerMessage::Invalid("its response matches no request"),
        },
        Incoming::NoAnswer => PeerMessage::Invalid("it is neither a request nor a response"),
        Incoming::Blank => PeerMessage::Invalid(""),
        Incoming::NotJson => PeerMessage::Invalid("it is not a message"),
        Incoming::Invalid { why, .. } => PeerMessage::Invalid(why),
    }
}

fn notification<'a>(method: &str, params: &'a str) -> PeerMessage<'a> {
    match method {
        "session/update" => match serde_json::from_str(params) {
            Ok(UpdateNotification { session_id, update }) => {
                PeerMessage::Update { session: session_id, update }
            }
            Err(_) => PeerMessage::Invalid("it is not an update of the protocol"),
        },
        "$/cancel_request" => match serde_json::from_str(params) {
            Ok(CancelParams { request_id }) => PeerMessage::Cancelled(request_id),
            Err(_) => PeerMessage::Invalid("it cancels a request without naming it"),
        },
        "elicitation/complete" => match serde_json::from_str(params) {
            Ok(CompleteElicitationNotification { elicitation_id, .. }) => {
                PeerMessage::ElicitationCompleted(elicitation_id)
            }
            Err(_) => PeerMessage::Invalid("it completes an elicitation without naming it"),
        },
        _ => PeerMessage::Invalid("it is an unknown notification"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_messages_parse_and_other_lines_are_invalid() {
        let check = |line: &str, expected: &str| {
            let seen = match read(line.as_bytes()) {
                PeerMessage::Update { session, .. } => format!("update {session}"),
                PeerMessage::Cancelled(id) => format!("withdrawn {id}"),
                PeerMessage::ElicitationCompleted(id) => format!("completed {id}"),
                PeerMessage::Request { id, method, params } => format!("request {id} {method} {params}"),
                PeerMessage::Response { id, outcome } => format!("answer {id} {outcome:?}"),
                PeerMessage::Invalid(_) => "nothing".into(),
            };
            assert!(seen.starts_with(expected), "{line}: {seen}");
        };
        let chunk = r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a"}}"#;
        let update = |update: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{update}}}}}"#
            )
        };
        check(&update(chunk), "update s");
        check(&update(r#"{"sessionUpdate":"from_the_future"}"#), "nothing");
        check(r#"{"id":"x","method":"a/b","params":{"c":1}}"#, r#"request "x" a/b {"c":1}"#);
        check(r#"{"id":-1,"method":"a/b"}"#, "request -1 a/b {}");
        check(r#"{"id":null,"method":"a/b"}"#, "nothing");
        check(r#"{"method":"$/cancel_request","params":{"requestId":"x"}}"#, r#"withdrawn "x""#);
        check(r#"{"method":"elicitation/complete","params":{"elicitationId":"e"}}"#, "completed e");
        check(r#"{"method":"elicitation/complete","params":{}}"#, "nothing");
        check(r#"{"id":7,"result":null}"#, "answer 7 Ok");
        check(r#"{"id":7,"result":{},"error":null}"#, "answer 7 Ok");
        check(r#"{"id":7,"error":{"code":1,"message":"m"}}"#, "answer 7 Err");
        for nothing in [
            "",
            " \r",
            "x",
            "[]",
            "7",
            "{}",
            r#"{"id":"7","result":1}"#,
            r#"{"id":7}"#,
            "{\"id\":7,\"id\":7,\"result\":1}",
            "\u{feff}{}",
        ] {
            check(nothing, "nothing");
        }
        assert!(matches!(read(b"{\"method\":\"\xff\"}"), PeerMessage::Invalid(_)));
        assert!(matches!(read("[".repeat(100_000).as_bytes()), PeerMessage::Invalid(_)));
    }
}
