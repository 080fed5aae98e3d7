//! Rejections of permission requests with a reason. A form asks for the reason, and the model receives it.

use serde_json::{Value, json};

use crate::support::editor_client::EditorClient;

/// The capabilities of a client that has only forms.
fn forms() -> Value {
    json!({ "elicitation": { "form": {} } })
}

#[tokio::test]
pub(super) async fn rejection_reason_from_a_form_reaches_the_model() {
    let picked = |id: &str| json!({ "outcome": { "outcome": "selected", "optionId": id } });
    let write = || json!({ "path": "a.txt", "content": "x" });
    let mut client = EditorClient::new("ask", forms()).await;
    let rejected = "The user rejected this call.";
    let output = |text: &str| format!("{rejected} In the user's words: {text}");
    for (number, (answer, message)) in [
        (json!({ "action": "accept", "content": { "reason": " Use b.txt. " } }), output("Use b.txt.")),
        (json!({ "action": "accept", "content": { "reason": " " } }), rejected.to_owned()),
        (json!({ "action": "accept" }), rejected.to_owned()),
        (json!({ "action": "decline" }), rejected.to_owned()),
        (json!({ "action": "cancel" }), rejected.to_owned()),
        (json!("no"), rejected.to_owned()),
    ]
    .into_iter()
    .enumerate()
    {
        client.override_answer("session/request_permission", picked("reject_with_feedback"));
        client.override_answer("elicitation/create", answer);
        // The calls differ, because repeated rejections of one call end the turn.
        let call = json!({ "path": format!("{number}.txt"), "content": "x" });
        assert_eq!(client.call("write_file", call).await, message);
    }
    let form = &client.requests.iter().find(|(method, _)| method == "elicitation/create").unwrap().1;
    assert_eq!(form["message"], "Rejected: Write 0.txt. The agent receives your text.");
    assert_eq!(form["requestedSchema"]["required"], json!(["reason"]));
    // A client that sends the reason with the answer gets no form.
    let mut along = picked("reject_with_feedback");
    along["_meta"] = json!({ "modegate/feedback": "Not now." });
    client.override_answer("session/request_permission", along);
    assert_eq!(client.call("write_file", write()).await, output("Not now."));
    assert_eq!(client.count("elicitation/create"), 6);
    let names: Vec<_> = client.requests[0].1["options"]
        .as_array()
        .unwrap()
        .iter()
        .map(|option| option["name"].clone())
        .collect();
    assert_eq!(names[2..4], [json!("Reject"), json!("Reject, and say why")]);
    client.override_answer("session/request_permission", picked("allow_once"));
    client.call("write_file", write()).await;
    assert!(client.client.cwd().join("a.txt").exists(), "the control");
    assert!(!client.client.cwd().join("0.txt").exists());
    client.end().await;
    // A client without forms cannot give a reason.
    let mut client = EditorClient::new("ask", json!({})).await;
    client.override_answer("session/request_permission", picked("reject_once"));
    assert_eq!(client.call("write_file", write()).await, rejected);
    assert_eq!(client.requests[0].1["options"].as_array().unwrap().len(), 4);
    client.end().await;
}

#[tokio::test]
pub(super) async fn cancel_during_the_reason_form_ends_the_turn() {
    let mut client = EditorClient::new("ask", forms()).await;
    let picked = json!({ "outcome": { "outcome": "selected", "optionId": "reject_with_feedback" } });
    client.override_answer("session/request_permission", picked);
    client.override_answer("elicitation/create", Value::Null);
    let prompt = client.begin(&[("write_file", json!({ "path": "a.txt", "content": "x" }))]).await;
    client.until(|message| message["method"] == "elicitation/create").await;
    client.cancel().await;
    let messages = client.until_answer(prompt).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
    assert_eq!(client.count("$/cancel_request"), 1);
    client.end().await;
}
