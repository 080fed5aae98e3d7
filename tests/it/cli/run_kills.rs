//! `modegate run`, killed during brokered work. All processes end within a second, and an undo restores all files, or
//! reports that changes are unknown. A Modegate that was not killed may take longer to report the end.
//!
//! `KILLS=200 SEED=7 cargo test run_kills -- --nocapture` kills Modegate and the supervisor this often.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::run::Place;

/// The processes of the program and the services of Modegate have to end within this time.
const LIMIT: Duration = Duration::from_secs(1);

/// Time for the end of a Modegate that was not killed.
const DEADLINE: Duration = Duration::from_mins(1);

/// Numbered files that the program changes, removes and moves.
const FILES: usize = 60;

/// Leaves processes behind in every way, and changes files until it is killed. The files are large enough
/// that copies take a while.
const WORK: &str = "setsid sh -c 'while :; do echo x >> log; sleep 0.01; done' & \
    sh -c 'setsid sleep 1000 & exec sleep 1000' & (setsid sh -c 'trap \"\" HUP TERM INT; sleep 1000; sleep 1000' &); \
    echo ready; i=0; while [ $i -lt 60 ]; do i=$((i+1)); \
    echo $i >> changed$i; rm removed$i; mv moved$i new$i; mkdir -p folder$i/in; echo x > folder$i/in/f; \
    ln moved$((i+1)) linked$i; sed -i s/one/two/ replaced$i; echo >> large; done; sleep 1000";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Modegate,
    Supervisor,
    Guard,
    /// All processes that `killall modegate` ends.
    All,
    /// All processes but Modegate and the guard.
    ForkServerAndSupervisor,
}

/// The process ids of a run.
struct Processes {
    modegate: Pid,
    guard: Pid,
    fork_server: Pid,
    supervisor: Pid,
}

fn pid(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

fn parent(of: Pid) -> Option<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{of}/status")).ok()?;
    pid(status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim())
}

/// Returns the running processes in a folder.
fn processes_in(folder: &Path) -> Vec<Pid> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let is_in = |pid: &Pid| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder);
    all.filter_map(|entry| pid(entry.file_name().to_str()?)).filter(is_in).collect()
}

fn is_supervisor(pid: Pid) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split(|byte| *byte == 0).nth(1) == Some(b"__supervise")
}

fn command_line(pid: Pid) -> String {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&arguments).replace('\0', " ")
}

fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

impl Processes {
    fn find(modegate: &Child, work: &Path) -> Self {
        let modegate = Pid::from_child(modegate);
        let with_parents = |supervisor: Pid| {
            let fork_server = parent(supervisor)?;
            let guard = parent(fork_server)?;
            // The guard looks like a supervisor until it has executed itself again.
            (parent(guard)? == modegate).then_some(Self { modegate, guard, fork_server, supervisor })
        };
        let mut candidates = processes_in(work).into_iter().filter(|pid| is_supervisor(*pid));
        candidates.find_map(with_parents).expect("a supervisor")
    }

    fn kill(&self, victim: Victim) {
        let Self { modegate, guard, fork_server, supervisor } = *self;
        let victims: &[Pid] = match victim {
            Victim::Modegate => &[modegate],
            Victim::Supervisor => &[supervisor],
            Victim::Guard => &[guard],
            Victim::All => &[modegate, fork_server, supervisor],
            Victim::ForkServerAndSupervisor => &[fork_server, supervisor],
        };
        for victim in victims {
            kill_process(*victim, Signal::KILL).unwrap();
        }
    }
}

fn content(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut content = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                content.insert(entry.path(), Vec::new());
                folders.push(entry.path());
            } else {
                content.insert(entry.path(), std::fs::read(entry.path()).unwrap());
            }
        }
    }
    content
}

fn make_files(work: &Path) {
    for number in 0..=FILES + 1 {
        for kind in ["changed", "removed", "moved", "replaced"] {
            std::fs::write(work.join(format!("{kind}{number}")), format!("{kind} one {number}\n")).unwrap();
        }
    }
    std::fs::write(work.join("large"), vec![b'x'; 8 << 20]).unwrap();
}

