//! Tests of restored paths, refusals, and that a refusal changes nothing.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::workspace::tests::{file, root, set_mode, tree};

/// Returns the content with this hash, if it is `old` or `other`.
fn known(hash: &str) -> Option<Vec<u8>> {
    ["old", "other"].iter().find(|text| crate::ids::hash(text) == hash).map(|text| text.as_bytes().to_vec())
}

fn changed(path: PathBuf, before: FileState, after: FileState) -> Changed {
    Changed { path, before, after, compared: false }
}

fn write(path: &Path, content: &str) {
    fs::write(path, content).unwrap();
    set_mode(path, 0o644);
}

fn folder() -> FileState {
    FileState::Folder { mode: 0o755 }
}

#[test]
fn file_changed_later_is_a_conflict_and_blocks_restore() {
    let (_dir, root, workspace) = root();
    write(&root.join("a"), "new");
    write(&root.join("b"), "new");
    let list = [
        changed(root.join("a"), file("old", 0o600), file("new", 0o644)),
        changed(root.join("b"), FileState::Absent, file("new", 0o644)),
        changed(root.join("c"), file("other", 0o644), FileState::Absent),
    ];
    for (path, content) in [("b", "newer"), ("c", "came back")] {
        write(&root.join(path), content);
    }
    let before = tree(&root);
    let conflicts = vec![root.join("b"), root.join("c")];
    assert_eq!(workspace.conflicts(&list), conflicts);
    let error = workspace.restore(&list, known, "t").unwrap_err();
    assert!(matches!(&error, RestoreError::Conflict { since, .. } if *since == conflicts), "{error}");
    assert_eq!(tree(&root), before);
    write(&root.join("b"), "new");
    fs::remove_file(root.join("c")).unwrap();
    assert_eq!(workspace.restore(&list, known, "t").unwrap(), Vec::<PathBuf>::new(), "the control");
    let expected = [("a".into(), "600 old".into()), ("c".into(), "644 other".into())];
    assert_eq!(tree(&root), expected.into());
}

#[test]
fn missing_or_wrong_content_restores_nothing() {
    let (_dir, root, workspace) = root();
    write(&root.join("a"), "new");
    let list = [
        changed(root.join("a"), file("old", 0o644), file("new", 0o644)),
        changed(root.join("b"), file("lost", 0o644), FileState::Absent),
    ];
    let missing = |find: fn(&str) -> Option<Vec<u8>>| match workspace.restore(&list, find, "t") {
        Err(RestoreError::Missing(paths)) => paths,
        other => panic!("{other:?}"),
    };
    assert_eq!(missing(known), [root.join("b")]);
    assert_eq!(missing(|_| Some("wrong".into())), [root.join("a"), root.join("b")]);
    assert_eq!(tree(&root), [("a".into(), "644 new".into())].into());
    workspace.restore(&list[..1], known, "t").unwrap();
    assert_eq!(tree(&root), [("a".into(), "644 old".into())].into(), "the control");
}

#[test]
fn paths_outside_or_in_version_control_are_not_restored() {
    let (dir, root, workspace) = root();
    fs::create_dir(root.join(".git")).unwrap();
    let beside = workspace.cwd().parent().unwrap().join("beside");
    let before = tree(dir.path());
    for path in [beside, root.join("../beside"), root.join(".git/config"), root.clone()] {
        let list = [
            changed(root.join("fine"), file("old", 0o644), FileState::Absent),
            changed(path.clone(), file("old", 0o644), FileState::Absent),
        ];
        let error = workspace.restore(&list, known, "t").unwrap_err();
        assert!(matches!(&error, RestoreError::Outside(paths) if *paths == [path]), "{error}");
        assert_eq!(tree(dir.path()), before);
    }
    let fine = [changed(root.join("fine"), file("old", 0o644), FileState::Absent)];
    workspace.restore(&fine, known, "t").unwrap();
    assert_eq!(fs::read_to_string(root.join("fine")).unwrap(), "old", "the control");
}

#[test]
fn folder_replaced_by_a_link_is_a_conflict() {
    let (dir, root, workspace) = root();
    fs::create_dir(dir.path().join("outside")).unwrap();
    fs::create_dir(root.join("sub")).unwrap();
    let list = [changed(root.join("sub/a"), file("old", 0o644), FileState::Absent)];
    fs::remove_dir(root.join("sub")).unwrap();
    symlink(dir.path().join("outside"), root.join("sub")).unwrap();
    let before = tree(dir.path());
    let error = workspace.restore(&list, known, "t").unwrap_err();
    assert!(
        matches!(&error, RestoreError::Conflict { since, .. } if *since == [root.join("sub")]),
        "{error}"
    );
    assert_eq!(tree(dir.path()), before);
    // The control: the link is one of the changes and is replaced.
    let link = FileState::Link { to: dir.path().join("outside") };
    let list = [changed(root.join("sub"), folder(), link), list[0].clone()];
    workspace.restore(&list, known, "t").unwrap();
    let expected = [("sub".into(), "folder 755".into()), ("sub/a".into(), "644 old".into())];
    assert_eq!(tree(&root), expected.into());
}

