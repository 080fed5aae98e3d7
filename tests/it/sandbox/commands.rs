//! The read-only sandbox: no escape case has an effect, and useful commands work.
//!
//! The cases are in `tests/escape`. Each runs in the sandbox, and without it as the control.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt;
use modegate::process::shell::Sandbox;
use modegate::process::{Command, Exit, Process, Processes, Streams, TerminalAccess};
use modegate::sandbox::Confinement;

use crate::sandbox::command_events::CommandEvents;
use crate::sandbox::controls::controls;
use crate::sandbox::fixture::{FixturePool, SECRET, SandboxFixture};
use crate::support::requirements::require_sandbox;
use crate::support::shell;
use crate::support::waiting::until;

/// Limit of a command of the corpus. No sandboxed command reaches it.
const LIMIT: Duration = Duration::from_secs(10);

/// Cases that run at the same time. They mostly wait.
pub(crate) const CONCURRENT_CASES: usize = 6;

pub(crate) struct EscapeCase {
    pub name: String,
    pub line: String,
}

/// Returns the cases of a file whose programs are installed, and the number of the other cases.
pub(crate) fn cases(text: &str) -> (Vec<EscapeCase>, usize) {
    let is_there = |program: &str| {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
    };
    let mut cases = Vec::new();
    let mut missing = 0;
    for part in text.split("\n== ").skip(1) {
        let (head, line) = part.split_once('\n').unwrap();
        let (name, needs) =
            head.split_once(" needs ").map_or((head, None), |(name, needs)| (name, Some(needs)));
        if needs.is_none_or(is_there) {
            cases.push(EscapeCase { name: name.into(), line: line.into() });
        } else {
            missing += 1;
        }
    }
    (cases, missing)
}

pub(crate) async fn finish(process: Process) -> (String, Option<Exit>) {
    finish_within(LIMIT, process).await
}

/// A command that runs longer has no exit, and ends.
pub(crate) async fn finish_within(limit: Duration, mut process: Process) -> (String, Option<Exit>) {
    let mut events = CommandEvents::default();
    let _ = tokio::time::timeout(limit, events.collect(&mut process, |_| false)).await;
    let mut output = events.text();
    // A killed supervisor reports no exit. Its loss is an effect, too.
    if events.confirmed.is_some_and(|confirmed| !confirmed || events.exit.is_none()) {
        output.push_str("\nEFFECT\n");
    }
    (output, events.exit)
}

/// Runs a line in a fixture as `shell_read_only` does.
async fn sandboxed(fixture: &SandboxFixture, line: &str) -> (String, Option<Exit>) {
    let shell = shell(&fixture.home(), Sandbox::Workspace);
    let restrictions = shell.read_only(&[fixture.work()]).expect("the kernel can sandbox it");
    finish(shell.start(&fixture.fill_in(line), &fixture.work(), &restrictions).await.unwrap()).await
}

/// Runs a line in a fixture as `shell` does by default.
async fn workspace_sandbox(fixture: &SandboxFixture, line: &str) -> String {
    let shell = shell(&fixture.home(), Sandbox::Workspace);
    let restrictions = shell.workspace(&[fixture.work()]);
    let line = fixture.fill_in(line);
    finish(shell.start(&line, &fixture.work(), &restrictions).await.unwrap()).await.0
}

/// Runs a line in a fixture without a sandbox.
pub(crate) async fn free(fixture: &SandboxFixture, line: &str) -> String {
    let temporary = fixture.work();
    let mut environment: Vec<_> = std::env::vars_os().collect();
    let home = fixture.home().into_os_string();
    environment.retain(|(name, _)| name != "HOME" && name != "TMPDIR");
    environment.push(("HOME".into(), home));
    environment.push(("DECOY_TOKEN".into(), SECRET.into()));
    let command = Command {
        program: "/bin/bash".into(),
        arguments: vec!["-c".into(), fixture.fill_in(line)],
        cwd: temporary,
        environment: Some(environment),
        settings: &[],
        confinement: Confinement::Off,
        streams: Streams::Merged,
        waits: false,
        own: Vec::new(),
        terminal: TerminalAccess::None,
    };
    let processes = Processes::new(PathBuf::from(env!("CARGO_BIN_EXE_modegate")), std::env::temp_dir());
    finish(processes.start(command).await.unwrap()).await.0
}

