//! The start of an external agent: with the broker or without, and its changes before the first prompt.

use modegate::permission::rules::{RuleTexts, Rules};
use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use serde_json::{Value, json};

use crate::agents::external::sessions::{ExternalAgentClient, agent_text, agents, home};
use crate::sessions::load::StoreFixture;
use crate::sessions::undo::report;
use crate::support::{Setup, shell};

fn compiled(text: &str) -> Rules {
    serde_saphyr::from_str::<RuleTexts>(text).unwrap().compile(true).unwrap()
}

async fn client(
    fixture: &StoreFixture,
    mode: &'static str,
    rules: &str,
    agents: &'static str,
) -> ExternalAgentClient {
    let home = home();
    let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
    let setup = Setup { mode, agents, tools, rules: compiled(rules), live: true, ..Setup::default() };
    ExternalAgentClient::open(fixture.agent(setup), home, json!({})).await.unwrap()
}

/// Without the key `broker`, the agent is brokered where that works. With `false`, each mode has a process of its own.
#[tokio::test]
async fn agent_is_brokered_unless_its_definition_says_otherwise() {
    for (broker, is_brokered) in [("", true), (", broker: true", true), (", broker: false", false)] {
        let sandbox = format!(", sandbox: {{state_dirs: ['~/.peer']{broker}}}");
        let fixture = StoreFixture::new();
        let mut client = client(&fixture, "plan", "{}", agents("loads", &sandbox)).await;
        let mut processes = Vec::new();
        for mode in ["plan", "code"] {
            client.mode(mode).await;
            let text = agent_text(&client.prompt("pid", None).await);
            processes.push(text[text.find("process").unwrap()..].to_owned());
            let path = client.path(mode);
            client.prompt(&format!("write {}", path.display()), None).await;
            assert_eq!(path.exists(), mode == "code", "{broker}");
        }
        assert_eq!(processes[0] == processes[1], is_brokered, "{processes:?}");
        let undone = agent_text(&client.prompt("/undo", None).await);
        assert_eq!(!client.path("code").exists(), is_brokered, "{broker}: {undone}");
        let session = client.session.clone();
        client.end().await;
        assert_eq!(report(&fixture.store(), &session, None).await.findings, Vec::<String>::new(), "{broker}");
    }
}

/// Before the first prompt, an agent makes the changes that need no question. The others are refused without a question.
#[tokio::test]
async fn agent_starts_with_the_changes_that_need_no_question() {
    const DENIES: &str = "deny: ['edit_file(**/.env)']";
    for (mode, rules, expected, notice) in [
        ("code", "{}", [true, true], None),
        ("code", DENIES, [true, false], Some("Refused by Modegate: Create .env (peer)")),
        ("ask", "{}", [false, false], Some("that no turn asked for, the first of them: Create begun (peer)")),
        ("plan", "{}", [false, false], None),
    ] {
        let fixture = StoreFixture::new();
        let agents = agents("writes-first", ", sandbox: {state_dirs: ['~/.peer']}");
        let mut client = client(&fixture, mode, rules, agents).await;
        let messages = client.prompt("pid", None).await;
        let text = agent_text(&messages);
        let asks = |message: &Value| message["method"] == "session/request_permission";
        assert!(!messages.iter().any(asks), "{mode}: {messages:?}");
        assert_eq!(
            ["begun", ".env"].map(|name| client.path(name).exists()),
            expected,
            "{mode} {rules}: {text}"
        );
        assert_eq!(
            text.contains("Refused by Modegate") || text.contains("no turn asked for"),
            notice.is_some()
        );
        assert!(notice.is_none_or(|notice| text.contains(notice)), "{mode} {rules}: {text}");
        let session = client.session.clone();
        client.end().await;
        assert_eq!(report(&fixture.store(), &session, None).await.findings, Vec::<String>::new(), "{mode}");
    }
}

/// A tighter mode before the first prompt ends changes that the rules allowed.
#[tokio::test]
async fn tighter_mode_before_the_first_prompt_holds() {
    let fixture = StoreFixture::new();
    let agents = agents("ticks-first", ", sandbox: {state_dirs: ['~/.peer']}");
    let mut client = client(&fixture, "code", "deny: ['edit_file(**/.env)']", agents).await;
    let ticks = client.path("ticks");
    let length = || std::fs::metadata(&ticks).map_or(0, |file| file.len());
    crate::support::waiting::until("content", || length() > 0).await;
    client.mode("plan").await;
    let before = length();
    client.prompt("pid", None).await;
    assert_eq!(length(), before);
    client.end().await;
}
