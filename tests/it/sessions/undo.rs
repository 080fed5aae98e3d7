//! Undo of a turn's changes, and audits of a session's log, also of a manipulated log.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use modegate::acp::SessionId;
use modegate::audit::{AuditReport, TrustAnchors, audit};
use modegate::model::{ModelEvent, ModelStop};
use modegate::process::shell::Sandbox;
use modegate::store::{Store, StoreLocation, Sync};
use modegate::tool::{Toolset, effect_of};
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::sessions::load::{StoreFixture, call, open, set_mode, text, turn};
use crate::sessions::resume::layers;
use crate::support::requirements::require_sandbox;
use crate::support::waiting::until_content;
use crate::support::{Setup, TestClient, shell};

/// Returns the mode bits and the content of each path in a folder. The content of a link is its target.
pub(crate) fn tree(folder: &Path) -> BTreeMap<String, (u32, String)> {
    let mut entries = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let metadata = path.symlink_metadata().unwrap();
        let bits = metadata.permissions().mode() & 0o777;
        if metadata.is_symlink() {
            entries.insert(name, (0, format!("-> {}", path.read_link().unwrap().display())));
        } else if metadata.is_dir() {
            let below = tree(&path).into_iter().map(|(below, what)| (format!("{name}/{below}"), what));
            entries.extend(below);
            entries.insert(name + "/", (bits, String::new()));
        } else {
            entries.insert(name, (bits, std::fs::read_to_string(&path).unwrap()));
        }
    }
    entries
}

