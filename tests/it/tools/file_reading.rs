//! Special files in place of every path that Modegate opens without a call, and the files that searches leave
//! out.

use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::make_fifo;

/// Deadline of a run, for a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// Address space of a run in KiB. A read without a limit exceeds it.
const MEMORY: u32 = 6 * 1024 * 1024;

/// The special files that replace a regular file.
const KINDS: [&str; 7] = ["fifo", "socket", "zero", "null", "sparse", "folder", "dangling"];

/// The run of Modegate that reads the path.
enum Invocation {
    /// A prompt whose model calls the tools of [`calls`].
    Prompt,
    /// A subcommand.
    Command(&'static [&'static str]),
}

/// A path that Modegate opens without a call.
struct ReadingCase {
    path: &'static str,
    content: &'static str,
    invocation: Invocation,
    /// Part of the output if the path is a regular file. A `!` in front means that the output must not have
    /// the rest.
    expected_if_regular: &'static str,
    /// The same if the path is a special file.
    expected_if_special: &'static str,
    /// A second file of the case: its path and content.
    beside: Option<(&'static str, &'static str)>,
}

/// The note of a search without result.
const HIDDEN: &str = "because git ignores them: hidden.txt.]";

const fn case(
    path: &'static str,
    content: &'static str,
    invocation: Invocation,
    expected_if_regular: &'static str,
    expected_if_special: &'static str,
) -> ReadingCase {
    ReadingCase { path, content, invocation, expected_if_regular, expected_if_special, beside: None }
}

impl ReadingCase {
    const fn beside(mut self, path: &'static str, content: &'static str) -> Self {
        self.beside = Some((path, content));
        self
    }
}

const RULES: Invocation = Invocation::Command(&["permissions", "list"]);
const SKILLS: Invocation = Invocation::Command(&["skills", "list"]);
const DOCTOR: Invocation = Invocation::Command(&["doctor"]);
const DENY: &str = "permissions: {deny: [todo]}\n";
const ALLOW: &str = "permissions: {allow: [todo]}\n";
/// The SHA-256 of [`ALLOW`], as `sha256sum` prints it.
const ALLOW_HASH: &str = "d2ab108bab5915333a25ebaa678c865c5148e5967c7ace5f1c98c993ab860ab3\n";
const SKILL: &str = "---\nname: s\ndescription: Fills forms.\n---\nDo it.\n";

const CASES: [ReadingCase; 20] = [
    case("work/.gitignore", "hidden.txt\n", Invocation::Prompt, HIDDEN, ".gitignore is"),
    case("work/.ignore", "hidden.txt\n", Invocation::Prompt, HIDDEN, ".ignore is"),
    case(
        "work/sub/.gitignore",
        "inner.txt\n",
        Invocation::Prompt,
        "because git ignores them: sub/inner.txt.]",
        "sub/.gitignore is",
    ),
    case("work/.git/info/exclude", "hidden.txt\n", Invocation::Prompt, HIDDEN, "exclude is"),
    case(
        "work/.git",
        "gitdir: ../elsewhere\n",
        Invocation::Prompt,
        "does not refer back to it",
        "!does not refer back to it",
    ),
    case(
        "work/.git/HEAD",
        "ref: refs/heads/main\n",
        Invocation::Prompt,
        HIDDEN,
        "!because git ignores them: hidden.txt",
    )
    .beside("work/.git/info/exclude", "hidden.txt\n"),
    case(
        "work/.git/commondir",
        "../..\n",
        Invocation::Prompt,
        "may name another repository",
        "may name another repository",
    ),
    case(
        "work/.git/objects/info/alternates",
        "../../../other/.git/objects\n",
        Invocation::Prompt,
        "shell.read",
        "alternates is",
    ),
    case("work/AGENTS.md", "Be kind.\n", Invocation::Prompt, "!AGENTS.md is", "AGENTS.md is"),
    case("work/.modegate/modes.yaml", DENY, RULES, "deny  todo", "modes.yaml: it "),
    case("work/.modegate/commands/x.md", "Do x.\n", Invocation::Prompt, "!x.md: it ", "x.md: it "),
    case("work/.claude/skills/s/SKILL.md", SKILL, SKILLS, "Fills forms.", "SKILL.md: "),
    case("work/data.txt", "alpha\n", Invocation::Prompt, "data.txt:1:alpha", "!data.txt:1:alpha"),
    case("home/.config/modegate/modes.yaml", DENY, RULES, "deny  todo", "modes.yaml: it "),
    case("home/.config/modegate/permissions.yaml", DENY, RULES, "deny  todo", "permissions.yaml: it "),
    case("home/.config/modegate/trusted", ALLOW_HASH, RULES, "allow todo  ", "may not allow")
        .beside("work/.modegate/modes.yaml", ALLOW),
    case("home/.config/modegate/config.yaml", "model: ollama/mine\n", DOCTOR, "ollama/mine", "config.yaml "),
    case("home/.config/modegate/setup.yaml", "model: ollama/mine\n", DOCTOR, "ollama/mine", "setup.yaml "),
    case("home/.config/modegate/commands/y.md", "Do y.\n", Invocation::Prompt, "!y.md: it ", "y.md: it "),
    case("home/.config/modegate/skills/s/SKILL.md", SKILL, SKILLS, "Fills forms.", "SKILL.md: "),
];

