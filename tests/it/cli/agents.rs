//! `modegate agents` in the binary: `list`, `show`, `check`, and their errors.

use std::path::PathBuf;
use std::process::Command;

/// A home with a working directory in it.
struct Home(tempfile::TempDir);

impl Home {
    /// Creates a home and a project with these texts as their `modes.yaml`.
    fn with(own: &str, project: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (folder, text) in [(".config/modegate", own), ("work/.modegate", project)] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
            std::fs::write(dir.path().join(folder).join("modes.yaml"), text).unwrap();
        }
        std::fs::create_dir(dir.path().join("work/.git")).unwrap();
        Self(dir)
    }

    fn path(&self) -> PathBuf {
        self.0.path().canonicalize().unwrap()
    }

    /// Runs `modegate agents`. Returns the exit code, and stdout followed by stderr.
    fn agents(&self, arguments: &[&str]) -> (i32, String) {
        self.run(&[&["agents"], arguments].concat(), &[])
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args(arguments)
            .current_dir(self.path().join("work"))
            .env_clear()
            .env("HOME", self.path())
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), text)
    }
}

const OWN: &str = r#"
agents:
  - id: docs
    description: Writes documentation
    prompt: You write documentation.
    tools: { allow: ["read_*", write_file, todo] }
  - id: other
    description: Somebody else's
    harness: { command: sh, args: ["-c", "true"], env: { KEY: secret-value }, sandbox: { state_dirs: ["~/.other"] } }
"#;

const PROJECT: &str = "agents: [{id: theirs, description: \"T\\e[31m\", readonly: true}]";

