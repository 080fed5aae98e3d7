//! Permission requests for each change of a brokered agent, in modes that ask.

use std::time::Duration;

use modegate::mode::Modes;
use modegate::mode::definition::ModeDefinition;
use modegate::permission::rules::{RuleTexts, Rules};
use serde_json::{Value, json};

use crate::agents::external::record::{client, client_with};
use crate::agents::external::sessions::{ExternalAgentClient, agent_text};
use crate::sessions::load::StoreFixture;
use crate::sessions::undo::report;
use crate::support::Setup;
use crate::support::waiting::until_exists;

fn compiled(rules: &str) -> Rules {
    serde_saphyr::from_str::<RuleTexts>(rules).unwrap().compile(true).unwrap()
}

pub(crate) fn is_request(message: &Value) -> bool {
    message["method"] == "session/request_permission"
}

/// Runs a prompt, and answers the permission requests in turn with these options, and further ones with the
/// last option. Returns the agent's text and the titles of the requests.
async fn prompt(client: &mut ExternalAgentClient, text: &str, options: &[&str]) -> (String, Vec<String>) {
    let id = client.client.prompt(&client.session.clone(), text).await;
    let (mut messages, mut titles) = (Vec::new(), Vec::new());
    loop {
        let message = client.client.next().await;
        if is_request(&message) {
            let option = options[titles.len().min(options.len() - 1)];
            titles.push(message["params"]["toolCall"]["title"].as_str().unwrap().to_owned());
            answer(client, &message, option).await;
        }
        let is_last = message["id"] == id && message.get("method").is_none();
        messages.push(message);
        if is_last {
            return (agent_text(&messages), titles);
        }
    }
}

pub(crate) async fn answer(client: &mut ExternalAgentClient, request: &Value, option: &str) {
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
    let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": outcome });
    client.client.send_line(&answer.to_string()).await;
}

/// Clients that show only titles get the content of a question in a message before it.
#[tokio::test]
async fn question_is_shown_before_its_answer() {
    let file = "-old\n+new\n";
    for (line, parts, title) in [
        (
            "run echo new > b.tmp; mv b.tmp a.txt",
            &[file, "mv (started by peer), which has written b.tmp, wants to write a.txt."][..],
            "Write a.txt (peer)",
        ),
        ("shows {path}", &[file, "Because."], "Write"),
    ] {
        for (name, is_shown) in [("another", false), ("vscode-acp-client", false), ("zed", true)] {
            let fixture = StoreFixture::new();
            let mut client = client(&fixture, "ask").await;
            let info = json!({ "name": name, "version": "0.2.0" });
            let initialize = json!({ "protocolVersion": 1, "clientInfo": info });
            let initialize = client.client.request("initialize", initialize).await;
            client.until(initialize, None).await;
            let meta = json!({ "modegate/agent": "peer" });
            let new = json!({ "cwd": client.client.cwd(), "mcpServers": [], "_meta": meta });
            let new = client.client.request("session/new", new).await;
            let answer = client.until(new, None).await.pop().unwrap();
            client.session = answer["result"]["sessionId"].as_str().unwrap().to_owned();
            let path = client.path("a.txt");
            std::fs::write(&path, "old\n").unwrap();
            let line = line.replace("{path}", path.to_str().unwrap());
            let messages = client.prompt(&line, Some("allow_once")).await;
            let question = messages.iter().rposition(is_request).expect("a question");
            let text = agent_text(&messages[..question]);
            for part in parts {
                assert_eq!(text.contains(part), !is_shown, "{name} {part}: {text}");
            }
            let shown = messages[question]["params"]["toolCall"]["title"].as_str().unwrap();
            let place = if name == "vscode-acp-client" { " (+1 -1, see the chat)" } else { "" };
            assert_eq!(shown, format!("{title}{place}"), "{name}");
            client.end().await;
        }
    }
}

const LINE: &str = "run mkdir d; echo 1 > d/a; echo 2 >> d/a; echo 3 > b; mv b c; rm c; ls -R";