#[test]
fn created_folder_with_other_files_is_left_and_reported() {
    let (_dir, root, workspace) = root();
    fs::create_dir_all(root.join("new/empty")).unwrap();
    write(&root.join("new/mine"), "new");
    write(&root.join("new/yours"), "yours");
    set_mode(&root.join("new"), 0o755);
    let list = [
        changed(root.join("new"), FileState::Absent, folder()),
        changed(root.join("new/empty"), FileState::Absent, folder()),
        changed(root.join("new/mine"), FileState::Absent, file("new", 0o644)),
    ];
    assert_eq!(workspace.restore(&list, known, "t").unwrap(), [root.join("new")]);
    let expected = [("new".into(), "folder 755".into()), ("new/yours".into(), "644 yours".into())];
    assert_eq!(tree(&root), expected.into());
}

#[test]
fn folder_replacing_a_file_must_have_no_other_files() {
    let (_dir, root, workspace) = root();
    fs::create_dir_all(root.join("a/sub")).unwrap();
    write(&root.join("a/sub/yours"), "yours");
    let list = [
        changed(root.join("a"), file("old", 0o644), folder()),
        changed(root.join("a/sub"), FileState::Absent, folder()),
    ];
    let before = tree(&root);
    let error = workspace.restore(&list, known, "t").unwrap_err();
    assert!(
        matches!(&error, RestoreError::Conflict { since, .. } if *since == [root.join("a/sub/yours")]),
        "{error}"
    );
    assert_eq!(tree(&root), before);
    fs::remove_file(root.join("a/sub/yours")).unwrap();
    workspace.restore(&list, known, "t").unwrap();
    assert_eq!(tree(&root), [("a".into(), "644 old".into())].into(), "the control");
}

#[test]
fn io_error_reports_restored_and_missing_paths() {
    let (_dir, root, workspace) = root();
    // An impossible tree: a file cannot contain another file.
    let list = [
        changed(root.join("a"), file("old", 0o644), FileState::Absent),
        changed(root.join("a/b"), file("old", 0o644), FileState::Absent),
    ];
    let error = workspace.restore(&list, known, "t").unwrap_err();
    let RestoreError::Stopped { path, restored, missing, .. } = &error else { panic!("{error}") };
    let (a, b) = (root.join("a"), root.join("a/b"));
    assert_eq!((path, restored, missing), (&b, &vec![a], &vec![b.clone()]));
    assert_eq!(tree(&root), [("a".into(), "644 old".into())].into());
}

#[test]
fn special_files_are_named_and_stay() {
    let (_dir, root, workspace) = root();
    let fifo = root.join("sub");
    let make = || {
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
    };
    let below = [changed(root.join("sub/a"), file("old", 0o644), FileState::Absent)];
    let itself = [changed(fifo.clone(), file("old", 0o644), file("new", 0o644))];
    for list in [&below, &itself] {
        make();
        let error = workspace.restore(list, known, "t").unwrap_err();
        assert!(matches!(&error, RestoreError::Special(paths) if *paths == [fifo.clone()]), "{error}");
        fs::remove_file(&fifo).unwrap();
    }
    workspace.restore(&below, known, "t").unwrap();
    assert_eq!(fs::read_to_string(root.join("sub/a")).unwrap(), "old", "the control");
}

/// All short sequences of changes by the agent and the user within one turn. An undo brings back the user's last text, or
/// the state before the turn; or it is refused, and nothing changes.
#[test]
fn undo_loses_no_text_of_the_user() {
    let mut brought_back = 0;
    for starts_with_file in [false, true] {
        for sequence in 0..4_usize.pow(5) {
            let (_dir, root, workspace) = root();
            let path = root.join("a");
            let mut now = starts_with_file.then(|| "before".to_owned());
            let state =
                |text: &Option<String>| text.as_ref().map_or(FileState::Absent, |text| file(text, 0o644));
            let (mut list, mut expected) = (Vec::new(), now.clone());
            let mut by_agent: Option<FileState> = None;
            for step in 0..5 {
                let act = sequence / 4_usize.pow(step) % 4;
                let next =
                    [Some(format!("agent {step}")), None, Some(format!("user {step}")), None][act].clone();
                if act < 2 && state(&next) != state(&now) {
                    if by_agent.is_none_or(|state_by_agent| state_by_agent != state(&now)) {
                        expected.clone_from(&now);
                    }
                    by_agent = Some(state(&next));
                    list.push(Changed {
                        path: path.clone(),
                        before: state(&now),
                        after: state(&next),
                        compared: false,
                    });
                }
                now = next;
            }
            if let Some(text) = &now {
                fs::write(&path, text).unwrap();
                set_mode(&path, 0o644);
            }
            let texts: Vec<String> = ["before".to_owned()]
                .into_iter()
                .chain((0..5).flat_map(|step| [format!("agent {step}"), format!("user {step}")]))
                .collect();
            let content = |hash: &str| {
                texts.iter().find(|text| crate::ids::hash(text) == hash).map(|text| text.clone().into_bytes())
            };
            let outcome = workspace.restore(&list, content, "t");
            let found = fs::read_to_string(&path).ok();
            match outcome {
                Ok(_) if list.is_empty() => assert_eq!(found, now),
                // The user's change after the agent's last one stays.
                Ok(_) if by_agent.as_ref() != Some(&state(&now)) => assert_eq!(found, now, "{list:?}"),
                Ok(_) => {
                    brought_back += usize::from(found.as_ref().is_some_and(|text| text.starts_with("user")));
                    assert_eq!(found, expected, "{list:?}");
                }
                Err(error) => {
                    assert!(error.to_string().contains("/a"), "{error}");
                    assert_eq!(found, now, "{list:?}");
                }
            }
        }
    }
    assert!(brought_back > 0);
}
