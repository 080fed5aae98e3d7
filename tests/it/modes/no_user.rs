//! Calls that need no question, and the notes about answers.

use std::fs;

use modegate::model::{Block, ModelRequest};
use modegate::permission::rules::{RuleTexts, Rules};
use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use serde_json::json;

use crate::support::tool_calls::Turns;
use crate::support::{Setup, shell};

/// Reads a path outside of the session's folder. Returns the number of questions, and the model's result.
async fn read_outside(mode: &'static str, rules: Rules, name: &str) -> (usize, String) {
    let mut turns = Turns::new(Setup { mode, rules, ..Setup::default() }).await;
    let dir = turns.client.dir.path().canonicalize().unwrap();
    fs::create_dir_all(dir.join("work/src")).unwrap();
    fs::create_dir(dir.join("outside")).unwrap();
    for file in ["work/a.txt", "work/src/b.txt", "work/secret.txt", "outside/kept.txt"] {
        fs::write(dir.join(file), "x").unwrap();
    }
    let path = dir.join("outside").join(name);
    let (questions, _) = turns.call("read_file", json!({ "path": path }), 0).await;
    let result = turns.result();
    turns.client.end().await;
    (questions.len(), result)
}

#[tokio::test]
pub(super) async fn missing_files_outside_are_no_question() {
    let hidden = || serde_saphyr::from_str::<RuleTexts>("deny: ['read_file(secret.txt)']").unwrap();
    let outside = "is outside of the session's folders and does not exist";
    for mode in ["plan", "ask", "code"] {
        for (name, expected) in [
            ("a.txt", format!("{outside}; did you mean a.txt?")),
            ("deep/src/b.txt", format!("{outside}; did you mean src/b.txt?")),
            ("src/gone.txt", format!("{outside}. The working directory is ")),
            // A file that rules deny stays unknown.
            ("secret.txt", format!("{outside}. The working directory is ")),
        ] {
            let (questions, result) = read_outside(mode, hidden().compile(true).unwrap(), name).await;
            assert_eq!(questions, 0, "{mode} {name}");
            assert!(result.contains(&expected), "{mode} {name}: {result}");
        }
        let (questions, result) = read_outside(mode, Rules::default(), "kept.txt").await;
        assert_eq!(questions, 1, "the control: {result}");
    }
    let denied = serde_saphyr::from_str::<RuleTexts>("deny: ['read_file(/**/gone.txt)']").unwrap();
    let (questions, result) = read_outside("code", denied.compile(true).unwrap(), "gone.txt").await;
    assert!(questions == 0 && !result.contains("does not exist"), "rules come first: {result}");
}

/// Providers have cached what follows the reminder.
#[tokio::test]
pub(super) async fn reminder_stays_in_its_place_after_an_answer_that_always_allows() {
    let mut turns = Turns::new(Setup { mode: "ask", ..Setup::default() }).await;
    let write = json!({ "path": "a.txt", "content": "x" });
    let (questions, _) = turns.call("write_file", write, 1).await;
    assert_eq!(questions.len(), 1);
    let place = |request: &ModelRequest| {
        let places = request.messages.iter().enumerate().flat_map(|(message, content)| {
            let blocks = content.blocks.iter().enumerate();
            blocks.filter_map(move |(block, content)| match content {
                Block::Reminder(text) => Some((message, block, text.clone())),
                _ => None,
            })
        });
        places.collect::<Vec<_>>()
    };
    let requests = turns.client.model.requests(&turns.session);
    let places: Vec<_> = requests.iter().map(place).collect();
    assert!(
        places.len() > 1 && places[0].len() == 1 && places.iter().all(|place| *place == places[0]),
        "{places:?}"
    );
    turns.client.end().await;
}

#[tokio::test]
pub(super) async fn model_learns_which_command_is_always_allowed() {
    let home = tempfile::tempdir().unwrap();
    for (option, expected) in [(0, false), (1, true)] {
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Off));
        let mut turns = Turns::new(Setup { mode: "ask", tools, ..Setup::default() }).await;
        let (questions, _) = turns.call("shell", json!({ "command": "touch new.txt" }), option).await;
        assert_eq!(questions.len(), 1);
        let request = turns.client.model.requests(&turns.session).pop().unwrap();
        let text = format!("{:?}", request.messages);
        let note =
            "The user allows this from now on in ask mode, without a question: exactly `touch new.txt`";
        assert_eq!(text.contains(note), expected, "{text}");
        turns.client.end().await;
    }
}
