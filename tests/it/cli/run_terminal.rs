//! `modegate run` in a user's terminal: the program has a terminal of its own, through which every byte passes, and is
//! a job of the user's shell.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rustix::process::{Pid, Signal};

use super::run::Place;
use crate::support::requirements::python;
use crate::support::user_terminal::TestTerminal;

/// A time in which a program that is not stopped would go on.
const MOMENT: Duration = Duration::from_millis(400);

/// Programs such as GNU screen give their terminal the owner and the mode that it has.
#[test]
fn terminal_keeps_its_owner_and_mode() {
    let place = Place::new();
    let script = "tty=$(tty); chown $(stat -c %u:%g $tty) $tty && chmod $(stat -c %a $tty) $tty && echo kept
                  chown 12345 $tty 2>/dev/null || echo no owner; chmod 777 $tty 2>/dev/null || echo no mode";
    for mode in ["plan", "code"] {
        let mut terminal = place.hosted(mode, script);
        terminal.wait_for("kept");
        terminal.wait_for("no owner");
        terminal.wait_for("no mode");
        assert!(terminal.end().success());
    }
}

impl Place {
    fn script(&self, name: &str, text: &str) {
        std::fs::write(self.work().join(name), text).unwrap();
    }

    /// Runs a line of a shell under Modegate, without a shell around it.
    fn hosted(&self, mode: &str, script: &str) -> TestTerminal {
        self.in_terminal(&["--no-key", "--no-title", "--mode", mode], script)
    }

    /// Starts a shell of the user, in which `mg SCRIPT` runs a script under Modegate.
    fn shell(&self, mode: &str) -> TestTerminal {
        let binary = env!("CARGO_BIN_EXE_modegate");
        let mg = self.work().join("mg");
        std::fs::write(&mg, format!("#!/bin/sh\nexec {binary} run --mode {mode} -- \"$@\"\n")).unwrap();
        std::fs::set_permissions(&mg, Permissions::from_mode(0o755)).unwrap();
        self.script("rc", "PS1='$ '; set +o emacs; export HISTFILE=/dev/null PATH=$PWD:$PATH\n");
        let mut command = self.modegate(&[]);
        let environment: Vec<_> =
            command.get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
        command = Command::new("bash");
        command.args(["--noprofile", "--rcfile", "rc", "-i"]).current_dir(self.work());
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut terminal = TestTerminal::start(&command);
        terminal.wait_for("$ ");
        terminal
    }
}

fn exists(path: &Path) -> bool {
    path.exists()
}

const STOP_OF_GROUP: &str = "import os, signal\nprint('ready', flush=True)\nos.kill(0, signal.SIGTSTP)\n\
    print('continued', flush=True)\nraise SystemExit(7)\n";

#[test]
fn programs_stop_and_continue_as_jobs_of_the_shell() {
    let place = Place::new();
    let python = python();
    place.script("typed", "echo ready; read line; echo continued; exit 7\n");
    place.script("group", STOP_OF_GROUP);
    place.script("itself", "echo ready; kill -STOP $$; echo continued; exit 7\n");
    place.script(
        "child",
        "trap '' TSTP; sh -c 'echo ready; kill -TSTP 0; kill -STOP $PPID'; echo continued; exit 7\n",
    );
    for (program, keys, input) in [
        ("sh typed".to_owned(), "\x1a", "line\n"),
        (format!("{python} group"), "", ""),
        ("sh itself".to_owned(), "", ""),
    ] {
        for prefix in ["", "mg "] {
            let mut terminal = place.shell("plan");
            terminal.line(format!("{prefix}{program}"));
            terminal.wait_for("ready");
            terminal.send(keys);
            terminal.wait_for("Stopped");
            terminal.wait_for("$ ");
            assert!(terminal.edits_lines(), "{prefix}{program}");
            terminal.line("fg");
            terminal.wait_for(&format!("{prefix}{program}"));
            terminal.send(input);
            terminal.wait_for("continued");
            terminal.wait_for("$ ");
            terminal.line("echo code=$?.");
            terminal.wait_for("code=7.");
            terminal.line("exit");
            assert!(terminal.end().success());
        }
    }
}

