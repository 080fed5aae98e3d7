//! Headless runs for CI: limits, the JSON result, approved plans, and the example workflow.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::headless::run;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Writes a script of replies, each a list of lines. Returns the name of its model.
fn script(folder: &Path, replies: &[&[Value]]) -> String {
    let path = folder.join("script.jsonl");
    let stop = json!({ "stop": "done" });
    let lines = replies.iter().flat_map(|reply| reply.iter().chain([&stop])).map(Value::to_string);
    fs::write(&path, lines.collect::<Vec<_>>().join("\n")).unwrap();
    format!("scripted:{}", path.display())
}

fn call(id: &str, name: &str, arguments: &Value) -> Value {
    json!({ "tool_call": { "id": id, "name": name, "arguments": arguments } })
}

fn used(tokens: u64) -> Value {
    json!({ "usage": { "used": tokens, "size": 1000, "output": 10, "cache_read": 20 } })
}

/// Returns the result at the end of the output.
fn result(output: &str) -> Value {
    serde_json::from_str(output.lines().last().unwrap()).unwrap()
}

#[test]
fn each_limit_ends_the_run_with_its_own_code() {
    let dir = tempfile::tempdir().unwrap();
    let step = [used(60), call("1", "list_directory", &json!({}))];
    let model = script(dir.path(), &[&step, &step, &[json!({ "delay_ms": 1 }), json!({ "text": "done" })]]);
    let with = |limit: &[&str]| {
        let arguments = ["--store", "memory", "--model", &model, "--output", "json", "-p", "go"];
        let (code, output, errors) = run(dir.path(), &[&arguments[..], limit].concat());
        (code, result(&output), errors)
    };
    for (limit, expected, stop, error) in [
        (&["--max-steps", "2"][..], 4, "max_turn_requests", "the turn reached its limit of 2 model requests"),
        (
            &["--max-tokens", "100"],
            5,
            "max_turn_requests",
            "the run used 120 tokens, more than --max-tokens 100",
        ),
    ] {
        let (code, result, errors) = with(limit);
        assert_eq!((code, &result["stopReason"]), (expected, &json!(stop)), "{errors}");
        assert_eq!(&result["error"], error, "{limit:?}");
        assert_eq!(result["steps"], 2, "{result}");
        assert!(errors.contains(error), "{errors}");
    }
    let (code, whole, _) = with(&["--max-steps", "3", "--max-tokens", "120", "--timeout", "600"]);
    assert_eq!((code, &whole["error"], &whole["steps"]), (0, &Value::Null, &json!(3)), "the control");

    let model = script(dir.path(), &[&[json!({ "text": "on" }), json!({ "delay_ms": 600_000 })]]);
    let arguments = ["--store", "memory", "--model", &model, "--timeout", "0.2", "-p", "go"];
    let (code, _, errors) = run(dir.path(), &arguments);
    assert!(code == 6 && errors.contains("longer than --timeout 0.2"), "{code}: {errors}");
    for usage in [
        &["--max-steps", "0", "-p", "x"][..],
        &["--timeout", "0", "-p", "x"],
        &["--timeout", "soon", "-p", "x"],
        &["--max-tokens", "9"],
        &["--max-cost", "0", "-p", "x"],
        &["--max-cost", "1"],
    ] {
        assert_eq!(run(dir.path(), usage).0, 2, "{usage:?}");
    }
}

#[test]
fn cost_ends_the_run_with_code_9_and_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let paid = json!({ "usage": { "used": 60, "size": 1000, "cost": 0.3 } });
    let step = [paid, call("1", "list_directory", &json!({}))];
    let model = script(dir.path(), &[&step, &step, &[json!({ "text": "done" })]]);
    for (limit, expected, error, exceeded) in [
        (
            "0.5",
            9,
            json!("the run cost $0.6, more than --max-cost 0.5"),
            json!({ "period": "turn", "figure": "cost", "limit": 0.5, "spent": 0.6 }),
        ),
        ("0.7", 0, Value::Null, Value::Null),
    ] {
        let arguments = ["--store", "memory", "--model", &model, "--output", "json", "-p", "go"];
        let (code, output, errors) = run(dir.path(), &[&arguments[..], &["--max-cost", limit]].concat());
        let result = result(&output);
        assert_eq!((code, &result["error"]), (expected, &error), "{errors}");
        let budget = json!({ "tokens": 120, "costUsd": 0.6, "exceeded": exceeded });
        assert_eq!(result["budget"], budget);
        let is_warned = errors.contains("80 % of the budget of this turn are used ($0.60 of $0.70)");
        assert_eq!(is_warned, expected == 0, "{errors}");
    }
}

