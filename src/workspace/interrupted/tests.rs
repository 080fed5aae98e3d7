//! Tests of interrupted operations, for each point where the process may have been killed.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::workspace::tests::{root, set_mode, tree};
use crate::workspace::{Change, IntentLog, Journal, Recorded};

/// Collects the recorded intents.
#[derive(Debug, Default)]
struct Log(Mutex<Vec<Intent>>);

impl IntentLog for Log {
    fn record(&self, intent: Intent) -> Recorded {
        self.0.lock().unwrap().push(intent);
        Recorded::Committed
    }
}

fn write(workspace: &Workspace, path: &str, content: &str) -> Change {
    Change::Write { target: workspace.resolve_entry(path).unwrap(), content: content.into(), like: None }
}

/// A patch over two files, with a new file, a deletion and a move.
fn changes(workspace: &Workspace) -> Vec<Change> {
    let target = |path: &str| workspace.resolve_entry(path).unwrap();
    vec![
        write(workspace, "a", "a2"),
        write(workspace, "b", "b2"),
        write(workspace, "new/deep/c", "c"),
        Change::Remove { target: target("gone") },
        Change::Rename { from: target("folder"), to: target("moved/folder") },
        Change::SetExecutable { target: target("a"), executable: true },
    ]
}

fn furnish(root: &Path) {
    fs::create_dir(root.join("folder")).unwrap();
    for (name, mode) in [("a", 0o600), ("b", 0o755), ("gone", 0o644), ("folder/in", 0o640)] {
        fs::write(root.join(name), name).unwrap();
        set_mode(&root.join(name), mode);
    }
}

/// Applies the changes and returns their intent.
fn announced(workspace: &Workspace) -> Intent {
    let log = Arc::new(Log::default());
    let journal = Journal::new(Some(Arc::clone(&log) as Arc<dyn IntentLog>), Journal::silent().changes);
    workspace.apply(&changes(workspace), &CancellationToken::new(), &journal).unwrap();
    let mut intents = log.0.lock().unwrap();
    assert_eq!(intents.len(), 1);
    intents.pop().unwrap()
}

fn content(intent: &Intent) -> impl Fn(&str) -> Option<Vec<u8>> + '_ {
    |hash| intent.contents.iter().find(|(known, _)| known == hash).map(|(_, content)| content.clone())
}

#[test]
fn completed_operation_is_undone_from_its_intent() {
    let (_dir, root, workspace) = root();
    furnish(&root);
    let before = tree(&root);
    let intent = announced(&workspace);
    assert_ne!(tree(&root), before);
    let found = Interrupted::examine(&workspace, &intent).unwrap();
    assert!(!found.is_partial && found.conflicts.is_empty(), "{found:?}");
    workspace.restore(&found.done, content(&intent), &intent.token).unwrap();
    assert_eq!(tree(&root), before);
    // Everything is restored, as if the operation had never begun.
    let found = Interrupted::examine(&workspace, &intent).unwrap();
    assert_eq!((found.done, found.conflicts, found.is_partial), (vec![], vec![], true));
}

/// Covers every subset of the steps, not only prefixes.
#[test]
fn every_partial_operation_is_undone() {
    for done in 0..1_u32 << 6 {
        if done & 0b10_0001 == 0b10_0000 {
            // A file is written before it is made executable.
            continue;
        }
        let (_dir, root, workspace) = root();
        furnish(&root);
        let before = tree(&root);
        let intent = announced(&workspace);
        let found = Interrupted::examine(&workspace, &intent).unwrap();
        workspace.restore(&found.done, content(&intent), &intent.token).unwrap();
        for (number, change) in changes(&workspace).into_iter().enumerate() {
            if done & (1 << number) != 0 {
                workspace.apply(&[change], &CancellationToken::new(), &Journal::silent()).unwrap();
            }
        }
        for name in ["1.tmp", "2.old"] {
            fs::write(root.join(format!("{}{name}", prefix(&intent.token))), "half").unwrap();
        }
        fs::write(root.join(".modegate-other-1.tmp"), "another operation's").unwrap();
        let found = Interrupted::examine(&workspace, &intent).unwrap();
        assert!(found.conflicts.is_empty(), "{done:b}: {found:?}");
        assert_eq!(
            Interrupted::examine(&workspace, &intent),
            Some(found.clone()),
            "{done:b}: a second examination gives the same result"
        );
        workspace.restore(&found.done, content(&intent), &intent.token).unwrap();
        fs::remove_file(root.join(".modegate-other-1.tmp"))
            .expect("only the operation's own temporary files are removed");
        assert_eq!(tree(&root), before, "{done:b}");
    }
}

#[test]
fn later_changes_by_others_are_conflicts() {
    let (_dir, root, workspace) = root();
    furnish(&root);
    let intent = announced(&workspace);
    fs::write(root.join("a"), "the user's").unwrap();
    set_mode(&root.join("b"), 0o600);
    fs::write(root.join("gone"), "again").unwrap();
    let left = tree(&root);
    let found = Interrupted::examine(&workspace, &intent).unwrap();
    assert_eq!(found.conflicts, ["a", "b", "gone"].map(|name| root.join(name)));
    assert_eq!(tree(&root), left);
}

#[test]
fn operation_of_another_workspace_is_ignored() {
    let (_dir, root, workspace) = root();
    furnish(&root);
    let intent = announced(&workspace);
    let other = tempfile::tempdir().unwrap();
    let elsewhere = Workspace::new(other.path(), &[]).unwrap();
    assert_eq!(Interrupted::examine(&elsewhere, &intent), None);
    assert!(Interrupted::examine(&workspace, &intent).is_some(), "the control");
}