fn call(id: usize, name: &str, arguments: &Value) -> String {
    json!({ "tool_call": { "id": format!("c{id}"), "name": name, "arguments": arguments } }).to_string()
}

/// The tools that read files, and a command that makes Modegate compare the folders.
fn calls() -> Vec<(&'static str, Value)> {
    vec![
        ("find_files", json!({ "glob": "*" })),
        ("search_files", json!({ "pattern": "alpha", "glob": "*" })),
        ("search_files", json!({ "pattern": "alpha", "path": "data.txt" })),
        ("directory_tree", json!({})),
        ("list_directory", json!({ "path": "sub" })),
        ("read_file", json!({ "path": "data.txt" })),
        ("edit_file", json!({ "path": "data.txt", "old_text": "none", "new_text": "x" })),
        ("write_file", json!({ "path": "data.txt", "content": "alpha\n" })),
        ("shell", json!({ "command": "true" })),
    ]
}

/// A folder with a home directory and a repository.
fn home_and_repository() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for folder in
        ["home/.config", "work/sub", "work/.git/objects/pack", "work/.git/refs", "other/.git/objects/pack"]
    {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    for (path, text) in
        [("work/.git/HEAD", "ref: refs/heads/main\n"), ("work/hidden.txt", ""), ("work/sub/inner.txt", "")]
    {
        std::fs::write(dir.path().join(path), text).unwrap();
    }
    dir
}

/// Puts a special file in place of a path. A socket exists as long as the returned listener.
fn put(kind: &str, path: &Path) -> Option<std::os::unix::net::UnixListener> {
    let _ = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir_all(path));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    match kind {
        "fifo" => make_fifo(path),
        "socket" => return Some(std::os::unix::net::UnixListener::bind(path).unwrap()),
        "zero" => symlink("/dev/zero", path).unwrap(),
        "null" => symlink("/dev/null", path).unwrap(),
        "sparse" => std::fs::File::create(path).unwrap().set_len(1 << 38).unwrap(),
        "folder" => std::fs::create_dir(path).unwrap(),
        "dangling" => symlink("nowhere", path).unwrap(),
        content => std::fs::write(path, content).unwrap(),
    }
    None
}

/// Runs the binary with limited memory and returns its output, or `None` if the run exceeds the deadline.
fn run(dir: &Path, arguments: &[&str]) -> Option<String> {
    let mut child = Command::new("bash")
        .args(["-c", &format!("ulimit -v {MEMORY}; exec \"$@\""), "bash", env!("CARGO_BIN_EXE_modegate")])
        .args(arguments)
        .current_dir(dir.join("work"))
        .env_clear()
        .env("HOME", dir.join("home"))
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut output, mut errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        errors.read_to_string(&mut text).unwrap();
        text
    });
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > DEADLINE {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(reader.join().unwrap())
}

