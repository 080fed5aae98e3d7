//! The user's permission rules decide about requests and writes of external agents.

use modegate::permission::rules::{RuleTexts, Rules};
use serde_json::Value;

use crate::agents::external::sessions::{ExternalAgentClient, agent_text};

fn rules(text: &str) -> Rules {
    serde_saphyr::from_str::<RuleTexts>(text).unwrap().compile(true).unwrap()
}

fn is_asked(messages: &[Value]) -> bool {
    messages.iter().any(|message| message["method"] == "session/request_permission")
}

#[tokio::test]
async fn deny_rules_refuse_requests_of_external_agents() {
    let text = "deny: ['*(**/.env)', 'shell(git push *)', 'write_file(docs/**)', 'fetch(*.corp)']";
    let mut client = ExternalAgentClient::with_rules("code", rules(text)).await;
    let env = client.path(".env").display().to_string();
    let page = client.path("docs/page.md").display().to_string();
    for (call, rule) in [
        (format!("read {env}"), "*(**/.env)"),
        (format!("edit {env}"), "*(**/.env)"),
        (format!("edit {page}"), "write_file(docs/**)"),
        (format!("edit {}", client.path("src/../docs/page.md").display()), "write_file(docs/**)"),
        ("execute git push origin".into(), "shell(git push *)"),
        ("fetch https://wiki.corp/page".into(), "fetch(*.corp)"),
    ] {
        let messages = client.prompt(&format!("names {call}"), Some("yes")).await;
        assert!(!agent_text(&messages).contains("yes"), "{call}: {messages:?}");
        assert!(!is_asked(&messages), "{call}: {messages:?}");
        let why =
            format!("Refused by Modegate: Write. The rule deny {rule} does not allow this, in any mode.");
        let shown = messages.iter().any(|message| message.to_string().contains(&why));
        assert!(shown, "{call}: {messages:?}");
    }
    // The control: requests of the same kinds that no rule denies.
    let page = client.path("page.md").display().to_string();
    for call in [format!("edit {page}"), "execute git status".into(), "fetch https://docs.rs/".into()] {
        let messages = client.prompt(&format!("names {call}"), None).await;
        assert!(agent_text(&messages).contains("yes"), "{call}: {messages:?}");
    }
    client.end().await;
}

#[tokio::test]
async fn deny_rules_refuse_writes_of_external_agents() {
    let text = "deny: ['edit_file(docs/**)']";
    let mut client = ExternalAgentClient::with_rules("code", rules(text)).await;
    for (name, is_denied) in [("docs/page.md", true), ("src/../docs/page.md", true), ("page.md", false)] {
        let path = client.path(name).display().to_string();
        let messages = client.write_through_client(&path).await;
        let is_written = messages.iter().any(|message| message["method"] == "fs/write_text_file");
        assert_eq!(is_written, !is_denied, "{name}: {messages:?}");
        let is_refused =
            agent_text(&messages).contains("The rule deny edit_file(docs/**) does not allow this");
        assert_eq!(is_refused, is_denied, "{name}: {messages:?}");
    }
    client.end().await;
}

#[tokio::test]
async fn ask_rules_ask_and_allow_rules_answer_for_external_agents() {
    let text = "{ask: ['edit_file(migrations/**)'], allow: ['shell(git status *)', 'edit_file(src/**)', delete_file]}";
    for (mode, call, asked) in [
        ("code", "edit migrations/1.sql", true),
        ("code", "edit src/a.rs", false),
        ("ask", "execute git status -s", false),
        ("ask", "execute git log", true),
        ("ask", "delete page.md", false),
        // An agent's claim about a file proves nothing, so the allow rule does not apply.
        ("ask", "edit src/a.rs", true),
    ] {
        let mut client = ExternalAgentClient::with_rules(mode, rules(text)).await;
        let call = match call.split_once(' ') {
            Some((kind @ ("edit" | "delete"), name)) => format!("{kind} {}", client.path(name).display()),
            _ => call.to_owned(),
        };
        let messages = client.prompt(&format!("names {call}"), Some("yes")).await;
        assert_eq!(is_asked(&messages), asked, "{mode} {call}: {messages:?}");
        assert!(agent_text(&messages).contains("yes"), "{mode} {call}: {messages:?}");
        client.end().await;
    }
}
