//! Attacks on the broker. Without a policy that allows changes, nothing changes. With one, nothing outside of
//! the workspace changes. `tests/escape/attacks.c` has the system calls.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use modegate::process::sandbox_paths::User;
use modegate::process::shell::{AgentFolders, AgentNetwork, Sandbox, Shell};
use modegate::process::{Exit, Processes};
use modegate::sandbox::BrokerPolicy;

use crate::sandbox::broker::{brokered, forbidden_effects};
use crate::sandbox::commands::{CONCURRENT_CASES, finish, free};
use crate::sandbox::fixture::SandboxFixture;
use crate::support::requirements::{python, require_sandbox};
use crate::support::waiting::until_exists;

/// Lines that change files outside of the workspace if they run without a sandbox.
pub(crate) const ATTACKS: &[&str] = &[
    "{attacks} folder {outside}",
    "{attacks} path-folder {outside}",
    "{attacks} cwd {outside}",
    "{attacks} parent {outside}",
    "{attacks} link {outside}",
    "{attacks} link-slashes {outside}",
    "{attacks} descriptors {outside}",
    "{attacks} magic {outside}",
    "{attacks} replaced {outside}",
    "{attacks} allowing-filter {outside}",
    "{attacks} dumpable {outside}",
    "{attacks} vfork {outside}",
    "{attacks} thread {outside}",
    "{attacks} high-flags {outside}",
    "mv {outside}/kept.txt stolen",
    "mv a.txt {outside}/moved",
    "mv -T ../work ../moved",
    "mkdir x && mv -T x ../outside/empty_folder",
    "{helper} exchange a.txt {outside}/kept.txt",
    "{helper} rename a.txt file_out/../kept.txt; {helper} rename a.txt way_out/kept.txt",
    "ln {outside}/kept.txt hard; echo x >> hard",
    "ln -L file_out hard && echo x >> hard",
    "rmdir way_out/cron/; rmdir way_out/at",
    "{helper} tmpfile-link {outside}/unnamed",
    "cd {outside} && {helper} tmpfile-link unnamed",
    "cd {outside} && ln -s $OLDPWD/a.txt l && rm kept.txt",
    "exec 3<{outside}/kept.txt; ln -s /proc/self/fd/3 l; echo x > l; echo x > /dev/fd/3; echo x > /proc/$$/fd/3",
    "exec 3<{outside}; echo x > /proc/self/fd/3/new; echo x > /dev/fd/3/new; mkdir /proc/$$/fd/3/folder",
    "ln -s ../outside/dangling d; echo x > d; ln -s {outside}/dangling2 d2; cp a.txt d2",
    "ln -s sub loop1; ln -s loop1/../../outside out2; echo x > out2/new; touch out2/kept.txt",
    "touch -h -d 2001-01-01 {outside}/kept.txt; touch -d 2001-01-01 file_out; chmod 600 file_out",
    "chmod -R 700 ../outside; chmod 700 way_out/.; chmod 700 way_out/../outside",
    "{attacks} race-path {outside} 300",
    "{attacks} race-how {outside} 300",
    "{attacks} race-link {outside} 600",
    "{attacks} race-exchange {outside} 600",
    "mkdir -p {home}/.state; {attacks} race-state {outside} 300 {home}/.state/file",
];

/// Runs of an attack without a sandbox until it has an effect.
const CONTROL_TRIES: usize = 10;

/// Attacks without a control, because they concern the broker itself, or because their effect depends on the
/// system.
const UNCONTROLLED: &[&str] = &[
    "for number in /proc/$PPID/fd/*; do echo x > $number; echo x > $number/new; done",
    "echo x > /proc/$PPID/cwd/new; echo x > /proc/$PPID/root{outside}/new; mkdir /proc/$PPID/cwd/{folder,sub/x}",
    "echo x > /proc/self/root{outside}/new; ln -s /proc/self/root r; echo x > r{outside}/new; touch r{outside}/kept.txt",
    "echo x > /proc/$PPID/mem; echo x > /proc/$PPID/task/$PPID/mem; echo 1000 > /proc/$PPID/oom_score_adj",
    "{attacks} suspending-filter {outside}",
    "{attacks} tracing-filter {outside}",
    "{attacks} x32 {outside}",
];

