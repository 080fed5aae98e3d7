//! The panel of `modegate run`: it opens over any program, and the screen, the keys and the settings of the terminal are
//! then as if it had never been open. A terminal emulator compares.

use std::time::Duration;

use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::run::Place;
use crate::support::requirements::python;
use crate::support::user_terminal::TestTerminal;

/// Answers count half a second after the question appeared.
pub(super) const READING_TIME: Duration = Duration::from_millis(600);

pub(super) const KEY: &str = "\x1d";
const OPENED: &str = "\x1b[?25l";
pub(super) const CLOSED: &str = "\x1b[<1u";

/// Writes a part of `parts` for each byte that it reads, and a mark after it, with a pause within the part.
const WRITER: &str = "
import os, sys, time, tty
tty.setraw(0)
os.write(1, b'\\x1b[2J\\x1b[Hready\\x1b_start\\x1b\\\\')
for number, line in enumerate(open('parts').read().split()):
    part = bytes.fromhex(line)
    os.read(0, 1)
    os.write(1, part[:len(part) // 2])
    time.sleep(0.01)
    os.write(1, part[len(part) // 2:] + b'\\x1b_mark%d\\x1b\\\\' % number)
os.read(0, 1)
";

/// Parts of the output of a program that the emulator understands.
fn parts(runner: &mut TestRunner, count: usize) -> Vec<Vec<u8>> {
    use proptest::collection::vec;
    use proptest::prelude::*;
    let sequence = prop_oneof![
        8 => "[a-zäöü€語 ]{0,30}",
        4 => "\r?\n",
        4 => "\x1b\\[[0-9]{1,2}(;[0-9]{1,2})?[ABCDHJKLMPSTX]",
        4 => "\x1b\\[(0|1|3|4|7|31|42|38;5;99|38;2;1;2;3)m",
        2 => "\x1b\\[[1-9];1[0-9]r",
        4 => "\x1b\\[\\?(1|9|25|1000|1002|1003|1005|1006|2004)[hl]",
        1 => "\x1b[=>M]",
        2 => "\x1b[78]",
        1 => "\x1b\\[\\?1049[hl]",
        1 => "\x1b\\]2;[a-z ]{0,9}(\x07|\x1b\\\\)",
        1 => "\x1b\\[>[0-9]u|\x1b\\[<u|\x1b\\[[0-6] q|\x1b\\[>4;[0-2]m",
    ];
    let part = vec(sequence, 1..12).prop_map(|texts| texts.concat().into_bytes());
    vec(part, count).new_tree(runner).unwrap().current()
}

/// The screen that a person sees, and the terminal's use of keys.
fn shown(output: &[u8]) -> String {
    let mut parser = vt100::Parser::new(24, 80, 0);
    parser.process(output);
    let screen = parser.screen();
    let modes = (
        screen.alternate_screen(),
        screen.application_cursor(),
        screen.application_keypad(),
        screen.bracketed_paste(),
        screen.hide_cursor(),
        screen.mouse_protocol_mode(),
        screen.mouse_protocol_encoding(),
    );
    let text = String::from_utf8_lossy(&screen.contents_formatted()).into_owned();
    format!("{modes:?}\n{:?}\n{text:?}", screen.cursor_position())
}

#[test]
fn screen_is_the_same_after_the_panel() {
    let place = Place::new();
    std::fs::write(place.work().join("writer.py"), WRITER).unwrap();
    let mut runner = TestRunner::deterministic();
    for round in 0..12 {
        let parts = parts(&mut runner, 12);
        let lines: Vec<String> =
            parts.iter().map(|part| part.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
        std::fs::write(place.work().join("parts"), lines.join("\n")).unwrap();
        let mut terminal = place.in_terminal(&["--mode", "plan"], &format!("exec {} writer.py", python()));
        terminal.wait_for("\x1b_start\x1b\\");
        for number in 0..parts.len() {
            terminal.send("n");
            let opens = (number + round) % 3 != 0;
            if opens {
                terminal.send(KEY);
                terminal.wait_for(OPENED);
                terminal.wait_for("plan mode");
                terminal.send("q");
                terminal.wait_for(CLOSED);
            }
            let mark = format!("\x1b_mark{number}\x1b\\");
            terminal.wait_until("marked", |terminal| terminal.has_shown(&mark));
        }
        let expected = shown(&[b"\x1b[2J\x1b[Hready", &*parts.concat()].concat());
        assert_eq!(
            shown(&terminal.output),
            expected,
            "round {round}: {:?}",
            String::from_utf8_lossy(&parts.concat())
        );
        terminal.send("n");
        assert!(terminal.end().success());
    }
}

/// Programs such as claude save the cursor, and draw from there. The terminal has shown other lines before.
#[test]
fn cursor_is_in_its_place_after_the_panel() {
    let place = Place::new();
    let script = "printf '\\0337prompt: '; read line; printf '\\0338at the start'; read line";
    std::fs::write(place.work().join("script"), script).unwrap();
    let run = format!("{} run --mode plan -- sh script", env!("CARGO_BIN_EXE_modegate"));
    let outer = format!("for i in 1 2 3 4 5 6; do echo line $i; done; exec {run}");
    let command = place.modegate(&[]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &outer]).current_dir(place.work());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let mut terminal = TestTerminal::start(&shell);
    terminal.wait_for("prompt: ");
    terminal.send(KEY);
    terminal.wait_for("plan mode");
    terminal.send("q");
    terminal.wait_for(CLOSED);
    terminal.wait_for("\x1b[?25h");
    terminal.line("typed");
    terminal.wait_for("at the start");
    let mut emulator = vt100::Parser::new(24, 80, 0);
    emulator.process(&terminal.output);
    let lines: Vec<String> = emulator.screen().rows(0, 80).collect();
    for number in 1..=6 {
        assert!(lines.contains(&format!("line {number}")), "{lines:#?}");
    }
    // Over "prompt: typed".
    assert!(lines.contains(&"at the startd".to_owned()), "{lines:#?}");
    terminal.line("");
    assert!(terminal.end().success());
}

/// The line that names the key comes before the program can draw, and fits a terminal of 80 columns.
#[test]
fn line_at_the_start_is_first() {
    let place = Place::new();
    for _ in 0..5 {
        let mut terminal = place.in_terminal(&["--mode", "plan"], "stty raw; printf drawn; stty -raw");
        let line = terminal.wait_for("drawn");
        let line = line.lines().find(|line| line.contains("opens panel")).unwrap_or_default().to_owned();
        assert!(line.starts_with("modegate: Ctrl-] opens panel \""), "{line:?}");
        assert!(line.contains("plan mode, changes fail; ") && line.trim_end().len() < 80, "{line:?}");
        assert!(terminal.end().success());
    }
}

/// GNU screen ignores the alternate screen by default.
#[test]
fn screen_comes_back_in_a_terminal_with_one_screen() {
    let place = Place::new();
    let output = "\x1b[2J\x1b[Hfirst\r\n\x1b[31mred\x1b[0m \x1b[1mready\x1b[0m";
    std::fs::write(place.work().join("output"), output).unwrap();
    let one_screen = |output: &[u8]| {
        let text = String::from_utf8_lossy(output).replace("\x1b[?1049h", "").replace("\x1b[?1049l", "");
        shown(text.as_bytes())
    };
    for (variable, is_same) in [("STY", true), ("OTHER", false)] {
        let mut command =
            place.modegate(&["run", "--mode", "plan", "--", "sh", "-c", "cat output; read line"]);
        let mut terminal = TestTerminal::start(command.env_remove("STY").env(variable, "1.host"));
        terminal.wait_for("ready\x1b[0m");
        terminal.send(KEY);
        terminal.wait_for("plan mode");
        terminal.send("q");
        terminal.wait_for(CLOSED);
        terminal.wait_for("\x1b[?25h");
        let expected = one_screen(output.as_bytes());
        if is_same {
            terminal.wait_until("as before", |terminal| one_screen(&terminal.output) == expected);
        } else {
            assert_ne!(one_screen(&terminal.output), expected, "the control");
        }
        terminal.line("");
        assert!(terminal.end().success());
    }
}

#[test]
fn full_screen_program_draws_its_screen_again() {
    let place = Place::new();
    // With a character set that the model of the screen does not know.
    let script =
        "draw() { printf '\\033[2J\\033[3;5H\\033(0\\033(BThe whole screen %s' \"$(stty size)\"; }; trap draw WINCH
        printf '\\033[?1049h\\033[?1002h\\033[?1006h\\033[?25l'; draw; stty raw -echo; echo ready
        while [ ! -e stop ]; do sleep 0.02; done; printf '\\033[?1049l\\033[?1002l\\033[?25h'";
    let mut terminal = place.in_terminal(&["--mode", "plan"], script);
    terminal.wait_for("ready");
    let before = shown(&terminal.output);
    terminal.send(KEY);
    terminal.wait_for("plan mode");
    assert!(!shown(&terminal.output).contains("whole screen"), "the control");
    terminal.send("q");
    terminal.wait_for(CLOSED);
    terminal.wait_for("The whole screen");
    terminal.wait_for("24 79");
    terminal.wait_for("24 80");
    let lines = |text: &str| text.replace("ready", "");
    assert_eq!(
        lines(&shown(&terminal.output)).contains("whole screen"),
        lines(&before).contains("whole screen")
    );
    for part in ["Press", "AnyMotion", "ButtonMotion"] {
        assert_eq!(shown(&terminal.output).contains(part), before.contains(part));
    }
    std::fs::write(place.work().join("stop"), "").unwrap();
    assert!(terminal.end().success());
}

#[test]
fn question_is_answered_in_the_panel() {
    let place = Place::new();
    let script = "echo one > a && echo wrote a; echo two > b || echo no b; read line; echo got $line";
    let mut terminal = place.in_terminal(&["--mode", "ask"], script);
    terminal.wait_for("Create a (sh)?");
    terminal.wait_for("Reject");
    terminal.send("1");
    terminal.wait_for("has just appeared");
    assert!(!place.work().join("a").exists(), "typed too early");
    std::thread::sleep(READING_TIME);
    terminal.send("1");
    terminal.wait_for("wrote a");
    terminal.wait_for("Create b (sh)?");
    std::thread::sleep(READING_TIME);
    terminal.send("5");
    terminal.wait_for("no b");
    terminal.line("typed");
    terminal.wait_for("got typed");
    assert!(terminal.end().success());
    assert!(place.work().join("a").exists() && !place.work().join("b").exists());
}

/// A program can have put text into the clipboard, and have asked the terminal a question.
#[test]
fn pasted_text_and_replies_of_the_terminal_answer_no_question() {
    let place = Place::new();
    let script = "stty raw -echo; (echo one > a; echo wrote) & head -c 9 | od -An -c; wait; stty sane";
    let mut terminal = place.in_terminal(&["--mode", "ask"], script);
    terminal.wait_for("Create a (sh)?");
    std::thread::sleep(READING_TIME);
    terminal.send("\x1b[200~1\r1\x1b[201~");
    terminal.send("\x1b]11;1");
    terminal.send("1\x1b\\");
    std::thread::sleep(READING_TIME);
    assert!(!place.work().join("a").exists(), "no key was pressed");
    terminal.send("1");
    terminal.wait_for(CLOSED);
    terminal.wait_for("033   ]   1   1   ;   1   1 033");
    assert!(terminal.end().success());
    assert!(place.work().join("a").exists());
}

#[test]
fn program_that_stops_without_a_shell_goes_on() {
    let place = Place::new();
    let mut terminal = place.in_terminal(&["--mode", "ask"], "kill -STOP $$; echo one > a && echo wrote a");
    terminal.wait_for("Create a (sh)?");
    std::thread::sleep(READING_TIME);
    terminal.send("1");
    terminal.wait_for("wrote a");
    assert!(terminal.end().success());
}

#[test]
fn mode_changes_in_the_panel() {
    let place = Place::new();
    let script = "echo ready; read line; echo x > a && echo written; read line";
    let mut terminal = place.in_terminal(&["--mode", "plan"], script);
    terminal.wait_for("ready");
    terminal.send(KEY);
    terminal.wait_for("q: close");
    terminal.send("m");
    terminal.wait_for("Changes files and runs commands without asking");
    terminal.send("3");
    terminal.wait_for("The mode is code.");
    terminal.send("q");
    terminal.wait_for(CLOSED);
    terminal.line("");
    terminal.wait_for("written");
    terminal.line("");
    assert!(terminal.end().success());
}

#[test]
fn key_reaches_the_program_if_it_is_typed_twice_or_is_another() {
    let place = Place::new();
    let script = "stty raw -echo; echo ready; head -c 1 | od -An -tx1; stty sane";
    for (options, typed) in [
        (&["--mode", "plan"][..], &[KEY, KEY][..]),
        (&["--mode", "plan", "--no-key"], &[KEY]),
        (&["--mode", "plan", "--key", "ctrl-x"], &[KEY]),
    ] {
        let mut terminal = place.in_terminal(options, script);
        terminal.wait_for("ready");
        for (number, key) in typed.iter().enumerate() {
            if number > 0 {
                terminal.wait_for("q: close");
            }
            terminal.send(key);
        }
        terminal.wait_for(" 1d");
        assert!(terminal.end().success());
    }
    let command = place.modegate(&["run", "--mode", "plan", "--key", "f1", "--", "true"]);
    assert_eq!(TestTerminal::start(&command).end().code(), Some(2));
}

/// The words of the start are in the panel, and nowhere that the program could read them.
#[test]
fn panel_has_the_words_of_the_start() {
    let place = Place::new();
    let mut terminal = place.in_terminal(&["--mode", "plan"], "echo ready; read line");
    terminal.wait_for("modegate: Ctrl-] opens panel \"");
    let words = terminal.wait_for("\"");
    assert_eq!(words.split(' ').count(), 2, "{words}");
    terminal.wait_for("ready");
    terminal.send(KEY);
    terminal.wait_for(&words);
    terminal.send("q");
    terminal.wait_for(CLOSED);
    terminal.line("");
    terminal.wait_for("plan mode, session");
    terminal.wait_for("nothing changed");
    assert!(terminal.end().success());
    let mut quiet = place.in_terminal(&["--mode", "plan", "--quiet"], "echo only");
    assert!(quiet.end().success());
    let output = String::from_utf8_lossy(&quiet.output).into_owned();
    assert!(!output.contains("session") && output.contains("only"), "{output}");
}

#[test]
fn title_of_the_window_has_the_mode() {
    let place = Place::new();
    let script = "printf '\\033]2;own title\\007'; echo ready; read line";
    let mut terminal = place.in_terminal(&["--mode", "plan"], script);
    terminal.wait_for("\x1b[22;2t\x1b]2;[plan] sh\x07");
    terminal.wait_for("\x1b]2;own title\x07");
    terminal.wait_for("\x1b]2;[plan] own title\x07");
    assert_eq!(place.run(&["mode", "code"]).0, Some(0));
    terminal.wait_for("\x1b]2;[code] own title\x07");
    terminal.line("");
    assert!(terminal.end().success());
    assert!(terminal.has_shown("\x1b[23;2t"));
}

#[test]
fn running_programs_are_listed_for_scripts() {
    let place = Place::new();
    let mut terminal = place.in_terminal(&["--mode", "ask"], "echo > a; echo done; read line");
    terminal.wait_for("Create a (sh)?");
    let (code, output, messages) = place.run(&["mode", "--json"]);
    assert_eq!(code, Some(0), "{messages}");
    let program: serde_json::Value = serde_json::from_str(&output).unwrap();
    let found = (&program["program"], &program["mode"], &program["questions"][0]["title"]);
    assert_eq!(found, (&"sh".into(), &"ask".into(), &"Create a (sh)".into()));
    assert_eq!(program["folder"], place.work().to_str().unwrap());
    assert_eq!(place.run(&["mode", "code"]).0, Some(0));
    terminal.wait_for("done");
    terminal.line("");
    assert!(terminal.end().success());
    assert!(place.work().join("a").exists());
}

#[test]
fn question_can_ring_the_bell_instead() {
    let place = Place::new();
    let mut terminal =
        place.in_terminal(&["--mode", "ask", "--questions", "bell"], "echo one > a && echo wrote a");
    terminal.wait_for("waits for your answer");
    terminal.wait_until("rung", |terminal| terminal.has_shown("\x07"));
    assert!(!terminal.has_shown(OPENED));
    terminal.send(KEY);
    terminal.wait_for("Create a (sh)?");
    std::thread::sleep(READING_TIME);
    terminal.send("1");
    terminal.wait_for(CLOSED);
    terminal.wait_for("wrote a");
    assert!(terminal.end().success());
}
