//! Owner and attributes of replaced files, rights to write, and failing disks.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use crate::workspace::faults::{Faults, Point};
use crate::workspace::tests::{apply, root, set_mode, tree};
use crate::workspace::{
    Change, Changes, FileError, Intent, IntentLog, Interrupted, Journal, Recorded, Workspace,
};

const ENOSPC: i32 = 28;
const EIO: i32 = 5;

fn write(workspace: &Workspace, path: &str, content: &str) -> Change {
    Change::Write { target: workspace.resolve_entry(path).unwrap(), content: content.into(), like: None }
}

fn remove(workspace: &Workspace, path: &str) -> Change {
    Change::Remove { target: workspace.resolve_entry(path).unwrap() }
}

fn change(workspace: &Workspace, changes: &[Change]) -> Result<Changes, FileError> {
    apply(workspace, changes, &CancellationToken::new())
}

/// Restores the changes. `before` has the earlier contents.
fn undo(workspace: &Workspace, changes: &Changes, before: &[&str]) {
    let content = |hash: &str| {
        before
            .iter()
            .find(|content| crate::ids::hash(content) == hash)
            .map(|content| content.as_bytes().to_vec())
    };
    workspace.restore(&changes.changed, content, "t").unwrap();
}

/// Owner, group, mode, and the value of an extended attribute where the file system has them.
fn identity(path: &Path) -> (u32, u32, u32, Option<Vec<u8>>) {
    let found = fs::metadata(path).unwrap();
    let mut value = [0; 64];
    let length = rustix::fs::getxattr(path, "user.note", &mut value[..]).ok();
    (found.uid(), found.gid(), found.mode() & 0o7777, length.map(|length| value[..length].to_vec()))
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    let set = rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty());
    set.unwrap_or_else(|error| panic!("this test needs a file system with {name}: {error}"));
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn edits_and_their_undo_keep_owner_mode_and_attributes() {
    as_user("workspace::change::tests::edits_and_their_undo_keep_owner_mode_and_attributes", |_| ());
    for mode in [0o640, 0o755, 0o600, 0o2770, 0o4755] {
        let (_dir, root, workspace) = root();
        let file = root.join("a");
        fs::write(&file, "old").unwrap();
        if is_root() {
            std::os::unix::fs::chown(&file, Some(1000), Some(1001)).unwrap();
        }
        set_attribute(&file, "user.note", b"kept");
        set_mode(&file, mode);
        let before = identity(&file);
        for content in ["new", "newer and longer"] {
            let changes =
                change(&workspace, &[write(&workspace, "a", content), write(&workspace, "b", "b")]).unwrap();
            assert_eq!(
                (identity(&file), fs::read_to_string(&file).unwrap()),
                (before.clone(), content.into())
            );
            undo(&workspace, &changes, &["old"]);
            assert_eq!((identity(&file), fs::read_to_string(&file).unwrap()), (before.clone(), "old".into()));
        }
        assert_eq!(tree(&root).len(), 1, "no temporary file stays");
    }
}

/// An access list that gives one more user the right to read and write.
#[cfg(target_os = "linux")]
fn access_list(user: u32) -> Vec<u8> {
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    // Owner, user, group, mask and others.
    let entries = [
        entry(1, 6, u32::MAX),
        entry(2, 6, user),
        entry(4, 4, u32::MAX),
        entry(16, 6, u32::MAX),
        entry(32, 4, u32::MAX),
    ];
    [2_u32.to_le_bytes().to_vec(), entries.concat()].concat()
}

