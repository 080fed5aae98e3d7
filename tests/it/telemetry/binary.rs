//! The binary with a collector: its requests, its secrets, and the rest after a kill.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use modegate::otlp::conventions as names;
use rusqlite::Connection;
use serde_json::json;

use super::receiver::{Behaviour, Receiver, hash, text};

const CANARY: &str = "sk-canary-0123456789";

fn modegate(home: &Path, receiver: &Receiver, model: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
    command
        .current_dir(home)
        .env_clear()
        .env("HOME", home)
        .env("PATH", "/usr/bin:/bin")
        .env("MODEGATE_LOG", "warn")
        .env("ANTHROPIC_API_KEY", CANARY)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url())
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-token=header-canary")
        .stdin(Stdio::null());
    if !model.is_empty() {
        command.args(["--model", model, "--mode", "code"]);
    }
    command.args(arguments);
    command
}

fn script(home: &Path, lines: &[serde_json::Value]) -> String {
    let path = home.join("script.jsonl");
    let lines: Vec<_> = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&path, lines.concat()).unwrap();
    format!("scripted:{}", path.display())
}

fn call(name: &str, arguments: &serde_json::Value) -> serde_json::Value {
    json!({ "tool_call": { "id": "c", "name": name, "arguments": arguments } })
}

fn run(mut command: Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

#[test]
fn headless_run_sends_spans_audit_log_and_metrics_before_it_ends() {
    let home = tempfile::tempdir().unwrap();
    let receiver = Receiver::start();
    let write = call("write_file", &json!({ "path": "a.txt", "content": "hello" }));
    let model = script(
        home.path(),
        &[write, json!({ "stop": "done" }), json!({ "text": "Done." }), json!({ "stop": "done" })],
    );
    run(modegate(home.path(), &receiver, &model, &["-p", "go"]));
    let mut found: Vec<String> = receiver.spans().into_iter().map(|span| span.name).collect();
    found.sort();
    assert_eq!(found, ["chat scripted", "chat scripted", "execute_tool write_file", "invoke_agent general"]);
    let events: Vec<String> = receiver.logs().into_iter().map(|log| log.event_name).collect();
    assert_eq!(events, ["modegate.audit.mode", "modegate.audit.call"]);
    let metrics: Vec<String> = receiver.metrics().into_iter().map(|metric| metric.name).collect();
    assert!(metrics.contains(&names::DURATION.name.to_owned()), "{metrics:?}");
    assert!(
        receiver.heads().iter().all(|head| head.contains("x-token: header-canary")),
        "{:?}",
        receiver.heads()
    );
}

#[test]
fn runs_in_memory_and_deterministic_runs_send_nothing() {
    let home = tempfile::tempdir().unwrap();
    let receiver = Receiver::start();
    let model = script(home.path(), &[json!({ "text": "Done." }), json!({ "stop": "done" })]);
    run(modegate(home.path(), &receiver, &model, &["--store", "memory", "-p", "go"]));
    run(modegate(home.path(), &receiver, &model, &["--deterministic", "-p", "go"]));
    assert!(receiver.heads().is_empty(), "{:?}", receiver.heads());
    run(modegate(home.path(), &receiver, &model, &["-p", "go"]));
    assert!(!receiver.heads().is_empty(), "the control");
}

#[test]
fn required_export_covers_runs_in_memory_and_says_what_is_lost() {
    let home = tempfile::tempdir().unwrap();
    let mut receiver = Receiver::start();
    let settings = home.path().join(".config/modegate");
    fs::create_dir_all(&settings).unwrap();
    fs::write(settings.join("config.yaml"), "telemetry: {required: true}\n").unwrap();
    let memory = |receiver: &Receiver| {
        let mut command = modegate(home.path(), receiver, "", &["--store", "memory", "--model", "offline"]);
        command.args(["--mode", "plan", "-p", "what is here?"]).env("OTEL_EXPORTER_OTLP_TIMEOUT", "200");
        String::from_utf8(run(command).stderr).unwrap()
    };
    let stderr = memory(&receiver);
    assert!(!receiver.spans().is_empty() && !receiver.logs().is_empty());
    assert!(!stderr.contains("required telemetry"), "{stderr}");
    receiver.kill();
    let stderr = memory(&receiver);
    assert!(stderr.contains("required telemetry was not sent"), "{stderr}");
}

#[test]
fn keys_and_headers_are_in_no_request_no_command_and_no_log() {
    let home = tempfile::tempdir().unwrap();
    let receiver = Receiver::start();
    let show = json!({ "command": format!("env | sort; echo {CANARY}") });
    let lines = [
        call("shell", &show),
        json!({ "stop": "done" }),
        json!({ "text": "Done." }),
        json!({ "stop": "done" }),
    ];
    let model = script(home.path(), &lines);
    let mut command = modegate(home.path(), &receiver, &model, &["--output", "stream-json", "-p", "go"]);
    command.env("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true").env("MODEGATE_LOG", "trace");
    let output = run(command);
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    crate::support::headless_output::check_lines(&stdout);
    assert!(receiver.has_bytes("env | sort"), "the control: contents were sent");
    assert!(stdout.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "the control: the command shows its environment");
    assert!(!receiver.has_bytes(CANARY) && !receiver.has_bytes("header-canary"));
    assert!(!stdout.contains("header-canary") && !stderr.contains("header-canary"), "{stdout} {stderr}");
    let log: Vec<_> = stderr.lines().filter(|line| line.starts_with("20")).collect();
    assert!(!log.is_empty() && log.iter().all(|line| !line.contains(CANARY)), "{log:?}");
}

#[test]
fn invalid_variables_switch_telemetry_off_and_say_why() {
    let home = tempfile::tempdir().unwrap();
    let receiver = Receiver::start();
    let model = script(home.path(), &[json!({ "text": "Done." }), json!({ "stop": "done" })]);
    let mut command = modegate(home.path(), &receiver, &model, &["-p", "go"]);
    command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    let output = run(command);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("telemetry is off: OTEL_EXPORTER_OTLP_PROTOCOL is \"grpc\""), "{stderr}");
    assert!(receiver.heads().is_empty());
}

