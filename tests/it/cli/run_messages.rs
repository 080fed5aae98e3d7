//! The lines of `modegate run`: the mode and its limit, refusals, and what `--quiet` leaves out.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::run::Place;

#[test]
fn limit_of_the_mode_is_in_the_first_and_the_last_line() {
    let place = Place::new();
    let limited = "code mode, limited to plan by --max-mode";
    for options in [&["--max-mode", "plan", "run"][..], &["run", "--max-mode", "plan"]] {
        let arguments = [options, &["--mode", "code", "--", "touch", "a"]].concat();
        let (_, _, messages) = place.run(&arguments);
        assert!(messages.starts_with(&format!("modegate: {limited}; to change it")), "{messages}");
        assert!(messages.contains(&format!("modegate: {limited}, session ")), "{messages}");
        assert!(!place.work().join("a").exists());
    }
    let (code, _, messages) = place.run(&["--max-mode", "plan", "run", "--max-mode", "plan", "--", "true"]);
    assert!(code == Some(2) && messages.contains("before and after run: give it once"), "{messages}");
    let (code, _, messages) = place.run(&["run", "--mode", "code", "--", "touch", "a"]);
    assert!(code == Some(0) && !messages.contains("limited to"), "the control: {messages}");
    assert!(place.work().join("a").exists());
}

#[test]
fn quiet_run_prints_no_line_about_the_sandbox() {
    let place = Place::new();
    let (code, _, messages) = place.run(&["run", "--mode", "plan", "--quiet", "--", "true"]);
    assert_eq!((code, messages.as_str()), (Some(0), ""));
    let (_, _, messages) = place.run(&["run", "--mode", "plan", "--", "true"]);
    assert!(messages.contains("The program true is sandboxed: in plan mode"), "the control: {messages}");
}

#[test]
fn refusal_after_a_mode_change_addresses_the_user() {
    let place = Place::new();
    let mut running = place.modegate(&["run", "--mode", "ask", "--", "touch", "a"]);
    let mut running = running.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines().map(Result::unwrap);
    let question = lines.find(|line| line.contains("wants to create a.")).unwrap();
    assert!(question.starts_with("modegate: touch wants to create a. "), "{question}");
    lines.find(|line| line.contains("waits for your answer")).unwrap();
    // The program may have ended when the command returns.
    place.run(&["mode", "plan"]);
    let refusal = lines.find(|line| line.contains("Refused by Modegate")).unwrap();
    let reason = "Plan mode changes nothing. Another mode can be set with `modegate mode`.";
    assert!(refusal.ends_with(&format!("Create a (touch). {reason}")), "{refusal}");
    assert!(!running.wait().unwrap().success() && !place.work().join("a").exists());
}

/// The program's question names the program that asks, not only the one that was started.
#[test]
fn question_names_the_program_and_what_it_wants() {
    let place = Place::new();
    let mut running = place.modegate(&["run", "--mode", "ask", "--", "sh", "-c", "touch a; true"]);
    let mut running = running.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines().map(Result::unwrap);
    let question = lines.find(|line| line.contains("wants to create a.")).unwrap();
    assert!(question.starts_with("modegate: touch (started by sh) wants to create a. The new"), "{question}");
    place.run(&["mode", "code"]);
    assert!(running.wait().unwrap().success() && place.work().join("a").exists());
}
