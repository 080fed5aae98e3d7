//! The changes that tools report: commands on every exit, file tools, and background jobs.

use std::path::{Path, PathBuf};

use modegate::acp::ToolCallId;
use modegate::gate::Gate;
use modegate::permission::rules::Rules;
use modegate::permission::{CallFacts, Effect};
use modegate::process::shell::Sandbox;
use modegate::tool::{ClientIo, RunContext, SessionState, SnapshotHandle, ToolError, ToolOutput, Toolset};
use modegate::workspace::{Changes, FileState, Journal, Workspace, WorkspaceSnapshot};
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio_util::sync::CancellationToken;

use crate::support::requirements::require_sandbox;
use crate::support::waiting::{until_content, until_exists};
use crate::support::{TIMEOUT, shell};

/// The tools of a session and their context, without the session.
struct ToolFixture {
    dir: tempfile::TempDir,
    workspace: Workspace,
    tools: Toolset,
    snapshot: SnapshotHandle,
    cancel: CancellationToken,
}

impl ToolFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["root", "home"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        let workspace = Workspace::new(&dir.path().join("root"), &[]).unwrap();
        std::fs::write(workspace.cwd().join("a"), "one").unwrap();
        let shell = shell(&dir.path().join("home"), Sandbox::Workspace);
        let (tools, _) = Toolset::built_in().with_shell(shell).for_session(&workspace, &Rules::default());
        let snapshot = SnapshotHandle::new(WorkspaceSnapshot::new(dir.path().join("copies"), &workspace));
        Self { dir, workspace, tools, snapshot, cancel: CancellationToken::new() }
    }

    /// Runs a call. Returns its outcome and a channel with the changes that it reports.
    async fn run(
        &self,
        tool: &str,
        arguments: Value,
    ) -> (Result<ToolOutput, ToolError>, UnboundedReceiver<Changes>) {
        let call = self.tools.find(tool).unwrap().prepare(arguments, &self.workspace).await.unwrap();
        let facts = CallFacts::of_tool("t", Effect::Execute);
        let permit = Gate::default().admit(ToolCallId::new("c"), facts, 1, &self.cancel);
        let (changes, reports) = mpsc::unbounded_channel();
        let context = RunContext {
            permit,
            progress: None,
            journal: Journal::new(None, changes.clone()),
            changes,
            client_io: ClientIo::disconnected(),
            keeps_output: false,
        };
        let state = SessionState { snapshot: Some(self.snapshot.clone()), ..SessionState::default() };
        (call.action.run(context, state).await, reports)
    }
}

/// Returns the names of all reported files, each with true if the file exists after the change.
async fn reported_files(mut reports: UnboundedReceiver<Changes>) -> Vec<(String, bool)> {
    let mut names = Vec::new();
    while let Some(changes) = reports.recv().await {
        assert_eq!(changes.uncovered, Vec::<String>::new());
        let name = |path: &PathBuf| Path::new(path.file_name().unwrap()).display().to_string();
        names.extend(
            changes.changed.iter().map(|change| (name(&change.path), change.after != FileState::Absent)),
        );
    }
    names
}

#[tokio::test]
async fn command_changes_are_reported_on_every_exit() {
    let fixture = ToolFixture::new();
    let (done, changes) = fixture.run("shell", json!({ "command": "echo two > a; echo x > b" })).await;
    assert!(done.is_ok(), "{done:?}");
    assert_eq!(reported_files(changes).await, [("a".into(), true), ("b".into(), true)]);

    std::fs::write(fixture.workspace.cwd().join("yours"), "x").unwrap();
    let (done, changes) = fixture.run("shell", json!({ "command": "rm a; exit 3" })).await;
    assert!(done.is_ok(), "{done:?}");
    assert_eq!(reported_files(changes).await, [("a".into(), false)], "and not what came before it");

    let late = json!({ "command": "rm b; sleep 1000", "timeout": 1 });
    let (done, changes) = fixture.run("shell", late).await;
    assert!(done.is_err(), "{done:?}");
    assert_eq!(reported_files(changes).await, [("b".into(), false)]);

    require_sandbox();
    let (done, changes) = fixture.run("shell_read_only", json!({ "command": "true" })).await;
    assert!(done.is_ok(), "{done:?}");
    assert_eq!(reported_files(changes).await, []);
}

