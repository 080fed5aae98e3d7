//! Tests of path resolution, and that opened files are the resolved files.

use std::fs;

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;

fn workspace() -> (TempDir, Workspace) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("root")).unwrap();
    let workspace = Workspace::new(&dir.path().join("root"), &[]).unwrap();
    (dir, workspace)
}

fn writing(target: &Target, content: &str) -> Change {
    Change::Write { target: target.clone(), content: content.into(), like: None }
}

fn write(workspace: &Workspace, target: &Target, content: &str) -> Result<(), FileError> {
    apply(workspace, &[writing(target, content)], &CancellationToken::new()).map(drop)
}

/// Applies changes and returns the reported result.
pub(super) fn apply(
    workspace: &Workspace,
    changes: &[Change],
    cancel: &CancellationToken,
) -> Result<Changes, FileError> {
    let (sender, mut reports) = tokio::sync::mpsc::unbounded_channel();
    workspace.apply(changes, cancel, &Journal::new(None, sender))?;
    Ok(reports.try_recv().unwrap_or_default())
}

fn inside(workspace: &Workspace, path: &str) -> Option<String> {
    workspace.resolve(path).unwrap().inside.map(|path| path.display().to_string().replace('\\', "/"))
}

#[test]
fn paths_resolve_inside_or_outside_the_roots() {
    let (dir, workspace) = workspace();
    fs::create_dir(dir.path().join("root/sub")).unwrap();
    assert_eq!(inside(&workspace, "sub/new/file.txt"), Some("sub/new/file.txt".into()));
    assert_eq!(inside(&workspace, "sub/../x"), Some("x".into()));
    assert_eq!(inside(&workspace, "."), Some(String::new()));
    assert_eq!(inside(&workspace, "../other"), None);
    assert_eq!(inside(&workspace, "/etc/hosts"), None);
    // Windows resolves `..` before it looks for a folder.
    assert!(workspace.resolve("missing/../../x").map_or(cfg!(unix), |target| target.inside.is_none()));
    assert!(workspace.resolve("").is_err());
}

#[cfg(unix)]
mod links {
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn links_are_resolved_before_the_decision() {
        let (dir, workspace) = workspace();
        fs::write(dir.path().join("secret"), "s").unwrap();
        symlink("../secret", dir.path().join("root/link")).unwrap();
        symlink("nowhere", dir.path().join("root/dangling")).unwrap();
        assert_eq!(inside(&workspace, "link"), None);
        assert!(workspace.resolve("dangling").is_err());
    }

    #[test]
    fn links_created_after_the_decision_are_not_followed() {
        let (dir, workspace) = workspace();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/file"), "secret").unwrap();
        fs::create_dir(dir.path().join("root/sub")).unwrap();
        fs::write(dir.path().join("root/sub/file"), "mine").unwrap();
        let target = workspace.resolve("sub/file").unwrap();
        let mut text = String::new();
        open(&target).unwrap().file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "mine");