/// Runs a prompt whose model makes these calls one after the other. Returns the output with all results.
fn prompt(dir: &Path, mode: &str, calls: &[(&str, Value)]) -> Option<String> {
    let mut script = String::new();
    for (id, (name, arguments)) in calls.iter().enumerate() {
        script += &format!("{}\n{{\"stop\":\"done\"}}\n", call(id, name, arguments));
    }
    script += "{\"text\":\"All done.\"}\n{\"stop\":\"done\"}\n";
    let file = dir.join("script.jsonl");
    std::fs::write(&file, script).unwrap();
    let model = format!("scripted:{}", file.display());
    run(dir, &["--store", "memory", "--mode", mode, "-p", "go", "--output", "stream-json", "--model", &model])
}

/// Returns the failure of a case with this special file, or `None` if the case passes.
fn problem(case: &ReadingCase, kind: &str) -> Option<String> {
    // Modegate checks only the file type of these two paths, so it accepts a sparse file.
    let is_told_by_kind = ["work/.git", "work/.git/HEAD"].contains(&case.path);
    let is_regular = !KINDS.contains(&kind) || (kind == "sparse" && is_told_by_kind);
    let dir = home_and_repository();
    if let Some((path, content)) = case.beside {
        put(content, &dir.path().join(path));
    }
    let _socket = put(kind, &dir.path().join(case.path));
    let output = match &case.invocation {
        Invocation::Prompt => prompt(dir.path(), "code", &calls()),
        Invocation::Command(arguments) => run(dir.path(), arguments),
    };
    let Some(output) = output else { return Some("does not end".into()) };
    if matches!(case.invocation, Invocation::Prompt) && !output.contains("All done.") {
        return Some(format!("does not answer: {output}"));
    }
    let part = if is_regular { case.expected_if_regular } else { case.expected_if_special };
    let is_right = match part.strip_prefix('!') {
        Some(part) => !output.contains(part),
        None => output.contains(part),
    };
    (!is_right).then(|| format!("expected {part:?}: {output}"))
}

#[test]
fn special_files_never_block_or_exhaust_memory() {
    let mut all: Vec<(&ReadingCase, &str)> =
        CASES.iter().flat_map(|case| KINDS.map(|kind| (case, kind))).collect();
    // A folder in place of `.git` is a repository. The controls run last.
    all.retain(|(case, kind)| (case.path, *kind) != ("work/.git", "folder"));
    all.extend(CASES.iter().map(|case| (case, case.content)));
    let (queue, problems) = (Mutex::new(all), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some((case, kind)) = queue.lock().unwrap().pop() else { return };
                    if let Some(problem) = problem(case, kind) {
                        problems.lock().unwrap().push(format!("{} as {kind:?} {problem}", case.path));
                    }
                }
            });
        }
    });
    let problems = problems.into_inner().unwrap();
    assert!(problems.is_empty(), "{} of them:\n{}", problems.len(), problems.join("\n"));
}

/// A repository with an ignored file, a hidden file, and a secret that rules deny.
fn project() -> tempfile::TempDir {
    let dir = home_and_repository();
    for (path, text) in [
        ("work/.git/config", "TOKEN in git\n"),
        // Git ignores a `!` without a pattern.
        ("work/.gitignore", "*.log\n!\n"),
        ("work/build.log", "TOKEN in log\n"),
        ("work/.github/ci.yml", "TOKEN in ci\n"),
        ("work/src/a.rs", "TOKEN in source\n"),
        ("work/secret/key.txt", "TOKEN in key\n"),
        ("work/.env", "TOKEN in env\n"),
        ("work/asked.txt", "TOKEN in asked\n"),
    ] {
        std::fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
        std::fs::write(dir.path().join(path), text).unwrap();
    }
    dir
}

