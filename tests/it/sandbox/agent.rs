//! The sandbox of external agents. Agents read and use the network, and change only their state.

use std::path::Path;

use futures_util::StreamExt;
use modegate::process::Exit;
use modegate::process::shell::Sandbox;
use rustix::io::Errno;

use crate::sandbox::commands::{CONCURRENT_CASES, EscapeCase, cases, finish, free};
use crate::sandbox::controls::{Control, controls};
use crate::sandbox::fixture::{FixturePool, SandboxFixture};
use crate::support::requirements::require_sandbox;
use crate::support::shell;

/// Runs a shell line in the fixture as an agent whose state folder is `{home}/.state`.
async fn sandboxed(fixture: &SandboxFixture, line: &str) -> (String, Option<Exit>) {
    let shell = shell(&fixture.home(), Sandbox::Workspace);
    let restrictions =
        shell.external_agent(&[fixture.work()], &["~/.state".into()]).expect("the kernel can sandbox it");
    finish(shell.start(&fixture.fill_in(line), &fixture.work(), &restrictions).await.unwrap()).await
}

/// Returns the forbidden effects of a line: changes outside of the state folder, and programs reached other
/// than by the network.
fn forbidden_effects(fixture: &mut SandboxFixture, text: &str) -> Vec<String> {
    forbidden(&fixture.effects(text), fixture.dir().path())
}

/// So that the sandbox does not make it, which would be an effect.
pub(crate) fn make_state_folder(fixture: &SandboxFixture) {
    std::fs::create_dir(fixture.home().join(".state")).unwrap();
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
    let pool = FixturePool::new(make_state_folder);
    let run = async |case: EscapeCase| {
        let mut fixture = pool.take();
        let (text, _) = sandboxed(&fixture, &case.line).await;
        let effects = forbidden_effects(&mut fixture, &text);
        pool.put_back(fixture);
        (case.name, effects, text)
    };
    let controls = controls().await;
    let results: Vec<_> =
        futures_util::stream::iter(cases).map(run).buffer_unordered(CONCURRENT_CASES).collect().await;
    let failed: Vec<_> = results
        .iter()
        .filter(|(_, effects, _)| !effects.is_empty())
        .map(|(name, effects, text)| format!("{name}: {effects:?}: {text}"))
        .collect();
    let counts = |control: &&Control| !forbidden(&control.effects, &control.folder).is_empty();
    let counting = controls.values().filter(counts).count();
    assert!(failed.is_empty(), "{} got out:\n{}", failed.len(), failed.join("\n"));
    assert!(counting >= 80, "only {counting} cases count");
}

/// System calls that fail in the sandbox, and the error of the filter. `None` if the filter does not refuse the call, or
/// kills the process. Without the sandbox, each prints EFFECT if the system allows the call.
const REFUSED: &[(&str, Option<Errno>)] = &[
    ("{helper} socket 1 1", Some(Errno::PERM)),
    ("{helper} socket 1 2", Some(Errno::PERM)),
    ("{helper} socket 16 3 9", Some(Errno::PERM)),
    ("{helper} unix-stream {outside}/docker.sock", Some(Errno::PERM)),
    ("{helper} unix-abstract {abstract}", Some(Errno::PERM)),
    ("{helper} pair-dgram {outside}/log.sock", Some(Errno::PERM)),
    ("{helper} io-uring", Some(Errno::NOSYS)),
    ("{helper} unshare 10000000", Some(Errno::PERM)),
    ("{helper} mount sub", Some(Errno::PERM)),
    ("{helper} userfaultfd", Some(Errno::PERM)),
    ("{helper} add-key", Some(Errno::PERM)),
    ("{helper} shmget", Some(Errno::PERM)),
    ("{helper} mq", Some(Errno::PERM)),
    ("{helper} ptrace-attach {victim}", Some(Errno::PERM)),
    ("{helper} pidfd-getfd {victim}", Some(Errno::PERM)),
    ("{helper} prlimit {victim}", Some(Errno::PERM)),
    ("{helper} setpriority {victim}", Some(Errno::PERM)),
    ("{helper} group-priority {victim}", Some(Errno::PERM)),
    ("{helper} scheduler {victim}", Some(Errno::PERM)),
    ("{helper} sched-param {victim}", Some(Errno::PERM)),
    ("{helper} sched-attr {victim}", Some(Errno::PERM)),
    ("{helper} ioprio {victim}", Some(Errno::PERM)),
    ("{helper} setuid", None),
    ("{helper} setresuid", None),
    ("{helper} setgroups", Some(Errno::PERM)),
    ("{helper} core-limit", None),
    ("{helper} fsxattr a.txt", Some(Errno::NOTTY)),
    ("{helper} nodump-flag a.txt", Some(Errno::NOTTY)),
    ("{helper} int80-chmod a.txt", None),
];

/// The second control shows which lines prove something about the filter: a sandboxed agent has no capabilities, so
/// calls that need one fail without the filter, too.
#[tokio::test]
async fn agent_sandbox_blocks_dangerous_system_calls() {
    require_sandbox();
    let is_effect = |text: &str| text.lines().any(|line| line == "EFFECT");
    let mut counting = 0;
    for (line, error) in REFUSED {
        let (fixture, copy, other_copy) =
            (SandboxFixture::new(), SandboxFixture::new(), SandboxFixture::new());
        let (text, _) = sandboxed(&fixture, line).await;
        assert!(!is_effect(&text), "{line}: {text}");
        let expected = error.map(|error| format!("failed: errno {}:", error.raw_os_error()));
        assert!(expected.is_none_or(|expected| text.starts_with(&expected)), "{line}: {error:?}: {text}");
        let is_control = is_effect(&free(&copy, line).await);
        let powerless = line.replacen("{helper}", "{helper} without-capabilities", 1);
        let is_second_control = is_effect(&free(&other_copy, &powerless).await);
        counting += usize::from(is_second_control);
        let meaning = match (is_control, is_second_control) {
            (_, true) => "counts",
            (true, false) => "is stopped by the lack of capabilities, too",
            (false, false) => "does nothing without a sandbox either",
        };
        println!("{line}: {meaning}");
    }
    // Some calls need a newer kernel, or are refused where the test runs.
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