        fs::rename(dir.path().join("root/sub"), dir.path().join("root/old")).unwrap();
        symlink("../outside", dir.path().join("root/sub")).unwrap();
        assert!(open(&target).is_err());
        assert!(write(&workspace, &target, "overwritten").is_err());
        assert_eq!(fs::read_to_string(dir.path().join("outside/file")).unwrap(), "secret");
    }

    #[test]
    fn write_through_a_link_preserves_link_and_mode_bits() {
        let (dir, workspace) = workspace();
        let real = dir.path().join("root/real.sh");
        fs::write(&real, "old").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o750)).unwrap();
        symlink("real.sh", dir.path().join("root/link.sh")).unwrap();
        let target = workspace.resolve("link.sh").unwrap();
        write(&workspace, &target, "new").unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
        assert!(dir.path().join("root/link.sh").is_symlink());
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o750);
    }

    #[test]
    fn read_only_files_and_fifos_are_refused() {
        let (dir, workspace) = workspace();
        let file = dir.path().join("root/fixed");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
        let target = workspace.resolve("fixed").unwrap();
        assert!(write(&workspace, &target, "new").is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        // Opening a FIFO would wait for a writer.
        let pipe = dir.path().join("root/pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(open(&workspace.resolve("pipe").unwrap()).is_err());
        assert!(write(&workspace, &workspace.resolve("pipe").unwrap(), "new").is_err());
    }
}

#[test]
fn cancelled_write_leaves_nothing_behind() {
    let (dir, workspace) = workspace();
    let target = workspace.resolve("file").unwrap();
    let cancel = CancellationToken::new();
    cancel.cancel();
    assert!(apply(&workspace, &[writing(&target, "new")], &cancel).is_err());
    assert_eq!(fs::read_dir(dir.path().join("root")).unwrap().count(), 0);
    write(&workspace, &target, "new").unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("root/file")).unwrap(), "new");
    assert_eq!(fs::read_dir(dir.path().join("root")).unwrap().count(), 1);
}

#[test]
fn changes_are_applied_all_or_none() {
    let (dir, workspace) = workspace();
    let root = dir.path().join("root");
    for name in ["a", "b", "c"] {
        fs::write(root.join(name), name).unwrap();
    }
    let target = |name: &str| workspace.resolve_entry(name).unwrap();
    let changes = |last: Change| {
        vec![
            writing(&target("a"), "new a"),
            writing(&target("new"), "new"),
            Change::Remove { target: target("b") },
            Change::Rename { from: target("c"), to: target("sub/d") },
            last,
        ]
    };
    let files = || {
        let mut files: Vec<_> = fs::read_dir(&root)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
            .map(|path| (path.file_name().unwrap().to_owned(), fs::read_to_string(path).unwrap()))
            .collect();
        files.sort();
        files
    };
    let before = files();
    // Fails during preparation: a missing file cannot be removed.
    let missing = Change::Remove { target: target("missing") };
    assert!(apply(&workspace, &changes(missing), &CancellationToken::new()).is_err());
    assert_eq!(files(), before);
    // The second removal fails after the other steps were performed, so all of them are undone.
    let twice = Change::Remove { target: target("b") };
    assert!(apply(&workspace, &changes(twice), &CancellationToken::new()).is_err());
    assert_eq!(files(), before);
    // The control: a valid change.
    let fine = Change::Remove { target: target("a") };
    apply(&workspace, &changes(fine), &CancellationToken::new()).unwrap();
    assert_eq!(files(), [("new".into(), "new".to_owned())]);
    assert_eq!(fs::read_to_string(root.join("sub/d")).unwrap(), "c");
}

/// Each change fails after parent folders may have been created for it.
#[cfg(unix)]
#[test]
fn failed_change_leaves_no_folders_or_temporary_files() {
    let (_dir, root, workspace) = root();
    fs::write(root.join("file"), "f").unwrap();
    fs::write(root.join("read-only"), "r").unwrap();
    set_mode(&root.join("read-only"), 0o444);
    fs::create_dir(root.join("folder")).unwrap();
    let target = |path: &str| workspace.resolve_entry(path).unwrap();
    let moving = |from: &str, to: &str| Change::Rename { from: target(from), to: target(to) };
    let new = || writing(&target("new/deep/file"), "n");
    let failing = [
        vec![moving("missing", "new/deep/file")],
        vec![moving("missing", "file")],
        vec![moving("file", "folder")],
        vec![moving("folder", "folder/below/it")],
        vec![new(), moving("missing", "other/file")],
        vec![new(), writing(&target("read-only"), "w")],
        vec![new(), writing(&target("folder"), "w")],
        vec![new(), writing(&target("file/below"), "w")],
        vec![new(), Change::Remove { target: target("folder") }],
        vec![new(), Change::Remove { target: target("missing") }],
        vec![moving("file", "new/file"), Change::Remove { target: target("file") }],
    ];
    let before = tree(&root);
    for changes in failing {
        apply(&workspace, &changes, &CancellationToken::new()).unwrap_err();
        assert_eq!(tree(&root), before, "{changes:?}");
    }
    // The control: the same changes with an existing file.
    apply(&workspace, &[new(), moving("file", "other/deep/file")], &CancellationToken::new()).unwrap();
    assert!(root.join("new/deep/file").is_file() && root.join("other/deep/file").is_file());
}

