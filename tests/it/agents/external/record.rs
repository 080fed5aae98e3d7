//! Changes by brokered external agents are undone exactly, and audited.

use std::fs;
use std::path::Path;

use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rusqlite::Connection;
use serde_json::json;

use crate::agents::external::sessions::{ExternalAgentClient, agent_text, agents, home};
use crate::sessions::load::StoreFixture;
use crate::sessions::undo::{report, tree};
use crate::support::{Setup, shell};

const BROKERED: &str = ", sandbox: {state_dirs: ['~/.peer'], broker: true}";

pub(crate) async fn client(fixture: &StoreFixture, mode: &'static str) -> ExternalAgentClient {
    client_with(fixture, Setup { mode, ..Setup::default() }).await
}

pub(crate) async fn client_with(fixture: &StoreFixture, setup: Setup) -> ExternalAgentClient {
    let home = home();
    let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
    let agents = agents("plain", BROKERED);
    let client = fixture.agent(Setup { agents, tools, live: true, ..setup });
    ExternalAgentClient::open(client, home, json!({})).await.unwrap()
}

fn create_files(cwd: &Path) {
    let write = |name: &str, content: &str| fs::write(cwd.join(name), content).unwrap();
    fs::create_dir_all(cwd.join("folder/deep")).unwrap();
    write("a.txt", "one\n");
    write("b.txt", "bee\n");
    write("folder/c.txt", "see\n");
    write("folder/deep/d.txt", "dee\n");
    std::os::unix::fs::symlink("a.txt", cwd.join("link")).unwrap();
    fs::create_dir(cwd.join("empty")).unwrap();
}

/// Commands of one turn each.
const COMMANDS: [&str; 27] = [
    "echo new > n.txt",
    "echo two > a.txt",
    "echo more >> a.txt",
    "echo through > link",
    ": > b.txt",
    "truncate -s 1 b.txt",
    "mv a.txt moved.txt",
    "mv a.txt b.txt",
    "mv folder elsewhere",
    "mv folder/deep . && mv deep/d.txt folder/deep",
    "mv -T empty folder/empty && mv -T folder other && echo x > other/c.txt",
    "rm a.txt",
    "exec 3>> a.txt; rm a.txt; echo more >&3",
    "ln a.txt other; rm a.txt; echo more >> other; rm other",
    "rm -r folder",
    "rm -r folder && echo now a file > folder",
    "rmdir empty && ln -s folder empty",
    "rm link && mkdir -p link/deeper && echo x > link/deeper/x",
    "mkdir -p p/q/r && touch p/q/r/s && chmod 700 p/q",
    "ln -s nowhere s && ln b.txt hard && echo through >> hard",
    "chmod 750 a.txt && ln -f a.txt link",
    "chmod 751 a.txt && chmod 711 folder/deep",
    "sed -i s/one/other/ a.txt",
    "cp -r folder copy && tar cf t.tar copy && rm -r copy && tar xf t.tar",
    "echo short > short && rm short",
    "dd if=/dev/zero of=a.txt bs=1 count=1 conv=notrunc",
    "python3 -c \"import mmap; f = open('a.txt', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0] = 65\"",
];

#[tokio::test]
async fn changes_are_undone_exactly() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "code").await;
    let cwd = client.client.cwd();
    create_files(&cwd);
    for command in COMMANDS {
        let before = tree(&cwd);
        let text = agent_text(&client.prompt(&format!("run {command}"), None).await);
        assert!(text.contains("exit 0 "), "{command}: {text}");
        let is_changed = !command.ends_with("rm short");
        assert_eq!(tree(&cwd) != before, is_changed, "{command}");
        if is_changed {
            let text = agent_text(&client.prompt("/undo", None).await);
            assert!(text.contains("Undid"), "{command}: {text}");
            assert_eq!(tree(&cwd), before, "{command}: {text}");
        }
    }
    client.end().await;
}

fn any_command() -> impl Strategy<Value = String> {
    let name = || {
        let names =
            ["a.txt", "b.txt", "link", "new", "folder", "folder/c.txt", "folder/deep", "folder/x", "empty"];
        proptest::sample::select(names.to_vec())
    };
    prop_oneof![
        name().prop_map(|at| format!("echo x > {at}")),
        name().prop_map(|at| format!("echo x >> {at}")),
        name().prop_map(|at| format!("rm -r {at}")),
        name().prop_map(|at| format!("mkdir -p {at}/sub")),
        name().prop_map(|at| format!("chmod 750 {at}")),
        (name(), name()).prop_map(|(from, to)| format!("mv -T {from} {to}")),
        (name(), name()).prop_map(|(from, to)| format!("cp -rT {from} {to}")),
        (name(), name()).prop_map(|(from, to)| format!("ln -fT {from} {to}")),
        (name(), name()).prop_map(|(from, to)| format!("ln -sfT {from} {to}")),
    ]
}

