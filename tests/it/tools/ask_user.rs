//! `ask_user`: answers from forms and from the chat. An answer is text and never a permission.

use serde_json::{Value, json};

use crate::support::editor_client::{EditorClient, all};

const GUESS: &str = "Continue with your best guess, and state what you assumed.";

fn ask(choices: &[&str]) -> Value {
    json!({ "questions": [{ "question": "Which one?", "choices": choices }] })
}

#[tokio::test]
async fn form_accepts_a_choice_or_free_text() {
    let mut client = EditorClient::new("plan", all()).await;
    for (answer, text) in [
        (json!({ "action": "accept", "content": { "choice": "b" } }), "The user answered: b".to_owned()),
        (json!({ "action": "accept", "content": { "words": " c " } }), "The user answered: c".into()),
        (
            json!({ "action": "accept", "content": { "choice": "z" } }),
            format!("The client answered with a choice that was not offered. {GUESS}"),
        ),
        (json!({ "action": "accept" }), format!("The user sent no answer. {GUESS}")),
        (json!({ "action": "decline" }), format!("The user does not want to answer. {GUESS}")),
        (json!({ "action": "cancel" }), format!("The user closed the question without an answer. {GUESS}")),
        (json!("no"), format!("The user could not be asked: the client answered with an error: no. {GUESS}")),
    ] {
        client.override_answer("elicitation/create", answer);
        assert_eq!(client.call("ask_user", ask(&["a", "b"])).await, text);
    }
    let form = &client.requests[0].1;
    assert_eq!((&form["mode"], &form["message"]), (&json!("form"), &json!("Which one?")));
    assert_eq!(form["toolCallId"], "call_1_1");
    assert_eq!(form["requestedSchema"]["properties"]["choice"]["oneOf"][1]["const"], "b");
    client.override_answer("elicitation/create", json!({ "action": "accept", "content": { "words": "x" } }));
    assert_eq!(client.call("ask_user", ask(&[])).await, "The user answered: x");
    assert_eq!(client.requests.last().unwrap().1["requestedSchema"]["required"], json!(["words"]));
    client.end().await;
}

/// Returns the texts that the client shows as Modegate's own.
fn notices(messages: &[Value]) -> String {
    let notice = |message: &Value| {
        let update = &message["params"]["update"];
        let text = update["content"]["text"].as_str().unwrap_or_default();
        (update["_meta"]["modegate/notice"] == true).then(|| text.to_owned())
    };
    messages.iter().filter_map(notice).collect()
}

/// Returns the last content of the user's last prompt in the last request.
fn last_prompt_content(client: &EditorClient) -> String {
    crate::support::scripted_model::summary(&client.client.model.requests(&client.session).pop().unwrap())
}

/// Without forms, the question is a numbered list in the chat. The turn ends, and the next prompt is the
/// answer.
#[tokio::test]
async fn without_forms_the_next_prompt_answers_the_list() {
    for (prompt, answer) in [
        ("2", "Which one?\\n2. b"),
        (" 1. ", "Which one?\\n1. a"),
        ("3", "\"3\""),
        ("b, but later", "b, but later"),
    ] {
        let mut client = EditorClient::new("ask", json!({ "elicitation": { "url": {} } })).await;
        let asking = client.begin(&[("ask_user", ask(&["a", "b"])), ("view_background", json!({}))]).await;
        let messages = client.until_answer(asking).await;
        assert_eq!(messages.last().unwrap()["result"]["stopReason"], "end_turn");
        assert_eq!(client.methods(), [""; 0], "no permission is asked for");
        let shown = notices(&messages);
        assert!(shown.contains("Which one?\n\n1. a\n2. b\n\nAnswer with a number"), "{shown}");
        assert_eq!(client.client.model.requests(&client.session).len(), 1, "the model waits");
        client.client.model.say(&client.session, Ok(modegate::model::ModelEvent::Text("ok".into())));
        let id = client.client.prompt(&client.session, prompt).await;
        client.until_answer(id).await;
        let text = last_prompt_content(&client);
        assert!(text.contains("The user's next message is the answer."), "{text}");
        assert!(text.contains(answer), "{prompt}: {text}");
        // Only the first prompt after the question is an answer. The second is an ordinary prompt.
        let id = client.client.prompt(&client.session, "1").await;
        for _ in 0..2 {
            client.client.model.say(
                &client.session,
                Ok(modegate::model::ModelEvent::Stop(modegate::model::ModelStop::Done)),
            );
        }
        client.until_answer(id).await;
        assert!(last_prompt_content(&client).contains("text \"1\""), "{}", last_prompt_content(&client));
        client.end().await;
    }
}

