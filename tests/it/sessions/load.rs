//! Stored sessions: a load replays the updates that the client saw, and a resumed session continues where it
//! stopped.

use std::sync::Arc;

use modegate::ids::Source;
use modegate::model::{Block, ModelEvent, ModelStop};
use modegate::store::StoreLocation;
use serde_json::{Value, json};

use crate::support::{Setup, TestClient};

/// A store, a folder and a clock that several agents use one after the other.
pub(crate) struct StoreFixture {
    pub folder: tempfile::TempDir,
    work: Arc<tempfile::TempDir>,
    source: Source,
}

impl StoreFixture {
    pub(crate) fn new() -> Self {
        let work = Arc::new(tempfile::tempdir().unwrap());
        Self { folder: tempfile::tempdir().unwrap(), work, source: Source::counted() }
    }

    /// Like [`Self::new`], with real ids and times, so that the log has complete paths.
    #[cfg(unix)]
    pub(crate) fn real() -> Self {
        Self { source: Source::real(), ..Self::new() }
    }

    pub(crate) fn store(&self) -> std::path::PathBuf {
        self.folder.path().join("store.db")
    }

    pub(crate) fn agent(&self, setup: Setup) -> TestClient {
        TestClient::with(Setup {
            store: StoreLocation::File(self.store()),
            dir: Some(Arc::clone(&self.work)),
            source: self.source.clone(),
            ..setup
        })
    }
}

pub(crate) fn text(text: &str) -> ModelEvent {
    ModelEvent::Text(text.into())
}

pub(crate) fn call(id: &str, name: &str, arguments: Value) -> ModelEvent {
    ModelEvent::ToolCall { id: id.into(), name: name.into(), arguments }
}

/// Runs a prompt and its turn. Each list is one reply of the model.
pub(crate) async fn turn(
    client: &mut TestClient,
    session: &str,
    prompt: &str,
    replies: &[&[ModelEvent]],
) -> Vec<Value> {
    let id = client.prompt(session, prompt).await;
    for reply in replies {
        for event in *reply {
            client.model.say(session, Ok(event.clone()));
        }
        client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
    }
    client.until_answer(id).await
}

pub(crate) async fn set_mode(client: &mut TestClient, session: &str, mode: &str) -> Vec<Value> {
    let id = client.request("session/set_mode", json!({ "sessionId": session, "modeId": mode })).await;
    client.until_answer(id).await
}

/// Opens a stored session. Returns the messages up to the answer, and reads the greeting after it.
pub(crate) async fn open(client: &mut TestClient, method: &str, session: &str) -> Vec<Value> {
    client.call("initialize", json!({ "protocolVersion": 1 })).await;
    let params = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
    let id = client.request(method, params).await;
    let messages = client.until_answer(id).await;
    if messages.last().unwrap().get("result").is_some() {
        let greeting = client.next().await;
        assert_eq!(greeting["params"]["update"]["sessionUpdate"], "available_commands_update");
    }
    messages
}

/// Returns the updates in messages, with the chunks of each message joined.
pub(crate) fn updates(messages: &[Value]) -> Vec<Value> {
    let mut updates: Vec<Value> = Vec::new();
    for message in messages {
        let update = &message["params"]["update"];
        if update.is_null() {
            continue;
        }
        let is_piece = |last: &&mut Value| {
            ["sessionUpdate", "messageId", "_meta"].iter().all(|key| last[key] == update[key])
                && update["content"]["type"] == "text"
                && update.get("messageId").is_some()
        };
        match updates.last_mut().filter(is_piece) {
            Some(last) => {
                let more = last["content"]["text"].as_str().unwrap().to_owned()
                    + update["content"]["text"].as_str().unwrap();
                last["content"]["text"] = more.into();
            }
            None => updates.push(update.clone()),
        }
    }
    updates
}

pub(crate) fn is_user_message(update: &Value) -> bool {
    update["sessionUpdate"] == "user_message_chunk"
}

