//! The sandbox of external agents. Agents read and use the network, and change only their state.

use std::path::Path;

use futures_util::StreamExt;
use modegate::process::Exit;
use modegate::process::shell::Sandbox;

use crate::sandbox::commands::{CONCURRENT_CASES, EscapeCase, cases, finish, free};
use crate::sandbox::controls::{Control, controls};
use crate::sandbox::fixture::SandboxFixture;
use crate::support::requirements::require_sandbox;
use crate::support::shell;

/// Runs a shell line in the fixture as an agent whose state folder is `{home}/.state`.
async fn sandboxed(fixture: &SandboxFixture, line: &str) -> (String, Option<Exit>) {
    let shell = shell(&fixture.home(), Sandbox::Workspace);
    let restrictions =
        shell.external_agent(&[fixture.work()], &["~/.state".into()]).expect("the kernel can hold it");
    finish(shell.start(&fixture.fill_in(line), &fixture.work(), &restrictions).await.unwrap()).await
}

/// Returns the forbidden effects of a line: changes outside of the state folder, and programs reached other
/// than by the network.
fn forbidden_effects(fixture: &mut SandboxFixture, text: &str) -> Vec<String> {
    forbidden(&fixture.effects(text), fixture.dir().path())
}

fn forbidden(effects: &[String], folder: &Path) -> Vec<String> {
    let home = format!("changed {}", folder.join("home").display());
    let state = format!("{home}/.state");
    let allowed = ["reached tcp", "reached udp", "had an effect", "read a secret", &home];
    let is_forbidden = |effect: &&String| !allowed.contains(&effect.as_str()) && !effect.starts_with(&state);
    effects.iter().filter(is_forbidden).cloned().collect()
}

#[tokio::test]
async fn agent_sandbox_blocks_every_escape_case() {
    require_sandbox();
    let (cases, _) = cases(include_str!("../../escape/cases.txt"));
    let run = |case: EscapeCase| async move {
        let mut fixture = SandboxFixture::new();
        let (text, _) = sandboxed(&fixture, &case.line).await;
        let effects = forbidden_effects(&mut fixture, &text);
        (fixture.dir(), case.name, effects, text)
    };
    let controls = controls().await;
    let results: Vec<_> =
        futures_util::stream::iter(cases).map(run).buffer_unordered(CONCURRENT_CASES).collect().await;
    let failed: Vec<_> = results
        .iter()
        .filter(|(_, _, effects, _)| !effects.is_empty())
        .map(|(_, name, effects, text)| format!("{name}: {effects:?}: {text}"))
        .collect();
    let counts = |control: &&Control| !forbidden(&control.effects, &control.folder).is_empty();
    let counting = controls.values().filter(counts).count();
    assert!(failed.is_empty(), "{} got out:\n{}", failed.len(), failed.join("\n"));
    assert!(counting >= 80, "only {counting} cases count");
}

/// System calls that fail in the sandbox. Without the sandbox, each prints EFFECT if the system allows the
/// call.
const REFUSED: &[&str] = &[
    "{helper} socket 1 1",
    "{helper} socket 1 2",
    "{helper} socket 16 3 9",
    "{helper} unix-stream {outside}/docker.sock",
    "{helper} unix-abstract {abstract}",
    "{helper} pair-dgram {outside}/log.sock",
    "{helper} io-uring",
    "{helper} unshare 10000000",
    "{helper} mount sub",
    "{helper} userfaultfd",
    "{helper} add-key",
    "{helper} shmget",
    "{helper} mq",
    "{helper} ptrace-attach {victim}",
    "{helper} pidfd-getfd {victim}",
    "{helper} prlimit {victim}",
    "{helper} setpriority {victim}",
    "{helper} group-priority {victim}",
    "{helper} scheduler {victim}",
    "{helper} sched-param {victim}",
    "{helper} sched-attr {victim}",
    "{helper} ioprio {victim}",
    "{helper} setuid",
    "{helper} setresuid",
    "{helper} setgroups",
    "{helper} core-limit",
    "{helper} fsxattr a.txt",
    "{helper} nodump-flag a.txt",
    "{helper} int80-chmod a.txt",
];

#[tokio::test]
async fn agent_sandbox_blocks_dangerous_system_calls() {
    require_sandbox();
    let is_effect = |text: &str| text.lines().any(|line| line == "EFFECT");
    let mut counting = 0;
    for line in REFUSED {
        let (fixture, copy) = (SandboxFixture::new(), SandboxFixture::new());
        let (text, _) = sandboxed(&fixture, line).await;
        assert!(!is_effect(&text), "{line}: {text}");
        let is_control = is_effect(&free(&copy, line).await);
        counting += usize::from(is_control);
        println!("{line}: {}", if is_control { "counts" } else { "does nothing without a hold either" });
    }
    // Some calls need a privilege or a newer kernel.
    assert!(counting >= 10, "only {counting} count");
}

/// Ordinary work of an agent. Each line exits with 0.
const USEFUL: &[&str] = &[
    "cat {home}/.ssh/id_ed25519 a.txt /etc/passwd >/dev/null",
    "echo x > {home}/.state/x && mkdir {home}/.state/d && mv {home}/.state/x {home}/.state/d/y",
    "echo x > $TMPDIR/x && test $TMPDIR = $TMP -a $TMPDIR = $TEMP -a $TMPDIR = $TMUX_TMPDIR && rm $TMPDIR/x",
    "chmod 700 {home}/.state && touch {home}/.state/t && touch {home}/.state/t",
    "exec 3<>/dev/tcp/127.0.0.1/{tcp} && echo x >&3",
    "echo x > /dev/udp/127.0.0.1/{udp}",
    "{helper} socket 2 1 && {helper} socket 10 2 && {helper} socket 16 3 0",
    "echo x > /dev/null; sleep 0.01 & kill $!",
    "{helper} own-ids && {helper} own-priority",
    "git status --short && git log -1 && git diff",
    "(echo a; echo b) | sort | grep -c . && bash -c 'ulimit -c 0; exec true'",
];

#[tokio::test]
async fn agent_sandbox_allows_reading_network_and_state() {
    require_sandbox();
    for line in USEFUL {
        let mut fixture = SandboxFixture::new();
        let (text, exit) = sandboxed(&fixture, line).await;
        assert_eq!(exit, Some(Exit::Status(0)), "{line}: {text}");
        assert_eq!(forbidden_effects(&mut fixture, &text), Vec::<String>::new(), "{line}: {text}");
    }
}

#[tokio::test]
async fn agent_sandbox_fakes_permission_changes() {
    use std::os::unix::fs::PermissionsExt;
    require_sandbox();
    let fixture = SandboxFixture::new();
    let line = "chmod 600 a.txt && touch -d 2001-01-01 {home}/.state && echo told";
    let mode = || fixture.work().join("a.txt").metadata().unwrap().permissions().mode() & 0o777;
    let before = mode();
    assert!(sandboxed(&fixture, line).await.0.contains("told"));
    assert_eq!(mode(), before);
    free(&fixture, "chmod 600 a.txt").await;
    assert_eq!(mode(), 0o600, "the control");
}
