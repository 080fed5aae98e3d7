//! The supervisor: all processes of a command end with it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use modegate::process::{Command, Event, Exit, Process, ProcessFailure, Processes, Streams, TerminalAccess};
use modegate::sandbox::Confinement;

use crate::support::TIMEOUT;
use crate::support::requirements::require_sandbox;
use crate::support::waiting::until;

pub(super) fn processes(scratch: &Path) -> Processes {
    Processes::new(PathBuf::from(env!("CARGO_BIN_EXE_modegate")), scratch.to_owned())
}

pub(super) fn shell(cwd: &Path, command: &str) -> Command {
    Command {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), command.into()],
        cwd: cwd.to_owned(),
        environment: None,
        settings: &[],
        confinement: Confinement::Off,
        streams: Streams::Merged,
        waits: false,
        own: Vec::new(),
        terminal: TerminalAccess::None,
    }
}

/// Returns the whole output and all other events.
pub(super) async fn events(process: &mut Process) -> (String, Vec<Event>) {
    let (mut output, mut rest) = (Vec::new(), Vec::new());
    while let Some(event) = tokio::time::timeout(TIMEOUT, process.next()).await.expect("nothing happened") {
        match event {
            Event::Output(bytes) => output.extend(bytes),
            event => rest.push(event),
        }
    }
    (String::from_utf8(output).unwrap(), rest)
}

#[tokio::test]
async fn command_events_end_with_the_exit_status() {
    let dir = tempfile::tempdir().unwrap();
    let mut process =
        processes(dir.path()).start(shell(dir.path(), "echo a; echo b >&2; pwd; exit 3")).await.unwrap();
    let (output, rest) = events(&mut process).await;
    assert_eq!(output, format!("a\nb\n{}\n", dir.path().canonicalize().unwrap().display()));
    assert_eq!(rest, [Event::Exited(Exit::Status(3)), Event::Gone { left_behind: 0, confirmed: true }]);
}

#[tokio::test]
async fn stderr_can_be_separate_from_stdout() {
    let dir = tempfile::tempdir().unwrap();
    let command = Command { streams: Streams::Apart, ..shell(dir.path(), "echo out; echo err >&2") };
    let mut process = processes(dir.path()).start(command).await.unwrap();
    let (output, rest) = events(&mut process).await;
    assert_eq!((output.as_str(), rest.contains(&Event::Error(b"err\n".to_vec()))), ("out\n", true));
}

#[tokio::test]
async fn failed_start_reports_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    for (program, reason) in
        [("/no/such", "No such file or directory (os error 2)"), ("no-such", "it was not found on PATH")]
    {
        let command = Command { program: program.into(), ..shell(dir.path(), "") };
        let mut process = processes(dir.path()).start(command).await.unwrap();
        let reason = format!("{program} cannot be run: {reason}");
        let failed = Event::Failed(ProcessFailure { reason, status: Some(127) });
        let gone = Event::Gone { left_behind: 0, confirmed: true };
        assert_eq!(events(&mut process).await, (String::new(), vec![failed, gone]));
    }
    assert!(processes(dir.path()).start(shell(Path::new("/no/such"), "")).await.is_err());
}

/// Ways to escape from the parent process. Each escaped process creates `started`, and then writes to `alive`
/// forever.
pub(super) const ESCAPES: [(&str, &str); 6] = [
    ("background", "(WORK) &"),
    ("nohup", "nohup sh -c 'WORK' >/dev/null 2>&1 &"),
    ("setsid", "setsid sh -c 'WORK' &"),
    ("double fork", "( ( setsid sh -c 'WORK' & ) & )"),
    ("daemon", "setsid sh -c '( setsid sh -c \"WORK\" & ) ; exit' ; sleep 0.05"),
    ("closed pipes", "setsid sh -c 'WORK' </dev/null >/dev/null 2>&1 & disown 2>/dev/null"),
];

pub(super) fn escape_script(way: &str, stay: &str) -> String {
    let work = "echo x > started; while :; do echo x >> alive; sleep 0.01; done";
    format!("{}\nwhile ! [ -e started ]; do sleep 0.01; done; {stay}", way.replace("WORK", work))
}

/// Returns true if a process still writes.
pub(super) async fn is_alive(dir: &Path) -> bool {
    let size = || std::fs::metadata(dir.join("alive")).map_or(0, |file| file.len());
    let before = size();
    tokio::time::sleep(Duration::from_millis(60)).await;
    size() != before
}

#[tokio::test]
async fn descendants_end_with_the_command() {
    for (name, way) in ESCAPES {
        let dir = tempfile::tempdir().unwrap();
        let mut process =
            processes(dir.path()).start(shell(dir.path(), &escape_script(way, "exit 0"))).await.unwrap();
        let (_, rest) = events(&mut process).await;
        assert_eq!(rest[0], Event::Exited(Exit::Status(0)), "{name}");
        assert!(matches!(rest[1], Event::Gone { left_behind: 1.., confirmed: true }), "{name}: {rest:?}");
        assert!(!is_alive(dir.path()).await, "{name}");
    }
}

#[tokio::test]
async fn ending_a_command_ends_all_descendants() {
    for (name, way) in ESCAPES {
        let dir = tempfile::tempdir().unwrap();
        let mut process = processes(dir.path())
            .start(shell(dir.path(), &escape_script(way, "echo ready; sleep 1000")))
            .await
            .unwrap();
        assert_eq!(process.next().await, Some(Event::Output(b"ready\n".to_vec())), "{name}");
        assert!(is_alive(dir.path()).await, "{name}: the control");
        process.end().await;
        let (_, rest) = events(&mut process).await;
        assert!(matches!(rest[..], [Event::Gone { confirmed: true, .. }]), "{name}: {rest:?}");
        assert!(!is_alive(dir.path()).await, "{name}");
    }
}