#[tokio::test]
async fn consent_covers_the_paths_of_its_option() {
    let all = ["Create the folder d (peer)", "Create d/a (peer)", "Create b (peer)", "Move b to c (peer)"];
    for (options, expected) in [
        // Consent for one file lasts until the turn ends.
        (&["allow_once"][..], &all[..]),
        (&["allow_folder"], &all[..1]),
        (&["allow_once", "allow_folder"], &all[..3]),
        (&["allow_turn"], &all[..1]),
        (&["allow_session"], &all[..1]),
    ] {
        let fixture = StoreFixture::new();
        let mut client = client(&fixture, "ask").await;
        let (text, titles) = prompt(&mut client, LINE, options).await;
        assert!(text.contains("exit 0"), "{options:?}: {text}");
        assert_eq!(titles, expected, "{options:?}: {text}");
        assert_eq!(std::fs::read_to_string(client.path("d/a")).unwrap(), "1\n2\n");
        // In the next turn, only consent for the session counts.
        let (_, titles) = prompt(&mut client, "run echo 4 > d/a", &["reject_once"]).await;
        let is_lasting = options == ["allow_session"];
        assert_eq!(titles.is_empty(), is_lasting, "{options:?}");
        client.end().await;
    }
}

#[tokio::test]
async fn refused_changes_do_not_happen() {
    for (option, questions) in
        [("reject_once", 2), ("reject_turn", 1), ("unknown", 2), ("reject_with_feedback", 2)]
    {
        let fixture = StoreFixture::new();
        let mut client = client(&fixture, "ask").await;
        let (text, titles) = prompt(&mut client, "run echo 1 > a; mkdir d; ls", &[option]).await;
        assert_eq!(titles.len(), questions, "{option}: {text}");
        assert!(!client.path("a").exists() && !client.path("d").exists(), "{option}: {text}");
        let (_, titles) = prompt(&mut client, "run echo 1 > a", &["allow_once"]).await;
        assert!(titles.len() == 1 && client.path("a").exists(), "the control");
        let session = client.session.clone();
        client.end().await;
        let report = report(&fixture.store(), &session, None).await;
        assert_eq!((report.denials, report.findings), (2, Vec::new()), "{option}");
    }
}

/// The request expires after ten minutes.
#[tokio::test]
async fn expired_question_is_withdrawn_and_reported() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "ask").await;
    let id = client.client.prompt(&client.session.clone(), "run echo 1 > a; ls").await;
    let mut messages = Vec::new();
    while messages.last().is_none_or(|message: &Value| message["id"] != id || message.get("method").is_some())
    {
        let message = client.client.next().await;
        if is_request(&message) {
            tokio::time::pause();
            tokio::time::advance(Duration::from_mins(10)).await;
            tokio::time::resume();
        }
        messages.push(message);
    }
    let withdrawn = messages.iter().filter(|message| message["method"] == "$/cancel_request").count();
    let text = agent_text(&messages);
    let notice = "No answer came within 10 minutes. Refused: Create a (peer).";
    assert!(withdrawn == 1 && text.contains(notice) && !client.path("a").exists(), "{text}");
    let (text, titles) = prompt(&mut client, "run echo 1 > a", &["allow_once"]).await;
    assert!(titles.len() == 1 && client.path("a").exists() && !text.contains("No answer"), "the control");
    let session = client.session.clone();
    client.end().await;
    assert_eq!(report(&fixture.store(), &session, None).await.denials, 1);
}

/// After consent to a call of the agent, its changes cause no permission requests until the call ends.
#[tokio::test]
async fn consent_to_a_call_of_the_agent_covers_its_changes() {
    for (option, expected) in [("yes", vec!["Write", "Create after (peer)"]), ("no", vec!["Write"])] {
        let fixture = StoreFixture::new();
        let mut client = client(&fixture, "ask").await;
        let id = client.client.prompt(&client.session.clone(), "asks-then-runs mkdir d; echo 1 > d/a").await;
        let mut titles = Vec::new();
        loop {
            let message = client.client.next().await;
            if is_request(&message) {
                let title = message["params"]["toolCall"]["title"].as_str().unwrap().to_owned();
                answer(&mut client, &message, if title == "Write" { option } else { "reject_turn" }).await;
                titles.push(title);
            }
            if message["id"] == id && message.get("method").is_none() {
                break;
            }
        }
        titles.truncate(expected.len());
        if option == "yes" {
            assert_eq!(titles, expected, "{option}");
        }
        assert_eq!(client.path("d/a").exists(), option == "yes");
        assert!(!client.path("after").exists());
        client.end().await;
    }
}