#[tokio::test]
async fn any_changes_are_undone_exactly() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "code").await;
    let cwd = client.client.cwd();
    create_files(&cwd);
    let before = tree(&cwd);
    let mut runner = TestRunner::deterministic();
    let mut changed = 0;
    for _ in 0..60 {
        let commands = prop::collection::vec(any_command(), 1..12).new_tree(&mut runner).unwrap().current();
        let commands = commands.join("; ");
        client.prompt(&format!("run {commands}"), None).await;
        if tree(&cwd) != before {
            changed += 1;
            let text = agent_text(&client.prompt("/undo", None).await);
            assert_eq!(tree(&cwd), before, "{commands}: {text}");
        }
    }
    assert!(changed > 30, "the control: {changed}");
    client.end().await;
}

#[tokio::test]
async fn undo_of_many_files_names_some() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "code").await;
    client.prompt("run for i in $(seq 100); do echo > $i; done", None).await;
    let text = agent_text(&client.prompt("/undo", None).await);
    assert!(text.contains("- 1\n") && text.ends_with("- and 70 more files\n"), "{text}");
    assert!(!client.path("100").exists());
    client.end().await;
}

#[tokio::test]
async fn turns_are_undone_one_by_one() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "code").await;
    let cwd = client.client.cwd();
    create_files(&cwd);
    let first = tree(&cwd);
    client.prompt("run mv folder other; echo 1 > a.txt; mkdir x; echo x > x/x", None).await;
    let second = tree(&cwd);
    client.prompt("run rm -r x; mv other/c.txt x; echo 2 >> a.txt; rm -r other", None).await;
    let third = tree(&cwd);
    assert!(first != second && second != third, "the control");
    for expected in [second, first] {
        client.prompt("/undo", None).await;
        assert_eq!(tree(&cwd), expected);
    }
    let text = agent_text(&client.prompt("/undo", None).await);
    assert!(text.contains("there is nothing to undo"), "{text}");
    client.end().await;
}

/// The file of an earlier turn stays open in a command. A write in a later turn is part of the later turn.
#[tokio::test]
async fn writes_to_files_of_earlier_turns_are_recorded() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "code").await;
    let (held, go) = (client.path("held"), client.path("go"));
    let command = "(exec 3> held; echo 1 >&3; until [ -e go ]; do sleep 0.01; done; echo 2 >&3; echo > done) \
                   > /dev/null 2>&1 & until [ -s held ]; do sleep 0.01; done";
    client.prompt(&format!("run {command}"), None).await;
    assert_eq!(fs::read_to_string(&held).unwrap(), "1\n");
    client.prompt("run touch go; until [ -e done ]; do sleep 0.01; done", None).await;
    assert_eq!(fs::read_to_string(&held).unwrap(), "1\n2\n");
    client.prompt("/undo", None).await;
    assert!(!go.exists());
    assert_eq!(fs::read_to_string(&held).unwrap(), "1\n");
    client.end().await;
}

#[tokio::test]
async fn audit_decides_changes_again() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "plan").await;
    let text = agent_text(&client.prompt("run echo 3 > c.txt", None).await);
    assert!(text.contains("exit 2"), "{text}");
    client.mode("code").await;
    let text = agent_text(&client.prompt("run echo 1 > a.txt; echo 2 > b.txt", None).await);
    assert!(text.contains("exit 0"), "{text}");
    let session = client.session.clone();
    client.end().await;
    let whole = report(&fixture.store(), &session, None).await;
    assert_eq!((whole.agent_changes, whole.findings.as_slice()), (2, &[][..]));

    // The chain then claims that plan mode permitted the changes.
    let connection = Connection::open(fixture.store()).unwrap();
    let under = |held: bool| -> String {
        let body: String = connection
            .query_row(
                "SELECT body FROM chain WHERE body LIKE '%\"entry\":\"harness\"%' AND body LIKE ?1",
                [format!("%\"held\":{held}%")],
                |row| row.get(0),
            )
            .unwrap();
        serde_json::from_str::<serde_json::Value>(&body).unwrap()["under"].as_str().unwrap().to_owned()
    };
    let replace = "UPDATE chain SET body = replace(body, ?1, ?2) WHERE body LIKE '%\"entry\":\"changes\"%'";
    connection.execute(replace, [under(false), under(true)]).unwrap();
    drop(connection);
    let findings = report(&fixture.store(), &session, None).await.findings;
    for expected in ["the agent was not permitted to change files", "a.txt is denied by access"] {
        assert!(findings.iter().any(|finding| finding.contains(expected)), "{expected}: {findings:?}");
    }
}

/// Undo names the changes that it does not cover.
#[tokio::test]
async fn changes_without_a_copy_are_named() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "code").await;
    let cwd = client.client.cwd();
    fs::write(cwd.join("large"), vec![b'x'; 11 * 1024 * 1024]).unwrap();
    fs::create_dir(cwd.join(".git")).unwrap();
    fs::write(cwd.join("shared"), "1\n").unwrap();
    fs::hard_link(cwd.join("shared"), cwd.join("name")).unwrap();
    client.prompt("run echo >> large; echo > .git/HEAD; echo > small; echo >> shared", None).await;
    let text = agent_text(&client.prompt("/undo", None).await);
    let expected =
        ["- small", "large is larger than 10 MiB", "version control", "shared has other names (hard links)"];
    for expected in expected {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!cwd.join("small").exists() && cwd.join(".git/HEAD").exists(), "{text}");
    client.end().await;
}
