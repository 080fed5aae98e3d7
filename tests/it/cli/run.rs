//! `modegate run` and `modegate mode`: a terminal program under a mode that other terminals change.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::requirements::{lasting_folder, python, require_sandbox};
use crate::support::user_terminal::TestTerminal;

const PATIENCE: Duration = Duration::from_secs(30);

/// `modegate mode` accepts an answer only after the question was visible for a second.
const READING_TIME: Duration = Duration::from_millis(1_050);

pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        require_sandbox();
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("work")).unwrap();
        Self { dir }
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.dir.path().join("work").canonicalize().unwrap()
    }

    pub(crate) fn modegate(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
        command.current_dir(self.work()).args(arguments).env("HOME", self.dir.path()).stdin(Stdio::null());
        for name in ["XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a script of `sh` with options of `modegate run`, in a terminal of its own.
    pub(crate) fn in_terminal(&self, options: &[&str], script: &str) -> TestTerminal {
        std::fs::write(self.work().join("script"), script).unwrap();
        TestTerminal::start(&self.modegate(&[&["run"], options, &["--", "sh", "script"]].concat()))
    }

    /// Returns the exit code, the output and the messages.
    pub(crate) fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let out = self.modegate(arguments).output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    }
}

/// A damaged store cannot record changes, so no mode that permits them starts, unless the user's settings say so.
#[test]
fn programs_whose_changes_cannot_be_recorded_change_nothing() {
    let place = Place::new();
    let data = place.dir.path().join(".local/share/modegate");
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(data.join("modegate.db"), "no database ".repeat(500)).unwrap();
    let write = |mode: &str| place.run(&["run", "--mode", mode, "--", "sh", "-c", "echo x > new; echo ran"]);
    for mode in ["code", "ask"] {
        let (code, output, messages) = write(mode);
        assert_eq!((code, output.as_str()), (Some(125), ""), "{messages}");
        let refusal = format!(
            "the program was not started: the program's changes in {mode} mode could not be recorded"
        );
        assert!(messages.contains(&refusal) && messages.contains("not a database"), "{messages}");
        assert!(!place.work().join("new").exists());
    }
    let (code, output, messages) = write("plan");
    assert_eq!((code, output.as_str()), (Some(0), "ran\n"), "{messages}");
    assert!(
        messages.contains("plan mode: nothing changed") && !messages.contains("sessions show"),
        "{messages}"
    );
    // A mode that permits changes is refused while the program runs, too.
    let mut running = place.modegate(&["run", "--mode", "plan", "--", "sh", "-c", "cat; echo x > new"]);
    let mut running = running.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    let refused = loop {
        let (code, _, messages) = place.run(&["mode", "code"]);
        if code == Some(1) && messages.contains("the mode stays as it is: the program's changes in code mode")
        {
            break true;
        }
        if started.elapsed() > PATIENCE {
            break false;
        }
    };
    drop(running.stdin.take());
    let _ = running.wait_with_output().unwrap();
    assert!(refused && !place.work().join("new").exists());
    let (_, _, messages) = place.run(&["store", "salvage"]);
    assert!(messages.contains("not a database; `modegate store reset` sets it aside"), "{messages}");
    let config = place.dir.path().join(".config/modegate");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("config.yaml"), "store: {unrecorded_changes: allow}\n").unwrap();
    let (code, output, messages) = write("code");
    assert_eq!((code, output.as_str()), (Some(125), "ran\n"), "{messages}");
    assert!(
        place.work().join("new").exists() && messages.contains("code mode: changes are not recorded"),
        "{messages}"
    );
}

#[test]
fn folder_without_a_place_for_the_socket_is_named() {
    let place = Place::new();
    let data = place.dir.path().join(".local/share/modegate");
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(data.join("run"), "").unwrap();
    let (code, _, messages) = place.run(&["run", "--mode", "code", "--", "true"]);
    let named =
        messages.contains("modegate/run: the socket for other terminals cannot be made there; HOME or");
    assert!(code == Some(125) && named, "{messages}");
    std::fs::remove_file(data.join("run")).unwrap();
    assert_eq!(place.run(&["run", "--mode", "code", "--", "true"]).0, Some(0), "the control");
}

