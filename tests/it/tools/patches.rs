//! Compares `apply_patch` with `git apply`, on patches that `git diff` makes of generated changes, and on
//! corrupted copies of them.
//!
//! `PATCHES=1000 SEED=7 cargo test patches -- --nocapture` runs more patches.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use modegate::acp::ToolCallId;
use modegate::gate::Gate;
use modegate::permission::rules::Rules;
use modegate::permission::{CallFacts, Effect};
use modegate::tool::{ClientIo, RunContext, SessionState, ToolError, Toolset};
use modegate::workspace::{Journal, Workspace};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Files by their paths: content, and whether they are executable.
type Tree = BTreeMap<String, (Vec<u8>, bool)>;

/// A random generator (splitmix64). The same seed gives the same patches.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    /// Returns true in `percent` of a hundred calls.
    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }
}

pub(super) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A folder for one case, with a home for git.
struct GitFixture {
    dir: tempfile::TempDir,
}

impl GitFixture {
    fn new() -> Self {
        let fixture = Self { dir: tempfile::tempdir().unwrap() };
        let version = Command::new("git").arg("--version").output();
        assert!(version.is_ok_and(|output| output.status.success()), "git is needed here: install it");
        assert!(fixture.git(Path::new("."), &["init", "-q", "--bare", "store"]).is_some());
        fixture
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns git's output, or `None` if git fails.
    fn git(&self, folder: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
        self.git_with(folder, arguments, &[])
    }

    fn git_with(&self, folder: &Path, arguments: &[&str], more: &[(&str, &Path)]) -> Option<Vec<u8>> {
        let mut git = Command::new("git");
        git.args(arguments).current_dir(self.dir.path().join(folder));
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
            git.env_remove(name);
        }
        git.env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("HOME", self.dir.path());
        git.env("GIT_CEILING_DIRECTORIES", self.dir.path()).envs(more.iter().copied());
        let done = git.output().unwrap();
        done.status.success().then_some(done.stdout)
    }

    /// Replaces the contents of a folder by a tree.
    fn put(&self, folder: &str, tree: &Tree) -> PathBuf {
        let top = self.at(folder);
        let _ = fs::remove_dir_all(&top);
        fs::create_dir_all(&top).unwrap();
        for (name, (content, executable)) in tree {
            let path = top.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(if *executable { 0o755 } else { 0o644 }))
                .unwrap();
        }
        top
    }

    /// Returns the output of `git diff` for two trees.
    fn diff(&self, old: &Tree, new: &Tree, options: &[&str]) -> Vec<u8> {
        let ids: Vec<String> = [("old", old), ("new", new)]
            .into_iter()
            .map(|(name, tree)| {
                let (work, index) = (self.put(name, tree), self.at(&format!("{name}.index")));
                let _ = fs::remove_file(&index);
                let store = self.at("store");
                let more = [
                    ("GIT_DIR", store.as_path()),
                    ("GIT_WORK_TREE", &work),
                    ("GIT_INDEX_FILE", index.as_path()),
                ];
                self.git_with(&work, &["add", "-A", "."], &more).unwrap();
                String::from_utf8(self.git_with(&work, &["write-tree"], &more).unwrap())
                    .unwrap()
                    .trim()
                    .to_owned()
            })
            .collect();
        let arguments = [&["diff"], options, &[ids[0].as_str(), ids[1].as_str()]].concat();
        self.git_with(Path::new("."), &arguments, &[("GIT_DIR", &self.at("store"))]).unwrap()
    }

    /// Returns the tree after `git apply`, or `None` if git refuses the patch.
    fn git_result(&self, tree: &Tree, patch: &[u8], options: &[&str]) -> Option<Tree> {
        let work = self.put("theirs", tree);
        fs::write(self.at("patch"), patch).unwrap();
        self.git(&work, &[&["apply"], options, &["../patch"]].concat()).map(|_| read(&work))
    }

    /// Returns the tree after `apply_patch`, and the tool's result.
    async fn tool_result(&self, tree: &Tree, patch: &str) -> (Tree, Result<String, String>) {
        let work = self.put("ours", tree);
        let workspace = Workspace::new(&work, &[]).unwrap();
        let done = run_tool(&workspace, "apply_patch", json!({ "patch": patch })).await;
        (read(&work), done.map_err(|error| error.to_string()))
    }
}

