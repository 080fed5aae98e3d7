//! Attempts to use models, servers and programs beyond the lists of a policy, and to avoid its requirements.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use modegate::process::Processes;
use modegate::process::sandbox_paths::User;
use modegate::process::shell::{Sandbox, Shell};
use modegate::sandbox::Support;
use serde_json::json;

use super::machine::{Machine, in_namespace};
use super::modes::{over_protocol, over_protocol_with};
use super::{Attempt, nothing};
use crate::support::binary_client::BinaryClient;
use crate::support::requirements::require_sandbox;
use crate::support::shell;

/// Port of a server that counts its requests, and their number.
static PORT: AtomicU16 = AtomicU16::new(0);
static REQUESTS: AtomicUsize = AtomicUsize::new(0);

/// Starts the server, which answers each request with an error.
fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    PORT.store(listener.local_addr().unwrap().port(), Ordering::SeqCst);
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            connection.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            REQUESTS.fetch_add(1, Ordering::SeqCst);
            let _ = connection.read(&mut [0; 16_384]);
            let _ = connection
                .write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno");
        }
    });
}

fn address() -> String {
    format!("http://127.0.0.1:{}", PORT.load(Ordering::SeqCst))
}

fn has_asked_the_server(_: &Machine) -> bool {
    REQUESTS.swap(0, Ordering::SeqCst) > 0
}

const fn asking(name: &'static str, prepare: fn(&Machine), run: fn(&Machine) -> String) -> Attempt {
    Attempt { name, prepare, run, effect: has_asked_the_server }
}

fn ask(machine: &Machine, variables: &[(&str, &str)], options: &[&str]) -> String {
    machine.run_with(variables, &[&["--mode", "plan", "-p", "hello"], options].concat())
}

fn config_with(machine: &Machine, text: &str) {
    machine.write("home/.config/modegate/config.yaml", &text.replace("URL", &address()));
}

fn wild_openai(machine: &Machine) {
    config_with(machine, "providers: {openai: {base_url: 'URL', models: [good, bad]}}");
}

#[rustfmt::skip]
const MODELS: &[Attempt] = &[
    asking("--model", wild_openai, |m| ask(m, &[], &["--model", "openai/bad"])),
    asking("MODEGATE_MODEL", wild_openai, |m| ask(m, &[("MODEGATE_MODEL", "openai/bad")], &[])),
    asking("a model in config.yaml",
        |m| config_with(m, "model: openai/bad\nproviders: {openai: {base_url: 'URL'}}"), |m| ask(m, &[], &[])),
    asking("a mode's model", |m| { wild_openai(m); m.modes_file("modes: [{id: mine, extends: plan, model: openai/bad}]"); },
        |m| m.run(&["--mode", "mine", "--model", "offline", "-p", "hello"]) + &m.run(&["--mode", "mine", "-p", "hello"])),
    asking("an agent's model", |m| { wild_openai(m); m.modes_file("agents: [{id: a, model: openai/bad}]"); },
        |m| ask(m, &[], &["--agent", "a", "--model", "openai/bad"])),
    asking("another spelling of the model", wild_openai, |m| ask(m, &[], &["--model", "openai/good2"])),
    asking("the provider alone", |m| config_with(m, "providers: {openai: {base_url: 'URL', models: [bad]}}"),
        |m| ask(m, &[], &["--model", "openai"])),
    asking("another provider", |m| config_with(m, "providers: {ollama: {base_url: 'URL'}}"),
        |m| ask(m, &[], &["--model", "ollama/good"])),
];