#[test]
fn program_runs_under_the_mode_and_keeps_its_streams() {
    let place = Place::new();
    let out = place.run(&["run", "--mode", "plan", "--", "sh", "-c", "echo out; echo x > f; exit 3"]);
    assert_eq!((out.0, out.1.as_str()), (Some(3), "out\n"), "{}", out.2);
    assert!(out.2.contains("ermission denied") && !place.work().join("f").exists(), "{}", out.2);
    let mut child = place.modegate(&["run", "--mode", "code", "--", "sh", "-c", "cat > f; cat f"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"typed\n").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(0), b"typed\n".as_slice()));
    let (code, _, messages) = place.run(&["run", "--mode", "code", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(code, Some(137), "{messages}");
    let (code, _, messages) = place.run(&["run", "--mode", "code", "--", "/missing/program"]);
    assert_eq!(code, Some(127));
    assert!(messages.contains("modegate: /missing/program cannot be run: No such file"), "{messages}");
    let (code, _, messages) = place.run(&["run", "--mode", "code", "--", "no-such-program"]);
    assert_eq!(code, Some(127));
    assert!(messages.contains("no-such-program cannot be run: it was not found on PATH"), "{messages}");
    let (code, _, messages) = place.run(&["run", "--mode", "code", "--", "/etc/passwd"]);
    assert_eq!(code, Some(126), "{messages}");
    let (_, _, messages) = place.run(&["run", "--mode", "plan", "--", "true"]);
    assert!(messages.contains("The program true is sandboxed: in plan mode"), "{messages}");
    let binary = env!("CARGO_BIN_EXE_modegate");
    let within = ["run", "--mode", "code", "--", binary, "run", "--mode", "plan", "--", "true"];
    let (_, _, messages) = place.run(&within);
    assert!(messages.contains("it runs in Modegate already"), "{messages}");
    let (code, _, messages) = place.run(&["run", "--mode", "nowhere", "--", "true"]);
    assert!(code == Some(2) && messages.contains("ask, plan, code"), "{messages}");
}

/// Temporary folders are shared with other programs, and undo does not cover them.
#[test]
fn temporary_folders_are_written_where_the_mode_allows_changes() {
    let (place, home) = (Place::new(), lasting_folder());
    let name = format!("/tmp/modegate-test-{}", std::process::id());
    for (mode, works) in [("code", true), ("plan", false)] {
        let script = format!("echo x > f; echo x > {name} && mv {name} moved && rm moved && echo done");
        let run = ["run", "--mode", mode, "--", "sh", "-c", &script];
        let out = place.modegate(&run).env("HOME", home.path()).output().unwrap();
        let messages = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.stdout == b"done\n", works, "{mode}: {messages}");
        assert_eq!(messages.contains("1 path changed"), works, "{mode}: {messages}");
        assert!(!Path::new(&name).exists(), "{mode}");
    }
}

/// The trial of the sandbox lies in the temporary folder, and tries to change a file beside its own folder.
#[test]
fn program_starts_with_its_temporary_folder_in_shared_memory() {
    let place = Place::new();
    let mut command = place.modegate(&["run", "--mode", "code", "--", "sh", "-c", "echo x > new"]);
    let output = command.env("TMPDIR", "/dev/shm").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_to_string(place.work().join("new")).unwrap(), "x\n");
}

/// In `code`, other sessions' folders and the temporary folder itself stay as they are.
#[test]
fn temporary_folders_of_other_sessions_are_not_changed() {
    let (place, home) = (Place::new(), lasting_folder());
    let other = format!("/tmp/modegate-{}", uuid::Uuid::now_v7());
    std::fs::create_dir(&other).unwrap();
    std::fs::write(format!("{other}/kept"), "").unwrap();
    for change in [
        format!("echo x > {other}/new"),
        format!("rm -r {other}"),
        format!("mv {other} {other}.moved"),
        "chmod $(stat -c %a /tmp) /tmp".into(),
    ] {
        let run = ["run", "--mode", "code", "--", "sh", "-c", &format!("echo x >> f; {change} && echo done")];
        let out = place.modegate(&run).env("HOME", home.path()).output().unwrap();
        let messages = String::from_utf8_lossy(&out.stderr);
        assert_eq!(String::from_utf8_lossy(&out.stdout), "", "{change}: {messages}");
        assert!(messages.contains("1 path changed"), "the control: {change}: {messages}");
        assert!(Path::new(&other).join("kept").exists(), "{change}");
        assert!(!Path::new(&other).join("new").exists(), "{change}");
    }
    std::fs::remove_dir_all(&other).unwrap();
}