/// Runs a tool that edits, and returns its text for the model.
pub(super) async fn run_tool(
    workspace: &Workspace,
    tool: &'static str,
    arguments: Value,
) -> Result<String, ToolError> {
    let (tools, _) = Toolset::built_in().for_session(workspace, &Rules::default());
    let call = tools.find(tool).unwrap().prepare(arguments, workspace).await?;
    let facts = CallFacts::of_tool(tool, Effect::Edit);
    let permit = Gate::default().admit(ToolCallId::new("c"), facts, 1, &CancellationToken::new());
    let changes = tokio::sync::mpsc::unbounded_channel().0;
    let context = RunContext {
        permit,
        progress: None,
        journal: Journal::new(None, changes.clone()),
        changes,
        client_io: ClientIo::disconnected(),
        keeps_output: false,
    };
    call.action.run(context, SessionState::default()).await.map(|output| output.text)
}

fn read(top: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            tree.insert(name, (fs::read(&path).unwrap(), mode & 0o100 != 0));
        }
    }
    tree
}

const NAMES: [&str; 11] = [
    "f",
    "g.txt",
    "dir/h",
    "with space.txt",
    "naïve.txt",
    "quo\"te",
    "a/x",
    "b/y",
    "dir/sub/k",
    "tab\tname",
    "c-d",
];

/// Lines that look like parts of a patch, beside ordinary ones.
const LINES: [&str; 17] = [
    "a",
    "b",
    "c",
    "",
    "- ",
    "-- ",
    "-- x",
    "++ y",
    "@@ -1 +1 @@",
    "--- a/f",
    "+++ b/f",
    " x",
    "\tz",
    "diff --git a/f b/f",
    "naïve",
    "{",
    "\\ No newline at end of file",
];

fn line(random: &mut Random) -> String {
    if random.chance(50) { random.pick(&LINES).to_owned() } else { format!("line {}", random.below(60)) }
}

fn old_tree(random: &mut Random) -> Tree {
    let mut tree = Tree::new();
    for _ in 0..=random.below(4) {
        let ending = if random.chance(15) { "\r\n" } else { "\n" };
        let count = [0, 1, 2, 5, 20, 40][random.below(6)];
        let lines: Vec<String> = (0..count).map(|_| line(random)).collect();
        let last = if count > 0 && random.chance(85) { ending } else { "" };
        let content = lines.join(ending) + last;
        tree.insert(NAMES[random.below(NAMES.len())].to_owned(), (content.into(), random.chance(20)));
    }
    tree
}

fn new_tree(old: &Tree, random: &mut Random) -> Tree {
    let mut tree = Tree::new();
    for (name, (content, executable)) in old {
        let fate = random.below(100);
        if fate < 12 {
            continue;
        }
        let content = edited(std::str::from_utf8(content).unwrap(), random);
        let executable = *executable ^ random.chance(10);
        let name = if fate < 30 { format!("moved/{name}") } else { name.clone() };
        if fate > 90 {
            tree.insert(format!("copies/{name}"), ([content.as_bytes(), b"more\n"].concat(), executable));
        }
        tree.insert(name, (content.into(), executable));
    }
    if random.chance(30) {
        tree.insert("brand/new".into(), (b"n\n".repeat(random.below(4)), random.chance(30)));
    }
    tree
}

fn edited(content: &str, random: &mut Random) -> String {
    let mut lines: Vec<String> = content.split('\n').map(str::to_owned).collect();
    for _ in 0..random.below(5) {
        let at = random.below(lines.len().max(1));
        match random.below(3) {
            0 if at < lines.len() => lines[at] = line(random),
            1 if at < lines.len() => drop(lines.remove(at)),
            _ => lines.insert(at, line(random)),
        }
    }
    lines.join("\n")
}

/// Returns options for `git diff`, the number of context lines, and whether paths have prefixes.
fn options(random: &mut Random) -> (Vec<String>, usize, bool) {
    let context = [0, 1, 2, 3, 3, 3, 5, 10][random.below(8)];
    let mut options = vec![format!("-U{context}")];
    let has_prefix = random.chance(70);
    let more = [("--no-prefix", !has_prefix), ("-M", random.chance(50)), ("-C", random.chance(30))];
    options.extend(more.iter().filter(|(_, on)| *on).map(|(option, _)| (*option).to_owned()));
    for (option, percent) in [("--find-copies-harder", 20), ("--binary", 30), ("--patience", 20)] {
        if random.chance(percent) {
            options.push(option.into());
        }
    }
    (options, context, has_prefix)
}

