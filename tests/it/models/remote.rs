//! The agent with a provider at the other end of a loopback connection: the same scenario in each wire
//! format, and provider errors.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use modegate::model::catalog::{ModelCatalog, Reachable, provider};
use modegate::model::endpoint::Endpoint;
use modegate::model::key::Key;
use modegate::model::learnt::Learnt;
use modegate::model::router::{Remote, Router};
use serde_json::{Value, json};

use crate::models::http_server::{Reply, Server};
use crate::models::providers::wires;
use crate::models::{invariants, provider_streams};
use crate::support::{Setup, TestClient, read};

/// In no message, log or store.
const KEY: &str = "very-secret-key";

/// An agent whose model is a provider's model, and the provider's replies.
pub(crate) async fn asking(
    id: &str,
    setup: Setup,
    replies: impl IntoIterator<Item = Reply>,
) -> (TestClient, Server) {
    asking_at(id, true, setup, replies).await
}

/// As `asking`, over this route.
async fn asking_at(
    id: &str,
    is_official: bool,
    setup: Setup,
    replies: impl IntoIterator<Item = Reply>,
) -> (TestClient, Server) {
    asking_through(id, Route { is_elsewhere: !is_official, ..Route::default() }, setup, replies).await
}

/// The connection to the server.
#[derive(Default)]
struct Route {
    is_elsewhere: bool,
    /// The path after the server's address.
    path: &'static str,
    key_header: Option<String>,
    busy_limit: Option<Duration>,
}

async fn asking_through(
    id: &str,
    route: Route,
    setup: Setup,
    replies: impl IntoIterator<Item = Reply>,
) -> (TestClient, Server) {
    let server = Server::start(replies).await;
    let (_, name, wire) = wires().into_iter().find(|(provider, ..)| *provider == id).unwrap();
    let provider = provider(id).unwrap();
    let endpoint = Endpoint {
        base_url: format!("{}{}", server.url, route.path),
        host: "provider.example".into(),
        key: Some(Key::given(KEY.into())),
        key_header: route.key_header,
        key_variable: "PROVIDER_KEY",
        wire,
        is_official: !route.is_elsewhere,
        learnt: Learnt::default(),
        unreachable_hint: None,
        fault: None,
    };
    let described =
        vec![modegate::model::catalog::Described { name: name.into(), context: None, images: None }];
    let models = Arc::new(ModelCatalog::new(vec![Reachable { provider, has_key: true, described }]));
    let endpoints = HashMap::from([(provider.id, Arc::new(endpoint))]);
    let router = Router::new(HashMap::new(), Remote { endpoints, catalog: Arc::clone(&models) });
    let router = router.with_busy_limit(route.busy_limit);
    (TestClient::with(Setup { model: Some(Arc::new(router)), models, ..setup }), server)
}

