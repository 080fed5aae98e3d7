//! Headless runs of the binary: exit codes, end of input, signals, and the store after a kill.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::headless_output::check_lines;
use crate::support::requirements::require_sandbox;

pub(super) fn modegate(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
    command
        .current_dir(dir)
        .args(arguments)
        .env_clear()
        .env("HOME", dir.join("home"))
        .env("MODEGATE_LOG", "warn");
    command
}

pub(super) fn run(dir: &Path, arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = modegate(dir, arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let stdout = text(stdout);
    check_lines(&stdout);
    (status.code().unwrap_or(-1), stdout, text(stderr))
}

fn repository() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("src")).unwrap();
    fs::write(dir.path().join("src/http.rs"), "mod x;\n\npub fn retry_request(times: u32) {\n}\n").unwrap();
    fs::write(dir.path().join("README.md"), "Requests are retried twice.\n").unwrap();
    dir
}

/// Waits for a process to end. Fails if the process does not end in time.
fn wait(child: &mut Child, limit: Duration) -> Option<i32> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(start.elapsed() < limit, "the process did not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn headless_plan_names_file_and_line_and_changes_nothing() {
    let dir = repository();
    let (code, answer, progress) =
        run(dir.path(), &["--store", "memory", "--mode", "plan", "-p", "where is the retry logic?"]);
    assert_eq!(code, 0, "{progress}");
    assert!(answer.starts_with("I am Modegate's offline research, not a language model"), "{answer}");
    assert!(answer.contains("`src/http.rs:3` `pub fn retry_request(times: u32) {`"), "{answer}");
    assert!(progress.starts_with("modegate: plan mode, session sess_"), "{progress}");
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn headless_ask_user_continues_without_a_denial() {
    let dir = repository();
    let script = dir.path().join("script.jsonl");
    let questions = json!([{ "question": "Which?", "choices": ["a"] }]);
    let call =
        json!({ "tool_call": { "id": "1", "name": "ask_user", "arguments": { "questions": questions } } });
    fs::write(&script, format!("{call}\n{{\"stop\":\"done\"}}\n{{\"text\":\"a\"}}\n{{\"stop\":\"done\"}}\n"))
        .unwrap();
    let model = format!("scripted:{}", script.display());
    let arguments = ["--store", "memory", "--model", &model, "--output", "stream-json", "-p", "go"];
    let (code, answer, progress) = run(dir.path(), &arguments);
    assert_eq!(code, 0, "{progress}");
    assert!(answer.contains("Nobody can be asked here: decide yourself"), "{answer}");
}

/// A headless run cannot ask the user, so a hint alone does not allow a call.
#[test]
fn headless_denies_hinted_tools_and_names_trust_hints() {
    let dir = repository();
    fs::write(dir.path().join("a.txt"), "content of a").unwrap();
    let settings = dir.path().join("home/.config/modegate");
    fs::create_dir_all(&settings).unwrap();
    let script = dir.path().join("script.jsonl");
    let call = json!({ "tool_call": { "id": "1", "name": "mcp__t__look", "arguments": {} } });
    fs::write(&script, format!("{call}\n{{\"stop\":\"done\"}}\n{{\"text\":\"a\"}}\n{{\"stop\":\"done\"}}\n"))
        .unwrap();
    let model = format!("scripted:{}", script.display());
    let server = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/server.sh");
    for (mode, trust, runs) in
        [("plan", "", false), ("ask", "", false), ("plan", ", trust_hints: true", true), ("code", "", true)]
    {
        let entry = format!("servers: {{t: {{command: /bin/bash, args: ['{server}', good]{trust}}}}}\n");
        fs::write(settings.join("modes.yaml"), entry).unwrap();
        let arguments =
            ["--store", "memory", "--model", &model, "--mode", mode, "--output", "stream-json", "-p", "go"];
        let (_, answer, progress) = run(dir.path(), &arguments);
        assert_eq!(answer.contains("content of a"), runs, "{mode}{trust}: {answer} {progress}");
        assert_eq!(answer.contains("`trust_hints: true` for the server"), !runs, "{mode}{trust}: {answer}");
        assert_eq!(progress.contains("trust_hints: true"), !runs, "{mode}{trust}: {progress}");
    }
}

/// Writes a script of these lines. Returns the name of its model.
fn scripted(dir: &Path, lines: &[Value]) -> String {
    let script = dir.join("script.jsonl");
    let lines: Vec<_> = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&script, lines.concat()).unwrap();
    format!("scripted:{}", script.display())
}

