//! Other people's agents when things come in an order that nobody means: a mode, a reload or an end in the middle of a start or a
//! question; what is said of a call after its end; what holds in a session that is opened again.

use std::time::Duration;

use serde_json::{Value, json};

use crate::outside::{Guest, HELD, agents, its_mode, said};

/// Opens the session again, after it was closed.
async fn open_again(guest: &mut Guest) -> Vec<Value> {
    let close = guest.h.request("session/close", json!({ "sessionId": guest.session })).await;
    let mut messages = guest.until(close, None).await;
    let load = json!({ "sessionId": guest.session, "cwd": guest.h.cwd(), "mcpServers": [] });
    let load = guest.h.request("session/load", load).await;
    messages.extend(guest.until(load, None).await);
    messages
}

async fn until_it_is_ready(guest: &mut Guest) {
    while its_mode(&[guest.h.next().await]).is_none() {}
}

async fn until_asked(guest: &mut Guest) {
    while guest.h.next().await["method"] != "session/request_permission" {}
}

/// That it is held is said of a prompt that goes to a held one, and of no other.
#[tokio::test]
async fn that_it_is_held_is_not_said_once_it_is_not() {
    let reads: &'static str =
        Box::leak(agents("plain", HELD).replace("id: peer", "id: peer, readonly: true").into_boxed_str());
    for (agents, mode, is_held) in
        [(agents("plain", HELD), "plan", true), (agents("plain", HELD), "code", false), (reads, "code", true)]
    {
        let mut guest = Guest::of("plan", agents).await.unwrap();
        until_it_is_ready(&mut guest).await;
        guest.mode(mode).await;
        let text = guest.write("b").await;
        assert_eq!(guest.path("b").exists(), !is_held, "{mode}: {text}");
        assert_eq!(text.matches("it changes nothing").count(), usize::from(is_held), "{mode}: {text}");
        assert!(!text.contains("in code mode it"), "code mode asks for no such thing: {text}");
        assert_eq!(
            guest.write("c").await.matches("it changes nothing").count(),
            0,
            "{mode}: it is said once"
        );
        guest.end().await;
    }
}

/// Loosened while a held one starts, the prompt that waits for it goes to one that is not held: nothing was said to the first.
#[tokio::test]
async fn loosening_while_it_starts_starts_it_again() {
    for (mode, is_written) in [("code", true), ("plan", false)] {
        let mut guest = Guest::new("plan", "waits").await;
        let path = guest.path("b");
        let running = guest.h.prompt(&guest.session.clone(), &format!("write {}", path.display())).await;
        let mut messages = Vec::new();
        for _ in 0..3 {
            // So the prompt has come to wait for it.
            let list = guest.h.request("session/list", json!({})).await;
            messages.extend(guest.until(list, None).await);
        }
        messages.push(guest.mode(mode).await);
        std::fs::write(guest.path("begin"), "").unwrap();
        messages.extend(guest.until(running, None).await);
        assert_eq!(path.exists(), is_written, "{mode}: {messages:?}");
        assert_eq!(said(&messages).contains("it changes nothing"), !is_written, "{mode}: {messages:?}");
        guest.end().await;
    }
}

/// The question whether to start the agent again is withdrawn when the agent ends or the session is closed.
#[tokio::test]
async fn the_question_whether_to_start_anew_goes_with_its_agent() {
    for what in ["ends", "close"] {
        let mut guest = Guest::of("plan", agents("plain", HELD)).await.unwrap();
        let end = guest.path("end");
        guest.prompt(&format!("dies-when {}", end.display()), None).await;
        guest.mode("code").await;
        let path = guest.path("b").display().to_string();
        let running = guest.h.prompt(&guest.session.clone(), &format!("write {path}")).await;
        until_asked(&mut guest).await;
        let mut messages = Vec::new();
        match what {
            "ends" => std::fs::write(&end, "").unwrap(),
            _ => {
                let id = guest.h.request("session/close", json!({ "sessionId": guest.session })).await;
                messages = guest.until(id, None).await;
            }
        }
        if messages.iter().all(|message| message["id"] != running) {
            messages.extend(guest.until(running, None).await);
        }
        let back = messages.iter().filter(|message| message["method"] == "$/cancel_request").count();
        assert_eq!(back, 1, "{what}: {messages:?}");
        assert!(!guest.path("b").exists(), "{what}: {messages:?}");
        guest.end().await;
    }
}

