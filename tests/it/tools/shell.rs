//! The tools that run commands: permissions by mode, permission requests, output, background jobs, and their
//! end.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use modegate::model::{ModelEvent, ModelStop};
use modegate::process::Processes;
use modegate::process::sandbox_paths::User;
use modegate::process::shell::{Sandbox, Shell};
use modegate::sandbox::Support;
use modegate::tool::Toolset;
use serde_json::{Value, json};

use crate::support::requirements::require_sandbox;
use crate::support::waiting::until_exists;
use crate::support::{Setup, TestClient, read, shell};

/// Opens a session with the shell tools. Dropping the third value removes the home.
async fn begin(mode: &'static str) -> (TestClient, String, tempfile::TempDir) {
    with(mode, Sandbox::Workspace, false).await
}

async fn with(mode: &'static str, sandbox: Sandbox, live: bool) -> (TestClient, String, tempfile::TempDir) {
    let home = tempfile::tempdir().unwrap();
    let tools = Toolset::built_in().with_shell(shell(home.path(), sandbox));
    let mut client = TestClient::with(Setup { mode, tools, live, ..Setup::default() });
    let session = client.session().await;
    (client, session, home)
}

fn say_call(client: &TestClient, session: &str, tool: &str, arguments: Value) {
    let id = format!("m{}", client.model.requests(session).len());
    client.model.say(session, Ok(ModelEvent::ToolCall { id, name: tool.into(), arguments }));
    client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
}

fn say_done(client: &TestClient, session: &str) {
    client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
}

/// Runs a turn with one call. Returns the call's last update and the model's result.
async fn call(client: &mut TestClient, session: &str, tool: &str, arguments: Value) -> (Value, String) {
    let prompt = client.prompt(session, "go").await;
    say_call(client, session, tool, arguments);
    say_done(client, session);
    let messages = client.until_answer(prompt).await;
    (last_update(&messages), last_tool_result(client, session))
}

fn last_update(messages: &[Value]) -> Value {
    let mut updates = messages.iter().filter(|message| message["params"]["update"]["status"].is_string());
    updates.next_back().unwrap()["params"]["update"].clone()
}

/// Returns the tool result in the last request.
fn last_tool_result(client: &TestClient, session: &str) -> String {
    let request = client.model.requests(session).pop().unwrap();
    request
        .messages
        .iter()
        .rev()
        .find_map(|message| {
            message.blocks.iter().rev().find_map(|block| match block {
                modegate::model::Block::ToolResult { text, .. } => Some(text.clone()),
                _ => None,
            })
        })
        .unwrap_or_default()
}

async fn set_mode(client: &mut TestClient, session: &str, mode: &str) -> (Vec<Value>, Value) {
    let id = client.request("session/set_mode", json!({ "sessionId": session, "modeId": mode })).await;
    let mut messages = client.until_answer(id).await;
    let answer = messages.pop().unwrap();
    (messages, answer["result"]["_meta"]["modegate/effect"].clone())
}

/// Returns true if the file grows within 120 ms.
async fn grows(path: &Path) -> bool {
    let size = || std::fs::metadata(path).map_or(0, |file| file.len());
    let before = size();
    tokio::time::sleep(Duration::from_millis(120)).await;
    size() != before
}

const TICKER: &str = "setsid sh -c 'while :; do echo x >> ticks; sleep 0.05; done' & echo begun; wait";

