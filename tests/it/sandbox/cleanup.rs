//! Commands of the binary. They leave no process behind, however the binary ends, and see no keys in their
//! environment.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::requirements::{lasting_folder, require_sandbox};
use crate::support::waiting::block_until;

/// A model script with a background job and a command, each with a process in another session.
fn script(dir: &Path) -> String {
    let ticker = |name: &str| {
        format!("setsid sh -c 'while :; do echo x >> {name}; sleep 0.01; done' & nohup sleep 1000 & wait")
    };
    let call = |id: &str, command: String, background: bool| {
        let arguments = json!({ "command": command, "background": background });
        json!({ "tool_call": { "id": id, "name": "shell", "arguments": arguments } })
    };
    let lines = [
        call("a", ticker("job"), true),
        call("b", ticker("command"), false),
        json!({ "stop": "done" }),
        json!({ "stop": "done" }),
    ];
    let file = dir.join("script.jsonl");
    std::fs::write(&file, lines.map(|line| format!("{line}\n")).concat()).unwrap();
    format!("scripted:{}", file.display())
}

/// Starts the binary, and waits until the job and the command run.
fn start(dir: &Path) -> Child {
    let work = dir.join("work");
    std::fs::create_dir(&work).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .args(["--mode", "code", "--store", "memory", "--eof-grace", "0", "--model", &script(dir)])
        .env("HOME", dir)
        .env("MODEGATE_LOG", "error")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let prompt = json!([{ "type": "text", "text": "go" }]);
    for line in [
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "protocolVersion": 1 } }),
        json!({ "jsonrpc": "2.0", "id": 2, "method": "session/new", "params": { "cwd": work, "mcpServers": [] } }),
    ] {
        writeln!(child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let session = loop {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let message: Value = serde_json::from_str(&line).unwrap();
        if message["id"] == 2 {
            break message["result"]["sessionId"].clone();
        }
    };
    let params = json!({ "sessionId": session, "prompt": prompt });
    let line = json!({ "jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": params });
    writeln!(child.stdin.as_mut().unwrap(), "{line}").unwrap();
    std::thread::spawn(move || output.lines().map_while(Result::ok).for_each(drop));
    for name in ["job", "command"] {
        block_until("both run", || work.join(name).exists());
    }
    assert!(processes_in(&work) >= 6, "the control: two shells, two tickers, two sleepers");
    child
}

/// Counts the processes that work in a folder.
fn processes_in(folder: &Path) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == folder)).count()
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn no_process_remains_after_signal_or_end_of_input() {
    for (name, end) in [
        ("SIGTERM", (|child: &mut Child| signal(child, rustix::process::Signal::TERM)) as fn(&mut Child)),
        ("SIGINT", |child| signal(child, rustix::process::Signal::INT)),
        ("end of input", |child| drop(child.stdin.take())),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let mut child = start(&dir);
        end(&mut child);
        // Not `wait`, which would close the input.
        block_until(name, || child.try_wait().unwrap().is_some());
        assert_eq!(processes_in(&dir.join("work")), 0, "{name}");
    }
}

#[test]
fn no_process_remains_after_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let mut child = start(&dir);
    signal(&child, rustix::process::Signal::KILL);
    child.wait().unwrap();
    // No process waits for the supervisors now, so their end takes some time.
    block_until("everything is gone", || processes_in(&dir.join("work")) == 0);
}

#[test]
fn descendants_of_a_killed_supervisor_are_ended() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let mut child = start(&dir);
    let children = |pid: &str| {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.trim().to_owned()
    };
    let guard = children(&child.id().to_string());
    let supervisors = children(&children(&guard));
    assert_eq!(
        supervisors.split_whitespace().count(),
        2,
        "the control: one for the job, one for the command"
    );
    for pid in supervisors.split_whitespace() {
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    block_until("everything is gone", || processes_in(&dir.join("work")) == 0);
    assert!(child.try_wait().unwrap().is_none(), "and it goes on");
    drop(child.stdin.take());
    block_until("the end of the binary", || child.try_wait().unwrap().is_some());
}

/// Runs one command in a mode, with secrets in the environment. Returns the whole output.
fn run(mode: &str, tool: &str, command: &str) -> String {
    let dir = lasting_folder();
    let call = json!({ "tool_call": { "id": "a", "name": tool, "arguments": { "command": command } } });
    let script = dir.path().join("script.jsonl");
    std::fs::write(
        &script,
        format!("{call}\n{{\"stop\":\"done\"}}\n{{\"text\":\"A plan.\"}}\n{{\"stop\":\"done\"}}\n"),
    )
    .unwrap();
    std::fs::create_dir(dir.path().join("work")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .args(["--mode", mode, "--store", "memory", "--output", "stream-json", "-p", "go", "--model"])
        .arg(format!("scripted:{}", script.display()))
        .current_dir(dir.path().join("work"))
        .env("HOME", dir.path())
        .env("ANTHROPIC_API_KEY", "secret-provider")
        .env("GITHUB_TOKEN", "secret-other")
        .env("SSH_AUTH_SOCK", "/secret-agent")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn environment_hides_keys_and_read_only_commands_see_less() {
    let seen = run("code", "shell", "env; echo code-ran");
    assert!(seen.contains("code-ran") && !seen.contains("secret-provider"));
    assert!(seen.contains("secret-other") && seen.contains("/secret-agent"), "the control");
    // Nor can a command read the key in the environment of Modegate, which started with it.
    let others = "tr '\\0' ' ' < /proc/$(cut -d' ' -f4 /proc/$PPID/stat)/environ | grep -o 'HOME=\\|secret-provider'; echo code-ran";
    let seen = run("code", "shell", others);
    assert!(seen.contains("code-ran") && !seen.contains("secret-provider\\n"));
    if rustix::process::getuid().is_root() {
        assert!(seen.contains("HOME=\\n"), "the control: root can look");
    }
    require_sandbox();
    // The command does not see the environment of Modegate, which started with the key.
    let line = "env; echo plan-ran; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' ' '";
    let seen = run("plan", "shell_read_only", line);
    assert!(seen.contains("plan-ran") && seen.contains("LC_ALL=C"));
    assert!(seen.contains("GIT_OPTIONAL_LOCKS=0") && seen.contains("TMPDIR="));
    for secret in ["secret-provider", "secret-other", "secret-agent"] {
        assert!(!seen.contains(secret), "{secret}");
    }
}