fn create_files(cwd: &Path) {
    std::fs::create_dir_all(cwd.join("folder")).unwrap();
    for (name, content) in [("a.txt", "one\n"), ("b.txt", "bee\n"), ("folder/c.txt", "see\n")] {
        std::fs::write(cwd.join(name), content).unwrap();
    }
    std::fs::set_permissions(cwd.join("b.txt"), std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("a.txt", cwd.join("link")).unwrap();
}

/// `Workspace` finds the changes of commands by comparing folders, `Broker` records them.
pub(crate) const SANDBOXES: [Sandbox; 2] = [Sandbox::Workspace, Sandbox::Broker];

fn with_shell(home: &Path, sandbox: Sandbox) -> Setup {
    let tools = Toolset::built_in().with_shell(shell(home, sandbox));
    Setup { mode: "code", tools, ..Setup::default() }
}

/// Returns the answer to a slash command.
fn text_of(messages: &[Value]) -> String {
    let text = messages.iter().map(|message| message["params"]["update"]["content"]["text"].as_str());
    text.map(Option::unwrap_or_default).collect()
}

pub(crate) async fn slash(client: &mut TestClient, session: &str, command: &str) -> String {
    let answer = text_of(&turn(client, session, command, &[]).await);
    assert!(!answer.contains(".."), "one full stop is enough: {answer}");
    answer
}

#[tokio::test]
async fn undo_restores_changes_of_tools_and_commands() {
    for sandbox in SANDBOXES {
        let fixture = StoreFixture::new();
        let home = tempfile::tempdir().unwrap();
        let mut client = fixture.agent(with_shell(home.path(), sandbox));
        let cwd = client.cwd();
        create_files(&cwd);
        let first = tree(&cwd);
        let session = client.session().await;
        let tools: &[_] = &[
            call("w", "write_file", json!({ "path": "new/deep/n.txt", "content": "new\n" })),
            call("e", "write_file", json!({ "path": "b.txt", "content": "changed\n" })),
            call("d", "delete_file", json!({ "path": "folder/c.txt" })),
        ];
        turn(&mut client, &session, "by tools", &[tools, &[]]).await;
        let second = tree(&cwd);
        let line = "echo two > a.txt; rm link; chmod 600 b.txt; mkdir empty; ln -s b.txt other; echo x > x.txt; false";
        turn(
            &mut client,
            &session,
            "by a command",
            &[&[call("s", "shell", json!({ "command": line }))], &[]],
        )
        .await;
        assert_eq!(std::fs::read_to_string(cwd.join("a.txt")).unwrap(), "two\n", "the command ran");

        let answer = slash(&mut client, &session, "/undo").await;
        assert!(answer.contains("the changes of turn 2") && answer.contains("- a.txt"), "{answer}");
        assert!(answer.contains("Note: Commands ran"), "{answer}");
        assert_eq!(tree(&cwd), second);
        let answer = slash(&mut client, &session, "/undo").await;
        assert!(answer.contains("the changes of turn 1") && !answer.contains("Commands ran"), "{answer}");
        assert_eq!(tree(&cwd), first);
        let answer = slash(&mut client, &session, "/undo").await;
        assert!(answer.contains("there is nothing to undo") && !answer.contains("Commands ran"), "{answer}");
        // The next request tells the model about the undo.
        turn(&mut client, &session, "and now?", &[&[text("Well.")]]).await;
        let mut last = None;
        for _ in 0..5 {
            last = Some(client.model.next_request(&session).await);
        }
        assert!(format!("{:?}", last.unwrap().messages).contains("The user has undone your changes"));
        client.end().await;
    }
}

/// A comparison leaves out ignored files and files over 4 MiB. The record has them.
#[tokio::test]
async fn brokered_commands_are_undone_exactly() {
    require_sandbox();
    let fixture = StoreFixture::new();
    let home = tempfile::tempdir().unwrap();
    let mut client = fixture.agent(with_shell(home.path(), Sandbox::Broker));
    let cwd = client.cwd();
    create_files(&cwd);
    std::fs::create_dir(cwd.join("target")).unwrap();
    std::fs::write(cwd.join(".gitignore"), "target\n").unwrap();
    std::fs::write(cwd.join("target/out"), "built\n").unwrap();
    std::fs::write(cwd.join("large"), vec![b'x'; 6 << 20]).unwrap();
    std::fs::hard_link(cwd.join("b.txt"), cwd.join("hard")).unwrap();
    let first = tree(&cwd);
    let session = client.session().await;
    let line = "echo new > target/out; echo x >> large; mv folder moved; rm hard; mkdir -p new/deep; \
                echo x > $TMPDIR/t; cp $TMPDIR/t new/deep/t; touch -d 2001-01-01 a.txt; echo done";
    let command = call("s", "shell", json!({ "command": line }));
    let messages = turn(&mut client, &session, "go", &[&[command], &[]]).await;
    assert!(format!("{messages:?}").contains("done"), "{messages:?}");
    assert!(cwd.join("new/deep/t").exists() && !cwd.join("folder").exists());
    let answer = slash(&mut client, &session, "/undo").await;
    assert!(answer.contains("the changes of turn 1") && answer.contains("- target/out"), "{answer}");
    assert_eq!(tree(&cwd), first);
    client.end().await;
}

/// If a rule denies reading or changing a file, the supervisor makes the changes of commands, and they can be undone.
#[tokio::test]
async fn commands_that_rules_keep_from_files_are_undone_exactly() {
    require_sandbox();
    for (rules, secret) in [
        ("{}", "SECRET"),
        ("{deny: [\"read_file(**/.env)\"]}", "Permission denied"),
        ("{deny: [\"write_file(**/.env)\"]}", "SECRET"),
    ] {
        let rules = layers(&format!("permissions: {rules}\n")).rules;
        let fixture = StoreFixture::new();
        let home = tempfile::tempdir().unwrap();
        let mut client = fixture.agent(Setup { rules, ..with_shell(home.path(), Sandbox::Workspace) });
        let cwd = client.cwd();
        create_files(&cwd);
        std::fs::write(cwd.join(".env"), "SECRET\n").unwrap();
        let first = tree(&cwd);
        let session = client.session().await;
        let line = "tail .env; echo two >> a.txt; mv folder moved; tail a.txt moved/c.txt";
        let command = call("s", "shell", json!({ "command": line }));
        let messages = format!("{:?}", turn(&mut client, &session, "go", &[&[command], &[]]).await);
        for expected in [secret, "one\\ntwo", "see"] {
            assert!(messages.contains(expected), "{expected}: {messages}");
        }
        assert_eq!(messages.contains("SECRET"), secret == "SECRET", "{messages}");
        let answer = slash(&mut client, &session, "/undo").await;
        assert!(answer.contains("the changes of turn 1"), "{answer}");
        assert_eq!(tree(&cwd), first);
        client.end().await;
    }
}

#[tokio::test]
async fn undo_rejects_conflicts_and_read_only_modes() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup { mode: "code", ..Setup::default() });
    let cwd = client.cwd();
    create_files(&cwd);
    let session = client.session().await;
    let write = |path: &str| call(path, "write_file", json!({ "path": path, "content": "changed\n" }));
    let read = |path: &str| call(path, "read_file", json!({ "path": path }));
    let calls = [read("a.txt"), read("b.txt"), write("a.txt"), write("b.txt")];
    turn(&mut client, &session, "change", &[&calls, &[]]).await;
    let changed = tree(&cwd);
    set_mode(&mut client, &session, "plan").await;
    let answer = slash(&mut client, &session, "/undo").await;
    assert!(answer.contains("plan mode does not allow changes to these files"), "{answer}");
    assert_eq!(tree(&cwd), changed);
    set_mode(&mut client, &session, "ask").await;
    std::fs::write(cwd.join("b.txt"), "by the user\n").unwrap();
    let answer = slash(&mut client, &session, "/undo 1").await;
    assert!(
        answer.contains("changed since") && answer.contains("b.txt") && !answer.contains("a.txt"),
        "{answer}"
    );
    assert_eq!(std::fs::read_to_string(cwd.join("a.txt")).unwrap(), "changed\n");
    // The control: with the content that the turn left, undo restores the file, also after the session was
    // closed.
    std::fs::write(cwd.join("b.txt"), "changed\n").unwrap();
    client.end().await;
    let mut client = fixture.agent(Setup { max_mode: Some("plan"), ..Setup::default() });
    open(&mut client, "session/resume", &session).await;
    let answer = slash(&mut client, &session, "/undo 1").await;
    let held = "ask mode is limited by plan mode here, which does not allow changes to these files: run `modegate \
                sessions undo";
    assert!(answer.contains(held), "{answer}");
    assert_eq!(tree(&cwd), changed);
    client.end().await;
    let mut client = fixture.agent(Setup::default());
    open(&mut client, "session/resume", &session).await;
    let answer = slash(&mut client, &session, "/undo 1").await;
    assert!(answer.contains("the changes of turn 1"), "{answer}");
    assert_eq!(std::fs::read_to_string(cwd.join("a.txt")).unwrap(), "one\n");
    // During a turn, undo is refused.
    let prompt = client.prompt(&session, "wait").await;
    client.model.next_request(&session).await;
    let answer = slash(&mut client, &session, "/undo").await;
    assert!(answer.contains("a turn is running"), "{answer}");
    client.notify("session/cancel", json!({ "sessionId": session })).await;
    client.until_answer(prompt).await;
    client.end().await;
}

