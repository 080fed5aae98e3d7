//! Tests that every change in the folders is found and can be restored.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::workspace::compose;
use crate::workspace::tests::{file, root, set_mode, tree};

/// A session's folder with a snapshot that has not been taken yet.
struct Place {
    dir: TempDir,
    root: PathBuf,
    workspace: Workspace,
    snapshot: WorkspaceSnapshot,
    contents: BTreeMap<String, Vec<u8>>,
}

impl Place {
    fn new() -> Self {
        let (dir, root, workspace) = root();
        let snapshot = WorkspaceSnapshot::new(dir.path().join("state/copies"), &workspace);
        Self { dir, root, workspace, snapshot, contents: BTreeMap::new() }
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn sync(&mut self) -> Changes {
        let changes = self.snapshot.sync(&CancellationToken::new());
        self.contents.extend(changes.contents.iter().cloned());
        changes
    }

    fn restore(&self, changed: &[Changed]) -> Vec<PathBuf> {
        self.workspace.restore(changed, |hash| self.contents.get(hash).cloned(), "t").unwrap()
    }

    /// The paths of changes, relative to the root.
    fn paths(&self, changes: &Changes) -> Vec<String> {
        let inside = |changed: &Changed| changed.path.strip_prefix(&self.root).unwrap().display().to_string();
        changes.changed.iter().map(inside).collect()
    }
}

#[test]
fn every_change_of_a_command_is_found_and_restored() {
    let mut place = Place::new();
    let root = place.root.clone();
    for path in
        ["kept", "changed", "mode", "gone", "was_file", "sub/gone", "was_folder/a", "moved/a", ".hidden"]
    {
        place.write(path, path);
    }
    fs::create_dir(root.join("empty")).unwrap();
    symlink("kept", root.join("link")).unwrap();
    symlink("/nowhere", root.join("was_link")).unwrap();
    let before = tree(&root);
    assert_eq!(place.sync(), Changes::default(), "the first snapshot reports no change");

    fs::write(root.join("changed"), "CHANGED").unwrap();
    set_mode(&root.join("mode"), 0o751);
    set_mode(&root.join("sub"), 0o500);
    for path in ["gone", "was_file", "sub/gone", "was_link", "link", ".hidden"] {
        fs::remove_file(root.join(path)).unwrap();
    }
    for path in ["empty", "was_folder"] {
        fs::remove_dir_all(root.join(path)).unwrap();
    }
    place.write("was_file/inside", "x");
    place.write("was_folder", "x");
    place.write("was_link", "x");
    symlink("changed", root.join("link")).unwrap();
    symlink("was_file", root.join(".hidden")).unwrap();
    fs::rename(root.join("moved"), root.join("elsewhere")).unwrap();
    fs::create_dir_all(root.join("new/deep")).unwrap();
    symlink("..", root.join("new/up")).unwrap();

    let changes = place.sync();
    assert_eq!(
        place.paths(&changes),
        [
            ".hidden",
            "changed",
            "elsewhere",
            "elsewhere/a",
            "empty",
            "gone",
            "link",
            "mode",
            "moved",
            "moved/a",
            "new",
            "new/deep",
            "new/up",
            "sub",
            "sub/gone",
            "was_file",
            "was_file/inside",
            "was_folder",
            "was_folder/a",
            "was_link"
        ]
    );
    assert_eq!(changes.uncovered, Vec::<String>::new());
    assert_eq!(place.restore(&changes.changed), Vec::<PathBuf>::new());
    assert_eq!(tree(&root), before);
}

#[test]
fn change_of_equal_length_and_time_is_found() {
    let mut place = Place::new();
    place.write("a", "one");
    set_mode(&place.root.join("a"), 0o644);
    place.sync();
    place.write("a", "two");
    let changed = Changed {
        path: place.root.join("a"),
        before: file("one", 0o644),
        after: file("two", 0o644),
        compared: true,
    };
    let contents = vec![(crate::ids::hash("one"), "one".into())];
    assert_eq!(place.sync(), Changes { changed: vec![changed], contents, ..Changes::default() });
    place.write("a", "two");
    assert_eq!(place.sync(), Changes::default(), "rewritten with the same content");
}

#[test]
fn refreshed_changes_are_not_reported() {
    let mut place = Place::new();
    place.write("a", "one");
    place.sync();
    place.write("a", "two");
    place.snapshot.refresh(&CancellationToken::new());
    place.write("b", "three");
    let changes = place.sync();
    assert_eq!(place.paths(&changes), ["b"]);
}

#[test]
fn ignored_and_version_control_files_are_not_covered() {
    let mut place = Place::new();
    place.write(".gitignore", "*.log\nout/\n");
    for path in [".git/HEAD", "sub/.git/HEAD", ".hg/x", ".svn/x", "a.log", "out/x", "a.txt"] {
        place.write(path, "one");
    }
    place.sync();
    for path in
        [".git/HEAD", ".git/new", "sub/.git/HEAD", ".hg/x", ".svn/x", "a.log", "b.log", "out/x", "a.txt"]
    {
        place.write(path, "two");
    }
    let changes = place.sync();
    assert_eq!(place.paths(&changes), ["a.txt"]);
    place.restore(&changes.changed);
    let read = |path: &str| fs::read_to_string(place.root.join(path)).unwrap();
    assert_eq!([".git/HEAD", "a.log", "a.txt"].map(read), ["two", "two", "one"]);
}

#[test]
fn files_no_longer_ignored_are_not_reported_as_new() {
    let mut place = Place::new();
    place.write(".gitignore", "*.env\n");
    place.write("secret.env", "precious");
    place.sync();
    place.write(".gitignore", "");
    place.write("new", "x");
    let changes = place.sync();
    assert_eq!(place.paths(&changes), [".gitignore", "new"]);
    let text = "No longer ignored by git and possibly older than the change, so undo keeps them: secret.env.";
    assert_eq!(changes.uncovered, [text]);
    place.write(".gitignore", "new\n");
    let changes = place.sync();
    assert_eq!(place.paths(&changes), [".gitignore"]);
    assert_eq!(changes.uncovered, ["Ignored by git now, so changes there cannot be undone: new."]);
}

#[test]
fn large_and_non_utf8_files_are_reported_when_changed() {
    use std::os::unix::ffi::OsStrExt;
    let mut place = Place::new();
    let large = fs::File::create(place.root.join("large")).unwrap();
    large.set_len((4 << 20) + 1).unwrap();
    fs::write(place.root.join(std::ffi::OsStr::from_bytes(b"\xff")), "x").unwrap();
    assert_eq!(place.sync(), Changes::default());
    assert_eq!(place.sync(), Changes::default(), "unchanged files are not reported");
    large.set_len(5 << 20).unwrap();
    fs::write(place.root.join(std::ffi::OsStr::from_bytes(b"\xff")), "yy").unwrap();
    let uncovered = vec![
        "large is larger than 4 MiB: its changes cannot be undone.".into(),
        "\u{fffd} has a name that is not UTF-8: its changes cannot be undone.".into(),
    ];
    assert_eq!(place.sync(), Changes { uncovered, ..Changes::default() });
}

#[test]
fn oversized_workspace_is_not_covered_and_reported_once() {
    let off = Changes {
        uncovered: vec![
            "The session's folders contain more than 30000 files or 256 MiB, so changes made by commands cannot be undone."
                .into(),
        ],
        ..Changes::default()
    };
    let mut many = Place::new();
    for number in 0..=MAX_ENTRIES {
        fs::File::create(many.root.join(number.to_string())).unwrap();
    }
    many.snapshot.refresh(&CancellationToken::new());
    assert_eq!((many.sync(), many.sync(), many.snapshot.is_off()), (off.clone(), Changes::default(), true));
    let mut large = Place::new();
    large.write("a", "a");
    large.sync();
    assert!(large.dir.path().join("state/copies/0").exists());
    for number in 0..64 {
        let file = fs::File::create(large.root.join(number.to_string())).unwrap();
        file.set_len(MAX_FILE).unwrap();
    }
    assert_eq!((large.sync(), large.sync()), (off, Changes::default()));
    assert!(!large.dir.path().join("state/copies").exists());
}

#[test]
fn cancelled_comparison_is_reported_and_changes_nothing() {
    let mut place = Place::new();
    place.write("a", "one");
    place.sync();
    place.write("a", "two");
    let cancel = CancellationToken::new();
    cancel.cancel();
    let text = "The comparison of files was cancelled, so earlier changes made by commands cannot be undone.";
    let changes = place.snapshot.sync(&cancel);
    assert_eq!(changes, Changes { uncovered: vec![text.into()], ..Changes::default() });
    place.snapshot.refresh(&cancel);
    let changes = place.sync();
    assert_eq!(place.paths(&changes), ["a"], "the control");
}

#[test]
fn copies_are_private_and_removed_with_the_snapshot() {
    let mut place = Place::new();
    let copies = place.dir.path().join("state/copies");
    place.sync();
    assert!(!copies.exists(), "there is nothing to copy");
    place.write("a", "one");
    place.sync();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&copies), mode(&copies.join("0"))), (0o700, 0o600));
    for _ in 0..3 {
        place.write("a", "two");
        place.sync();
    }
    assert_eq!(fs::read_dir(&copies).unwrap().count(), 1, "old copies are removed");
    place.snapshot = WorkspaceSnapshot::new(copies.clone(), &place.workspace);
    assert!(!copies.exists());
}