/// The loop has no child processes: one that stops between its `vfork` and its `exec` keeps the shell from stopping.
#[test]
fn stopped_program_can_go_on_in_the_background() {
    let place = Place::new();
    place.script("writer", "echo ready; until [ -e go ]; do :; done; echo done > result; exit 3\n");
    let mut terminal = place.shell("code");
    terminal.line("mg sh writer");
    terminal.wait_for("ready");
    terminal.send("\x1a");
    terminal.wait_for("Stopped");
    std::fs::write(place.work().join("go"), "").unwrap();
    std::thread::sleep(MOMENT);
    let result = place.work().join("result");
    assert!(!exists(&result), "it is stopped");
    terminal.line("bg");
    terminal.wait_until("in the background", |_| exists(&result));
    terminal.line("wait %1; echo code=$?.");
    terminal.wait_for("code=3.");
    terminal.line("exit");
    terminal.end();
}

/// A program in the background that reads from its terminal stops, as without Modegate.
#[test]
fn program_in_the_background_does_not_read() {
    let place = Place::new();
    place.script("reader", "echo ready; read line; echo got $line; exit 3\n");
    let mut terminal = place.shell("plan");
    terminal.line("mg sh reader");
    terminal.wait_for("ready");
    terminal.send("\x1a");
    terminal.wait_for("Stopped");
    terminal.line("bg");
    terminal.wait_for("reader &");
    terminal.line("until jobs | grep Stop''ped; do sleep 0.1; done");
    terminal.wait_for("Stopped");
    terminal.wait_for("$ ");
    terminal.line("fg");
    terminal.wait_for("sh reader");
    terminal.line("typed");
    terminal.wait_for("got typed");
    terminal.wait_for("$ ");
    terminal.line("echo code=$?.");
    terminal.wait_for("code=3.");
    terminal.line("exit");
    terminal.end();
}

#[test]
fn program_comes_back_from_the_background() {
    let place = Place::new();
    place.script("late", "echo ready; until [ -e go ]; do :; done; read line; echo got $line\n");
    let mut terminal = place.shell("code");
    terminal.line("mg sh late");
    terminal.wait_for("ready");
    terminal.send("\x1a");
    terminal.wait_for("Stopped");
    terminal.line("bg");
    terminal.wait_for("late &");
    terminal.line("fg");
    terminal.wait_for("sh late");
    // The terminal passes keys as they are.
    terminal.wait_until("in the foreground", |terminal| !terminal.edits_lines());
    std::fs::write(place.work().join("go"), "").unwrap();
    terminal.line("typed");
    terminal.wait_for("got typed");
    terminal.wait_for("$ ");
    terminal.line("exit");
    terminal.end();
}

/// A program that reads in the background stops. The process that has the user's terminal and the one that has the
/// session hear of it later than `fg`, which continues the program.
#[test]
fn stop_that_is_reported_after_fg_is_ignored() {
    let place = Place::new();
    let script = "echo $$ > process; echo ready; until [ -e go ]; do echo > running; done; read line; echo got $line\n";
    place.script("late", script);
    for slow in ["host", "session"] {
        let mut terminal = place.shell("code");
        terminal.line("mg sh late");
        terminal.wait_for("ready");
        let running = place.work().join("running");
        terminal.wait_until("running", |_| exists(&running));
        let read = std::fs::read_to_string(place.work().join("process")).unwrap();
        let program = read.trim().parse().unwrap();
        let host = only_child(i32::try_from(terminal.process()).unwrap());
        let slow = if slow == "host" { host } else { only_child(host) };
        terminal.send("\x1a");
        terminal.wait_for("Stopped");
        std::fs::remove_file(&running).unwrap();
        terminal.line("bg");
        terminal.wait_for("late &");
        terminal.wait_until("running", |_| exists(&running));
        send_signal(slow, Signal::STOP);
        terminal.wait_until("slow", |_| state(slow) == Some('T'));
        if slow != host {
            terminal.line("fg");
            terminal.wait_for("sh late");
            terminal.wait_until("in the foreground", |terminal| !terminal.edits_lines());
        }
        std::fs::write(place.work().join("go"), "").unwrap();
        terminal.wait_until("stopped by its read", |_| state(program) == Some('T'));
        // The report of the stop comes as far as the process that is slow.
        std::thread::sleep(MOMENT);
        if slow == host {
            terminal.line("fg");
            terminal.wait_for("sh late");
        } else {
            send_signal(slow, Signal::CONT);
        }
        terminal.wait_until("in the foreground", |terminal| !terminal.edits_lines());
        terminal.line("typed");
        terminal.wait_for("got typed");
        terminal.wait_for("$ ");
        terminal.line("exit");
        terminal.end();
        for name in ["go", "running"] {
            std::fs::remove_file(place.work().join(name)).unwrap();
        }
    }
}

fn only_child(process: i32) -> i32 {
    let list = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    let children: Vec<_> = list.split_ascii_whitespace().collect();
    let [child] = children[..] else { panic!("children of {process}: {children:?}") };
    child.parse().unwrap()
}