/// Without forms, the chat also asks for free text. With a form, the chat shows nothing.
#[tokio::test]
async fn question_without_choices_uses_chat_or_form() {
    for (capabilities, in_chat) in [(json!({}), true), (all(), false)] {
        let mut client = EditorClient::new("plan", capabilities).await;
        let prompt = client.begin(&[("ask_user", ask(&[]))]).await;
        let messages = client.until_answer(prompt).await;
        assert_eq!(notices(&messages).contains("Which one?"), in_chat);
        assert_eq!(client.count("elicitation/create"), usize::from(!in_chat));
        client.end().await;
    }
}

#[tokio::test]
async fn cancel_withdraws_the_question_and_voids_late_answers() {
    let method = "elicitation/create";
    {
        let mut client = EditorClient::new("code", all()).await;
        client.override_answer(method, Value::Null);
        let prompt = client.begin(&[("ask_user", ask(&["a"]))]).await;
        let request = client.until(|message| message["method"] == method).await.pop().unwrap();
        client.cancel().await;
        let messages = client.until_answer(prompt).await;
        assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
        assert_eq!(client.count("$/cancel_request"), 1);
        let late =
            json!({ "outcome": { "outcome": "selected", "optionId": "choice_1" }, "action": "accept" });
        let late = json!({ "jsonrpc": "2.0", "id": request["id"], "result": late });
        client.client.send_line(&late.to_string()).await;
        client.call("view_background", json!({})).await;
        let text = format!("{:?}", client.client.model.requests(&client.session).pop().unwrap().messages);
        assert!(!text.contains("The user answered"), "{text}");
        client.end().await;
    }
}

#[tokio::test]
async fn questions_are_asked_in_sequence() {
    let mut client = EditorClient::new("code", all()).await;
    let two = json!({ "questions": [{ "question": "First?" }, { "question": "Second?" }] });
    for words in ["1", "2"] {
        client.override_answer(
            "elicitation/create",
            json!({ "action": "accept", "content": { "words": words } }),
        );
    }
    let text = client.call("ask_user", two).await;
    assert_eq!(text, "First?\nThe user answered: 1\nSecond?\nThe user answered: 2");
    client.end().await;
}

#[tokio::test]
async fn invalid_question_arguments_are_rejected() {
    let mut client = EditorClient::new("code", all()).await;
    for arguments in [
        json!({ "questions": [] }),
        ask(&["a", "a"]),
        ask(&["a", "a "]),
        ask(&[""]),
        json!({ "questions": [{ "question": " " }] }),
    ] {
        let text = client.call("ask_user", arguments).await;
        assert!(text.starts_with("Invalid arguments for ask_user"), "{text}");
    }
    assert_eq!(client.methods(), [""; 0]);
    client.end().await;
}

#[tokio::test]
async fn choice_with_trailing_space_is_accepted() {
    let mut client = EditorClient::new("plan", all()).await;
    client
        .override_answer("elicitation/create", json!({ "action": "accept", "content": { "choice": "b " } }));
    let ask = json!({ "questions": [{ "question": "Which?", "choices": ["a", "b "] }] });
    let text = client.call("ask_user", ask).await;
    client.end().await;
    assert!(text.starts_with("The user answered: b"), "{text}");
}

#[tokio::test]
async fn unoffered_choice_is_rejected_despite_free_text() {
    let mut client = EditorClient::new("plan", all()).await;
    let content = json!({ "choice": "z", "words": "go on" });
    client.override_answer("elicitation/create", json!({ "action": "accept", "content": content }));
    let ask = json!({ "questions": [{ "question": "Which?", "choices": ["a", "b"] }] });
    let text = client.call("ask_user", ask).await;
    client.end().await;
    assert_eq!(text, "The user answered: go on");
}

#[tokio::test]
async fn invisible_characters_are_escaped_in_questions() {
    let mut client = EditorClient::new("plan", all()).await;
    let choice = json!({ "action": "accept", "content": { "choice": "a\u{202e}b" } });
    client.override_answer("elicitation/create", choice);
    let ask = json!({ "questions": [{ "question": "Which\u{202e}?", "choices": ["a\u{202e}b", "c"] }] });
    assert_eq!(client.call("ask_user", ask).await, "The user answered: a\u{202e}b");
    let form = &client.requests[0].1;
    assert_eq!(form["message"], "Which\\u{202e}?");
    let offered = &form["requestedSchema"]["properties"]["choice"]["oneOf"][0];
    assert_eq!((&offered["const"], &offered["title"]), (&json!("a\u{202e}b"), &json!("a\\u{202e}b")));
    client.end().await;
}