/// Makes one call in plan mode, and checks the words that its result has and does not have.
fn check(dir: &Path, call: (&str, Value), there: &[&str], absent: &[&str]) {
    check_in(dir, "plan", call, there, absent);
}

fn check_in(dir: &Path, mode: &str, call: (&str, Value), there: &[&str], absent: &[&str]) {
    let text = format!("{call:?}");
    let output = prompt(dir, mode, &[call]).expect("it ends");
    for (words, expected) in [(there, true), (absent, false)] {
        for word in words {
            assert_eq!(output.contains(word), expected, "{text}: {word}: {output}");
        }
    }
}

const LEFT_OUT: &str = "[Left out, because git ignores them: build.log.]";

#[test]
fn ignored_files_are_named_if_nothing_matches_and_found_if_asked_for() {
    let dir = project();
    std::fs::write(dir.path().join("work/.gitignore"), "scripts/*\nbuild/\nsecret/\n").unwrap();
    for path in ["scripts/one.py", "build/out.py", "plain.py"] {
        std::fs::create_dir_all(dir.path().join("work").join(path).parent().unwrap()).unwrap();
        std::fs::write(dir.path().join("work").join(path), "TOKEN in python\n").unwrap();
    }
    let find = |glob: &str, all: bool| ("find_files", json!({ "glob": glob, "include_ignored": all }));
    let search = |path: &str, all: bool| {
        ("search_files", json!({ "pattern": "in python", "path": path, "include_ignored": all }))
    };
    let note = "because git ignores them: scripts/one.py.]";
    check(dir.path(), search("scripts", false), &["[No line matches.]", note], &["secret"]);
    check(dir.path(), search("scripts", true), &["scripts/one.py:1:TOKEN in python"], &["Left out"]);
    check(
        dir.path(),
        find("scripts/*.py", false),
        &["[No file matches.]", "build/, scripts/one.py"],
        &["key.txt"],
    );
    check(
        dir.path(),
        find("*.py", true),
        &["scripts/one.py", "build/out.py", "plain.py"],
        &["key.txt", "Left out"],
    );
    // A result needs no such note.
    check(dir.path(), find("*.py", false), &["plain.py"], &["one.py", "Left out"]);
}

#[test]
fn globs_of_other_programs_find_the_same_files() {
    let dir = project();
    let root = dir.path().join("work").canonicalize().unwrap();
    for glob in ["./src/a.rs", "./src/*.rs", "././src/*.rs", &format!("{}/src/*.rs", root.display())] {
        check(
            dir.path(),
            ("find_files", json!({ "glob": glob })),
            &["src/a.rs"],
            &["ci.yml", "further below"],
        );
        let search = ("search_files", json!({ "pattern": "TOKEN", "glob": glob }));
        check(dir.path(), search, &["src/a.rs:1:"], &["ci.yml"]);
    }
    std::fs::create_dir_all(root.join("deep/src")).unwrap();
    std::fs::write(root.join("deep/src/b.rs"), "").unwrap();
    check(
        dir.path(),
        ("find_files", json!({ "glob": "src/b.rs" })),
        &["further below", "deep/src/b.rs"],
        &[],
    );
    check(dir.path(), ("find_files", json!({ "glob": "src/*.rs" })), &["src/a.rs"], &["b.rs"]);
    for absent in ["/src/b.rs", "./src/b.rs", "!**"] {
        check(dir.path(), ("find_files", json!({ "glob": absent })), &["[No file matches.]"], &["deep/"]);
    }
}