/// Runs a model that writes `path` and then ends its turn, perhaps with an answer. Returns the exit code, and the
/// progress.
fn write_headless(dir: &Path, path: &str, answer: Option<&str>, options: &[&str]) -> (i32, String) {
    let arguments = json!({ "path": path, "content": "x" });
    let done = json!({ "stop": "done" });
    let mut lines = vec![
        json!({ "tool_call": { "id": "1", "name": "write_file", "arguments": arguments } }),
        done.clone(),
    ];
    lines.extend(answer.map(|text| json!({ "text": text })));
    lines.push(done);
    let model = scripted(dir, &lines);
    let (code, _, progress) =
        run(dir, &[&["--store", "memory", "--model", &model, "-p", "x"], options].concat());
    (code, progress)
}

#[test]
fn denied_calls_exit_with_3_unless_plan_mode_has_a_plan() {
    let dir = repository();
    let (code, progress) = write_headless(dir.path(), "new.txt", None, &[]);
    assert_eq!(code, 3, "a headless run cannot ask: {progress}");
    assert!(progress.contains("--mode code"), "{progress}");
    let (code, progress) = write_headless(dir.path(), "new.txt", None, &["--mode", "plan"]);
    assert_eq!(code, 3, "the turn ends without a plan: {progress}");
    let denial = "denied: write_file is not available in plan mode, which changes nothing (access)";
    assert!(progress.contains(denial), "{progress}");
    assert!(!dir.path().join("new.txt").exists());
    let outside = |mode: &str| write_headless(dir.path(), "/new.txt", Some("Tried."), &["--mode", mode]).0;
    assert_eq!(outside("code"), 3, "code mode allows no writes outside of the folder");
    assert_eq!(outside("plan"), 0, "the answer is the plan, and the denial is on stderr");
}

#[test]
fn answer_exits_with_0_and_a_missing_answer_with_1() {
    let dir = repository();
    assert_eq!(write_headless(dir.path(), "new.txt", None, &["--mode", "code"]).0, 1);
    assert_eq!(write_headless(dir.path(), "new.txt", Some("Written."), &["--mode", "code"]).0, 0);
    assert_eq!(fs::read_to_string(dir.path().join("new.txt")).unwrap(), "x");
}

#[test]
fn wrong_usage_exits_with_2() {
    let dir = repository();
    for usage in [
        &["--mode", "yolo", "-p", "x"][..],
        &["--model", "gpt", "-p", "x"],
        &["--nope"],
        &["--eof-grace", "-1"],
    ] {
        let (code, output, errors) = run(dir.path(), usage);
        assert_eq!((code, output.as_str()), (2, ""), "{usage:?}: {errors}");
    }
    assert!(run(dir.path(), &["--mode", "yolo", "-p", "x"]).2.contains("the modes are ask, plan, code"));
}

#[test]
fn model_error_exits_with_1_and_is_printed() {
    let dir = repository();
    let model = scripted(dir.path(), &[json!({ "fail": "no model today" })]);
    let (code, _, errors) = run(dir.path(), &["--store", "memory", "--model", &model, "-p", "x"]);
    assert!(code == 1 && errors.contains("no model today"), "{code}: {errors}");
}

