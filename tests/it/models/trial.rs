//! `modegate doctor --online` and `modegate setup --online` against a local server.

use std::path::Path;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;

use crate::models::http_server::{Reply, Server};
use crate::models::provider_streams;

const KEY: &str = "k-typed-72";

/// Runs the binary in this home with a line at stdin. Returns the exit code and the output.
async fn run(home: &Path, variables: &[(&str, &str)], arguments: &[&str], input: &str) -> (i32, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_modegate"));
    command.current_dir(home).args(arguments).env_clear().envs(variables.iter().copied());
    command.env("HOME", home).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The process may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes()).await;
    let output = child.wait_with_output().await.unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(!text.contains(KEY), "{text}");
    (output.status.code().unwrap_or(-1), text)
}

fn answer() -> Reply {
    Reply::stream(provider_streams::text("openai", "OK"))
}

fn refusal(status: u16, message: &str) -> Reply {
    Reply::error(status, &format!(r#"{{"error":{{"message":"{message}"}}}}"#))
}

#[tokio::test]
async fn doctor_asks_the_provider_only_on_request_and_shows_the_answer() {
    for (reply, is_fine, words) in [
        (answer(), true, "openai/m: HOST answered (HTTP 200)"),
        (refusal(401, "no"), false, "HOST does not accept the key (HTTP 401)"),
        (refusal(404, "no such model"), false, "HOST does not have the model \"m\""),
        (refusal(429, "slow down"), false, "HOST is limiting the rate (HTTP 429): slow down"),
        (Reply::error(302, ""), false, "HOST redirects to another address (HTTP 302)"),
    ] {
        let server = Server::start([reply, answer()]).await;
        let home = tempfile::tempdir().unwrap();
        let variables = [
            ("OPENAI_BASE_URL", server.url.as_str()),
            ("OPENAI_API_KEY", KEY),
            ("MODEGATE_MODEL", "openai/m"),
        ];
        let (without, text) = run(home.path(), &variables, &["doctor"], "").await;
        assert!(server.requests().is_empty() && !text.contains("HTTP"), "the control: {text}");
        let (code, text) = run(home.path(), &variables, &["doctor", "--online"], "").await;
        let words = words.replace("HOST", &server.url["http://".len()..]);
        let mark = if is_fine { "ok    provider" } else { "WRONG provider" };
        assert!(text.contains(mark) && text.contains(&words), "{text}");
        assert!(text.contains("network               without a proxy, not encrypted"), "{text}");
        assert_eq!(code, if is_fine { without } else { 1 }, "{text}");
        assert_eq!(server.requests().len(), 1, "one attempt");
    }
}

#[tokio::test]
async fn doctor_tries_the_small_model_and_needs_no_network_for_the_offline_model() {
    let server = Server::start([answer(), refusal(404, "gone")]).await;
    let home = tempfile::tempdir().unwrap();
    let mut variables = vec![("OPENAI_BASE_URL", server.url.as_str()), ("MODEGATE_MODEL", "openai/m")];
    variables.push(("MODEGATE_SMALL_MODEL", "openai/tiny"));
    let (code, text) = run(home.path(), &variables, &["doctor", "--online"], "").await;
    assert!(text.contains("ok    provider") && text.contains("WRONG small model, online"), "{text}");
    assert_eq!((code, server.requests().len()), (1, 2));
    let (_, text) = run(home.path(), &[], &["doctor", "--online"], "").await;
    assert!(text.contains("offline needs no network, so nothing was tried"), "{text}");
}

#[tokio::test]
async fn setup_tries_the_typed_key_before_it_is_stored() {
    let server = Server::start([refusal(401, "no"), answer()]).await;
    let home = tempfile::tempdir().unwrap();
    let stored = home.path().join(".config/modegate/setup.yaml");
    let arguments = ["setup", "--provider", "openai", "--name", "m", "--base-url", &server.url, "--online"];
    let variables = [("OPENAI_API_KEY", "k-other"), ("OPENAI_BASE_URL", "http://127.0.0.1:1")];
    let input = format!("{KEY}\n");
    let (code, text) = run(home.path(), &variables, &arguments, &input).await;
    assert!(
        text.contains("does not accept the key (HTTP 401)") && text.contains("nothing is stored"),
        "{text}"
    );
    assert!(code == 1 && !stored.exists(), "{text}");
    let (code, text) = run(home.path(), &variables, &arguments, &input).await;
    assert!(text.contains("answered (HTTP 200), without a proxy, not encrypted."), "{text}");
    assert!(code == 0 && std::fs::read_to_string(&stored).unwrap().contains(KEY), "{text}");
    for request in server.requests() {
        assert_eq!(request.header("authorization"), Some(&*format!("Bearer {KEY}")));
    }
    // The control: without the flag and a terminal, the network is not used.
    let (code, text) = run(home.path(), &variables, &arguments[..7], &input).await;
    assert_eq!((code, server.requests().len()), (0, 2), "{text}");
}

#[tokio::test]
async fn setup_refuses_text_that_cannot_be_a_key() {
    let home = tempfile::tempdir().unwrap();
    let setup = async |provider: &str, key: &str| {
        let arguments = ["setup", "--provider", provider, "--name", "m"];
        run(home.path(), &[], &arguments, &format!("{key}\n")).await
    };
    for (key, words) in [
        (format!("'{KEY}'"), "in quotation marks"),
        (format!("ANTHROPIC_API_KEY={KEY}"), "begins with the name of a variable"),
        (format!("{KEY} x"), "contains a blank"),
    ] {
        let (code, text) = setup("anthropic", &key).await;
        assert!(code == 1 && text.contains(words) && text.contains("Nothing is stored"), "{text}");
    }
    assert!(!home.path().join(".config/modegate/setup.yaml").exists());
    let (code, text) = setup("gemini", "sk-ant-1").await;
    assert!(code == 0 && text.contains("looks like one of anthropic, not of gemini"), "{text}");
    let (code, text) = setup("anthropic", "sk-ant-1").await;
    assert!(code == 0 && !text.contains("looks like"), "the control: {text}");
}