#[cfg(unix)]
#[test]
fn the_next_process_sends_what_a_killed_one_left() {
    let home = tempfile::tempdir().unwrap();
    let receiver = Receiver::start();
    receiver.behave(Behaviour::Hang);
    let lines: Vec<_> = (0..200)
        .flat_map(|number| {
            let write = call("write_file", &json!({ "path": format!("{number}.txt"), "content": "hello" }));
            [json!({ "delay_ms": 10 }), write, json!({ "stop": "done" })]
        })
        .collect();
    let model = script(home.path(), &lines);
    let mut killed = modegate(home.path(), &receiver, &model, &["-p", "go"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let store = home.path().join(".local/share/modegate/modegate.db");
    let entries = || -> Vec<String> {
        let Ok(connection) = Connection::open(&store) else { return Vec::new() };
        let Ok(mut statement) = connection.prepare("SELECT hash FROM chain ORDER BY session_id, number")
        else {
            return Vec::new();
        };
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let started = Instant::now();
    while entries().len() < 5 {
        assert!(started.elapsed() < Duration::from_secs(20), "the run wrote nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    receiver.behave(Behaviour::Accept);
    receiver.forget();
    let model = script(home.path(), &[json!({ "text": "Done." }), json!({ "stop": "done" })]);
    run(modegate(home.path(), &receiver, &model, &["-p", "go"]));
    let arrived: Vec<String> = receiver.logs().iter().map(hash).collect();
    assert_eq!(arrived, entries());
    let turns: Vec<_> =
        receiver.spans().into_iter().filter(|span| span.name.starts_with("invoke_agent")).collect();
    let errors: Vec<_> = turns.iter().map(|span| text(&span.attributes, names::ERROR)).collect();
    assert_eq!(errors, [Some("interrupted".to_owned()), None]);
}

#[test]
fn doctor_says_whether_the_collector_answers_and_what_waits() {
    let home = tempfile::tempdir().unwrap();
    let mut receiver = Receiver::start();
    let doctor = |receiver: &Receiver, variable: &str| {
        let mut command = modegate(home.path(), receiver, "", &["doctor"]);
        command.env(variable, "http/json");
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find(|line| line.contains("telemetry")).unwrap().to_owned()
    };
    let line = doctor(&receiver, "X");
    assert!(line.starts_with("ok") && line.contains("answers; nothing waits"), "{line}");
    let line = doctor(&receiver, "OTEL_EXPORTER_OTLP_PROTOCOL");
    assert!(line.starts_with("WRONG") && line.contains("Modegate sends http/protobuf only"), "{line}");
    receiver.kill();
    let model = script(home.path(), &[json!({ "text": "Done." }), json!({ "stop": "done" })]);
    run(modegate(home.path(), &receiver, &model, &["-p", "go"]));
    let line = doctor(&receiver, "X");
    assert!(
        line.starts_with("WRONG") && line.contains("takes no telemetry: traces: no connection"),
        "{line}"
    );
    assert!(line.contains("2 spans and 1 entries of the audit log wait"), "{line}");
    assert!(!line.contains("header-canary"), "{line}");
}