/// A default access list of the folder gives new files a list that the replaced file does not have.
#[cfg(target_os = "linux")]
#[test]
fn access_lists_are_neither_lost_nor_inherited() {
    let (_dir, root, workspace) = root();
    fs::write(root.join("plain"), "old").unwrap();
    fs::write(root.join("listed"), "old").unwrap();
    set_attribute(&root.join("listed"), "system.posix_acl_access", &access_list(1234));
    set_attribute(&root, "system.posix_acl_default", &access_list(4321));
    let list = |name: &str| {
        let mut value = [0; 256];
        let length = rustix::fs::getxattr(root.join(name), "system.posix_acl_access", &mut value[..]).ok();
        length.map(|length| value[..length].to_vec())
    };
    let before = (list("plain"), list("listed"));
    change(&workspace, &[write(&workspace, "plain", "new"), write(&workspace, "listed", "new")]).unwrap();
    assert_eq!((list("plain"), list("listed")), before);
    assert!(before.0.is_none() && before.1.is_some());
    fs::write(root.join("new"), "").unwrap();
    assert!(list("new").is_some(), "the control");
}

#[test]
fn file_with_several_names_is_refused() {
    let (_dir, root, workspace) = root();
    fs::write(root.join("a"), "old").unwrap();
    fs::hard_link(root.join("a"), root.join("b")).unwrap();
    let before = tree(&root);
    let error =
        change(&workspace, &[write(&workspace, "c", "c"), write(&workspace, "a", "new")]).unwrap_err();
    assert!(error.to_string().contains("2 names (hard links)"), "{error}");
    assert_eq!(tree(&root), before);
    fs::remove_file(root.join("b")).unwrap();
    change(&workspace, &[write(&workspace, "a", "new")]).unwrap();
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "new", "the control");
}

/// Number of the ordinary user, and of the only group of that user.
const USER: u32 = 65_534;

