//! Logins at MCP servers, with `tests/servers/authorized_http.py`, which is both the MCP server and its
//! authorization server. The test acts as the browser.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use modegate::tool::Toolset;
use modegate::tool::mcp::{LoginOptions, Logins};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use crate::support::requirements::python;
use crate::support::waiting::until_exists;
use crate::support::{Setup, TestClient};
use crate::tools::mcp::servers::{status, texts};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/authorized_http.py");

/// The running servers, and a folder for their files and for the logins.
struct Authorized {
    folder: tempfile::TempDir,
    server: Child,
    url: String,
}

impl Drop for Authorized {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Authorized {
    async fn start(behaviour: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ports = folder.path().join("ports");
        let server = Command::new(python()).arg(SERVER).arg(&ports).args(behaviour).spawn().unwrap();
        until_exists(&ports).await;
        let text = std::fs::read_to_string(&ports).unwrap();
        let url = format!("http://127.0.0.1:{}/mcp", text.lines().next().unwrap());
        Self { folder, server, url }
    }

    fn logins(&self) -> Logins {
        Logins::new(self.folder.path().join(".config/modegate/mcp-logins"))
    }

    /// Logs in. `browse` acts as the browser and gets the address of the page.
    async fn log_in_with<Browsing: Future<Output = ()>>(
        &self,
        options: LoginOptions,
        browse: impl FnOnce(String, mpsc::Sender<String>) -> Browsing,
    ) -> Result<(), String> {
        let (logins, url) = (self.logins(), self.url.clone());
        let (show, shown) = oneshot::channel();
        let (paste, pasted) = mpsc::channel(1);
        let task = tokio::spawn(async move {
            let show = |page: &str| drop(show.send(page.to_owned()));
            logins.log_in(&url, &options, &Arc::default(), show, pasted).await
        });
        if let Ok(page) = shown.await {
            browse(page, paste).await;
        }
        task.await.unwrap()
    }

    /// Logs in as a user who agrees.
    async fn log_in(&self, options: LoginOptions) -> Result<(), String> {
        self.log_in_with(options, |page, _paste| async move {
            let answer = get(&answer_to(&page).await).await;
            assert!(answer.contains("close this window"), "{answer}");
        })
        .await
    }

    /// Returns the requests that the servers received, without ports.
    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("ports.log")).unwrap_or_default()
    }

    fn mark(&self, ending: &str, text: &str) {
        std::fs::write(self.folder.path().join(format!("ports.{ending}")), text).unwrap();
    }

    /// Opens a session in code mode with this server as `far` in the user's configuration.
    async fn session(&self) -> (TestClient, String) {
        let servers = Box::leak(format!("far: {{url: '{}', trust_hints: true}}", self.url).into_boxed_str());
        let tools = Toolset::built_in().with_logins(self.logins());
        let timeout = Some(std::time::Duration::from_mins(1));
        let mut client = TestClient::with(Setup {
            mode: "code",
            servers,
            tools,
            server_timeout: timeout,
            ..Setup::default()
        });
        client.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} })).await;
        let answer = client.call("session/new", json!({ "cwd": client.cwd(), "mcpServers": [] })).await;
        let session = answer["result"]["sessionId"].as_str().unwrap().to_owned();
        while client.next().await["params"]["update"]["sessionUpdate"] != "available_commands_update" {}
        (client, session)
    }
}

/// Returns the address to which the authorization server redirects the browser.
async fn answer_to(page: &str) -> String {
    let answer = get(page).await;
    let location = answer.lines().find_map(|line| line.strip_prefix("location: "));
    location.unwrap_or_else(|| panic!("{answer}")).trim().to_owned()
}