/// Another program writes after the intent is recorded and before the change is made.
#[cfg(unix)]
#[test]
fn concurrent_writes_by_others_are_not_overwritten() {
    #[derive(Debug)]
    struct ActOnIntent(fn(&Path), PathBuf);
    impl IntentLog for ActOnIntent {
        fn record(&self, _: Intent) -> Recorded {
            (self.0)(&self.1);
            Recorded::Committed
        }
    }
    type Act = fn(&Path);
    let acts: [(&str, Act); 4] = [
        ("old", |root| fs::write(root.join("old"), "the user's").unwrap()),
        ("old", |root| set_mode(&root.join("old"), 0o600)),
        ("old", |root| fs::remove_file(root.join("old")).unwrap()),
        ("new", |root| fs::write(root.join("new"), "the user's").unwrap()),
    ];
    for (at, act) in acts {
        for kind in ["write", "remove", "move"] {
            let (_dir, root, workspace) = root();
            fs::write(root.join("old"), "old").unwrap();
            let target = |path: &str| workspace.resolve_entry(path).unwrap();
            let change = match (kind, at) {
                ("write", _) => writing(&target(at), "agent"),
                ("remove", "old") => Change::Remove { target: target("old") },
                ("move", "new") => Change::Rename { from: target("old"), to: target("new") },
                _ => continue,
            };
            let (sender, mut reports) = tokio::sync::mpsc::unbounded_channel();
            let log: std::sync::Arc<dyn IntentLog> = std::sync::Arc::new(ActOnIntent(act, root.clone()));
            let changes = [change, writing(&target("other"), "agent")];
            let error =
                workspace.apply(&changes, &CancellationToken::new(), &Journal::new(Some(log), sender));
            let left = tree(&root);
            assert!(error.is_err() && !left.contains_key("other"), "{kind} {at}: {left:?}");
            assert!(left.values().all(|content| !content.contains("agent")), "{kind} {at}: {left:?}");
            assert!(
                reports.try_recv().unwrap().changed.is_empty(),
                "{kind} {at}: changes by others are not reported"
            );
        }
    }
}

/// The complete tree below a folder, including version control files.
#[cfg(unix)]
pub(super) fn tree(root: &Path) -> std::collections::BTreeMap<String, String> {
    use std::os::unix::fs::PermissionsExt;
    let mut tree = std::collections::BTreeMap::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let metadata = path.symlink_metadata().unwrap();
        let mode = metadata.permissions().mode() & 0o7777;
        if metadata.is_symlink() {
            tree.insert(name, format!("-> {}", fs::read_link(&path).unwrap().display()));
        } else if metadata.is_dir() {
            let below = self::tree(&path);
            tree.extend(below.into_iter().map(|(below, what)| (format!("{name}/{below}"), what)));
            tree.insert(name, format!("folder {mode:o}"));
        } else {
            tree.insert(name, format!("{mode:o} {}", String::from_utf8_lossy(&fs::read(&path).unwrap())));
        }
    }
    tree
}

#[cfg(unix)]
pub(super) fn file(content: &str, mode: u32) -> FileState {
    FileState::File { hash: crate::ids::hash(content), mode }
}

#[cfg(unix)]
pub(super) fn root() -> (TempDir, PathBuf, Workspace) {
    let (dir, workspace) = workspace();
    let root = workspace.cwd().to_owned();
    (dir, root, workspace)
}

#[cfg(unix)]
pub(super) fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