/// Runs a test of this binary as an ordinary user, in a folder of that user. Root is not refused by mode bits.
/// `prepare` fills the folder first.
fn as_user(name: &str, prepare: impl FnOnce(&Path)) {
    if !is_root() || std::env::var_os("AS_USER").is_some() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    set_mode(dir.path(), 0o777);
    prepare(dir.path());
    let binary = dir.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    set_mode(&binary, 0o755);
    let ran = Command::new("setpriv")
        .args([format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".into()])
        .arg(&binary)
        .args([name, "--exact", "--nocapture"])
        .env("AS_USER", "1")
        .env("TMPDIR", dir.path())
        .current_dir(dir.path())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && output.contains("1 passed"),
        "{output}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

#[test]
fn mode_bits_of_file_and_folder_decide_how_an_ordinary_user_writes() {
    as_user(
        "workspace::change::tests::mode_bits_of_file_and_folder_decide_how_an_ordinary_user_writes",
        |_| (),
    );
    if is_root() {
        return;
    }
    for (of_folder, of_file, is_written) in [
        (0o755, 0o644, true),
        (0o555, 0o644, true),
        (0o755, 0o444, false),
        (0o755, 0o466, false),
        (0o555, 0o466, false),
    ] {
        let (_dir, root, workspace) = root();
        let folder = root.join("folder");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a"), "old").unwrap();
        let number = fs::metadata(folder.join("a")).unwrap().ino();
        set_mode(&folder.join("a"), of_file);
        set_mode(&folder, of_folder);
        let outcome = change(&workspace, &[write(&workspace, "folder/a", "new and long")]);
        let (found, text) =
            (fs::metadata(folder.join("a")).unwrap(), fs::read_to_string(folder.join("a")).unwrap());
        assert_eq!(outcome.is_ok(), is_written, "{of_folder:o} {of_file:o}: {outcome:?}");
        assert_eq!(text == "new and long", is_written, "{of_folder:o} {of_file:o}");
        assert_eq!(found.permissions().mode() & 0o777, of_file);
        assert_eq!(
            found.ino() == number,
            of_folder == 0o555 || !is_written,
            "in place where the folder is read-only"
        );
        if let Ok(changes) = outcome {
            undo(&workspace, &changes, &["old"]);
            assert_eq!(fs::read_to_string(folder.join("a")).unwrap(), "old");
        }
        set_mode(&folder, 0o755);
    }
}

/// Mode of the folder, whether it belongs to the user, mode of a file of root that has the user's group, and whether
/// it is written.
const FILES_OF_ROOT: [(&str, u32, bool, u32, bool); 5] = [
    ("owner-of-folder", 0o755, true, 0o664, true),
    ("owner-of-folder-read-only-file", 0o755, true, 0o644, false),
    ("sticky", 0o1777, false, 0o666, true),
    ("sticky-read-only-file", 0o1777, false, 0o644, false),
    ("not-sticky", 0o777, false, 0o666, true),
];

/// Only root can prepare it: an ordinary user has no files of others.
#[test]
fn files_of_another_user_keep_their_owner_or_are_refused() {
    as_user("workspace::change::tests::files_of_another_user_keep_their_owner_or_are_refused", |dir| {
        for (name, of_folder, is_own, of_file, _) in FILES_OF_ROOT {
            let folder = dir.join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("a"), "old").unwrap();
            std::os::unix::fs::chown(folder.join("a"), None, Some(USER)).unwrap();
            std::os::unix::fs::chown(&folder, is_own.then_some(USER), None).unwrap();
            set_mode(&folder.join("a"), of_file);
            set_mode(&folder, of_folder);
        }
    });
    if std::env::var_os("AS_USER").is_none() {
        return;
    }
    let root = std::env::current_dir().unwrap();
    let workspace = Workspace::new(&root, &[]).unwrap();
    for (name, _, _, of_file, is_written) in FILES_OF_ROOT {
        let file = root.join(name).join("a");
        let before = fs::metadata(&file).unwrap();
        let outcome = change(&workspace, &[write(&workspace, &format!("{name}/a"), "new and long")]);
        assert_eq!(outcome.is_ok(), is_written, "{name}: {outcome:?}");
        assert_eq!(fs::read_to_string(&file).unwrap() == "new and long", is_written, "{name}");
        let after = fs::metadata(&file).unwrap();
        assert_eq!((after.uid(), after.gid(), after.mode() & 0o777), (0, USER, of_file), "{name}");
        assert_eq!(after.ino(), before.ino(), "{name}: only a write in place keeps the owner");
        if let Ok(changes) = outcome {
            undo(&workspace, &changes, &["old"]);
            assert_eq!(fs::read_to_string(&file).unwrap(), "old", "{name}");
            assert_eq!(fs::metadata(&file).unwrap().uid(), 0, "{name}");
        }
    }
}

/// Keeps intents, or fails to.
#[derive(Debug)]
struct Log(Recorded, Mutex<Vec<Intent>>);

impl IntentLog for Log {
    fn record(&self, intent: Intent) -> Recorded {
        self.1.lock().unwrap().push(intent);
        self.0
    }
}

fn journal(recorded: Recorded) -> (Arc<Log>, Journal) {
    let log = Arc::new(Log(recorded, Mutex::default()));
    (Arc::clone(&log), Journal::new(Some(log), Journal::silent().changes))
}

/// A fault of the identity stands for each reason for which a file cannot be replaced.
#[test]
fn writes_in_place_are_recorded_first_and_settled_after_a_kill() {
    for (old, new) in [("old", "new and longer"), ("old and longer", "new"), ("", "new"), ("old", "")] {
        for written in 0..=new.len() {
            let (_dir, root, workspace) = root();
            fs::write(root.join("a"), old).unwrap();
            let (log, journal) = journal(Recorded::Committed);
            let changes = [write(&workspace, "a", new)];
            // The second point, after the temporary file.
            let (outcome, failed) =
                Faults::run(1, 1, false, || workspace.apply(&changes, &CancellationToken::new(), &journal));
            outcome.unwrap();
            assert_eq!(
                (failed, fs::read_to_string(root.join("a")).unwrap()),
                (vec![Point::Identity], new.into())
            );
            let intent = log.1.lock().unwrap().pop().unwrap();
            assert_eq!(intent.in_place, [root.join("a")]);
            let half = [&new[..written], old.get(written..).unwrap_or_default()].concat();
            fs::write(root.join("a"), &half).unwrap();
            let found = Interrupted::examine(&workspace, &intent).unwrap();
            assert!(found.conflicts.is_empty(), "{half}: {found:?}");
            let content = |hash: &str| {
                intent.contents.iter().find(|(known, _)| known == hash).map(|(_, content)| content.clone())
            };
            workspace.restore(&found.done, content, &intent.token).unwrap();
            assert_eq!(fs::read_to_string(root.join("a")).unwrap(), old);
            fs::write(root.join("a"), "the user's").unwrap();
            let found = Interrupted::examine(&workspace, &intent).unwrap();
            assert_eq!(found.conflicts, [root.join("a")], "the control");
        }
    }
}

#[test]
fn nothing_is_written_in_place_without_a_record() {
    for (recorded, is_written) in
        [(Recorded::Unconfirmed, false), (Recorded::Committed, true), (Recorded::NotKept, true)]
    {
        let (_dir, root, workspace) = root();
        fs::write(root.join("a"), "old").unwrap();
        let (_, journal) = journal(recorded);
        let changes = [write(&workspace, "a", "new")];
        let (outcome, _) =
            Faults::run(1, 1, false, || workspace.apply(&changes, &CancellationToken::new(), &journal));
        assert_eq!(outcome.is_ok(), is_written, "{outcome:?}");
        assert_eq!(fs::read_to_string(root.join("a")).unwrap() == "new", is_written);
    }
}

/// Each operation fails at each of its points in turn: the files are as before, or as planned.
#[test]
fn failing_disk_leaves_all_files_as_before() {
    type Make = fn(&Workspace) -> Vec<Change>;
    let operations: [Make; 5] = [
        |workspace| vec![write(workspace, "a", "new and longer")],
        |workspace| vec![write(workspace, "new/deep/c", "c")],
        |workspace| vec![remove(workspace, "a")],
        |workspace| {
            vec![Change::Rename {
                from: workspace.resolve_entry("a").unwrap(),
                to: workspace.resolve_entry("x/a").unwrap(),
            }]
        },
        |workspace| {
            let target = |path: &str| workspace.resolve_entry(path).unwrap();
            vec![
                write(workspace, "a", "new"),
                write(workspace, "new", "c"),
                remove(workspace, "b"),
                Change::Rename { from: target("c"), to: target("moved/c") },
                Change::SetExecutable { target: target("a"), executable: true },
            ]
        },
    ];
    for (number, operation) in operations.into_iter().enumerate() {
        for (error, stays) in [(ENOSPC, false), (ENOSPC, true), (EIO, false)] {
            let mut at = 0;
            loop {
                let (_dir, root, workspace) = root();
                for (name, content) in [("a", "a old"), ("b", "b old"), ("c", "c old")] {
                    fs::write(root.join(name), content).unwrap();
                }
                let before = tree(&root);
                let changes = operation(&workspace);
                let (outcome, failed) = Faults::run(at, error, stays, || change(&workspace, &changes));
                let after = tree(&root);
                let case = format!("operation {number}, fault {at} at {failed:?}: {outcome:?} {after:?}");
                match outcome {
                    Err(_) => assert_eq!(after, before, "{case}"),
                    Ok(changes) => {
                        // A file that cannot be replaced was written in place.
                        assert!(failed.is_empty() || failed == [Point::Identity], "{case}");
                        undo(&workspace, &changes, &["a old", "b old", "c old"]);
                        assert_eq!(tree(&root), before, "{case}");
                    }
                }
                if failed.is_empty() {
                    assert!(at > 0, "{case}");
                    break;
                }
                at += 1;
            }
        }
    }
}

/// A write in place that fails puts the old content back, or names it and keeps it for undo.
#[test]
fn failing_write_in_place_loses_nothing() {
    let mut points = Vec::new();
    for at in 0..6 {
        for stays in [false, true] {
            let (_dir, root, workspace) = root();
            fs::write(root.join("a"), "old").unwrap();
            let number = fs::metadata(root.join("a")).unwrap().ino();
            let (sender, mut reports) = tokio::sync::mpsc::unbounded_channel();
            let journal = Journal::new(None, sender);
            let changes = [write(&workspace, "a", "new and longer")];
            let cancel = CancellationToken::new();
            let in_place = [workspace.resolve_entry("a").unwrap().path].into();
            let mut operation = workspace.begin_in_place(&changes, &[], &journal, &in_place).unwrap();
            let (outcome, failed) = Faults::run(at, ENOSPC, stays, || operation.carry_out(&changes, &cancel));
            operation.conclude();
            let text = fs::read_to_string(root.join("a")).unwrap();
            let case = format!("fault {at} at {failed:?}, {outcome:?}: {text}");
            assert_eq!(fs::metadata(root.join("a")).unwrap().ino(), number, "{case}: not in place");
            points.extend(failed.first().copied());
            let recorded = reports.try_recv().unwrap_or_default();
            match outcome {
                Ok(()) => assert_eq!((text.as_str(), failed.len()), ("new and longer", 0), "{case}"),
                Err(_) if text == "old" => assert!(recorded.changed.is_empty(), "{case}"),
                Err(_) => {
                    undo(&workspace, &recorded, &["old"]);
                    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "old", "{case}");
                }
            }
        }
    }
    for point in [Point::Reserve, Point::Write, Point::Truncate] {
        assert!(points.contains(&point), "{point:?} has not failed: {points:?}");
    }
}

/// The first of two files is saved by an editor after its replacement, and the second one before.
#[test]
fn save_between_two_steps_is_kept_when_the_operation_fails() {
    for is_new in [false, true] {
        let (_dir, root, workspace) = root();
        let (first, second) = (root.join("a"), root.join("b"));
        if !is_new {
            fs::write(&first, "old a").unwrap();
        }
        fs::write(&second, "old b").unwrap();
        let changes = [write(&workspace, "a", "new a"), write(&workspace, "b", "new b")];
        let (saved_first, saved_second) = (first.clone(), second.clone());
        let save = move || {
            assert_eq!(fs::read_to_string(&saved_first).unwrap(), "new a", "the control");
            fs::write(saved_first, "saved a").unwrap();
            fs::write(saved_second, "saved b").unwrap();
        };
        let renames = if is_new { 6 } else { 7 };
        let (outcome, acted) = Faults::act(renames, save, || change(&workspace, &changes));
        assert_eq!(acted, [Point::Rename]);
        assert!(outcome.unwrap_err().to_string().contains("Not put back"), "{is_new}");
        assert_eq!(fs::read_to_string(&first).unwrap(), "saved a", "{is_new}");
        assert_eq!(fs::read_to_string(&second).unwrap(), "saved b", "{is_new}");
    }
}

/// Another program acts between the last comparison and the rename.
#[test]
fn saves_by_other_programs_right_before_the_rename_are_kept() {
    type Act = fn(&Path);
    let acts: [(Act, Option<&str>); 5] = [
        (|path| fs::write(path, "the user's").unwrap(), Some("the user's")),
        (|path| fs::write(path, "xld").unwrap(), Some("xld")),
        (
            |path| {
                fs::write(path.with_file_name("b"), "saved").unwrap();
                fs::rename(path.with_file_name("b"), path).unwrap();
            },
            Some("saved"),
        ),
        (|path| fs::remove_file(path).unwrap(), None),
        (|path| set_mode(path, 0o600), Some("old")),
    ];
    for (act, left) in acts {
        for is_removal in [false, true] {
            let (_dir, root, workspace) = root();
            let path = root.join("a");
            fs::write(&path, "old").unwrap();
            let changes = [if is_removal { remove(&workspace, "a") } else { write(&workspace, "a", "new") }];
            let at = if is_removal { 0 } else { 3 };
            let saved = path.clone();
            let (outcome, acted) = Faults::act(at, move || act(&saved), || change(&workspace, &changes));
            assert_eq!(acted, [Point::Rename]);
            assert!(outcome.is_err(), "{left:?}, removal {is_removal}: {outcome:?}");
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), left, "removal {is_removal}");
            assert_eq!(tree(&root).len(), usize::from(left.is_some()), "no temporary file stays");
        }
    }
}