/// An action of a command. Impossible actions do nothing.
#[derive(Debug, Clone)]
enum Deed {
    Write(&'static str, u8),
    Remove(&'static str),
    Folder(&'static str),
    Link(&'static str, &'static str),
    Mode(&'static str, u32),
    Rename(&'static str, &'static str),
}

impl Deed {
    fn any() -> impl Strategy<Value = Self> {
        let path = || proptest::sample::select(vec!["a", "b", "d", "d/a", "d/e", "d/e/a", "f/g"]);
        prop_oneof![
            3 => (path(), 0..4u8).prop_map(|(path, content)| Self::Write(path, content)),
            2 => path().prop_map(Self::Remove),
            2 => path().prop_map(Self::Folder),
            1 => (path(), path()).prop_map(|(path, to)| Self::Link(path, to)),
            1 => (path(), proptest::sample::select(vec![0o700, 0o755, 0o750])).prop_map(|(path, mode)| Self::Mode(path, mode)),
            2 => (path(), path()).prop_map(|(from, to)| Self::Rename(from, to)),
        ]
    }

    fn perform(&self, root: &Path) {
        // Impossible actions do nothing.
        let _ = match *self {
            Self::Write(path, content) => fs::create_dir_all(root.join(path).parent().unwrap())
                .and_then(|()| fs::write(root.join(path), [b'0' + content])),
            Self::Remove(path) => {
                fs::remove_file(root.join(path)).or_else(|_| fs::remove_dir_all(root.join(path)))
            }
            Self::Folder(path) => fs::create_dir_all(root.join(path)),
            Self::Link(path, to) => symlink(to, root.join(path)),
            Self::Mode(path, mode) => match root.join(path).symlink_metadata() {
                Ok(found) if !found.is_symlink() => {
                    fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode))
                }
                _ => Ok(()),
            },
            Self::Rename(from, to) => fs::rename(root.join(from), root.join(to)),
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_changes_is_restored(
        first in proptest::collection::vec(Deed::any(), 0..10),
        then in proptest::collection::vec((Deed::any(), any::<bool>()), 1..12),
    ) {
        let mut place = Place::new();
        let root = place.root.clone();
        for deed in first {
            deed.perform(&root);
        }
        place.sync();
        let before = tree(&root);
        let mut reported = Vec::new();
        for (deed, is_synced) in then {
            deed.perform(&root);
            if is_synced {
                reported.extend(place.sync().changed);
            }
        }
        reported.extend(place.sync().changed);
        let list = compose(reported.into_iter());
        prop_assert_eq!(place.workspace.conflicts(&list), Vec::<PathBuf>::new());
        prop_assert_eq!(place.restore(&list), Vec::<PathBuf>::new());
        prop_assert_eq!(tree(&root), before);
    }
}

/// Small copies share files, whose bytes may still wait for a write. Large ones have a file of their own.
#[test]
fn packed_copies_are_undone_as_others() {
    let mut place = Place::new();
    let copies = place.dir.path().join("state/copies");
    let content = |number: usize| number.to_string().repeat(1 + number * 7);
    for number in 0..200 {
        place.write(&number.to_string(), &content(number));
    }
    place.write("large", &"x".repeat(100_000));
    place.sync();
    assert!(fs::read_dir(&copies).unwrap().count() < 10, "files are shared");
    for number in 0..200 {
        place.write(&number.to_string(), "new");
    }
    place.write("large", "new");
    let changes = place.sync();
    assert_eq!(changes.changed.len(), 201);
    let contents: std::collections::HashMap<_, _> = changes.contents.into_iter().collect();
    for Changed { path, before, .. } in changes.changed {
        let FileState::File { hash, .. } = before else { panic!("{path:?} was a file") };
        let name = path.file_name().unwrap().to_str().unwrap();
        let expected = name.parse().map_or_else(|_| "x".repeat(100_000), content);
        assert_eq!(contents[&hash], expected.as_bytes(), "{name}");
    }
    for number in 0..200 {
        fs::remove_file(place.root.join(number.to_string())).unwrap();
    }
    place.sync();
    place.write("last", &"y".repeat(100_000));
    place.sync();
    let left: u64 =
        fs::read_dir(&copies).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(left < 400_000, "forgotten copies leave the disk: {left}");
}
