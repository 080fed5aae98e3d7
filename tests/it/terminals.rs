//! Commands in the client's terminals: run there, held as here, and ended and released on every path.

use modegate::process::shell::{Sandbox, TerminalOf};
use serde_json::{Value, json};

use crate::guest::{Guest, all};

/// Writes on, out of its session and its group.
const TICKER: &str = "setsid sh -c 'while :; do echo x >> ticks; sleep 0.05; done' & echo begun; wait";

fn is_linux() -> bool {
    cfg!(target_os = "linux")
}

/// What the ticker has written.
fn size(guest: &Guest) -> u64 {
    std::fs::metadata(guest.path("ticks")).map_or(0, |file| file.len())
}

/// Whether the ticker still ticks, which shows soon if it does.
async fn ticks(guest: &Guest) -> bool {
    let before = size(guest);
    tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    size(guest) != before
}

/// Waits until the ticker ticks again.
async fn until_it_ticks(guest: &Guest) {
    let before = size(guest);
    let begun = std::time::Instant::now();
    while size(guest) == before {
        assert!(begun.elapsed() < crate::support::PATIENCE, "it does not tick");
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

/// A session whose ticker ticks in a terminal; and its prompt.
async fn ticking(seconds: u64) -> (Guest, i64) {
    let mut guest = Guest::new("code", all()).await;
    let prompt = guest.begin(&[("shell", json!({ "command": TICKER, "timeout": seconds }))]).await;
    guest.until_there("ticks").await;
    until_it_ticks(&guest).await;
    assert_eq!(guest.open_terminals(), 1);
    (guest, prompt)
}

/// The statuses and contents of a call's updates, and the methods that came in between.
fn shape(messages: &[Value]) -> Vec<String> {
    let part = |message: &Value| {
        let method = message["method"].as_str().unwrap_or_default();
        let update = &message["params"]["update"];
        match (update["status"].as_str(), update["content"][0]["type"].as_str()) {
            _ if method.starts_with("terminal/") || method == "$/cancel_request" => Some(method.to_owned()),
            (status, Some("terminal")) => Some(format!("{} terminal", status.unwrap_or("shown"))),
            _ => None,
        }
    };
    messages.iter().filter_map(part).collect()
}

#[tokio::test]
async fn a_command_runs_in_the_clients_terminal_which_is_shown_waited_for_read_and_released() {
    if !is_linux() {
        return;
    }
    let mut guest = Guest::new("code", all()).await;
    let line = json!({ "command": "echo hi; echo there > made; exit 3" });
    let prompt = guest.begin(&[("shell", line)]).await;
    let messages = guest.until_answer(prompt).await;
    assert_eq!(guest.told(), "hi\n[Exit status 3.]");
    assert_eq!(guest.saved("made").as_deref(), Some("there\n"));
    assert_eq!(
        shape(&messages),
        [
            "terminal/create",
            "terminal/wait_for_exit",
            "shown terminal",
            "terminal/output",
            "terminal/release",
            "completed terminal"
        ]
    );
    let create = &guest.asked[0].1;
    assert_eq!(create["outputByteLimit"], 36 * 1024);
    assert_eq!(create["args"], json!(["__terminal", "echo hi; echo there > made; exit 3"]));
    assert_eq!(guest.open_terminals(), 0);
    let params = json!({ "sessionId": guest.session, "cwd": guest.harness.cwd(), "mcpServers": [] });
    let id = guest.harness.request("session/load", params).await;
    let messages = guest.until_answer(id).await;
    let shown: Vec<_> =
        messages.iter().map(|message| message["params"]["update"]["content"].to_string()).collect();
    assert_eq!(shape(&messages), [""; 0], "a later client has no such terminal");
    assert!(shown.iter().any(|content| content.contains("hi\\n[Exit status 3.]")), "{shown:?}");
    guest.end().await;
}

#[tokio::test]
async fn what_the_terminal_runs_is_held_as_here() {
    if !modegate::sandbox::support().workspace() {
        return;
    }
    for (sandbox, escapes) in [(Sandbox::Workspace, false), (Sandbox::Off, true)] {
        let mut guest = Guest::with("code", all(), sandbox, TerminalOf::Client).await;
        let outside = format!("{}/terminal-{escapes}", env!("CARGO_TARGET_TMPDIR"));
        let line = format!("echo x > inside; echo x > {outside}; rm {outside}");
        let told = guest.call("shell", json!({ "command": line })).await;
        assert_eq!(guest.saved("inside").as_deref(), Some("x\n"), "{told}");
        assert_eq!(told.contains("Exit status 0"), escapes, "{told}");
        assert_eq!(guest.count("terminal/create"), 1);
        guest.end().await;
    }
}

#[tokio::test]
async fn it_has_neither_the_keys_nor_the_socket_and_works_where_it_was_told_to() {
    if !is_linux() {
        return;
    }
    let mut guest = Guest::new("code", all()).await;
    std::fs::create_dir(guest.path("below")).unwrap();
    let line = json!({ "command": "pwd; env | grep -c -e MODEGATE_TERMINAL -e sk-secret; echo $PAGER", "cwd": "below" });
    let told = guest.call("shell", line).await;
    assert_eq!(told, format!("{}\n0\ncat\n[Exit status 0.]", guest.path("below").display()));
    guest.end().await;
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_ended_with_all_that_came_of_it_and_its_terminal_released() {
    if !is_linux() {
        return;
    }
    let mut guest = Guest::new("code", all()).await;
    let told = guest.call("shell", json!({ "command": TICKER, "timeout": 1 })).await;
    assert!(told.starts_with("begun\n") && told.contains("took longer than 1 s"), "{told}");
    assert!(!ticks(&guest).await);
    assert_eq!((guest.count("terminal/kill"), guest.open_terminals()), (1, 0));
    guest.end().await;
}

#[tokio::test]
async fn a_cancel_ends_it_and_releases_its_terminal() {
    if !is_linux() {
        return;
    }
    let (mut guest, prompt) = ticking(100).await;
    guest.cancel().await;
    let messages = guest.until_answer(prompt).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
    assert!(!ticks(&guest).await);
    assert_eq!((guest.count("terminal/kill"), guest.open_terminals()), (1, 0));
    guest.end().await;
}

#[tokio::test]
async fn a_mode_that_denies_it_is_answered_when_it_is_gone_and_its_terminal_released() {
    if !is_linux() {
        return;
    }
    let (mut guest, prompt) = ticking(100).await;
    let (_, effect) = guest.set_mode("plan").await;
    assert_eq!((guest.count("terminal/kill"), guest.open_terminals()), (1, 0), "before the answer");
    assert_eq!((&effect["ended"], &effect["unconfirmed"]), (&json!(["call_1_1"]), &json!([])));
    assert!(!ticks(&guest).await);
    guest.until_answer(prompt).await;
    let create = guest.count("terminal/create");
    let told = guest.call("shell", json!({ "command": "true" })).await;
    assert_eq!(guest.count("terminal/create"), create, "a denied call does not reach the client: {told}");
    guest.end().await;
}

#[tokio::test]
async fn a_client_that_answers_nothing_any_more_does_not_keep_it_alive() {
    if !is_linux() {
        return;
    }
    let (mut guest, prompt) = ticking(100).await;
    for method in ["terminal/kill", "terminal/output", "terminal/release"] {
        guest.answer_oddly(method, Value::Null);
    }
    let (_, effect) = guest.set_mode("plan").await;
    assert_eq!((&effect["ended"], &effect["unconfirmed"]), (&json!(["call_1_1"]), &json!([])));
    assert!(!ticks(&guest).await);
    assert_eq!((guest.count("terminal/kill"), guest.count("terminal/release")), (1, 1), "it was asked");
    guest.until_answer(prompt).await;
    guest.end().await;
}

#[tokio::test]
async fn a_mode_that_would_only_ask_lets_it_run() {
    if !is_linux() {
        return;
    }
    let (mut guest, prompt) = ticking(100).await;
    let (_, effect) = guest.set_mode("ask").await;
    assert_eq!(effect["ended"], json!([]));
    until_it_ticks(&guest).await;
    assert_eq!(guest.open_terminals(), 1);
    guest.cancel().await;
    guest.until_answer(prompt).await;
    guest.end().await;
}

#[tokio::test]
async fn a_session_that_is_closed_ends_it_and_releases_its_terminal() {
    if !is_linux() {
        return;
    }
    let (mut guest, prompt) = ticking(100).await;
    let id = guest.harness.request("session/close", json!({ "sessionId": guest.session })).await;
    let mut left = [prompt, id];
    while left.iter().any(|id| *id != 0) {
        let messages = guest.until(|message| message.get("result").is_some()).await;
        let answered = messages.last().unwrap()["id"].as_i64().unwrap();
        left.iter_mut().filter(|id| **id == answered).for_each(|id| *id = 0);
    }
    assert!(!ticks(&guest).await);
    assert_eq!((guest.count("terminal/kill"), guest.open_terminals()), (1, 0));
    guest.end().await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_it() {
    if !is_linux() {
        return;
    }
    let (mut guest, _) = ticking(100).await;
    guest.harness.leave();
    while guest.harness.next_within(crate::support::PATIENCE).await.is_some() {}
    assert!(!ticks(&guest).await);
}

#[tokio::test]
async fn who_closes_the_terminal_ends_what_came_of_the_command_too() {
    if !is_linux() {
        return;
    }
    let (mut guest, prompt) = ticking(100).await;
    guest.close_terminal();
    guest.until_answer(prompt).await;
    assert!(guest.told().contains("ended by somebody else"), "{}", guest.told());
    assert!(!ticks(&guest).await);
    assert_eq!(guest.open_terminals(), 0);
    let (_, effect) = guest.set_mode("plan").await;
    assert_eq!(effect["unconfirmed"], json!([]), "its supervisor has vouched for it");
    guest.end().await;
}

#[tokio::test]
async fn errors_of_the_client_are_said_and_its_terminal_is_released_all_the_same() {
    if !is_linux() {
        return;
    }
    let mut guest = Guest::new("code", all()).await;
    for (method, said) in [
        ("terminal/output", "[What it wrote is not known: the client answered with an error"),
        ("terminal/release", "hi\n[Exit status 0.]"),
    ] {
        guest.answer_oddly(method, json!("broken"));
        let told = guest.call("shell", json!({ "command": "echo hi" })).await;
        assert!(told.starts_with(said) && told.ends_with("[Exit status 0.]"), "{method}: {told}");
    }
    assert_eq!((guest.count("terminal/create"), guest.count("terminal/release")), (2, 2));
    guest.end().await;
}

#[tokio::test]
async fn where_the_client_cannot_start_it_it_runs_here_once() {
    if !is_linux() {
        return;
    }
    let mut guest = Guest::new("code", all()).await;
    let line = json!({ "command": "echo once >> runs; cat runs" });
    guest.answer_oddly("terminal/create", json!("there is no such program"));
    assert_eq!(guest.call("shell", line.clone()).await, "once\n[Exit status 0.]");
    assert_eq!(guest.methods(), ["terminal/create"]);
    // As where the client runs on another machine: the program ends, or says nothing of use.
    guest.answer_oddly("terminal/wait_for_exit", json!({ "exitCode": 127 }));
    guest.answer_oddly("terminal/create", json!({ "terminalId": "nowhere" }));
    guest.answer_oddly("terminal/release", json!({}));
    assert_eq!(guest.call("shell", line).await, "once\nonce\n[Exit status 0.]");
    assert_eq!(
        guest.methods()[1..],
        ["terminal/create", "terminal/wait_for_exit", "terminal/release"],
        "and is not shown"
    );
    guest.end().await;
}

#[tokio::test]
async fn a_terminal_that_comes_when_nobody_wants_it_any_more_is_released() {
    if !is_linux() {
        return;
    }
    let mut guest = Guest::new("code", all()).await;
    guest.answer_oddly("terminal/create", Value::Null);
    let prompt = guest.begin(&[("shell", json!({ "command": "echo x > never" }))]).await;
    let asked = guest.until(|message| message["method"] == "terminal/create").await.pop().unwrap();
    let (_, effect) = guest.set_mode("plan").await;
    assert_eq!(effect["unconfirmed"], json!([]));
    guest.answer_oddly("terminal/release", json!({}));
    let late = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "terminalId": "late" } });
    guest.harness.send_line(&late.to_string()).await;
    let messages = guest.until(|message| message["method"] == "terminal/release").await;
    assert_eq!(messages.last().unwrap()["params"]["terminalId"], "late");
    guest.harness.leave();
    while guest.harness.next_within(crate::support::PATIENCE).await.is_some() {}
    assert_eq!(guest.saved("never"), None);
    let _ = prompt;
}

#[tokio::test]
async fn only_shell_goes_there_and_only_where_it_is_wanted() {
    let mut guest = Guest::new("code", all()).await;
    guest.call("shell_read_only", json!({ "command": "true" })).await;
    guest.call("run_background_job", json!({ "command": "true" })).await;
    assert_eq!(guest.methods(), [""; 0]);
    guest.end().await;
    let none = json!({ "fs": { "readTextFile": true, "writeTextFile": true } });
    for (capabilities, terminal) in [(all(), TerminalOf::Own), (none, TerminalOf::Client)] {
        let mut guest = Guest::with("code", capabilities, Sandbox::Workspace, terminal).await;
        assert_eq!(guest.call("shell", json!({ "command": "echo hi" })).await, "hi\n[Exit status 0.]");
        assert_eq!(guest.methods(), [""; 0]);
        guest.end().await;
    }
}

#[tokio::test]
async fn what_a_command_in_a_terminal_changed_is_undone() {
    if !is_linux() {
        return;
    }
    let mut guest = Guest::new("code", all()).await;
    guest.file("a.txt", "one\n", None);
    guest.call("shell", json!({ "command": "echo two > a.txt; echo x > b.txt" })).await;
    assert_eq!(
        (guest.saved("a.txt").as_deref(), guest.saved("b.txt").as_deref()),
        (Some("two\n"), Some("x\n"))
    );
    assert_eq!(guest.count("terminal/create"), 1);
    let prompt = guest.harness.prompt(&guest.session, "/undo").await;
    guest.until_answer(prompt).await;
    assert_eq!((guest.saved("a.txt").as_deref(), guest.saved("b.txt")), (Some("one\n"), None));
    guest.end().await;
}