/// An action before a call of the model.
enum Before {
    Nothing,
    /// Waits until a file has this content.
    Wait(&'static str, &'static str),
    /// The user writes a file.
    User(&'static str),
}

/// Runs a turn whose model makes each call after the action before it.
async fn turn_in_steps(
    client: &mut TestClient,
    session: &str,
    steps: impl IntoIterator<Item = (Before, ModelEvent)>,
) {
    let cwd = client.cwd();
    let prompt = client.prompt(session, "go").await;
    for (before, call) in steps {
        client.model.next_request(session).await;
        match before {
            Before::Nothing => {}
            Before::Wait(file, content) => until_content(&cwd.join(file), content).await,
            Before::User(file) => std::fs::write(cwd.join(file), "user\n").unwrap(),
        }
        client.model.say(session, Ok(call));
        client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
    }
    client.model.next_request(session).await;
    client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
    client.until_answer(prompt).await;
}

fn run(id: &str, line: &str) -> ModelEvent {
    call(id, "shell", json!({ "command": line }))
}

fn run_job(id: &str, line: &str) -> ModelEvent {
    call(id, "shell", json!({ "command": line, "background": true }))
}

#[tokio::test]
async fn undo_restores_job_changes_before_a_command() {
    for sandbox in SANDBOXES {
        for job in ["echo job > a.txt; exec sleep 1000", "echo job > a.txt"] {
            for line in ["true", "echo line > b.txt"] {
                let (fixture, home) = (StoreFixture::new(), tempfile::tempdir().unwrap());
                let mut client = fixture.agent(with_shell(home.path(), sandbox));
                create_files(&client.cwd());
                let first = tree(&client.cwd());
                let session = client.session().await;
                let steps =
                    [(Before::Nothing, run_job("1", job)), (Before::Wait("a.txt", "job\n"), run("2", line))];
                turn_in_steps(&mut client, &session, steps).await;
                let answer = slash(&mut client, &session, "/undo").await;
                assert_eq!(tree(&client.cwd()), first, "{job}; {line}: {answer}");
                client.end().await;
            }
        }
    }
}

#[tokio::test]
async fn undo_keeps_user_changes_made_while_idle() {
    for sandbox in SANDBOXES {
        let (fixture, home) = (StoreFixture::new(), tempfile::tempdir().unwrap());
        let mut client = fixture.agent(with_shell(home.path(), sandbox));
        let cwd = client.cwd();
        create_files(&cwd);
        let session = client.session().await;
        // The user writes between two commands of one turn.
        let steps = [(Before::Nothing, run("1", "true")), (Before::User("u1"), run("2", "echo x > a.txt"))];
        turn_in_steps(&mut client, &session, steps).await;
        slash(&mut client, &session, "/undo").await;
        // The user writes between two turns, while a job of the first turn ends.
        let job = "until test -e go; do sleep 0.01; done; echo late > late";
        turn_in_steps(&mut client, &session, [(Before::Nothing, run_job("3", job))]).await;
        std::fs::write(cwd.join("go"), "user\n").unwrap();
        until_content(&cwd.join("late"), "late\n").await;
        turn_in_steps(&mut client, &session, [(Before::Nothing, run("4", "echo x > a.txt"))]).await;
        let answer = slash(&mut client, &session, "/undo").await;
        let read = |file: &str| std::fs::read_to_string(cwd.join(file)).unwrap_or_default();
        assert_eq!(
            ["a.txt", "u1", "go", "late"].map(read),
            ["one\n", "user\n", "user\n", "late\n"],
            "{answer}"
        );
        let answer = slash(&mut client, &session, "/undo").await;
        assert!(answer.contains("there is nothing to undo. ") && !answer.contains(".."), "{answer}");
        client.end().await;
    }
}

/// Another change to the files between two changes of one turn.
type Between = fn(&Path);

/// Runs a turn that changes `a.txt` twice, with another change between the two, and then `/undo`. Returns the
/// files and the answer.
async fn undo_with(client: &mut TestClient, between: Between) -> (BTreeMap<String, (u32, String)>, String) {
    let cwd = client.cwd();
    let session = client.session().await;
    let prompt = client.prompt(&session, "change it twice").await;
    let say = |event| client.model.say(&session, Ok(event));
    let write = |id, content| call(id, "write_file", json!({ "path": "a.txt", "content": content }));
    let stop = || modegate::model::ModelEvent::Stop(modegate::model::ModelStop::Done);
    client.model.next_request(&session).await;
    say(call("r", "read_file", json!({ "path": "a.txt" })));
    say(write("1", "agent 1\n"));
    say(stop());
    // The next request has the result of the first call.
    client.model.next_request(&session).await;
    between(&cwd);
    for event in
        [call("r", "read_file", json!({ "path": "a.txt" })), stop(), write("2", "agent 2\n"), stop(), stop()]
    {
        say(event);
    }
    client.until_answer(prompt).await;
    let changed = tree(&cwd);
    (changed, slash(client, &session, "/undo").await)
}

#[tokio::test]
async fn undo_names_conflicting_changes_between_edits() {
    let cases: [(&str, Between); 4] = [
        ("a content", |cwd| std::fs::write(cwd.join("a.txt"), "agent 1\nthe user's line\n").unwrap()),
        ("mode bits", |cwd| {
            std::fs::set_permissions(cwd.join("a.txt"), std::fs::Permissions::from_mode(0o600)).unwrap();
        }),
        ("a deletion", |cwd| std::fs::remove_file(cwd.join("a.txt")).unwrap()),
        ("another file in its place", |cwd| {
            std::fs::write(cwd.join("a.new"), "another\n").unwrap();
            std::fs::rename(cwd.join("a.new"), cwd.join("a.txt")).unwrap();
        }),
    ];
    for (what, between) in cases {
        let fixture = StoreFixture::new();
        let mut client = fixture.agent(Setup { mode: "code", ..Setup::default() });
        create_files(&client.cwd());
        let (changed, answer) = undo_with(&mut client, between).await;
        let conflict = format!(
            "{} (before change 2 of 2; that change and later ones could be undone)",
            client.cwd().join("a.txt").display()
        );
        assert!(answer.contains("nothing was restored") && answer.contains(&conflict), "{what}: {answer}");
        assert_eq!(tree(&client.cwd()), changed, "{what}");
        client.end().await;
    }
    // The controls: no other change, a change of another file, and a reverted change.
    let controls: [Between; 3] = [
        |_| {},
        |cwd| std::fs::write(cwd.join("other.txt"), "by the user\n").unwrap(),
        |cwd| {
            std::fs::write(cwd.join("a.txt"), "by the user\n").unwrap();
            std::fs::write(cwd.join("a.txt"), "agent 1\n").unwrap();
        },
    ];
    for between in controls {
        let fixture = StoreFixture::new();
        let mut client = fixture.agent(Setup { mode: "code", ..Setup::default() });
        create_files(&client.cwd());
        let (_, answer) = undo_with(&mut client, between).await;
        assert!(answer.contains("the changes of turn 1"), "{answer}");
        assert_eq!(std::fs::read_to_string(client.cwd().join("a.txt")).unwrap(), "one\n");
        client.end().await;
    }
}

pub(crate) async fn report(store: &Path, session: &str, kept: Option<&str>) -> AuditReport {
    let store = Store::open(StoreLocation::File(store.to_owned()), Sync::Normal).unwrap();
    let evidence = store.evidence(&SessionId::new(session)).await.unwrap().unwrap();
    audit(&evidence, effect_of, TrustAnchors { head: kept, key: None })
}

#[tokio::test]
async fn audit_repeats_decisions_and_detects_tampering() {
    let fixture = StoreFixture::new();
    let home = tempfile::tempdir().unwrap();
    let mut client = fixture.agent(with_shell(home.path(), Sandbox::Workspace));
    let session = client.session().await;
    let write = |id: &str| call(id, "write_file", json!({ "path": "a.txt", "content": id }));
    let command = call("s", "shell", json!({ "command": "echo x > x.txt" }));
    turn(&mut client, &session, "change", &[&[write("1"), command], &[]]).await;
    set_mode(&mut client, &session, "plan").await;
    turn(&mut client, &session, "change", &[&[write("2")], &[]]).await;
    set_mode(&mut client, &session, "ask").await;
    // The user allows the first call always. The second call needs no permission request.
    let id = client.prompt(&session, "change").await;
    for event in [write("3"), modegate::model::ModelEvent::Stop(modegate::model::ModelStop::Done)] {
        client.model.say(&session, Ok(event));
    }
    let question = loop {
        let message = client.next().await;
        if message["method"] == "session/request_permission" {
            break message;
        }
    };
    let outcome = json!({ "outcome": "selected", "optionId": "allow_always" });
    client
        .send_line(
            &json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "outcome": outcome } }).to_string(),
        )
        .await;
    client.model.say(&session, Ok(write("4")));
    for _ in 0..2 {
        client.model.say(&session, Ok(modegate::model::ModelEvent::Stop(modegate::model::ModelStop::Done)));
    }
    let answer = client.until_answer(id).await.pop().unwrap();
    let head = answer["result"]["_meta"]["modegate/head"]["hash"].as_str().unwrap().to_owned();
    client.end().await;

    let store = fixture.store();
    let whole = report(&store, &session, Some(&head)).await;
    assert_eq!(whole.findings, Vec::<String>::new());
    assert_eq!((whole.mode_changes, whole.denials, whole.calls), (3, 1, 4));
    assert_eq!(whole.head.unwrap().hash, head);
    let tamper = [
        (
            "UPDATE chain SET body = replace(body, '\"mode\":\"code\"', '\"mode\":\"plan\"')",
            "entry 2 was modified",
        ),
        ("DELETE FROM chain WHERE number = 3", "entry 3 is missing"),
        ("DELETE FROM chain WHERE number > 5", "no entry has the hash given with --head"),
        ("DELETE FROM denials", "the table of denials"),
        ("UPDATE mode_changes SET to_mode = 'ask' WHERE to_mode = 'plan'", "the table of mode changes"),
        ("UPDATE sessions SET mode = 'code'", "the stored mode is code, but the chain ends in ask"),
        (
            "UPDATE mode_texts SET text = replace(text, 'access: full', 'access: read_only')",
            "it does not match its hash",
        ),
        (
            "UPDATE events SET body = replace(body, 'call_1_1', 'call_1_9')",
            "call_1_9 (write_file) ran but is not in",
        ),
    ];
    for (sql, expected) in tamper {
        let copy = fixture.folder.path().join("copy.db");
        for ending in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{ending}", copy.display()));
        }
        Connection::open(&store).unwrap().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
        Connection::open(&copy).unwrap().execute_batch(sql).unwrap();
        let findings = report(&copy, &session, Some(&head)).await.findings;
        assert!(findings.iter().any(|finding| finding.contains(expected)), "{sql}: {findings:?}");
    }
    check_forged_chain(&fixture, &session).await;
}

