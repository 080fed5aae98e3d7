//! `fetch` with servers on the loopback: reachable addresses, limits, permissions and rules.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use modegate::http::fetch_client::{AllowedHost, FetchClient, Lookup};
use modegate::policy::{LayerOwner, Layers};
use modegate::tool::Toolset;
use modegate::tool::web::fetch::FetchLimits;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::support::tool_calls::{Turns, text};
use crate::support::{Setup, TIMEOUT};

/// An HTTP server that chooses its answer by the path and records each request.
pub(crate) struct HttpServer {
    pub port: u16,
    /// The heads of all requests.
    heads: Arc<Mutex<Vec<String>>>,
    /// Receives a message for each connection that the client closes before the answer.
    closed: mpsc::UnboundedReceiver<()>,
    begun: mpsc::UnboundedReceiver<()>,
}

impl HttpServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let ((close, closed), (start, started)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let stored = Arc::clone(&heads);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&stored), start.clone(), close.clone()));
            }
        });
        Self { port, heads, closed, begun: started }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn asked(&self) -> usize {
        self.heads.lock().unwrap().len()
    }
}

async fn serve(
    mut stream: TcpStream,
    heads: Arc<Mutex<Vec<String>>>,
    begin: mpsc::UnboundedSender<()>,
    close: mpsc::UnboundedSender<()>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let target = head.split(' ').nth(1).unwrap().to_owned();
    heads.lock().unwrap().push(head);
    let redirect = |to: &str| format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
    let answer = |kind: &str, body: &str| {
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    let text = match target.split_once("?to=") {
        Some((_, to)) => redirect(to),
        None => match target.as_str() {
            "/html" => answer("text/html", "<h1>Hello</h1><a href=/next>on</a>"),
            "/json" => answer("application/json", r#"{"a":1}"#),
            "/picture" => answer("image/png", "x"),
            "/missing" => "HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnope".into(),
            "/once" => redirect("json"),
            "/cookie" => {
                "HTTP/1.1 302 Found\r\nset-cookie: a=b\r\nlocation: /json\r\ncontent-length: 0\r\n\r\n".into()
            }
            "/endless" => "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n".into(),
            "/silent" => String::new(),
            _ => answer("text/plain", "said"),
        },
    };
    let _ = stream.write_all(text.as_bytes()).await;
    // The test may have dropped its receiver.
    let _ = begin.send(());
    if target == "/endless" {
        while stream.write_all(&[b'x'; 1000]).await.is_ok() {}
        let _ = close.send(());
    } else if target == "/silent" {
        let _ = stream.read_u8().await;
        let _ = close.send(());
    }
}

/// Resolves every name to fixed addresses, and records the names.
#[derive(Default)]
struct FixedLookup(Arc<Mutex<Vec<String>>>);

impl Lookup for FixedLookup {
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.0.lock().unwrap().push(name);
        async { Ok(vec![IpAddr::from([127, 0, 0, 1])]) }.boxed()
    }
}

fn allowing(hosts: &[String]) -> FetchClient {
    FetchClient::new(hosts.iter().map(|host| AllowedHost::parse(host).unwrap()).collect(), None)
}

/// A client that may connect to this loopback server.
pub(crate) fn fetch_client(site: &HttpServer) -> FetchClient {
    allowing(&[format!("127.0.0.1:{}", site.port)])
}

fn setup_reaching(site: &HttpServer) -> Setup {
    with(fetch_client(site), FetchLimits::default())
}

fn with(client: FetchClient, limits: FetchLimits) -> Setup {
    Setup {
        mode: "code",
        tools: Toolset::built_in().with_fetch(Arc::new(client), limits),
        ..Setup::default()
    }
}

/// Fetches an address, and returns the result that the model receives.
async fn get(turns: &mut Turns, url: &str) -> String {
    ask(turns, url, 0).await;
    turns.result()
}

async fn ask(turns: &mut Turns, url: &str, option: usize) -> (Vec<Value>, Value) {
    turns.call("fetch", json!({ "url": url }), option).await
}

async fn check(turns: &mut Turns, url: &str, expected: &str) {
    let text: String = get(turns, url).await;
    let start: String = text.chars().take(500).collect();
    assert!(text.contains(expected), "{url}: {start}");
}

#[tokio::test]
async fn fetch_returns_text_and_sends_only_the_address() {
    let site = HttpServer::start().await;
    let mut turns = Turns::new(setup_reaching(&site)).await;
    let page = get(&mut turns, &site.url("/html#part")).await;
    let expected = format!("[{}, text/html]\n\n# Hello\n\n[on]({})\n", site.url("/html"), site.url("/next"));
    assert_eq!(page, expected);
    check(&mut turns, &site.url("/json"), "application/json]\n\n{\"a\":1}").await;
    check(&mut turns, &site.url("/picture"), "is not text (image/png, 1 bytes)").await;
    check(&mut turns, &site.url("/missing"), "the server answered 404 Not Found.\nnope").await;
    check(&mut turns, &site.url("/cookie"), "redirects to").await;
    check(&mut turns, &site.url("/json"), "{\"a\":1}").await;
    for (url, why) in [
        ("file:///etc/passwd", "begins with file:"),
        ("http://u:p@127.0.0.1/", "name or password"),
        ("/html", "not a valid URL"),
    ] {
        check(&mut turns, url, why).await;
    }
    for head in site.heads.lock().unwrap().iter() {
        let names: Vec<_> =
            head.lines().skip(1).filter_map(|line| line.split_once(':')).map(|header| header.0).collect();
        assert_eq!(names, ["accept", "user-agent", "host"], "{head}");
        assert!(head.starts_with("GET /") && !head.contains("part"), "{head}");
    }
    turns.client.end().await;
}

#[tokio::test]
async fn private_addresses_are_fetched_only_if_allowed() {
    let site = HttpServer::start().await;
    let mut turns = Turns::new(with(allowing(&[]), FetchLimits::default())).await;
    let port = site.port;
    for host in
        ["127.0.0.1", "localhost", "localhost.", "[::ffff:127.0.0.1]", "2130706433", "0x7f.0.0.1", "0"]
    {
        check(&mut turns, &format!("http://{host}:{port}/json"), "Only public servers").await;
    }
    check(&mut turns, "http://169.254.169.254/latest/meta-data/", "where clouds keep their metadata").await;
    assert_eq!(site.asked(), 0);
    turns.client.end().await;
    let mut control =
        Turns::new(with(allowing(&["localhost:*".into(), "127.0.0.1:*".into()]), FetchLimits::default()))
            .await;
    for host in ["127.0.0.1", "localhost", "localhost.", "2130706433", "0x7f.0.0.1"] {
        check(&mut control, &format!("http://{host}:{port}/json"), "{\"a\":1}").await;
    }
    assert_eq!(site.asked(), 5);
    control.client.end().await;
}

/// The connecting client resolves a name once and checks the addresses.
#[tokio::test]
async fn names_resolving_to_private_addresses_are_denied() {
    let site = HttpServer::start().await;
    for (allowed, expected, request_count) in
        [(vec![], "resolves to 127.0.0.1", 0), (vec!["rebind.example:*".to_owned()], "{\"a\":1}", 1)]
    {
        let names = FixedLookup::default();
        let looked_up = Arc::clone(&names.0);
        let client = allowing(&allowed).with_lookup(Arc::new(names));
        let mut turns = Turns::new(with(client, FetchLimits::default())).await;
        check(&mut turns, &format!("http://rebind.example:{}/json", site.port), expected).await;
        assert_eq!((site.asked(), looked_up.lock().unwrap().len()), (request_count, 1));
        turns.client.end().await;
    }
}

#[tokio::test]
async fn redirects_are_reported_and_not_followed() {
    let site = HttpServer::start().await;
    let other = HttpServer::start().await;
    let hosts = [&site, &other].map(|site| format!("127.0.0.1:{}", site.port));
    let mut turns = Turns::new(with(allowing(&hosts), FetchLimits::default())).await;
    check(&mut turns, &site.url("/once"), &format!("redirects to {}:", site.url("/json"))).await;
    let text = format!("redirects to {}:", other.url("/json"));
    check(&mut turns, &site.url(&format!("/x?to={}", other.url("/json"))), &text).await;
    for target in [&site.url("/x"), "http://localhost/json", "https://127.0.0.1/", "http://169.254.169.254/"]
    {
        let text = format!("redirects to {target}: nothing was fetched from there");
        check(&mut turns, &site.url(&format!("/x?to={target}")), &text).await;
    }
    check(&mut turns, &site.url("/x?to=file:///etc/passwd"), "begins with file:").await;
    check(&mut turns, &site.url("/x?to=http://u:p@127.0.0.1/"), "name or password").await;
    assert_eq!((site.asked(), other.asked()), (8, 0), "each is asked once");
    check(&mut turns, &other.url("/json"), "{\"a\":1}").await;
    turns.client.end().await;
}

/// Following a redirect takes a second call, also on the same server.
#[tokio::test]
async fn deny_rule_covers_redirect_targets() {
    let site = HttpServer::start().await;
    let tools = Toolset::built_in().with_fetch(Arc::new(fetch_client(&site)), FetchLimits::default());
    let rules = layers("permissions: {deny: ['fetch(http://127.0.0.1/json*)']}").rules;
    let mut turns = Turns::new(Setup { mode: "code", tools, rules, ..Setup::default() }).await;
    let (_, last) = turns.call("fetch", json!({ "url": site.url("/json") }), 0).await;
    assert_eq!(last["_meta"]["modegate/denied"], "deny_rule", "the control");
    turns.call("fetch", json!({ "url": site.url("/once") }), 0).await;
    let text = turns.result();
    turns.client.end().await;
    assert!(text.contains("redirects to") && !text.contains("{\"a\":1}"), "{text}");
}

#[tokio::test]
async fn endless_bodies_are_cut_and_slow_servers_time_out() {
    let mut site = HttpServer::start().await;
    let hosts = [format!("127.0.0.1:{}", site.port)];
    let limits = FetchLimits { bytes: 40_000, ..FetchLimits::default() };
    let mut turns = Turns::new(with(allowing(&hosts), limits)).await;
    let url = site.url("/endless");
    check(&mut turns, &url, "[Only the first 40000 bytes were read; there is more.]").await;
    let prompt = turns.begin("fetch", json!({ "url": url, "start": 30_001 })).await;
    turns.finish(prompt, 0).await;
    let rest = turns.result();
    assert!(rest.contains("[Characters 30001-40000 of 40000.]"), "{rest}");
    turns.client.end().await;
    let limits = FetchLimits { time: Duration::from_millis(50), ..FetchLimits::default() };
    let mut turns = Turns::new(with(allowing(&hosts), limits)).await;
    check(&mut turns, &site.url("/silent"), "took longer than 50ms").await;
    check(&mut turns, &site.url("/json"), "{\"a\":1}").await;
    for _ in 0..3 {
        tokio::time::timeout(TIMEOUT, site.closed.recv()).await.expect("the connection is closed");
    }
    turns.client.end().await;
}

#[tokio::test]
async fn cancel_or_network_denial_closes_the_connection() {
    let mut site = HttpServer::start().await;
    let layers = layers("modes: [{id: offline, name: O, description: d, extends: code, network: deny}]");
    let modes = layers.modes.clone();
    let mut turns = Turns::new(Setup { modes, ..setup_reaching(&site) }).await;
    for way in ["cancel", "mode"] {
        let prompt = turns.begin("fetch", json!({ "url": site.url("/silent") })).await;
        tokio::time::timeout(TIMEOUT, site.begun.recv()).await.expect("it was asked");
        let session = turns.session.clone();
        turns.is_cancelled = way == "cancel";
        if turns.is_cancelled {
            turns.client.notify("session/cancel", json!({ "sessionId": session })).await;
        } else {
            let params = json!({ "sessionId": session, "modeId": "offline" });
            turns.client.request("session/set_mode", params).await;
        }
        let (_, last) = turns.finish(prompt, 0).await;
        assert_eq!(last["status"], "failed", "{way}: {last}");
        tokio::time::timeout(TIMEOUT, site.closed.recv()).await.expect("the connection is closed");
    }
    // The new mode denies the call, and no request is sent.
    let before = site.asked();
    let (_, last) = ask(&mut turns, &site.url("/json"), 0).await;
    assert_eq!((last["_meta"]["modegate/denied"].as_str(), site.asked()), (Some("network"), before));
    turns.client.end().await;
}

#[tokio::test]
async fn permission_request_shows_url_and_always_covers_server() {
    let site = HttpServer::start().await;
    let other = HttpServer::start().await;
    let hosts = [&site, &other].map(|site| format!("127.0.0.1:{}", site.port));
    for mode in ["ask", "plan"] {
        let mut turns = Turns::new(Setup { mode, ..with(allowing(&hosts), FetchLimits::default()) }).await;
        let before = site.asked();
        let (questions, last) = ask(&mut turns, &site.url("/x?secret=1"), 2).await;
        assert_eq!((last["status"].as_str(), site.asked()), (Some("failed"), before), "a rejection");
        let call = &questions[0]["toolCall"];
        assert_eq!(call["title"], format!("Fetch `{}`", site.url("/x?secret=1")));
        assert_eq!(text(call), site.url("/x?secret=1"));
        let always = format!("Always allow fetch from {} (this session, {mode} mode)", site.url(""));
        assert_eq!(questions[0]["options"][1]["name"], always);
        let (questions, last) = ask(&mut turns, &site.url("/json"), 1).await;
        assert_eq!((questions.len(), last["status"].as_str()), (1, Some("completed")));
        let (questions, last) = ask(&mut turns, &site.url("/html"), 1).await;
        assert_eq!((questions.len(), last["status"].as_str()), (0, Some("completed")));
        let (questions, _) = ask(&mut turns, &other.url("/json"), 1).await;
        assert_eq!(questions.len(), 1, "another server");
        turns.client.end().await;
    }
}

fn layers(text: &str) -> Layers {
    let mut layers = Layers::default();
    layers.add("test", text, LayerOwner::User).unwrap();
    layers
}

#[tokio::test]
async fn fetch_rules_match_addresses() {
    let site = HttpServer::start().await;
    let rules = "permissions: {deny: ['fetch(http://127.0.0.1/secret*)'], ask: ['fetch(http://127.0.0.1/ask*)'], \
                 allow: ['fetch(http://127.0.0.1:PORT/*)']}";
    let rules = layers(&rules.replace("PORT", &site.port.to_string())).rules;
    let mut turns = Turns::new(Setup { mode: "ask", rules, ..setup_reaching(&site) }).await;
    for (path, expected, questions) in [
        ("/secret/x", Some("deny_rule"), 0),
        ("/%73ecret/x", Some("deny_rule"), 0),
        ("/a/../secret", Some("deny_rule"), 0),
        ("/ask/me", None, 1),
        ("/other", None, 0),
    ] {
        let before = site.asked();
        let (requests, last) = ask(&mut turns, &site.url(path), 0).await;
        assert_eq!(
            (last["_meta"]["modegate/denied"].as_str(), requests.len()),
            (expected, questions),
            "{path}"
        );
        assert_eq!(site.asked() - before, usize::from(expected.is_none()), "{path}");
    }
    turns.client.end().await;
}

/// Returns the rule that denied an address, and the reason in the result.
async fn denied(rule: &str, url: &str) -> (String, String) {
    let tools = Toolset::built_in().with_fetch(Arc::new(FetchClient::default()), FetchLimits::default());
    let rules = layers(&format!("permissions: {{deny: ['{rule}']}}")).rules;
    let mut turns = Turns::new(Setup { mode: "ask", tools, rules, ..Setup::default() }).await;
    let (_, last) = turns.call("fetch", json!({ "url": url }), 2).await;
    let rule = last["_meta"]["modegate/denied"].as_str().unwrap_or("not denied").to_owned();
    let text = turns.result();
    turns.client.end().await;
    (rule, text)
}

#[tokio::test]
async fn deny_rule_matches_the_default_port() {
    assert_eq!(
        denied("fetch(https://x.invalid/*)", "https://x.invalid/a").await.0,
        "deny_rule",
        "the control"
    );
    assert_eq!(denied("fetch(https://x.invalid:443/*)", "https://x.invalid/a").await.0, "deny_rule");
}

#[tokio::test]
async fn deny_rule_matches_a_non_ascii_host() {
    assert_eq!(denied("fetch(https://bücher.invalid/*)", "https://bücher.invalid/a").await.0, "deny_rule");
}

#[tokio::test]
async fn deny_rule_matches_a_host_with_trailing_dot() {
    assert_eq!(denied("fetch(https://x.invalid./*)", "https://x.invalid./a").await.0, "deny_rule");
}

#[tokio::test]
async fn deny_rule_matches_an_uppercase_scheme() {
    assert_eq!(denied("fetch(HTTPS://x.invalid/*)", "https://x.invalid/a").await.0, "deny_rule");
}

#[tokio::test]
async fn deny_rule_matches_an_ipv6_address() {
    assert_eq!(
        denied("fetch(http://[2606:4700::1111]/*)", "http://[2606:4700::1111]/a").await.0,
        "deny_rule"
    );
}

#[tokio::test]
async fn deny_rule_matches_through_double_slashes() {
    assert_eq!(
        denied("fetch(https://x.invalid/secret/*)", "https://x.invalid//secret/a").await.0,
        "deny_rule"
    );
}

/// Many servers treat `..%2f` as a parent folder, so deny rules do, too.
#[tokio::test]
async fn deny_rule_matches_percent_encoded_slashes() {
    let rule = denied("fetch(https://x.invalid/secret/*)", "https://x.invalid/a/..%2fsecret/b").await.0;
    assert_eq!(rule, "deny_rule");
}

#[tokio::test]
async fn allow_rule_does_not_match_parent_paths() {
    let site = HttpServer::start().await;
    let tools = Toolset::built_in().with_fetch(Arc::new(fetch_client(&site)), FetchLimits::default());
    let text = format!("permissions: {{allow: ['fetch(http://127.0.0.1:{}/open/*)']}}", site.port);
    let rules = layers(&text).rules;
    let mut turns = Turns::new(Setup { mode: "ask", tools, rules, ..Setup::default() }).await;
    let (requests, _) = turns.call("fetch", json!({ "url": site.url("/open/x") }), 2).await;
    assert_eq!(requests.len(), 0, "the control");
    let (requests, _) = turns.call("fetch", json!({ "url": site.url("/open/../secret") }), 2).await;
    assert_eq!(requests.len(), 1, "the control");
    let (requests, _) = turns.call("fetch", json!({ "url": site.url("/open/..%2fsecret") }), 2).await;
    turns.client.end().await;
    assert_eq!(requests.len(), 1);
}

/// With a proxy, private addresses and names remain denied. The proxy resolves all other names.
#[tokio::test]
async fn proxy_is_used_only_for_public_addresses() {
    let proxy = HttpServer::start().await;
    let client = FetchClient::new(vec![], Some(format!("http://localhost:{}", proxy.port)));
    let names = FixedLookup::default();
    let looked_up = Arc::clone(&names.0);
    let mut turns = Turns::new(with(client.with_lookup(Arc::new(names)), FetchLimits::default())).await;
    check(&mut turns, "http://public.example/json", "said").await;
    assert!(proxy.heads.lock().unwrap()[0].starts_with("GET http://public.example/json "));
    assert_eq!(*looked_up.lock().unwrap(), ["localhost"], "only the proxy's own name");
    check(&mut turns, &format!("http://127.0.0.1:{}/json", proxy.port), "Only public servers").await;
    check(&mut turns, "http://localhost/", "Only public servers").await;
    assert_eq!(proxy.asked(), 1);
    turns.client.end().await;
}
