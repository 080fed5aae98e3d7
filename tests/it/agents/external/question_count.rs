//! Work that costs one question, although a program makes many changes for it: a file that is replaced by way of a
//! temporary one, and a command of git.

use serde_json::Value;

use crate::agents::external::questions::{answer, is_request};
use crate::agents::external::record::client;
use crate::agents::external::sessions::{ExternalAgentClient, agent_text};
use crate::sessions::load::StoreFixture;
use crate::sessions::undo::report;
use crate::support::requirements::python;

/// Runs a prompt and answers each permission request with the option. Returns the agent's text and the requests.
async fn asked(client: &mut ExternalAgentClient, text: &str, option: &str) -> (String, Vec<Value>) {
    let id = client.client.prompt(&client.session.clone(), text).await;
    let (mut messages, mut requests) = (Vec::new(), Vec::new());
    loop {
        let message = client.client.next().await;
        if is_request(&message) {
            answer(client, &message, option).await;
            requests.push(message["params"]["toolCall"].clone());
        }
        let is_last = message["id"] == id && message.get("method").is_none();
        messages.push(message);
        if is_last {
            return (agent_text(&messages), requests);
        }
    }
}

fn titles(requests: &[Value]) -> Vec<&str> {
    requests.iter().map(|request| request["title"].as_str().unwrap()).collect()
}

/// The old and the new text.
type Diff = (Option<&'static str>, &'static str);

/// Line by line: a command, the titles of its questions, and the texts of the last question's diff.
const COMMANDS: &[(&str, &[&str], Option<Diff>)] = &[
    (
        "echo new > .a.txt.gsg1lfsr.tmp; mv .a.txt.gsg1lfsr.tmp a.txt",
        &["Write a.txt (peer)"],
        Some((Some("old\n"), "new\n")),
    ),
    (
        "echo new > a.txt.tmp.1; chmod 600 a.txt.tmp.1; mv a.txt.tmp.1 a.txt",
        &["Write a.txt (peer)"],
        Some((Some("old\n"), "new\n")),
    ),
    ("echo new > n.txt.tmp; mv n.txt.tmp n.txt", &["Create n.txt (peer)"], Some((None, "new\n"))),
    ("sed -i s/old/new/ a.txt", &["Write a.txt (peer)"], Some((Some("old\n"), "new\n"))),
    ("echo new > a.txt.tmp; rm a.txt.tmp", &[], None),
    // The file that is made is hidden or runs by itself: the question names it.
    ("echo new > Makefile.tmp; mv Makefile.tmp Makefile", &["Create Makefile (peer)"], Some((None, "new\n"))),
    ("echo new > .envrc.tmp; mv .envrc.tmp .envrc", &["Create .envrc (peer)"], Some((None, "new\n"))),
    // These names do not tell that the file is temporary.
    (
        "echo new > other; mv other a.txt",
        &["Create other (peer)", "Move other to a.txt (peer)"],
        Some((Some("old\n"), "new\n")),
    ),
    (
        "echo new > sedAbCdEf; mv sedAbCdEf a.txt",
        &["Create sedAbCdEf (peer)", "Move sedAbCdEf to a.txt (peer)"],
        Some((Some("old\n"), "new\n")),
    ),
    // An older file is not a new one.
    ("echo new > was.tmp", &["Write was.tmp (peer)"], None),
    ("mv was.tmp a.txt", &["Move was.tmp to a.txt (peer)"], Some((Some("old\n"), "was\n"))),
];

#[tokio::test]
async fn file_replaced_by_way_of_a_temporary_one_costs_one_question() {
    for (line, expected, diff) in COMMANDS {
        for option in ["allow_once", "reject_once"] {
            let fixture = StoreFixture::new();
            let mut client = client(&fixture, "ask").await;
            std::fs::write(client.path("a.txt"), "old\n").unwrap();
            std::fs::write(client.path("was.tmp"), "was\n").unwrap();
            let (text, requests) = asked(&mut client, &format!("run {line}"), option).await;
            let expected = if option == "allow_once" { expected } else { &expected[..expected.len().min(1)] };
            assert_eq!(titles(&requests), expected, "{line}: {text}");
            if option == "reject_once" {
                let content = std::fs::read_to_string(client.path("a.txt")).unwrap();
                assert_eq!(content, "old\n", "{line}: {text}");
                assert!(
                    ["n.txt", "Makefile", ".envrc"].iter().all(|name| !client.path(name).exists()),
                    "{line}"
                );
            } else {
                let last = requests.last().map(|request| request["content"].as_array().unwrap().clone());
                let shown = last.iter().flatten().find(|content| content["type"] == "diff");
                let shown = shown.map(|diff| (diff["oldText"].as_str(), diff["newText"].as_str().unwrap()));
                assert_eq!(shown, *diff, "{line}");
            }
            client.end().await;
        }
    }
}

