//! Questions to the user: by a form, by choices, or by nobody; and that no answer is more than text.

use serde_json::{Value, json};

use crate::guest::{Guest, all};

const GUESS: &str = "Go on with your best guess, and say what you assumed.";

fn ask(choices: &[&str]) -> Value {
    json!({ "questions": [{ "question": "Which one?", "choices": choices }] })
}

#[tokio::test]
async fn a_form_takes_a_choice_or_own_words() {
    let mut guest = Guest::new("plan", all()).await;
    for (answer, told) in [
        (json!({ "action": "accept", "content": { "choice": "b" } }), "The user answered: b".to_owned()),
        (json!({ "action": "accept", "content": { "words": " c " } }), "The user answered: c".into()),
        (
            json!({ "action": "accept", "content": { "choice": "z" } }),
            format!("The client answered with a choice that was not offered, which is no answer. {GUESS}"),
        ),
        (json!({ "action": "accept" }), format!("The user sent no answer. {GUESS}")),
        (json!({ "action": "decline" }), format!("The user does not want to answer. {GUESS}")),
        (json!({ "action": "cancel" }), format!("The user closed the question without an answer. {GUESS}")),
        (json!("no"), format!("The user could not be asked: the client answered with an error: no. {GUESS}")),
    ] {
        guest.answer_oddly("elicitation/create", answer);
        assert_eq!(guest.call("ask_user", ask(&["a", "b"])).await, told);
    }
    let form = &guest.asked[0].1;
    assert_eq!((&form["mode"], &form["message"]), (&json!("form"), &json!("Which one?")));
    assert_eq!(form["toolCallId"], "call_1_1");
    assert_eq!(form["requestedSchema"]["properties"]["choice"]["oneOf"][1]["const"], "b");
    guest.answer_oddly("elicitation/create", json!({ "action": "accept", "content": { "words": "x" } }));
    assert_eq!(guest.call("ask_user", ask(&[])).await, "The user answered: x");
    assert_eq!(guest.asked.last().unwrap().1["requestedSchema"]["required"], json!(["words"]));
    guest.end().await;
}

/// The text that the client shows as Modegate's own words.
fn notices(messages: &[Value]) -> String {
    let notice = |message: &Value| {
        let update = &message["params"]["update"];
        let text = update["content"]["text"].as_str().unwrap_or_default();
        (update["_meta"]["modegate/notice"] == true).then(|| text.to_owned())
    };
    messages.iter().filter_map(notice).collect()
}

/// What the last request has of the user's last prompt.
fn prompted(guest: &Guest) -> String {
    crate::stage::summary(&guest.harness.stage.requests(&guest.session).pop().unwrap())
}

/// Without forms the question is a numbered list in the chat, which no client answers by itself; the turn ends, and the next
/// prompt is the answer.
#[tokio::test]
async fn without_forms_the_question_is_a_list_in_the_chat_and_the_next_prompt_answers_it() {
    for (prompt, answer) in [
        ("2", "Which one?\\n2. b"),
        (" 1. ", "Which one?\\n1. a"),
        ("3", "\"3\""),
        ("b, but later", "b, but later"),
    ] {
        let mut guest = Guest::new("ask", json!({ "elicitation": { "url": {} } })).await;
        let asking =
            guest.begin(&[("ask_user", ask(&["a", "b"])), ("think", json!({ "thought": "on" }))]).await;
        let messages = guest.until_answer(asking).await;
        assert_eq!(messages.last().unwrap()["result"]["stopReason"], "end_turn");
        assert_eq!(guest.methods(), [""; 0], "no permission is asked for");
        let shown = notices(&messages);
        assert!(shown.contains("Which one?\n\n1. a\n2. b\n\nAnswer with a number"), "{shown}");
        assert_eq!(guest.harness.stage.requests(&guest.session).len(), 1, "the model waits");
        guest.harness.stage.say(&guest.session, Ok(modegate::model::ModelEvent::Text("ok".into())));
        let id = guest.harness.prompt(&guest.session, prompt).await;
        guest.until_answer(id).await;
        let told = prompted(&guest);
        assert!(told.contains("The user's next message is the answer."), "{told}");
        assert!(told.contains(answer), "{prompt}: {told}");
        // One prompt answers, and what comes later is a prompt.
        let id = guest.harness.prompt(&guest.session, "1").await;
        for _ in 0..2 {
            guest
                .harness
                .stage
                .say(&guest.session, Ok(modegate::model::ModelEvent::Stop(modegate::model::ModelStop::Done)));
        }
        guest.until_answer(id).await;
        assert!(prompted(&guest).contains("text \"1\""), "{}", prompted(&guest));
        guest.end().await;
    }
}