fn program() -> &'static Path {
    static PROGRAM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = PROGRAM.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("attacks");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/escape/attacks.c");
        let options = ["-O1", "-w", "-pthread"];
        let built = Command::new("cc").args(options).arg(source).arg("-o").arg(&program).status();
        assert!(built.unwrap().success(), "tests/escape/attacks.c");
        (dir, program)
    });
    program
}

pub(crate) fn line(text: &str) -> String {
    text.replace("{attacks}", &program().display().to_string())
}

/// Returns the effects of a line under each policy.
async fn effects(text: &str, dirs: &mut Vec<std::rc::Rc<tempfile::TempDir>>) -> Vec<String> {
    let mut all = Vec::new();
    for policy in [BrokerPolicy::Nothing, BrokerPolicy::Roots] {
        let mut fixture = SandboxFixture::new();
        let (output, _) = brokered(&fixture, &line(text), policy).await;
        let effects = forbidden_effects(&mut fixture, &output, policy);
        if !effects.is_empty() {
            all.push(format!("{text} ({policy:?}): {effects:?}: {output}"));
        }
        dirs.push(fixture.dir());
    }
    all
}

#[tokio::test]
async fn attacks_change_nothing_outside_of_the_workspace() {
    require_sandbox();
    let attack = |(text, is_controlled): (&'static str, bool)| async move {
        let mut dirs = Vec::new();
        let mut failures = effects(text, &mut dirs).await;
        if is_controlled {
            // An attack that is a race can lose each time on a busy machine.
            let mut failure = None;
            for _ in 0..CONTROL_TRIES {
                let mut fixture = SandboxFixture::new();
                let output = free(&fixture, &line(text)).await;
                let outside = forbidden_effects(&mut fixture, &output, BrokerPolicy::Roots);
                dirs.push(fixture.dir());
                failure =
                    outside.is_empty().then(|| format!("{text}: has no effect without a sandbox: {output}"));
                if failure.is_none() {
                    break;
                }
            }
            failures.extend(failure);
        }
        (failures, dirs)
    };
    let controlled = ATTACKS.iter().map(|text| (*text, true));
    let all = controlled.chain(UNCONTROLLED.iter().map(|text| (*text, false)));
    let results: Vec<_> =
        futures_util::stream::iter(all).map(attack).buffer_unordered(CONCURRENT_CASES).collect().await;
    let failures: Vec<_> = results.into_iter().flat_map(|(failures, _)| failures).collect();
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

/// A file that had no name for a moment gets no new name outside of the workspace. A later file with the same
/// inode number gets none, either.
#[tokio::test]
async fn file_that_lost_its_name_and_moved_out_gets_no_link() {
    require_sandbox();
    let fixture = SandboxFixture::new();
    let (work, outside) = (fixture.work(), fixture.work().join("../outside"));
    let move_out = async {
        until_exists(&work.join("ready")).await;
        fs::rename(work.join("named"), outside.join("named")).unwrap();
        fs::write(outside.join("done"), "").unwrap();
    };
    let text = line("{attacks} moved {outside}");
    let attack = brokered(&fixture, &text, BrokerPolicy::Roots);
    let ((output, _), ()) = tokio::join!(attack, move_out);
    let meta = outside.join("named").metadata().unwrap();
    assert_eq!((meta.nlink(), meta.len()), (1, 0), "{output}");
}

#[tokio::test]
async fn brokered_command_sets_no_set_id_bits_and_makes_no_devices() {
    require_sandbox();
    let fixture = SandboxFixture::new();
    let special = |fixture: &SandboxFixture| {
        let mut names: Vec<_> = fs::read_dir(fixture.work()).unwrap().map(|entry| entry.unwrap()).collect();
        names.retain(|entry| {
            let meta = entry.metadata().unwrap();
            let is_ordinary = meta.is_file() || meta.is_dir() || meta.is_symlink();
            !is_ordinary || meta.mode() & 0o6000 != 0
        });
        names.into_iter().map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let (output, _) = brokered(&fixture, &line("{attacks} set-id {outside}"), BrokerPolicy::Roots).await;
    assert_eq!(special(&fixture), Vec::<String>::new(), "{output}");
    assert!(fixture.work().join("set1").exists(), "{output}");
    let control = SandboxFixture::new();
    free(&control, &line("{attacks} set-id {outside}")).await;
    assert!(special(&control).len() >= 4, "{:?}", special(&control));
}

/// The broker works while many writers wait for readers of named pipes.
#[tokio::test]
async fn waiting_writers_do_not_stop_the_broker() {
    require_sandbox();
    let fixture = SandboxFixture::new();
    let text = "for n in 1 2 3 4 5 6 7 8 9 10; do mkfifo p$n; (echo x > p$n) & done; mkdir made && echo done; kill $(jobs -p)";
    let start = Instant::now();
    let (output, _) = brokered(&fixture, text, BrokerPolicy::Roots).await;
    assert!(output.contains("done") && start.elapsed() < Duration::from_secs(5), "{output}");
}

struct Protected {
    dir: tempfile::TempDir,
    settings: PathBuf,
}

impl Protected {
    /// A home folder as the workspace, with or without Modegate's settings.
    fn new(exists: bool, is_linked: bool) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let home = dir.path().join("home");
        fs::create_dir_all(home.join("dotfiles/config/other")).unwrap();
        if is_linked {
            symlink("dotfiles/config", home.join(".config")).unwrap();
        } else {
            fs::rename(home.join("dotfiles/config"), home.join(".config")).unwrap();
        }
        let settings = home.join(".config/modegate");
        if exists {
            fs::create_dir(&settings).unwrap();
            fs::write(settings.join("config.yaml"), "settings\n").unwrap();
        }
        Self { dir, settings }
    }

    async fn run(&self, line: &str) -> String {
        let home = self.dir.path().join("home");
        let user = User {
            home: Some(home.clone()),
            temporary: std::env::temp_dir(),
            own: vec![self.settings.clone()],
            ..User::default()
        };
        let processes = Processes::new(env!("CARGO_BIN_EXE_modegate").into(), std::env::temp_dir());
        let path = vec![("PATH".into(), std::env::var_os("PATH").unwrap())];
        let support = modegate::sandbox::support();
        let shell = Shell::new(processes, Some("/bin/bash".into()), user, path, Sandbox::Workspace, support);
        let sandbox = shell
            .brokered_agent(
                AgentFolders::of(std::slice::from_ref(&home), &[]),
                BrokerPolicy::Roots,
                None,
                AgentNetwork::OPEN,
            )
            .expect("the kernel can sandbox it");
        finish(shell.start(line, &home, &sandbox).await.unwrap()).await.0
    }

    /// Returns the settings as Modegate would read them, and the permissions of their folders.
    fn state(&self) -> (Option<String>, bool, Option<u32>) {
        let rights = self.settings.parent().unwrap().metadata().ok().map(|meta| meta.permissions().mode());
        (fs::read_to_string(self.settings.join("config.yaml")).ok(), self.settings.exists(), rights)
    }
}

/// Lines that change the settings, replace the folder from which they are read, or hide them.
const ON_SETTINGS: &[&str] = &[
    "echo x > .config/modegate/config.yaml; echo x > dotfiles/config/modegate/config.yaml",
    "rm -r .config/modegate; rm .config/modegate/config.yaml",
    "mkdir -p evil/modegate; echo x > evil/modegate/config.yaml; mv -T .config old; mv -T evil .config",
    "mkdir -p evil/modegate; echo x > evil/modegate/config.yaml; rm -f .config; ln -sfT evil .config; cp -rT evil .config",
    "mkdir -p evil; echo x > evil/config.yaml; mv -T evil .config/modegate; ln -s ../evil .config/modegate",
    "mkdir -p evil; echo x > evil/config.yaml; cp -r evil .config/modegate; cp -r evil dotfiles/config/modegate",
    "mkdir -p evil/modegate; echo x > evil/modegate/config.yaml; mv --exchange -T evil .config; {helper} exchange evil .config",
    "{helper} exchange evil .config/modegate; mv -T dotfiles d2; mv -T dotfiles/config d2",
    "ln .config/modegate/config.yaml hard; echo x > hard",
    "cd .config/modegate 2>/dev/null || cd .config; echo x > config.yaml; mkdir modegate && echo x > modegate/config.yaml",
    "mkdir -p .config/modegate && echo x > .config/modegate/config.yaml",
    "mkdir -p dotfiles/config/modegate && echo x > dotfiles/config/modegate/config.yaml",
    "chmod 000 .config .; chmod 000 .config/modegate .config/modegate/config.yaml; chmod 000 dotfiles dotfiles/config",
    "truncate -s 0 .config/modegate/config.yaml; touch .config/modegate/new; sed -i s/s/x/ .config/modegate/config.yaml",
    "echo x > .config/other/../modegate/config.yaml; ln -s ../.config/modegate dotfiles/l; echo x > dotfiles/l/config.yaml",
];

#[tokio::test]
async fn settings_in_the_workspace_cannot_be_changed_or_replaced() {
    require_sandbox();
    let kinds = [(true, false), (true, true), (false, false), (false, true)];
    let cases = kinds.into_iter().flat_map(|kind| ON_SETTINGS.iter().map(move |text| (kind, *text)));
    let run = |((exists, is_linked), text): ((bool, bool), &'static str)| async move {
        let fixture = Protected::new(exists, is_linked);
        let before = fixture.state();
        let helper = line("{attacks}");
        let output = fixture.run(&text.replace("{helper}", &helper)).await;
        let after = fixture.state();
        (before != after).then(|| format!("{text} ({exists}, {is_linked}): {after:?}: {output}"))
    };
    let failures: Vec<_> = futures_util::stream::iter(cases)
        .map(run)
        .buffer_unordered(CONCURRENT_CASES)
        .filter_map(std::future::ready)
        .collect()
        .await;
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
    // The control: files beside the settings change.
    let fixture = Protected::new(true, true);
    let output = fixture
        .run("echo x > .config/other/new && mv .config/other .config/moved && chmod 700 .config/moved")
        .await;
    assert!(fixture.settings.with_file_name("moved").join("new").exists(), "{output}");
}

/// The permissions of the temporary folder do not change, also not by access control lists.
#[tokio::test]
async fn own_folder_of_a_command_stays_closed_to_others() {
    require_sandbox();
    let fixture = SandboxFixture::new();
    let text = "chmod 755 $TMPDIR; {attacks} acl $TMPDIR; \
                stat -c %a $TMPDIR; touch $TMPDIR/f && chmod 644 $TMPDIR/f && {attacks} acl $TMPDIR/f && echo usable";
    let (output, _) = brokered(&fixture, &line(text), BrokerPolicy::Roots).await;
    assert!(output.contains("\n700\n") && output.contains("usable"), "{output}");
}

/// Programs that were just written can be executed, the number of descriptors is limited, and signals repeat
/// no call.
#[tokio::test]
async fn brokered_calls_under_strain_behave_as_usual() {
    require_sandbox();
    for name in ["programs", "limits", "signals"] {
        let fixture = SandboxFixture::new();
        let text = line(&format!("{{attacks}} {name}"));
        let (output, _) = brokered(&fixture, &text, BrokerPolicy::Roots).await;
        assert_eq!(output, "as usual\n", "{name}");
        let control = SandboxFixture::new();
        assert_eq!(free(&control, &text).await, "as usual\n", "{name} without a sandbox");
    }
}

/// Makes a tree of over 3,000 levels, longer than any path, by moving trees into each other.
const DEEP: &str = "import os
os.makedirs('t')
for _ in range(4):
    below = '/'.join(['b'] + ['a'] * 900)
    os.makedirs(below)
    os.rename('t', below + '/t')
    os.rename('b', 't')
";

/// The record survives a tree that is deeper than a recursion may be.
#[tokio::test]
async fn moved_deep_trees_do_not_end_the_broker() {
    require_sandbox();
    let fixture = SandboxFixture::new();
    let record = tempfile::tempdir().unwrap();
    fs::write(fixture.work().join("deep.py"), DEEP).unwrap();
    let shell = crate::support::shell(&fixture.home(), Sandbox::Workspace);
    let kept = Some(record.path().to_owned());
    let sandbox = shell
        .brokered_agent(
            AgentFolders::of(&[fixture.work()], &[]),
            BrokerPolicy::Roots,
            kept,
            AgentNetwork::OPEN,
        )
        .unwrap();
    let text = format!("echo x > a.txt; {} deep.py", python());
    let (output, exit) = finish(shell.start(&text, &fixture.work(), &sandbox).await.unwrap()).await;
    assert_eq!(exit, Some(Exit::Status(0)), "{output}");
    let saved = fs::read_to_string(record.path().join("0.jsonl")).unwrap();
    assert!(saved.contains("/a.txt") && saved.contains("200 levels"), "{saved}");
}