#[rustfmt::skip]
const HOSTS: &[Attempt] = &[
    asking("base_url in config.yaml", wild_openai, |m| ask(m, &[], &["--model", "openai/good"])),
    asking("OPENAI_BASE_URL", nothing,
        |m| ask(m, &[("OPENAI_BASE_URL", &address()), ("OPENAI_API_KEY", "k")], &["--model", "openai/good"])),
    asking("OLLAMA_HOST", nothing, |m| ask(m, &[("OLLAMA_HOST", &address())], &["--model", "ollama/x"])),
    asking("a base_url with another host in front",
        |m| config_with(m, &format!("providers: {{openai: {{base_url: 'http://allowed.example@127.0.0.1:{}'}}}}",
            PORT.load(Ordering::SeqCst))),
        |m| ask(m, &[], &["--model", "openai/good"])),
    asking("a proxy for an allowed host",
        |m| config_with(m, "providers: {openai: {base_url: 'http://allowed.example/v1'}}"),
        |m| ask(m, &[("HTTP_PROXY", &address())], &["--model", "openai/good"])),
    asking("fetch", |m| {
        let url = format!(r#"{{"url": "{}/x"}}"#, address());
        m.script("fetch.jsonl", &[&[("fetch", &url)]]);
        m.modes_file("modes: [{id: net, extends: plan, network: allow}]");
    }, |m| {
        let model = format!("scripted:{}", m.path("fetch.jsonl").display());
        config_with(m, &format!("fetch: {{allow_private: ['127.0.0.1:{}']}}", PORT.load(Ordering::SeqCst)));
        // A script does not read config.yaml, so the offline model asks for nothing: a client's prompt does.
        m.run(&["--mode", "net", "--model", &model, "-p", "x"]) + &ask(m, &[("OLLAMA_HOST", &address())], &["--model", "ollama/x"])
    }),
    asking("modegate doctor --online", wild_openai, |m| m.run(&["--model", "openai/good", "doctor", "--online"])
        + &m.run_with(&[("MODEGATE_MODEL", "openai/good")], &["doctor", "--online"])),
];

fn touching(machine: &Machine) -> String {
    let model = format!("scripted:{}", machine.path("write.jsonl").display());
    machine.run(&["--mode", "plan", "--model", &model, "-p", "x"])
}

fn client_server(machine: &Machine) -> String {
    let model = format!("scripted:{}", machine.path("write.jsonl").display());
    let (mut client, _) = BinaryClient::start(&machine.path("home"), &["--mode", "plan", "--model", &model]);
    let file = machine.work().join("out.txt");
    let server = json!({ "name": "files", "command": "/bin/touch", "args": [file], "env": [] });
    let new = json!({ "cwd": machine.work(), "mcpServers": [server] });
    let opened = client.call(2, "session/new", &new);
    let session = opened.last().unwrap()["result"]["sessionId"].clone();
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "x" }] });
    let messages = client.call(3, "session/prompt", &prompt);
    client.end();
    format!("{messages:?}")
}

#[rustfmt::skip]
const SERVERS: &[Attempt] = &[
    Attempt::new("a user's server", |m| m.modes_file("servers: {mine: {command: touch, args: [out.txt]}}"), touching),
    Attempt::new("a server with an allowed name",
        |m| m.modes_file("servers: {files: {command: touch, args: [out.txt]}}"), touching),
    Attempt::new("a server with an allowed name and program, and other arguments",
        |m| m.modes_file("servers: {good: {command: touch, args: [out.txt]}}"), touching),
    Attempt::new("a server of a trusted project", |m| {
        m.write("work/.modegate/modes.yaml", "servers: {mine: {command: touch, args: [out.txt]}}");
        m.run(&["trust"]);
    }, touching),
    Attempt::new("a client's server", nothing, client_server),
];

