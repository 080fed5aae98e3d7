//! Tests of the recorded effect of each change.

use std::fs;
use std::os::unix::fs::symlink;

use tokio_util::sync::CancellationToken;

use super::*;
use crate::workspace::tests::{file, root, set_mode, tree};

/// Applies one change. The returned paths are relative to the root.
fn apply(root: &Path, workspace: &Workspace, change: &[Change]) -> Changes {
    let mut changes = crate::workspace::tests::apply(workspace, change, &CancellationToken::new()).unwrap();
    for changed in &mut changes.changed {
        changed.path = changed.path.strip_prefix(root).unwrap().to_owned();
    }
    changes
}

fn changed(path: &str, before: FileState, after: FileState) -> Changed {
    Changed { path: path.into(), before, after, compared: false }
}

fn uncovered(sentence: &str) -> Changes {
    Changes { uncovered: vec![sentence.into()], ..Changes::default() }
}

fn content_entry(content: &str) -> (String, Vec<u8>) {
    (crate::ids::hash(content), content.into())
}

fn entry(workspace: &Workspace, path: &str) -> Target {
    workspace.resolve_entry(path).unwrap()
}

fn writing(workspace: &Workspace, path: &str, content: &str) -> Change {
    Change::Write { target: entry(workspace, path), content: content.into(), like: None }
}

#[test]
fn new_file_is_recorded_with_its_new_folders() {
    let (_dir, root, workspace) = root();
    fs::create_dir(root.join("old")).unwrap();
    let changes = apply(&root, &workspace, &[writing(&workspace, "old/new/sub/a", "text")]);
    let folder = |path: &str| {
        let found = inspect(&entry(&workspace, path));
        let InspectedPath::State(state @ FileState::Folder { .. }, None) = found else { panic!("{found:?}") };
        state
    };
    let InspectedPath::State(made, _) = inspect(&entry(&workspace, "old/new/sub/a")) else { panic!() };
    assert!(matches!(&made, FileState::File { hash, .. } if *hash == crate::ids::hash("text")));
    let expected = vec![
        changed("old/new", FileState::Absent, folder("old/new")),
        changed("old/new/sub", FileState::Absent, folder("old/new/sub")),
        changed("old/new/sub/a", FileState::Absent, made),
    ];
    assert_eq!(changes, Changes { changed: expected, ..Changes::default() });
}

#[test]
fn replaced_and_removed_files_are_recorded_with_content() {
    let (_dir, root, workspace) = root();
    for name in ["a", "b"] {
        fs::write(root.join(name), name).unwrap();
        set_mode(&root.join(name), 0o750);
    }
    symlink("a", root.join("link")).unwrap();
    let changes = [
        writing(&workspace, "a", "new"),
        Change::Remove { target: entry(&workspace, "b") },
        Change::Remove { target: entry(&workspace, "link") },
    ];
    let expected = vec![
        changed("a", file("a", 0o750), file("new", 0o750)),
        changed("b", file("b", 0o750), FileState::Absent),
        changed("link", FileState::Link { to: "a".into() }, FileState::Absent),
    ];
    let contents = vec![content_entry("a"), content_entry("b")];
    assert_eq!(
        apply(&root, &workspace, &changes),
        Changes { changed: expected, contents, ..Changes::default() }
    );
    let same = [writing(&workspace, "a", "new")];
    assert_eq!(apply(&root, &workspace, &same), Changes::default(), "nothing has changed");
}

#[test]
fn moved_folder_is_recorded_entry_by_entry() {
    let (_dir, root, workspace) = root();
    fs::create_dir_all(root.join("from/sub")).unwrap();
    fs::write(root.join("from/sub/a"), "a").unwrap();
    for (path, mode) in [("from", 0o755), ("from/sub", 0o700), ("from/sub/a", 0o600)] {
        set_mode(&root.join(path), mode);
    }
    let before = tree(&root);
    let rename = Change::Rename { from: entry(&workspace, "from"), to: entry(&workspace, "to") };
    let (outer, inner) = (FileState::Folder { mode: 0o755 }, FileState::Folder { mode: 0o700 });
    let changes = crate::workspace::tests::apply(&workspace, &[rename], &CancellationToken::new()).unwrap();
    let at = |path: &str, before: FileState, after: FileState| Changed {
        path: root.join(path),
        before,
        after,
        compared: false,
    };
    let expected = vec![
        at("from", outer.clone(), FileState::Absent),
        at("from/sub", inner.clone(), FileState::Absent),
        at("from/sub/a", file("a", 0o600), FileState::Absent),
        at("to", FileState::Absent, outer),
        at("to/sub", FileState::Absent, inner),
        at("to/sub/a", FileState::Absent, file("a", 0o600)),
    ];
    assert_eq!(
        changes,
        Changes { changed: expected, contents: vec![content_entry("a")], ..Changes::default() }
    );
    assert_eq!(
        workspace.restore(&changes.changed, |_| Some("a".into()), "t").unwrap(),
        Vec::<PathBuf>::new()
    );
    assert_eq!(tree(&root), before);
}

#[test]
fn unrecordable_changes_are_reported() {
    let (_dir, root, workspace) = root();
    for folder in ["many", ".git", "repository/.git"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for number in 0..=MAX_ENTRIES {
        fs::write(root.join(format!("many/{number}")), "").unwrap();
    }
    fs::File::create(root.join("large")).unwrap().set_len((10 << 20) + 1).unwrap();
    let rename =
        |from: &str, to: &str| Change::Rename { from: entry(&workspace, from), to: entry(&workspace, to) };
    let check =
        |change: Change, expected: &str| assert_eq!(apply(&root, &workspace, &[change]), uncovered(expected));
    check(
        rename("many", "more"),
        "many contains more than 1000 entries or 32 MiB: its changes cannot be undone.",
    );
    check(
        rename("repository", "other"),
        "repository contains a version control folder: its changes cannot be undone.",
    );
    check(
        writing(&workspace, ".git/config", "x"),
        ".git/config belongs to version control: its changes cannot be undone.",
    );
    check(
        Change::Remove { target: entry(&workspace, "large") },
        "large is larger than 10 MiB: its changes cannot be undone.",
    );
}