/// Forges a chain with valid hashes and a call that the mode denied. The audit finds the wrong decision.
async fn check_forged_chain(fixture: &StoreFixture, session: &str) {
    let copy = fixture.folder.path().join("forged.db");
    Connection::open(fixture.store()).unwrap().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    let connection = Connection::open(&copy).unwrap();
    let mut statement = connection.prepare("SELECT body FROM chain ORDER BY number").unwrap();
    let bodies: Vec<String> =
        statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    drop(statement);
    connection.execute("DELETE FROM chain", []).unwrap();
    let plan = modegate::mode::Modes::built_in().resolve("plan").unwrap().to_yaml();
    let text = format!("{plan}---\npermissions: {{\"deny\":[],\"ask\":[],\"allow\":[]}}\n");
    let name = modegate::ids::hash(&text);
    connection.execute("INSERT INTO mode_texts VALUES (?1, ?2)", [&name, &text]).unwrap();
    let mut head = modegate::chain::Head::start(session);
    for body in bodies {
        let mut entry: Value = serde_json::from_str(&body).unwrap();
        if entry["call"] == "call_1_1" {
            (entry["mode"], entry["under"]) = ("plan".into(), name.clone().into());
        }
        let link = head.next(entry.to_string());
        let row = (session, link.number.cast_signed(), &link.body, &link.hash);
        connection.execute("INSERT INTO chain VALUES (?1, ?2, ?3, ?4)", row).unwrap();
        head.follow(&link);
    }
    drop(connection);
    let findings = report(&copy, session, None).await.findings;
    assert!(
        findings.iter().any(|finding| finding.contains("call_1_1 (write_file): is denied by access")),
        "{findings:?}"
    );
    assert!(
        findings.iter().any(|finding| finding.contains("ran in plan mode, but the session was in code mode"))
    );
}