#[rustfmt::skip]
const PROGRAMS: &[Attempt] = &[
    Attempt::new("wrap", nothing,
        |m| m.run(&["--mode", "code", "-p", "x", "wrap", "--", "sh", "-c", "echo x > out.txt"])),
    Attempt::new("wrap --check", nothing,
        |m| m.run(&["wrap", "--check", "--state-dir", "~/.state", "--", "sh", "-c", "echo x > out.txt"])
            + &m.run(&["--mode", "code", "-p", "x", "wrap", "--", "sh", "-c", "echo x > out.txt"])),
    Attempt::new("run", nothing, |m| m.run(&["run", "--mode", "code", "--", "sh", "-c", "echo x > out.txt"])),
    Attempt::new("a program of the same name on PATH", |m| {
        m.write("bin/true", "#!/bin/sh\necho x > out.txt\n");
        std::process::Command::new("chmod").arg("+x").arg(m.path("bin/true")).status().unwrap();
    }, |m| {
        let path = std::env::var("PATH").unwrap();
        m.run_with(&[("PATH", &format!("DIR/bin:{path}"))], &["run", "--mode", "code", "--", "true"])
    }),
    Attempt::new("a user's external agent", |m| {
        m.modes_file("agents: [{id: ext, harness: {command: sh, args: [-c, 'echo x > out.txt']}}]");
    }, |m| m.write_with(&["--mode", "code", "--agent", "ext"])),
    Attempt::new("delegation to a user's external agent", |m| {
        m.modes_file("agents: [{id: ext, harness: {command: sh, args: [-c, 'echo x > out.txt']}}]");
        m.script("ext.jsonl", &[&[("delegate", r#"{"task": "go", "agent": "ext"}"#)]]);
    }, |m| m.play("ext.jsonl", &["--mode", "code"])),
];

fn all(attempts: &[Attempt], policy: &str, control: &str) {
    for attempt in attempts {
        REQUESTS.store(0, Ordering::SeqCst);
        attempt.check(policy, control);
    }
}

#[test]
fn only_listed_models_and_hosts_are_used() {
    in_namespace("lists::only_listed_models_and_hosts_are_used", || {
        serve();
        all(MODELS, "allowed: {models: [openai/good]}", "");
        all(MODELS, "allowed: {models: [openai/good]}", "allowed: {models: [openai/*, ollama/*]}");
        all(HOSTS, "allowed: {hosts: [allowed.example, 127.0.0.1:1]}", "");
    });
}

#[test]
fn only_listed_servers_and_programs_are_started() {
    in_namespace("lists::only_listed_servers_and_programs_are_started", || {
        let good = "{name: good, command: touch, args: [other.txt]}";
        all(SERVERS, &format!("allowed: {{servers: [{good}, {{name: files, command: /bin/files}}]}}"), "");
        let control = "allowed: {servers: [{name: mine, command: touch, args: [out.txt]}]}";
        all(&SERVERS[..1], "allowed: {servers: []}", control);
        let place = fs::canonicalize("/bin/true").unwrap();
        all(PROGRAMS, &format!("allowed: {{programs: ['{}']}}", place.display()), "");
        all(PROGRAMS, "allowed: {agents: [general, ext]}", "");
        all(&PROGRAMS[..3], "allowed: {programs: [sh -x]}", "allowed: {programs: [sh -c]}");
    });
}

const BROKER: &[Attempt] = &[Attempt::new("wrap with --no-broker", nothing, |m| {
    m.run(&["--mode", "code", "-p", "x", "wrap", "--no-broker", "--", "sh", "-c", "echo x > out.txt"])
})];

const RECORD: &[Attempt] = &[
    Attempt::new("--store memory", nothing, |m| m.write_with(&["--mode", "code", "--store", "memory"])),
    Attempt::new("--deterministic", nothing, |m| m.write_with(&["--mode", "code", "--deterministic"])),
    Attempt::new("--deterministic with a store", nothing, |m| {
        m.write_with(&["--mode", "code", "--deterministic", "--store", "x.db"])
    }),
    Attempt::new(
        "a store that cannot be written",
        |m| m.write("home/.local/share/modegate/modegate.db/x", ""),
        |m| over_protocol(m, "session/set_mode", &json!({ "modeId": "code" })),
    ),
];

fn has_written_without_record(machine: &Machine) -> bool {
    machine.has_written() && !machine.run(&["sessions", "list", "--all"]).contains("write it")
}

const STORE: &[Attempt] = &[
    Attempt::new("another HOME", nothing, |m| m.write_with(&["--mode", "code"])),
    Attempt::new("--store", Machine::set_account_home, |m| {
        m.write_with(&["--mode", "code", "--store", "x.db"])
    }),
    Attempt::new("no store", Machine::set_account_home, |m| {
        m.write_with(&["--mode", "code", "--store", "memory"])
    }),
    Attempt::new("--deterministic", Machine::set_account_home, |m| {
        m.write_with(&["--mode", "code", "--deterministic"])
    }),
    Attempt {
        effect: has_written_without_record,
        ..Attempt::new("--lockstep", Machine::set_account_home, |m| {
            over_protocol_with(m, &["--lockstep"], "session/set_mode", &json!({ "modeId": "code" }))
        })
    },
];

#[rustfmt::skip]
const WIDENED: &[Attempt] = &[
    Attempt::new("run with --state-dir", |m| m.write("elsewhere/x", ""), |m| {
        let (folder, elsewhere) = (m.work(), m.path("elsewhere"));
        let folders = ["--cwd", elsewhere.to_str().unwrap(), "run", "--mode", "plan", "--state-dir", folder.to_str().unwrap()];
        let script = format!("echo x > {}/out.txt", folder.display());
        m.run(&[&folders[..], &["--", "sh", "-c", &script]].concat())
    }),
    Attempt::new("a profile of the user", |m| m.write("elsewhere/x", ""), |m| {
        let profile = format!("[{{name: bash, state_dirs: [{{path: '{}'}}]}}]", m.work().display());
        m.write("home/.config/modegate/external-agents.yaml", &profile);
        let script = format!("echo x > {}/out.txt", m.work().display());
        let elsewhere = m.path("elsewhere");
        m.run(&["--cwd", elsewhere.to_str().unwrap(), "run", "--mode", "plan", "--", "bash", "-c", &script])
    }),
];

/// True if nothing was exported.
fn is_not_exported(machine: &Machine) -> bool {
    !has_asked_the_server(machine)
}

fn write_as(machine: &Machine, variables: &[(&str, &str)]) -> String {
    let model = format!("scripted:{}", machine.path("write.jsonl").display());
    machine.run_with(variables, &["--mode", "code", "--model", &model, "-p", "x"])
}

#[rustfmt::skip]
const EXPORT: &[Attempt] = &[
    Attempt { name: "OTEL_SDK_DISABLED", prepare: nothing, run: |m| write_as(m, &[("OTEL_SDK_DISABLED", "true")]),
        effect: is_not_exported },
    Attempt { name: "exporters none", prepare: nothing, run: |m| write_as(m, &[
        ("OTEL_TRACES_EXPORTER", "none"), ("OTEL_LOGS_EXPORTER", "none"), ("OTEL_METRICS_EXPORTER", "none")]),
        effect: is_not_exported },
];

/// A model that uses more tokens than the budget, and then writes.
fn expensive(machine: &Machine) {
    let write = fs::read_to_string(machine.path("write.jsonl")).unwrap();
    let first = "{\"usage\": {\"used\": 1200, \"size\": 200000}}\n{\"tool_call\": {\"id\": \"c\", \"name\": \"list_directory\", \
                 \"arguments\": {\"path\": \".\"}}}\n{\"stop\": \"done\"}\n";
    machine.write("spend.jsonl", &format!("{first}{write}"));
}

const BUDGET: &[Attempt] = &[Attempt::new("--max-tokens", expensive, |m| {
    m.play("spend.jsonl", &["--mode", "code", "--max-tokens", "1000000"])
})];

/// Uses up the budget of the day, then writes where the day is another one. The zones are a day apart.
fn in_another_zone(machine: &Machine) -> String {
    let run = |zone, script| {
        let model = format!("scripted:{}", machine.path(script).display());
        machine.run_with(&[("TZ", zone)], &["--mode", "code", "--model", &model, "-p", "x"])
    };
    let first = run("Etc/GMT+12", "spend.jsonl");
    let _ = fs::remove_file(machine.work().join("out.txt"));
    first + &run("Etc/GMT-14", "write.jsonl")
}

const DAY: &[Attempt] = &[Attempt::new("TZ", expensive, in_another_zone)];

#[test]
fn export_and_budgets_hold_against_variables_and_flags() {
    in_namespace("lists::export_and_budgets_hold_against_variables_and_flags", || {
        serve();
        let telemetry = |rest: &str| format!("telemetry: {{endpoint: '{}'{rest}}}", address());
        all(EXPORT, &telemetry(", required: true"), &telemetry(""));
        let machine = Machine::new();
        machine.set_policy("telemetry: {required: true}");
        let output = write_as(&machine, &[]);
        assert!(!machine.has_written() && output.contains("requires telemetry"), "{output}");
        drop(machine);
        all(DAY, "budgets: {day: {tokens: 1000}}", "budgets: {day: {tokens: 100000}}");
        all(BUDGET, "budgets: {turn: {tokens: 100}}", "budgets: {turn: {tokens: 100000}}");
    });
}

#[test]
fn requirements_hold_against_flags_and_settings() {
    in_namespace("lists::requirements_hold_against_flags_and_settings", || {
        all(BROKER, "require: {broker: true}", "");
        all(BROKER, "require: {sandbox: true}", "");
        all(RECORD, "require: {record: true}", "");
        all(WIDENED, "user_may: {widen_agents: false}", "");
        let machine = Machine::new();
        machine.set_policy("require: {record: true}");
        machine.write_with(&["--mode", "code"]);
        assert!(machine.has_written(), "a stored session is not refused");
    });
}

fn in_code(machine: &Machine) -> String {
    machine.write_with(&["--mode", "code"])
}

#[rustfmt::skip]
const PLACES: &[Attempt] = &[
    Attempt::new("a folder", nothing, in_code),
    Attempt::new("the folder above", |m| m.script("above.jsonl", &[&[(
        "write_file", r#"{"path": "work/out.txt", "content": "x"}"#)]]), |m| m.play("above.jsonl", &["--mode", "code", "--cwd", ".."])),
    Attempt::new("a link", |m| symlink(m.work(), m.path("link")).unwrap(),
        |m| m.write_with(&["--mode", "code", "--cwd", "../link"])),
    Attempt::new("--write-dir", |m| m.write("elsewhere/x", ""), |m| {
        let (folder, elsewhere) = (m.work(), m.path("elsewhere"));
        let folders = ["--cwd", elsewhere.to_str().unwrap(), "run", "--mode", "code", "--write-dir", folder.to_str().unwrap()];
        let script = format!("echo x > {}/out.txt", folder.display());
        m.run(&[&folders[..], &["--", "sh", "-c", &script]].concat())
    }),
    Attempt::new("shell.write in config.yaml", |m| m.write("elsewhere/x", ""), |m| {
        config_with(m, &format!("shell: {{write: ['{}']}}", m.work().display()));
        let script = format!("echo x > {}/out.txt", m.work().display());
        let elsewhere = m.path("elsewhere");
        m.run(&["--cwd", elsewhere.to_str().unwrap(), "run", "--mode", "code", "--", "sh", "-c", &script])
            + &m.write_with(&["--mode", "code"])
    }),
];

#[rustfmt::skip]
const REPOSITORIES: &[Attempt] = &[
    Attempt::new("a repository", |m| m.repository("work", "git@github.com:Acme/app.git"), in_code),
    Attempt::new("a repository within it", |m| {
        m.repository("work", "https://github.com/acme/app");
        m.repository("work/inner", "");
    }, |m| {
        let output = m.write_with(&["--mode", "code", "--cwd", "inner"]);
        let _ = fs::rename(m.path("work/inner/out.txt"), m.work().join("out.txt"));
        output
    }),
    Attempt::new("a repository without a configuration", |m| m.write("work/.git/HEAD", ""), in_code),
];

const ALLOWING: Attempt =
    Attempt::new("a rule that allows", |m| m.modes_file("permissions: {allow: [write_file]}"), in_code);

const WIDE_PLAN: Attempt = Attempt::new(
    "a user's mode instead of an allowed one",
    |m| m.modes_file("modes: [{id: plan, extends: code}]"),
    |m| m.write_with(&["--mode", "plan"]),
);

/// Without a kernel that supports the sandbox, no command starts.
#[test]
fn required_sandbox_overrides_the_users_setting() {
    require_sandbox();
    let home = tempfile::tempdir().unwrap();
    let (off, roots) = (shell(home.path(), Sandbox::Off), [home.path().to_owned()]);
    assert!(off.workspace(&roots).is_off() && off.program().is_some(), "the control");
    let required = off.requiring_sandbox(false);
    assert!(!required.workspace(&roots).is_off() && !required.brokers_commands());
    assert!(required.program().is_some());
    assert!(off.requiring_sandbox(true).brokers_commands());
    let user = User { home: Some(home.path().to_owned()), ..User::default() };
    let processes = Processes::new(env!("CARGO_BIN_EXE_modegate").into(), std::env::temp_dir());
    let support = Support::Linux { landlock: 0, seccomp: false };
    let without = Shell::new(processes, Some("/bin/sh".into()), user, Vec::new(), Sandbox::Off, support);
    assert!(without.program().is_some(), "the control");
    assert!(without.requiring_sandbox(false).program().is_none());
}

#[test]
fn places_and_rules_hold() {
    in_namespace("lists::places_and_rules_hold", || {
        let work = "places: [{paths: ['WORK'], max_mode: plan}]";
        all(PLACES, work, "");
        all(&PLACES[..1], work, "places: [{paths: ['WORK-2'], max_mode: plan}]");
        let acme = "places: [{repositories: ['github.com/acme/*'], max_mode: plan}]";
        all(REPOSITORIES, acme, "");
        all(&REPOSITORIES[..2], acme, "places: [{repositories: ['github.com/other/*'], max_mode: plan}]");
        ALLOWING.check("permissions: {deny: [write_file]}", "permissions: {deny: [edit_file]}");
        ALLOWING.check("permissions: {ask: [write_file]}", "permissions: {ask: [edit_file]}");
        ALLOWING.check("user_may: {allow_calls: false}\nmax_mode: ask", "max_mode: ask");
        WIDE_PLAN.check("allowed: {modes: [plan]}", "");
        WIDE_PLAN.check("user_may: {define_modes: false}", "user_may: {define_modes: true}");
        let wide = Attempt::new("a mode that is not allowed", nothing, in_code);
        wide.check("allowed: {modes: [plan, ask]}", "allowed: {modes: [plan, code]}");
    });
}

/// Without a hook that refuses, the file is written.
const HOOKED: &[Attempt] = &[
    Attempt::new("code", nothing, in_code),
    Attempt::new("a deterministic run", nothing, |machine| {
        machine.write_with(&["--deterministic", "--store", "s.db", "--mode", "code"])
    }),
    Attempt::new(
        "a hook of the user that lets it pass",
        |machine| {
            machine.write("home/.config/modegate/config.yaml", PASSING);
        },
        in_code,
    ),
];

const PASSING: &str = "hooks: [{id: mine, on: [call], kind: deny, command: ['/bin/true']}]";

#[test]
fn hooks_refuse_before_those_of_users() {
    in_namespace("lists::hooks_refuse_before_those_of_users", || {
        let refusing = "hooks: [{id: guard, on: [call], kind: deny, command: ['/bin/false']}]";
        all(HOOKED, refusing, PASSING);
    });
}

/// True if a session exists whose audit log is not signed.
fn has_unsigned(machine: &Machine) -> bool {
    let report = machine.run(&["audit", "last", "--json"]);
    report.contains("\"signatures\":{\"keys\":[],")
}

const UNSIGNED: &[Attempt] = &[
    Attempt { effect: has_unsigned, ..Attempt::new("no setting", nothing, in_code) },
    Attempt {
        effect: has_unsigned,
        ..Attempt::new(
            "a setting",
            |machine| {
                machine.write("home/.config/modegate/config.yaml", "evidence: {sign: false}");
            },
            in_code,
        )
    },
    Attempt {
        effect: has_unsigned,
        ..Attempt::new(
            "a file that is no key",
            |machine| {
                machine.write("home/.config/modegate/evidence-key.pem", "no key");
            },
            in_code,
        )
    },
];

#[test]
fn required_signatures_hold_against_settings() {
    in_namespace("lists::required_signatures_hold_against_settings", || {
        all(UNSIGNED, "require: {signatures: true}", "");
    });
}

#[test]
fn only_the_usual_store_is_used() {
    in_namespace("lists::only_the_usual_store_is_used", || {
        all(STORE, "user_may: {choose_store: false}", "");
        let machine = Machine::new();
        machine.set_account_home();
        machine.set_policy("user_may: {choose_store: false}");
        machine.write_with(&["--mode", "code"]);
        assert!(machine.has_written(), "the usual store is used");
    });
}
