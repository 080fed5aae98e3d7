//! Tool calls in version 2: their cancellation, whole files, and plans.

use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use serde_json::{Value, json};

use super::{done, kind, kinds, prompt, session, set_mode, setup, until};
use crate::sessions::load::call;
use crate::support::{Setup, TestClient, shell};

/// Lets the model make one call. Returns the messages up to the next one of this kind.
async fn run_call(client: &mut TestClient, session: &str, tool: &str, arguments: Value) -> Vec<Value> {
    let id = client.request("session/prompt", prompt(session, "go", None)).await;
    client.until_answer(id).await;
    client.model.say(session, Ok(call("c", tool, arguments)));
    done(client, session);
    done(client, session);
    until(client, "idle").await
}

/// Begins a command that does not end. Returns a session in `code`, the update about the start of the command, and
/// the home.
async fn running_command() -> (TestClient, String, Value, tempfile::TempDir) {
    let home = tempfile::tempdir().unwrap();
    let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
    let mut client = TestClient::with(Setup { tools, live: true, ..setup("code") });
    let session = session(&mut client).await;
    let id = client.request("session/prompt", prompt(&session, "go", None)).await;
    client.until_answer(id).await;
    client.model.say(&session, Ok(call("c", "shell", json!({ "command": "sleep 1000" }))));
    done(&client, &session);
    loop {
        let update = client.next().await["params"]["update"].take();
        if update["status"] == "in_progress" {
            return (client, session, update, home);
        }
    }
}

/// Returns the content of the end of the only call.
fn content(messages: &[Value]) -> &Value {
    let mut updates = messages.iter().map(|message| &message["params"]["update"]);
    &updates.find(|update| update["status"] == "completed").unwrap_or_else(|| panic!("{messages:?}"))["content"]
}

#[tokio::test]
async fn deleted_and_moved_files_are_shown_as_such() {
    let mut client = TestClient::with(setup("code"));
    let session = session(&mut client).await;
    let cwd = client.cwd();
    let path = |name: &str| cwd.join(name).display().to_string();
    for name in ["a", "b", "c", "d"] {
        std::fs::write(cwd.join(name), "one\n").unwrap();
    }
    let messages = run_call(&mut client, &session, "delete_file", json!({ "path": "a" })).await;
    let expected = json!([{ "operation": "delete", "path": path("a") }]);
    assert_eq!(content(&messages)[1]["changes"], expected);
    let arguments = json!({ "from": "b", "to": "e" });
    let messages = run_call(&mut client, &session, "move_file", arguments).await;
    let expected = json!([{ "operation": "move", "oldPath": path("b"), "path": path("e") }]);
    assert_eq!(content(&messages)[1]["changes"], expected);
    let arguments = "diff --git a/c b/c\ndeleted file mode 100644\n--- a/c\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n\
        diff --git a/d b/f\nrename from d\nrename to f\n--- a/d\n+++ b/f\n@@ -1 +1 @@\n-one\n+two\n";
    let messages = run_call(&mut client, &session, "apply_patch", json!({ "patch": arguments })).await;
    let diffs: Vec<&Value> =
        content(&messages).as_array().unwrap().iter().filter(|item| item["type"] == "diff").collect();
    let changes = diffs.iter().map(|diff| diff["changes"][0]["operation"].as_str().unwrap());
    assert_eq!(changes.collect::<Vec<_>>(), ["delete", "move"]);
    assert!(diffs[0]["patch"]["text"].as_str().unwrap().contains("+++ /dev/null\n"), "{}", diffs[0]);
    assert_eq!(diffs[1]["changes"][0]["oldPath"], path("d"));
    let text = diffs[1]["patch"]["text"].as_str().unwrap();
    assert!(text.contains(&format!("rename from {}\nrename to {}\n", path("d"), path("f"))), "{text}");
    client.end().await;
}

#[tokio::test]
async fn proposed_plan_is_shown_as_markdown_before_the_question() {
    let mut client = TestClient::with(setup("plan"));
    let session = session(&mut client).await;
    let id = client.request("session/prompt", prompt(&session, "plan", None)).await;
    client.until_answer(id).await;
    client.model.say(&session, Ok(call("c", "switch_mode", json!({ "plan": "# Do it\n\nSoon." }))));
    done(&client, &session);
    let messages = until(&mut client, "session/request_permission").await;
    let plan = messages.iter().find(|message| kind(message) == "plan_update").unwrap();
    let plan = &plan["params"]["update"]["plan"];
    assert_eq!((&plan["type"], &plan["content"]), (&json!("markdown"), &json!("# Do it\n\nSoon.")));
    client.notify("session/cancel", json!({ "sessionId": session })).await;
    let rest = until(&mut client, "idle").await;
    assert!(kinds(&rest).contains(&"plan_removed"), "{:?}", kinds(&rest));
    client.end().await;
}

#[tokio::test]
async fn cancelled_call_ends_and_its_turn_goes_on() {
    let (mut client, session, update, _home) = running_command().await;
    let cancel = |call: &str| json!({ "sessionId": session, "toolCallId": call });
    assert_eq!(update["capabilities"], json!({ "cancel": {} }));
    let id = client.request("tool_call/cancel", cancel(update["toolCallId"].as_str().unwrap())).await;
    let mut messages = client.until_answer(id).await;
    assert_eq!(messages.last().unwrap()["result"], json!({}));
    while messages.last().unwrap()["params"]["update"]["status"] != "cancelled" {
        messages.push(client.next().await);
    }
    assert_eq!(messages.last().unwrap()["params"]["update"]["capabilities"], Value::Null);
    done(&client, &session);
    let idle = until(&mut client, "idle").await.pop().unwrap();
    assert_eq!(idle["params"]["update"]["stopReason"], "end_turn");
    let request = client.model.requests(&session).pop().unwrap();
    assert!(format!("{request:?}").contains("The user cancelled this call."));
    for ended in [update["toolCallId"].as_str().unwrap(), "none"] {
        assert_eq!(client.call("tool_call/cancel", cancel(ended)).await["error"]["code"], -32602);
    }
    client.end().await;
}

#[tokio::test]
async fn effect_that_a_mode_ends_is_reported_as_cancelled_before_the_answer() {
    let (mut client, session, _, _home) = running_command().await;
    let id = client.request("session/set_config_option", set_mode(&session, "plan")).await;
    let mut messages = client.until_answer(id).await;
    let effect = &messages.last().unwrap()["result"]["_meta"]["modegate/effect"];
    assert_eq!(effect["ended"].as_array().unwrap().len(), 1, "{effect}");
    while !messages.iter().any(|message| message["params"]["update"]["status"] == "cancelled") {
        messages.push(client.next().await);
    }
    done(&client, &session);
    if !kinds(&messages).contains(&"idle") {
        until(&mut client, "idle").await;
    }
    client.end().await;
}