/// `code -> plan -> ask -> code` during one turn, with one process. The writes are allowed, denied, asked and
/// allowed.
#[tokio::test]
async fn mode_changes_apply_in_the_middle_of_a_turn() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "code").await;
    // The broker learns of a looser mode after the answer. In `plan`, at step 1, one attempt is enough.
    let line = "i=0; while [ $i -lt 4 ]; do until [ -e $HOME/.peer/go$i ]; do sleep 0.01; done; \
                until echo $i > f$i || [ $i = 1 ]; do sleep 0.01; done; \
                i=$((i+1)); echo > $HOME/.peer/done$i; done";
    let peer = client.home.path().join(".peer");
    std::fs::create_dir_all(&peer).unwrap();
    let line = line.replace("$HOME/.peer", &peer.display().to_string());
    let id = client.client.prompt(&client.session.clone(), &format!("run {line}")).await;
    let wait = |name: String| {
        let path = peer.join(name);
        async move { until_exists(&path).await }
    };
    let mut asked = Vec::new();
    for (step, mode) in ["code", "plan", "ask", "code"].into_iter().enumerate() {
        if step > 0 {
            let set = json!({ "sessionId": client.session, "modeId": mode });
            let set = client.client.request("session/set_mode", set).await;
            client.until(set, None).await;
        }
        std::fs::write(peer.join(format!("go{step}")), "").unwrap();
        if mode == "ask" {
            let request = loop {
                let message = client.client.next().await;
                if is_request(&message) {
                    break message;
                }
            };
            assert!(!client.path("f2").exists(), "it waits");
            answer(&mut client, &request, "allow_once").await;
            asked.push(request["params"]["toolCall"]["title"].clone());
        }
        wait(format!("done{}", step + 1)).await;
    }
    let messages = client.until(id, None).await;
    assert!(!messages.iter().any(is_request), "{messages:?}");
    assert_eq!(asked, ["Create f2 (peer)"]);
    let written: Vec<bool> = (0..4).map(|step| client.path(&format!("f{step}")).exists()).collect();
    assert_eq!(written, [true, false, true, true]);
    let session = client.session.clone();
    client.end().await;
    let report = report(&fixture.store(), &session, None).await;
    assert_eq!(report.findings, Vec::<String>::new());
}

/// A cancel denies the waiting changes, and the agent can end its turn.
#[tokio::test]
async fn cancel_refuses_changes_that_wait() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "ask").await;
    let id = client.client.prompt(&client.session.clone(), "run echo 1 > a; echo 2 > b").await;
    while !is_request(&client.client.next().await) {}
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": client.session } });
    client.client.send_line(&cancel.to_string()).await;
    let messages = client.until(id, None).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled", "{messages:?}");
    assert!(!client.path("a").exists() && !client.path("b").exists());
    client.end().await;
}

/// Rules for paths decide about the agent's changes in every mode.
#[tokio::test]
async fn rules_decide_without_a_permission_request() {
    let rules = "deny: ['edit_file(**/.env)', 'delete_file(keep/**)']\nallow: ['edit_file(docs/**)', 'write_file(docs/**)']";
    for (mode, expected) in [("code", vec![]), ("ask", vec!["Create other (peer)"])] {
        let fixture = StoreFixture::new();
        let mut client =
            client_with(&fixture, Setup { mode, rules: compiled(rules), ..Setup::default() }).await;
        for folder in ["docs", "keep"] {
            std::fs::create_dir(client.path(folder)).unwrap();
        }
        std::fs::write(client.path("keep/it"), "").unwrap();
        let line =
            "run echo > .env; echo > docs/.env; rm keep/it; echo > docs/page; echo > other; echo > .env; ls";
        let (text, titles) = prompt(&mut client, line, &["allow_once"]).await;
        assert_eq!(titles, expected, "{mode}: {text}");
        let exists = |name: &str| client.path(name).exists();
        assert!(!exists(".env") && !exists("docs/.env") && exists("keep/it"), "{mode}: {text}");
        assert!(exists("docs/page") && exists("other"), "the control, in {mode}: {text}");
        assert!(text.contains("Refused by Modegate: Create .env (peer)"), "{text}");
        let session = client.session.clone();
        client.end().await;
        let report = report(&fixture.store(), &session, None).await;
        assert_eq!((report.denials, report.findings), (3, Vec::new()));
    }
}