#[tokio::test]
async fn requests_to_a_session_that_is_opening_are_invalid_until_it_is_open() {
    let stored = StoreFixture::new();
    let mut client = stored.agent(Setup::default());
    let session = client.session().await;
    turn(&mut client, &session, "one", &[&[text("1")]]).await;
    client.end().await;
    let mut client = stored.agent(Setup::default());
    client.call("initialize", json!({ "protocolVersion": 1 })).await;
    let load = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
    let load = client.request("session/load", load).await;
    let requests = [
        ("session/set_mode", json!({ "sessionId": session, "modeId": "plan" })),
        ("session/set_config_option", json!({ "sessionId": session, "configId": "mode", "value": "plan" })),
        ("session/prompt", json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "two" }] })),
    ];
    let mut early = Vec::new();
    for (method, params) in &requests[..] {
        early.push(client.request(method, params.clone()).await);
    }
    let unknown = json!({ "sessionId": "sess_none", "modeId": "plan" });
    let unknown = client.request("session/set_mode", unknown).await;
    let mut codes = std::collections::BTreeMap::new();
    while codes.len() < 5 {
        let message = client.next().await;
        if let (Some(id), None) = (message["id"].as_i64(), message.get("method")) {
            codes.insert(id, message["error"]["code"].as_i64());
        }
    }
    assert_eq!(codes[&load], None);
    assert_eq!(early.iter().map(|id| codes[id]).collect::<Vec<_>>(), [Some(-32600); 3]);
    assert_eq!(codes[&unknown], Some(-32002));
    client.next().await;
    for (method, params) in &requests[..2] {
        let id = client.request(method, params.clone()).await;
        assert!(client.until_answer(id).await.last().unwrap().get("result").is_some(), "{method}");
    }
    client.end().await;
}

/// Runs a conversation with every kind of event. Returns the messages that the client saw.
async fn conversation(client: &mut TestClient, session: &str) -> Vec<Value> {
    let cwd = client.cwd();
    std::fs::write(cwd.join("a.txt"), "one\n").unwrap();
    let mut seen = Vec::new();
    let write =
        |id: &str, content: &str| call(id, "write_file", json!({ "path": "a.txt", "content": content }));
    let todo = json!({ "items": [{ "content": "Look", "status": "in_progress" }] });
    let thought = ModelEvent::Thought("Hm. ".into());
    let usage = modegate::model::Usage { used: 10, size: 100, cost: Some(5), ..Default::default() };
    let first: &[ModelEvent] = &[
        thought.clone(),
        thought,
        text("I "),
        text("look."),
        call("r", "read_file", json!({ "path": "a.txt" })),
        call("x", "read_file", json!({ "path": "missing.txt" })),
        call("t", "todo", todo),
        ModelEvent::Usage(usage),
    ];
    seen.extend(set_mode(client, session, "code").await);
    seen.extend(turn(client, session, "change it", &[first, &[write("w", "two\n")], &[text("Done.")]]).await);
    seen.extend(set_mode(client, session, "plan").await);
    seen.extend(turn(client, session, "/mode", &[]).await);
    let started = ModelEvent::ToolCallStarted { id: "w".into(), name: "write_file".into() };
    let denied: &[ModelEvent] = &[started, write("w", "three\n")];
    seen.extend(turn(client, session, "write in plan", &[denied, &[text("I may not.")]]).await);
    // A switch block in the model's text, which the client does not see.
    set_mode(client, session, "code").await.into_iter().for_each(|message| seen.push(message));
    let block = "Better plan.\n```yaml\nmode_switch:\n  analysis: safer\n  new_mode: plan\n```\nSo I do.";
    seen.extend(turn(client, session, "/ask and switch", &[&[text(block)]]).await);
    // Cancels a prompt during a call.
    let id = client.prompt(session, "wait").await;
    client.model.say(session, Ok(text("I wait")));
    client.model.say(session, Ok(ModelEvent::ToolCallStarted { id: "z".into(), name: "read_file".into() }));
    loop {
        let message = client.next().await;
        let is_call = message["params"]["update"]["sessionUpdate"] == "tool_call";
        seen.push(message);
        if is_call {
            break;
        }
    }
    client.notify("session/cancel", json!({ "sessionId": session })).await;
    seen.extend(client.until_answer(id).await);
    seen
}

