//! Attempts to exceed the highest mode.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Attempt, Machine, in_namespace, nothing};
use crate::support::binary_client::BinaryClient;
use crate::support::over_version_2::over_version_2;

const WIDE: &str = "{access: full, shell: full, network: allow, permission: auto";

fn code(machine: &Machine) -> String {
    machine.write_with(&["--mode", "code"])
}

fn wide_plan(machine: &Machine) {
    machine.modes_file(&format!("modes: [{WIDE}, id: plan}}]"));
}

fn delegating(machine: &Machine, tool: &str, arguments: &str) {
    machine.modes_file("agents: [{id: writer, description: Writes}]");
    machine.script("delegate.jsonl", &[&[(tool, arguments)]]);
    let mut script = fs::read_to_string(machine.path("delegate.jsonl")).unwrap();
    script += "{\"for\": \"write it\"}\n";
    script += &fs::read_to_string(machine.path("write.jsonl")).unwrap();
    machine.write("delegate.jsonl", &script);
}

/// Opens a session over the protocol, sends a request, and lets the model write.
pub(super) fn over_protocol(machine: &Machine, method: &str, params: &serde_json::Value) -> String {
    over_protocol_with(machine, &[], method, params)
}

/// As [`over_protocol`], with options of the command line.
pub(super) fn over_protocol_with(
    machine: &Machine,
    options: &[&str],
    method: &str,
    params: &serde_json::Value,
) -> String {
    let model = format!("scripted:{}", machine.path("write.jsonl").display());
    let arguments = [&["--mode", "plan", "--model", &model, "--eof-grace", "5"], options].concat();
    let (mut client, _) = BinaryClient::start(&machine.path("home"), &arguments);
    let opened = client.call(2, "session/new", &json!({ "cwd": machine.work(), "mcpServers": [] }));
    let session = opened.last().unwrap()["result"]["sessionId"].clone();
    let mut params = params.clone();
    params["sessionId"] = session.clone();
    let mut messages = client.call(3, method, &params);
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "write it" }] });
    messages.extend(client.call(4, "session/prompt", &prompt));
    client.end();
    format!("{messages:?}")
}

/// Changes the mode of a running program from outside.
fn mode_from_outside(machine: &Machine) -> String {
    let script = "until (echo x > out.txt) 2>/dev/null || [ -e stop ]; do sleep 0.1; done; (echo x > out.txt) 2>/dev/null";
    let program = machine.command(&["run", "--quiet", "--mode", "plan", "--", "sh", "-c", script]).spawn();
    let mut program = program.unwrap();
    let (start, mut output, mut orders) = (Instant::now(), String::new(), 0);
    while orders < 3 && program.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_mins(1) {
        output = machine.run(&["mode", "code"]);
        // Not before the program runs.
        orders += i32::from(!output.contains("no program"));
    }
    fs::write(machine.work().join("stop"), "").unwrap();
    program.wait().unwrap();
    output
}

/// Plays a transcript whose session has the project as its folder.
fn replay(machine: &Machine) -> String {
    let lines = [
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "protocolVersion": 1 } }),
        json!({ "jsonrpc": "2.0", "id": 2, "method": "session/new", "params": { "cwd": machine.work(), "mcpServers": [] } }),
        json!({ "jsonrpc": "2.0", "id": 3, "method": "session/prompt",
                "params": { "sessionId": "sess_1", "prompt": [{ "type": "text", "text": "write it" }] } }),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    machine.write("play.in.jsonl", &lines);
    let script = fs::read_to_string(machine.path("write.jsonl")).unwrap();
    machine.write("play.model.jsonl", &script);
    let file = machine.path("play.in.jsonl");
    machine.run(&["--mode", "code", "replay", "--update", file.to_str().unwrap()])
}