/// Runs the binary with this text at stdin.
pub(super) fn run_with_input(dir: &Path, arguments: &[&str], input: &str) -> (i32, String) {
    let mut child = modegate(dir, arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    check_lines(&stdout);
    (output.status.code().unwrap_or(-1), stdout)
}

#[test]
fn prompt_sources_and_output_formats_give_same_answer() {
    let dir = repository();
    let question = "where is the retry logic?";
    let memory = ["--store", "memory", "--mode", "plan"];
    let (code, plain, _) = run(dir.path(), &[&memory[..], &["-p", question]].concat());
    assert_eq!(code, 0);
    assert_eq!(
        run_with_input(dir.path(), &[&memory[..], &["-p", "-"]].concat(), question),
        (0, plain.clone())
    );
    assert_eq!(run_with_input(dir.path(), &memory, question), (0, plain.clone()));
    // A protocol line is no prompt, even with `--mode`.
    let line = "{\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":1}}\n";
    assert!(
        run_with_input(dir.path(), &memory, line).1.starts_with("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\"")
    );
    assert_eq!(
        run_with_input(dir.path(), &[&memory[..], &["-p", "-"]].concat(), "  \n").0,
        2,
        "an empty prompt"
    );
    let shaped = ["--store", "memory", "--output", "text", "--model", "offline"];
    assert_eq!(run_with_input(dir.path(), &shaped, question).0, 0, "--output means a prompt");
    assert_eq!(run_with_input(dir.path(), &shaped, "").0, 2, "an empty pipe");

    let elsewhere = tempfile::tempdir().unwrap();
    let cwd = dir.path().to_str().unwrap();
    let more = ["--cwd", cwd, "--output", "json", "-p", question];
    let (code, json, _) = run(elsewhere.path(), &[&memory[..], &more].concat());
    let result: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(code, 0);
    assert_eq!((&result["mode"], &result["stopReason"]), (&json!("plan"), &json!("end_turn")));
    assert_eq!(result["text"], plain);
    let more = ["--cwd", cwd, "--output", "stream-json", "-p", question];
    let (_, stream, _) = run(elsewhere.path(), &[&memory[..], &more].concat());
    let lines: Vec<Value> = stream.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [init, updates @ .., last] = &lines[..] else { panic!("{stream}") };
    assert_eq!((&init["type"], &init["mode"], &init["cwd"]), (&json!("init"), &json!("plan"), &json!(cwd)));
    assert_eq!(init["sessionId"], last["sessionId"]);
    let tools = init["tools"].as_array().unwrap();
    assert!(tools.contains(&json!("read_file")) && !tools.contains(&json!("write_file")), "{init}");
    assert_eq!((&last["type"], &last["text"]), (&json!("result"), &json!(plain)));
    assert!(updates.len() > 3 && updates.iter().all(|line| line["type"] == "update"));
    assert_eq!(run(dir.path(), &[&memory[..], &["--cwd", "/does/not/exist", "-p", "x"]].concat()).0, 2);
}