#[test]
fn further_folders_are_changed_where_the_mode_allows_it() {
    let place = Place::new();
    // `/tmp` can be written anyway.
    let other = lasting_folder();
    let folder = other.path().join("site");
    std::fs::create_dir(&folder).unwrap();
    let line = "echo x > $0/$1; echo x > $0/../beside";
    for (mode, option, is_written) in [("plan", true, false), ("code", true, true), ("code", false, false)] {
        let name = format!("{mode}-{option}");
        let path = folder.to_str().unwrap();
        let options = if option { vec!["--write-dir", path] } else { vec![] };
        let run = [&["run", "--mode", mode][..], &options, &["--", "sh", "-c", line, path, &name]].concat();
        let (_, _, messages) = place.run(&run);
        assert_eq!(folder.join(&name).exists(), is_written, "{name}: {messages}");
        assert!(!other.path().join("beside").exists(), "{name}: {messages}");
        assert_eq!(messages.contains("--write-dir DIR"), mode == "code", "{name}: {messages}");
    }
    let inner = place.work().join("inner");
    let (code, _, messages) = place.run(&["run", "--write-dir", inner.to_str().unwrap(), "--", "true"]);
    assert!(code == Some(125) && messages.contains("lies in another folder"), "{messages}");
}

/// The git folder lies outside of the program's folder: in a subfolder of a repository, and in a linked worktree.
#[test]
fn program_commits_where_the_git_folder_is_elsewhere() {
    let place = Place::new();
    let git = |arguments: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", arguments]).current_dir(place.dir.path()).env("HOME", place.dir.path());
        assert!(command.status().unwrap().success(), "{arguments}");
    };
    git(
        "git config --global user.name me; git config --global user.email me@example.org; git init -q repository; \
         mkdir repository/part; cd repository; echo a > part/a; git add .; git commit -qm first; \
         git worktree add -q ../tree",
    );
    for folder in ["repository/part", "tree"] {
        let commit = |mode: &str| {
            let line = "echo $$ > new; git add new && git commit -qm second && git log --oneline | wc -l";
            let mut command = place.modegate(&["run", "--mode", mode, "--", "sh", "-c", line]);
            let out = command.current_dir(place.dir.path().join(folder)).output().unwrap();
            (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned(), out)
        };
        let (code, _, out) = commit("plan");
        assert_ne!(code, Some(0), "{folder}: {out:?}");
        let (code, text, out) = commit("code");
        assert!(code == Some(0) && text.trim() == "2", "{folder}: {out:?}");
    }
    // With a rule, each change is decided for its path.
    let settings = place.dir.path().join(".config/modegate");
    std::fs::create_dir_all(&settings).unwrap();
    std::fs::write(settings.join("modes.yaml"), "permissions: { deny: ['edit_file(**/.env)'] }\n").unwrap();
    let line = "echo $$ > new; git add new && git commit -qm third && echo x > .env || echo refused";
    let mut command = place.modegate(&["run", "--mode", "code", "--", "sh", "-c", line]);
    let out = command.current_dir(place.dir.path().join("tree")).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(text, "refused\n", "{out:?}");
    git("cd tree; test `git log --oneline | wc -l` = 3");
    let outside = ["sh", "-c", "echo x > ../repository/part/a || echo x > ../repository/other"];
    let mut command = place.modegate(&[&["run", "--mode", "code", "--"][..], &outside].concat());
    let status = command.current_dir(place.dir.path().join("tree")).output().unwrap().status;
    assert!(!status.success(), "only the git folder of the other working tree is writable");
}

/// A program of `modegate run`, and the lines that it prints.
pub(crate) struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
    pub(crate) session: String,
}

impl Running {
    pub(crate) fn start(place: &Place, mode: &str, script: &str) -> Self {
        let mut command = place.modegate(&["run", "--mode", mode, "--", "sh", "-c", script]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        errors.read_line(&mut first).unwrap();
        let session = first.trim().rsplit(' ').next().unwrap().to_owned();
        assert!(first.contains(&format!("{mode} mode; to change it")), "{first}");
        let (to, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).all(|line| to.send(line).is_ok()));
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        Self { child, lines, session }
    }

    /// Skips the lines before `expected`.
    fn wait_for(&self, expected: &str) {
        while self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {expected}")) != expected {}
    }

    /// Returns the lines that the program prints after a moment.
    pub(crate) fn later(&self) -> Vec<String> {
        while self.lines.try_recv().is_ok() {}
        std::thread::sleep(Duration::from_millis(300));
        self.lines.try_iter().collect()
    }