#[tokio::test]
async fn dropped_command_is_ended_and_reported() {
    let fixture = ToolFixture::new();
    let begun = fixture.workspace.cwd().join("begun");
    let line = json!({ "command": "touch begun; sleep 1000" });
    let call = fixture.tools.find("shell").unwrap().prepare(line, &fixture.workspace).await.unwrap();
    let facts = CallFacts::of_tool("t", Effect::Execute);
    let permit = Gate::default().admit(ToolCallId::new("c"), facts, 1, &fixture.cancel);
    let (changes, receiver) = mpsc::unbounded_channel();
    let snapshot = Some(fixture.snapshot.clone());
    let client = ClientIo::disconnected();
    let context = RunContext {
        permit,
        progress: None,
        journal: Journal::new(None, changes.clone()),
        changes,
        client_io: client,
        keeps_output: false,
    };
    let state = SessionState { snapshot, ..SessionState::default() };
    tokio::select! {
        done = call.action.run(context, state) => panic!("{done:?}"),
        () = until_exists(&begun) => {}
    }
    let messages = tokio::time::timeout(TIMEOUT, reported_files(receiver)).await.unwrap();
    assert_eq!(messages, [("begun".into(), true)]);
    fixture.cancel.cancel();
    let (done, _) = fixture.run("shell", json!({ "command": "touch never" })).await;
    assert!(done.is_err(), "{done:?}");
    assert!(!fixture.workspace.cwd().join("never").exists());
}

#[tokio::test]
async fn file_tools_report_their_changes() {
    let fixture = ToolFixture::new();
    let patch = "--- a/b\n+++ b/b\n@@ -1 +1 @@\n-two\n+three\n";
    let calls = [
        ("write_file", json!({ "path": "b", "content": "one\n" }), vec![("b".to_owned(), true)]),
        ("edit_file", json!({ "path": "b", "old_text": "one", "new_text": "two" }), vec![("b".into(), true)]),
        ("apply_patch", json!({ "patch": patch }), vec![("b".into(), true)]),
        ("move_file", json!({ "from": "b", "to": "c" }), vec![("b".into(), false), ("c".into(), true)]),
        ("delete_file", json!({ "path": "c" }), vec![("c".into(), false)]),
    ];
    for (tool, arguments, expected) in calls {
        let (done, changes) = fixture.run(tool, arguments.clone()).await;
        assert!(done.is_ok(), "{tool}: {done:?}");
        assert_eq!(reported_files(changes).await, expected, "{tool}");
        let (done, changes) = fixture.run("move_file", json!({ "from": "missing", "to": "x" })).await;
        assert!(done.is_err(), "the control: {done:?}");
        assert_eq!(reported_files(changes).await, []);
    }
}

#[tokio::test]
async fn background_job_changes_are_found_on_sync() {
    let fixture = ToolFixture::new();
    let line = json!({ "command": "echo x > made; sleep 1000", "background": true });
    let (done, changes) = fixture.run("shell", line).await;
    let job = done.unwrap().job.unwrap();
    assert_eq!(reported_files(changes).await, [], "the files that were there before are nobody's doing");
    let made = fixture.workspace.cwd().join("made");
    until_content(
        &made, "x
",
    )
    .await;
    let changes = fixture.snapshot.sync(&fixture.cancel).await;
    let paths: Vec<_> = changes.changed.iter().map(|changed| changed.path.clone()).collect();
    assert_eq!(paths, [made]);
    drop((job, fixture.dir));
}
