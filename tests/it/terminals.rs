//! Commands in the client's terminals: run there, held as here, and ended and released on every path.

use modegate::process::shell::{Sandbox, TerminalOf};
use serde_json::{Value, json};

use crate::guest::{Guest, all};
use crate::support::PATIENCE;

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
    // As where the client runs on another machine: the program ends, or says nothing of use.
    guest.answer_oddly("terminal/wait_for_exit", json!({ "exitCode": 127 }));
    guest.answer_oddly("terminal/create", json!({ "terminalId": "nowhere" }));
    guest.answer_oddly("terminal/release", json!({}));
    assert_eq!(guest.call("shell", line).await, "once\n[Exit status 0.]");
    assert_eq!(
        guest.methods(),
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

/// A session whose held commands may write where sockets are made, as they may in real life.
async fn held() -> (Guest, tempfile::TempDir) {
    use modegate::process::Processes;
    use modegate::process::places::User;
    use modegate::process::shell::{Sandbox, Shell};
    let (home, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let user = User {
        home: Some(home.path().to_owned()),
        path: std::env::split_paths(&std::env::var_os("PATH").unwrap()).collect(),
        temporary: scratch.path().to_owned(),
        scratch: vec![scratch.path().to_owned()],
        ..User::default()
    };
    let processes = Processes::new(env!("CARGO_BIN_EXE_modegate").into(), scratch.path().to_owned());
    let support = modegate::sandbox::support();
    let shell = Shell::new(processes, "/bin/bash".into(), user, vec![], Sandbox::Workspace, support);
    (Guest::with_shell("code", all(), shell, home).await, scratch)
}

/// The held command puts a socket of its own in the place of the one at which Modegate waits, and gives the wrapper, which the
/// editor has started and nothing holds, an order without a hold. In real life the scratch folder is the system's, which held
/// commands may write (`config/environment.rs`); here it is one of the test's.
#[tokio::test]
async fn a_held_command_cannot_order_the_wrapper_to_run_something_unheld() {
    if !modegate::sandbox::support().workspace() {
        return;
    }
    let (mut guest, scratch) = held().await;
    let outside = format!("{}/unheld", env!("CARGO_TARGET_TMPDIR"));
    let _ = std::fs::remove_file(&outside);
    let order = json!({ "program": "/bin/sh", "arguments": ["-c", format!("echo x > {outside}")],
        "confinement": "off", "own_folder": null, "cwd": null, "keeps_terminal": false });
    let perl = r#"my $s; until (($s) = glob("SCRATCH/modegate-*/s")) { select undef, undef, undef, 0.002 }
        unlink $s; socket(my $l, AF_UNIX, SOCK_STREAM, 0); bind($l, sockaddr_un($s)) or die $!; listen($l, 5);
        open my $m, ">", "marker"; close $m; accept(my $c, $l); my $o = q(ORDER);
        syswrite $c, "o" . pack("V", length $o) . $o; open $m, ">", "reply"; while (sysread $c, my $b, 999) { syswrite $m, $b }"#;
    let perl = perl.replace("SCRATCH", &scratch.path().display().to_string());
    let perl = perl.replace("ORDER", &order.to_string());
    let control = guest.call("shell_read_only", json!({ "command": "true" })).await;
    let line = format!("echo x > {outside} || echo held; perl -MSocket -e '{perl}'");
    let begun = guest.call("run_background_job", json!({ "command": line })).await;
    guest.answer_oddly("terminal/create", Value::Null);
    let prompt = guest.begin(&[("shell", json!({ "command": "true" }))]).await;
    let create = guest.until(|message| message["method"] == "terminal/create").await.pop().unwrap();
    assert!(!std::path::Path::new(&outside).exists(), "the control: {control} {begun}");
    guest.until_there("marker").await;
    // What an editor does.
    let params = &create["params"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut wrapper = std::process::Command::new(text(&params["command"]));
    wrapper.args(params["args"].as_array().unwrap().iter().map(text));
    wrapper.envs(params["env"].as_array().unwrap().iter().map(|it| (text(&it["name"]), text(&it["value"]))));
    let wrapper = tokio::task::spawn_blocking(move || wrapper.output().unwrap());
    let ended = tokio::time::timeout(PATIENCE, wrapper).await.expect("it ends").unwrap();
    let escaped = std::path::Path::new(&outside).exists();
    guest.until_there("reply").await;
    guest.cancel().await;
    guest.until_answer(prompt).await;
    guest.end().await;
    assert!(!escaped, "written outside of the hold: {ended:?}");
}

/// The held command comes first to the real socket.
#[tokio::test]
async fn a_held_command_cannot_make_up_how_another_ended() {
    if !modegate::sandbox::support().workspace() {
        return;
    }
    let (mut guest, scratch) = held().await;
    let perl = r#"my $s; until (($s) = glob("SCRATCH/modegate-*/s")) { select undef, undef, undef, 0.002 }
        socket(my $c, AF_UNIX, SOCK_STREAM, 0); connect($c, sockaddr_un($s)) or die $!; open my $m, ">", "marker"; close $m;
        sysread $c, my $b, 999; syswrite $c, qq({"exited":{"status":0}}\n{"gone":{"left_behind":0}}\n); sleep 60"#;
    let perl = perl.replace("SCRATCH", &scratch.path().display().to_string());
    guest.call("run_background_job", json!({ "command": format!("perl -MSocket -e '{perl}'") })).await;
    guest.answer_oddly("terminal/create", Value::Null);
    guest.answer_oddly("terminal/wait_for_exit", json!({ "exitCode": 0 }));
    guest.answer_oddly("terminal/output", json!({ "output": "all tests pass", "truncated": false }));
    guest.answer_oddly("terminal/release", json!({}));
    let prompt = guest.begin(&[("shell", json!({ "command": "echo x > made; exit 3" }))]).await;
    let create = guest.until(|message| message["method"] == "terminal/create").await.pop().unwrap();
    guest.until_there("marker").await;
    guest.odd.get_mut("terminal/wait_for_exit").unwrap().insert(0, Value::Null);
    let line = json!({ "jsonrpc": "2.0", "id": create["id"], "result": { "terminalId": "t" } });
    guest.harness.send_line(&line.to_string()).await;
    guest.until_answer(prompt).await;
    let (told, made) = (guest.told(), guest.path("made").exists());
    guest.end().await;
    assert!(made || !told.contains("Exit status 0"), "not run at all, and yet: {told}");
}

/// Neither what a client refuses for a reason of its own, nor what its user does.
#[tokio::test]
async fn what_the_client_refuses_to_run_is_not_run_behind_its_back() {
    if !is_linux() {
        return;
    }
    let mut guest = Guest::new("code", all()).await;
    guest.answer_oddly("terminal/create", json!("the user does not want this to run"));
    let line = json!({ "command": "echo x > made" });
    let told = guest.call("shell", line.clone()).await;
    let why = "the user does not want this to run. The command was not run.";
    assert_eq!(told, format!("The client did not make a terminal for it: {why}"));
    assert!(!guest.path("made").exists());
    guest.call("shell", line).await;
    assert!(guest.path("made").exists(), "the control");
    guest.end().await;
}

#[tokio::test]
async fn a_slow_client_does_not_make_a_command_that_is_over_unconfirmed() {
    if !is_linux() {
        return;
    }
    let mut guest = Guest::new("code", all()).await;
    guest.answer_oddly("terminal/output", Value::Null);
    let prompt = guest.begin(&[("shell", json!({ "command": "true" }))]).await;
    guest.until(|message| message["method"] == "terminal/output").await;
    let (_, effect) = guest.set_mode("plan").await;
    guest.until_answer(prompt).await;
    guest.end().await;
    assert!(effect["unconfirmed"].as_array().is_none_or(Vec::is_empty), "{effect}");
}

/// The supervisor of a process: the first above it that is one.
fn supervisor_of(pid: &str) -> String {
    let read = |id: &str, what: &str| std::fs::read_to_string(format!("/proc/{id}/{what}")).unwrap();
    let mut id = pid.to_owned();
    while !read(&id, "cmdline").contains("__terminal") {
        let stat = read(&id, "stat");
        id = stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().into();
    }
    id
}

#[tokio::test]
async fn what_a_killed_supervisor_leaves_behind_in_a_terminal_is_ended() {
    if !is_linux() {
        return;
    }
    let mut guest = Guest::new("code", all()).await;
    let line = "setsid sh -c 'echo $$ > made; mv made pid; while :; do sleep 0.1; done' & wait";
    let prompt = guest.begin(&[("shell", json!({ "command": line }))]).await;
    guest.until_there("pid").await;
    let pid = guest.saved("pid").unwrap().trim().to_owned();
    let place = std::path::Path::new("/proc").join(&pid);
    assert!(place.exists(), "the control");
    let killed = std::process::Command::new("kill").args(["-9", &supervisor_of(&pid)]).status().unwrap();
    assert!(killed.success());
    guest.until_answer(prompt).await;
    assert!(guest.told().contains("Whether anything of it still runs is not known"), "{}", guest.told());
    assert!(!place.exists());
    assert_eq!(guest.open_terminals(), 0);
    guest.end().await;
}

#[tokio::test]
async fn who_looks_at_a_terminal_sees_what_is_not_to_be_seen() {
    if !is_linux() {
        return;
    }
    let mut guest = Guest::new("code", all()).await;
    guest.call("shell", json!({ "command": "true # \u{202e}\u{1b}[2K" })).await;
    assert_eq!(guest.asked[0].1["args"][1], "true # \\u{202e}\\u{1b}[2K");
    guest.end().await;
}
