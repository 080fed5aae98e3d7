//! An MCP server over HTTP: its requests, its permissions, and calls that the client cannot end.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::support::Setup;
use crate::tools::mcp::servers::McpSession;

/// The head and the body of each request.
#[derive(Default)]
pub(crate) struct ServerLog {
    requests: Mutex<Vec<(String, Value)>>,
    pub slow: Notify,
}

/// Starts a server on the loopback. The server answers with JSON, and never answers a call of `slow`.
pub(crate) async fn serve() -> (String, Arc<ServerLog>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp?key=hidden-value", listener.local_addr().unwrap());
    let seen = Arc::new(ServerLog::default());
    let all = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_connection(stream, Arc::clone(&all)));
        }
    });
    (url, seen)
}

async fn serve_connection(mut stream: TcpStream, seen: Arc<ServerLog>) {
    let mut bytes = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
        while bytes.len() < end + length.unwrap_or(0) {
            stream.read_buf(&mut bytes).await.unwrap();
        }
        let rest = bytes.split_off(end + length.unwrap_or(0));
        let body: Value = serde_json::from_slice(&bytes[end..]).unwrap_or_default();
        bytes = rest;
        seen.requests.lock().unwrap().push((head.clone(), body.clone()));
        let id = &body["id"];
        let result = match body["method"].as_str() {
            Some("initialize") => {
                json!({ "protocolVersion": "2025-06-18", "capabilities": { "tools": {} }, "serverInfo": { "name": "far", "version": "1" } })
            }
            Some("tools/list") => json!({ "tools": [
                { "name": "look", "inputSchema": { "type": "object" }, "annotations": { "readOnlyHint": true } },
                { "name": "slow", "inputSchema": { "type": "object" } },
            ] }),
            Some("tools/call") if body["params"]["name"] == "slow" => {
                seen.slow.notify_one();
                std::future::pending().await
            }
            Some("tools/call") => json!({ "content": [{ "type": "text", "text": "seen from afar" }] }),
            _ => Value::Null,
        };
        let (status, text) = match (head.starts_with("post"), result.is_null()) {
            (true, false) => ("200 OK", json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string()),
            (true, true) => ("202 Accepted", String::new()),
            _ => ("405 Method Not Allowed", String::new()),
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn running_http_call_is_named_as_unconfirmed() {
    let (url, seen) = serve().await;
    let far = json!([{ "type": "http", "name": "far", "url": url, "headers": [{ "name": "X-Key", "value": "hidden-too" }] }]);
    let mut b = McpSession::with(Setup { mode: "code", ..Setup::default() }, far).await;
    let (_, text) = b.call("mcp__far__look").await;
    assert_eq!(text, "seen from afar");
    let prompt = b.client.prompt(&b.session, "go").await;
    b.say_call("mcp__far__slow");
    seen.slow.notified().await;
    let effect = b.set_mode("plan").await;
    assert_eq!((&effect["ended"], &effect["unconfirmed"]), (&json!([]), &json!(["call_2_1"])), "{effect}");
    b.say_done();
    let answer = b.client.until_answer(prompt).await.pop().unwrap();
    assert_eq!(answer["result"]["stopReason"], "end_turn");
    // In plan mode this tool is not called, while the other one is.
    let (_, text) = b.call("mcp__far__slow").await;
    assert!(text.contains("not available in plan mode"), "{text}");
    let (_, text) = b.call("mcp__far__look").await;
    assert_eq!(text, "seen from afar");
    let requests = std::mem::take(&mut *seen.requests.lock().unwrap());
    assert!(requests.iter().all(|(head, _)| head.contains("x-key: hidden-too")));
    let count = |method: &str, tool: &str| {
        let is_it =
            |body: &Value| body["method"] == method && (tool.is_empty() || body["params"]["name"] == tool);
        requests.iter().filter(|(_, body)| is_it(body)).count()
    };
    assert_eq!((count("tools/call", "slow"), count("tools/call", "look")), (1, 2));
    assert_eq!(count("notifications/cancelled", ""), 1);
    let output = b.slash("/mcp").await;
    assert!(output.contains("- far: ready, 2 tools") && !output.contains("hidden"), "{output}");
    b.client.end().await;
}
