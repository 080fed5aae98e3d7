//! The read-only hold: nothing gets out of it, and what is useful works in it.
//!
//! The corpus is `tests/escape`. Every case is run twice, held and as its own control.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt;
use modegate::process::shell::Sandbox;
use modegate::process::{Command, Errors, Event, Exit, Process, Processes};
use modegate::sandbox::{self, Confinement};

use crate::scene::{SECRET, Scene};
use crate::support::shell;

/// How long a command of the corpus may take. None does when it is held.
const LIMIT: Duration = Duration::from_secs(10);

/// Cases at once: they wait more than they work.
pub const AT_ONCE: usize = 6;

pub struct Case {
    pub name: String,
    pub line: String,
}

/// The cases of a file whose program is there, and how many are left out.
pub fn cases(text: &str) -> (Vec<Case>, usize) {
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
            cases.push(Case { name: name.into(), line: line.into() });
        } else {
            missing += 1;
        }
    }
    (cases, missing)
}

pub async fn finish(mut process: Process) -> (String, Option<Exit>) {
    let (mut output, mut exit, mut is_lost) = (Vec::new(), None, false);
    let all = async {
        while let Some(event) = process.next().await {
            match event {
                Event::Output(bytes) | Event::Error(bytes) => output.extend(bytes),
                Event::Exited(ended) => exit = Some(ended),
                Event::Failed(reason) => panic!("{reason}"),
                Event::Gone { confirmed, .. } => is_lost = !confirmed,
            }
        }
    };
    // What is not over by then is ended by letting go of it.
    let _ = tokio::time::timeout(LIMIT, all).await;
    let mut output = String::from_utf8_lossy(&output).into_owned();
    if is_lost {
        // Its supervisor is gone: that is an effect, too.
        output.push_str("\nEFFECT\n");
    }
    (output, exit)
}

/// Runs a line in a scene as `shell_read_only` does.
async fn held(scene: &Scene, line: &str) -> (String, Option<Exit>) {
    let shell = shell(&scene.home(), Sandbox::Workspace);
    let hold = shell.read_only(&[scene.work()]).expect("the kernel can hold it");
    finish(shell.start(&scene.fill_in(line), &scene.work(), &hold).await.unwrap()).await
}

/// Runs a line in a scene as `shell` does where nothing else is set.
async fn held_to_workspace(scene: &Scene, line: &str) -> String {
    let shell = shell(&scene.home(), Sandbox::Workspace);
    let hold = shell.workspace(&[scene.work()]);
    let line = scene.fill_in(line);
    finish(shell.start(&line, &scene.work(), &hold).await.unwrap()).await.0
}

/// Runs a line in a scene with nothing held.
pub async fn free(scene: &Scene, line: &str) -> String {
    let temporary = scene.work();
    let mut environment: Vec<_> = std::env::vars_os().collect();
    let home = scene.home().into_os_string();
    environment.retain(|(name, _)| name != "HOME" && name != "TMPDIR");
    environment.push(("HOME".into(), home));
    environment.push(("DECOY_TOKEN".into(), SECRET.into()));
    let command = Command {
        program: "/bin/bash".into(),
        arguments: vec!["-c".into(), scene.fill_in(line)],
        cwd: temporary,
        environment: Some(environment),
        settings: &[],
        confinement: Confinement::Off,
        errors: Errors::Merged,
        is_spoken_to: false,
        own: Vec::new(),
        keeps_terminal: false,
    };
    let processes = Processes::new(PathBuf::from(env!("CARGO_BIN_EXE_modegate")), std::env::temp_dir());
    finish(processes.start(command).await.unwrap()).await.0
}

pub fn can_hold() -> bool {
    match sandbox::support().missing() {
        None => true,
        Some(reason) => {
            let dir = tempfile::tempdir().unwrap();
            let shell = shell(dir.path(), Sandbox::Workspace);
            assert!(shell.read_only(&[dir.path().join("work")]).is_none(), "{reason}");
            false
        }
    }
}

