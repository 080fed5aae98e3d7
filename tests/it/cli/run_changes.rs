//! The panel of `modegate run` while the program runs: its changes and their undo, refused acts,
//! hosts, and several open questions.

use std::io::Read;
use std::net::TcpListener;

use super::run::Place;
use super::run_panel::{CLOSED, KEY, READING_TIME};
use crate::support::requirements::python;

#[test]
fn changes_are_shown_and_undone_while_the_program_runs() {
    let place = Place::new();
    let work = place.work();
    for (name, text) in [("old", "one\ntwo\n"), ("gone", "lost\n")] {
        std::fs::write(work.join(name), text).unwrap();
    }
    let script = "sed -i s/two/changed/ old; rm gone; mkdir d; echo made > d/new; echo ready
        read line; echo again > d/new; echo again; read line";
    let mut terminal = place.in_terminal(&["--mode", "code"], script);
    terminal.wait_for("ready");
    terminal.send(KEY);
    terminal.wait_for("4 changed paths: diffs, undo");
    terminal.send("c");
    terminal.wait_for("d/new");
    terminal.wait_for("gone");
    terminal.wait_for("+0 -1");
    // From the folder to the changed file.
    for _ in 0..3 {
        terminal.send("\x1b[B");
    }
    terminal.send("\r");
    terminal.wait_for("-two");
    terminal.wait_for("+changed");
    terminal.send("u");
    terminal.wait_for("Undo the changes of old?");
    terminal.send("y");
    terminal.wait_for("1 path was restored.");
    assert_eq!(std::fs::read_to_string(work.join("old")).unwrap(), "one\ntwo\n");
    assert!(!work.join("gone").exists(), "the others stay");
    terminal.send("U");
    terminal.wait_for("Undo the changes of all changed paths?");
    terminal.send("y");
    terminal.wait_for("3 paths were restored.");
    assert!(work.join("gone").exists() && !work.join("d").exists());
    terminal.send("q");
    terminal.wait_for("0 changed paths");
    std::fs::create_dir(work.join("d")).unwrap();
    terminal.send("q");
    terminal.wait_for(CLOSED);
    terminal.line("");
    terminal.wait_for("again");
    terminal.line("");
    terminal.wait_for("1 path changed");
    assert!(terminal.end().success());
    let shown = String::from_utf8_lossy(&terminal.output).into_owned();
    let part = shown.rsplit("sessions undo ").next().unwrap()[..6].to_owned();
    let (code, out, messages) = place.run(&["audit", &part]);
    assert_eq!(code, Some(0), "{out}{messages}");
    let (code, out, messages) = place.run(&["sessions", "undo", &part]);
    assert_eq!(code, Some(0), "{out}{messages}");
    assert!(!work.join("d/new").exists(), "a change after the undo is undone");
}

/// The mode limits the program, not its user.
#[test]
fn changes_are_undone_in_a_mode_that_denies_changes() {
    let place = Place::new();
    let script = "echo x > a; echo ready; read line; echo y > b; read line";
    let mut terminal = place.in_terminal(&["--mode", "code"], script);
    terminal.wait_for("ready");
    assert_eq!(place.run(&["mode", "plan"]).0, Some(0));
    terminal.line("");
    terminal.wait_for("ermission denied");
    terminal.send(KEY);
    terminal.wait_for("1 refused act");
    terminal.send("d");
    terminal.wait_for("Change b (sh)");
    terminal.wait_for("Plan mode does not allow changes.");
    terminal.send("c");
    terminal.wait_for("1 changed path");
    terminal.send("U");
    terminal.wait_for("Undo the changes of all");
    terminal.send("y");
    terminal.wait_for("1 path was restored.");
    assert!(!place.work().join("a").exists());
    terminal.send("q");
    terminal.wait_for("0 changed paths");
    terminal.send("q");
    terminal.wait_for(CLOSED);
    terminal.line("");
    terminal.wait_for("nothing changed");
    assert!(terminal.end().success());
}