#[rustfmt::skip]
const ATTEMPTS: &[Attempt] = &[
    Attempt::new("--mode", nothing, code),
    Attempt::new("--mode with another case", nothing, |m| m.write_with(&["--mode", "CODE"])),
    Attempt::new("--mode with an alias", nothing, |m| m.write_with(&["--mode", "build"])),
    Attempt::new("--max-mode", nothing, |m| m.write_with(&["--mode", "code", "--max-mode", "code"])),
    Attempt::new("--no-exit", nothing, |m| m.write_with(&["--mode", "code", "--no-exit"])),
    Attempt::new("--accept-all", nothing, |m| m.write_with(&["--mode", "code", "--accept-all"])),
    Attempt::new("--agent", nothing, |m| m.write_with(&["--mode", "code", "--agent", "general"])),
    Attempt::new("--store with a file", nothing, |m| {
        let store = m.path("other.db");
        m.write_with(&["--mode", "code", "--store", store.to_str().unwrap()])
    }),
    Attempt::new("--store memory", nothing, |m| m.write_with(&["--mode", "code", "--store", "memory"])),
    Attempt::new("--cwd", nothing, |m| m.write_with(&["--mode", "code", "--cwd", "."])),
    Attempt::new("--deterministic", nothing, |m| m.write_with(&["--mode", "code", "--deterministic"])),
    Attempt::new("variables that name a policy", nothing, |m| {
        m.write("none.yaml", "{}");
        let model = format!("scripted:{}", m.path("write.jsonl").display());
        let names = ["MODEGATE_POLICY", "MODEGATE_POLICY_FILE", "MODEGATE_CONFIG", "XDG_CONFIG_DIRS", "PROGRAMDATA"];
        m.run_with(&names.map(|name| (name, "DIR/none.yaml")), &["--mode", "code", "--model", &model, "-p", "x"])
    }),
    Attempt::new("another HOME", wide_plan, |m| {
        m.write("other/.config/modegate/modes.yaml", &format!("modes: [{WIDE}, id: plan}}]"));
        let model = format!("scripted:{}", m.path("write.jsonl").display());
        m.run_with(&[("HOME", "DIR/other")], &["--mode", "plan", "--model", &model, "-p", "x"])
    }),
    Attempt::new("another XDG_CONFIG_HOME", nothing, |m| {
        m.write("other/modegate/modes.yaml", &format!("modes: [{WIDE}, id: plan}}]"));
        let model = format!("scripted:{}", m.path("write.jsonl").display());
        m.run_with(&[("XDG_CONFIG_HOME", "DIR/other")], &["--mode", "plan", "--model", &model, "-p", "x"])
    }),
    Attempt::new("a user's mode instead of plan", wide_plan, |m| m.write_with(&["--mode", "plan"])),
    Attempt::new("a user's mode instead of the alias's", wide_plan, |m| m.write_with(&["--mode", "architect"])),
    Attempt::new("a user's mode of its own", |m| m.modes_file(&format!("modes: [{WIDE}, id: mine}}]")),
        |m| m.write_with(&["--mode", "mine"])),
    Attempt::new("a user's mode with the name of plan",
        |m| m.modes_file(&format!("modes: [{WIDE}, id: mine, name: Plan}}]")), |m| m.write_with(&["--mode", "mine"])),
    Attempt::new("a user's default_mode", |m| m.modes_file("default_mode: code"), |m| m.write_with(&[])),
    Attempt::new("anchors and merges in the modes file",
        |m| m.modes_file("modes:\n- &base {id: base, access: full, shell: full, permission: auto}\n- {<<: *base, id: plan}\n"),
        |m| m.write_with(&["--mode", "base"])),
    Attempt::new("a user's rule that allows", |m| m.modes_file("permissions: {allow: [write_file]}"), code),
    Attempt::new("modegate permissions allow", |m| { m.run(&["permissions", "allow", "write_file"]); }, code),
    Attempt::new("modegate modes import", |m| {
        let database = m.path("modes.db");
        let database = rusqlite::Connection::open(database).unwrap();
        database.execute_batch("CREATE TABLE agent_modes (name TEXT, role_definition TEXT, tools TEXT)").unwrap();
        m.modes_file(&format!("modes: [{WIDE}, id: imported}}]"));
    }, |m| m.run(&["modes", "import", "../modes.db"]) + &m.write_with(&["--mode", "imported"])),
    Attempt::new("a project's mode", |m| m.write("work/.modegate/modes.yaml", "modes: [{id: ours, extends: code}]"),
        |m| m.write_with(&["--mode", "ours"])),
    Attempt::new("a trusted project that replaces plan", |m| {
        m.write("work/.modegate/modes.yaml", &format!("modes: [{WIDE}, id: plan}}]"));
        m.run(&["trust"]);
    }, |m| m.write_with(&["--mode", "plan"])),
    Attempt::new("--resume of an earlier session in code", |m| { m.write_with(&["--mode", "code"]); forget(m); },
        |m| m.write_with(&["--continue"])),
    Attempt::new("--continue in another mode", |m| { m.write_with(&["--mode", "plan"]); },
        |m| m.write_with(&["--continue", "--mode", "code"])),
    Attempt::new("modegate sessions mode", |m| { m.write_with(&["--mode", "plan"]); }, |m| {
        let list = m.run(&["sessions", "list", "--json"]);
        let session: serde_json::Value = serde_json::from_str(list.lines().next().unwrap_or_default()).unwrap_or_default();
        let id = session["id"].as_str().or(session["session"].as_str()).unwrap_or_default().to_owned();
        m.run(&["sessions", "mode", &id, "code"]) + &m.write_with(&["--continue", "--mode", "code"])
    }),
    Attempt::new("--from-plan", |m| m.write("plan.md", "Write the file."),
        |m| m.write_with(&["--mode", "code", "--from-plan", "../plan.md"])),
    Attempt::new("the slash command /code", nothing, |m| m.write_with(&["--mode", "plan", "-p", "/code write it"])),
    Attempt::new("the slash command /mode", nothing,
        |m| m.write_with(&["--mode", "plan", "-p", "/mode code"]) + &m.write_with(&["--continue", "--mode", "code"])),
    Attempt::new("shell", |m| m.script("shell.jsonl", &[&[("shell", r#"{"command": "echo x > out.txt"}"#)]]),
        |m| m.play("shell.jsonl", &["--mode", "code"])),
    Attempt::new("shell_read_only", |m| {
        let calls = ("shell", r#"{"command": "echo x > out.txt"}"#);
        m.script("shell.jsonl", &[&[("shell_read_only", r#"{"command": "echo x > out.txt"}"#), calls]]);
    }, |m| m.play("shell.jsonl", &["--mode", "code"])),
    Attempt::new("edit and patch", |m| m.script("patch.jsonl", &[&[(
        "apply_patch", r#"{"patch": "*** Begin Patch\n*** Add File: out.txt\n+x\n*** End Patch"}"#)]]),
        |m| m.play("patch.jsonl", &["--mode", "code"])),
    Attempt::new("a sub-agent", |m| delegating(m, "delegate", r#"{"task": "write it now", "agent": "writer"}"#),
        |m| m.play("delegate.jsonl", &["--mode", "code", "-p", "go"])),
    Attempt::new("a sub-agent in the background",
        |m| delegating(m, "delegate", r#"{"task": "write it now", "agent": "writer", "background": true}"#),
        |m| m.play("delegate.jsonl", &["--mode", "code", "-p", "go"])),
    Attempt::new("a handoff", |m| {
        m.modes_file("agents: [{id: writer, description: Writes}]");
        let write = ("write_file", r#"{"path": "out.txt", "content": "x"}"#);
        m.script("handoff.jsonl", &[&[("handoff", r#"{"agent": "writer"}"#)], &[write]]);
    }, |m| m.play("handoff.jsonl", &["--mode", "code"])),
    Attempt::new("a mode_switch block", |m| {
        let text = r"```yaml\nmode_switch:\n  analysis: because\n  new_mode: code\n```";
        let write = fs::read_to_string(m.path("write.jsonl")).unwrap();
        m.write("switch.jsonl", &format!("{{\"text\": \"{text}\"}}\n{{\"stop\": \"done\"}}\n{write}"));
    }, |m| m.play("switch.jsonl", &["--mode", "ask"]) + &m.play("write.jsonl", &["--mode", "code"])),
    Attempt::new("session/set_mode", nothing, |m| over_protocol(m, "session/set_mode", &json!({ "modeId": "code" }))),
    Attempt::new("session/set_config_option", nothing,
        |m| over_protocol(m, "session/set_config_option", &json!({ "configId": "mode", "value": "code" }))),
    Attempt::new("session/set_mode over version 2", nothing, |m| {
        let mut output = String::new();
        over_version_2(|| output = over_protocol(m, "session/set_mode", &json!({ "modeId": "code" })));
        output
    }),
    Attempt::new("replay with --mode", nothing, replay),
    Attempt::new("run", nothing, |m| m.run(&["run", "--mode", "code", "--", "sh", "-c", "echo x > out.txt"])),
    Attempt { name: "run with --write-dir", prepare: |m| m.write("other/x", ""), run: |m| {
        let folder = m.path("other");
        let script = format!("echo x > {}/out.txt", folder.display());
        m.run(&["run", "--mode", "code", "--write-dir", folder.to_str().unwrap(), "--", "sh", "-c", &script])
    }, effect: |m| m.path("other/out.txt").exists() },
    Attempt::new("modegate mode from another terminal", nothing, mode_from_outside),
    Attempt::new("wrap", nothing,
        |m| m.run(&["--mode", "code", "-p", "x", "wrap", "--", "sh", "-c", "echo x > out.txt"])),
    Attempt::new("wrap with --no-broker", nothing,
        |m| m.run(&["--mode", "code", "-p", "x", "wrap", "--no-broker", "--", "sh", "-c", "echo x > out.txt"])),
    Attempt::new("wrap with --max-mode and --full-mode", nothing, |m| {
        m.run(&["-p", "x", "wrap", "--mode", "code", "--max-mode", "code", "--full-mode", "yolo", "--read-only-mode", "yolo",
            "--", "sh", "-c", "echo x > out.txt"])
    }),
    Attempt::new("a user's external agent", |m| {
        m.modes_file("agents: [{id: ext, harness: {command: sh, args: [-c, 'echo x > out.txt']}}]");
    }, |m| m.write_with(&["--mode", "code", "--agent", "ext"])),
];

fn forget(machine: &Machine) {
    let _ = fs::remove_file(machine.work().join("out.txt"));
}

#[test]
fn no_attempt_exceeds_the_highest_mode() {
    in_namespace("modes::no_attempt_exceeds_the_highest_mode", || {
        assert!(ATTEMPTS.len() >= 40, "{}", ATTEMPTS.len());
        for attempt in ATTEMPTS {
            attempt.check("max_mode: plan", "");
        }
    });
}