#[tokio::test]
async fn session_load_replays_exactly_the_seen_updates() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup::default());
    let session = client.session().await;
    let seen = conversation(&mut client, &session).await;
    client.end().await;
    let mut loads = Vec::new();
    for _ in 0..2 {
        let mut client = fixture.agent(Setup::default());
        let messages = open(&mut client, "session/load", &session).await;
        let answer = messages.last().unwrap()["result"].clone();
        assert_eq!(answer["modes"]["currentModeId"], "plan", "{answer}");
        assert_eq!(answer["configOptions"][0]["currentValue"], "plan");
        assert_eq!(answer["_meta"]["modegate/head"]["hash"].as_str().unwrap().len(), 64);
        loads.push((updates(&messages), answer));
        client.end().await;
    }
    assert_eq!(loads[0], loads[1]);
    let (again, _) = &loads[0];
    let typed: Vec<&str> = again
        .iter()
        .filter(|update| is_user_message(update))
        .map(|update| update["content"]["text"].as_str().unwrap())
        .collect();
    assert_eq!(typed, ["change it", "/mode", "write in plan", "/ask and switch", "wait"]);
    let again: Vec<&Value> = again.iter().filter(|update| !is_user_message(update)).collect();
    let seen = updates(&seen);
    assert_eq!(again, seen.iter().collect::<Vec<_>>());
    let kinds: std::collections::BTreeSet<&str> =
        seen.iter().map(|update| update["sessionUpdate"].as_str().unwrap()).collect();
    assert_eq!(
        kinds.into_iter().collect::<Vec<_>>(),
        [
            "agent_message_chunk",
            "agent_thought_chunk",
            "config_option_update",
            "current_mode_update",
            "plan",
            "session_info_update",
            "tool_call",
            "tool_call_update",
            "usage_update"
        ]
    );
}

#[tokio::test]
async fn resumed_session_keeps_mode_grants_and_history() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup::default());
    let session = client.session().await;
    let write = |id: &str| call(id, "write_file", json!({ "path": "a.txt", "content": id }));
    let id = client.prompt(&session, "write").await;
    for event in
        [text("I write."), write("w1"), ModelEvent::Stop(ModelStop::Done), ModelEvent::Stop(ModelStop::Done)]
    {
        client.model.say(&session, Ok(event));
    }
    let mut asked = 0;
    loop {
        let message = client.next().await;
        if message["method"] == "session/request_permission" {
            asked += 1;
            let outcome = json!({ "outcome": "selected", "optionId": "allow_always" });
            let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": { "outcome": outcome } });
            client.send_line(&answer.to_string()).await;
        }
        if message["id"] == id && message.get("method").is_none() {
            break;
        }
    }
    assert_eq!(asked, 1);
    client.model.next_request(&session).await;
    let before = client.model.next_request(&session).await;
    set_mode(&mut client, &session, "plan").await;
    set_mode(&mut client, &session, "ask").await;
    client.end().await;

    let mut client = fixture.agent(Setup::default());
    let messages = open(&mut client, "session/resume", &session).await;
    assert_eq!(messages.len(), 1, "nothing is shown: {messages:?}");
    assert_eq!(messages[0]["result"]["modes"]["currentModeId"], "ask");
    // "Allow always" is still valid.
    let read = call("r", "read_file", json!({ "path": "a.txt" }));
    let seen = turn(&mut client, &session, "again", &[&[read, write("w2")], &[]]).await;
    assert!(!seen.iter().any(|message| message["method"] == "session/request_permission"), "{seen:?}");
    assert_eq!(crate::support::read(&client.cwd(), "a.txt").as_deref(), Some("w2"));
    let request = client.model.next_request(&session).await;
    assert_eq!(request.system, before.system);
    let [whole, kept] = [request, before].map(|mut request| {
        for message in &mut request.messages {
            Arc::make_mut(message).blocks.retain(|block| !matches!(block, Block::Reminder(_)));
        }
        format!("{:?}", request.messages)
    });
    let new = whole.strip_prefix(kept.trim_end_matches("] }]")).expect("what was said is said as it was");
    assert!(new.contains("again") && new.contains("This session was closed and now continues"), "{new}");
    // Ids continue, too.
    let calls: Vec<&str> = seen
        .iter()
        .filter(|message| message["params"]["update"]["sessionUpdate"] == "tool_call")
        .map(|message| message["params"]["update"]["toolCallId"].as_str().unwrap())
        .collect();
    assert_eq!(calls, ["call_2_1", "call_2_2"]);
    client.end().await;
}