#[cfg(unix)]
#[test]
fn interrupt_ends_headless_prompt_with_130() {
    let dir = repository();
    let script = dir.path().join("script.jsonl");
    fs::write(&script, "{\"text\":\"on\"}\n{\"delay_ms\":600000}\n{\"stop\":\"done\"}\n").unwrap();
    let model = format!("scripted:{}", script.display());
    for (store, hint) in [("s.db", "modegate: continue with `modegate --resume ID -p …`\n"), ("memory", "")]
    {
        let arguments = ["--store", store, "--model", &model, "-p", "go"];
        let mut command = modegate(dir.path(), &arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut started = [0; 2];
        child.stdout.as_mut().unwrap().read_exact(&mut started).unwrap();
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        assert_eq!(wait(&mut child, EXIT_TIMEOUT), Some(130));
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        let id = text.split_whitespace().find(|word| word.starts_with("sess_")).unwrap();
        let expected = format!("modegate: the run was interrupted\n{hint}").replace("ID", id);
        assert!(text.ends_with(&expected), "{text}");
    }
}

/// A running agent with a session whose turn streams forever.
struct BinaryProcess {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl BinaryProcess {
    fn start(dir: &Path, store: &str) -> Self {
        let script = dir.join("script.jsonl");
        let lines = [
            json!({ "text": "first" }),
            json!({ "tool_call": { "id": "1", "name": "list_directory", "arguments": {} } }),
            json!({ "stop": "done" }),
            json!({ "delay_ms": 10, "repeat": 1 }),
            json!({ "text": "second" }),
            json!({ "delay_ms": 600_000 }),
            json!({ "stop": "done" }),
        ];
        fs::write(&script, lines.map(|line| line.to_string()).join("\n")).unwrap();
        let model = format!("scripted:{}", script.display());
        let mut child = modegate(dir, &["--store", store, "--model", &model, "--eof-grace", "0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Self { child, lines };
        process.send(&json!({ "id": 1, "method": "initialize", "params": { "protocolVersion": 1 } }));
        process
            .send(&json!({ "id": 2, "method": "session/new", "params": { "cwd": dir, "mcpServers": [] } }));
        process.next();
        let session = process.next()["result"]["sessionId"].clone();
        process.send(&json!({ "id": 3, "method": "session/set_mode", "params": { "sessionId": session, "modeId": "plan" } }));
        while process.next()["id"] != 3 {}
        let prompt = json!([{ "type": "text", "text": "go" }]);
        process.send(&json!({ "id": 4, "method": "session/prompt", "params": { "sessionId": session, "prompt": prompt } }));
        // A later message of a turn begins with a blank line.
        while process.next()["params"]["update"]["content"]["text"] != "\n\nsecond" {}
        process
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().expect("a line").unwrap()).unwrap()
    }
}

const EXIT_TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn end_of_input_cancels_the_turn_and_exits_with_0() {
    let dir = repository();
    let mut process = BinaryProcess::start(dir.path(), "memory");
    drop(process.child.stdin.take());
    assert_eq!(process.next(), json!({ "jsonrpc": "2.0", "id": 4, "result": { "stopReason": "cancelled" } }));
    assert!(process.lines.next().is_none());
    assert_eq!(wait(&mut process.child, EXIT_TIMEOUT), Some(0));
}

#[cfg(unix)]
#[test]
fn closed_stdout_or_sigterm_ends_the_process() {
    let dir = repository();
    let BinaryProcess { mut child, lines } = BinaryProcess::start(dir.path(), "memory");
    drop(lines);
    // Only a failed write reveals the closed pipe. A write may still succeed while a process that another
    // test starts inherits the pipe.
    let start = Instant::now();
    let mut stdin = child.stdin.take().unwrap();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < EXIT_TIMEOUT, "the process did not end");
        if writeln!(stdin, "nonsense").is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    wait(&mut child, EXIT_TIMEOUT);

    let mut process = BinaryProcess::start(dir.path(), "memory");
    let killed = Command::new("kill").arg(process.child.id().to_string()).status().unwrap();
    assert!(killed.success());
    // The process exits without the signal.
    assert_eq!(wait(&mut process.child, EXIT_TIMEOUT), Some(0));
}

#[test]
fn events_seen_by_the_client_survive_a_kill() {
    let dir = repository();
    let store = dir.path().join("store.db");
    let mut process = BinaryProcess::start(dir.path(), store.to_str().unwrap());
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    let record = rusqlite::Connection::open(&store).unwrap();
    let mut statement = record.prepare("SELECT kind FROM events ORDER BY seq").unwrap();
    let kinds: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    // The client saw "second" begin, so everything before it is stored.
    let expected = [
        "mode_change",
        "user_message",
        "title",
        "agent_text",
        "tool_call",
        "tool_call_update",
        "tool_call_update",
    ];
    assert_eq!(kinds, expected);
    let mode: String = record.query_row("SELECT mode FROM sessions", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "plan");
}

#[test]
fn piped_text_is_appended_to_the_prompt() {
    let dir = repository();
    let memory = ["--store", "memory", "--mode", "plan", "-p"];
    let (_, alone, progress) = run(dir.path(), &[&memory[..], &["where is it?"]].concat());
    assert!(!alone.contains("`src/http.rs:3`") && !progress.contains("from stdin"), "the control: {alone}");
    let (code, answer) =
        run_with_input(dir.path(), &[&memory[..], &["where is it?"]].concat(), "retry_request\n");
    assert!(code == 0 && answer.contains("`src/http.rs:3`"), "{code} {answer}");
}

/// Without `--mode`, the limit is the mode of new sessions if it allows less than the default mode.
#[test]
fn new_session_takes_tighter_of_default_and_max_mode() {
    let dir = repository();
    let modes = dir.path().join("home/.config/modegate/modes.yaml");
    fs::create_dir_all(modes.parent().unwrap()).unwrap();
    let docs = "{id: docs, extends: plan, access: edit, permission: auto, write_paths: ['docs/**']}";
    for (default, arguments, expected) in [
        ("ask", &["--max-mode", "plan"][..], "plan"),
        ("ask", &["--max-mode", "code"], "ask"),
        ("code", &["--max-mode", "ask"], "ask"),
        ("plan", &["--max-mode", "code"], "plan"),
        ("docs", &["--max-mode", "plan"], "plan"),
        // Neither mode allows less than the other, so both apply.
        ("docs", &["--max-mode", "ask"], "docs"),
        ("ask", &["--max-mode", "plan", "--mode", "ask"], "ask"),
        ("ask", &[], "ask"),
    ] {
        fs::write(&modes, format!("modes: [{docs}]\ndefault_mode: {default}\n")).unwrap();
        let more = ["--store", "memory", "--model", "offline", "-p", "where is the retry logic?"];
        let (_, _, progress) = run(dir.path(), &[arguments, &more].concat());
        let head = progress.split(',').next().unwrap();
        assert_eq!(head, format!("modegate: {expected} mode"), "{default} {arguments:?}: {progress}");
    }
}

#[cfg(unix)]
#[test]
fn unreadable_store_differs_from_missing_store() {
    let dir = repository();
    let (circle, none) = (dir.path().join("circle"), dir.path().join("none"));
    std::os::unix::fs::symlink(&circle, &circle).unwrap();
    for arguments in
        [&["sessions", "list"][..], &["memories", "list"], &["audit", "sess_123456"], &["modes", "log"]]
    {
        let at = |store: &Path| run(dir.path(), &[&["--store", store.to_str().unwrap()], arguments].concat());
        let (code, output, errors) = at(&circle);
        assert!(code == 1 && errors.contains("circle cannot be read: "), "{arguments:?}: {output}{errors}");
        let (_, output, errors) = at(&none);
        let text = output + &errors;
        assert!(
            text.contains("there is no session store yet") || text.contains("Nothing is recorded yet"),
            "{text}"
        );
    }
}

#[test]
fn relative_home_is_ignored_with_a_notice() {
    let dir = repository();
    for (home, is_shown) in [("home".into(), true), (dir.path().join("home"), false)] {
        let mut command = modegate(dir.path(), &["doctor"]);
        let Output { stdout, stderr, .. } = command.env("HOME", &home).stdin(Stdio::null()).output().unwrap();
        let (output, errors) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
        let notice = "modegate: HOME is ignored, because \"home\" is not an absolute path";
        assert_eq!(errors.contains(notice), is_shown, "{errors}");
        assert!(!output.contains("  home/.local"), "{output}");
    }
}

/// The call ran, so the run succeeds as it does without the refusal.
#[test]
fn rules_that_refuse_changes_of_commands_are_reported_and_do_not_decide_the_exit_code() {
    require_sandbox();
    let dir = repository();
    let settings = dir.path().join("home/.config/modegate/modes.yaml");
    fs::create_dir_all(settings.parent().unwrap()).unwrap();
    fs::write(&settings, "permissions: {deny: ['write_file(src/**)']}\n").unwrap();
    let store = dir.path().join("home/store.db");
    for (line, is_refused) in
        [("echo x > src/a; echo x > src/b; echo end", true), ("echo x > c; echo end", false)]
    {
        let arguments = json!({ "command": line });
        let lines = [
            json!({ "tool_call": { "id": "1", "name": "shell", "arguments": arguments } }),
            json!({ "stop": "done" }),
            json!({ "text": "Done." }),
            json!({ "stop": "done" }),
        ];
        let model = scripted(dir.path(), &lines);
        let store = store.to_str().unwrap();
        let options =
            ["--store", store, "--model", &model, "--mode", "code", "--output", "stream-json", "-p", "x"];
        let (code, output, errors) = run(dir.path(), &options);
        assert_eq!(code, 0, "{errors}");
        let output: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let result = output.last().unwrap();
        let rule = "deny write_file(src/**)";
        let denied = json!([{
            "title": line,
            "tool": "shell",
            "rule": rule,
            "reason": format!("the command ran, and the rule {rule} refused some of its changes"),
            "callId": "call_1_1",
        }]);
        assert_eq!(result["denied"], if is_refused { denied } else { json!([]) }, "{errors}");
        let lines = output.iter().filter(|line| line["type"] == "denied" && line["rule"] == rule).count();
        assert_eq!(lines, usize::from(is_refused));
        let session = result["sessionId"].as_str().unwrap();
        for (arguments, text) in [
            (&["sessions", "show", session][..], format!("refused  1 ({rule})")),
            (&["report", session], format!("changes refused by the rule {rule}")),
            (&["audit", session], "denials: 1,".to_owned()),
        ] {
            let (code, output, errors) = run(dir.path(), &[&["--store", store], arguments].concat());
            assert!(code == 0 && output.contains(&text) == is_refused, "{text}: {output} {errors}");
        }
    }
}

#[test]
fn doctor_tests_whether_rules_hold_for_commands() {
    require_sandbox();
    let dir = repository();
    let modes = dir.path().join("home/.config/modegate/modes.yaml");
    fs::create_dir_all(modes.parent().unwrap()).unwrap();
    for (rules, expected) in [
        ("['read_file(**/.env)']", &["tested: commands cannot read the files of read_file(**/.env)"][..]),
        ("['write_file(src/**)']", &["tested: commands cannot change the files of write_file(src/**)"]),
        ("['*(**/.env)']", &["cannot read the files of *(**/.env)", "cannot change the files of *(**/.env)"]),
        ("['shell(rm *)']", &[]),
    ] {
        fs::write(&modes, format!("permissions: {{deny: {rules}}}\n")).unwrap();
        let output = modegate(dir.path(), &["doctor"]).stdin(Stdio::null()).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.matches("rules about").count(), expected.len(), "{output}");
        assert!(expected.iter().all(|text| output.contains(text)), "{output}");
    }
}

/// In other sessions, the run fails and names the remedies.
#[test]
fn headless_without_key_uses_offline_model_if_read_only() {
    let dir = repository();
    let modes = dir.path().join("home/.config/modegate/modes.yaml");
    fs::create_dir_all(modes.parent().unwrap()).unwrap();
    let user_modes = "modes: [{id: docs, extends: plan, access: edit, write_paths: ['docs/**']}, {id: review, extends: plan}]\n";
    fs::write(&modes, user_modes).unwrap();
    let run_with = |environment: &[(&str, &str)], arguments: &[&str]| {
        let arguments =
            [arguments, &["--store", "memory", "--output", "json", "-p", "where is the retry logic?"]]
                .concat();
        let mut command = modegate(dir.path(), &arguments);
        command.envs(environment.iter().copied()).stdin(Stdio::null());
        let Output { status, stdout, stderr } = command.output().unwrap();
        let errors = String::from_utf8(stderr).unwrap();
        let result: Value =
            serde_json::from_slice(&stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
        (status.code().unwrap(), result, errors)
    };
    for (arguments, is_read_only) in [
        (&["--mode", "plan"][..], true),
        (&["--mode", "architect"], true),
        (&["--mode", "review"], true),
        (&["--mode", "code", "--max-mode", "plan"], true),
        (&["--agent", "explore"], true),
        (&[], false),
        (&["--mode", "ask"], false),
        (&["--mode", "code"], false),
        (&["--mode", "docs"], false),
    ] {
        let (code, result, errors) = run_with(&[], arguments);
        assert_eq!(code, i32::from(!is_read_only), "{arguments:?}: {errors}");
        assert!(errors.contains("no model is configured"), "{arguments:?}: {errors}");
        let remedies = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "`modegate setup`"];
        assert!(remedies.iter().all(|remedy| errors.contains(remedy)), "{errors}");
        assert_eq!(result["model"], "offline");
        let (text, other) = if is_read_only { ("warning", "error") } else { ("error", "warning") };
        assert!(result[text].as_str().unwrap().contains("no model is configured"), "{arguments:?}: {result}");
        assert_eq!(result[other], Value::Null);
        assert_eq!(errors.contains("--model offline"), !is_read_only, "{errors}");
        assert_eq!(result["text"] == "", !is_read_only, "{result}");
        // The control: the chosen offline model answers in every mode.
        let chosen = [(&[][..], &["--model", "offline"][..]), (&[("MODEGATE_MODEL", "offline")], &[])];
        for (environment, more) in chosen {
            let (code, result, errors) = run_with(environment, &[arguments, more].concat());
            assert_eq!((code, &result["warning"]), (0, &Value::Null), "{arguments:?}: {errors}");
            assert!(!errors.contains("no model is configured"), "{errors}");
        }
    }
    fs::write(&modes, format!("{user_modes}default_mode: plan\n")).unwrap();
    assert_eq!(run_with(&[], &[]).0, 0, "the mode that holds counts, however it was chosen");
    let key = [("OPENAI_API_KEY", "k"), ("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")];
    let (code, result, errors) = run_with(&key, &["--mode", "plan"]);
    assert!(code == 1 && errors.contains("no connection"), "with a key a provider is asked: {errors}");
    assert_eq!(result["warning"], Value::Null);
}

/// The limit is in the first line and in the result.
#[test]
fn headless_shows_which_mode_limits_the_session() {
    let dir = repository();
    let modes = dir.path().join("home/.config/modegate/modes.yaml");
    fs::create_dir_all(modes.parent().unwrap()).unwrap();
    let file = ", limited to plan because a modes file cannot be used";
    for (text, arguments, head, expected) in [
        ("modes: [", &["--mode", "code"][..], file, json!("plan")),
        ("modes: [", &["--mode", "code", "--max-mode", "code"], file, json!("plan")),
        ("modes: [", &["--mode", "plan"], "", Value::Null),
        ("", &["--mode", "code", "--max-mode", "plan"], ", limited to plan by --max-mode", json!("plan")),
        ("", &["--mode", "code"], "", Value::Null),
    ] {
        fs::write(&modes, text).unwrap();
        let more =
            ["--store", "memory", "--model", "offline", "--output", "json", "-p", "where is retrying?"];
        let (code, output, progress) = run(dir.path(), &[arguments, &more].concat());
        assert!(
            progress.starts_with(&format!("modegate: {} mode{head}, session ", arguments[1])),
            "{progress}"
        );
        let result: Value = serde_json::from_str(&output).unwrap();
        assert_eq!((code, &result["limitedTo"]), (0, &expected), "{arguments:?}: {result}");
    }
}

/// Without a key for the mode's model, the run needs a model on the command line.
#[test]
fn headless_fails_if_the_model_of_the_mode_cannot_be_used() {
    let dir = repository();
    let modes = dir.path().join("home/.config/modegate/modes.yaml");
    fs::create_dir_all(modes.parent().unwrap()).unwrap();
    fs::write(&modes, "modes: [{id: design, extends: plan, model: anthropic/claude-opus-5-5}]\n").unwrap();
    let text = "design mode names the model anthropic/claude-opus-5-5: Anthropic needs a key: set \
                ANTHROPIC_API_KEY, or run `modegate setup`";
    for (arguments, code, error, warning) in [
        (&["--mode", "design"][..], 1, json!(text), Value::Null),
        (
            &["--mode", "design", "--model", "offline"],
            0,
            Value::Null,
            json!(format!("{text}; the model that you named answers")),
        ),
        (&["--mode", "plan", "--model", "offline"], 0, Value::Null, Value::Null),
    ] {
        let more = ["--store", "memory", "--output", "json", "-p", "where is retrying?"];
        let mut command = modegate(dir.path(), &[arguments, &more].concat());
        let output = command.env_remove("MODEGATE_LOG").stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert_eq!((&result["error"], &result["warning"]), (&error, &warning), "{errors}");
        assert_eq!(errors.matches(text).count(), usize::from(arguments[1] == "design"), "{errors}");
        assert!(!errors.contains(" WARN "), "{errors}");
    }
}

#[test]
fn headless_reports_errors_before_the_session_as_json() {
    let dir = repository();
    let store = dir.path().join("store.db").display().to_string();
    for (arguments, expected_code, error) in [
        (&["--mode", "yolo"][..], 2, "the modes are ask, plan, code"),
        (&["--model", "gpt"], 2, "unknown model"),
        (&["--from-plan", "missing.md"], 2, "--from-plan missing.md"),
        (&["--resume", "sess_123456"], 1, "there is no session"),
        (&["--continue"], 1, "there is no session to continue"),
        (&["--model", "anthropic/x"], 1, "set ANTHROPIC_API_KEY"),
    ] {
        for format in ["text", "json", "stream-json"] {
            let more = ["--store", &store, "--output", format, "-p", "x"];
            let (code, output, errors) = run(dir.path(), &[arguments, &more].concat());
            assert_eq!(code, expected_code, "{arguments:?}: {errors}");
            assert!(errors.contains(error), "{arguments:?}: {errors}");
            if format == "text" {
                assert_eq!(output, "", "{arguments:?}");
                continue;
            }
            let result: Value = serde_json::from_str(&output).unwrap();
            assert_eq!((&result["type"], &result["sessionId"]), (&json!("result"), &Value::Null));
            assert!(result["error"].as_str().unwrap().contains(error), "{arguments:?}: {result}");
        }
    }
}

#[test]
fn headless_result_has_an_error_if_the_run_fails() {
    let dir = repository();
    let script = dir.path().join("script.jsonl");
    let call = json!({ "tool_call": { "id": "1", "name": "write_file", "arguments": { "path": "n", "content": "x" } } });
    let write = format!("{call}\n{{\"stop\":\"done\"}}\n{{\"stop\":\"done\"}}\n");
    for (lines, mode, prompt, expected_code, error) in [
        (&*write, "ask", "x", 3, Some("1 call was denied")),
        (&write, "plan", "x", 3, Some("the answer is empty")),
        (&write, "code", "x", 1, Some("the answer is empty")),
        (&write.replacen("}\n{\"stop", "}\n{\"text\":\"x\"}\n{\"stop", 2), "code", "x", 0, None),
        (
            &"{\"stop\":\"max_tokens\"}\n".repeat(4),
            "code",
            "x",
            1,
            Some("the model reached its output limit"),
        ),
        ("{\"stop\":\"refusal\"}\n", "code", "x", 1, Some("the model refused to answer")),
        (&write, "code", "/undo 77", 1, Some("nothing was undone")),
        (&write, "code", "/help", 0, None),
    ] {
        fs::write(&script, lines).unwrap();
        let model = format!("scripted:{}", script.display());
        let arguments =
            ["--store", "memory", "--model", &model, "--mode", mode, "--output", "json", "-p", prompt];
        let (code, output, errors) = run(dir.path(), &arguments);
        let result: Value = serde_json::from_str(&output).unwrap();
        assert_eq!(code, expected_code, "{mode} {prompt}: {errors}");
        let shown = result["error"].as_str();
        assert_eq!(shown.is_some(), error.is_some(), "{mode} {prompt}: {result}");
        assert!(shown.unwrap_or_default().contains(error.unwrap_or_default()), "{mode} {prompt}: {result}");
        // The answer of a slash command is on stdout.
        let is_on_stderr = errors.ends_with(&format!("modegate: {}\n", error.unwrap_or("none")));
        assert_eq!(is_on_stderr, error.is_some() && prompt == "x", "{errors}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn failed_write_to_stdout_is_named() {
    let dir = repository();
    let arguments = ["--store", "memory", "--model", "offline", "-p", "x"];
    for (device, code, is_failed) in [("/dev/full", 1, true), ("/dev/null", 0, false)] {
        let mut command = modegate(dir.path(), &arguments);
        let device = fs::OpenOptions::new().write(true).open(device).unwrap();
        let output = command.stdin(Stdio::null()).stdout(device).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert_eq!(errors.contains("modegate: writing to stdout: No space left"), is_failed, "{errors}");
    }
}

/// Hardened systems set the hard limit of core dumps to 0, which only privileged processes can raise.
#[cfg(target_os = "linux")]
#[test]
fn commands_run_with_core_dumps_disabled() {
    let dir = repository();
    let script = dir.path().join("script.jsonl");
    let command = json!({ "command": "ulimit -Hc; echo x > made" });
    let call = json!({ "tool_call": { "id": "c", "name": "shell", "arguments": command } });
    let stop = json!({ "stop": "done" });
    fs::write(&script, format!("{call}\n{stop}\n{}\n{stop}\n", json!({ "text": "Done." }))).unwrap();
    let model = format!("scripted:{}", script.display());
    let arguments = ["--mode", "code", "--store", "memory", "--model", &model, "-p", "go"];
    for before in ["true", "ulimit -c 0"] {
        let mut command = Command::new("bash");
        let run = format!("{before} && exec \"$0\" \"$@\"");
        command.args(["-c", &run, env!("CARGO_BIN_EXE_modegate")]).args(arguments);
        command.current_dir(dir.path()).env("HOME", dir.path().join("home")).stdin(Stdio::null());
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap();
        assert!(status.success() && dir.path().join("made").exists(), "{before}: {text}");
        fs::remove_file(dir.path().join("made")).unwrap();
    }
}

#[test]
fn unread_stderr_blocks_neither_answer_nor_exit() {
    let dir = tempfile::tempdir().unwrap();
    let initialize =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "protocolVersion": 1 } });
    let mut command = modegate(dir.path(), &["--store", "memory"]);
    command.env("MODEGATE_LOG", "trace").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut serve = |stderr: Stdio| {
        let mut child = command.stderr(stderr).spawn().unwrap();
        writeln!(child.stdin.take().unwrap(), "{initialize}").unwrap();
        assert_eq!(wait(&mut child, Duration::from_secs(30)), Some(0));
        child.wait_with_output().unwrap()
    };
    assert!(!serve(Stdio::piped()).stderr.is_empty(), "the control: something is logged");
    let (reader, mut full) = std::io::pipe().unwrap();
    // The capacity of a pipe.
    full.write_all(&vec![b'x'; 65536]).unwrap();
    assert!(!serve(full.into()).stdout.is_empty());
    drop(reader);
}

#[test]
fn reply_without_end_is_ended() {
    let dir = repository();
    let script = dir.path().join("script.jsonl");
    let model = format!("scripted:{}", script.display());
    for (repeat, expected) in [(20, 1), (2, 0)] {
        let chunk = json!({ "text": "word ".repeat(200_000), "repeat": repeat });
        fs::write(&script, format!("{chunk}\n{{\"stop\":\"done\"}}\n")).unwrap();
        let arguments = ["--store", "memory", "--mode", "plan", "--model", &model, "-p", "go"];
        let (code, _, errors) = run(dir.path(), &arguments);
        assert_eq!(code, expected, "{errors}");
        assert_eq!(errors.contains("the model's reply is longer than 16 MB"), code == 1, "{errors}");
    }
}