#[tokio::test]
async fn plan_commands_read_and_change_nothing() {
    require_sandbox();
    let (mut client, session, _home) = begin("plan").await;
    let cwd = client.cwd();
    std::fs::write(cwd.join("a.txt"), "one\ntwo\n").unwrap();
    let (update, text) =
        call(&mut client, &session, "shell_read_only", json!({ "command": "wc -l < a.txt" })).await;
    let names: Vec<String> =
        client.model.requests(&session)[0].tools.iter().map(|tool| tool.name.clone()).collect();
    assert!(names.contains(&"shell_read_only".to_owned()), "{names:?}");
    assert!(!names.contains(&"shell".to_owned()), "{names:?}");
    let hint = "[Read-only sandbox: writes only below $TMPDIR and in build caches, no network beyond its own 127.0.0.1, no home folder.]";
    let expected = format!("2\n[Exit status 0.]\n{hint}");
    assert_eq!((update["status"].as_str(), text), (Some("completed"), expected), "the first command");
    let (_, text) = call(&mut client, &session, "shell_read_only", json!({ "command": "false" })).await;
    assert_eq!(text, "[Exit status 1.]");
    let write = json!({ "command": "echo x > a.txt; echo $?" });
    let (_, text) = call(&mut client, &session, "shell_read_only", write.clone()).await;
    assert!(text.contains("Permission denied") && text.contains("1\n") && text.ends_with(hint), "{text}");
    for background in [false, true] {
        let write = json!({ "command": write["command"], "background": background });
        let (update, text) = call(&mut client, &session, "shell", write).await;
        assert_eq!(update["_meta"]["modegate/denied"], "access", "{text}");
    }
    assert_eq!(read(&cwd, "a.txt").unwrap(), "one\ntwo\n");
    set_mode(&mut client, &session, "code").await;
    let (_, text) = call(&mut client, &session, "shell", write).await;
    assert_eq!(
        (text.as_str(), read(&cwd, "a.txt").unwrap().as_str()),
        ("0\n[Exit status 0.]", "x\n"),
        "the control"
    );
    client.end().await;
}

#[tokio::test]
async fn shell_read_only_is_absent_without_kernel_support() {
    let home = tempfile::tempdir().unwrap();
    let processes = Processes::new(env!("CARGO_BIN_EXE_modegate").into(), std::env::temp_dir());
    for (landlock, seccomp) in [(0, true), (2, true), (7, false)] {
        let support = Support::Linux { landlock, seccomp };
        assert!(support.missing().is_some());
        let shell = Shell::new(
            processes.clone(),
            Some("/bin/sh".into()),
            User::default(),
            vec![],
            Sandbox::Workspace,
            support,
        );
        let tools = Toolset::built_in().with_shell(shell);
        let mut client = TestClient::with(Setup { mode: "plan", tools, ..Setup::default() });
        let session = client.session().await;
        let (update, text) =
            call(&mut client, &session, "shell_read_only", json!({ "command": "true" })).await;
        assert_eq!(update["status"], "failed");
        assert!(text.contains("There is no such tool") && !text.contains("shell"), "{text}");
        set_mode(&mut client, &session, "code").await;
        let (_, text) = call(&mut client, &session, "shell", json!({ "command": "echo free" })).await;
        assert!(text.starts_with("free\n"), "the control: {text}");
        client.end().await;
    }
    drop(home);
}

/// A brokered command has no namespaces; its own error does not name the sandbox.
#[tokio::test]
async fn brokered_commands_tell_the_model_of_refused_namespaces() {
    require_sandbox();
    for (sandbox, is_told) in [(Sandbox::Broker, true), (Sandbox::Workspace, false)] {
        let (mut client, session, _home) = with("code", sandbox, false).await;
        for (line, is_refused) in [("unshare --user true; false", true), ("false", false)] {
            let (_, text) = call(&mut client, &session, "shell", json!({ "command": line })).await;
            let has_note = text.contains("[Sandbox: no mounts and no namespaces");
            assert_eq!(has_note, is_told && is_refused, "{sandbox:?} {line}: {text}");
        }
        client.end().await;
    }
}