/// A call that is said to go on after its end has another one, with its turn or with its agent, and no third.
#[tokio::test]
async fn a_call_that_goes_on_after_its_end_is_ended_again() {
    for (prompt, expected) in
        [("call", &["completed"][..]), ("reopens", &["completed", "in_progress", "failed"])]
    {
        let mut guest = Guest::new("code", "plain").await;
        let mut messages = guest.prompt(prompt, None).await;
        messages.extend(guest.prompt("die", None).await);
        let updates = messages.iter().map(|message| &message["params"]["update"]);
        let shown: Vec<_> = updates
            .filter(|update| update["toolCallId"] == "c9")
            .filter_map(|update| update["status"].as_str())
            .collect();
        assert_eq!(shown, expected, "{prompt}: {messages:?}");
        guest.end().await;
    }
}

/// The commands of an external agent are listed again after a load, beside those of the session.
#[tokio::test]
async fn its_commands_are_there_after_a_load() {
    let commands = |messages: &[Value]| -> Vec<String> {
        let lists = messages.iter().map(|message| &message["params"]["update"]["availableCommands"]);
        let list = lists.filter_map(Value::as_array).next_back().unwrap();
        list.iter().map(|command| command["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut guest = Guest::new("code", "commands").await;
    let first = commands(&guest.prompt("say 1", None).await);
    assert!(first.contains(&"its-own".to_owned()), "the control: {first:?}");
    let mut messages = open_again(&mut guest).await;
    messages.extend(guest.prompt("say 1", None).await);
    assert_eq!(commands(&messages), first);
    guest.end().await;
}

/// Its own mode that was left for the hold is its own again also when the session was opened again meanwhile.
#[tokio::test]
async fn its_own_mode_is_its_own_again_after_a_load() {
    let mut guest = Guest::new("plan", "keeps").await;
    assert_eq!(its_mode(&guest.prompt("say 1", None).await).unwrap(), "plan", "the control");
    open_again(&mut guest).await;
    assert_eq!(its_mode(&guest.prompt("say 1", None).await).unwrap(), "plan", "it is held still");
    guest.mode("code").await;
    assert_eq!(its_mode(&guest.prompt("say 1", None).await).unwrap(), "auto");
    guest.end().await;
}

/// What its call is it may say in an update of nothing else: leave is asked for what it said last.
#[tokio::test]
async fn leave_is_asked_for_what_it_said_last_of_a_call() {
    let mut guest = Guest::new("ask", "plain").await;
    let messages = guest.prompt("kinds", Some("yes")).await;
    assert!(messages.iter().any(|message| message["method"] == "session/request_permission"), "{messages:?}");
    guest.end().await;
}

/// What a session tells by itself has names of its own, also after it was opened again.
#[tokio::test]
async fn what_is_told_has_other_names_in_a_session_that_is_opened_again() {
    let mut guest = Guest::new("plan", "plain").await;
    let named = |messages: &[Value], text: &str| -> Vec<String> {
        let updates = messages.iter().map(|message| &message["params"]["update"]);
        let told = updates.filter(|it| it["content"]["text"].as_str().is_some_and(|it| it.contains(text)));
        told.map(|it| it["messageId"].as_str().unwrap().to_owned()).collect()
    };
    let first = guest.prompt("say 1", None).await;
    let held = named(&first, "it changes nothing");
    assert_eq!(held.len(), 1, "{first:?}");
    let mut messages = open_again(&mut guest).await;
    while named(&messages, "knows nothing").is_empty() {
        messages.extend(guest.h.next_within(Duration::from_secs(20)).await);
    }
    assert_ne!(named(&messages, "knows nothing"), held);
    guest.end().await;
}

/// What one tells of before when it takes up its session is not shown and kept twice, also where it goes on with it after its answer.
#[tokio::test]
async fn what_it_tells_of_before_is_not_shown_again() {
    let mut guest = Guest::new("plan", "late-history").await;
    assert_eq!(said(&guest.prompt("say 2", None).await).matches("old").count(), 0, "the control");
    let mut messages = open_again(&mut guest).await;
    // The control: what it says of itself is shown.
    while !format!("{:?}", messages.last().unwrap()).contains("its-own") {
        messages.extend(guest.h.next_within(Duration::from_secs(20)).await);
    }
    messages.extend(guest.prompt("say 1", None).await);
    let ids = messages.iter().filter_map(|message| message["params"]["update"]["toolCallId"].as_str());
    let calls = ids.filter(|id| id.ends_with("c8")).count();
    assert_eq!((calls, said(&messages).matches("old").count()), (0, 0), "{messages:?}");
    assert!(said(&messages).ends_with('0'), "the control: {messages:?}");
    guest.end().await;
}