/// A brokered agent can run in a mode that allows edits of some files.
#[tokio::test]
async fn edit_modes_limit_brokered_agents() {
    let fixture = StoreFixture::new();
    let mut modes = Modes::built_in();
    let writer = "id: writer\naccess: edit\npermission: auto";
    let definition: ModeDefinition = serde_saphyr::from_str(writer).unwrap();
    modes.put(definition.complete(None).unwrap());
    let rules = compiled("deny: ['edit_file(src/**)']");
    let setup = Setup { mode: "plan", modes, rules, ..Setup::default() };
    let mut client = client_with(&fixture, setup).await;
    std::fs::create_dir(client.path("src")).unwrap();
    let answer = client.mode("writer").await;
    assert!(answer["error"].is_null(), "{answer}");
    let (text, titles) = prompt(&mut client, "run echo > page; echo > src/page", &["allow_once"]).await;
    assert_eq!(titles, Vec::<String>::new(), "{text}");
    assert!(client.path("page").exists() && !client.path("src/page").exists(), "{text}");
    client.end().await;
}

/// A rule for a file also matches a link to it, and the file after its folder has moved.
#[tokio::test]
async fn rules_match_links_and_files_in_moved_folders() {
    let rules = "deny: ['*(**/.env)', '*(locked/*.key)']";
    for mode in ["code", "ask"] {
        let fixture = StoreFixture::new();
        let mut client =
            client_with(&fixture, Setup { mode, rules: compiled(rules), ..Setup::default() }).await;
        for name in ["d/.env", "keys/a.key", "free/page"] {
            let path = client.path(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "old").unwrap();
        }
        let exists = |client: &ExternalAgentClient, name: &str| client.path(name).exists();
        let run = "run ln d/.env open; echo new > open; mv -T d e; mv -T keys locked; ls -aR";
        let (text, _) = prompt(&mut client, run, &["allow_once"]).await;
        assert_eq!(std::fs::read_to_string(client.path("d/.env")).unwrap(), "old", "{mode}: {text}");
        assert!(!exists(&client, "e/.env") && !exists(&client, "locked/a.key"), "{mode}: {text}");
        assert!(exists(&client, "keys/a.key"), "{mode}: {text}");
        let run = "run ln free/page other; mv -T free moved; mv -T keys elsewhere";
        let (text, _) = prompt(&mut client, run, &["allow_once"]).await;
        for name in ["other", "moved/page", "elsewhere/a.key"] {
            assert!(exists(&client, name), "the control {name}, in {mode}: {text}");
        }
        client.end().await;
    }
}

/// The effect names the closed request. It names no process, because the agent continues.
#[tokio::test]
async fn mode_change_reports_the_question_that_it_closes() {
    for (mode, is_closed) in [("plan", true), ("code", false)] {
        let fixture = StoreFixture::new();
        let mut client = client(&fixture, "ask").await;
        let id = client.client.prompt(&client.session.clone(), "run echo 1 > a").await;
        let request = loop {
            let message = client.client.next().await;
            if is_request(&message) {
                break message;
            }
        };
        let set = json!({ "sessionId": client.session, "modeId": mode });
        let set = client.client.request("session/set_mode", set).await;
        let messages = client.until(set, None).await;
        let effect = &messages.last().unwrap()["result"]["_meta"]["modegate/effect"];
        let call = request["params"]["toolCall"]["toolCallId"].clone();
        let closed = if is_closed { json!([call]) } else { json!([]) };
        assert_eq!(effect["closedRequests"], closed, "{mode}: {effect}");
        let ended = if is_closed { json!(["agent_changes"]) } else { json!([]) };
        assert_eq!(effect["ended"], ended, "{mode}: {effect}");
        if messages.iter().all(|message| message["id"] != id) {
            client.until(id, None).await;
        }
        assert_eq!(client.path("a").exists(), !is_closed, "{mode}");
        client.end().await;
    }
}