#[test]
fn globs_match_hidden_but_not_ignored_or_git_files() {
    let dir = project();
    let never = [".git/config", "build.log", "in git", "in log"];
    for glob in ["*", "**", "**/*", ".*", ".git/**", "*.log", "config", "{.git,.github}/**", "!src"] {
        let named = if glob == "*.log" { &[LEFT_OUT][..] } else { &[] };
        check(dir.path(), ("find_files", json!({ "glob": glob })), named, &never[..2 - named.len()]);
        check(dir.path(), ("search_files", json!({ "pattern": "TOKEN", "glob": glob })), &[], &never[2..]);
    }
    for glob in
        ["", "*", "*.yml", ".github/**", "ci.yml", ".*", ".github", ".github/", "/.github", "**/.github"]
    {
        check(dir.path(), ("find_files", json!({ "glob": glob })), &[".github/ci.yml"], &[]);
        let search = ("search_files", json!({ "pattern": "TOKEN", "glob": glob }));
        check(dir.path(), search, &[".github/ci.yml:1:TOKEN in ci"], &[]);
    }
    check(dir.path(), ("find_files", json!({ "glob": "src" })), &["src/a.rs"], &["ci.yml", "key.txt"]);
    std::fs::create_dir(dir.path().join("work/src/deep")).unwrap();
    std::fs::write(dir.path().join("work/src/deep/b.rs"), "").unwrap();
    check(dir.path(), ("find_files", json!({ "glob": "src/*" })), &["src/a.rs"], &["b.rs"]);
    check(dir.path(), ("find_files", json!({ "glob": "src/deep" })), &["src/deep/b.rs"], &["a.rs"]);
    check(dir.path(), ("find_files", json!({ "glob": "!src" })), &["ci.yml"], &["a.rs", "b.rs"]);
    check(dir.path(), ("search_files", json!({ "pattern": "TOKEN" })), &["in source", "in ci"], &never);
    check(dir.path(), ("directory_tree", json!({})), &["a.rs", "ci.yml"], &[".git/", "build.log"]);
}

#[test]
fn missing_paths_name_the_nearest_readable_file() {
    let dir = project();
    let read = |path: &str| ("read_file", json!({ "path": path }));
    check(dir.path(), read("src/A.rs"), &["no such file or directory; did you mean ", "/src/a.rs?"], &[]);
    check(dir.path(), read("scr/a.rs"), &["/src/a.rs?"], &[]);
    check(dir.path(), read("src/unlike.rs"), &["no such file or directory"], &["did you mean"]);
    check(dir.path(), read("secret/kez.txt"), &["/secret/key.txt?"], &[]);
    let folder = dir.path().join("home/.config/modegate");
    std::fs::create_dir_all(&folder).unwrap();
    let rules = "permissions: {deny: ['read_file(secret/key.txt)']}\n";
    std::fs::write(folder.join("modes.yaml"), rules).unwrap();
    check(dir.path(), read("secret/kez.txt"), &["no such file or directory"], &["did you mean"]);
}

#[test]
fn missing_paths_name_files_of_the_same_name_elsewhere() {
    let dir = project();
    let read = |path: &str| ("read_file", json!({ "path": path }));
    let edit = |path: &str| ("edit_file", json!({ "path": path, "old_text": "a", "new_text": "b" }));
    let check = |call: (&str, Value), there: &[&str], absent: &[&str]| {
        check_in(dir.path(), "code", call, there, absent);
    };
    check(read("lib/deep/a.rs"), &["did you mean ", "/work/src/a.rs?"], &[]);
    check(read("lib/build.log"), &["no such file or directory"], &["did you mean"]);
    for folder in ["one", "two", "zzz"] {
        std::fs::create_dir(dir.path().join("work").join(folder)).unwrap();
        std::fs::write(dir.path().join("work").join(folder).join("key.txt"), "").unwrap();
    }
    let three = ["/one/key.txt or ", "/secret/key.txt or ", "/two/key.txt?"];
    check(read("lib/key.txt"), &three, &["/zzz/key.txt"]);
    check(edit("lib/key.txt"), &three, &["/zzz/key.txt"]);
    let folder = dir.path().join("home/.config/modegate");
    std::fs::create_dir_all(&folder).unwrap();
    for rule in ["read_file(secret/**)", "*(secret/**)"] {
        std::fs::write(folder.join("modes.yaml"), format!("permissions: {{deny: ['{rule}']}}\n")).unwrap();
        for call in [read("lib/key.txt"), edit("lib/key.txt")] {
            check(call, &["/one/key.txt or ", "/two/key.txt or ", "/zzz/key.txt?"], &["/secret/key.txt"]);
        }
    }
    check(edit("src/A.rs"), &["/src/a.rs?"], &[]);
    std::fs::write(folder.join("modes.yaml"), "permissions: {deny: ['read_file(src/a.rs)']}\n").unwrap();
    check(edit("src/A.rs"), &["no such file or directory"], &["did you mean"]);
}