/// `T` for a stopped process.
fn state(process: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn send_signal(process: i32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
}

#[test]
fn shell_inside_has_its_own_jobs() {
    let place = Place::new();
    let mut terminal = place.shell("code");
    terminal.line("mg bash --norc --noprofile -i");
    terminal.wait_for("bash");
    terminal.line("PS1='in''side '; set +o emacs");
    terminal.wait_for("inside ");
    // Without a fork, which a stop could interrupt.
    terminal.line("sh -c 'echo started; exec sleep 60'");
    terminal.wait_for("\nstarted");
    terminal.send("\x1a");
    terminal.wait_for("Stopped");
    terminal.wait_for("inside ");
    terminal.line("kill %1; suspend");
    terminal.wait_for("Stopped");
    terminal.wait_for("$ ");
    terminal.line("fg");
    terminal.line("echo still $((40+2)) inside; exit 9");
    terminal.wait_for("still 42 inside");
    terminal.wait_for("$ ");
    terminal.line("echo code=$?.");
    terminal.wait_for("code=9.");
    terminal.line("exit");
    terminal.end();
}

#[test]
fn mode_of_a_stopped_program_changes() {
    let place = Place::new();
    place.script("writer", "echo ready; read line; echo x > f && echo written; read line\n");
    let mut terminal = place.shell("plan");
    terminal.line("mg sh writer");
    terminal.wait_for("ready");
    terminal.send("\x1a");
    terminal.wait_for("Stopped");
    let (code, out, messages) = place.run(&["mode", &running(&place), "code"]);
    assert_eq!((code, out.trim()), (Some(0), "code"), "{messages}");
    terminal.line("fg");
    terminal.wait_for("sh writer");
    terminal.line("");
    terminal.wait_for("written");
    terminal.send("\n");
    terminal.wait_for("$ ");
    terminal.line("exit");
    terminal.end();
}

/// The session of the only running program.
fn running(place: &Place) -> String {
    let sockets = std::fs::read_dir(place.dir.path().join(".local/share/modegate/run")).unwrap();
    let names: Vec<_> = sockets.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    names[0].file_stem().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn keys_and_signals_reach_the_program() {
    let place = Place::new();
    for (script, keys, code) in [
        ("trap 'echo own; exit 7' INT; echo ready; while :; do sleep 0.05; done\n", "\x03", 7),
        ("echo ready; while :; do sleep 0.05; done\n", "\x03", 130),
        ("echo ready; while :; do sleep 0.05; done\n", "\x1c", 131),
        ("echo ready; cat; exit 4\n", "\x04", 4),
        ("echo ready; kill -9 $$\n", "", 137),
    ] {
        let mut terminal = place.hosted("plan", script);
        terminal.wait_for("ready");
        terminal.send(keys);
        assert_eq!(terminal.end().code(), Some(code), "{script} {keys:?}");
        assert!(terminal.edits_lines(), "the terminal's settings are restored");
    }
    let mut terminal =
        place.hosted("plan", "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done\n");
    terminal.wait_for("ready");
    terminal.resize(101, 37);
    terminal.wait_for("37 101");
    send_signal(i32::try_from(terminal.process()).unwrap(), Signal::INT);
    assert_eq!(terminal.end().code(), Some(130), "a signal to Modegate is one to the program");
    for program in [["no-such-program"], ["/etc/passwd"]] {
        let command = place.modegate(&[&["run", "--mode", "plan", "--"][..], &program].concat());
        let code = if program[0].starts_with('/') { 126 } else { 127 };
        assert_eq!(TestTerminal::start(&command).end().code(), Some(code), "{program:?}");
    }
}

#[test]
fn closed_terminal_ends_the_program() {
    let place = Place::new();
    let script =
        "trap 'echo > hung-up; exit' HUP; echo > started; echo ready; while :; do sleep 0.05; done\n";
    let mut terminal = place.hosted("code", script);
    terminal.wait_for("ready");
    let (name, process) = (running(&place), terminal.process());
    assert_eq!(terminal.close().code(), Some(129));
    assert!(exists(&place.work().join("started")) && exists(&place.work().join("hung-up")));
    assert!(!exists(Path::new(&format!("/proc/{process}"))));
    let (code, out, messages) = place.run(&["sessions", "undo", &name]);
    assert_eq!(code, Some(0), "{out}{messages}");
    assert!(!exists(&place.work().join("started")), "the record is complete");
}

/// Random bytes, with escape sequences of every class.
fn bytes(runner: &mut TestRunner, parts: usize) -> Vec<u8> {
    use proptest::collection::vec;
    use proptest::prelude::*;
    let sequence = prop_oneof![
        vec(any::<u8>(), 1..60),
        "\x1b\\[[0-?]{0,8}[ -/]{0,2}[@-~]".prop_map(String::into_bytes),
        "\x1b\\][0-9]{1,4};[ -~]{0,20}(\x07|\x1b\\\\)".prop_map(String::into_bytes),
        "\x1b[PX^_][ -~]{0,30}\x1b\\\\".prop_map(String::into_bytes),
        "\x1b[ -/]{0,2}[0-~]".prop_map(String::into_bytes),
        "[a-zäöü€😀 ]{0,40}\r?\n".prop_map(String::into_bytes),
        Just(vec![0, 3, 4, 17, 19, 26, 28, 127, 255]),
    ];
    vec(sequence, parts).new_tree(runner).unwrap().current().concat()
}

#[test]
fn every_byte_passes_in_both_directions() {
    let place = Place::new();
    let mut runner = TestRunner::deterministic();
    for (parts, script) in [
        (40, "stty raw -echo; echo ready; cat bytes; echo END\n"),
        (20_000, "stty raw -echo; echo ready; cat bytes; echo END\n"),
    ] {
        let bytes = bytes(&mut runner, parts);
        std::fs::write(place.work().join("bytes"), &bytes).unwrap();
        let mut terminal = place.hosted("plan", script);
        terminal.wait_for("ready\n");
        let start = terminal.output.windows(6).position(|part| part == b"ready\n").unwrap() + 6;
        assert!(terminal.end().success());
        let passed = &terminal.output[start..];
        let end = start_of(passed, b"END\n");
        assert!(passed[..end] == bytes[..], "{} of {} bytes", end, bytes.len());
    }
    for parts in [10, 3_000] {
        let bytes = bytes(&mut runner, parts);
        let script = format!("stty raw -echo; echo ready; head -c {} > typed; echo END\n", bytes.len());
        let mut terminal = place.hosted("code", &script);
        terminal.wait_for("ready\n");
        terminal.send(&bytes);
        terminal.wait_for("END\n");
        assert!(terminal.end().success());
        assert!(std::fs::read(place.work().join("typed")).unwrap() == bytes, "{parts}");
    }
}

fn start_of(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).rposition(|window| window == part).unwrap()
}

/// Prints the parts of the user's terminal that the program can reach. Arguments: its name, and the process that has it.
const REACH: &str = r#"
import fcntl, os, sys
name, host = sys.argv[1], sys.argv[2].replace("self", str(os.getpid()))
def write(path):
    os.write(os.open(path, os.O_WRONLY | os.O_NOCTTY), b"intruder\r\n")
children = open("/proc/%s/task/%s/children" % (host, host)).read().split()
ways = [name, "/dev/../" + name.lstrip("/")]
for process in [host] + children:
    for number in range(12):
        ways.append("/proc/%s/fd/%d" % (process, number))
for way in ways:
    try:
        write(way)
        print("reached", way, flush=True)
    except OSError:
        pass
try:
    fcntl.ioctl(0, 0x5412, b"i")
except OSError:
    pass
for entry in os.listdir("/proc/self/fd"):
    try:
        target = os.readlink("/proc/self/fd/" + entry)
    except OSError:
        continue
    print("has", target, flush=True)
print("END", flush=True)
"#;

#[test]
fn program_does_not_reach_the_users_terminal() {
    let place = Place::new();
    place.script("reach.py", REACH);
    for mode in ["plan", "ask", "code"] {
        let mut terminal =
            place.hosted(mode, &format!("read name host; exec {} reach.py $name $host\n", python()));
        terminal.wait_for("\n");
        let (name, host) = (terminal.name(), terminal.process());
        terminal.line(format!("{name} {host}"));
        let shown = terminal.wait_for("END");
        assert!(!shown.contains("reached") && !shown.contains("intruder"), "{mode}: {shown}");
        for line in shown.lines().filter(|line| line.starts_with("has ")) {
            let target = line.trim_end().trim_start_matches("has ");
            assert!(target != name && !target.starts_with("socket:"), "{mode}: {line}");
        }
        assert!(terminal.end().success());
    }
    let mut control = Command::new(python());
    control.args(["reach.py", "/dev/tty", "self"]).current_dir(place.work());
    let mut terminal = TestTerminal::start(&control);
    let shown = terminal.wait_for("END");
    assert!(shown.contains("reached /dev/tty") && shown.contains("intruder"), "the control: {shown}");
}
