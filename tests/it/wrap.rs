//! `modegate wrap` as an editor starts it: somebody else's agent under modes that hold, with its own login.

use serde_json::{Value, json};

use crate::outside::{PEER, said};
use crate::spoken::Spoken;

/// It writes nothing in plan, does in code, and nothing in plan again; what it can take is up to it, and its login, too.
#[test]
fn an_agent_that_is_wrapped_is_held_and_has_its_own_login() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let work = dir.join("work");
    std::fs::create_dir(&work).unwrap();
    let store = dir.join("s.db");
    let arguments =
        ["--mode", "plan", "--store", store.to_str().unwrap(), "wrap", "--state-dir", "~/.peer", "--"];
    let (mut agent, about) =
        Spoken::start(&dir, &[&arguments[..], &["/usr/bin/python3", PEER, "loads"]].concat());
    assert_eq!(about["result"]["authMethods"], json!([]), "its login is its own: {about}");
    let takes = &about["result"]["agentCapabilities"]["promptCapabilities"];
    assert_eq!(takes, &json!({ "image": true, "audio": true, "embeddedContext": true }));
    let folders = json!({ "cwd": work, "mcpServers": [] });
    let answer = agent.call(2, "session/new", &folders).pop().unwrap();
    assert_eq!(answer["result"]["modes"]["currentModeId"], "plan", "{answer}");
    let session = answer["result"]["sessionId"].clone();
    let mut id = 2;
    let mut call = |agent: &mut Spoken, method: &str, more: Value| {
        id += 1;
        let mut params = json!({ "sessionId": session });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        agent.call(id, method, &params)
    };
    for (name, mode, is_written) in [("a", "plan", false), ("b", "code", true), ("c", "plan", false)] {
        call(&mut agent, "session/set_mode", json!({ "modeId": mode }));
        let path = work.join(name);
        let write = json!([{ "type": "text", "text": format!("write {}", path.display()) }]);
        let text = said(&call(&mut agent, "session/prompt", json!({ "prompt": write })));
        assert_eq!(path.exists(), is_written, "{mode}: {text}");
        assert!(text.ends_with(if is_written { "written" } else { "Permission denied" }), "{mode}: {text}");
    }
    // What it does not take it is not sent.
    let picture = json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" });
    let prompt = json!({ "prompt": [{ "type": "text", "text": "say 1" }, picture] });
    let answer = call(&mut agent, "session/prompt", prompt).pop().unwrap();
    assert!(answer["error"]["message"].as_str().unwrap().ends_with("it takes no pictures"), "{answer}");
    let prompt = json!({ "prompt": [{ "type": "text", "text": "say 1" }] });
    assert!(said(&call(&mut agent, "session/prompt", prompt)).ends_with('0'), "it goes on");
    let answer = call(&mut agent, "authenticate", json!({ "methodId": "environment" })).pop().unwrap();
    assert_eq!(answer["error"]["data"], json!({ "validMethods": [] }), "{answer}");
    agent.end();
}