#[test]
fn search_returns_context_files_or_counts() {
    let dir = home_and_repository();
    std::fs::write(dir.path().join("work/a.rs"), "one\nfn a() {\n}\nfour\nfive\nfn b() {\n").unwrap();
    std::fs::write(dir.path().join("work/b.rs"), "fn c() {\n").unwrap();
    for (arguments, expected) in [
        (json!({ "pattern": "^fn" }), "a.rs:2:fn a() {\na.rs:6:fn b() {\nb.rs:1:fn c() {"),
        (
            json!({ "pattern": "^fn", "context": 1 }),
            "a.rs-1-one\na.rs:2:fn a() {\na.rs-3-}\n--\na.rs-5-five\na.rs:6:fn b() {\n--\nb.rs:1:fn c() {",
        ),
        (json!({ "pattern": "^fn", "output": "files" }), "a.rs\nb.rs"),
        (json!({ "pattern": "^fn", "output": "count" }), "a.rs: 2\nb.rs: 1\n[3 matching lines in 2 files.]"),
        (
            json!({ "pattern": "^fn", "limit": 1 }),
            "a.rs:2:fn a() {\n[1 of 3 matching lines in 2 files are shown.]",
        ),
        (json!({ "pattern": "^fn", "output": "files", "limit": 1 }), "a.rs\n[1 of 2 files are shown.]"),
        (json!({ "pattern": "a\\(.*?\\}", "multiline": true }), "a.rs:2:fn a() {\na.rs:3:}"),
        (json!({ "pattern": "a\\(.*?\\}" }), "[No line matches.]"),
        (
            json!({ "pattern": "^fn", "per_file": 1 }),
            "a.rs:2:fn a() {\n[a.rs: 1 more matching line.]\nb.rs:1:fn c() {",
        ),
        (json!({ "pattern": "^fn", "per_file": 2 }), "a.rs:2:fn a() {\na.rs:6:fn b() {\nb.rs:1:fn c() {"),
        (
            json!({ "pattern": "^fn", "per_file": 1, "context": 1 }),
            "a.rs-1-one\na.rs:2:fn a() {\na.rs-3-}\n[a.rs: 1 more matching line.]\n--\nb.rs:1:fn c() {",
        ),
        (
            json!({ "pattern": "^f", "per_file": 1, "context": 3, "glob": "a*" }),
            "a.rs-1-one\na.rs:2:fn a() {\na.rs-3-}\n[a.rs: 3 more matching lines.]",
        ),
        (
            json!({ "pattern": "^fn", "per_file": 1, "output": "count" }),
            "a.rs: 2\nb.rs: 1\n[3 matching lines in 2 files.]",
        ),
    ] {
        let output = prompt(dir.path(), "plan", &[("search_files", arguments.clone())]).unwrap();
        assert!(output.contains(&Value::from(expected).to_string()), "{arguments}: {output}");
    }
}

