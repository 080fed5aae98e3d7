//! Commands of clients that offer terminals: run once, by Modegate itself, with their output shown, and ended on every path.

use serde_json::{Value, json};

use crate::guest::{Guest, all};

/// Writes on, out of its session and its group.
const TICKER: &str = "setsid sh -c 'while :; do echo x >> ticks; sleep 0.05; done' & echo begun; wait";

/// A line whose tail has an effect of its own in a client that runs the arguments of `terminal/create` through a shell.
const LINE: &str = "true; echo x >> runs && cat runs";

/// Whether the ticker still ticks, which shows soon if it does.
async fn ticks(guest: &Guest) -> bool {
    let size = || std::fs::metadata(guest.path("ticks")).map_or(0, |file| file.len());
    let before = size();
    tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    size() != before
}

/// A session whose ticker ticks; and its prompt.
async fn ticking() -> (Guest, i64) {
    let mut guest = Guest::new("code", all()).await;
    let prompt = guest.begin(&[("shell", json!({ "command": TICKER }))]).await;
    guest.until_there("ticks").await;
    assert!(ticks(&guest).await, "the control: it runs");
    (guest, prompt)
}

/// The text that the updates of calls show.
fn shown(messages: &[Value]) -> String {
    let contents = messages.iter().map(|message| &message["params"]["update"]["content"]);
    contents.filter(|content| content.is_array()).map(Value::to_string).collect()
}

#[tokio::test]
async fn a_command_runs_once_where_the_client_would_run_its_line_again() {
    let no_terminal = json!({ "fs": { "readTextFile": true, "writeTextFile": true } });
    for capabilities in [all(), no_terminal] {
        let mut guest = Guest::new("code", capabilities).await;
        let prompt = guest.begin(&[("shell", json!({ "command": LINE }))]).await;
        let messages = guest.until_answer(prompt).await;
        assert_eq!(guest.saved("runs").as_deref(), Some("x\n"));
        assert_eq!(guest.told(), "x\n[Exit status 0.]");
        assert!(shown(&messages).contains("x\\n[Exit status 0.]"), "{messages:?}");
        guest.call("run_background_job", json!({ "command": "echo x >> jobs; echo done > over" })).await;
        guest.until_there("over").await;
        assert_eq!(guest.saved("jobs").as_deref(), Some("x\n"));
        guest.call("shell_read_only", json!({ "command": "true" })).await;
        assert_eq!(guest.methods(), [""; 0], "the client is asked for nothing");
        guest.end().await;
    }
}

#[tokio::test]
async fn a_cancel_ends_a_command() {
    let (mut guest, prompt) = ticking().await;
    guest.cancel().await;
    let messages = guest.until_answer(prompt).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
    assert!(!ticks(&guest).await);
    guest.end().await;
}

#[tokio::test]
async fn a_mode_that_denies_a_command_is_answered_when_it_has_ended_and_one_that_asks_lets_it_run() {
    let (mut guest, prompt) = ticking().await;
    let (_, effect) = guest.set_mode("ask").await;
    assert_eq!(effect["ended"], json!([]));
    assert!(ticks(&guest).await);
    let (_, effect) = guest.set_mode("plan").await;
    assert_eq!((&effect["ended"], &effect["unconfirmed"]), (&json!(["call_1_1"]), &json!([])));
    assert!(!ticks(&guest).await);
    guest.until_answer(prompt).await;
    guest.end().await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_a_command() {
    let (mut guest, _) = ticking().await;
    guest.harness.leave();
    while guest.harness.next_within(crate::support::PATIENCE).await.is_some() {}
    assert!(!ticks(&guest).await);
}

#[tokio::test]
async fn titles_show_the_characters_that_cannot_be_seen() {
    let mut guest = Guest::new("code", all()).await;
    let line = json!({ "command": "true # \u{202e}\u{1b}[2K" });
    let prompt = guest.begin(&[("shell", line)]).await;
    let messages = guest.until_answer(prompt).await;
    let title = |message: &Value| message["params"]["update"]["title"].as_str().map(str::to_owned);
    let titles: Vec<String> = messages.iter().filter_map(title).collect();
    assert!(titles.contains(&"true # \\u{202e}\\u{1b}[2K".to_owned()), "{titles:?}");
    guest.end().await;
}

/// The obsolete `shell.terminal` stops nothing, is reported once to whoever starts Modegate, and by `modegate doctor`.
#[test]
fn the_obsolete_terminal_key_is_reported_once_and_without_it_nothing_is() {
    for (config, reported) in [("shell: {terminal: client}", 1), ("shell: {sandbox: workspace}", 0)] {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(".config/modegate");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.yaml"), config).unwrap();
        for arguments in [["--model", "offline", "-p", "hello"].as_slice(), &["--model", "offline", "doctor"]]
        {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_modegate"));
            command.args(arguments).current_dir(home.path()).env_clear().env("HOME", home.path());
            command.env("PATH", std::env::var_os("PATH").unwrap()).stdin(std::process::Stdio::null());
            let output = command.output().unwrap();
            let (said, log) =
                (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
            let is_doctor = arguments.contains(&"doctor");
            let count = |text: &str| text.matches("shell.terminal in config.yaml is obsolete").count();
            assert_eq!(count(&log), reported, "{log}");
            assert_eq!(count(&said), if is_doctor { reported } else { 0 }, "{said}");
            assert!(is_doctor || output.status.success(), "{log}");
        }
    }
}