fn listed_ids(answer: &Value) -> Vec<String> {
    let sessions = answer["result"]["sessions"].as_array().unwrap();
    sessions.iter().map(|session| session["sessionId"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn session_list_has_pages_and_begins_with_the_latest_change() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup::default());
    let mut ids = Vec::new();
    for number in 0..60 {
        let session = client.session().await;
        if number != 7 {
            turn(&mut client, &session, &format!("prompt {number}"), &[&[text("Yes.")]]).await;
        }
        ids.push(session);
    }
    set_mode(&mut client, &ids[3], "plan").await;
    let first = client.call("session/list", json!({ "cwd": client.cwd() })).await;
    let newest = &first["result"]["sessions"][0];
    assert_eq!(
        (&newest["title"], &newest["_meta"]["modegate/mode"], &newest["sessionId"]),
        (&json!("prompt 3"), &json!("plan"), &json!(ids[3]))
    );
    assert!(newest["updatedAt"].as_str().unwrap().starts_with("1970-01-01T00:00:0"));
    let cursor = &first["result"]["nextCursor"];
    let second = client.call("session/list", json!({ "cwd": client.cwd(), "cursor": cursor })).await;
    assert!(second["result"].get("nextCursor").is_none());
    assert_eq!(listed_ids(&first).len(), 50);
    let mut all = [listed_ids(&first), listed_ids(&second)].concat();
    all.sort();
    let mut expected = ids.clone();
    expected.sort();
    expected.retain(|id| *id != ids[7]);
    assert_eq!(all, expected, "each once, without the session that had no prompt");
    client.end().await;
}

#[tokio::test]
async fn session_list_selects_by_folder_and_rejects_bad_parameters() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup::default());
    let session = client.session().await;
    turn(&mut client, &session, "one", &[&[text("Yes.")]]).await;
    let here = client.call("session/list", json!({ "cwd": client.cwd() })).await;
    assert_eq!(listed_ids(&here), [session], "the control");
    let elsewhere = client.call("session/list", json!({ "cwd": "/" })).await;
    assert_eq!(elsewhere["result"]["sessions"], json!([]));
    for bad in [json!({ "cursor": "zz" }), json!({ "cwd": "relative" })] {
        assert_eq!(client.call("session/list", bad).await["error"]["code"], -32602);
    }
    client.end().await;
}

#[tokio::test]
async fn closed_session_is_unknown() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup::default());
    let close = json!({ "sessionId": client.session().await });
    assert!(client.call("session/close", close.clone()).await.get("result").is_some());
    assert_eq!(client.call("session/close", close.clone()).await["error"]["code"], -32002);
    let prompt = json!({ "sessionId": close["sessionId"], "prompt": [{ "type": "text", "text": "?" }] });
    assert_eq!(client.call("session/prompt", prompt).await["error"]["code"], -32002);
    client.end().await;
}

#[tokio::test]
async fn deleted_session_is_neither_listed_nor_loaded() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup::default());
    let mut ids = Vec::new();
    for prompt in ["one", "two"] {
        let session = client.session().await;
        turn(&mut client, &session, prompt, &[&[text("Yes.")]]).await;
        ids.push(session);
    }
    for _ in 0..2 {
        let deleted = client.call("session/delete", json!({ "sessionId": ids[0] })).await;
        assert_eq!(deleted["result"], json!({}), "the second deletion succeeds, too");
    }
    let load = json!({ "sessionId": ids[0], "cwd": client.cwd(), "mcpServers": [] });
    assert_eq!(client.call("session/load", load).await["error"]["code"], -32002);
    assert_eq!(listed_ids(&client.call("session/list", json!({})).await), [ids[1].clone()]);
    client.end().await;
}

