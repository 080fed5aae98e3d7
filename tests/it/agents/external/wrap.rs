//! `modegate wrap` as an editor starts it: an external agent under Modegate's modes, with the agent's own
//! login.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::agents::external::sessions::{PEER, agent_text};
use crate::support::binary_client::BinaryClient;
use crate::support::requirements::python;
use crate::support::waiting::block_until;

/// The agent writes in code, and does not write in plan before and after. It has its own prompt capabilities
/// and login.
#[test]
fn wrapped_agent_is_sandboxed_and_has_own_login() {
    for way in [&[][..], &["--no-broker"]] {
        check_wrapped_agent(way);
    }
}

fn check_wrapped_agent(way: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let work = dir.join("work");
    std::fs::create_dir(&work).unwrap();
    let store = dir.join("s.db");
    let arguments = ["--mode", "plan", "--store", store.to_str().unwrap(), "wrap"];
    let command = ["--state-dir", "~/.peer", "--", python(), PEER, "loads"];
    let (mut agent, about) = BinaryClient::start(&dir, &[&arguments[..], way, &command].concat());
    assert_eq!(about["result"]["authMethods"], json!([]), "its login is its own: {about}");
    let takes = &about["result"]["agentCapabilities"]["promptCapabilities"];
    assert_eq!(takes, &json!({ "image": true, "audio": true, "embeddedContext": true }));
    let folders = json!({ "cwd": work, "mcpServers": [] });
    let answer = agent.call(2, "session/new", &folders).pop().unwrap();
    assert_eq!(answer["result"]["modes"]["currentModeId"], "plan", "{answer}");
    let session = answer["result"]["sessionId"].clone();
    let mut id = 2;
    let mut call = |agent: &mut BinaryClient, method: &str, more: Value| {
        id += 1;
        let mut params = json!({ "sessionId": session });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        agent.call(id, method, &params)
    };
    for (name, mode, is_written) in [("a", "plan", false), ("b", "code", true), ("c", "plan", false)] {
        call(&mut agent, "session/set_mode", json!({ "modeId": mode }));
        let path = work.join(name);
        let write = json!([{ "type": "text", "text": format!("write {}", path.display()) }]);
        let text = agent_text(&call(&mut agent, "session/prompt", json!({ "prompt": write })));
        assert_eq!(path.exists(), is_written, "{mode}: {text}");
        assert!(text.ends_with(if is_written { "written" } else { "Permission denied" }), "{mode}: {text}");
    }
    // The agent gets no content that it does not support.
    let picture = json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" });
    let prompt = json!({ "prompt": [{ "type": "text", "text": "say 1" }, picture] });
    let answer = call(&mut agent, "session/prompt", prompt).pop().unwrap();
    assert!(
        answer["error"]["message"].as_str().unwrap().ends_with("it does not support pictures"),
        "{answer}"
    );
    let prompt = json!({ "prompt": [{ "type": "text", "text": "say 1" }] });
    assert!(agent_text(&call(&mut agent, "session/prompt", prompt)).ends_with('0'), "it goes on");
    let answer = call(&mut agent, "authenticate", json!({ "methodId": "environment" })).pop().unwrap();
    assert_eq!(answer["error"]["data"]["validMethods"], json!([]), "{answer}");
    agent.end();
}

/// A client that can log in in a terminal gets the agent's own methods. The arguments of a login in a terminal follow the
/// command of `modegate wrap`, which runs the agent in plan mode for that.
#[test]
fn methods_of_the_wrapped_agent_log_in_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let command = ["wrap", "--state-dir", "~/.peer", "--", python(), PEER, "login"];
    let terminal = json!({ "auth": { "terminal": true } });
    let (mut agent, about) = BinaryClient::with(&dir, &command, &terminal);
    let methods = json!([
        { "id": "own", "name": "Own login" },
        { "id": "terminal", "name": "In a terminal", "type": "terminal", "args": ["__login", "log-in"] },
    ]);
    assert_eq!(about["result"]["authMethods"], methods, "{about}");
    let logged_in = dir.join(".peer/logged-in");
    let answer = agent.call(2, "authenticate", &json!({ "methodId": "other" })).pop().unwrap();
    assert_eq!(answer["error"]["data"]["validMethods"], json!(["own", "terminal"]), "{answer}");
    assert!(!logged_in.exists());
    let answer = agent.call(3, "authenticate", &json!({ "methodId": "own" })).pop().unwrap();
    assert_eq!(answer["result"], json!({}), "{answer}");
    assert!(logged_in.exists());
    agent.end();

    std::fs::remove_file(&logged_in).unwrap();
    let mut terminal = Command::new(env!("CARGO_BIN_EXE_modegate"));
    terminal.args(command).args(["__login", "log-in"]).env("HOME", &dir);
    std::fs::create_dir(dir.join("work")).unwrap();
    let out = terminal.current_dir(dir.join("work")).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("logged in, and Permission denied"), "{out:?}");
    assert!(logged_in.exists() && !dir.join("work/written").exists());
}

