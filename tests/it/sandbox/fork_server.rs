//! The fork server. Supervisors share nothing, and killed processes leave nothing behind.

use std::path::{Path, PathBuf};

use modegate::process::{Command, Event, Exit, Process};
use modegate::sandbox::Confinement;
use rustix::process::{Pid, Signal, kill_process};

use super::supervisor::{ESCAPES, escape_script, events, is_alive, processes, shell};
use crate::support::requirements::require_sandbox;
use crate::support::waiting::until;

fn supervisor(process: &Process) -> Pid {
    process.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).unwrap()
}

/// Returns a line of `/proc/PID/status`, or `None` if the process is gone or a zombie.
fn status(pid: Pid, name: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    line("State:").filter(|state| !state.starts_with('Z'))?;
    line(name).map(str::to_owned)
}

fn fork_server(process: &Process) -> Pid {
    let parent = status(supervisor(process), "PPid:").unwrap();
    parent.parse().ok().and_then(Pid::from_raw).unwrap()
}

fn guard(process: &Process) -> Pid {
    let parent = status(fork_server(process), "PPid:").unwrap();
    parent.parse().ok().and_then(Pid::from_raw).unwrap()
}

fn descriptors(pid: Pid) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

async fn running(processes: &modegate::process::Processes, cwd: &Path) -> Process {
    let mut process = processes.start(shell(cwd, "echo ready; exec sleep 1000")).await.unwrap();
    assert_eq!(process.next().await, Some(Event::Output(b"ready\n".to_vec())));
    process
}

#[tokio::test]
async fn commands_survive_a_killed_fork_server() {
    let dir = tempfile::tempdir().unwrap();
    let processes = processes(dir.path());
    let mut first = running(&processes, dir.path()).await;
    let server = fork_server(&first);
    kill_process(server, Signal::KILL).unwrap();
    until("the fork server is gone", || status(server, "PPid:").is_none()).await;
    let second = running(&processes, dir.path()).await;
    assert_ne!(fork_server(&second), server);
    first.end().await;
    assert!(matches!(events(&mut first).await.1[..], [Event::Gone { confirmed: true, .. }]));
}

/// The kernel reparents the processes of a killed supervisor after its connection has ended.
#[tokio::test]
async fn processes_of_a_killed_supervisor_end_before_the_command_counts_as_ended() {
    for (name, way) in ESCAPES {
        for is_server_killed in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let processes = processes(dir.path());
            let script = escape_script(way, "echo ready; sleep 1000");
            let mut process = processes.start(shell(dir.path(), &script)).await.unwrap();
            assert_eq!(process.next().await, Some(Event::Output(b"ready\n".to_vec())), "{name}");
            assert!(is_alive(dir.path()).await, "{name}: the control");
            let mut other = running(&processes, dir.path()).await;
            if is_server_killed {
                kill_process(fork_server(&process), Signal::KILL).unwrap();
            }
            kill_process(supervisor(&process), Signal::KILL).unwrap();
            let (_, rest) = events(&mut process).await;
            assert_eq!(rest, [Event::Gone { left_behind: 0, confirmed: true }], "{name}");
            assert!(!is_alive(dir.path()).await, "{name}");
            assert!(status(supervisor(&other), "PPid:").is_some(), "{name}: other commands go on");
            other.end().await;
            assert!(
                matches!(events(&mut other).await.1[..], [Event::Gone { confirmed: true, .. }]),
                "{name}"
            );
        }
    }
}

/// The test process is no subreaper, unlike Modegate.
#[tokio::test]
async fn end_is_unconfirmed_without_a_guard() {
    let dir = tempfile::tempdir().unwrap();
    let processes = processes(dir.path());
    let mut process = running(&processes, dir.path()).await;
    kill_process(guard(&process), Signal::KILL).unwrap();
    kill_process(supervisor(&process), Signal::KILL).unwrap();
    let (_, rest) = events(&mut process).await;
    assert_eq!(rest, [Event::Gone { left_behind: 0, confirmed: false }]);
    let mut next = running(&processes, dir.path()).await;
    next.end().await;
    assert!(matches!(events(&mut next).await.1[..], [Event::Gone { confirmed: true, .. }]), "the control");
}

#[tokio::test]
async fn guard_ends_with_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let processes = processes(dir.path());
    let process = running(&processes, dir.path()).await;
    let guard = guard(&process);
    let name = || std::fs::read_to_string(format!("/proc/{guard}/comm")).unwrap_or_default();
    until("the guard has its name", || name() == "mg-guard\n").await;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::CHILD] {
        kill_process(guard, signal).unwrap();
    }
    assert!(status(guard, "PPid:").is_some(), "the control");
    drop((process, processes));
    until("the guard is gone", || status(guard, "PPid:").is_none()).await;
}

#[tokio::test]
async fn fork_server_without_descriptors_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let processes = processes(dir.path());
    let first = running(&processes, dir.path()).await;
    let limit = format!("prlimit --pid {} --nofile=0:0", fork_server(&first));
    let mut command = processes.start(shell(dir.path(), &limit)).await.unwrap();
    assert_eq!(events(&mut command).await.1[0], Event::Exited(Exit::Status(0)), "this test needs prlimit");
    // The same command gets another one. An unlimited one stays, as in the next test.
    let second = running(&processes, dir.path()).await;
    assert_ne!(fork_server(&second), fork_server(&first));
}

