//! Faults of the disk at each write of the store, and a store that is exchanged or spoiled while it is open.
//!
//! strace makes system calls on the store's files fail, so the whole binary is tested.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use modegate::store::check::{self, Soundness};
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::sessions::load::{StoreFixture, call, set_mode, text, turn};
use crate::support::Setup;

pub(super) const STRACE: &str = "/usr/bin/strace";

struct FaultFixture(tempfile::TempDir);

struct Ended {
    code: i32,
    result: Value,
    errors: String,
    is_hit: bool,
}

impl FaultFixture {
    fn new() -> Self {
        assert!(Path::new(STRACE).exists(), "this test needs {STRACE}: install the package strace");
        let fixture = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(fixture.path("work")).unwrap();
        let write = json!({ "path": "a.txt", "content": "written\n" });
        let call = json!({ "tool_call": { "id": "w", "name": "write_file", "arguments": write } });
        let lines = [call, json!({ "stop": "done" }), json!({ "text": "Done." }), json!({ "stop": "done" })];
        std::fs::write(fixture.path("script.jsonl"), lines.map(|line| format!("{line}\n")).concat()).unwrap();
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn store(&self) -> PathBuf {
        self.path(".local/share/modegate/modegate.db")
    }

    /// Runs one prompt. `fault` is an argument of strace's option `inject`.
    fn run(&self, fault: Option<&str>) -> Ended {
        let _ = std::fs::remove_file(self.path("work/a.txt"));
        let mut strace = self.strace("pwrite64,ftruncate,fdatasync,fsync", fault);
        for ending in ["", "-wal", "-journal"] {
            strace.arg("-P").arg(format!("{}{ending}", self.store().display()));
        }
        let model = format!("scripted:{}", self.path("script.jsonl").display());
        self.end(strace, &["--mode", "code", "--model", &model, "--output", "json", "-p", "write"])
    }

    /// Salvages the store, which is sound.
    fn salvage(&self, fault: Option<&str>) -> Ended {
        self.end(self.strace("/^rename", fault), &["store", "salvage", "--force"])
    }

    fn strace(&self, calls: &str, fault: Option<&str>) -> Command {
        let mut command = Command::new(STRACE);
        command.args(["-f", "-qq", "-o", self.path("trace").to_str().unwrap()]);
        command.args(["-e", &format!("trace={calls}")]);
        if let Some(fault) = fault {
            command.args(["-e", &format!("inject={fault}")]);
        }
        command
    }

    /// Runs the binary to its end.
    fn end(&self, mut strace: Command, arguments: &[&str]) -> Ended {
        let output = strace
            .arg(env!("CARGO_BIN_EXE_modegate"))
            .args(arguments)
            .current_dir(self.path("work"))
            .env_clear()
            .env("HOME", self.path(""))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ended {
            code: output.status.code().unwrap_or(-1),
            result: serde_json::from_str(&text(output.stdout)).unwrap_or_default(),
            errors: text(output.stderr),
            is_hit: std::fs::read_to_string(self.path("trace")).unwrap().contains("INJECTED"),
        }
    }

    /// The store's folder: names, and contents of files.
    fn files(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let paths = std::fs::read_dir(self.store().parent().unwrap()).unwrap().map(|it| it.unwrap().path());
        paths.map(|path| (path.clone(), std::fs::read(path).ok())).collect()
    }

    /// Whether the change of the last session can be undone.
    fn has_change(&self) -> bool {
        let count = |connection: Connection| -> rusqlite::Result<i64> {
            connection.query_row(
                "SELECT count(*) FROM changes JOIN sessions ON session_id = sessions.id",
                [],
                |row| row.get(0),
            )
        };
        Connection::open(self.store()).and_then(count).is_ok_and(|count| count > 0)
    }
}

/// A run either records everything, or is an error that names what is missing, and its change was refused.
fn check_fault(fault: &str) -> bool {
    let fixture = FaultFixture::new();
    let Ended { code, result, errors, is_hit } = fixture.run(Some(fault));
    let report = format!("{fault}: code {code}, {result}, {errors}");
    assert!(!errors.contains("panicked") && !errors.contains("ERROR"), "{report}");
    let is_changed = fixture.path("work/a.txt").exists();
    if code == 0 {
        assert!(result["error"].is_null() && is_changed && fixture.has_change(), "{report}");
    } else if code == 3 {
        // The store works again at the end of the run, but did not when the call was about to change the file.
        assert!(!is_changed && errors.contains("could not be recorded"), "{report}");
        assert_ne!(result["notices"], json!([]), "{report}");
    } else {
        assert_eq!(code, 1, "{report}");
        assert!(
            result["error"].as_str().is_some_and(|error| error.contains("the run is not recorded")),
            "{report}"
        );
        // The disk may fail after the call was recorded; then the run says so.
        assert!(
            !is_changed || fixture.has_change() || !result["notices"].as_array().unwrap().is_empty(),
            "{report}"
        );
    }
    // Without the fault, the next run records everything.
    let after = fixture.run(None);
    assert_eq!((after.code, &after.result["error"]), (0, &Value::Null), "after {report}: {}", after.errors);
    let condition = check::examine(&fixture.store(), Some(Duration::from_secs(20))).unwrap();
    assert!(fixture.has_change() && !matches!(condition.soundness, Soundness::Damaged(_)), "{condition:?}");
    is_hit
}

/// `FAULTS=all cargo test --test it -- store_faults` tries each write; otherwise the distance grows.
fn each_place(fault: impl Fn(usize) -> String) -> usize {
    let is_all = std::env::var_os("FAULTS").is_some();
    let (mut at, mut hits) = (1, 0);
    while check_fault(&fault(at)) {
        hits += 1;
        at += if is_all { 1 } else { 1 + at / 2 };
    }
    hits
}

#[test]
fn full_disk_at_any_write_is_an_error_or_everything_is_recorded() {
    let hits = each_place(|at| format!("pwrite64,ftruncate:error=ENOSPC:when={at}+"));
    assert!(hits > 5, "the control: only {hits} places");
}

#[test]
fn failing_disk_at_any_write_is_an_error_or_everything_is_recorded() {
    let hits = each_place(|at| format!("pwrite64:error=EIO:when={at}"));
    assert!(hits > 5, "the control: only {hits} places");
    each_place(|at| format!("fdatasync,fsync:error=EIO:when={at}+"));
}

#[test]
fn salvage_that_cannot_rename_a_file_loses_none() {
    let fixture = FaultFixture::new();
    assert_eq!(fixture.run(None).code, 0);
    let store = fixture.store();
    let journal = store.with_file_name("modegate.db-journal");
    std::fs::write(&journal, "none").unwrap();
    let before = fixture.files();
    let mut hits = 0;
    while let Ended { code, errors, is_hit: true, .. } =
        fixture.salvage(Some(&format!("/^rename:error=EIO:when={}", hits + 1)))
    {
        hits += 1;
        assert!(code == 1 && errors.contains("Input/output error"), "{hits}: code {code}, {errors}");
        let after = fixture.files();
        assert!(after == before, "{hits}: {:?}, {errors}", after.keys());
    }
    assert!(hits >= 5, "the file, its companions and the new store, not {hits}");
    let after = fixture.files();
    assert!(after.len() > before.len(), "the control: without a fault, the store is salvaged");
    for path in after.keys().filter(|path| path.is_file()) {
        std::fs::remove_file(path).unwrap();
    }

    // The way back fails, too: the error names the old store and the new one.
    for (path, content) in &before {
        if let Some(content) = content {
            std::fs::write(path, content).unwrap();
        }
    }
    let Ended { code, errors, .. } = fixture.salvage(Some(&format!("/^rename:error=EIO:when={hits}+")));
    assert!(code == 1 && !store.exists(), "{errors}");
    let words = errors.split([' ', ';', '\n']).map(|word| Path::new(word.trim_end_matches(['.', ','])));
    let paths: Vec<&Path> = words.filter(|path| path.is_absolute() && path.is_file()).collect();
    assert!(paths.iter().any(|path| std::fs::read(path).ok() == before[&store]), "{errors}");
    let new = paths.iter().find(|path| path.ends_with("new.db")).expect(&errors);
    let sessions = check::examine(new, None).unwrap().sessions;
    assert_eq!(sessions, 1, "{errors}");
}

type Spoil<'a> = &'a dyn Fn(&Path);

/// Spoils the store of an open session, changes the mode and writes a file. Returns whether the file was written, and
/// the list of sessions.
async fn write_in(mode: &str, spoil: Spoil<'_>) -> (bool, Value) {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup { mode: "ask", ..Setup::default() });
    let session = client.session().await;
    turn(&mut client, &session, "hello", &[&[text("Yes.")]]).await;
    spoil(&fixture.store());
    for _ in 0..3 {
        turn(&mut client, &session, "more", &[&[text("Yes.")]]).await;
    }
    set_mode(&mut client, &session, mode).await;
    let write = call("w", "write_file", json!({ "path": "a.txt", "content": "x" }));
    turn(&mut client, &session, "write", &[&[write], &[text("Done.")]]).await;
    let is_written = client.cwd().join("a.txt").exists();
    let list = client.call("session/list", json!({})).await;
    client.end().await;
    (is_written, list)
}

#[tokio::test]
async fn store_that_is_spoiled_while_it_is_open_ends_no_session() {
    let truncate =
        |path: &Path| std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
    let randomise = |path: &Path| {
        let length = usize::try_from(std::fs::metadata(path).unwrap().len()).unwrap();
        let mut state = 7_u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_be_bytes()[0]
        });
        let noise: Vec<u8> = noise.take(length).collect();
        std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all(&noise).unwrap();
    };
    let replace = |path: &Path| {
        std::fs::remove_file(path).unwrap();
        Connection::open(path).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    };
    let folder = |path: &Path| {
        std::fs::remove_file(path).unwrap();
        std::fs::create_dir(path).unwrap();
    };
    // The log beside a file that is spoiled has the rows.
    let spoils: [(&str, Spoil<'_>, bool); 4] = [
        ("truncated", &truncate, true),
        ("random", &randomise, true),
        ("replaced", &replace, false),
        ("a folder", &folder, false),
    ];
    for (name, spoil, is_listed) in spoils {
        // Tightening holds, whatever the store does.
        let (is_written, list) = write_in("plan", spoil).await;
        assert!(!is_written, "{name}");
        assert_eq!(
            list["result"]["sessions"].as_array().map(Vec::len),
            is_listed.then_some(1),
            "{name}: {list}"
        );
        let error = (!is_listed).then_some("the stored session cannot be read");
        assert_eq!(list["error"]["message"].as_str(), error, "{name}");
    }
    let keep = |_: &Path| {};
    for (mode, is_allowed) in [("plan", false), ("code", true)] {
        let (is_written, list) = write_in(mode, &keep).await;
        assert_eq!(
            (is_written, list["result"]["sessions"].as_array().map(Vec::len)),
            (is_allowed, Some(1)),
            "{list}"
        );
    }
}