/// The agent is the binary itself. One process writes in code, and does not write in plan.
#[test]
fn brokered_agent_changes_modes_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let work = dir.join("work");
    std::fs::create_dir(&work).unwrap();
    let arguments = ["--mode", "plan", "--store", "memory", "wrap", "--state-dir", "~/.peer", "--"];
    let (mut agent, _) = BinaryClient::start(&dir, &[&arguments[..], &[python(), PEER, "plain"]].concat());
    let folders = json!({ "cwd": work, "mcpServers": [] });
    let session = agent.call(2, "session/new", &folders).pop().unwrap()["result"]["sessionId"].take();
    let mut id = 2;
    let mut call = |agent: &mut BinaryClient, method: &str, more: Value| {
        id += 1;
        let mut params = json!({ "sessionId": session });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        agent.call(id, method, &params)
    };
    let prompt = |text: &str| json!({ "prompt": [{ "type": "text", "text": text }] });
    let mut processes = Vec::new();
    for (name, mode, is_written) in [("a", "plan", false), ("b", "code", true), ("c", "plan", false)] {
        call(&mut agent, "session/set_mode", json!({ "modeId": mode }));
        let path = work.join(name);
        let write = prompt(&format!("write {}", path.display()));
        let text = agent_text(&call(&mut agent, "session/prompt", write));
        assert_eq!(path.exists(), is_written, "{mode}: {text}");
        let text = agent_text(&call(&mut agent, "session/prompt", prompt("pid")));
        processes.push(text.rsplit("process").next().unwrap().to_owned());
    }
    assert!(processes.iter().all(|process| *process == processes[0]), "{processes:?}");
    agent.end();
}

const BROKERED: [&str; 4] = ["wrap", "--state-dir", "~/.peer", "--"];

/// A headless run and `sessions show` list the changed files. `sessions undo` restores them.
#[test]
fn brokered_changes_are_listed_and_undone() {
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("a"), "one\n").unwrap();
    let modegate = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
        command.current_dir(&work).args(arguments).stdin(Stdio::null());
        let out = command.env("HOME", dir.path()).env_remove("XDG_CONFIG_HOME").output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let run = ["--mode", "code", "--output", "json", "-p", "run echo two >> a; mkdir n; echo x > n/x"];
    let result = modegate(&[&run[..], &BROKERED, &[python(), PEER, "plain"]].concat());
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!((&result["changedFiles"], &result["uncoveredChanges"]), (&json!(["a", "n/x"]), &json!([])));
    let session = result["sessionId"].as_str().unwrap();
    let shown = modegate(&["sessions", "show", session]);
    assert!(shown.ends_with("changed  a, n/x\n"), "{shown}");
    assert!(modegate(&["audit", session]).contains("changed by external agents: 3"));
    modegate(&["sessions", "undo", session]);
    assert_eq!(std::fs::read_to_string(work.join("a")).unwrap(), "one\n");
    assert!(!work.join("n").exists());
}