    fn end(mut self, work: &Path) {
        std::fs::write(work.join("stop"), "").unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes a file repeatedly until `stop` exists.
pub(crate) const WRITER: &str = "i=0; while [ ! -e stop ]; do i=$((i+1)); \
    if echo x 2>/dev/null > f; then echo written; rm f; else echo denied; fi; sleep 0.01; done 2>/dev/null";

#[test]
fn program_cannot_read_what_a_rule_denies() {
    let place = Place::new();
    let folder = place.dir.path().join(".config/modegate");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, text) in [(".env", "secret\n"), ("a.txt", "open\n")] {
        std::fs::write(place.work().join(name), text).unwrap();
    }
    for mode in ["plan", "code"] {
        for (rules, expected) in [("[]", "secret\nopen\n"), ("['*(**/.env)']", "open\n")] {
            let rules = format!("permissions: {{deny: {rules}}}\n");
            std::fs::write(folder.join("modes.yaml"), rules).unwrap();
            let (_, output, messages) =
                place.run(&["run", "--mode", mode, "--", "sh", "-c", "cat .env; cat a.txt"]);
            assert_eq!(output, expected, "{mode}: {messages}");
        }
    }
}

#[test]
fn mode_changes_from_another_terminal_while_the_program_runs() {
    let place = Place::new();
    let running = Running::start(&place, "plan", WRITER);
    running.wait_for("denied");
    let part = running.session.clone();
    for (mode, line) in [("code", "written"), ("plan", "denied"), ("code", "written"), ("plan", "denied")] {
        let (code, out, messages) = place.run(&["mode", &part, mode]);
        assert_eq!((code, out.trim()), (Some(0), mode), "{messages}");
        running.wait_for(line);
        let later = running.later();
        assert!(!later.is_empty() && later.iter().all(|printed| printed == line), "{mode}: {later:?}");
    }
    let (code, _, messages) = place.run(&["mode", &part, "nowhere"]);
    assert!(code == Some(1) && messages.contains("nowhere"), "{messages}");
    let (code, _, messages) = place.run(&["mode", "ffffff", "code"]);
    assert!(code == Some(1) && messages.contains(&format!("running are {part}")), "{messages}");
    running.end(&place.work());
    let (code, _, messages) = place.run(&["mode"]);
    assert!(code == Some(1) && messages.contains("no program"), "{messages}");
    let (_, events, _) = place.run(&["modes", "log"]);
    let (code, audit, _) = place.run(&["audit", &part]);
    assert_eq!(code, Some(0), "{audit} {events}");
}

#[test]
fn questions_are_answered_in_another_terminal() {
    let place = Place::new();
    let script = "echo one > a && echo wrote a; echo two > b || echo no b; echo end";
    let running = Running::start(&place, "ask", script);
    let mut attached = place.modegate(&["mode"]);
    let mut attached = attached.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut answers = attached.stdin.take().unwrap();
    let mut shown = BufReader::new(attached.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut until =
        |end: &str| shown.by_ref().find(|line| line.contains(end)).unwrap_or_else(|| panic!("{end}"));
    until("sh runs in ask mode");
    until("Create a (sh)?");
    until("  5 Reject");
    assert!(!place.work().join("a").exists(), "before the answer");
    answers.write_all(b"9\n1\n").unwrap();
    until("Type a number from 1 to 6");
    until("The question has just appeared.");
    assert!(!place.work().join("a").exists(), "typed too early");
    std::thread::sleep(READING_TIME);
    answers.write_all(b"1\n").unwrap();
    running.wait_for("wrote a");
    until("Create b (sh)?");
    until(" 11 Reject");
    std::thread::sleep(READING_TIME);
    // The answer to the first question.
    answers.write_all(b"1\n").unwrap();
    until("Type a number from 7 to 12");
    assert!(!place.work().join("b").exists(), "an answer to another question");
    answers.write_all(b"11\n").unwrap();
    running.wait_for("no b");
    running.wait_for("end");
    until("The program has ended.");
    assert!(attached.wait().unwrap().success());
    assert!(place.work().join("a").exists() && !place.work().join("b").exists());
    let (code, out, messages) = place.run(&["sessions", "undo", &running.session]);
    assert_eq!(code, Some(0), "{out}{messages}");
    assert!(!place.work().join("a").exists(), "undone");
}

/// The end of the input and signals end `modegate mode`. The program continues.
#[test]
fn following_ends_without_the_program() {
    let place = Place::new();
    let running = Running::start(&place, "plan", WRITER);
    let follow = || {
        let mut command = place.modegate(&["mode"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    for typed in [&b""[..], b"code\n"] {
        let mut attached = follow();
        attached.stdin.take().unwrap().write_all(typed).unwrap();
        assert_eq!(exit_code(&mut attached), Some(0));
        let mut text = String::new();
        attached.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(text.contains("sh runs in plan mode"), "{text}");
        assert!(text.contains("Ctrl-C stops following; the program keeps running."), "{text}");
    }
    running.wait_for("written");
    for signal in ["-INT", "-TERM"] {
        let mut attached = follow();
        let mut line = String::new();
        BufReader::new(attached.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(attached.try_wait().unwrap().is_none(), "the control: {line}");
        assert!(Command::new("kill").args([signal, &attached.id().to_string()]).status().unwrap().success());
        assert_eq!(exit_code(&mut attached), Some(130), "{signal}");
    }
    assert!(!running.later().is_empty(), "the program keeps running");
    running.end(&place.work());
}

/// Waits for the end of a process, and kills the process after a deadline.
fn exit_code(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    panic!("the process did not end");
}

#[test]
fn question_says_how_to_answer() {
    let place = Place::new();
    let mut child = place.modegate(&["run", "--mode", "ask", "--", "sh", "-c", "echo > a || echo no"]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let question = lines.find(|line| line.contains("wants to")).unwrap();
    assert!(
        question.starts_with("modegate: sh wants to create a. The new content is not known"),
        "{question}"
    );
    let line = lines.next().unwrap();
    let part = line.strip_prefix("modegate: the program waits for your answer: `modegate mode ").unwrap();
    let part = part.strip_suffix("` in another terminal within 10 minutes").unwrap();
    let mut attached = place.modegate(&["mode", part]);
    let mut attached = attached.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    attached.stdin.as_mut().unwrap().write_all(b"code\n").unwrap();
    assert!(child.wait().unwrap().success() && attached.wait().unwrap().success());
    assert!(place.work().join("a").exists());
}

#[test]
fn sessions_of_programs_take_no_prompts() {
    let place = Place::new();
    let prompt = |which: &[&str]| place.run(&[which, &["--mode", "plan", "-p", "where is a?"]].concat());
    let session = |messages: &str| {
        let line = messages.lines().find(|line| line.starts_with("modegate: plan mode, session ")).unwrap();
        line.split_whitespace().nth(4).unwrap().to_owned()
    };
    let (_, _, messages) = prompt(&[]);
    let first = session(&messages);
    for program in ["no-such-program", "true"] {
        let (_, _, messages) = place.run(&["run", "--mode", "code", "--", program]);
        let part = messages.lines().next().unwrap().rsplit(' ').next().unwrap();
        let (code, _, messages) = prompt(&["--resume", part]);
        assert!(code == Some(1) && messages.contains("a program of `modegate run`"), "{messages}");
    }
    let (code, _, messages) = prompt(&["--continue"]);
    assert_eq!((code, session(&messages)), (Some(0), first.clone()), "{messages}");
    assert_eq!(prompt(&["--resume", &first]).0, Some(0), "the control");
}

/// Runs Modegate in a new terminal, types the last argument, and prints the terminal's output and the exit
/// code.
const TERMINAL: &str = "
import os, pty, sys
child, terminal = pty.fork()
if child == 0:
    os.execvp(sys.argv[1], sys.argv[1:-1])
text, typed = b'', False
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:
        break
    text += part
    if b'ready' in text and not typed:
        typed = True
        os.write(terminal, sys.argv[-1].encode().decode('unicode_escape').encode())
print(text.decode())
print('exit', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";

#[test]
fn program_keeps_its_terminal() {
    let place = Place::new();
    for (script, typed, expected) in [
        (
            "echo ready; read line; echo got $line on $(tty); echo own > /dev/tty",
            "typed\n",
            "got typed on /dev/pts/",
        ),
        ("stty rows 33; echo ready; read line; stty size; echo own > $(tty)", "x\n", "33 "),
        (
            "trap 'echo own interrupted; exit 7' INT; echo ready; while :; do sleep 0.05; done",
            "\\x03",
            "exit 7",
        ),
    ] {
        let mut command = Command::new(python());
        command.arg("-c").arg(TERMINAL).arg(env!("CARGO_BIN_EXE_modegate"));
        command.args(["run", "--mode", "plan", "--", "sh", "-c", script, typed]);
        command.current_dir(place.work()).env("HOME", place.dir.path()).env_remove("XDG_DATA_HOME");
        let out = command.output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(text.contains(expected) && text.contains("own"), "{script}: {text}");
        assert!(!text.contains("ermission denied"), "{script}: {text}");
    }
}
