//! HTML pages that slow down careless converters.
//!
//! The converter is done with each in time and returns the expected text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use modegate::http::fetch_client::{AllowedHost, FetchClient};
use modegate::tool::Toolset;
use modegate::tool::web::fetch::FetchLimits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::Setup;
use crate::support::tool_calls::Turns;

/// Returns the result that the model receives for a page, without the line with its address.
async fn converted(body: String) -> String {
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
    let tools = Toolset::built_in().with_fetch(Arc::new(client), FetchLimits::default());
    let mut turns = Turns::new(Setup { mode: "code", tools, ..Setup::default() }).await;
    let started = Instant::now();
    turns.call("fetch", json!({ "url": format!("http://127.0.0.1:{port}/") }), 0).await;
    let text = turns.result();
    turns.client.end().await;
    assert!(started.elapsed() < DEADLINE, "{:?}", started.elapsed());
    let head = format!("[http://127.0.0.1:{port}/, text/html]\n\n");
    text.strip_prefix(&head).unwrap_or_else(|| panic!("{text}")).to_owned()
}

/// A conversion in quadratic time would take hours.
const DEADLINE: Duration = Duration::from_mins(3);

/// Checks the beginning of a page's text.
async fn check(body: String, expected: &str) {
    let text = converted(body).await;
    let start: String = text.chars().take(400).collect();
    assert!(text.starts_with(expected), "expected {expected:?}: {start:?}");
}

#[tokio::test]
async fn huge_colspan_is_converted_in_time() {
    let body = "<table><tr><td colspan=4000000000>x</td><td>y</td></tr></table>";
    assert_eq!(converted(body.into()).await, "| x | y |\n| --- | --- |\n");
}

#[tokio::test]
async fn many_wide_cells_are_converted_in_time() {
    let body = "<table>".to_owned() + &"<tr><td colspan=1000>x<td>y".repeat(2000);
    let expected = "| x | y |\n| --- | --- |\n".to_owned() + &"| x | y |\n".repeat(1999);
    assert_eq!(converted(body).await, expected);
}

#[tokio::test]
async fn largest_list_number_does_not_overflow() {
    let text = converted("<ol start=9223372036854775807><li>a<li>b<li>c</ol>".into()).await;
    let number = "9223372036854775806";
    assert_eq!(text, format!("{number}. a\n{number}. b\n{number}. c\n"));
}

#[tokio::test]
async fn nested_formatting_is_converted_in_time() {
    check("<p>before</p>".to_owned() + &"<b><p>".repeat(200_000) + "x", "before\n\n**x**\n").await;
}

#[tokio::test]
async fn many_columns_are_converted_in_time() {
    check("<table><tr>".to_owned() + &"<td>x".repeat(200_000), &("|".to_owned() + &" x |".repeat(1000)))
        .await;
}

#[tokio::test]
async fn many_attributes_are_converted_in_time() {
    let many: Vec<_> = (0..200_000).map(|number| format!(" a{number}=1")).collect();
    assert_eq!(converted(format!("<p{}>x", many.concat())).await, "x\n");
}

#[tokio::test]
async fn very_long_word_is_converted_in_time() {
    check(format!("<table><tr><td><ul><li><pre>{}", "x".repeat(4_000_000)), &"x".repeat(1000)).await;
}

#[tokio::test]
async fn deep_nesting_of_each_tag_is_converted_in_time() {
    for (tag, innermost) in [
        ("<div>", "\nx\n"),
        ("<span>", "\nx\n"),
        ("<svg><g>", ""),
        ("<table><tr><td>", "\nx\n"),
        ("<button>", "\nx\n"),
        ("<select><option>", "\nx\n"),
        ("<template>", ""),
    ] {
        let deep = match tag {
            "<svg><g>" => "<svg>".to_owned() + &"<g>".repeat(1_200_000),
            _ => tag.repeat(4_500_000 / tag.len()),
        };
        assert_eq!(converted(format!("<p>before</p>{deep}x")).await, format!("before\n{innermost}"), "{tag}");
    }
}
