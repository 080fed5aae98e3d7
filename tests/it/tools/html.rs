//! HTML pages that are built to make the conversion slow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use modegate::http::fetch_client::{AllowedHost, FetchClient};
use modegate::tool::Toolset;
use modegate::tool::fetch::Limits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::Setup;
use crate::support::tool_calls::Turns;

async fn html(body: String) -> (Duration, String) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await;
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n", body.len());
        let _ = stream.write_all(head.as_bytes()).await;
        let _ = stream.write_all(body.as_bytes()).await;
        std::future::pending::<()>().await;
    });
    let client = FetchClient::new(vec![AllowedHost::parse(&format!("127.0.0.1:{port}")).unwrap()], None);
    let tools = Toolset::built_in().with_fetch(Arc::new(client), Limits::default());
    let mut turns = Turns::new(Setup { mode: "code", tools, ..Setup::default() }).await;
    let started = Instant::now();
    turns.call("fetch", json!({ "url": format!("http://127.0.0.1:{port}/") }), 0).await;
    let text = turns.result();
    turns.client.end().await;
    (started.elapsed(), text.chars().take(300).collect())
}

const LONG: Duration = Duration::from_mins(1);

#[tokio::test]
async fn huge_colspan_is_converted_in_time() {
    let (took, text) = html("<table><tr><td colspan=4000000000>x</td><td>y</td></tr></table>".into()).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn many_wide_cells_are_converted_in_time() {
    let (took, text) = html("<table>".to_owned() + &"<tr><td colspan=1000>x<td>y".repeat(2000)).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn largest_list_number_does_not_overflow() {
    let (took, text) = html("<ol start=9223372036854775807><li>a<li>b<li>c</ol>".into()).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn deep_nesting_is_converted_in_time() {
    let (took, text) = html("<div>".repeat(900_000)).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn nested_formatting_is_converted_in_time() {
    let (took, text) = html("<b><p>".repeat(200_000)).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn many_columns_are_converted_in_time() {
    let (took, text) = html("<table><tr>".to_owned() + &"<td>x".repeat(200_000)).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn many_attributes_are_converted_in_time() {
    let many: Vec<_> = (0..200_000).map(|number| format!(" a{number}=1")).collect();
    let many = many.concat();
    let (took, text) = html(format!("<p{many}>x")).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn very_long_word_is_converted_in_time() {
    let (took, text) = html(format!("<table><tr><td><ul><li><pre>{}", "x".repeat(4_000_000))).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn deep_nesting_of_each_tag_is_converted_in_time() {
    for tag in ["<span>", "<svg><g>", "<table><tr><td>", "<button>", "<select><option>", "<template>"] {
        let first = tag.rfind('<').unwrap();
        let body = if tag == "<svg><g>" {
            format!("<svg>{}", tag[first..].repeat(1_200_000))
        } else {
            tag.repeat(5_000_000 / tag.len())
        };
        let (took, text) = html(body).await;
        assert!(took < LONG * 3 && !text.contains("unexpectedly"), "{tag} {took:?} {text}");
    }
}