#[test]
fn refused_host_is_allowed_until_the_program_ends() {
    let place = Place::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let script = format!(
        "exec {} -c '
import socket, sys
def attempt():
    try:
        socket.create_connection((\"127.0.0.1\", {})).send(b\"x\")
        return \"connected\"
    except PermissionError:
        return \"was refused\"
print(attempt(), flush=True)
input()
print(attempt(), flush=True)'",
        python(),
        address.port()
    );
    let mut terminal = place.in_terminal(&["--mode", "plan"], &script);
    terminal.wait_for("was refused");
    terminal.send(KEY);
    terminal.wait_for("1 refused act");
    terminal.send("d");
    terminal.wait_for(&format!("Connect to {address}"));
    terminal.wait_for("a: allow this host");
    terminal.send("a");
    terminal.wait_for(&format!("{address} is allowed now."));
    terminal.send("q");
    terminal.wait_for("q: close");
    terminal.send("q");
    terminal.wait_for(CLOSED);
    terminal.line("");
    terminal.wait_for("connected");
    let mut received = [0];
    server.accept().unwrap().0.read_exact(&mut received).unwrap();
    assert!(terminal.end().success());
    let shown = String::from_utf8_lossy(&terminal.output).into_owned();
    assert!(shown.contains(&format!("You have allowed connections to {address}")), "{shown}");
}

#[test]
fn several_questions_are_a_list() {
    let place = Place::new();
    let script = "(echo > a) & (echo > b) & wait; echo first; (echo > c) & (echo > d) & wait; echo end";
    let mut terminal = place.in_terminal(&["--mode", "ask"], script);
    terminal.wait_for("Question 1 of 2");
    std::thread::sleep(READING_TIME);
    terminal.send("\t");
    terminal.wait_for("Open questions.");
    terminal.send("2");
    let shown = terminal.wait_for("Question 2 of 2");
    let first = if shown.contains("1 Create a") { "a" } else { "b" };
    std::thread::sleep(READING_TIME);
    terminal.send("5");
    terminal.wait_for(&format!("Create {first} (sh)?"));
    std::thread::sleep(READING_TIME);
    terminal.send("1");
    terminal.wait_for("first");
    terminal.wait_for("Question 1 of 2");
    std::thread::sleep(READING_TIME);
    // All changes.
    terminal.send("4");
    terminal.wait_for("end");
    assert!(terminal.end().success());
    let exists = |name: &str| place.work().join(name).exists();
    assert!(exists(first) && exists("c") && exists("d"));
    assert!(!(exists("a") && exists("b")), "the second question was rejected");
}

#[test]
fn settings_of_the_user_choose_the_key_and_the_signal() {
    let place = Place::new();
    let folder = place.dir.path().join(".config/modegate");
    std::fs::create_dir_all(&folder).unwrap();
    let write = |text: &str| std::fs::write(folder.join("config.yaml"), text).unwrap();
    write("run: {key: ctrl-x, questions: bell, title: false}");
    let script = "stty raw -echo; echo ready; head -c 1 | od -An -tx1; stty sane; echo > a && echo wrote";
    let mut terminal = place.in_terminal(&["--mode", "ask"], script);
    terminal.wait_for("ready");
    terminal.send(KEY);
    terminal.wait_for(" 1d");
    terminal.wait_for("waits for your answer");
    terminal.wait_until("rung", |terminal| terminal.has_shown("\x07"));
    terminal.send("\x18");
    terminal.wait_for("Create a (sh)?");
    std::thread::sleep(READING_TIME);
    terminal.send("1");
    terminal.wait_for(CLOSED);
    terminal.wait_for("wrote");
    assert!(terminal.end().success());
    assert!(!terminal.has_shown("\x1b]2;"), "the title stays");
    // Options take precedence.
    let mut terminal = place.in_terminal(&["--mode", "ask", "--questions", "panel"], "echo > b");
    terminal.wait_for("Create b (sh)?");
    std::thread::sleep(READING_TIME);
    terminal.send("1");
    assert!(terminal.end().success());
    write("run: {key: f1}");
    let mut terminal = place.in_terminal(&["--mode", "plan"], "true");
    terminal.wait_for("run.key in config.yaml: a key is ctrl-");
    assert_eq!(terminal.end().code(), Some(2));
    write("run: {key: none}");
    let mut terminal = place.in_terminal(&["--mode", "plan"], "echo done");
    terminal.wait_for("in another terminal");
    terminal.wait_for("done");
    assert!(terminal.end().success());
}
