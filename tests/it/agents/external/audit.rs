//! Audits of sessions with an external agent. The audit decides again about the starts of the agent and the
//! changes that Modegate permitted.

use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::agents::external::sessions::{ExternalAgentClient, SANDBOXED, agent_text, agents, home};
use crate::sessions::load::StoreFixture;
use crate::sessions::undo::report;
use crate::support::{Setup, shell};

#[tokio::test]
async fn audit_repeats_decisions_about_external_agents() {
    let (fixture, home) = (StoreFixture::new(), home());
    let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
    let setup =
        Setup { mode: "ask", agents: agents("plain", SANDBOXED), tools, live: true, ..Setup::default() };
    let capabilities = json!({ "fs": { "writeTextFile": true } });
    let mut client = ExternalAgentClient::open(fixture.agent(setup), home, capabilities).await.unwrap();
    let edit = format!("names edit {}", client.path("a.txt").display());
    assert!(agent_text(&client.prompt(&edit, Some("yes")).await).contains("yes"));
    let written = client.path("b.txt").display().to_string();
    client.write_through_client(&written).await;
    client.mode("code").await;
    assert!(agent_text(&client.prompt("names execute make", None).await).contains("yes"));
    assert!(agent_text(&client.prompt("names read a.txt", None).await).contains("yes"));
    client.mode("ask").await;
    assert!(agent_text(&client.prompt(&edit, Some("no")).await).contains("no"));
    client.mode("plan").await;
    assert!(!agent_text(&client.prompt(&edit, None).await).contains("yes"));
    let session = client.session.clone();
    client.end().await;

    let whole = report(&fixture.store(), &session, None).await;
    assert_eq!(whole.findings, Vec::<String>::new());
    assert_eq!((whole.calls, whole.denials), (3, 2), "two requests and a write were permitted");
    let entries = entries(&fixture);
    let consents: Vec<&Value> =
        entries.iter().filter(|entry| entry["entry"] == "call").map(|entry| &entry["consent"]).collect();
    assert_eq!(consents, ["user", "external_agent", "mode"]);
    let starts =
        entries.iter().filter(|entry| entry["entry"] == "harness").map(|entry| entry["held"] == true);
    assert_eq!(starts.collect::<Vec<_>>(), [false, true]);

    // The ceilings of plan permit none of the earlier changes.
    let under =
        |held: bool| entries.iter().find(|entry| entry["held"] == held).unwrap()["under"].as_str().unwrap();
    let (plan, ask) = (under(true), under(false));
    let connection = Connection::open(fixture.store()).unwrap();
    connection.execute("UPDATE chain SET body = replace(body, ?2, ?1)", [plan, ask]).unwrap();
    drop(connection);
    let findings = report(&fixture.store(), &session, None).await.findings;
    for expected in [
        "the process of peer: started without the sandbox, which the mode does not allow",
        "(edit_file): was decided under another mode than ask",
    ] {
        assert!(findings.iter().any(|finding| finding.contains(expected)), "{findings:?}");
    }
}

fn entries(fixture: &StoreFixture) -> Vec<Value> {
    let connection = Connection::open(fixture.store()).unwrap();
    let mut statement = connection.prepare("SELECT body FROM chain ORDER BY number").unwrap();
    let bodies = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    bodies.map(|body| serde_json::from_str(&body.unwrap()).unwrap()).collect()
}