/// The option and a known variable allow a host in plan. The refusal of other hosts names the option.
#[test]
fn hosts_are_allowed_by_option_and_variable() {
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().join("work");
    std::fs::create_dir(&work).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let port = listener.local_addr().unwrap().port();
    let connect =
        format!("run {} -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 9)\"", python());
    let run = |options: &[&str], variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
        let start = ["--mode", "plan", "--output", "json", "-p", &connect, "wrap"];
        command.current_dir(&work).args(start).args(options).args(["--state-dir", "~/.peer", "--"]);
        command.args([python(), PEER, "plain"]).env(variable, format!("http://{address}/v1"));
        command.env("HOME", dir.path()).env_remove("XDG_CONFIG_HOME").stdin(Stdio::null());
        let out = command.output().unwrap();
        let result: Value = serde_json::from_slice(&out.stdout).unwrap();
        let warning = format!(
            "tried to connect to {address}, which plan mode does not allow. Allow it with --allow-host {address}."
        );
        let all = format!("{result} {}", String::from_utf8_lossy(&out.stderr));
        (all.contains("exit 0 "), all.contains(&warning), all)
    };
    let (is_reached, is_told, all) = run(&[], "OTHER_URL");
    assert!(!is_reached && is_told, "{all}");
    for (options, variable) in [
        (&["--allow-host", "127.0.0.1"][..], "OTHER_URL"),
        (&["--allow-host", "*"], "OTHER_URL"),
        (&[], "OPENAI_BASE_URL"),
    ] {
        let (is_reached, is_told, all) = run(options, variable);
        assert!(is_reached && !is_told, "{options:?} {variable}: {all}");
    }
}

/// After SIGKILL the changes of the interrupted turn are unknown.
#[test]
fn killed_turn_of_a_brokered_agent_is_reported() {
    for first_mode in ["code", "plan"] {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        std::fs::create_dir(&work).unwrap();
        let arguments = [&["--mode", first_mode][..], &BROKERED, &[python(), PEER, "plain"]].concat();
        let (mut agent, _) = BinaryClient::start(dir.path(), &arguments);
        let folders = json!({ "cwd": work, "mcpServers": [] });
        let session = agent.call(2, "session/new", &folders).pop().unwrap()["result"]["sessionId"].take();
        let prompt =
            |text: &str| json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
        agent.call(3, "session/prompt", &prompt("say nothing"));
        agent.call(4, "session/set_mode", &json!({ "sessionId": session, "modeId": "code" }));
        agent.call(5, "session/prompt", &prompt("run echo > before"));
        agent.send(6, "session/prompt", &prompt(&format!("tick {}", work.join("ticks").display())));
        block_until("ticks", || work.join("ticks").exists());
        agent.child.kill().unwrap();
        agent.child.wait().unwrap();
        let (mut agent, _) = BinaryClient::start(dir.path(), &arguments);
        let load = json!({ "sessionId": session, "cwd": work, "mcpServers": [] });
        let shown = agent_text(&agent.call(2, "session/load", &load));
        let expected = "What it changed in that turn cannot be undone.";
        assert_eq!(shown.matches(expected).count(), 1, "{first_mode}: {shown}");
        agent.end();
    }
}

/// Runs the binary without input.
fn run(home: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
    command.args(["--store", "memory"]).args(arguments).stdin(Stdio::null());
    let out = command.env("HOME", home).env_remove("XDG_CONFIG_HOME").output().unwrap();
    (out.status.code(), String::from_utf8(out.stderr).unwrap())
}

/// Each message names the option.
#[test]
fn wrap_rejects_conflicting_options() {
    let home = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (&["--agent", "explore", "wrap", "--", "x"][..], "--agent cannot be combined with wrap"),
        (&["--model", "offline", "wrap", "--", "x"], "--model cannot be combined with wrap"),
        (&["--mode", "plan", "wrap", "--mode", "code", "--", "x"], "--mode is given before and after wrap"),
        (
            &["--max-mode", "plan", "wrap", "--max-mode", "code", "--", "x"],
            "--max-mode is given before and after wrap",
        ),
        (&["wrap", "--mode", "nope", "--", "x"], "the modes are ask, plan, code"),
        (&["wrap", "--no-broker", "--allow-host", "*", "--", "x"], "cannot be used with"),
        (&["wrap", "--state-dir", "own", "--", "x"], "it has to be absolute, or to begin with ~/"),
    ] {
        let (code, errors) = run(home.path(), arguments);
        assert!(code == Some(2) && errors.contains(expected), "{arguments:?}: {code:?} {errors}");
    }
    for fine in [
        &["wrap", "--mode", "plan", "--", "x"][..],
        &["--max-mode", "plan", "wrap", "--", "x"],
        &["wrap", "--no-broker", "--", "x"],
        &["wrap", "--broker", "--", "x"],
    ] {
        assert_eq!(run(home.path(), fine), (Some(0), String::new()), "{fine:?}");
    }
}