#[tokio::test]
async fn closed_session_answers_prompt_and_can_be_loaded() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup::default());
    let session = client.session().await;
    let prompt = client.prompt(&session, "wait").await;
    client.model.next_request(&session).await;
    let close = client.request("session/close", json!({ "sessionId": session })).await;
    let messages = client.until_answer(close).await;
    let answer = messages.iter().find(|message| message["id"] == prompt).expect("the prompt was answered");
    assert_eq!(answer["result"]["stopReason"], "cancelled");
    let params = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
    let load = client.request("session/load", params.clone()).await;
    let messages = client.until_answer(load).await;
    assert!(messages.last().unwrap().get("result").is_some(), "{messages:?}");
    client.next().await;
    // Loading an active session replays the same updates.
    let load = client.request("session/load", params).await;
    let again = client.until_answer(load).await;
    assert_eq!(updates(&again), updates(&messages));
    client.next().await;
    let elsewhere = json!({ "sessionId": session, "cwd": "/", "mcpServers": [] });
    assert_eq!(client.call("session/load", elsewhere).await["error"]["code"], -32602);
    client.end().await;
}

#[tokio::test]
async fn fork_is_independent_of_the_original() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup { mode: "plan", ..Setup::default() });
    let session = client.session().await;
    turn(&mut client, &session, "first", &[&[text("Yes.")]]).await;
    let params = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
    let answer = client.call("session/fork", params).await;
    client.next().await;
    let fork = answer["result"]["sessionId"].as_str().unwrap().to_owned();
    assert_eq!(answer["result"]["modes"]["currentModeId"], "plan");
    assert_ne!(fork, session);
    set_mode(&mut client, &fork, "code").await;
    turn(&mut client, &fork, "second", &[&[text("No.")]]).await;
    let request = client.model.next_request(&fork).await;
    let output = format!("{:?}", request.messages);
    assert!(output.contains("first") && output.contains("Yes.") && output.contains("second"), "{output}");
    turn(&mut client, &session, "third", &[&[text("Well.")]]).await;
    client.model.next_request(&session).await;
    let request = client.model.next_request(&session).await;
    let output = format!("{:?}", request.messages);
    assert!(output.contains("third") && !output.contains("second"), "{output}");
    assert!(!request.tools.iter().any(|tool| tool.name == "write_file"), "the first is in plan mode still");
    let unknown = json!({ "sessionId": "none", "cwd": client.cwd(), "mcpServers": [] });
    for method in ["session/fork", "session/load", "session/resume"] {
        let answer = client.call(method, unknown.clone()).await;
        assert_eq!(answer["error"]["code"], -32002);
        assert_eq!(answer["error"]["data"]["sessionId"], "none");
    }
    client.end().await;
}

#[tokio::test]
async fn additional_directories_come_from_each_request() {
    let fixture = StoreFixture::new();
    let other = tempfile::tempdir().unwrap();
    let file = other.path().canonicalize().unwrap().join("b.txt");
    let mut client = fixture.agent(Setup { mode: "code", ..Setup::default() });
    client.call("initialize", json!({ "protocolVersion": 1 })).await;
    for bad in [json!(["relative"]), json!(["/does/not/exist"])] {
        let params = json!({ "cwd": client.cwd(), "mcpServers": [], "additionalDirectories": bad });
        assert_eq!(client.call("session/new", params).await["error"]["code"], -32602);
    }
    let params = json!({ "cwd": client.cwd(), "mcpServers": [], "additionalDirectories": [other.path()] });
    let answer = client.call("session/new", params).await;
    let session = answer["result"]["sessionId"].as_str().unwrap().to_owned();
    client.next().await;
    let write = |content: &str| call(content, "write_file", json!({ "path": file, "content": content }));
    turn(&mut client, &session, "write there", &[&[write("one")], &[]]).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
    let list = client.call("session/list", json!({})).await;
    let listed = &list["result"]["sessions"][0]["additionalDirectories"];
    assert_eq!(listed, &json!([other.path().canonicalize().unwrap()]));
    client.end().await;
    // A load without the directory removes it from the session.
    let mut client = fixture.agent(Setup::default());
    open(&mut client, "session/resume", &session).await;
    turn(&mut client, &session, "write there", &[&[write("two")], &[]]).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
    client.end().await;
}