#[test]
fn result_reports_messages_tokens_and_changed_files() {
    let dir = tempfile::tempdir().unwrap();
    let write = call("1", "write_file", &json!({ "path": "new.txt", "content": "x\n" }));
    let replies: [&[Value]; 2] =
        [&[json!({ "text": "First I look." }), used(60), write], &[json!({ "text": "It is 42." }), used(90)]];
    let model = script(dir.path(), &replies);
    let with = |more: &[&str]| {
        let _ = fs::remove_file(dir.path().join("new.txt"));
        let arguments = ["--store", "memory", "--model", &model, "--mode", "code", "-p", "go"];
        let (code, output, errors) = run(dir.path(), &[&arguments[..], more].concat());
        assert_eq!(code, 0, "{errors}");
        output
    };
    assert_eq!(with(&[]), "First I look.\n\nIt is 42.\n");
    let result = result(&with(&["--output", "json"]));
    assert_eq!(
        (&result["text"], &result["lastMessage"]),
        (&json!("First I look.\n\nIt is 42."), &json!("It is 42."))
    );
    let usage =
        json!({ "inputTokens": 130, "cacheReadTokens": 40, "cacheWriteTokens": 0, "outputTokens": 20 });
    assert_eq!(result["usage"], usage);
    assert_eq!((&result["turns"], &result["steps"], &result["cost"]), (&json!(1), &json!(2), &Value::Null));
    assert_eq!((&result["changedFiles"], &result["plan"]), (&json!(["new.txt"]), &Value::Null));
    assert!(result["durationMs"].is_u64(), "{result}");
}

#[test]
fn plan_of_one_run_is_carried_out_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let exit = call("1", "switch_mode", &json!({ "mode": "code", "plan": "Write new.txt." }));
    let model = script(dir.path(), &[&[exit], &[]]);
    let store = dir.path().join("store.db").display().to_string();
    let run_with = |model: &str, more: &[&str]| {
        run(dir.path(), &[&["--store", &store, "--model", model, "--output", "json"], more].concat())
    };
    let (code, output, errors) = run_with(&model, &["--mode", "plan", "-p", "plan"]);
    assert_eq!((code, &result(&output)["plan"]), (0, &json!("Write new.txt.")), "{errors}");
    let plan = dir.path().join("plan.json");
    fs::write(&plan, output).unwrap();
    let plan = plan.to_str().unwrap();

    let write = call("1", "write_file", &json!({ "path": "new.txt", "content": "x\n" }));
    let model = script(dir.path(), &[&[write], &[json!({ "text": "Done." })]]);
    let (code, output, errors) =
        run_with(&model, &["--mode", "code", "--from-plan", plan, "-p", "Use tabs."]);
    assert_eq!((code, &result(&output)["changedFiles"]), (0, &json!(["new.txt"])), "{errors}");
    let session = result(&output)["sessionId"].as_str().unwrap().to_owned();
    let (_, shown, _) = run(dir.path(), &["--store", &store, "sessions", "export", &session]);
    for expected in ["The user approved the plan below.", "Write new.txt.", "Use tabs."] {
        assert!(shown.contains(expected), "{shown}");
    }
    let (code, _, errors) = run_with(&model, &["--from-plan", "missing.md"]);
    assert!(code == 2 && errors.contains("--from-plan missing.md"), "{errors}");
}

#[derive(serde::Deserialize)]
struct Workflow {
    jobs: BTreeMap<String, Job>,
}

#[derive(serde::Deserialize)]
struct Job {
    steps: Vec<WorkflowStep>,
}

#[derive(serde::Deserialize)]
struct WorkflowStep {
    run: Option<String>,
    uses: Option<String>,
    #[serde(default)]
    with: BTreeMap<String, Value>,
}

#[derive(serde::Deserialize)]
struct CompositeAction {
    inputs: BTreeMap<String, ActionInput>,
    runs: ActionRuns,
}

#[derive(serde::Deserialize)]
struct ActionInput {
    default: String,
}

#[derive(serde::Deserialize)]
struct ActionRuns {
    steps: Vec<ActionStep>,
}

#[derive(serde::Deserialize)]
struct ActionStep {
    run: String,
    env: BTreeMap<String, String>,
}

/// The folders of one job: a repository with two commits, and the runner's files.
struct RunnerFolders {
    dir: tempfile::TempDir,
    model: String,
}

