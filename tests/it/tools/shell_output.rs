//! Commands with clients that have terminals. Each command runs once, in Modegate; the client shows its
//! output; and no command survives its call.

use serde_json::{Value, json};

use crate::sessions::kills::write_script;
use crate::support::binary_client::BinaryClient;
use crate::support::editor_client::{EditorClient, all};

/// Appends to `ticks` forever, from a process in another session and process group.
const TICKER: &str = "setsid sh -c 'while :; do echo x >> ticks; sleep 0.05; done' & echo begun; wait";

/// A client that passed the arguments of `terminal/create` to a shell would run the second part again.
const LINE: &str = "true; echo x >> runs && cat runs";

/// Returns true if the file of [`TICKER`] grows within 150 ms.
async fn ticks(client: &EditorClient) -> bool {
    let size = || std::fs::metadata(client.path("ticks")).map_or(0, |file| file.len());
    let before = size();
    tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    size() != before
}

/// Opens a session in which [`TICKER`] runs. Returns the id of its prompt, too.
async fn ticking() -> (EditorClient, i64) {
    let mut client = EditorClient::new("code", all()).await;
    let prompt = client.begin(&[("shell", json!({ "command": TICKER }))]).await;
    client.until_file_exists("ticks").await;
    assert!(ticks(&client).await, "the control: it runs");
    (client, prompt)
}

/// Returns the texts of all calls' updates.
fn shown(messages: &[Value]) -> String {
    let contents = messages.iter().map(|message| &message["params"]["update"]["content"]);
    contents.filter(|content| content.is_array()).map(Value::to_string).collect()
}

#[tokio::test]
async fn commands_run_once_and_never_in_client_terminals() {
    let no_terminal = json!({ "fs": { "readTextFile": true, "writeTextFile": true } });
    let clients = [
        EditorClient::new("code", all()).await,
        EditorClient::new("code", no_terminal).await,
        EditorClient::vs_code("code").await,
        EditorClient::older_zed("code").await,
    ];
    for mut client in clients {
        let prompt = client.begin(&[("shell", json!({ "command": LINE }))]).await;
        let messages = client.until_answer(prompt).await;
        assert_eq!(client.saved("runs").as_deref(), Some("x\n"));
        assert_eq!(client.last_tool_result(), "x\n[Exit status 0.]");
        assert!(shown(&messages).contains("x\\n[Exit status 0.]"), "{messages:?}");
        client
            .call("shell", json!({ "command": "echo x >> jobs; echo done > over", "background": true }))
            .await;
        client.until_file_exists("over").await;
        assert_eq!(client.saved("jobs").as_deref(), Some("x\n"));
        client.call("shell_read_only", json!({ "command": "true" })).await;
        assert_eq!(client.methods(), [""; 0], "the client is asked for nothing");
        client.end().await;
    }
}

#[tokio::test]
async fn cancel_ends_a_running_command() {
    let (mut client, prompt) = ticking().await;
    client.cancel().await;
    let messages = client.until_answer(prompt).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
    assert!(!ticks(&client).await);
    client.end().await;
}

#[tokio::test]
async fn denying_mode_ends_running_command_before_answering() {
    let (mut client, prompt) = ticking().await;
    let (_, effect) = client.set_mode("ask").await;
    assert_eq!(effect["ended"], json!([]));
    assert!(ticks(&client).await);
    let (_, effect) = client.set_mode("plan").await;
    assert_eq!((&effect["ended"], &effect["unconfirmed"]), (&json!(["call_1_1"]), &json!([])));
    assert!(!ticks(&client).await);
    client.until_answer(prompt).await;
    client.end().await;
}

#[tokio::test]
async fn client_disconnect_ends_a_running_command() {
    let (mut client, _) = ticking().await;
    client.client.close_input();
    while client.client.next_within(crate::support::TIMEOUT).await.is_some() {}
    assert!(!ticks(&client).await);
}

#[tokio::test]
async fn titles_escape_invisible_characters() {
    let mut client = EditorClient::new("code", all()).await;
    let line = json!({ "command": "true # \u{202e}\u{1b}[2K" });
    let prompt = client.begin(&[("shell", line)]).await;
    let messages = client.until_answer(prompt).await;
    let title = |message: &Value| message["params"]["update"]["title"].as_str().map(str::to_owned);
    let titles: Vec<String> = messages.iter().filter_map(title).collect();
    assert!(titles.contains(&"true # \\u{202e}\\u{1b}[2K".to_owned()), "{titles:?}");
    client.end().await;
}