#[tokio::test]
async fn read_only_sandbox_blocks_every_escape_case() {
    require_sandbox();
    let (cases, missing) = cases(include_str!("../../escape/cases.txt"));
    let pool = FixturePool::new(|_| ());
    let run = async |case: EscapeCase| {
        let mut fixture = pool.take();
        let (text, _) = sandboxed(&fixture, &case.line).await;
        let effects = fixture.effects(&text);
        pool.put_back(fixture);
        (case, effects, text)
    };
    let controls = controls().await;
    let results: Vec<_> =
        futures_util::stream::iter(cases).map(run).buffer_unordered(CONCURRENT_CASES).collect().await;
    let mut escaped = Vec::new();
    let mut idle = Vec::new();
    let mut counting = 0;
    for (case, effects, text) in &results {
        if !effects.is_empty() {
            escaped.push(format!("{}: {effects:?}: {text}", case.name));
        }
        let control = &controls[&case.name];
        if control.effects.is_empty() {
            idle.push(format!("{}: {}", case.name, control.output.lines().next().unwrap_or_default()));
        } else {
            counting += 1;
        }
    }
    println!(
        "{counting} cases count, {missing} lack a program, {} did nothing without a sandbox:\n{}",
        idle.len(),
        idle.join("\n")
    );
    assert!(escaped.is_empty(), "{} got out:\n{}", escaped.len(), escaped.join("\n"));
    assert!(counting >= 100, "only {counting} cases count");
}

#[tokio::test]
async fn useful_commands_work_in_the_read_only_sandbox() {
    require_sandbox();
    let (cases, missing) = cases(include_str!("../../escape/useful.txt"));
    let mut failed = Vec::new();
    let number = cases.len();
    let pool = FixturePool::new(|_| ());
    for case in cases {
        let mut fixture = pool.take();
        let (text, exit) = sandboxed(&fixture, &case.line).await;
        let effects = fixture.effects(&text);
        pool.put_back(fixture);
        if !text.contains(&case.name) || exit != Some(Exit::Status(0)) || !effects.is_empty() {
            failed.push(format!("{} {exit:?} {effects:?}: {text}", case.line.trim_end()));
        }
    }
    println!("{number} lines work, {missing} lack a program");
    assert!(number >= 24, "only {number} lines were run");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Forbidden effects of a command in `code`, which may write in `work` and read what the user can.
const OUTSIDE_THE_WORKSPACE: &[&str] = &[
    "echo x > {outside}/kept.txt",
    "echo x >> {home}/.bashrc",
    "echo x > way_out/kept.txt",
    "mv a.txt {outside}/",
    "ln {home}/.bashrc hard && echo x >> hard",
    "rm {outside}/kept.txt",
    "mkdir {outside}/new",
    "{helper} truncate {outside}/kept.txt",
    "{helper} read-truncate {outside}/kept.txt",
    "kill {victim}",
    "kill -9 {victim}",
    "kill -STOP {victim}",
    "{helper} sigqueue {victim}",
    "{helper} owner {victim}; sleep 0.05",
    "{helper} prlimit {victim}",
    "{helper} prlimit-high {victim}",
    "{helper} setpriority {victim}",
    "{helper} group-priority {victim}",
    "{helper} scheduler {victim}",
    "{helper} sched-param {victim}",
    "{helper} sched-attr {victim}",
    "{helper} ioprio {victim}",
    "{helper} ptrace-attach {victim}",
    "{helper} vm-write {victim} {address}",
    "{helper} pidfd-getfd {victim}",
    "kill -9 $PPID",
    "prlimit --pid $PPID --nofile=0:0 && echo EFFECT",
    "{helper} mount sub",
];

#[tokio::test]
async fn workspace_sandbox_blocks_effects_outside() {
    require_sandbox();
    for line in OUTSIDE_THE_WORKSPACE {
        let mut fixture = SandboxFixture::new();
        let text = workspace_sandbox(&fixture, line).await;
        let effects_outside = |fixture: &mut SandboxFixture, text: &str| {
            let inside = format!("changed {}", fixture.work().display());
            let mut effects = fixture.effects(&text.replace(SECRET, ""));
            effects.retain(|effect| !effect.starts_with(&inside));
            effects
        };
        assert_eq!(effects_outside(&mut fixture, &text), Vec::<String>::new(), "{line}: {text}");
        let mut copy = SandboxFixture::new();
        let text = free(&copy, line).await;
        // A signal is sent immediately, but the other process shows its effect only after it has run.
        until(&format!("the control: {line}: {text}"), || !effects_outside(&mut copy, &text).is_empty())
            .await;
    }
    let fixture = SandboxFixture::new();
    for (line, says) in [
        ("{helper} own-ids", "own ids"),
        ("{helper} own-priority", "own priority"),
        ("{helper} core-limit", "failed"),
    ] {
        let text = workspace_sandbox(&fixture, line).await;
        assert!(text.contains(says), "{line}: {text}");
    }
    let mut fixture = SandboxFixture::new();
    workspace_sandbox(&fixture, "echo x > new.txt").await;
    assert!(!fixture.effects("").is_empty(), "it does write where it may");
}
