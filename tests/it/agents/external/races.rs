//! External agents with events in an unusual order: a mode change or an end during a start or a permission
//! request, updates of a call after its end, and reopened sessions.

use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::external::sessions::{
    ExternalAgentClient, SANDBOXED, agent_text, agents, shown_agent_mode,
};

/// Opens the session again after it was closed.
async fn open_again(client: &mut ExternalAgentClient) -> Vec<Value> {
    let close = client.client.request("session/close", json!({ "sessionId": client.session })).await;
    let mut messages = client.until(close, None).await;
    let load = json!({ "sessionId": client.session, "cwd": client.client.cwd(), "mcpServers": [] });
    let load = client.client.request("session/load", load).await;
    messages.extend(client.until(load, None).await);
    messages
}

async fn until_it_is_ready(client: &mut ExternalAgentClient) {
    while shown_agent_mode(&[client.client.next().await]).is_none() {}
}

async fn until_asked(client: &mut ExternalAgentClient) {
    while client.client.next().await["method"] != "session/request_permission" {}
}

/// The notice appears with the first prompt to a sandboxed agent.
#[tokio::test]
async fn sandbox_notice_appears_once_and_only_when_sandboxed() {
    let reads: &'static str = Box::leak(
        agents("plain", SANDBOXED).replace("id: peer", "id: peer, readonly: true").into_boxed_str(),
    );
    for (agents, mode, is_sandboxed) in [
        (agents("plain", SANDBOXED), "plan", true),
        (agents("plain", SANDBOXED), "code", false),
        (reads, "code", true),
    ] {
        let mut client = ExternalAgentClient::of("plan", agents).await.unwrap();
        until_it_is_ready(&mut client).await;
        client.mode(mode).await;
        let text = client.write("b").await;
        assert_eq!(client.path("b").exists(), !is_sandboxed, "{mode}: {text}");
        assert_eq!(
            text.matches("all changes that it attempts fail").count(),
            usize::from(is_sandboxed),
            "{mode}: {text}"
        );
        assert!(!text.contains("in code mode all"), "code mode asks for no such thing: {text}");
        assert_eq!(
            client.write("c").await.matches("all changes that it attempts fail").count(),
            0,
            "{mode}: it is said once"
        );
        client.end().await;
    }
}

/// The agent restarts without the sandbox, because no prompt has been sent to it yet.
#[tokio::test]
async fn loosening_during_startup_restarts_the_agent() {
    for (mode, is_written) in [("code", true), ("plan", false)] {
        let mut client = ExternalAgentClient::new("plan", "waits").await;
        let path = client.path("b");
        let running =
            client.client.prompt(&client.session.clone(), &format!("write {}", path.display())).await;
        let mut messages = Vec::new();
        for _ in 0..3 {
            // The answer shows that the prompt before it waits for the agent.
            let list = client.client.request("session/list", json!({})).await;
            messages.extend(client.until(list, None).await);
        }
        messages.push(client.mode(mode).await);
        std::fs::write(client.path("begin"), "").unwrap();
        messages.extend(client.until(running, None).await);
        assert_eq!(path.exists(), is_written, "{mode}: {messages:?}");
        assert_eq!(
            agent_text(&messages).contains("all changes that it attempts fail"),
            !is_written,
            "{mode}: {messages:?}"
        );
        client.end().await;
    }
}

/// The question whether to start the agent again is withdrawn when the agent ends or the session is closed.
#[tokio::test]
async fn restart_question_is_withdrawn_on_agent_end_or_close() {
    for what in ["ends", "close"] {
        let mut client = ExternalAgentClient::of("plan", agents("plain", SANDBOXED)).await.unwrap();
        let end = client.path("end");
        client.prompt(&format!("dies-when {}", end.display()), None).await;
        client.mode("code").await;
        let path = client.path("b").display().to_string();
        let running = client.client.prompt(&client.session.clone(), &format!("write {path}")).await;
        until_asked(&mut client).await;
        let mut messages = Vec::new();
        if what == "ends" {
            std::fs::write(&end, "").unwrap();
        } else {
            let id = client.client.request("session/close", json!({ "sessionId": client.session })).await;
            messages = client.until(id, None).await;
        }
        if messages.iter().all(|message| message["id"] != running) {
            messages.extend(client.until(running, None).await);
        }
        let back = messages.iter().filter(|message| message["method"] == "$/cancel_request").count();
        assert_eq!(back, 1, "{what}: {messages:?}");
        assert!(!client.path("b").exists(), "{what}: {messages:?}");
        client.end().await;
    }
}