/// Own words, too, are asked for in the chat; with a form nothing of this happens.
#[tokio::test]
async fn a_question_without_choices_is_asked_in_the_chat_and_a_form_is_used_where_there_is_one() {
    for (capabilities, in_chat) in [(json!({}), true), (all(), false)] {
        let mut guest = Guest::new("plan", capabilities).await;
        let prompt = guest.begin(&[("ask_user", ask(&[]))]).await;
        let messages = guest.until_answer(prompt).await;
        assert_eq!(notices(&messages).contains("Which one?"), in_chat);
        assert_eq!(guest.count("elicitation/create"), usize::from(!in_chat));
        guest.end().await;
    }
}

#[tokio::test]
async fn a_cancel_takes_the_question_back_and_a_late_answer_is_void() {
    let method = "elicitation/create";
    {
        let mut guest = Guest::new("code", all()).await;
        guest.answer_oddly(method, Value::Null);
        let prompt = guest.begin(&[("ask_user", ask(&["a"]))]).await;
        let asked = guest.until(|message| message["method"] == method).await.pop().unwrap();
        guest.cancel().await;
        let messages = guest.until_answer(prompt).await;
        assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
        assert_eq!(guest.count("$/cancel_request"), 1);
        let late =
            json!({ "outcome": { "outcome": "selected", "optionId": "choice_1" }, "action": "accept" });
        let late = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": late });
        guest.harness.send_line(&late.to_string()).await;
        guest.call("think", json!({ "thought": "x" })).await;
        let told = format!("{:?}", guest.harness.stage.requests(&guest.session).pop().unwrap().messages);
        assert!(!told.contains("The user answered"), "{told}");
        guest.end().await;
    }
}

#[tokio::test]
async fn questions_are_asked_one_after_the_other() {
    let mut guest = Guest::new("code", all()).await;
    let two = json!({ "questions": [{ "question": "First?" }, { "question": "Second?" }] });
    for words in ["1", "2"] {
        guest
            .answer_oddly("elicitation/create", json!({ "action": "accept", "content": { "words": words } }));
    }
    let told = guest.call("ask_user", two).await;
    assert_eq!(told, "First?\nThe user answered: 1\nSecond?\nThe user answered: 2");
    guest.end().await;
}

#[tokio::test]
async fn arguments_that_make_no_question_are_named() {
    let mut guest = Guest::new("code", all()).await;
    for arguments in [
        json!({ "questions": [] }),
        ask(&["a", "a"]),
        ask(&["a", "a "]),
        ask(&[""]),
        json!({ "questions": [{ "question": " " }] }),
    ] {
        let told = guest.call("ask_user", arguments).await;
        assert!(told.starts_with("The arguments do not fit ask_user"), "{told}");
    }
    assert_eq!(guest.methods(), [""; 0]);
    guest.end().await;
}

#[tokio::test]
async fn a_choice_with_space_around_it_is_taken_from_a_form() {
    let mut guest = Guest::new("plan", all()).await;
    guest.answer_oddly("elicitation/create", json!({ "action": "accept", "content": { "choice": "b " } }));
    let ask = json!({ "questions": [{ "question": "Which?", "choices": ["a", "b "] }] });
    let told = guest.call("ask_user", ask).await;
    guest.end().await;
    assert!(told.starts_with("The user answered: b"), "{told}");
}

#[tokio::test]
async fn a_choice_that_was_not_offered_is_no_answer_beside_words_either() {
    let mut guest = Guest::new("plan", all()).await;
    let content = json!({ "choice": "z", "words": "go on" });
    guest.answer_oddly("elicitation/create", json!({ "action": "accept", "content": content }));
    let ask = json!({ "questions": [{ "question": "Which?", "choices": ["a", "b"] }] });
    let told = guest.call("ask_user", ask).await;
    guest.end().await;
    assert!(!told.contains('z'), "{told}");
}

#[tokio::test]
async fn a_question_shows_what_is_not_to_be_seen_and_its_choices_stay_what_they_are() {
    let mut guest = Guest::new("plan", all()).await;
    let choice = json!({ "action": "accept", "content": { "choice": "a\u{202e}b" } });
    guest.answer_oddly("elicitation/create", choice);
    let ask = json!({ "questions": [{ "question": "Which\u{202e}?", "choices": ["a\u{202e}b", "c"] }] });
    assert_eq!(guest.call("ask_user", ask).await, "The user answered: a\u{202e}b");
    let form = &guest.asked[0].1;
    assert_eq!(form["message"], "Which\\u{202e}?");
    let offered = &form["requestedSchema"]["properties"]["choice"]["oneOf"][0];
    assert_eq!((&offered["const"], &offered["title"]), (&json!("a\u{202e}b"), &json!("a\\u{202e}b")));
    guest.end().await;
}