/// `--check` starts an agent without a prompt, and fails with the reason if the agent does not run in plan
/// mode.
#[test]
fn check_reports_how_an_agent_fits() {
    let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let check = |agent: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
        command
            .current_dir(work.path())
            .args(["wrap", "--check", "--state-dir", "~/.peer", "--"])
            .args(agent);
        command.env("HOME", home.path()).env_remove("XDG_CONFIG_HOME");
        let out = command.output().unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap())
    };
    let (code, text) = check(&[python(), PEER, "loads"]);
    assert_eq!(code, Some(0), "{text}");
    for line in [
        "state directories   ~/.peer",
        "api.openai.com:443",
        "sandbox             supported",
        "broker              works",
        "loads sessions      yes",
        "its modes           auto, plan",
        "own mode            plan in the sandbox, auto without it",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("refused calls"), "{text}");
    let script = format!("unshare --user true; exec {} {PEER} loads", python());
    let (_, text) = check(&["sh", "-c", &script]);
    assert!(text.contains("refused calls       a mount or a namespace by unshare"), "{text}");
    let (code, text) = check(&["/missing/agent"]);
    assert!(code == Some(1) && text.contains("WRONG /missing/agent cannot be run: No such file"), "{text}");
    let (code, text) = check(&["cat"]);
    assert!(code == Some(1) && text.contains("start in plan mode  WRONG"), "{text}");
    let (_, text) = check(&["/missing/opencode"]);
    assert!(
        text.contains("opencode, known to Modegate") && text.contains("~/.local/share/opencode"),
        "{text}"
    );
    assert!(home.path().join(".config/opencode").is_dir(), "a folder without which it does not start");
}

/// The user's own profiles name folders and hosts, and settings files name hosts. Those of a project do not count.
#[cfg(unix)]
#[test]
fn profiles_and_settings_of_the_user_count() {
    let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let write = |path: std::path::PathBuf, text: &str| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let check = |agent: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
        command.current_dir(work.path()).args(["wrap", "--check", "--"]).args(agent);
        command.env("HOME", home.path()).env_remove("XDG_CONFIG_HOME").env_remove("CODEX_HOME");
        let out = command.output().unwrap();
        format!("{}{}", String::from_utf8(out.stdout).unwrap(), String::from_utf8_lossy(&out.stderr))
    };
    let codex = |address: &str| format!("[model_providers.own]\nbase_url = \"http://{address}/v1\"\n");
    write(home.path().join(".codex/config.toml"), &codex("127.0.0.1:4711"));
    write(work.path().join(".codex/config.toml"), &codex("127.0.0.1:4712"));
    let text = check(&["/missing/codex-acp"]);
    assert!(text.contains("127.0.0.1:4711") && !text.contains("127.0.0.1:4712"), "{text}");

    let agent = work.path().join("my-own-agent");
    std::os::unix::fs::symlink(python(), &agent).unwrap();
    let agent = [agent.to_str().unwrap(), PEER, "plain"];
    let text = check(&agent);
    assert!(
        text.contains("my-own-agent, not known to Modegate") && text.contains("\n- name: my-own-agent\n"),
        "{text}"
    );
    let own = "- name: my-own\n  state_dirs: [{path: '~/.peer'}]\n  hosts: ['models.example.com:443']\n";
    write(work.path().join(".modegate/external-agents.yaml"), own);
    assert!(check(&agent).contains("not known to Modegate"), "a project has no profiles");
    let file = home.path().join(".config/modegate/external-agents.yaml");
    write(file.clone(), own);
    let text = check(&agent);
    for expected in ["my-own, known to Modegate", "state directories   ~/.peer", "models.example.com:443"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    write(file.clone(), "- name: my-own\n  hosts: ['https://a']\n");
    assert!(
        check(&agent).contains("external-agents.yaml: a host of my-own is not a name"),
        "{}",
        check(&agent)
    );
    write(file, "- nam: my-own\n");
    assert!(check(&agent).contains("external-agents.yaml: "), "{}", check(&agent));
}

