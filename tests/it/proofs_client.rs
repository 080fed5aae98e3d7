//! Proofs of a review: each test states what should hold and fails as long as it does not.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::guest::{Guest, all};
use crate::support::PATIENCE;

/// What the user types into the second file of a patch while the editor still writes the first is overwritten.
#[tokio::test]
async fn what_is_typed_while_another_file_is_written_is_not_lost() {
    let mut guest = Guest::new("code", all()).await;
    guest.file("a.txt", "one\n", Some("one\n"));
    guest.file("b.txt", "two\n", Some("two\n"));
    guest.answer_oddly("fs/write_text_file", Value::Null);
    let patch =
        "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-two\n+2\n";
    let prompt = guest.begin(&[("apply_patch", json!({ "patch": patch }))]).await;
    let write = guest.until(|message| message["method"] == "fs/write_text_file").await.pop().unwrap();
    // The editor takes its time (a formatter, a question of its own), and the user types.
    guest.file("b.txt", "two\n", Some("two\nand an hour of work\n"));
    let line = json!({ "jsonrpc": "2.0", "id": write["id"], "result": {} });
    guest.harness.send_line(&line.to_string()).await;
    guest.until_answer(prompt).await;
    let shown = guest.buffers[&guest.path("b.txt")].clone();
    guest.end().await;
    assert!(shown.contains("an hour of work"), "{shown}");
}

/// And what is typed into the first while the second is written and refused is overwritten by the taking back.
#[tokio::test]
async fn what_is_typed_before_a_patch_is_taken_back_is_not_lost() {
    let mut guest = Guest::new("code", all()).await;
    guest.file("a.txt", "one\n", Some("one\n"));
    guest.file("b.txt", "two\n", Some("two\n"));
    let patch =
        "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-two\n+2\n";
    guest.answer_oddly("fs/write_text_file", json!({}));
    guest.answer_oddly("fs/write_text_file", Value::Null);
    let prompt = guest.begin(&[("apply_patch", json!({ "patch": patch }))]).await;
    guest.until(|message| message["method"] == "fs/write_text_file").await;
    let write = guest.until(|message| message["method"] == "fs/write_text_file").await.pop().unwrap();
    assert_eq!(write["params"]["path"], json!(guest.path("b.txt")));
    guest.file("a.txt", "1\n", Some("1\nand an hour of work\n"));
    let line =
        json!({ "jsonrpc": "2.0", "id": write["id"], "error": { "code": -32603, "message": "locked" } });
    guest.harness.send_line(&line.to_string()).await;
    guest.until_answer(prompt).await;
    let shown = guest.buffers[&guest.path("a.txt")].clone();
    guest.end().await;
    assert!(shown.contains("an hour of work"), "{shown}");
}

/// A client that fails to read (an internal error) is taken for one that does not know the file: unsaved text is lost.
#[tokio::test]
async fn a_client_that_fails_to_read_is_not_one_that_does_not_know_the_file() {
    let mut guest = Guest::new("code", all()).await;
    guest.file("a.txt", "one\n", Some("one\nand an hour of work\n"));
    let prompt = {
        guest.answer_oddly("fs/read_text_file", Value::Null);
        guest.begin(&[("edit_file", json!({ "path": "a.txt", "old_text": "one", "new_text": "1" }))]).await
    };
    let read = guest.until(|message| message["method"] == "fs/read_text_file").await.pop().unwrap();
    let line = json!({ "jsonrpc": "2.0", "id": read["id"], "error": { "code": -32603, "message": "busy" } });
    guest.harness.send_line(&line.to_string()).await;
    guest.until_answer(prompt).await;
    let shown = guest.buffers[&guest.path("a.txt")].clone();
    guest.end().await;
    assert!(shown.contains("an hour of work"), "{shown}");
}

/// A folder is made for a file that the new mode does not let be written.
#[tokio::test]
async fn no_folder_is_made_after_the_mode_denies_it() {
    let mut guest = Guest::new("code", all()).await;
    guest.answer_oddly("fs/write_text_file", Value::Null);
    let patch = "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+x\n--- /dev/null\n+++ b/new/deep/b.txt\n@@ -0,0 +1 @@\n+x\n";
    let prompt = guest.begin(&[("apply_patch", json!({ "patch": patch }))]).await;
    let write = guest.until(|message| message["method"] == "fs/write_text_file").await.pop().unwrap();
    assert!(!guest.path("new").exists(), "the control");
    let params = json!({ "sessionId": guest.session, "modeId": "plan" });
    let id = guest.harness.request("session/set_mode", params).await;
    // The mode is recorded and the permit cancelled by then; the writer waits 1.8 s.
    tokio::time::sleep(Duration::from_millis(700)).await;
    let line = json!({ "jsonrpc": "2.0", "id": write["id"], "result": {} });
    guest.harness.send_line(&line.to_string()).await;
    let (mut answered, mut ended) = (false, false);
    guest
        .until(|message| {
            false || {
                let is = |wanted: i64| message["id"] == wanted && message.get("method").is_none();
                is(id) || is(prompt)
            }
        })
        .await
        .iter()
        .for_each(|message| {
            answered |= message["id"] == id && message.get("method").is_none();
            ended |= message["id"] == prompt && message.get("method").is_none();
        });
    let rest = if answered { prompt } else { id };
    guest.until_answer(rest).await;
    let made = guest.path("new/deep").exists();
    guest.end().await;
    assert!(!made, "new/deep was made in plan mode");
}