/// A call that the agent reopens after its end is ended once more, with the turn or the agent.
#[tokio::test]
async fn reopened_agent_call_is_ended_again() {
    for (prompt, expected) in
        [("call", &["completed"][..]), ("reopens", &["completed", "in_progress", "failed"])]
    {
        let mut client = ExternalAgentClient::new("code", "plain").await;
        let mut messages = client.prompt(prompt, None).await;
        messages.extend(client.prompt("die", None).await);
        let updates = messages.iter().map(|message| &message["params"]["update"]);
        let shown: Vec<_> = updates
            .filter(|update| update["toolCallId"] == "c9")
            .filter_map(|update| update["status"].as_str())
            .collect();
        assert_eq!(shown, expected, "{prompt}: {messages:?}");
        client.end().await;
    }
}

/// The list also has the session's own commands.
#[tokio::test]
async fn agent_commands_are_listed_after_session_load() {
    let commands = |messages: &[Value]| -> Vec<String> {
        let lists = messages.iter().map(|message| &message["params"]["update"]["availableCommands"]);
        let list = lists.filter_map(Value::as_array).next_back().unwrap();
        list.iter().map(|command| command["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut client = ExternalAgentClient::new("code", "commands").await;
    let first = commands(&client.prompt("say 1", None).await);
    assert!(first.contains(&"its-own".to_owned()), "the control: {first:?}");
    let mut messages = open_again(&mut client).await;
    messages.extend(client.prompt("say 1", None).await);
    assert_eq!(commands(&messages), first);
    client.end().await;
}

/// The mode that the agent left for the sandbox is restored, also if the session was reopened in between.
#[tokio::test]
async fn agents_own_mode_is_restored_after_session_load() {
    let mut client = ExternalAgentClient::new("plan", "keeps").await;
    assert_eq!(shown_agent_mode(&client.prompt("say 1", None).await).unwrap(), "plan", "the control");
    open_again(&mut client).await;
    assert_eq!(shown_agent_mode(&client.prompt("say 1", None).await).unwrap(), "plan", "it is held still");
    client.mode("code").await;
    assert_eq!(shown_agent_mode(&client.prompt("say 1", None).await).unwrap(), "auto");
    client.end().await;
}

/// A permission request is decided with the kind in the call's latest update.
#[tokio::test]
async fn permission_decision_uses_the_latest_call_kind() {
    for (kinds, is_asked) in [("read edit", true), ("edit read", false)] {
        let mut client = ExternalAgentClient::new("ask", "plain").await;
        let messages = client.prompt(&format!("kinds {kinds}"), Some("yes")).await;
        let asked = messages.iter().any(|message| message["method"] == "session/request_permission");
        assert_eq!(asked, is_asked, "{kinds}: {messages:?}");
        assert!(agent_text(&messages).contains("yes"), "{kinds}: {messages:?}");
        client.end().await;
    }
}

#[tokio::test]
async fn notices_get_new_message_ids_after_reopening() {
    let mut client = ExternalAgentClient::new("plan", "plain").await;
    let notice_ids = |messages: &[Value], text: &str| -> Vec<String> {
        let updates = messages.iter().map(|message| &message["params"]["update"]);
        let told = updates.filter(|it| it["content"]["text"].as_str().is_some_and(|it| it.contains(text)));
        told.map(|it| it["messageId"].as_str().unwrap().to_owned()).collect()
    };
    let first = client.prompt("say 1", None).await;
    let held = notice_ids(&first, "all changes that it attempts fail");
    assert_eq!(held.len(), 1, "{first:?}");
    let mut messages = open_again(&mut client).await;
    while notice_ids(&messages, "has lost the earlier conversation").is_empty() {
        messages.extend(client.client.next_within(Duration::from_secs(20)).await);
    }
    assert_ne!(notice_ids(&messages, "has lost the earlier conversation"), held);
    client.end().await;
}

/// History that an agent replays while it loads its session is neither shown nor stored again, not even the
/// part after the answer.
#[tokio::test]
async fn replayed_agent_history_is_not_shown_again() {
    let mut client = ExternalAgentClient::new("plan", "late-history").await;
    assert_eq!(agent_text(&client.prompt("say 2", None).await).matches("old").count(), 0, "the control");
    let mut messages = open_again(&mut client).await;
    // The control: other output of the agent is shown.
    while !format!("{:?}", messages.last().unwrap()).contains("its-own") {
        messages.extend(client.client.next_within(Duration::from_secs(20)).await);
    }
    messages.extend(client.prompt("say 1", None).await);
    let ids = messages.iter().filter_map(|message| message["params"]["update"]["toolCallId"].as_str());
    let calls = ids.filter(|id| id.ends_with("c8")).count();
    assert_eq!((calls, agent_text(&messages).matches("old").count()), (0, 0), "{messages:?}");
    assert!(agent_text(&messages).ends_with('0'), "the control: {messages:?}");
    client.end().await;
}