#[test]
fn agents_commands_list_show_and_check_definitions() {
    let home = Home::with(OWN, "agents: [{id: theirs, description: Theirs, readonly: true}]");
    let listed = "\
general              built in            Does any task, with all the tools that the mode allows
explore              built in reads only Researches and changes nothing, in every mode
docs                 yours               Writes documentation
other                yours               Somebody else's
theirs               project  reads only This project's: Theirs
";
    assert_eq!(home.agents(&["list"]), (0, listed.into()));
    let shown = "\
# yours
id: \"docs\"
name: \"docs\"
description: \"Writes documentation\"
tools: {allow: [\"read_*\",\"write_file\",\"todo\"]}
prompt: |
  You write documentation.
";
    assert_eq!(home.agents(&["show", "docs"]), (0, shown.into()));
    for (mode, tools) in [
        ("plan", "# in plan, without asking: read_file, todo, read_memories\n"),
        (
            "ask",
            "# in ask, without asking: read_file, todo, read_memories\n# in ask, after asking: write_file\n",
        ),
        ("code", "# in code, without asking: read_file, todo, write_file, read_memories\n"),
    ] {
        assert_eq!(home.agents(&["show", "docs", "--mode", mode]), (0, format!("{shown}{tools}")));
    }
    let (code, text) = home.agents(&["show", "other"]);
    assert!(code == 0 && text.contains("  command: \"sh\"\n  args: [\"-c\",\"true\"]\n"), "{text}");
    assert!(text.contains("# env: KEY (values are not shown)") && !text.contains("secret-value"), "{text}");
    let (code, text) = home.agents(&["show", "nobody"]);
    assert!(code == 2 && text.contains("the agents are general, explore, docs, other, theirs"), "{text}");
    assert_eq!(home.agents(&["check"]), (0, "5 agents: fine\n".into()));
    assert!(!home.path().join(".other").exists(), "a check makes nothing");
    // `explain` also knows the tools that delegate.
    let (_, text) = home.run(&["modes", "explain", "plan", "delegate"], &[]);
    assert!(text.contains("delegate: allowed"), "{text}");
}

/// Each case has a valid definition (the control), an invalid one, and the message of `check`.
#[cfg(unix)]
#[test]
fn agents_check_reports_missing_requirements() {
    let script = "#!/bin/sh\n";
    for (fine, wrong, output) in [
        (
            "tools: {allow: [write_file]}",
            "tools: {allow: [write_flie]}",
            "x: there is no tool \"write_flie\"; did you mean write_file?",
        ),
        (
            "tools: {deny: ['mcp__a__*']}",
            "tools: {deny: [shel]}",
            "x: there is no tool \"shel\"; did you mean shell?",
        ),
        ("model: offline", "model: openai/any", "x: its model: "),
        (
            "harness: {command: sh}",
            "harness: {command: no-such-program}",
            "x: its program does not exist: \"no-such-program\"",
        ),
        (
            "harness: {command: ./agent}",
            "harness: {command: ./other}",
            "x: its program does not exist: \"./other\"",
        ),
        (
            "harness: {command: ./agent}",
            "harness: {command: ./text}",
            "x: its program does not exist: \"./text\"",
        ),
        (
            "harness: {command: sh, env: {A: '${THERE}'}}",
            "harness: {command: sh, env: {A: '${GONE}'}}",
            "x: the environment variable GONE is not set",
        ),
        (
            "harness: {command: sh, sandbox: {state_dirs: ['~/.x']}}",
            "harness: {command: sh, sandbox: {state_dirs: ['~/work/x']}}",
            "x: its harness: its state folder",
        ),
        (
            "harness: {command: sh, sandbox: {state_dirs: ['/var/x']}}",
            "harness: {command: sh, sandbox: {state_dirs: ['~/']}}",
            "contains the home folder",
        ),
        ("prompt: x", "prompts: x", "unknown key `prompts`"),
    ] {
        for (text, expected) in [(fine, None), (wrong, Some(output))] {
            let home = Home::with(&format!("agents: [{{id: x, {text}}}]"), "");
            let work = home.path().join("work");
            for name in ["agent", "text"] {
                std::fs::write(work.join(name), script).unwrap();
            }
            make_program(&work.join("agent"));
            let (code, output) = home.run(&["agents", "check"], &[("THERE", "secret-value")]);
            match expected {
                None => assert_eq!((code, output.as_str()), (0, "3 agents: fine\n"), "{text}"),
                Some(expected) => assert!(code == 1 && output.contains(expected), "{text}: {output}"),
            }
            assert!(!output.contains("secret-value"));
        }
    }
}

#[cfg(unix)]
fn make_program(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The agent's definition has no `sandbox`.
#[test]
fn agents_show_names_modes_denied_without_sandbox() {
    for (sandbox, is_shown) in [("", true), (", sandbox: {state_dirs: ['~/.x']}", false)] {
        let home = Home::with(&format!("agents: [{{id: x, harness: {{command: sh{sandbox}}}}}]"), "");
        let (code, text) = home.agents(&["show", "x", "--mode", "plan"]);
        assert!(code == 0 && text.contains("# in plan: its tools are its own"), "{text}");
        assert_eq!(text.contains("without `sandbox` it cannot run in read-only modes"), is_shown, "{text}");
    }
}

/// The definition of an unknown agent may be in a file with an error.
#[test]
fn unknown_agent_error_includes_file_errors() {
    for (own, expected) in [
        ("agents: [{id: docs, promt: x}]", "modes.yaml:1:21: unknown key `promt`"),
        ("agents: [{id: docs}]", "--agent: unknown agent \"gone\": the agents are general, explore, docs"),
    ] {
        let home = Home::with(own, "");
        let (code, text) = home.run(&["--agent", "gone", "-p", "x"], &[]);
        assert!(code == 2 && text.contains(expected), "{own}: {text}");
    }
}

#[test]
fn project_agents_beyond_limits_reject_the_whole_file() {
    for (project, text) in [
        (PROJECT, "`name` and `description` are one line of text"),
        ("agents: [{id: theirs, model: openai/evil}]", "may not name a `model`"),
        ("agents: [{id: theirs, harness: {command: sh}}]", "may not name a `harness`"),
        ("agents: [{id: explore, prompt: x}]", "is already an agent"),
        ("agents: [{id: fine}, {id: docs}]", "is already an agent"),
    ] {
        let home = Home::with(OWN, project);
        let (code, checked) = home.agents(&["check"]);
        assert!(code == 1 && checked.contains(text), "{project}: {checked}");
        let (code, listed) = home.agents(&["list"]);
        assert!(
            code == 1 && !listed.contains("theirs  ") && !listed.contains("fine  "),
            "{project}: {listed}"
        );
        assert!(listed.contains("docs                 yours"), "{listed}");
        assert!(!checked.contains('\u{1b}') && !listed.contains('\u{1b}'), "{project}");
        // The control: trusted project files count as the user's own.
        let (code, _) = home.run(&["trust"], &[]);
        assert_eq!(code == 0, project != PROJECT, "{project}");
    }
}
