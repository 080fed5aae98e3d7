//! Pages that are made to take for ever.

use std::sync::Arc;
use std::time::{Duration, Instant};

use modegate::http::fetch_client::{AllowedHost, FetchClient};
use modegate::tool::Toolset;
use modegate::tool::fetch::Limits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::Setup;
use crate::turns::Turns;

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

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn html_wide_cells() {
    let (took, text) = html("<table><tr><td colspan=4000000000>x</td><td>y</td></tr></table>".into()).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn html_wide_cells_many() {
    let (took, text) = html("<table>".to_owned() + &"<tr><td colspan=1000>x<td>y".repeat(2000)).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn html_high_numbers() {
    let (took, text) = html("<ol start=9223372036854775807><li>a<li>b<li>c</ol>".into()).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn html_deep() {
    let (took, text) = html("<div>".repeat(900_000)).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn html_formatting() {
    let (took, text) = html("<b><p>".repeat(200_000)).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn html_columns() {
    let (took, text) = html("<table><tr>".to_owned() + &"<td>x".repeat(200_000)).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn html_attributes() {
    let many: Vec<_> = (0..200_000).map(|number| format!(" a{number}=1")).collect();
    let many = many.concat();
    let (took, text) = html(format!("<p{many}>x")).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn html_one_word() {
    let (took, text) = html(format!("<table><tr><td><ul><li><pre>{}", "x".repeat(4_000_000))).await;
    assert!(took < LONG && !text.contains("unexpectedly"), "{took:?} {text}");
}

#[tokio::test]
async fn html_deep_spans() {
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