#[tokio::test]
async fn workspace_commands_write_only_in_the_workspace() {
    require_sandbox();
    for (sandbox, escapes) in [(Sandbox::Workspace, false), (Sandbox::Off, true)] {
        let (mut client, session, home) = with("code", sandbox, false).await;
        let beside = home.path().join("beside");
        let outside = format!("{}/x", env!("CARGO_TARGET_TMPDIR"));
        let line = format!(
            "echo x > inside; echo x > {outside}; rm -f {outside}; echo $? > status; ls {}",
            beside.display()
        );
        let (_, text) = call(&mut client, &session, "shell", json!({ "command": line })).await;
        assert_eq!(read(&client.cwd(), "inside").as_deref(), Some("x\n"), "{text}");
        assert_eq!(!text.contains("Permission denied"), escapes, "{text}");
        let line = json!({ "command": format!("touch {outside} && rm {outside}") });
        let (_, text) = call(&mut client, &session, "shell", line).await;
        let note =
            "\n[Exit status 1.]\n[Sandbox: writes only in the session's folders, $TMPDIR, /tmp and caches.]";
        assert_eq!(text.ends_with(note), !escapes, "{text}");
        let (_, text) = call(&mut client, &session, "shell", json!({ "command": "echo $TMPDIR" })).await;
        assert_eq!(text, format!("{}\n[Exit status 0.]", std::env::temp_dir().display()));
        client.end().await;
    }
}

#[tokio::test]
async fn sandbox_is_named_again_after_a_compaction() {
    require_sandbox();
    let (mut client, session, _home) = begin("plan").await;
    let run = json!({ "command": "echo a" });
    let mut sandboxes = Vec::new();
    for compacts in [false, true, false] {
        let (_, text) = call(&mut client, &session, "shell_read_only", run.clone()).await;
        sandboxes.push(text.contains("Read-only sandbox"));
        if compacts {
            let prompt = client.prompt(&session, "/compact").await;
            client.model.say(&session, Ok(ModelEvent::Text("All was said.".into())));
            say_done(&client, &session);
            client.until_answer(prompt).await;
        }
    }
    assert_eq!(sandboxes, [true, false, true]);
    client.end().await;
}