/// Waits for the end of processes. Kills those that are left after `limit`, and returns their commands.
fn left_after(limit: Duration, mut remaining: impl FnMut() -> Vec<Pid>) -> Vec<String> {
    let start = Instant::now();
    while !remaining().is_empty() && start.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(5));
    }
    let left = remaining();
    let commands = left.iter().map(|pid| command_line(*pid)).collect();
    for pid in left {
        // It may have just ended.
        let _ = kill_process(pid, Signal::KILL);
    }
    commands
}

/// Kills the victim during the work, after `delay`. Returns the failure, if there is one.
fn round(victim: Victim, delay: Duration) -> Option<String> {
    let place = Place::new();
    let work = place.work();
    make_files(&work);
    let before = content(&work);
    let mut command = place.modegate(&["run", "--mode", "code", "--", "sh", "-c", WORK]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    errors.read_line(&mut first).unwrap();
    let session = first.trim().rsplit(' ').next().unwrap().to_owned();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut ready = String::new();
    output.read_line(&mut ready).unwrap();
    if ready != "ready\n" {
        let mut messages = String::new();
        errors.read_to_string(&mut messages).unwrap();
        panic!("the program does not run: {first}{messages}");
    }
    let processes = Processes::find(&child, &work);
    // The delay is the moment of the kill, which the test varies.
    std::thread::sleep(delay);
    assert!(processes_in(&work).len() > 4, "the control");
    processes.kill(victim);
    if victim == Victim::Guard {
        // Killing the guard ends nothing else. Modegate is killed next, and the others have to notice without
        // the guard.
        std::thread::sleep(Duration::from_millis(20));
        assert!(is_alive(processes.supervisor), "the control");
        processes.kill(Victim::Modegate);
    }
    let survives = matches!(victim, Victim::Supervisor | Victim::ForkServerAndSupervisor);
    let services = || [processes.guard, processes.fork_server].into_iter().filter(|pid| is_alive(*pid));
    let mut left = left_after(LIMIT, || {
        let mut all = processes_in(&work);
        if survives {
            all.retain(|pid| *pid != processes.modegate);
        } else {
            all.extend(services());
        }
        all
    });
    // It reports the end of the program, and its last commit can wait for a busy disk.
    left.extend(left_after(DEADLINE, || match child.try_wait().unwrap() {
        None => vec![processes.modegate],
        Some(_) => Vec::new(),
    }));
    left.extend(left_after(LIMIT, || services().collect()));
    let code = child.wait().unwrap().code();
    if !left.is_empty() {
        return Some(format!("{victim:?}: left: {left:?}"));
    }
    let mut messages = String::new();
    errors.read_to_string(&mut messages).unwrap();
    if survives && (code != Some(125) || !messages.contains("was killed")) {
        return Some(format!("{victim:?}: exit code {code:?}: {messages}"));
    }
    let (_, undone, why) = place.run(&["sessions", "undo", &session]);
    let is_named = [undone.as_str(), &why]
        .iter()
        .any(|text| text.contains("What it changed in that turn cannot be undone"));
    let after = content(&work);
    let is_same = after == before;
    if survives && !is_same {
        let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
        let different: Vec<_> = before.keys().chain(after.keys()).filter(differs).collect();
        return Some(format!("{victim:?}: not undone: {different:?}: {undone}{why}"));
    }
    (!is_same && !is_named).then(|| format!("{victim:?}: not undone, and not named: {undone}{why}"))
}

#[test]
fn killed_processes_leave_nothing_behind() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (kills, mut seed) = (number("KILLS", 2), number("SEED", 7));
    let rest = [Victim::Guard, Victim::All, Victim::ForkServerAndSupervisor];
    let rest = rest
        .into_iter()
        .flat_map(|victim| std::iter::repeat_n(victim, kills.div_ceil(10).try_into().unwrap()));
    let pairs = (0..kills).flat_map(|_| [Victim::Modegate, Victim::Supervisor]);
    let (mut rounds, mut failures) = (0, Vec::new());
    for victim in pairs.chain(rest) {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let delay = Duration::from_micros((seed >> 33) % 400_000);
        failures.extend(round(victim, delay).map(|failure| format!("{failure} (after {delay:?})")));
        rounds += 1;
    }
    println!("{rounds} rounds, {} failures", failures.len());
    assert!(failures.is_empty(), "{} of {rounds}:\n{}", failures.len(), failures.join("\n"));
}