/// Returns the text that the client shows.
pub(crate) fn shown(messages: &[Value]) -> String {
    let chunks = messages
        .iter()
        .filter(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk");
    chunks.map(|chunk| chunk["params"]["update"]["content"]["text"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn full_turn_works_in_every_provider_format() {
    let everywhere = [true, false].into_iter().flat_map(|official| wires().map(|(id, ..)| (id, official)));
    for (id, is_official) in everywhere {
        let calls = [
            provider_streams::reply(
                id,
                "Let me look.",
                &[("c1", "read_file", json!({ "path": "a.txt" })), ("c2", "view_background", json!({}))],
            ),
            provider_streams::reply(
                id,
                "",
                &[("c3", "edit_file", json!({ "path": "a.txt", "old_text": "one", "new_text": "two" }))],
            ),
            provider_streams::text(id, "Done."),
        ];
        let (mut agent, server) =
            asking_at(id, is_official, Setup::default(), calls.map(Reply::stream)).await;
        std::fs::write(agent.cwd().join("a.txt"), "one\n").unwrap();
        let session = agent.session().await;
        let prompt = agent.prompt(&session, "Make it two.").await;
        let mut messages = Vec::new();
        loop {
            let message = agent.next().await;
            if message["method"] == "session/request_permission" {
                let outcome = json!({ "outcome": "selected", "optionId": "allow_once" });
                let answer =
                    json!({ "jsonrpc": "2.0", "id": message["id"], "result": { "outcome": outcome } });
                agent.send_line(&answer.to_string()).await;
            }
            messages.push(message);
            if messages.last().unwrap()["id"] == prompt && messages.last().unwrap().get("method").is_none() {
                break;
            }
        }
        assert_eq!(messages.last().unwrap()["result"]["stopReason"], "end_turn", "{id}: {messages:#?}");
        assert_eq!(read(&agent.cwd(), "a.txt").as_deref(), Some("two\n"), "{id}: {messages:#?}");
        let shown = shown(&messages);
        // The client is not known to show the change that it asks about.
        assert!(
            shown.starts_with("Let me look.\n\n```diff\n") && shown.ends_with("```\n\nDone."),
            "{id}: {shown}"
        );
        let usage = messages
            .iter()
            .rfind(|message| message["params"]["update"]["sessionUpdate"] == "usage_update")
            .unwrap();
        assert_eq!(usage["params"]["update"]["used"], 120, "{id}");
        let read_from_cache = &usage["params"]["update"]["_meta"]["modegate/tokens"]["cacheRead"];
        assert_eq!(*read_from_cache, if id == "ollama" { 0 } else { 90 }, "{id}");
        let requests = server.requests();
        assert_eq!(requests.len(), 3, "{id}");
        for request in &requests {
            invariants::check(id, &request.body());
            let key =
                ["authorization", "x-api-key", "x-goog-api-key"].iter().find_map(|name| request.header(name));
            assert!(key.unwrap().ends_with(KEY), "{id}");
            assert!(!request.text.contains(KEY), "{id}");
        }
        assert!(requests[2].text.contains("c3"), "{id}");
        let path = match id {
            "anthropic" => "/v1/messages",
            "gemini" => "/v1beta/models/gemini-4-hydrogen:streamGenerateContent?alt=sse",
            "ollama" => "/api/chat",
            "openai" => "/chat/completions",
            _ => "/responses",
        };
        assert!(requests.iter().all(|request| request.path == path), "{id}: {}", requests[0].path);
        agent.end().await;
    }
}

/// Returns the costs in usage updates.
fn costs(messages: &[Value]) -> Vec<Value> {
    let updates = messages.iter().map(|message| &message["params"]["update"]);
    updates
        .filter(|update| update["sessionUpdate"] == "usage_update")
        .map(|update| update["cost"].clone())
        .collect()
}

#[tokio::test]
async fn cost_is_the_sum_of_the_session_and_survives_load() {
    let reply = |more: &str| {
        let stream = String::from_utf8(provider_streams::text("openai", "Done.")).unwrap();
        let (before, usage) = stream.split_once(r#""completion_tokens":20"#).expect("usage");
        Reply::stream(format!(r#"{before}"completion_tokens":20{more}{usage}"#).into_bytes())
    };
    let credits = |amount: f64| json!({ "amount": amount, "currency": "credits" });
    let reported = [
        ("", Value::Null),
        (r#","cost":0.25"#, credits(0.25)),
        (r#","cost":{"total":1}"#, credits(0.25)),
        (r#","cost":-1"#, credits(0.25)),
        (r#","cost":1.5e-7"#, credits(0.250_000_15)),
        (r#","cost":0.5"#, credits(0.750_000_15)),
    ];
    let replies: Vec<_> = reported.iter().map(|(more, _)| reply(more)).collect();
    let (mut agent, _server) = asking("openai", Setup::default(), replies).await;
    let session = agent.session().await;
    let (last, first) = reported.split_last().unwrap();
    for (more, expected) in first {
        let prompt = agent.prompt(&session, "go").await;
        assert_eq!(costs(&agent.until_answer(prompt).await), std::slice::from_ref(expected), "{more}");
    }
    agent.call("session/close", json!({ "sessionId": session })).await;
    let params = json!({ "sessionId": session, "cwd": agent.cwd(), "mcpServers": [] });
    let load = agent.request("session/load", params).await;
    let expected: Vec<_> = first.iter().map(|(_, cost)| cost.clone()).collect();
    assert_eq!(costs(&agent.until_answer(load).await), expected);
    let prompt = agent.prompt(&session, "go").await;
    assert_eq!(costs(&agent.until_answer(prompt).await), std::slice::from_ref(&last.1));
    agent.end().await;
}

#[tokio::test]
async fn cancel_during_thinking_leaves_a_valid_conversation() {
    for (id, ..) in wires() {
        let whole = String::from_utf8(provider_streams::text(id, "Said.")).unwrap();
        // Returns the stream up to the frame before the first text, with the content that the provider
        // requires back.
        let frames: Vec<&str> = whole.split_inclusive(if id == "ollama" { "\n" } else { "\n\n" }).collect();
        let thought: String = match id {
            "gemini" | "ollama" => {
                whole
                    .replace("\"text\":\"Said.\"", "\"text\":\"\"")
                    .replace("Said.", "")
                    .lines()
                    .next()
                    .unwrap()
                    .replace("STOP", "")
                    + "\n\n"
            }
            _ => frames
                .iter()
                .take_while(|frame| !frame.contains("Said.") && !frame.contains("\"type\":\"text\""))
                .copied()
                .collect(),
        };
        let thought = thought.replace("\"finishReason\":\"\",", "");
        let hanging = Reply { hangs: true, ..Reply::stream(thought) };
        let replies = [hanging, Reply::stream(provider_streams::text(id, "Here."))];
        let (mut agent, server) = asking(id, Setup::default(), replies).await;
        let session = agent.session().await;
        let prompt = agent.prompt(&session, "hello").await;
        let mut messages = vec![agent.next().await];
        while messages.last().unwrap()["params"]["update"]["sessionUpdate"] != "agent_thought_chunk" {
            messages.push(agent.next().await);
        }
        agent.notify("session/cancel", json!({ "sessionId": session })).await;
        let end = agent.until_answer(prompt).await.pop().unwrap();
        assert_eq!(end["result"]["stopReason"], "cancelled", "{id}");
        server.connection_closed().await;
        let prompt = agent.prompt(&session, "and now?").await;
        let messages = agent.until_answer(prompt).await;
        assert_eq!(shown(&messages), "Here.", "{id}");
        invariants::check(id, &server.requests()[1].body());
        agent.end().await;
    }
}

#[tokio::test]
async fn failed_attempt_leaves_no_partial_state() {
    let reasoning = |id: &str| {
        let item = json!({ "id": id, "type": "reasoning", "summary": [], "encrypted_content": "gAAA" });
        json!({ "type": "response.output_item.done", "item": item })
    };
    let cut = format!("data: {}\n\n", reasoning("rs_given_up"));
    let error = r#"data: {"type":"error","code":"server_error","message":"oops very-secret-key"}"#;
    let replies = [
        Reply::stream(format!("{cut}{error}\n\n")),
        Reply::stream(provider_streams::text("openai-responses", "Here.")),
        Reply::stream(provider_streams::text("openai-responses", "There.")),
    ];
    let (mut agent, server) = asking("openai-responses", Setup::default(), replies).await;
    let session = agent.session().await;
    for words in ["Here.", "There."] {
        let prompt = agent.prompt(&session, "hello").await;
        let messages = agent.until_answer(prompt).await;
        assert!(shown(&messages).ends_with(words), "{messages:#?}");
        assert!(messages.iter().all(|message| !message.to_string().contains(KEY)), "{messages:#?}");
    }
    let last = server.requests().pop().unwrap().text;
    assert!(!last.contains("rs_given_up") && last.contains("rs_1"), "{last}");
    agent.end().await;
}

#[tokio::test]
async fn rejected_signatures_are_omitted_on_retry() {
    let wrong = r#"{"error":{"message":"messages.1.content.0: Invalid `signature` in `thinking` block."}}"#;
    let replies = [
        Reply::stream(provider_streams::text("anthropic", "One.")),
        Reply::error(400, wrong),
        Reply::stream(provider_streams::text("anthropic", "Two.")),
    ];
    let (mut agent, server) = asking("anthropic", Setup::default(), replies).await;
    let session = agent.session().await;
    for words in ["One.", "Two."] {
        let prompt = agent.prompt(&session, "hello").await;
        let messages = agent.until_answer(prompt).await;
        assert_eq!(shown(&messages), words);
    }
    let sent: Vec<bool> = server.requests().iter().map(|asked| asked.text.contains("c2ln")).collect();
    assert_eq!(sent, [false, true, false]);
    agent.end().await;
}

#[tokio::test]
async fn streaming_call_is_shown_and_failed_if_cut_off() {
    let cut =
        std::fs::read(crate::models::providers::folder("anthropic").join("call_cut_off_by_the_limit.sse"))
            .unwrap();
    let call = provider_streams::reply("anthropic", "", &[("c1", "read_file", json!({ "path": "a.txt" }))]);
    let replies = [call, provider_streams::text("anthropic", "Read."), cut].map(Reply::stream);
    let (mut agent, _server) = asking("anthropic", Setup::default(), replies).await;
    std::fs::write(agent.cwd().join("a.txt"), "one\n").unwrap();
    let session = agent.session().await;
    let about_calls = |messages: Vec<Value>| -> Vec<(Value, Value, Value)> {
        let updates = messages.into_iter().map(|message| message["params"]["update"].clone());
        let calls = updates.filter(|update| update["toolCallId"].is_string());
        calls
            .map(|call| (call["sessionUpdate"].clone(), call["title"].clone(), call["status"].clone()))
            .collect()
    };
    let prompt = agent.prompt(&session, "read").await;
    let seen = about_calls(agent.until_answer(prompt).await);
    let expected = [
        ("tool_call", json!("read_file"), Value::Null),
        ("tool_call_update", json!("Read `a.txt`"), Value::Null),
        ("tool_call_update", Value::Null, json!("in_progress")),
        ("tool_call_update", Value::Null, json!("completed")),
    ];
    assert_eq!(seen, expected.map(|(update, title, status)| (json!(update), title, status)));
    let prompt = agent.prompt(&session, "write").await;
    let seen = about_calls(agent.until_answer(prompt).await);
    assert_eq!(seen[0].1, "write_file");
    assert_eq!(seen.last().unwrap().2, "failed", "{seen:?}");
    agent.end().await;
}

/// Runs a turn. Returns the prompt's answer, the text, and the server.
async fn turn(id: &str, replies: Vec<Reply>) -> (Value, String, Server) {
    let (mut agent, server) = asking(id, Setup::default(), replies).await;
    let session = agent.session().await;
    let prompt = agent.prompt(&session, "hello").await;
    let messages = agent.until_answer(prompt).await;
    for message in &messages {
        assert!(!message.to_string().contains(KEY), "{message}");
    }
    // The session continues: the next request reaches the server, which has no replies left.
    let again = agent.prompt(&session, "again").await;
    let error = agent.until_answer(again).await.pop().unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains("the play is over"), "{error}");
    invariants::check(id, &server.requests().last().unwrap().body());
    agent.end().await;
    (messages.last().unwrap().clone(), shown(&messages), server)
}

#[tokio::test]
async fn temporary_provider_errors_are_retried_visibly() {
    let busy = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let replies = vec![
        Reply::error(529, busy).header("retry-after-ms", "20"),
        Reply::error(429, r#"{"error":{"type":"rate_limit_error","message":"Slow down"}}"#)
            .header("retry-after", "0.01"),
        Reply::stream(
            "data: {\"type\":\"message_start\",\"message\":{}}\n\ndata: {\"type\":\"message_stop\"}\n\n",
        ),
        Reply::stream(provider_streams::text("anthropic", "Here.")),
    ];
    let (answer, text, server) = turn("anthropic", replies).await;
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert!(
        text.contains("provider.example is overloaded (HTTP 529): Overloaded. Retrying in 0.0 s."),
        "{text}"
    );
    assert!(text.contains("limiting the rate (HTTP 429): Slow down"), "{text}");
    assert!(text.contains("the model returned an empty reply"), "{text}");
    assert!(text.ends_with("Here."), "{text}");
    assert_eq!(server.requests().len(), 5);
}

/// The same request would get the same reply.
#[tokio::test]
async fn empty_reply_after_results_is_answered_with_a_note() {
    let empty = "data: {\"type\":\"message_start\",\"message\":{}}\n\ndata: {\"type\":\"message_stop\"}\n\n";
    let call = provider_streams::reply("anthropic", "", &[("c1", "find_files", json!({ "pattern": "*" }))]);
    let replies = [
        Reply::stream(call),
        Reply::stream(empty),
        Reply::stream(provider_streams::text("anthropic", "Done.")),
    ];
    let (mut client, server) = asking("anthropic", Setup::default(), replies).await;
    let session = client.session().await;
    let id = client.prompt(&session, "find").await;
    let messages = client.until_answer(id).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "end_turn", "{messages:#?}");
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    invariants::check("anthropic", &requests[2].body());
    assert!(
        requests[2].text.contains("Your last reply had no words")
            && !requests[1].text.contains("had no words")
    );
    client.end().await;
}

#[tokio::test]
async fn permanent_errors_keep_partial_output() {
    let whole = String::from_utf8(provider_streams::text("openai", "Half")).unwrap();
    let half = &whole[..whole.find("data: {\"choices\":[{\"index\":0,\"delta\":{}").unwrap()];
    let page = Reply {
        headers: vec![("content-type", "text/html".into())],
        ..Reply::stream("<html>Sign in</html>")
    };
    let cases: Vec<(&str, Reply, i64, &str, &str)> = vec![
        (
            "anthropic",
            Reply::error(401, &format!(r#"{{"error":{{"message":"bad {KEY}"}}}}"#)),
            -32000,
            "does not accept the key (HTTP 401): check PROVIDER_KEY",
            "",
        ),
        (
            "openai",
            Reply::error(404, r#"{"error":{"message":"no such model"}}"#),
            -32603,
            "does not have the model \"gpt-6-luna\"",
            "",
        ),
        (
            "openai",
            Reply::error(400, &format!(r#"{{"error":{{"message":"odd {KEY}"}}}}"#)),
            -32603,
            "rejects the request (HTTP 400): odd [key]",
            "",
        ),
        (
            "openai",
            Reply::error(200, r#"{"choices":[{"message":{"content":"whole"}}]}"#),
            -32603,
            "without a stream",
            "",
        ),
        ("openai", page, -32603, "web page", ""),
        (
            "openai",
            Reply::error(302, "").header("location", "http://elsewhere.example/"),
            -32603,
            "redirects to another address",
            "",
        ),
        (
            "openai",
            Reply::stream(
                half.to_owned()
                    + "data: {\"error\":{\"type\":\"invalid_request_error\",\"message\":\"odd end\"}}\n\n",
            ),
            -32603,
            "the provider ended the reply: odd end",
            "Half",
        ),
    ];
    for (id, reply, code, words, kept) in cases {
        let (answer, text, server) = turn(id, vec![reply]).await;
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(words), "{answer}");
        assert_eq!(text, kept, "{answer}");
        let second = server.requests().pop().unwrap().text;
        assert_eq!(second.contains("Half"), !kept.is_empty(), "what was said is in the history: {second}");
    }
}

#[tokio::test]
async fn unsupported_parameters_are_omitted_from_then_on() {
    let refusal = r#"{"error":{"message":"Unsupported parameter: 'stream_options'"}}"#;
    let replies = vec![Reply::error(400, refusal), Reply::stream(provider_streams::text("openai", "Hello."))];
    let (answer, text, server) = turn("openai", replies).await;
    assert_eq!((answer["result"]["stopReason"].as_str(), text.as_str()), (Some("end_turn"), "Hello."));
    let sent: Vec<bool> =
        server.requests().iter().map(|asked| asked.body().get("stream_options").is_some()).collect();
    assert_eq!(sent, [true, false, false]);
}

#[tokio::test]
async fn unsupported_anthropic_features_are_omitted() {
    for (refusal, has_header, has_thinking) in [
        ("adaptive thinking is not supported on this model", true, false),
        (
            "Unexpected value(s) `thinking-binding-controls-2026-08-01` for the `anthropic-beta` header",
            false,
            true,
        ),
        ("thinking.block_binding: Extra inputs are not permitted", false, true),
    ] {
        let refusal =
            json!({ "type": "error", "error": { "type": "invalid_request_error", "message": refusal } });
        let replies = vec![
            Reply::error(400, &refusal.to_string()),
            Reply::stream(provider_streams::text("anthropic", "Hello.")),
        ];
        let (answer, text, server) = turn("anthropic", replies).await;
        assert_eq!((answer["result"]["stopReason"].as_str(), text.as_str()), (Some("end_turn"), "Hello."));
        let requests = server.requests();
        assert!(requests[0].header("anthropic-beta").is_some() && requests[0].text.contains("block_binding"));
        for request in &requests[1..] {
            assert_eq!(request.header("anthropic-beta").is_some(), has_header, "{refusal}");
            assert_eq!(request.body().get("thinking").is_some(), has_thinking, "{refusal}");
            assert!(!request.text.contains("block_binding"), "{refusal}");
        }
    }
}

#[tokio::test]
async fn token_limits_and_refusals_are_stop_reasons() {
    let limit =
        std::fs::read(crate::models::providers::folder("anthropic").join("call_cut_off_by_the_limit.sse"))
            .unwrap();
    let (answer, _, server) = turn("anthropic", vec![Reply::stream(limit); 4]).await;
    assert_eq!(answer["result"]["stopReason"], "max_tokens");
    assert_eq!(server.requests().len(), 5, "three more, and that of the next prompt");
    let refusal =
        std::fs::read(crate::models::providers::folder("openai-responses").join("refusal.sse")).unwrap();
    let (answer, text, _) = turn("openai-responses", vec![Reply::stream(refusal)]).await;
    assert_eq!((answer["result"]["stopReason"].as_str(), text.as_str()), (Some("refusal"), "I will not."));
}

#[tokio::test]
async fn cancel_closes_the_provider_connection() {
    let text = String::from_utf8(provider_streams::text("openai", "Half")).unwrap();
    let start: String = text.split_inclusive("\n\n").take(2).collect();
    for (stream, expected) in [(String::new(), ""), (start, "Half")] {
        let hanging = Reply { hangs: true, ..Reply::stream(stream) };
        let (mut agent, server) = asking("openai", Setup::default(), [hanging]).await;
        let session = agent.session().await;
        let prompt = agent.prompt(&session, "hello").await;
        server.wait_for(1).await;
        let mut messages = vec![agent.next().await];
        while !expected.is_empty() && shown(&messages) != expected {
            messages.push(agent.next().await);
        }
        agent.notify("session/cancel", json!({ "sessionId": session })).await;
        messages.extend(agent.until_answer(prompt).await);
        assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
        assert_eq!(shown(&messages), expected);
        server.connection_closed().await;
        agent.end().await;
    }
}

#[tokio::test]
async fn cancel_ends_the_retry_wait() {
    for (seconds, shown_wait) in [("50", "Retrying in 50.0 s."), ("7200", "Retrying in 2 h 0 min. Cancel")] {
        let busy = Reply::error(503, "{}").header("retry-after", seconds);
        let (mut agent, server) = asking("openai", Setup::default(), [busy]).await;
        let session = agent.session().await;
        let prompt = agent.prompt(&session, "hello").await;
        server.wait_for(1).await;
        let mut messages = vec![agent.next().await];
        while !shown(&messages).contains(shown_wait) {
            messages.push(agent.next().await);
        }
        agent.notify("session/cancel", json!({ "sessionId": session })).await;
        let end = tokio::time::timeout(Duration::from_secs(10), agent.until_answer(prompt)).await.unwrap();
        assert_eq!(end.last().unwrap()["result"]["stopReason"], "cancelled");
        agent.end().await;
    }
}

#[tokio::test]
async fn busy_provider_is_asked_until_it_answers() {
    let replies = |status: u16| {
        let busy = Reply::error(status, "{}").header("retry-after-ms", "1");
        let here = Reply::stream(provider_streams::text("openai", "Here."));
        std::iter::repeat_n(busy, 8).chain([here]).collect::<Vec<_>>()
    };
    for status in [429, 503, 529] {
        let (answer, text, server) = turn("openai", replies(status)).await;
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        assert!(text.ends_with("Here.") && text.matches("Retrying in 0.0 s.").count() == 8, "{text}");
        assert_eq!(server.requests().len(), 10);
    }
}

#[tokio::test]
async fn long_waits_are_shown_every_five_minutes() {
    let busy = Reply::error(429, r#"{"error":{"message":"Slow down"}}"#).header("retry-after", "720");
    let replies = [busy, Reply::stream(provider_streams::text("openai", "Here."))];
    let (mut agent, server) = asking("openai", Setup::default(), replies).await;
    let session = agent.session().await;
    let prompt = agent.prompt(&session, "hello").await;
    let mut text = String::new();
    for (wait, passes) in [("12 min 0 s", 300), ("7 min 0 s", 300), ("2 min 0 s", 120)] {
        let expected = format!("Slow down. Retrying in {wait}. Cancel the turn to stop waiting.\n");
        while !text.ends_with(&expected) {
            text += &shown(&[agent.next().await]);
        }
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(passes)).await;
        tokio::time::resume();
    }
    text += &shown(&agent.until_answer(prompt).await);
    assert!(text.matches("Retrying").count() == 3 && text.ends_with("Here."), "{text}");
    assert_eq!(server.requests().len(), 2);
    agent.end().await;
}

#[tokio::test]
async fn context_is_learnt_from_the_servers_list_of_models() {
    let too_long = || Reply::error(400, r#"{"error":{"code":"context_length_exceeded","message":"no"}}"#);
    let prompt = "word ".repeat(9_000);
    for (list, expected) in [
        (r#"{"data":[{"id":"gpt-6-luna","max_model_len":8192}]}"#, "takes 8,192 tokens"),
        (r#"{"data":[]}"#, "takes 922,000 tokens"),
    ] {
        let (mut agent, server) = asking_at("openai", false, Setup::default(), [too_long()]).await;
        server.lists(list);
        let session = agent.session().await;
        let id = agent.prompt(&session, &prompt).await;
        let answer = agent.until_answer(id).await.pop().unwrap();
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("45,000 bytes") && message.contains(expected), "{message}");
        agent.end().await;
    }
}

#[tokio::test]
async fn context_is_read_from_the_servers_list_before_it_is_needed() {
    for (is_official, expected) in [(false, 8_192), (true, 922_000)] {
        let replies = (0..6).map(|_| Reply::stream(provider_streams::text("openai", "Here.")));
        let (mut agent, server) = asking_at("openai", is_official, Setup::default(), replies).await;
        server.lists(r#"{"data":[{"id":"gpt-6-luna","max_model_len":8192}]}"#);
        let session = agent.session().await;
        let mut sizes = Vec::new();
        // The list is read beside the first request, so the size is known in a later turn.
        for prompt in ["word ".repeat(5_000), "a".into(), "b".into(), "c".into(), "d".into()] {
            let id = agent.prompt(&session, &prompt).await;
            let messages = agent.until_answer(id).await;
            sizes.extend(messages.iter().filter_map(|line| line["params"]["update"]["size"].as_u64()));
        }
        assert_eq!((sizes[0], sizes.last()), (922_000, Some(&expected)), "{sizes:?}");
        agent.end().await;
    }
}

#[tokio::test]
async fn busy_provider_is_given_up_after_the_limit_of_a_run_without_an_editor() {
    let busy = || Reply::error(429, r#"{"error":{"message":"Slow down"}}"#).header("retry-after", "90");
    let route = || Route { busy_limit: Some(Duration::from_mins(1)), ..Route::default() };
    let (mut agent, server) = asking_through("openai", route(), Setup::default(), [busy()]).await;
    let session = agent.session().await;
    let id = agent.prompt(&session, "hello").await;
    let answer = agent.until_answer(id).await.pop().unwrap();
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("Slow down. A run without an editor waits 60 s at most"), "{message}");
    assert_eq!(server.requests().len(), 1);
    agent.end().await;
    // The control: the run waits for a shorter time.
    let replies = [
        Reply::error(429, "{}").header("retry-after-ms", "1"),
        Reply::stream(provider_streams::text("openai", "Here.")),
    ];
    let (mut agent, server) = asking_through("openai", route(), Setup::default(), replies).await;
    let session = agent.session().await;
    let id = agent.prompt(&session, "hello").await;
    assert_eq!(agent.until_answer(id).await.pop().unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(server.requests().len(), 2);
    agent.end().await;
}

/// The address has the model's name and the API version.
#[tokio::test]
async fn azure_address_and_header_are_used() {
    for (id, path) in [("openai", "/chat/completions"), ("openai-responses", "/responses")] {
        let route = Route {
            is_elsewhere: true,
            path: "/openai/deployments/m?api-version=2026-05-01",
            key_header: Some("api-key".into()),
            ..Route::default()
        };
        let replies = [Reply::stream(provider_streams::text(id, "Here."))];
        let (mut agent, server) = asking_through(id, route, Setup::default(), replies).await;
        let session = agent.session().await;
        let prompt = agent.prompt(&session, "hello").await;
        assert!(shown(&agent.until_answer(prompt).await).contains("Here."), "{id}");
        let request = &server.requests()[0];
        assert_eq!(request.path, format!("/openai/deployments/m{path}?api-version=2026-05-01"));
        assert_eq!((request.header("api-key"), request.header("authorization")), (Some(KEY), None), "{id}");
        agent.end().await;
    }
}