/// Dropping a process closes the connection. The supervisor of a killed Modegate sees the same.
#[tokio::test]
async fn dropping_a_process_ends_all_descendants() {
    let dir = tempfile::tempdir().unwrap();
    let way = escape_script(ESCAPES[3].1, "echo ready; sleep 1000");
    let mut process = processes(dir.path()).start(shell(dir.path(), &way)).await.unwrap();
    assert_eq!(process.next().await, Some(Event::Output(b"ready\n".to_vec())));
    let supervisor = PathBuf::from(format!("/proc/{}", process.id().unwrap()));
    assert!(supervisor.exists() && is_alive(dir.path()).await, "the control");
    drop(process);
    let is_gone = || std::fs::read(supervisor.join("cmdline")).map_or(true, |line| line.is_empty());
    until("the end of the supervisor", is_gone).await;
    assert!(!is_alive(dir.path()).await);
}

/// Each process makes the next one in a new session and ends, so no process exists long enough to be killed.
#[tokio::test]
async fn fork_chain_cannot_outrun_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let link = "echo x >> alive; setsid sh ./link & exit";
    std::fs::write(dir.path().join("link"), link).unwrap();
    let command =
        "setsid sh ./link & while [ \"$(wc -l < alive)\" -lt 20 ]; do :; done; echo ready; sleep 1000";
    std::fs::write(dir.path().join("alive"), "").unwrap();
    let mut process = processes(dir.path()).start(shell(dir.path(), command)).await.unwrap();
    assert_eq!(process.next().await, Some(Event::Output(b"ready\n".to_vec())));
    assert!(is_alive(dir.path()).await, "the control");
    process.end().await;
    let (_, rest) = events(&mut process).await;
    assert!(matches!(rest[..], [Event::Gone { confirmed: true, .. }]), "{rest:?}");
    assert!(!is_alive(dir.path()).await);
}

#[tokio::test]
async fn sigterm_lets_a_command_end_gracefully() {
    let dir = tempfile::tempdir().unwrap();
    let command = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done";
    let mut process = processes(dir.path()).start(shell(dir.path(), command)).await.unwrap();
    assert_eq!(process.next().await, Some(Event::Output(b"ready\n".to_vec())));
    process.request_exit().await;
    let (output, rest) = events(&mut process).await;
    assert!(output.ends_with("bye\n"), "{output}");
    assert_eq!(rest[0], Event::Exited(Exit::Status(7)));
}

#[tokio::test]
async fn supervisor_ignores_termination_signals() {
    use rustix::process::{Pid, Signal, kill_process};
    let dir = tempfile::tempdir().unwrap();
    let line = escape_script(ESCAPES[2].1, "echo ready; sleep 1000");
    let mut process = processes(dir.path()).start(shell(dir.path(), &line)).await.unwrap();
    assert_eq!(process.next().await, Some(Event::Output(b"ready\n".to_vec())));
    let supervisor = process.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).unwrap();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::PIPE, Signal::USR1] {
        kill_process(supervisor, signal).unwrap();
    }
    assert!(is_alive(dir.path()).await, "the control");
    process.end().await;
    assert!(matches!(events(&mut process).await.1[..], [Event::Gone { confirmed: true, .. }]));
    assert!(!is_alive(dir.path()).await);
}

/// A command inherits neither the connection nor any other open file of Modegate.
#[tokio::test]
async fn command_inherits_only_three_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = processes(dir.path()).start(shell(dir.path(), "echo /proc/$$/fd/*")).await.unwrap();
    let (output, _) = events(&mut process).await;
    let mut names: Vec<_> = output.split_whitespace().filter_map(|path| path.rsplit('/').next()).collect();
    // The shell itself opens 3 for reading the folder.
    names.retain(|name| *name != "3");
    assert_eq!(names, ["0", "1", "2"]);
}

#[tokio::test]
async fn supervisor_without_descriptors_still_ends_everything() {
    let dir = tempfile::tempdir().unwrap();
    let limit = "prlimit --pid $PPID --nofile=0:0 || { echo this test needs prlimit; exit 9; }";
    let line = format!("{limit}\n{}", escape_script(ESCAPES[3].1, "echo ready; sleep 1000"));
    let mut process = processes(dir.path()).start(shell(dir.path(), &line)).await.unwrap();
    assert_eq!(process.next().await, Some(Event::Output(b"ready\n".to_vec())));
    assert!(is_alive(dir.path()).await, "the control");
    process.end().await;
    let (_, rest) = events(&mut process).await;
    assert!(matches!(rest[..], [Event::Gone { confirmed: true, .. }]), "{rest:?}");
    assert!(!is_alive(dir.path()).await);
}

#[tokio::test]
async fn read_only_command_temp_folder_is_removed() {
    require_sandbox();
    let (dir, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let lines = [
        "echo x > $TMPDIR/x",
        "mkdir -m 000 $TMPDIR/x",
        "cd $TMPDIR; umask 777; mkdir -p a; mkdir b",
        "ln -s / $TMPDIR/root",
    ];
    for line in lines {
        let read = ["/usr", "/bin", "/lib", "/lib64"].map(PathBuf::from).to_vec();
        let command = Command {
            confinement: Confinement::ReadOnly { read, build: None, denied: None },
            ..shell(dir.path(), &format!("{line}; echo $TMPDIR"))
        };
        let mut process = processes(scratch.path()).start(command).await.unwrap();
        let (output, rest) = events(&mut process).await;
        assert!(output.trim().starts_with(scratch.path().to_str().unwrap()), "{line}: {output} {rest:?}");
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "{line}");
    }
}
