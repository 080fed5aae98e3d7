//! Failing writes and renames of the store's files, and a store that is replaced or corrupted while it is open.
//!
//! `FAULTS=all cargo test --test it -- store_faults` tries each write.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use modegate::store::check::{self, Soundness};
use rusqlite::Connection;
use serde_json::{Value, json};

use super::strace::{FaultFixture, FaultedRun, each_call};
use crate::sessions::load::{StoreFixture, call, set_mode, text, turn};
use crate::support::Setup;

struct StoreFaultFixture(FaultFixture);

impl StoreFaultFixture {
    fn new() -> Self {
        Self(FaultFixture::new("write_file", &json!({ "path": "a.txt", "content": "written\n" })))
    }

    fn store(&self) -> PathBuf {
        self.0.path(".local/share/modegate/modegate.db")
    }

    /// Runs one prompt. The fault affects only the store's files.
    fn run(&self, fault: Option<&str>) -> FaultedRun {
        let _ = std::fs::remove_file(self.0.path("work/a.txt"));
        let path = |ending| PathBuf::from(format!("{}{ending}", self.store().display()));
        let files = ["", "-wal", "-journal"].map(path);
        self.0.prompt(&files, fault)
    }

    /// Salvages the store, although it is sound.
    fn salvage(&self, fault: &str) -> FaultedRun {
        self.0.run(&["store", "salvage", "--force"], &[], Some(fault))
    }

    /// Returns the entries of the store's folder, with the contents of files.
    fn files(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let entries = std::fs::read_dir(self.store().parent().unwrap()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.map(|path| (path.clone(), std::fs::read(path).ok())).collect()
    }

    /// Returns true if the store has a change that can be undone.
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

/// Checks that a run with a fault records everything, or is an error that names the missing parts and refuses the
/// change. Returns false if the fault did not happen.
fn check_fault(fault: &str) -> bool {
    let fixture = StoreFaultFixture::new();
    let FaultedRun { code, result, errors, is_hit } = fixture.run(Some(fault));
    let report = format!("{fault}: code {code}, {result}, {errors}");
    assert!(!errors.contains("panicked") && !errors.contains("ERROR"), "{report}");
    let is_changed = fixture.0.path("work/a.txt").exists();
    if code == 0 {
        assert!(result["error"].is_null() && is_changed && fixture.has_change(), "{report}");
    } else if code == 3 {
        // The store failed when the call was about to change the file, and works again at the end of the run.
        assert!(!is_changed && errors.contains("could not be recorded"), "{report}");
        assert_ne!(result["notices"], json!([]), "{report}");
    } else {
        assert_eq!(code, 1, "{report}");
        assert!(
            result["error"].as_str().is_some_and(|error| error.contains("the run is not recorded")),
            "{report}"
        );
        // If the disk fails after the call was recorded, a notice names the loss.
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

#[test]
fn full_disk_at_any_write_is_an_error_or_everything_is_recorded() {
    let hits = each_call(|at| check_fault(&format!("pwrite64,ftruncate:error=ENOSPC:when={at}+")));
    assert!(hits > 5, "the control: only {hits} places");
}

#[test]
fn failing_disk_at_any_write_is_an_error_or_everything_is_recorded() {
    let hits = each_call(|at| check_fault(&format!("pwrite64:error=EIO:when={at}")));
    assert!(hits > 5, "the control: only {hits} places");
    each_call(|at| check_fault(&format!("fdatasync,fsync:error=EIO:when={at}+")));
}

#[test]
fn salvage_loses_no_file_if_a_rename_fails() {
    let fixture = StoreFaultFixture::new();
    assert_eq!(fixture.run(None).code, 0);
    let store = fixture.store();
    let journal = store.with_file_name("modegate.db-journal");
    std::fs::write(&journal, "none").unwrap();
    let before = fixture.files();
    let mut hits = 0;
    while let FaultedRun { code, errors, is_hit: true, .. } =
        fixture.salvage(&format!("/^rename:error=EIO:when={}", hits + 1))
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

    // If restoring the old store fails, too, the error names the files of the old and the new store.
    for (path, content) in &before {
        if let Some(content) = content {
            std::fs::write(path, content).unwrap();
        }
    }
    let FaultedRun { code, errors, .. } = fixture.salvage(&format!("/^rename:error=EIO:when={hits}+"));
    assert!(code == 1 && !store.exists(), "{errors}");
    let words = errors.split([' ', ';', '\n']).map(|word| Path::new(word.trim_end_matches(['.', ','])));
    let paths: Vec<&Path> = words.filter(|path| path.is_absolute() && path.is_file()).collect();
    assert!(paths.iter().any(|path| std::fs::read(path).ok() == before[&store]), "{errors}");
    let new = paths.iter().find(|path| path.ends_with("new.db")).expect(&errors);
    let sessions = check::examine(new, None).unwrap().sessions;
    assert_eq!(sessions, 1, "{errors}");
}

type Damage<'a> = &'a dyn Fn(&Path);

/// Corrupts the store of an open session, changes the mode and writes a file. Returns true if the file was written, and
/// the list of sessions.
async fn write_in(mode: &str, corrupt: Damage<'_>) -> (bool, Value) {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup { mode: "ask", ..Setup::default() });
    let session = client.session().await;
    turn(&mut client, &session, "hello", &[&[text("Yes.")]]).await;
    corrupt(&fixture.store());
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
async fn sessions_survive_corruption_of_an_open_store() {
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
    // The write-ahead log beside a corrupted file has the rows.
    let corruptions: [(&str, Damage<'_>, bool); 4] = [
        ("truncated", &truncate, true),
        ("random", &randomise, true),
        ("replaced", &replace, false),
        ("a folder", &folder, false),
    ];
    for (name, corrupt, is_listed) in corruptions {
        // A tighter mode applies, even if it cannot be recorded.
        let (is_written, list) = write_in("plan", corrupt).await;
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