#[tokio::test]
async fn session_with_missing_mode_opens_in_plan() {
    let modes = |text: &str| {
        let mut layers = modegate::policy::Layers::default();
        layers.add("modes.yaml", text, modegate::policy::LayerOwner::User).unwrap();
        layers.modes
    };
    let docs_mode = "modes:\n  - id: docs\n    extends: code\n";
    for (kept, expected) in [(docs_mode, "docs"), ("modes: []\n", "plan")] {
        let fixture = StoreFixture::new();
        let mut client = fixture.agent(Setup { modes: modes(docs_mode), mode: "docs", ..Setup::default() });
        let session = client.session().await;
        turn(&mut client, &session, "hello", &[&[text("Yes.")]]).await;
        client.end().await;
        let mut client = fixture.agent(Setup { modes: modes(kept), ..Setup::default() });
        let messages = open(&mut client, "session/load", &session).await;
        assert_eq!(messages.last().unwrap()["result"]["modes"]["currentModeId"], expected);
        let said = messages.iter().any(|message| message.to_string().contains("Modegate no longer has the"));
        assert_eq!(said, expected == "plan");
        let write = call("w", "write_file", json!({ "path": "a.txt", "content": "x" }));
        turn(&mut client, &session, "write", &[&[write], &[]]).await;
        assert_eq!(client.cwd().join("a.txt").exists(), expected == "docs");
        client.end().await;
    }
}

#[tokio::test]
async fn only_a_single_process_opens_a_session() {
    let fixture = StoreFixture::new();
    let mut one = fixture.agent(Setup::default());
    let session = one.session().await;
    turn(&mut one, &session, "hello", &[&[text("Yes.")]]).await;
    let mut other = fixture.agent(Setup::default());
    let answer = open(&mut other, "session/load", &session).await;
    assert_eq!(answer[0]["error"]["code"], -32600, "{answer:?}");
    assert!(answer[0]["error"]["message"].as_str().unwrap().contains("another process"));
    let deleted = other.call("session/delete", json!({ "sessionId": session })).await;
    assert_eq!(deleted["error"]["code"], -32600);
    one.call("session/close", json!({ "sessionId": session })).await;
    let messages = open(&mut other, "session/load", &session).await;
    assert!(messages.last().unwrap().get("result").is_some(), "{messages:?}");
    other.end().await;
    one.end().await;
}

#[tokio::test]
async fn widening_by_the_client_after_reopening_is_reported() {
    let config = |mode: &'static str| json!({ "configId": "mode", "value": mode });
    for (method, mode, max_mode, is_reported) in [
        ("session/load", Some("code"), None, true),
        ("session/resume", Some("code"), None, true),
        ("session/load", Some("plan"), None, false),
        ("session/load", None, None, false),
        ("session/load", Some("code"), Some("plan"), false),
    ] {
        let fixture = StoreFixture::new();
        let mut client = fixture.agent(Setup { mode: "plan", ..Setup::default() });
        let session = client.session().await;
        turn(&mut client, &session, "one", &[&[text("One.")]]).await;
        client.end().await;
        let mut client = fixture.agent(Setup { mode: "plan", max_mode, ..Setup::default() });
        open(&mut client, method, &session).await;
        if let Some(mode) = mode {
            let mut params = config(mode);
            params["sessionId"] = session.as_str().into();
            let set = client.request("session/set_config_option", params).await;
            client.until_answer(set).await;
        }
        let notice =
            "This session was left in plan mode. Since it was opened again, the editor has set code mode";
        let reports =
            |messages: &[Value]| messages.iter().any(|message| message.to_string().contains(notice));
        let seen = turn(&mut client, &session, "two", &[&[text("Two.")]]).await;
        assert_eq!(reports(&seen), is_reported, "{method} {mode:?}: {seen:?}");
        // After the first prompt, the user is the source of mode changes.
        set_mode(&mut client, &session, "plan").await;
        set_mode(&mut client, &session, "code").await;
        let seen = turn(&mut client, &session, "three", &[&[text("Three.")]]).await;
        assert!(!reports(&seen), "{method} {mode:?}: {seen:?}");
        client.end().await;
    }
}

/// No model reads that much, and the session would keep several copies.
#[tokio::test]
async fn prompts_beyond_16_mib_are_refused() {
    let mut client = TestClient::new();
    let session = client.session().await;
    let id = client.prompt(&session, &"a".repeat(16 * 1024 * 1024 + 1)).await;
    let answer = client.until_answer(id).await.pop().unwrap();
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    let seen = turn(&mut client, &session, &"a".repeat(1000), &[&[text("Yes.")]]).await;
    assert_eq!(seen.last().unwrap()["result"]["stopReason"], "end_turn", "the control");
    client.end().await;
}