#[tokio::test]
async fn git_diffs_apply_as_git_apply_does() {
    let fixture = GitFixture::new();
    let (count, seed) = (number("PATCHES", 240), number("SEED", 1));
    let (mut applied, mut wrong) = (0, String::new());
    for case in 0..count {
        let mut random = Random(seed.wrapping_mul(1_000_003).wrapping_add(case));
        let old = old_tree(&mut random);
        let new = new_tree(&old, &mut random);
        let (options, context, has_prefix) = options(&mut random);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let patch = String::from_utf8(fixture.diff(&old, &new, &options)).unwrap();
        if patch.is_empty() {
            continue;
        }
        let mut reference = if has_prefix { vec![] } else { vec!["-p0"] };
        reference.extend((context == 0).then_some("--unidiff-zero"));
        let git_result = fixture.git_result(&old, patch.as_bytes(), &reference);
        assert_eq!(git_result.as_ref(), Some(&new), "git itself, case {case}: {patch}");
        let (tool_result, text) = fixture.tool_result(&old, &patch).await;
        if text.is_err() || tool_result != new {
            let _ = write!(wrong, "case {case} {options:?}: {text:?}\n{patch}\n{tool_result:?}\n");
        }
        applied += 1;
    }
    println!("{applied} patches");
    assert!(wrong.is_empty(), "{wrong}");
    assert!(applied >= count * 9 / 10, "only {applied} cases have a patch");
}

/// Corrupts a patch, or the tree that it applies to.
fn corrupted(patch: &str, tree: &mut Tree, random: &mut Random) -> String {
    let mut lines: Vec<String> = patch.split('\n').map(str::to_owned).collect();
    let at = random.below(lines.len());
    match random.below(9) {
        0 => drop(lines.remove(at)),
        1 => lines.insert(at, lines[at].clone()),
        2 => {
            let other = random.below(lines.len());
            lines.swap(at, other);
        }
        3 | 4 => {
            // Changes a number in a hunk header.
            let headers: Vec<usize> = (0..lines.len()).filter(|at| lines[*at].starts_with("@@ -")).collect();
            if !headers.is_empty() {
                let header = &mut lines[headers[random.below(headers.len())]];
                let end = header[2..].find("@@").map_or(header.len(), |end| end + 2);
                let digits: Vec<usize> =
                    (0..end).filter(|at| header.as_bytes()[*at].is_ascii_digit()).collect();
                let digit = digits[random.below(digits.len())];
                header.replace_range(digit..=digit, &random.below(10).to_string());
            }
        }
        5 => {
            let line = &mut lines[at];
            let ends: Vec<usize> = line.char_indices().map(|(at, _)| at).collect();
            if !ends.is_empty() {
                let from = ends[random.below(ends.len())];
                let length = line[from..].chars().next().unwrap().len_utf8();
                line.replace_range(
                    from..from + length,
                    random.pick(&["x", "a", "+", "-", " ", "@", "\\", "/"]),
                );
            }
        }
        6 => lines.truncate(at),
        7 => lines.iter_mut().filter(|line| *line == " ").for_each(String::clear),
        _ => {
            let name = tree.keys().nth(random.below(tree.len())).unwrap().clone();
            let (content, executable) = tree.remove(&name).unwrap();
            let content = edited(std::str::from_utf8(&content).unwrap(), random);
            tree.insert(name, (content.into(), executable));
        }
    }
    lines.join("\n")
}

/// Returns the patch with the parts that `apply_patch` does not need and `git apply` does: a line feed at the
/// end, the mode line of a created or deleted file, and no old lines at line 0.
fn completed(patch: &str) -> String {
    let ended = if patch.ends_with('\n') { patch.to_owned() } else { format!("{patch}\n") };
    let lines: Vec<&str> = ended.split_inclusive('\n').collect();
    let mut all = String::new();
    for (at, line) in lines.iter().enumerate() {
        match line.strip_prefix("@@ -0,").filter(|rest| !rest.starts_with('0')) {
            Some(rest) => all.extend(["@@ -1,", rest]),
            None => all.push_str(line),
        }
        let header = &lines[at + 1..];
        let names = header.iter().position(|line| !line.starts_with("index ")).unwrap_or(0);
        if line.starts_with("diff --git ") {
            let line = |after: usize| header.get(names + after).map_or("", |line| line.trim_end());
            if line(0) == "--- /dev/null" {
                all.push_str("new file mode 100644\n");
            } else if line(0).starts_with("--- ") && line(1) == "+++ /dev/null" {
                all.push_str("deleted file mode 100644\n");
            }
        }
    }
    all
}