#[tokio::test]
async fn permission_request_shows_command_parts_and_always_scope() {
    let (mut client, session, _home) = begin("ask").await;
    std::fs::create_dir(client.cwd().join("sub")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", client.cwd().join("key")).unwrap();
    let prompt = client.prompt(&session, "go").await;
    say_call(&client, &session, "shell", json!({ "command": "echo a | cat; ls > /dev/null" }));
    let question = until_question(&mut client, "").await;
    let call_shown = &question["params"]["toolCall"];
    assert_eq!(call_shown["kind"], "execute");
    assert_eq!(
        call_shown["content"][0]["content"]["text"],
        "1. `echo a`\n2. `cat` (reads the output of the one before)\n3. `ls`\n```sh\necho a | cat; ls > /dev/null\n```\n"
    );
    assert_eq!(
        question["params"]["options"][1]["name"],
        "Always allow exactly `echo a | cat; ls > /dev/null` (this session, ask mode)"
    );
    answer(&mut client, &question, "allow_always").await;
    // Each command causes one permission request with this scope of "always". The commands below it cause
    // none.
    let always = |what: &str| format!("Always allow {what} (this session, ask mode)");
    let long = format!("X=1 true {}", "x".repeat(100));
    for (line, what, covered) in [
        ("true | cat", "exactly `true | cat`", vec!["true | cat", "echo a | cat; ls > /dev/null"]),
        (
            "cat file",
            "`cat` on any files in the session's folders",
            vec!["cat file", "cat -n sub/x", "cat 'a b'"],
        ),
        ("cat key", "exactly `cat key`", vec!["cat key"]),
        ("cat < file", "exactly `cat < file`", vec![]),
        ("true; cat file", "exactly `true; cat file`", vec![]),
        ("make x", "exactly `make x`", vec!["make x"]),
        ("make x y", "exactly `make x y`", vec![]),
        (&long, "exactly this command line", vec![&long]),
        ("true\nfalse", "exactly this command line", vec!["true\nfalse"]),
    ] {
        say_call(&client, &session, "shell", json!({ "command": line }));
        let question = until_question(&mut client, line).await;
        assert_eq!(question["params"]["options"][1]["name"], always(what), "{line}");
        answer(&mut client, &question, "allow_always").await;
        for covered in covered {
            say_call(&client, &session, "shell", json!({ "command": covered }));
        }
    }
    // The same words can mean something else in another folder.
    say_call(&client, &session, "shell", json!({ "command": "cat x", "cwd": "sub" }));
    say_call(&client, &session, "shell", json!({ "command": "make x", "cwd": "sub" }));
    let question = until_question(&mut client, "make x").await;
    assert_eq!(question["params"]["options"][1]["name"], always("exactly `make x`, in sub"));
    answer(&mut client, &question, "reject_once").await;
    // A command with invisible characters has no "always" option.
    say_call(&client, &session, "shell", json!({ "command": "true \u{202e}x" }));
    let question = until_question(&mut client, "true").await;
    assert_eq!(question["params"]["options"].as_array().unwrap().len(), 2);
    answer(&mut client, &question, "reject_once").await;
    say_done(&client, &session);
    client.until_answer(prompt).await;
    client.end().await;
}

/// Returns the next permission request, which precedes the prompt's answer.
async fn until_question(client: &mut TestClient, line: &str) -> Value {
    loop {
        let message = client.next().await;
        assert!(message.get("result").is_none(), "{line:?} was not asked for");
        if message["method"] == "session/request_permission" {
            let title = message["params"]["toolCall"]["title"].as_str().unwrap();
            let first = line.lines().next().unwrap_or_default();
            assert!(
                title.trim_end_matches('…').starts_with(first)
                    || first.starts_with(title.trim_end_matches('…')),
                "{title}"
            );
            return message;
        }
    }
}

async fn answer(client: &mut TestClient, question: &Value, option: &str) {
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
    client.send_line(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": outcome }).to_string()).await;
}

#[tokio::test]
async fn rejected_slash_commands_do_not_reach_the_model() {
    let (mut client, session, _home) = begin("code").await;
    call(&mut client, &session, "shell", json!({ "command": "true" })).await;
    let requests = client.model.requests(&session).len();
    for (command, expected) in [
        ("/undo", "/undo: "),
        ("/undo that", "/undo takes a turn number, or no argument"),
        ("/compact now", "/compact takes no argument. Nothing was done"),
    ] {
        let prompt = client.prompt(&session, command).await;
        let messages = client.until_answer(prompt).await;
        let text: String = messages
            .iter()
            .filter_map(|message| message["params"]["update"]["content"]["text"].as_str())
            .collect();
        assert!(
            text.starts_with(expected) && text.ends_with(".\n") && !text.contains(".."),
            "{command}: {text}"
        );
    }
    assert_eq!(client.model.requests(&session).len(), requests);
    client.end().await;
}

#[tokio::test]
async fn output_streams_and_timeout_stops_the_command() {
    let (mut client, session, _home) = with("code", Sandbox::Workspace, true).await;
    let prompt = client.prompt(&session, "go").await;
    say_call(&client, &session, "shell", json!({ "command": "echo first; sleep 1000", "timeout": 1 }));
    say_done(&client, &session);
    let messages = client.until_answer(prompt).await;
    let shown = messages.iter().find(|message| {
        let update = &message["params"]["update"];
        update["status"].is_null() && update["content"][0]["content"]["text"] == "first\n"
    });
    assert!(shown.is_some(), "{messages:?}");
    let update = last_update(&messages);
    assert_eq!(update["status"], "failed");
    assert_eq!(
        last_tool_result(&client, &session),
        "first\n[Stopped: the timeout of 1 s expired. Ended by signal 15.]"
    );
    client.end().await;
}

#[tokio::test]
async fn shell_result_reports_exit_signal_and_bad_arguments() {
    let (mut client, session, _home) = begin("code").await;
    for (line, expected) in [
        ("exit 3", "[Exit status 3.]"),
        ("true", "[Exit status 0, no output.]"),
        ("echo a; kill -9 $$", "a\n[Ended by signal 9.]"),
        (
            "sleep 1000 & echo a",
            "a\n[Exit status 0. A process that it left running was stopped; shell with background: true keeps one running.]",
        ),
        ("sleep 0.01 & echo a", "a\n[Exit status 0.]"),
        ("mkdir -p d && cd d && pwd | grep -o 'work/d'", "work/d\n[Exit status 0.]"),
        ("cat", "[Exit status 0, no output.]"),
        ("printf 'a\\0b\\0'; head -c 9 /dev/zero", "a\u{2400}b\u{2400}\n[Exit status 0.]"),
        ("printf ' 1%%\\r50%%\\r\\033[32mdone\\033[0m\\n\\351\\n'", "done\n\u{fffd}\n[Exit status 0.]"),
        ("head -c 9000 /dev/zero | tr '\\0' '\\377'", "[Binary output, 9,000 bytes.]\n[Exit status 0.]"),
    ] {
        let (update, text) = call(&mut client, &session, "shell", json!({ "command": line })).await;
        let is_zero = expected.contains("Exit status 0");
        let status = if is_zero { "completed" } else { "failed" };
        assert_eq!((update["status"].as_str(), text.as_str()), (Some(status), expected), "{line}");
    }
    for (arguments, expected) in [
        (json!({ "command": " " }), "command is empty"),
        (json!({ "command": "ls", "cwd": "/" }), "outside the session's folders"),
        (json!({ "command": "ls", "timeout": 0 }), "from 1 to 1800"),
        (json!({ "command": "ls", "cwd": "nowhere" }), "is not a directory"),
    ] {
        let (update, text) = call(&mut client, &session, "shell", arguments.clone()).await;
        assert!(update["status"] == "failed" && text.contains(expected), "{arguments}: {text}");
    }
    let (_, text) = call(&mut client, &session, "shell", json!({ "command": "pwd", "cwd": "d" })).await;
    assert!(text.contains("work/d\n"), "{text}");
    client.end().await;
}

/// Tools and commands can read the file without a permission request, until the session is closed.
#[tokio::test]
async fn whole_output_of_a_command_can_be_read_in_plan() {
    let (mut client, session, _home) = begin("plan").await;
    let (_, text) = call(&mut client, &session, "shell_read_only", json!({ "command": "seq 20000" })).await;
    let (head, tail) = text.split_once("\n[… ").expect(&text);
    let (note, tail) = tail.split_once("]\n").unwrap();
    let path = note.strip_prefix("17,937 lines left out; all of it: ").expect(note);
    assert!(
        head.starts_with("1\n2\n") && tail.contains("\n20000\n[Exit status 0.]\n[Read-only sandbox: "),
        "{text}"
    );
    let read = json!({ "path": path, "line": 15_000, "limit": 1 });
    let (_, text) = call(&mut client, &session, "read_file", read).await;
    assert!(text.contains("15000") && !text.contains("15001\n"), "{text}");
    let search = json!({ "path": path, "pattern": "^1500.$", "output": "count" });
    let (_, text) = call(&mut client, &session, "search_files", search).await;
    assert_eq!(text, format!("{path}: 10"));
    let line = json!({ "command": format!("grep -c 7 {path}") });
    let (_, text) = call(&mut client, &session, "shell_read_only", line).await;
    assert_eq!(text, "6878\n[Exit status 0.]");
    let set = client.request("session/set_mode", json!({ "sessionId": session, "modeId": "code" })).await;
    client.until_answer(set).await;
    let write = json!({ "path": path, "content": "x" });
    let (update, text) = call(&mut client, &session, "write_file", write).await;
    assert!(update["status"] == "failed" && text.contains("outside"), "{text}");
    let folder = std::path::Path::new(path).parent().unwrap().to_owned();
    assert!(folder.exists());
    let close = client.request("session/close", json!({ "sessionId": session })).await;
    client.until_answer(close).await;
    assert!(!folder.exists(), "the folder is removed");
    client.end().await;
}

#[tokio::test]
async fn builds_of_plan_commands_last_for_the_session() {
    require_sandbox();
    let (mut client, session, _home) = begin("plan").await;
    let build = json!({ "command": "mkdir -p $CARGO_TARGET_DIR && cd $CARGO_TARGET_DIR && echo built > f && \
        chmod 700 f && pwd" });
    let (_, text) = call(&mut client, &session, "shell_read_only", build).await;
    let folder = PathBuf::from(text.lines().next().unwrap());
    assert!(folder.join("f").is_file() && !folder.starts_with(client.cwd()), "{text}");
    let again = json!({ "command": "cat $CARGO_TARGET_DIR/f; stat -c %a $CARGO_TARGET_DIR/f" });
    let (_, text) = call(&mut client, &session, "shell_read_only", again).await;
    assert!(text.starts_with("built\n700\n"), "{text}");
    // Files beside the folder for commands are out of their reach.
    let unlock = json!({ "command": "rm $CARGO_TARGET_DIR/../../lock; echo $?" });
    let (_, text) = call(&mut client, &session, "shell_read_only", unlock).await;
    assert!(text.contains("denied") && text.contains("1\n"), "{text}");
    set_mode(&mut client, &session, "code").await;
    let (_, text) =
        call(&mut client, &session, "shell", json!({ "command": "echo \"[$CARGO_TARGET_DIR]\"" })).await;
    assert!(!text.contains(folder.to_str().unwrap()), "{text}");
    let close = client.request("session/close", json!({ "sessionId": session })).await;
    client.until_answer(close).await;
    assert!(!folder.exists(), "the folder is removed");
    client.end().await;
}

#[tokio::test]
async fn background_job_outlives_the_turn_and_can_be_stopped() {
    let (mut client, session, _home) = begin("code").await;
    let ticks = client.cwd().join("ticks");
    let (_, text) =
        call(&mut client, &session, "shell", json!({ "command": TICKER, "background": true })).await;
    assert_eq!(text, "Started job_1. view_background shows its output.");
    until_exists(&ticks).await;
    let (_, text) = call(&mut client, &session, "view_background", json!({})).await;
    assert!(text.starts_with("job_1: setsid") && text.ends_with("[Still running.]"), "{text}");
    let (_, text) = call(&mut client, &session, "view_background", json!({ "id": "job_1" })).await;
    assert_eq!(text, "begun\n[Still running.]");
    for (all, expected) in [(false, "[No new output.]\n[Still running.]"), (true, "begun\n[Still running.]")]
    {
        let again = json!({ "id": "job_1", "all": all });
        assert_eq!(call(&mut client, &session, "view_background", again).await.1, expected);
    }
    assert!(grows(&ticks).await, "the control");
    let (_, text) = call(&mut client, &session, "stop_background", json!({ "id": "job_1" })).await;
    assert!(text.starts_with("[Stopped on request."), "{text}");
    assert!(!grows(&ticks).await);
    let (_, text) = call(&mut client, &session, "view_background", json!({ "id": "job_7" })).await;
    assert_eq!(text, "There is no \"job_7\" in the background. There are: job_1.");
    client.end().await;
}

#[tokio::test]
async fn denying_mode_ends_jobs_and_names_them() {
    let (mut client, session, _home) = begin("code").await;
    let ticks = client.cwd().join("ticks");
    call(&mut client, &session, "shell", json!({ "command": TICKER, "background": true })).await;
    until_exists(&ticks).await;
    let (_, effect) = set_mode(&mut client, &session, "ask").await;
    assert_eq!(effect["ended"], json!([]), "what would be asked for runs on");
    assert!(grows(&ticks).await, "the control");
    let (_, effect) = set_mode(&mut client, &session, "plan").await;
    let size = std::fs::metadata(&ticks).unwrap().len();
    assert_eq!((&effect["ended"], &effect["unconfirmed"]), (&json!(["call_1_1"]), &json!([])));
    assert!(!grows(&ticks).await);
    assert_eq!(std::fs::metadata(&ticks).unwrap().len(), size, "not even between the change and its answer");
    let (_, text) = call(&mut client, &session, "view_background", json!({ "id": "job_1" })).await;
    assert_eq!(text, "begun\n[Stopped: the turn was cancelled, or the mode no longer allows it.]");
    client.end().await;
}

#[tokio::test]
async fn cancel_ends_only_work_of_the_current_turn() {
    let (mut client, session, _home) = begin("code").await;
    let cwd = client.cwd();
    call(&mut client, &session, "shell", json!({ "command": TICKER, "background": true })).await;
    let prompt = client.prompt(&session, "go").await;
    let (job, command) = (TICKER.replace("ticks", "of_job"), TICKER.replace("ticks", "of_command"));
    say_call(&client, &session, "shell", json!({ "command": job, "background": true }));
    say_call(&client, &session, "shell", json!({ "command": command }));
    for name in ["ticks", "of_job", "of_command"] {
        until_exists(&cwd.join(name)).await;
    }
    client.notify("session/cancel", json!({ "sessionId": session })).await;
    let answer = client.until_answer(prompt).await.pop().unwrap();
    assert_eq!(answer["result"]["stopReason"], "cancelled");
    assert!(!grows(&cwd.join("of_job")).await && !grows(&cwd.join("of_command")).await);
    assert!(grows(&cwd.join("ticks")).await, "an earlier turn's job goes on");
    client.end().await;
    assert!(!grows(&cwd.join("ticks")).await, "and ends with the session");
}

/// Mode changes while commands and writes run. `ROUNDS=200` makes more of them and prints their durations.
fn rounds() -> usize {
    std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(12)
}

#[tokio::test]
async fn nothing_is_written_after_set_mode_plan_is_answered() {
    let (mut times, mut confirmed_rounds) = (Vec::new(), 0);
    for round in 0..rounds() {
        let (mut client, session, _home) = begin("code").await;
        let cwd = client.cwd();
        call(
            &mut client,
            &session,
            "shell",
            json!({ "command": TICKER.replace("ticks", "of_job"), "background": true }),
        )
        .await;
        let prompt = client.prompt(&session, "go").await;
        // Even rounds switch while a command runs, odd rounds while a write starts.
        if round % 2 == 0 {
            say_call(&client, &session, "shell", json!({ "command": TICKER }));
            until_exists(&cwd.join("ticks")).await;
        } else {
            let large = "x".repeat(4 << 20);
            say_call(&client, &session, "write_file", json!({ "path": "large", "content": large }));
            while client.next().await["params"]["update"]["status"] != "in_progress" {}
        }
        until_exists(&cwd.join("of_job")).await;
        let started = Instant::now();
        let (_, effect) = set_mode(&mut client, &session, "plan").await;
        times.push(started.elapsed());
        let before = contents(&cwd);
        tokio::time::sleep(Duration::from_millis(110)).await;
        // On a busy machine, the answer may come before all ends are confirmed, and then says so.
        if effect["unconfirmed"] == json!([]) {
            assert_eq!(contents(&cwd), before, "round {round}");
            confirmed_rounds += 1;
        }
        say_done(&client, &session);
        client.until_answer(prompt).await;
        client.end().await;
    }
    assert!(confirmed_rounds * 2 > rounds(), "{confirmed_rounds} rounds were confirmed");
    times.sort();
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
    println!(
        "set_mode plan while all runs, {} times: p50 {:?}, p99 {:?}, most {:?}",
        times.len(),
        at(50),
        at(99),
        at(100)
    );
}

/// Returns the names, sizes and times of the files in a folder.
fn contents(folder: &Path) -> Vec<(std::ffi::OsString, u64, std::time::SystemTime)> {
    let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut all: Vec<_> = all
        .map(|entry| {
            let meta = entry.metadata().unwrap();
            (entry.file_name(), meta.len(), meta.modified().unwrap())
        })
        .collect();
    all.sort();
    all
}
