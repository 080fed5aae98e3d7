//! The output of `modegate policy` agrees with the limits that apply.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::machine::{Machine, in_namespace};
use crate::support::CompiledSchema;

const POLICY: &str = "
max_mode: ask
places: [{paths: ['WORK'], max_mode: plan}, {paths: [/nowhere], max_mode: plan}]
allowed:
  modes: [plan, ask, code]
  agents: [general]
  programs: [/bin/true]
  models: ['anthropic/*']
  hosts: ['*.corp.example:443']
  servers: [{name: far, url: 'https://mcp.corp.example/x'}]
permissions: {deny: ['read_file(**/.env)'], ask: [fetch]}
require: {record: true}
user_may: {accept_all: false}
";

fn json_of(machine: &Machine, arguments: &[&str]) -> Value {
    parsed(machine, &[&["policy"], arguments].concat())
}

fn parsed(machine: &Machine, arguments: &[&str]) -> Value {
    let output = machine.run(arguments);
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output}"))
}

fn check_schema(machine: &Machine, name: &str, output: &Value) {
    let schema = CompiledSchema::new(parsed(machine, &["schema", &format!("policy-{name}")]));
    if let Err(errors) = schema.validate(output) {
        panic!("policy {name} does not fit its schema: {errors}\n{output}");
    }
}

#[test]
fn shown_keys_are_those_that_count_here() {
    in_namespace("shown::shown_keys_are_those_that_count_here", || {
        let machine = Machine::new();
        let absent = json_of(&machine, &["show", "--json"]);
        check_schema(&machine, "show", &absent);
        assert_eq!((&absent["state"], &absent["keys"]), (&json!("absent"), &json!([])));
        machine.set_policy(POLICY);
        let shown = json_of(&machine, &["show", "--json"]);
        check_schema(&machine, "show", &shown);
        let keys: Vec<String> = shown["keys"]
            .as_array()
            .unwrap()
            .iter()
            .map(|key| format!("{} {}", key["key"].as_str().unwrap(), key["value"].as_str().unwrap()))
            .collect();
        assert_eq!(
            keys,
            [
                "max_mode ask",
                "places.max_mode plan",
                "allowed.modes plan, ask, code",
                "allowed.agents general",
                "allowed.programs /bin/true",
                "allowed.models anthropic/*",
                "allowed.hosts *.corp.example:443",
                "allowed.servers far",
                "permissions.deny read_file(**/.env)",
                "permissions.ask fetch",
                "require.record true",
                "user_may.accept_all false",
            ]
        );
        let text = machine.run(&["policy", "show"]);
        assert!(text.contains("allowed.models") && text.contains("(everywhere)"), "{text}");
        machine.set_policy("max_mod: plan");
        let broken = json_of(&machine, &["show", "--json"]);
        check_schema(&machine, "show", &broken);
        assert_eq!(broken["state"], "unusable");
        let text = machine.run(&["policy", "show"]);
        assert!(text.contains("does not believe it"), "{text}");
    });
}

#[test]
fn explanation_names_the_key_that_decides() {
    in_namespace("shown::explanation_names_the_key_that_decides", || {
        let machine = Machine::new();
        machine.set_policy(POLICY);
        for (act, outcome, key) in [
            ("mode plan", "allowed", Value::Null),
            ("mode code", "limited", json!("max_mode")),
            ("mode docs", "refused", json!("allowed.modes")),
            ("model anthropic/claude", "allowed", Value::Null),
            ("model openai/gpt", "refused", json!("allowed.models")),
            ("model offline", "allowed", Value::Null),
            ("agent general", "allowed", Value::Null),
            ("agent explore", "refused", json!("allowed.agents")),
            ("program -- sh -c x", "refused", json!("allowed.programs")),
            ("host https://a.corp.example", "allowed", Value::Null),
            ("host http://a.corp.example", "refused", json!("allowed.hosts")),
            ("host https://evil.example", "refused", json!("allowed.hosts")),
            ("server far --url https://mcp.corp.example/x", "allowed", Value::Null),
            ("server far -- npx far", "refused", json!("allowed.servers")),
            ("call read_file a.txt", "allowed", Value::Null),
            ("call read_file .env", "refused", json!("permissions.deny")),
            ("call fetch https://a.example", "limited", json!("permissions.ask")),
            ("call write_file a.txt", "refused", json!("max_mode")),
        ] {
            let words: Vec<&str> = act.split(' ').collect();
            let decision = json_of(&machine, &[&["explain", "--json"], &words[..]].concat());
            check_schema(&machine, "explain", &decision);
            assert_eq!(
                (&decision["outcome"], &decision["key"]),
                (&json!(outcome), &key),
                "{act}: {decision}"
            );
        }
        machine.set_policy("");
        let decision = json_of(&machine, &["explain", "--json", "call", "write_file", "a.txt"]);
        assert_eq!(decision["outcome"], "allowed", "the control");
    });
}