impl RunnerFolders {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["repository", "runner", "release"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let write = call("1", "write_file", &json!({ "path": "new.txt", "content": "x\n" }));
        let model =
            script(&dir.path().join("runner"), &[&[write], &[json!({ "text": "This is the answer." })]]);
        let job = Self { dir, model };
        let git = "git -c user.name=a -c user.email=a@b.c commit -q -m one --allow-empty";
        job.run(&format!("git init -q && {git} && echo a > a && git add a && {git}"), &BTreeMap::new());
        job
    }

    /// Makes a release whose program is the tested binary, as `packaging/package.py` does.
    fn make_release(&self) {
        let system = if cfg!(target_os = "macos") { "apple-darwin" } else { "unknown-linux-musl" };
        let target = format!("{}-{system}", std::env::consts::ARCH);
        let command = format!(
            "mkdir -p ../binaries/{target}; printf '#!/bin/sh\\nexec {} \"$@\"\\n' > ../binaries/{target}/modegate; \
             chmod +x ../binaries/{target}/modegate; {ROOT}/packaging/package.py ../binaries ../release",
            env!("CARGO_BIN_EXE_modegate"),
        );
        self.run(&command, &BTreeMap::new());
    }

    /// Runs a step of a workflow, with the shell and the variables of GitHub's runner.
    fn run(&self, command: &str, variables: &BTreeMap<String, String>) {
        let (runner, release) = (self.dir.path().join("runner"), self.dir.path().join("release"));
        let status = Command::new("bash")
            .args(["-e", "-o", "pipefail", "-c", command])
            .current_dir(self.dir.path().join("repository"))
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .env("HOME", self.dir.path())
            .env("MODEGATE_MODEL", &self.model)
            .env("MODEGATE_DOWNLOAD", format!("file://{}", release.display()))
            .env("RUNNER_TEMP", &runner)
            .env("GITHUB_STEP_SUMMARY", runner.join("summary.md"))
            .env("GITHUB_OUTPUT", runner.join("output"))
            .env("GITHUB_ACTION_PATH", format!("{ROOT}/packaging/action"))
            .envs(variables)
            .status()
            .unwrap();
        assert!(status.success(), "{command}: {status}");
    }

    /// Runs the steps of the composite action with the inputs of a workflow.
    fn run_action(&self, with: &BTreeMap<String, Value>) {
        let text = include_str!("../../../packaging/action/action.yml");
        let action: CompositeAction = serde_saphyr::from_str(text).unwrap();
        for name in with.keys() {
            assert!(action.inputs.contains_key(name), "the action has no input {name}");
        }
        let input = |name: &str| match with.get(name) {
            None => action.inputs[name].default.clone(),
            Some(Value::String(text)) => text
                .replace("${{ github.event.pull_request.base.sha }}", "HEAD~1")
                .replace("${{ inputs.plan }}", "Write new.txt."),
            Some(value) => value.to_string(),
        };
        for step in &action.runs.steps {
            let value = |text: &String| {
                let name = text.strip_prefix("${{ inputs.").and_then(|rest| rest.strip_suffix(" }}"));
                input(name.unwrap_or_else(|| panic!("{text} is no input")))
            };
            let variables = step.env.iter().map(|(name, text)| (name.clone(), value(text))).collect();
            self.run(&step.run, &variables);
        }
    }

    fn read(&self, name: &str) -> String {
        let path = self.dir.path().join("runner").join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

#[test]
fn steps_of_the_example_workflow_run() {
    let text = include_str!("../../../docs/github-actions.yml");
    let workflow: Workflow = serde_saphyr::from_str(text).unwrap();
    for (name, job) in workflow.jobs {
        let runner = RunnerFolders::new();
        runner.make_release();
        let is_ours =
            |step: &&WorkflowStep| step.uses.as_ref().is_some_and(|it| it.contains("packaging/action"));
        assert_eq!(job.steps.iter().filter(is_ours).count(), 1, "{name} uses the action");
        for step in &job.steps {
            match &step.run {
                Some(command) => runner.run(command, &BTreeMap::new()),
                None if is_ours(&step) => runner.run_action(&step.with),
                None => {}
            }
        }
        assert!(runner.read("summary.md").contains("This is the answer."), "{name}");
        let changed = runner.dir.path().join("repository/new.txt").exists();
        assert_eq!(changed, name == "implement", "{name}");
        if changed {
            assert!(runner.read("change.patch").contains("+x"), "{name}");
        }
        assert!(runner.read("output").contains("sess_"), "{name}");
    }
}
