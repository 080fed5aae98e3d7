//! The trace context of a prompt reaches the provider and the log, with the requests of its turn and no
//! others.

use serde_json::json;

use crate::models::http_server::Reply;
use crate::models::provider_streams;
use crate::models::providers::wires;
use crate::models::remote::asking;
use crate::modes::stored::BinaryFixture;
use crate::support::Setup;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[tokio::test]
async fn trace_context_of_a_prompt_is_sent_with_the_requests_of_its_turn() {
    for (id, ..) in wires() {
        let call = provider_streams::reply(id, "", &[("c1", "view_background", json!({}))]);
        let replies = [call, provider_streams::text(id, "One."), provider_streams::text(id, "Two.")];
        let (mut agent, server) = asking(id, Setup::default(), replies.map(Reply::stream)).await;
        let session = agent.session().await;
        for meta in
            [json!({ "traceparent": PARENT, "tracestate": "a=b" }), json!({ "traceparent": "00-1-2-3" })]
        {
            let prompt = json!([{ "type": "text", "text": "go" }]);
            let params = json!({ "sessionId": session, "prompt": prompt, "_meta": meta });
            let request = agent.request("session/prompt", params).await;
            let messages = agent.until_answer(request).await;
            assert_eq!(messages.last().unwrap()["result"]["stopReason"], "end_turn", "{id}: {messages:?}");
        }
        let sent: Vec<_> = server
            .requests()
            .iter()
            .map(|request| ["traceparent", "tracestate"].map(|name| request.header(name).map(str::to_owned)))
            .collect();
        let traced = [Some(PARENT.to_owned()), Some("a=b".to_owned())];
        assert_eq!(sent, [traced.clone(), traced, [None, None]], "{id}");
        agent.end().await;
    }
}

#[test]
fn log_lines_of_a_turn_have_the_trace_context_of_its_prompt() {
    let fixture = BinaryFixture::new();
    let store = fixture.path("store.db");
    let session = fixture.session(store.to_str().unwrap(), "plan");
    let model =
        fixture.script(&[json!({ "text": "Yes." }), json!({ "stop": "done" }), json!({ "loop": true })]);
    let prompt = |meta| {
        let text = json!([{ "type": "text", "text": "go" }]);
        ("session/prompt", json!({ "sessionId": session, "prompt": text, "_meta": meta }))
    };
    let requests = [
        ("session/resume", fixture.opening(&session)),
        prompt(json!({ "traceparent": PARENT })),
        prompt(json!({})),
    ];
    let arguments = ["--store", store.to_str().unwrap(), "--model", &model];
    let log = fixture.converse(&arguments, "debug", &requests).errors;
    let begins = log.lines().filter(|line| line.contains("a turn begins"));
    let traced: Vec<bool> = begins.map(|line| line.contains(&format!("traceparent={PARENT}"))).collect();
    assert_eq!(traced, [true, false], "{log}");
}