/// docs/security.md: a terminal is released before a mode change that denies its command is answered.
#[tokio::test]
async fn a_terminal_that_is_being_made_is_released_before_a_mode_change_is_answered() {
    let mut guest = Guest::new("code", all()).await;
    guest.answer_oddly("terminal/create", Value::Null);
    let prompt = guest.begin(&[("shell", json!({ "command": "echo hi" }))]).await;
    let create = guest.until(|message| message["method"] == "terminal/create").await.pop().unwrap();
    let (_, effect) = guest.set_mode("plan").await;
    let line = json!({ "jsonrpc": "2.0", "id": create["id"], "result": { "terminalId": "late" } });
    guest.harness.send_line(&line.to_string()).await;
    let released = guest.count("terminal/release");
    guest.answer_oddly("terminal/release", json!({}));
    guest.until_answer(prompt).await;
    if guest.count("terminal/release") == 0 {
        guest.until(|message| message["method"] == "terminal/release").await;
    }
    guest.end().await;
    assert_eq!(released, 1, "{effect}");
}

/// A command that is over is named as unconfirmed because the client is slow to show its output.
#[tokio::test]
async fn a_slow_client_does_not_make_a_command_that_is_over_unconfirmed() {
    let mut guest = Guest::new("code", all()).await;
    guest.answer_oddly("terminal/output", Value::Null);
    let prompt = guest.begin(&[("shell", json!({ "command": "true" }))]).await;
    guest.until(|message| message["method"] == "terminal/output").await;
    let (_, effect) = guest.set_mode("plan").await;
    guest.until_answer(prompt).await;
    guest.end().await;
    assert!(effect["unconfirmed"].as_array().is_none_or(Vec::is_empty), "{effect}");
}

/// A held command puts a socket of its own in the place of the one at which Modegate waits, and gives the wrapper, which the
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

/// A file that the user has written in the editor and never saved is overwritten, and not seen.
#[tokio::test]
async fn a_buffer_that_was_never_saved_is_not_overwritten() {
    let mut guest = Guest::new("code", all()).await;
    guest.buffers.insert(guest.path("new.txt"), "an hour of work\n".into());
    let read = guest.call("read_file", json!({ "path": "new.txt" })).await;
    let wrote = guest.call("write_file", json!({ "path": "new.txt", "content": "x\n" })).await;
    let shown = guest.buffers[&guest.path("new.txt")].clone();
    guest.end().await;
    assert!(shown.contains("an hour"), "{read} / {wrote}");
}

/// What a client (or its user, asked by the client) refuses to run is run behind its back.
#[tokio::test]
async fn what_the_client_refuses_to_run_is_not_run_behind_its_back() {
    let mut guest = Guest::new("code", all()).await;
    guest.answer_oddly("terminal/create", json!("the user does not want this to run"));
    let told = guest.call("shell", json!({ "command": "echo x > made" })).await;
    let made = guest.path("made").exists();
    guest.end().await;
    assert!(!made, "{told}");
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

/// And it can come first to the real socket, see the command line and make up how the command ended.
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

/// Nothing is written, and the folder is there.
#[tokio::test]
async fn what_the_editor_refuses_leaves_no_folder() {
    let mut guest = Guest::new("code", all()).await;
    guest.answer_oddly("fs/write_text_file", json!("locked"));
    let told = guest.call("write_file", json!({ "path": "new/deep/a.txt", "content": "x" })).await;
    let made = guest.path("new").exists();
    guest.end().await;
    assert!(!made, "{told}");
}

/// Processes of this build that were started as wrappers: id, and that of the parent.
fn wrappers() -> Vec<(String, String)> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut found = Vec::new();
    for entry in entries {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        if line.starts_with(env!("CARGO_BIN_EXE_modegate")) && line.contains("__terminal") {
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let parent =
                stat.rsplit(") ").next().unwrap_or_default().split(' ').nth(1).unwrap_or_default().to_owned();
            found.push((entry.file_name().to_string_lossy().into_owned(), parent));
        }
    }
    found
}

/// Started here, what a killed supervisor leaves behind is adopted and ended; in a terminal it runs on, in plan mode too.
#[tokio::test]
async fn what_a_killed_supervisor_leaves_behind_in_a_terminal_is_ended() {
    let mut guest = Guest::new("code", all()).await;
    let line = "setsid sh -c 'echo $$ > made; mv made pid; while :; do sleep 0.1; done' & wait";
    let prompt = guest.begin(&[("shell", json!({ "command": line }))]).await;
    guest.until_there("pid").await;
    let all = wrappers();
    let ours = all.iter().filter(|(_, parent)| all.iter().any(|(id, _)| id == parent));
    for (id, _) in ours {
        std::process::Command::new("kill").args(["-9", id]).status().unwrap();
    }
    guest.until_answer(prompt).await;
    let (_, effect) = guest.set_mode("plan").await;
    let pid = guest.saved("pid").unwrap().trim().to_owned();
    let begun = Instant::now();
    while std::path::Path::new("/proc").join(&pid).exists() && begun.elapsed() < Duration::from_secs(3) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let runs = std::path::Path::new("/proc").join(&pid).exists();
    if runs {
        std::process::Command::new("kill").args(["-9", &pid]).status().unwrap();
    }
    let told = guest.told();
    guest.end().await;
    assert!(!runs, "{told} {effect}");
}