#[test]
fn folders_move_only_if_all_that_is_in_them_may_move() {
    const DOCS: &str =
        "modes: [{id: docs, extends: plan, access: edit, permission: auto, write_paths: ['**/*.md']}]";
    for (settings, mode, from, to, moves) in [
        ("permissions: {deny: ['read_file(secret/**)']}", "code", "secret", "open", false),
        ("permissions: {deny: ['read_file(secret/**)']}", "code", "src", "open", true),
        ("permissions: {ask: ['*(secret/**)']}", "code", "secret", "open", false),
        ("permissions: {deny: ['write_file(new/**)', 'move_file(new/*.rs)']}", "code", "src", "new", false),
        ("permissions: {deny: ['move_file(new/*.py)']}", "code", "src", "new", true),
        (DOCS, "docs", "code.md", "other.md", false),
        (DOCS, "docs", "text.md", "other.md", true),
    ] {
        let dir = project();
        for (path, text) in [
            ("home/.config/modegate/modes.yaml", settings),
            ("work/code.md/a.rs", ""),
            ("work/text.md/deep/a.md", ""),
        ] {
            std::fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(path), text).unwrap();
        }
        let call = ("move_file", json!({ "from": from, "to": to }));
        let output = prompt(dir.path(), mode, &[call]).unwrap();
        let places = [from, to].map(|name| dir.path().join("work").join(name).exists());
        assert_eq!(places, [!moves, moves], "{settings} {from}: {output}");
        assert_eq!(output.contains("would move with it"), !moves, "{settings} {from}: {output}");
    }
}

#[test]
fn read_file_rules_cover_every_reading_tool() {
    let calls = || {
        [
            ("search_files", json!({ "pattern": "TOKEN", "glob": "*" })),
            ("search_files", json!({ "pattern": "TOKEN", "path": "secret" })),
            ("search_files", json!({ "pattern": "TOKEN", "path": "secret/key.txt" })),
            ("read_file", json!({ "path": "secret/key.txt" })),
            ("read_file", json!({ "path": ".env" })),
            ("read_file", json!({ "path": "asked.txt" })),
            ("find_files", json!({ "glob": "*" })),
            ("list_directory", json!({ "path": "secret" })),
            ("directory_tree", json!({})),
        ]
    };
    let dir = project();
    let folder = dir.path().join("home/.config/modegate");
    std::fs::create_dir_all(&folder).unwrap();
    let open = prompt(dir.path(), "plan", &calls()).unwrap();
    for word in ["in key", "in env", "in asked", "key.txt"] {
        assert!(open.contains(word), "the control: {word}: {open}");
    }
    assert!(!open.contains("omitted:"), "{open}");
    for rules in [
        "{deny: ['read_file(secret/**)', 'read_file(.env)'], ask: ['read_file(asked.txt)']}",
        "{deny: ['*(secret/**)', '*(**/.env)', '*(asked.txt)']}",
        "{deny: ['{read,search,find,list,directory}_*({secret/**,.env,asked.txt})']}",
    ] {
        std::fs::write(folder.join("modes.yaml"), format!("permissions: {rules}\n")).unwrap();
        for call in calls() {
            let message = format!("{rules} {call:?}");
            let output = prompt(dir.path(), "plan", &[call]).unwrap();
            for word in ["in key", "in env", "in asked", "key.txt"] {
                assert!(message.contains(word) || !output.contains(word), "{message}: {word}: {output}");
            }
            assert!(
                output.contains("omitted:") || output.contains("deny") || output.contains("rule"),
                "{message}: {output}"
            );
        }
        let search = ("search_files", json!({ "pattern": "TOKEN", "glob": "*" }));
        check(dir.path(), search, &["in source", "3 files omitted"], &[]);
        for call in [
            ("edit_file", json!({ "path": "secret/key.txt", "old_text": "TOKEN", "new_text": "x" })),
            ("move_file", json!({ "from": "secret/key.txt", "to": "open.txt" })),
        ] {
            prompt(dir.path(), "code", &[call]).unwrap();
            let text = std::fs::read_to_string(dir.path().join("work/secret/key.txt")).unwrap();
            assert!(text.contains("TOKEN"), "{rules}");
        }
    }
    std::fs::write(folder.join("modes.yaml"), "permissions: {deny: ['read_file(other/**)']}\n").unwrap();
    let edit = json!({ "path": "secret/key.txt", "old_text": "TOKEN", "new_text": "x" });
    prompt(dir.path(), "code", &[("edit_file", edit)]).unwrap();
    assert!(std::fs::read_to_string(dir.path().join("work/secret/key.txt")).unwrap().starts_with("x in key"));
}