#[tokio::test]
async fn fork_server_ignores_signals_and_ends_with_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let processes = processes(dir.path());
    let process = running(&processes, dir.path()).await;
    let server = fork_server(&process);
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::CHILD] {
        kill_process(server, signal).unwrap();
    }
    assert_eq!(fork_server(&running(&processes, dir.path()).await), server, "the control");
    drop((process, processes));
    until("the fork server is gone", || status(server, "PPid:").is_none()).await;
}

/// A copy of the first connection in the second supervisor would hide the end of the first.
#[tokio::test]
async fn supervisors_share_no_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let processes = processes(dir.path());
    let mut first = running(&processes, dir.path()).await;
    let second = running(&processes, dir.path()).await;
    let (server, before) = (fork_server(&first), descriptors(fork_server(&first)));
    let is_equal = || descriptors(supervisor(&first)) == descriptors(supervisor(&second));
    until("both supervisors have equally many descriptors", is_equal).await;
    let third = running(&processes, dir.path()).await;
    until("no descriptor is left", || descriptors(server) == before).await;
    kill_process(supervisor(&first), Signal::KILL).unwrap();
    assert!(matches!(events(&mut first).await.1[..], [Event::Gone { .. }]));
    assert!(status(supervisor(&second), "PPid:").is_some() && status(supervisor(&third), "PPid:").is_some());
}

#[tokio::test]
async fn command_gets_its_own_environment_and_default_signals() {
    let dir = tempfile::tempdir().unwrap();
    let processes = processes(dir.path());
    let line = "echo \"$ONE-$TWO-$HOME\"; grep -E 'Sig(Blk|Ign)' /proc/self/status";
    for (name, expected) in [("ONE", "1--"), ("TWO", "-1-")] {
        let environment =
            [(name, "1"), ("PATH", "/usr/bin:/bin")].map(|(name, value)| (name.into(), value.into()));
        let command = Command { environment: Some(environment.to_vec()), ..shell(dir.path(), line) };
        let (output, _) = events(&mut processes.start(command).await.unwrap()).await;
        let lines: Vec<_> = output.lines().collect();
        let [variables, "SigBlk:\t0000000000000000", ignored] = lines[..] else { panic!("{output}") };
        assert_eq!(variables, expected);
        let ignored = u64::from_str_radix(ignored.trim_start_matches("SigIgn:").trim(), 16).unwrap();
        assert_eq!(ignored & (1 << 16 | 1 << 12), 0, "SIGCHLD and SIGPIPE: {output}");
    }
    let inherited = std::env::var("PATH").unwrap();
    let mut process = processes.start(shell(dir.path(), "echo \"$PATH\"")).await.unwrap();
    assert_eq!(events(&mut process).await.0, format!("{inherited}\n"));
}

#[tokio::test]
async fn two_hundred_parallel_commands_leave_nothing() {
    require_sandbox();
    let (dir, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let processes = processes(scratch.path());
    let control = running(&processes, dir.path()).await;
    let (server, before) = (fork_server(&control), descriptors(fork_server(&control)));
    let read = ["/usr", "/bin", "/lib", "/lib64"].map(PathBuf::from).to_vec();
    let commands = (0..200).map(|number| {
        let line = format!("setsid sh -c 'echo {number}; exec sleep 1000' & read -r _ < /dev/null; wait");
        let line = if number % 4 == 0 { format!("echo {number}") } else { line };
        let confinement = if number % 2 == 0 {
            Confinement::ReadOnly { read: read.clone(), build: None, denied: None }
        } else {
            Confinement::Off
        };
        let (processes, cwd) = (processes.clone(), dir.path().to_owned());
        tokio::spawn(async move {
            let command = Command { confinement, ..shell(&cwd, &line) };
            let mut process = processes.start(command).await.unwrap();
            let supervisor_pid = supervisor(&process);
            let echoed = format!("{number}\n");
            if number % 4 == 0 {
                let end = [Event::Exited(Exit::Status(0)), Event::Gone { left_behind: 0, confirmed: true }];
                assert_eq!(events(&mut process).await, (echoed, end.to_vec()));
                return supervisor_pid;
            }
            assert_eq!(process.next().await, Some(Event::Output(echoed.into_bytes())));
            if number % 4 == 1 {
                drop(process);
            } else {
                process.end().await;
                let (_, rest) = events(&mut process).await;
                assert!(matches!(rest[..], [Event::Gone { confirmed: true, .. }]), "{number}: {rest:?}");
            }
            supervisor_pid
        })
    });
    let commands: Vec<_> = commands.collect();
    for command in commands {
        let supervisor = command.await.unwrap();
        until("the supervisor is gone", || status(supervisor, "PPid:").is_none()).await;
    }
    until("no descriptor is left", || descriptors(server) == before).await;
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    let children = std::fs::read_to_string(format!("/proc/{server}/task/{server}/children")).unwrap();
    assert_eq!(children.trim(), supervisor(&control).to_string(), "zombies count, too");
}