/// A mode may follow `wrap`. A notice names a limit other than the mode, and an agent that has no such mode
/// itself.
#[test]
fn wrap_accepts_modes_and_reports_limits() {
    let home = tempfile::tempdir().unwrap();
    for (modes, held, unknown) in [
        (&["--mode", "plan"][..], "is sandboxed: in plan mode all changes that it attempts fail", "gone"),
        (
            &["--mode", "code", "--max-mode", "plan"],
            "is sandboxed: in every mode of this session all changes that it attempts fail",
            "gone",
        ),
        (&["--mode", "code"], "", "lost"),
    ] {
        let options = ["--read-only-mode", "gone", "--full-mode", "lost"];
        let agent = ["--state-dir", "~/.peer", "--", python(), PEER, "plain"];
        let arguments = [&["--store", "memory", "wrap"], modes, &options, &agent].concat();
        let (mut agent, _) = BinaryClient::start(home.path(), &arguments);
        let work = tempfile::tempdir().unwrap();
        let folders = json!({ "cwd": work.path(), "mcpServers": [] });
        let answer = agent.call(2, "session/new", &folders).pop().unwrap();
        let session = &answer["result"]["sessionId"];
        assert_eq!(answer["result"]["modes"]["currentModeId"], modes[1], "{answer}");
        let path = work.path().join("a");
        let write = json!([{ "type": "text", "text": format!("write {}", path.display()) }]);
        let text =
            agent_text(&agent.call(3, "session/prompt", &json!({ "sessionId": session, "prompt": write })));
        assert_eq!(path.exists(), held.is_empty(), "{modes:?}: {text}");
        assert!(text.contains(held) && text.contains("is sandboxed") != held.is_empty(), "{modes:?}: {text}");
        let expected = format!("has no mode \"{unknown}\" of its own: its modes are auto, plan");
        assert!(text.contains(&expected), "{modes:?}: {text}");
        agent.end();
    }
}

/// The agent starts as soon as the session is opened.
#[test]
fn wrapped_session_is_loaded_only_by_the_same_agent() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let work = dir.join("work");
    std::fs::create_dir(&work).unwrap();
    let store = dir.join("s.db");
    let start = |command: &[&str]| {
        let arguments =
            ["--mode", "plan", "--store", store.to_str().unwrap(), "wrap", "--state-dir", "~/.peer"];
        BinaryClient::start(&dir, &[&arguments[..], &["--"], command, &[PEER, "loads"]].concat()).0
    };
    let (own, other) = (&[python()][..], &["/usr/bin/env", "python3"][..]);
    let folders = json!({ "cwd": work, "mcpServers": [] });
    let mut agent = start(own);
    let session = agent.call(2, "session/new", &folders).pop().unwrap()["result"]["sessionId"].take();
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "say 1" }] });
    agent.call(3, "session/prompt", &prompt);
    agent.end();
    let load = json!({ "sessionId": session, "cwd": work, "mcpServers": [] });
    for (command, is_same_agent) in [(other, false), (own, true)] {
        let mut agent = start(command);
        let answer = agent.call(2, "session/list", &json!({})).pop().unwrap();
        assert_eq!(
            answer["result"]["sessions"].as_array().unwrap().len(),
            usize::from(is_same_agent),
            "{answer}"
        );
        for (id, method) in [(3, "session/fork"), (4, "session/resume"), (5, "session/load")] {
            let answer = agent.call(id, method, &load).pop().unwrap();
            assert_eq!(answer["result"].is_object(), is_same_agent, "{method}: {answer}");
            let text = "this is a session of the agent python3, and only the agent env runs here";
            assert!(is_same_agent || answer["error"]["message"] == text, "{answer}");
        }
        if is_same_agent {
            // The agent has not sent options yet.
            let is_option = |it: &Value| it["id"] == "agent_mode";
            while !agent.next()["params"]["update"]["configOptions"]
                .as_array()
                .is_some_and(|all| all.iter().any(is_option))
            {}
        }
        agent.end();
    }
}

/// `wrap` does not use read-only commands.
#[test]
fn wrap_omits_the_read_only_commands_notice() {
    let home = tempfile::tempdir().unwrap();
    let wrap = ["--store", "memory", "wrap", "--mode", "code", "--", python(), PEER, "plain"];
    let options = ["--store", "memory", "--mode", "code", "--model", "offline"];
    for (arguments, is_shown) in [(&wrap[..], false), (&options[..], true)] {
        let (mut agent, _) = BinaryClient::start(home.path(), arguments);
        let folders = json!({ "cwd": home.path(), "mcpServers": [] });
        let session = agent.call(2, "session/new", &folders).pop().unwrap()["result"]["sessionId"].take();
        let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "say 1" }] });
        let text = agent_text(&agent.call(3, "session/prompt", &prompt));
        assert_eq!(text.contains("no read-only commands"), is_shown, "{text}");
        agent.end();
    }
}