/// The text that a question shows is the text that is moved: if it has changed by the answer, there is another
/// question.
#[tokio::test]
async fn content_that_changes_before_the_answer_is_asked_about_again() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "ask").await;
    let id = client.client.prompt(&client.session.clone(), "run echo one > a.tmp; mv a.tmp a").await;
    let mut shown = Vec::new();
    loop {
        let message = client.client.next().await;
        if is_request(&message) {
            let call = &message["params"]["toolCall"];
            shown.push((call["toolCallId"].clone(), call["content"][1]["newText"].clone()));
            if shown.len() == 1 {
                std::fs::write(client.path("a.tmp"), "two\n").unwrap();
            }
            answer(&mut client, &message, "allow_once").await;
        }
        if message["id"] == id && message.get("method").is_none() {
            break;
        }
    }
    let texts: Vec<_> = shown.iter().map(|(_, text)| text.as_str().unwrap()).collect();
    assert_eq!(texts, ["one\n", "two\n"]);
    assert_ne!(shown[0].0, shown[1].0, "each question has a call of its own");
    assert_eq!(std::fs::read_to_string(client.path("a")).unwrap(), "two\n");
    client.end().await;
}

const IDENTITY: &str = "git -c user.name=a -c user.email=a@b.invalid";

#[tokio::test]
async fn command_of_git_costs_one_question() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "ask").await;
    let git = |arguments: &[&str]| {
        let done = std::process::Command::new("git").args(arguments).current_dir(client.path(".")).output();
        String::from_utf8(done.unwrap().stdout).unwrap()
    };
    git(&["init", "-q", "."]);
    std::fs::write(client.path("a.txt"), "one\n").unwrap();
    let (text, requests) =
        asked(&mut client, &format!("run git add . && {IDENTITY} commit -qm x"), "allow_once").await;
    let git = |arguments: &[&str]| {
        let done = std::process::Command::new("git").args(arguments).current_dir(client.path(".")).output();
        String::from_utf8(done.unwrap().stdout).unwrap()
    };
    let commit = format!("Run \"{IDENTITY} commit -qm x\" in .git (peer)");
    assert_eq!(titles(&requests), ["Run \"git add .\" in .git (peer)", &commit], "{text}");
    assert_eq!(git(&["log", "--format=%s"]), "x\n", "{text}");
    let session = client.session.clone();
    client.end().await;
    assert_eq!(report(&fixture.store(), &session, None).await.findings, Vec::<String>::new());
}

/// Settings can name programs that git runs, so they are a question of their own, which shows them.
#[tokio::test]
async fn new_repository_costs_one_question_and_one_for_its_settings() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "ask").await;
    let (text, requests) = asked(&mut client, "run git init -q .", "allow_once").await;
    assert_eq!(
        titles(&requests),
        ["Run \"git init -q .\" in .git (peer)", "Create .git/config (peer)"],
        "{text}"
    );
    let diff = requests[1]["content"].as_array().unwrap().last().unwrap();
    assert!(diff["newText"].as_str().unwrap().contains("repositoryformatversion"), "{diff}");
    let (text, requests) = asked(&mut client, "run git config core.pager x", "allow_once").await;
    assert_eq!(titles(&requests), ["Write .git/config (peer)"], "{text}");
    assert!(std::fs::read_to_string(client.path(".git/config")).unwrap().contains("pager = x"), "{text}");
    client.end().await;
}

/// Neither another program nor git itself changes with that consent what git runs.
#[tokio::test]
async fn consent_to_git_covers_no_settings_hooks_and_other_programs() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "ask").await;
    let init =
        std::process::Command::new("git").args(["init", "-q", "."]).current_dir(client.path(".")).status();
    assert!(init.unwrap().success());
    std::fs::write(client.path("a.txt"), "one\n").unwrap();
    let write = |name: &str| format!("{} -c \"open('.git/{name}', 'w')\"", python());
    let forged = format!(
        "{} -c \"import ctypes; ctypes.CDLL(None).prctl(15, b'git', 0, 0, 0); open('.git/refs/x', 'w')\"",
        python()
    );
    for (line, name) in [
        ("git config core.pager x".to_owned(), ".git/config"),
        (write("hooks/pre-commit"), "hooks/pre-commit"),
        (write("objects/x"), "objects/x"),
        (forged, "refs/x"),
        ("cp $(command -v git) own; ./own add a.txt".to_owned(), "own"),
    ] {
        let (text, requests) = asked(&mut client, &format!("run git add .; {line}"), "reject_once").await;
        let titles = titles(&requests);
        assert_eq!(titles[0], "Run \"git add .\" in .git (peer)", "{line}: {text}");
        let is_further = |title: &str| title.starts_with("Create ") || title.starts_with("Write .git/config");
        assert!(titles.len() > 1 && is_further(titles[1]), "{line}: {titles:?} {text}");
        let (text, requests) = asked(&mut client, &format!("run git add .; {line}"), "allow_once").await;
        let further = requests.iter().skip(1).map(|request| request["title"].as_str().unwrap().to_owned());
        let further: Vec<_> = further.collect();
        assert!(further.iter().any(|title| title.contains(name)), "{line}: {further:?} {text}");
    }
    client.end().await;
}