/// A run reports the obsolete `shell.terminal` once and continues. `modegate doctor` reports it, too.
#[test]
fn obsolete_terminal_key_is_reported_once() {
    for (config, reported) in [("shell: {terminal: client}", 1), ("shell: {sandbox: workspace}", 0)] {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(".config/modegate");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.yaml"), config).unwrap();
        for arguments in [["--model", "offline", "-p", "hello"].as_slice(), &["doctor"]] {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_modegate"));
            command.args(arguments).current_dir(home.path()).env_clear().env("HOME", home.path());
            command.env("PATH", std::env::var_os("PATH").unwrap()).env("MODEGATE_LOG", "warn");
            let output = command.stdin(std::process::Stdio::null()).output().unwrap();
            let (message, log) =
                (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
            let is_doctor = arguments.contains(&"doctor");
            let count = |text: &str| text.matches("shell.terminal in config.yaml is obsolete").count();
            assert_eq!(count(&log), reported, "{log}");
            assert_eq!(count(&message), if is_doctor { reported } else { 0 }, "{message}");
            assert!(is_doctor || output.status.success(), "{log}");
        }
    }
}

/// A client that shows output as terminals without running them.
fn shows_output() -> Value {
    let mut capabilities = all();
    capabilities["_meta"] = json!({ "terminal_output": true });
    capabilities
}

/// The state that Zed builds from the updates of a session: terminals by id, and the content of calls.
#[derive(Default)]
struct DisplayedOutput {
    terminals: std::collections::HashMap<String, (String, Option<Value>)>,
    contents: Vec<Value>,
}

impl DisplayedOutput {
    fn of(messages: &[Value]) -> Self {
        let mut shown = Self::default();
        for message in messages {
            let update = &message["params"]["update"];
            let meta = &update["_meta"];
            if update["sessionUpdate"] == "tool_call"
                && let Some(id) = meta["terminal_info"]["terminal_id"].as_str()
            {
                assert!(meta["terminal_info"]["cwd"].is_string());
                let is_new = shown.terminals.insert(id.to_owned(), Default::default()).is_none();
                assert!(is_new, "{id} is announced once");
            }
            for content in update["content"].as_array().into_iter().flatten() {
                if content["type"] == "terminal" {
                    assert!(
                        shown.terminals.contains_key(content["terminalId"].as_str().unwrap()),
                        "{message}"
                    );
                }
                shown.contents.push(content.clone());
            }
            for key in ["terminal_output", "terminal_exit"] {
                let Some(id) = meta[key]["terminal_id"].as_str() else { continue };
                assert_eq!(update["sessionUpdate"], "tool_call_update");
                let terminal = shown.terminals.get_mut(id).expect("announced before");
                assert_eq!(terminal.1, None, "nothing comes after the end");
                match meta[key]["data"].as_str() {
                    Some(data) => terminal.0.push_str(data),
                    None => terminal.1 = Some(meta[key].clone()),
                }
            }
        }
        shown
    }

    /// Returns the terminal of the only call that has written or ended.
    fn only(&self) -> (&str, &Value) {
        let used: Vec<_> = self.terminals.values().filter(|(_, exit)| exit.is_some()).collect();
        assert_eq!(used.len(), 1);
        (&used[0].0, used[0].1.as_ref().unwrap())
    }
}

/// The terminal shows the whole output and ends with the command's exit status or signal. The command runs
/// once, in Modegate.
#[tokio::test]
async fn terminal_output_clients_get_a_display_only_terminal() {
    let long = "i=0; while [ $i -lt 3000 ]; do echo line $i é; i=$((i+1)); done";
    let lines: String = (0..3000).map(|i| format!("line {i} é\n")).collect();
    for (tool, command, written, code, signal) in [
        ("shell", LINE, "x\n", json!(0), Value::Null),
        ("shell", "echo out; echo err >&2; exit 3", "out\nerr\n", json!(3), Value::Null),
        ("shell_read_only", "echo hi", "hi\n", json!(0), Value::Null),
        ("shell", "true", "", json!(0), Value::Null),
        ("shell", "printf 'a\\033[2Kb'", "a\\u{1b}[2Kb", json!(0), Value::Null),
        ("shell", "echo a; kill -9 $$", "a\n", Value::Null, json!("SIGKILL")),
        ("shell", long, lines.as_str(), json!(0), Value::Null),
    ] {
        let mut client = EditorClient::new("code", shows_output()).await;
        let prompt = client.begin(&[(tool, json!({ "command": command }))]).await;
        let messages = client.until_answer(prompt).await;
        let shown = DisplayedOutput::of(&messages);
        let (text, exit) = shown.only();
        // Output that outruns the updates and exceeds the buffer has a gap.
        let is_cut = text.contains("bytes are not shown]");
        assert!(text == written || (is_cut && command == long), "{command}: {text}");
        assert_eq!((&exit["exit_code"], &exit["signal"]), (&code, &signal), "{command}");
        assert_eq!(client.methods(), [""; 0], "the client is asked for nothing");
        assert!(shown.contents.iter().any(|content| content["type"] == "terminal"), "{command}");
        if command == LINE {
            assert_eq!(client.saved("runs").as_deref(), Some("x\n"));
        }
        // After a load the result is text, because the terminal does not exist any more.
        let params = json!({ "sessionId": client.session, "cwd": client.client.cwd(), "mcpServers": [] });
        let id = client.client.request("session/load", params).await;
        let again = DisplayedOutput::of(&client.until_answer(id).await);
        assert!(again.contents.iter().all(|content| content["type"] != "terminal"), "{:?}", again.contents);
        client.end().await;
    }
}

#[tokio::test]
async fn clients_without_terminal_output_get_content() {
    let mut client = EditorClient::new("code", all()).await;
    let prompt = client.begin(&[("shell", json!({ "command": "echo hi" }))]).await;
    let messages = client.until_answer(prompt).await;
    let text = Value::from(messages.clone()).to_string();
    assert!(!text.contains("terminal_info") && !text.contains("\"terminal\""), "{text}");
    assert!(shown(&messages).contains("hi\\n[Exit status 0.]"));
    client.end().await;
}

/// A cancel and a denying mode end the command. The terminal shows the end.
#[tokio::test]
async fn ending_a_command_ends_the_display_terminal() {
    for cancels in [true, false] {
        let mut client = EditorClient::new("code", shows_output()).await;
        let prompt = client.begin(&[("shell", json!({ "command": TICKER }))]).await;
        client.until_file_exists("ticks").await;
        assert!(ticks(&client).await, "the control: it runs");
        let mut messages = Vec::new();
        if cancels {
            client.cancel().await;
        } else {
            messages.extend(client.set_mode("plan").await.0);
        }
        messages.extend(client.until_answer(prompt).await);
        assert!(!ticks(&client).await);
        let ended = |message: &&Value| !message["params"]["update"]["_meta"]["terminal_exit"].is_null();
        let ends: Vec<_> = messages.iter().filter(ended).collect();
        assert_eq!(ends.len(), 1, "{messages:?}");
        client.end().await;
    }
}

/// A sub-agent's calls show their output as content. An announced terminal would stay empty.
#[test]
fn sub_agent_commands_announce_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let (home, work) = (dir.join("home"), dir.join("work"));
    std::fs::create_dir(&home).unwrap();
    std::fs::create_dir(&work).unwrap();
    let call = |name: &str, arguments: Value| json!({ "tool_call": { "id": name, "name": name, "arguments": arguments } });
    let stop = || json!({ "stop": "done" });
    let lines = [
        call("shell", json!({ "command": "echo x" })),
        call("delegate", json!({ "task": "count the files", "agent": "general" })),
        stop(),
        json!({ "text": "Done." }),
        stop(),
        json!({ "for": "count the files" }),
        call("shell", json!({ "command": "ls" })),
        stop(),
        json!({ "text": "None." }),
        stop(),
    ];
    let model = write_script(&dir, &lines);
    let arguments = ["--mode", "code", "--store", "memory", "--model", &model];
    let (mut binary, _) = BinaryClient::with(&home, &arguments, &shows_output());
    let new = json!({ "cwd": work, "mcpServers": [] });
    let session = binary.call(2, "session/new", &new).pop().unwrap()["result"]["sessionId"].clone();
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "go" }] });
    let messages = binary.call(3, "session/prompt", &prompt);
    let has_terminal = |id: &str| {
        let mut updates = messages.iter().map(|message| &message["params"]["update"]);
        let announced =
            updates.find(|update| update["sessionUpdate"] == "tool_call" && update["toolCallId"] == id);
        announced.map(|update| update["_meta"]["terminal_info"].is_object())
    };
    assert_eq!(has_terminal("call_1_1"), Some(true), "the control");
    assert_eq!(has_terminal("call_1_2/call_1_1"), Some(false));
    binary.end();
}
