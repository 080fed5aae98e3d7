use serde_json::{Value, json};

use super::*;
use crate::acp::{ToolCallId, ToolCallStatus, ToolKind};

/// A call of a step: tool, arguments and result. A result that begins with `!` is a failure, with `-` a denial.
type Ended<'a> = (&'a str, Value, &'a str);

fn effect_of(name: &str) -> Option<Effect> {
    match name {
        "read_file" | "shell_read_only" => Some(Effect::Read),
        "edit_file" | "write_file" => Some(Effect::Edit),
        "shell" => Some(Effect::Execute),
        _ => None,
    }
}

fn end_step(repetition: &mut Repetition, calls: &[Ended<'_>]) -> Option<Brake> {
    for (name, arguments, result) in calls {
        let id = ToolCallId::new("call_1_1");
        let call = ToolCallEvent {
            id: id.clone(),
            model_id: String::new(),
            name: (*name).into(),
            title: format!("Use {name}"),
            kind: ToolKind::Other,
            arguments: arguments.clone(),
            locations: Vec::new(),
            is_announced: false,
            note: None,
            check: None,
        };
        let mut update = ToolCallUpdateEvent::failed(id, *result);
        match result.chars().next() {
            Some('!') => {}
            Some('-') => update.denied = Some("access".into()),
            _ => update.status = ToolCallStatus::Completed,
        }
        repetition.call_ended(&call, &update, effect_of(name));
    }
    repetition.end_step(&SessionModeId::new("code"))
}

/// The outcome of each step: `.` nothing, `n` a note, `a` a question.
fn check<'a>(steps: impl IntoIterator<Item = Vec<Ended<'a>>>, expected: &str) {
    let mut repetition = Repetition::default();
    assert_eq!(repetition.end_step(&SessionModeId::new("code")), None);
    let brakes: String = steps
        .into_iter()
        .map(|calls| match end_step(&mut repetition, &calls) {
            None => '.',
            Some(Brake::Note(_)) => 'n',
            Some(Brake::Ask(_)) => 'a',
        })
        .collect();
    assert_eq!(brakes, expected);
}

fn edit(number: usize) -> Ended<'static> {
    ("edit_file", json!({ "path": "a", "new_text": number.to_string() }), "Edited.")
}

fn failing_edit() -> Ended<'static> {
    ("edit_file", json!({ "path": "a", "old_text": "zzz" }), "!The old text does not occur.")
}

fn read(path: &str) -> Ended<'static> {
    ("read_file", json!({ "path": path }), "x")
}

fn failing_test() -> Ended<'static> {
    ("shell", json!({ "command": "cargo test" }), "1 failed")
}

#[test]
fn same_call_with_the_same_result_is_noted_and_then_asked_about() {
    check((0..6).map(|_| vec![failing_edit()]), "..n..a");
    check((0..6).map(|_| vec![read("a")]), "..n..a");
    check((0..6).map(|_| vec![read("a"), read("b")]), "..n..a");
}

#[test]
fn alternating_calls_get_one_note() {
    let pair = |number: usize| if number.is_multiple_of(2) { vec![failing_edit()] } else { vec![read("a")] };
    check((0..11).map(pair), "....n.....a");
    // Other reads between them are no progress.
    let paths: Vec<String> = (0..12).map(|number| number.to_string()).collect();
    let mixed = |number: usize| {
        if number.is_multiple_of(2) { vec![failing_edit()] } else { vec![read(&paths[number])] }
    };
    check((0..11).map(mixed), "....n.....a");
    // Neither are changes back and forth.
    let toggle = |number: usize| vec![edit(number % 2)];
    check((0..12).map(toggle), ".....n.....a");
}

#[test]
fn calls_of_one_reply_count_once() {
    check([vec![read("a"); 9], vec![read("a"); 9], vec![read("a")]], "..n");
}

#[test]
fn work_is_no_repetition() {
    // The same test fails after each of 30 edits.
    let work =
        |number: usize| if number.is_multiple_of(2) { vec![edit(number)] } else { vec![failing_test()] };
    check((0..60).map(work), &".".repeat(60));
    let results: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    let other_results =
        |number: usize| vec![("shell", json!({ "command": "date" }), results[number].as_str())];
    check((0..30).map(other_results), &".".repeat(30));
    check((0..30).map(|number| vec![read(&results[number])]), &".".repeat(30));
}

#[test]
fn denials_in_a_row_are_noted_and_then_asked_about() {
    let paths: Vec<String> = (0..12).map(|number| number.to_string()).collect();
    let write = |number: usize| ("write_file", json!({ "path": paths[number] }), "-No.");
    check((0..6).map(|number| vec![write(number)]), "..n..a");
    check([(0..12).map(write).collect()], ".");
    let read_between =
        |number: usize| if number % 3 == 2 { vec![read(&paths[number])] } else { vec![write(number)] };
    check((0..12).map(read_between), &".".repeat(12));
    check((0..6).map(|number| vec![write(number), read(&paths[number])]), "......");
}

#[test]
fn mode_change_starts_anew() {
    let mut repetition = Repetition::default();
    repetition.end_step(&SessionModeId::new("code"));
    for _ in 0..5 {
        end_step(&mut repetition, &[failing_edit()]);
    }
    assert_eq!(repetition.end_step(&SessionModeId::new("plan")), None);
    assert_eq!(repetition.end_step(&SessionModeId::new("code")), None);
    assert_eq!(end_step(&mut repetition, &[failing_edit()]), None);
}

#[test]
fn note_says_what_was_tried() {
    let mut repetition = Repetition::default();
    repetition.end_step(&SessionModeId::new("code"));
    end_step(&mut repetition, &[read("b")]);
    end_step(&mut repetition, &[failing_edit()]);
    end_step(&mut repetition, &[failing_edit()]);
    let Some(Brake::Note(note)) = end_step(&mut repetition, &[failing_edit()]) else { panic!() };
    assert!(note.contains(
        r#"3 times with the same result: edit_file {"path":"a","old_text":"zzz"} → !The old text"#
    ));
    assert!(note.ends_with("- read_file {\"path\":\"b\"} → x (1 time)"), "{note}");
}