/// A corrupted patch is refused, or has the result of `git apply`. `apply_patch` has two of git's options
/// always on: it trusts the lines of a hunk over its counts (`--recount`), and accepts hunks without context
/// (`--unidiff-zero`).
#[tokio::test]
async fn corrupted_patches_fail_or_match_git_apply() {
    let fixture = GitFixture::new();
    let (count, seed) = (number("PATCHES", 240), number("SEED", 1));
    let (mut applied, mut refused, mut wrong) = (0, 0, String::new());
    for case in 0..count {
        let mut random = Random(seed.wrapping_mul(7_000_003).wrapping_add(case));
        let old = old_tree(&mut random);
        let new = new_tree(&old, &mut random);
        let (options, context, _) = options(&mut random);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let patch = String::from_utf8(fixture.diff(&old, &new, &options)).unwrap();
        if patch.is_empty() {
            continue;
        }
        let mut tree = old.clone();
        let patch = corrupted(&patch, &mut tree, &mut random);
        let (tool_result, text) = fixture.tool_result(&tree, &patch).await;
        if text.is_err() {
            refused += 1;
            if tool_result != tree {
                let _ = write!(wrong, "case {case} is refused and changed something: {text:?}\n{patch}\n");
            }
            continue;
        }
        applied += 1;
        // Git has no such tolerance. The tests in `noise` cover it.
        if text.is_ok_and(|text| text.contains("matched ignoring")) {
            continue;
        }
        let patch = completed(&patch);
        let made = |options: &[&str]| {
            [&[][..], &["-p0"]]
                .map(|prefix| fixture.git_result(&tree, patch.as_bytes(), &[options, prefix].concat()))
        };
        let is_ours =
            |made: &[Option<Tree>]| made.iter().flatten().any(|git_result| *git_result == tool_result);
        let plain = made(&[]);
        let mut same = is_ours(&plain) || is_ours(&made(&["--recount"]));
        // Hunks without context count only if the patch was made without context, or git refuses it otherwise.
        if context == 0 || plain.iter().all(Option::is_none) {
            same |= is_ours(&made(&["--unidiff-zero"])) || is_ours(&made(&["--unidiff-zero", "--recount"]));
        }
        if !same {
            let _ =
                write!(wrong, "case {case} {options:?} is applied unlike git:\n{patch}\n{tool_result:?}\n");
        }
    }
    println!("{applied} applied, {refused} refused");
    assert!(wrong.is_empty(), "{wrong}");
    assert!(applied >= count / 5 && refused >= count / 5, "{applied} applied, {refused} refused");
}

#[tokio::test]
async fn file_modes_are_applied_and_rolled_back() {
    let fixture = GitFixture::new();
    let tree = Tree::from([
        ("run".to_owned(), (b"x\n".to_vec(), false)),
        ("data".into(), (b"\0\x01".to_vec(), true)),
    ]);
    let script =
        "diff --git a/new b/new\nnew file mode 100755\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+#!/bin/sh\n";
    let modes = "diff --git a/run b/run\nold mode 100644\nnew mode 100755\n\
                 diff --git a/data b/data\nold mode 100755\nnew mode 100644\n";
    let (tool_result, text) = fixture.tool_result(&tree, &format!("{script}{modes}")).await;
    assert!(text.is_ok(), "{text:?}");
    let modes_of = |tree: &Tree| tree.iter().map(|(name, (_, on))| (name.clone(), *on)).collect::<Vec<_>>();
    assert_eq!(modes_of(&tool_result), [("data".into(), false), ("new".into(), true), ("run".into(), true)]);
    // If the last step fails, the file mode of the first file is restored.
    let broken = format!("{modes}diff --git a/gone b/gone\nold mode 100644\nnew mode 100755\n");
    let (tool_result, text) = fixture.tool_result(&tree, &broken).await;
    assert!(text.is_err());
    assert_eq!(tool_result, tree);
}

#[tokio::test]
async fn sections_for_the_same_file_apply_in_order() {
    let fixture = GitFixture::new();
    let tree = Tree::from([("f".to_owned(), (b"a\nb\n".to_vec(), false))]);
    let patch =
        "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-a\n+A\n b\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n A\n-b\n+B\n";
    let (tool_result, text) = fixture.tool_result(&tree, patch).await;
    assert_eq!((text.is_ok(), tool_result["f"].0.as_slice()), (true, &b"A\nB\n"[..]));
    assert_eq!(fixture.git_result(&tree, patch.as_bytes(), &[]), Some(tool_result));
    let (tool_result, text) = fixture
        .tool_result(&tree, &format!("{patch}--- a/f\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-A\n-B\n"))
        .await;
    assert!(text.unwrap_err().contains("more than once"));
    assert_eq!(tool_result, tree);
}

#[tokio::test]
async fn every_failing_file_and_hunk_is_named() {
    let fixture = GitFixture::new();
    let tree =
        Tree::from([("f".to_owned(), (b"a\nb\n".to_vec(), false)), ("g".into(), (b"x\n".to_vec(), false))]);
    let patch = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-A\n+1\n b\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n-x\n+y\n\
                 --- a/h\n+++ b/h\n@@ -1 +1 @@\n-x\n+y\n";
    let (tool_result, text) = fixture.tool_result(&tree, patch).await;
    let text = text.unwrap_err();
    for part in
        ["f: hunk 1", "     1\ta\n     >\tA\n     2\tb", "h: there is no such file", "Nothing is changed."]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("g:"), "{text}");
    assert_eq!(tool_result, tree);
}