async fn get(url: &str) -> String {
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).await.unwrap();
    let request = format!("GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

/// Lets the model call a tool. Returns the notices for the user, the call's status, and the model's result.
async fn call(client: &mut TestClient, session: &str, tool: &str) -> (String, String, String) {
    use modegate::model::{Block, ModelEvent, ModelStop};
    let prompt = client.prompt(session, "go").await;
    let id = format!("m{}", client.model.requests(session).len());
    client.model.say(session, Ok(ModelEvent::ToolCall { id, name: tool.into(), arguments: json!({}) }));
    client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
    client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
    let messages: Vec<Value> = client.until_answer(prompt).await;
    let request = client.model.requests(session).pop().unwrap();
    let blocks = request.messages.iter().rev().flat_map(|message| message.blocks.iter().rev());
    let mut results = blocks.filter_map(|block| match block {
        Block::ToolResult { text, .. } => Some(text.clone()),
        _ => None,
    });
    let result = results.next().unwrap_or_default();
    let all = format!("{messages:?}{result}");
    assert!(!all.contains("secret-access") && !all.contains("secret-refresh"), "{all}");
    (texts(&messages), status(&messages), result)
}

const LOOK: &str = "mcp__far__look";

#[tokio::test]
async fn a_server_that_needs_a_login_is_named_with_the_command() {
    let far = Authorized::start(&[]).await;
    let advice = "The MCP server \"far\" cannot be used: it requires a login: run `modegate mcp login far`.";
    let (mut client, session) = far.session().await;
    let (told, ..) = call(&mut client, &session, LOOK).await;
    assert!(told.contains(advice), "{told}");
    client.end().await;
    // The control: after a login, the same call succeeds.
    far.log_in(LoginOptions::default()).await.unwrap();
    let (mut client, session) = far.session().await;
    let (told, status, result) = call(&mut client, &session, LOOK).await;
    assert_eq!((status.as_str(), result.as_str()), ("completed", "seen"), "{told}");
    client.end().await;
}

#[tokio::test]
async fn a_login_registers_a_client_with_pkce_and_names_the_server() {
    for (behaviour, kind) in [(vec![], "public"), (vec!["secret"], "with-secret")] {
        let far = Authorized::start(&behaviour).await;
        far.log_in(LoginOptions::default()).await.unwrap();
        let log = far.log();
        let url = &far.url;
        assert!(log.contains("register Modegate native http://127.0.0.1\n"), "{log}");
        assert!(
            log.lines().any(|line| line.starts_with("authorize client-1 ")
                && line.ends_with(" read S256")
                && line.contains(url)),
            "{log}"
        );
        assert!(log.contains(&format!("token authorization_code {url} {kind}\n")), "{log}");
        let login = far.logins().find(url).unwrap().unwrap();
        assert_eq!((login.scopes(), login.is_usable()), (&["read".to_owned()][..], true));
        #[cfg(unix)]
        for file in std::fs::read_dir(far.folder.path().join(".config/modegate/mcp-logins")).unwrap() {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(file.unwrap().metadata().unwrap().permissions().mode() & 0o077, 0);
        }
        assert!(!format!("{login:?}").contains("secret-"), "{login:?}");
        assert_eq!((far.logins().remove(url), far.logins().remove(url)), (Ok(true), Ok(false)));
    }
}

#[tokio::test]
async fn a_client_can_be_registered_before_or_have_a_document() {
    let document = "https://client.example/modegate.json";
    for (behaviour, id, expected) in [
        (["no_registration"], Some("known"), Ok("known")),
        (["documents"], Some(document), Ok(document)),
        // Without support for client documents, Modegate registers a client.
        (["plain"], Some(document), Ok("client-1")),
        (["no_registration"], None, Err("registers no clients")),
        (["no_registration"], Some(document), Err("registers no clients")),
    ] {
        let far = Authorized::start(&behaviour).await;
        let options = LoginOptions { client_id: id.map(str::to_owned), ..LoginOptions::default() };
        match (far.log_in(options).await, expected) {
            (Ok(()), Ok(id)) => assert!(far.log().contains(&format!("authorize {id} ")), "{}", far.log()),
            (Err(reason), Err(part)) => assert!(reason.contains(part), "{reason}"),
            (outcome, _) => panic!("{behaviour:?} {id:?}: {outcome:?}"),
        }
    }
}

#[tokio::test]
async fn an_expired_token_is_renewed_and_a_revoked_login_asks_for_another() {
    let far = Authorized::start(&[]).await;
    far.log_in(LoginOptions::default()).await.unwrap();
    let (mut client, session) = far.session().await;
    assert_eq!(call(&mut client, &session, LOOK).await.2, "seen");
    // The server refuses the first token. The refresh token returns a second one.
    far.mark("expired", "3");
    let renewed = || far.log().matches("token refresh_token").count();
    assert_eq!((call(&mut client, &session, LOOK).await.2.as_str(), renewed()), ("seen", 1));
    assert!(far.log().contains(&format!("token refresh_token {}", far.url)), "{}", far.log());
    far.mark("expired", "99");
    far.mark("revoked", "");
    let (_, status, result) = call(&mut client, &session, LOOK).await;
    assert_eq!(status, "failed");
    assert!(result.contains("it requires a login: run `modegate mcp login far`"), "{result}");
    assert!(!far.logins().find(&far.url).unwrap().unwrap().is_usable());
    // After another login, the session continues.
    std::fs::remove_file(far.folder.path().join("ports.expired")).unwrap();
    std::fs::remove_file(far.folder.path().join("ports.revoked")).unwrap();
    far.log_in(LoginOptions::default()).await.unwrap();
    assert_eq!(call(&mut client, &session, LOOK).await.2, "seen");
    client.end().await;
}

#[tokio::test]
async fn a_token_that_is_about_to_expire_is_renewed_before_use() {
    let far = Authorized::start(&["short"]).await;
    far.log_in(LoginOptions::default()).await.unwrap();
    let (mut client, session) = far.session().await;
    assert_eq!(call(&mut client, &session, LOOK).await.2, "seen");
    assert!(far.log().contains("token refresh_token"), "{}", far.log());
    client.end().await;
}

#[tokio::test]
async fn a_missing_right_and_a_large_answer_are_explained() {
    let far = Authorized::start(&[]).await;
    far.log_in(LoginOptions::default()).await.unwrap();
    let (mut client, session) = far.session().await;
    let (_, status, result) = call(&mut client, &session, "mcp__far__more").await;
    assert_eq!(status, "failed");
    assert!(result.contains("run `modegate mcp login far --scope \"admin\"`"), "{result}");
    let (_, status, result) = call(&mut client, &session, "mcp__far__big").await;
    assert_eq!(status, "failed");
    assert!(result.contains("larger than"), "{result}");
    assert_eq!(call(&mut client, &session, LOOK).await.2, "seen");
    client.end().await;
}

#[tokio::test]
async fn only_the_answer_to_this_login_counts() {
    let far = Authorized::start(&[]).await;
    let browse = |page: String, _paste| async move {
        let answer = answer_to(&page).await;
        let (address, query) = answer.split_once('?').unwrap();
        let forged =
            query.split('&').map(|pair| if pair.starts_with("state=") { "state=forged" } else { pair });
        let forged = forged.collect::<Vec<_>>().join("&");
        for wrong in [
            format!("{address}?{forged}"),
            format!("{address}?code=code-1"),
            answer.replace("/callback", "/other"),
            answer.replace("/callback", "//evil.example/callback"),
        ] {
            let refusal = get(&wrong).await;
            assert!(
                refusal.starts_with("HTTP/1.1 400") && refusal.contains("not the answer"),
                "{wrong}: {refusal}"
            );
        }
        // The control: the answer to this login is accepted.
        assert!(get(&answer).await.starts_with("HTTP/1.1 200"));
    };
    far.log_in_with(LoginOptions::default(), browse).await.unwrap();
    // A user whose browser runs on another machine pastes the answer.
    let paste_answer = |page: String, paste: mpsc::Sender<String>| async move {
        paste.send(format!(" {}\n", answer_to(&page).await)).await.unwrap();
    };
    far.log_in_with(LoginOptions::default(), paste_answer).await.unwrap();
    let paste_other = |_, paste: mpsc::Sender<String>| async move {
        paste.send("http://127.0.0.1/callback?code=x&state=forged".into()).await.unwrap();
    };
    let refusal = far.log_in_with(LoginOptions::default(), paste_other).await.unwrap_err();
    assert!(refusal.contains("not the answer to this login"), "{refusal}");
}

#[tokio::test]
async fn wrong_authorization_servers_are_refused() {
    for (behaviour, part) in [
        ("wrong_iss", "issuer mismatch"),
        ("other_issuer", "issuer mismatch"),
        ("other_resource", "resource mismatch"),
        ("no_pkce", "does not support PKCE"),
        ("denied", "the authorization server refused: access_denied: the user said no"),
        ("foreign_token", "http://token.example/token is asked only over https://"),
    ] {
        let far = Authorized::start(&[behaviour]).await;
        let reason = far.log_in(LoginOptions::default()).await.unwrap_err();
        assert!(reason.contains(part), "{behaviour}: {reason}");
        assert!(far.logins().find(&far.url).unwrap().is_none(), "{behaviour}");
        assert!(!far.log().contains("token authorization_code"), "{behaviour}: {}", far.log());
    }
    let logins = Logins::new("/nonexistent".into());
    let (_paste, pasted) = mpsc::channel(1);
    let options = LoginOptions::default();
    let refused = logins.log_in("http://mcp.example/mcp", &options, &Arc::default(), |_| (), pasted).await;
    assert!(refused.unwrap_err().contains("https://"));
}

#[tokio::test]
async fn the_command_line_lists_logs_in_and_logs_out() {
    let far = Authorized::start(&[]).await;
    let config = far.folder.path().join(".config/modegate");
    std::fs::create_dir_all(&config).unwrap();
    let servers = format!("servers: {{far: {{url: '{}'}}, near: {{command: x}}}}\n", far.url);
    std::fs::write(config.join("modes.yaml"), servers).unwrap();
    let command = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
        command.args(arguments).env("HOME", far.folder.path()).current_dir(far.folder.path());
        command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME").env("MODEGATE_LOG", "trace");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let run = |arguments: &[&str]| {
        let output = command(arguments).output().unwrap();
        let all = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!all.contains("secret-"), "{all}");
        (output.status.code().unwrap(), all)
    };
    let list = |state: &str| (0, format!("{:20} {state}\n{:20} program\n", "far", "near"));
    assert_eq!(run(&["mcp", "list"]), list("no login"));
    let mut login = command(&["mcp", "login", "far"]).spawn().unwrap();
    let mut errors = BufReader::new(login.stderr.take().unwrap());
    let page = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        while !line.starts_with("http") {
            line.clear();
            assert_ne!(errors.read_line(&mut line).unwrap(), 0, "no address");
        }
        line.trim().to_owned()
    });
    let page = page.await.unwrap();
    get(&answer_to(&page).await).await;
    let output = login.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "Logged in at far.\n");
    assert_eq!(run(&["mcp", "list"]), list("logged in (read)"));
    let (code, text) = run(&["mcp", "logout", "far"]);
    assert!(code == 0 && text.starts_with("Removed the login at far.\n"), "{text}");
    assert_eq!(run(&["mcp", "list"]), list("no login"));
    for (server, part) in [("near", "is a program"), ("none", "there is no server \"none\"")] {
        let (code, text) = run(&["mcp", "login", server]);
        assert!(code == 1 && text.contains(part), "{text}");
    }
    // A headless run names the login command, too.
    let (_, text) = run(&["--store", "memory", "--model", "offline", "--mode", "plan", "-p", "hello"]);
    assert!(text.contains("run `modegate mcp login far`"), "{text}");
}