#[tokio::test]
async fn nothing_gets_out_of_a_read_only_hold() {
    if !can_hold() {
        return;
    }
    let (cases, missing) = cases(include_str!("../escape/cases.txt"));
    let run = |case: Case| async move {
        let mut scene = Scene::new();
        let (said, _) = held(&scene, &case.line).await;
        let escaped = scene.effects(&said);
        let mut copy = Scene::new();
        let said_free = free(&copy, &case.line).await;
        let counts = !copy.effects(&said_free).is_empty();
        // Kept to the end: some file systems are slow to make files while others are being removed.
        ((scene.dir(), copy.dir()), case, escaped, said, counts, said_free)
    };
    let results: Vec<_> =
        futures_util::stream::iter(cases).map(run).buffer_unordered(AT_ONCE).collect().await;
    let mut escaped = Vec::new();
    let mut idle = Vec::new();
    let mut counting = 0;
    for (_, case, effects, said, counts, said_free) in &results {
        if !effects.is_empty() {
            escaped.push(format!("{}: {effects:?}: {said}", case.name));
        }
        if *counts {
            counting += 1;
        } else {
            idle.push(format!("{}: {}", case.name, said_free.lines().next().unwrap_or_default()));
        }
    }
    println!(
        "{counting} cases count, {missing} lack a program, {} did nothing without a hold:\n{}",
        idle.len(),
        idle.join("\n")
    );
    assert!(escaped.is_empty(), "{} got out:\n{}", escaped.len(), escaped.join("\n"));
    assert!(counting >= 100, "only {counting} cases count");
}

#[tokio::test]
async fn what_is_useful_works_in_a_read_only_hold() {
    if !can_hold() {
        return;
    }
    let (cases, missing) = cases(include_str!("../escape/useful.txt"));
    let mut failed = Vec::new();
    let number = cases.len();
    for case in cases {
        let mut scene = Scene::new();
        let (said, exit) = held(&scene, &case.line).await;
        let effects = scene.effects(&said);
        if !said.contains(&case.name) || exit != Some(Exit::Status(0)) || !effects.is_empty() {
            failed.push(format!("{} {exit:?} {effects:?}: {said}", case.line.trim_end()));
        }
    }
    println!("{number} lines work, {missing} lack a program");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// What a command in `code` cannot do, in the scenes' words: it may write in `work`, and read what the user can.
const BEYOND_A_WORKSPACE: &[&str] = &[
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
async fn a_command_of_a_workspace_stays_in_it() {
    if !can_hold() {
        return;
    }
    for line in BEYOND_A_WORKSPACE {
        let mut scene = Scene::new();
        let said = held_to_workspace(&scene, line).await;
        let beyond = |scene: &mut Scene, said: &str| {
            let inside = format!("changed {}", scene.work().display());
            let mut effects = scene.effects(&said.replace(SECRET, ""));
            effects.retain(|effect| !effect.starts_with(&inside));
            effects
        };
        assert_eq!(beyond(&mut scene, &said), Vec::<String>::new(), "{line}: {said}");
        let mut copy = Scene::new();
        let said = free(&copy, line).await;
        // A signal is sent at once, but the other process shows it only when it has run.
        let mut patience = 500;
        while beyond(&mut copy, &said).is_empty() {
            patience -= 1;
            assert!(patience > 0, "the control: {line}: {said}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let scene = Scene::new();
    for (line, says) in [
        ("{helper} own-ids", "own ids"),
        ("{helper} own-priority", "own priority"),
        ("{helper} core-limit", "refused"),
    ] {
        let said = held_to_workspace(&scene, line).await;
        assert!(said.contains(says), "{line}: {said}");
    }
    let mut scene = Scene::new();
    held_to_workspace(&scene, "echo x > new.txt").await;
    assert!(!scene.effects("").is_empty(), "it does write where it may");
}
