//! `modegate wrap` for a client of version 2: the agent speaks version 1.

use serde_json::json;

use super::kills::Binary;
use crate::agents::external::sessions::PEER;
use crate::support::requirements::python;

#[test]
fn wrapped_agent_answers_a_client_of_version_2() {
    let dir = tempfile::tempdir().unwrap();
    let cwd = dir.path().canonicalize().unwrap();
    let command = ["--mode", "code", "wrap", "--no-broker", "--", python(), PEER, "plain"];
    let mut binary = Binary::with(&cwd, &command);
    let session = binary.call("session/new", &json!({ "cwd": cwd }))["result"]["sessionId"].clone();
    let file = cwd.join("written");
    let content = json!([{ "type": "text", "text": format!("write {}", file.display()) }]);
    let inserted = binary.call("session/prompt", &json!({ "sessionId": session, "prompt": content }));
    assert!(inserted["result"]["messageId"].is_string(), "{inserted}");
    let messages = binary.until(|message| message["params"]["update"]["state"] == "idle");
    let idle = &messages.last().unwrap()["params"]["update"];
    assert_eq!(idle["stopReason"], "end_turn");
    assert!(
        messages
            .iter()
            .any(|message| { message["params"]["update"]["sessionUpdate"] == "agent_message_chunk" })
    );
    assert!(file.exists());
}