/// The messages of a session name the policy as the reason.
#[test]
fn messages_name_the_policy() {
    in_namespace("shown::messages_name_the_policy", || {
        let machine = Machine::new();
        machine.set_policy("max_mode: plan\npermissions: {deny: [read_memories]}");
        let output = machine.write_with(&["--mode", "code"]);
        assert!(output.contains("limited to plan by your organisation's policy"), "{output}");
        assert!(output.contains("not available under your organisation's policy (plan mode)"), "{output}");
        let mode = machine.write_with(&["--mode", "code", "-p", "/mode"]);
        assert!(mode.contains("because your organisation's policy says so"), "{mode}");
        machine.script("rule.jsonl", &[&[("read_memories", "{}")]]);
        let output = machine.play("rule.jsonl", &["--mode", "plan"]);
        assert!(output.contains("of your organisation's policy"), "{output}");
        machine.set_policy("allowed: {modes: [plan], agents: [general], models: ['anthropic/*']}");
        for (options, expected) in [
            (
                &["--mode", "code", "-p", "x"][..],
                "--mode: code mode is not available, by your organisation's policy",
            ),
            (
                &["--agent", "explore", "-p", "x"],
                "--agent: the agent explore is not available, by your organisation's",
            ),
            (&["--model", "openai/x", "-p", "x"], "by your organisation's policy: it allows anthropic/*"),
        ] {
            let output = machine.run(options);
            assert!(output.contains(expected), "{options:?}: {output}");
        }
    });
}

/// True if `modegate policy check` ends with 0.
fn is_checked(machine: &Machine) -> bool {
    machine.command(&["policy", "check"]).output().unwrap().status.success()
}

#[test]
fn check_fails_for_what_denies_nothing_and_for_what_users_cannot_read() {
    in_namespace("shown::check_fails_for_what_denies_nothing_and_for_what_users_cannot_read", || {
        let machine = Machine::new();
        for (policy, is_right) in [
            ("permissions: {deny: ['shell(git push *)']}", true),
            ("permissions: {deny: ['bash(git push *)']}", false),
        ] {
            machine.set_policy(policy);
            assert_eq!(is_checked(&machine), is_right, "{policy}");
        }
        machine.set_policy("max_mode: ask");
        assert!(is_checked(&machine), "the control");
        for (path, mode) in [("/etc/modegate/policy.yaml", 0o600), ("/etc/modegate", 0o700)] {
            let before = fs::metadata(path).unwrap().permissions();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            let output = machine.run(&["policy", "check"]);
            assert!(!is_checked(&machine) && output.contains("others may not read it"), "{path}: {output}");
            fs::set_permissions(path, before).unwrap();
        }
    });
}

#[test]
fn hints_and_rules_do_not_promise_what_the_policy_takes() {
    in_namespace("shown::hints_and_rules_do_not_promise_what_the_policy_takes", || {
        let machine = Machine::new();
        for (policy, is_limited) in [("max_mode: ask\nuser_may: {allow_calls: false}", true), ("", false)] {
            machine.set_policy(policy);
            let mode = if is_limited { "code" } else { "ask" };
            let output = machine.write_with(&["--mode", mode]);
            assert_eq!(output.contains("use --mode code"), !is_limited, "{output}");
            assert_eq!(output.contains("the session is limited to ask mode"), is_limited, "{output}");
            let output = machine.run(&["permissions", "allow", "edit_file"]);
            assert_eq!(
                output.contains("without effect by your organisation's policy"),
                is_limited,
                "{output}"
            );
        }
    });
}
