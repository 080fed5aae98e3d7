//! Signed audit logs, and files of `modegate audit --export`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rusqlite::Connection;
use serde_json::Value;

use super::sessions::CliFixture;

const PROMPT: &str = "create a.txt with text";

/// A home with a key and a session that wrote a file.
struct SignedSession {
    home: CliFixture,
    id: String,
    key: String,
}

impl SignedSession {
    fn new() -> Self {
        let home = CliFixture::new();
        let (code, key, errors) = home.run(&["audit", "--public-key"]);
        assert_eq!(code, 0, "{errors}");
        let (code, _, errors) = home.run(&["--model", "offline", "--mode", "code", "-p", PROMPT]);
        assert_eq!(code, 0, "{errors}");
        let id = home.only_session()["id"].as_str().unwrap().to_owned();
        Self { home, id, key: key.trim().to_owned() }
    }

    fn export(&self, arguments: &[&str]) -> PathBuf {
        let file = self.home.path("evidence.json");
        let export = ["audit", &self.id, "--export", file.to_str().unwrap()];
        let (code, _, errors) = self.home.run(&[&export, arguments].concat());
        assert_eq!(code, 0, "{errors}");
        file
    }

    /// Changes the store, as anyone with access to the file can.
    fn change(&self, sql: &str) {
        Connection::open(self.home.path("store.db")).unwrap().execute_batch(sql).unwrap();
    }

    fn audit(&self) -> Value {
        let (_, report, errors) = self.home.run(&["audit", &self.id, "--json"]);
        serde_json::from_str(&report).unwrap_or_else(|_| panic!("{errors}"))
    }
}

/// Audits a file with another home and without a store, as on another machine.
fn audit_elsewhere(file: &Path, arguments: &[&str]) -> (i32, String, String) {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .arg("audit")
        .arg(file)
        .args(arguments)
        .current_dir(home.path())
        .env("HOME", home.path())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn session_is_signed_up_to_its_last_entry_once_there_is_a_key() {
    let session = SignedSession::new();
    let report = session.audit();
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(report["signatures"]["keys"], serde_json::json!([session.key]));
    assert_eq!(report["signatures"]["lastEntry"], report["head"]["length"]);
    let (unsigned, id, _) = CliFixture::with_session();
    let (_, report, _) = unsigned.run(&["audit", &id, "--json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        (&report["ok"], &report["signatures"]["keys"]),
        (&true.into(), &serde_json::json!([])),
        "without a key"
    );
}

/// Without signatures, the first of these changes is not detected.
#[test]
fn signatures_reveal_a_shortened_and_a_replaced_log() {
    for (sql, expected) in [
        ("DELETE FROM chain WHERE number = (SELECT max(number) FROM chain)", "and is missing"),
        ("UPDATE signed_heads SET hash = iif(hash LIKE 'f%', '0', 'f') || substr(hash, 2)", "is not valid"),
        ("UPDATE signed_heads SET at = at + 1", "is not valid"),
        ("UPDATE signed_heads SET key = 'ed25519:AAAA'", "is not valid"),
        ("UPDATE signed_heads SET length = length + 40", "is not valid"),
    ] {
        let session = SignedSession::new();
        session.change(sql);
        let findings = session.audit()["findings"].to_string();
        assert!(findings.contains(expected), "{sql}: {findings}");
    }
    let unsigned = SignedSession::new();
    unsigned.change("DELETE FROM signed_heads");
    assert_eq!(unsigned.audit()["ok"], true, "the store alone does not say that it was signed");
    let (code, text, _) = unsigned.home.run(&["audit", &unsigned.id, "--key", &unsigned.key]);
    assert!(code == 1 && text.contains("no entry is signed with the key"), "{text}");
}

#[test]
fn exported_file_is_verified_without_the_store() {
    let session = SignedSession::new();
    let file = session.export(&[]);
    let (code, text, errors) = audit_elsewhere(&file, &["--key", &session.key]);
    assert_eq!(code, 0, "{text}{errors}");
    for part in ["sealed by ed25519:", "signed   up to entry", "\nok ", &session.id] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (_, json, _) = audit_elsewhere(&file, &["--json"]);
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["ok"], &report["calls"]), (&true.into(), &1.into()), "{report}");
    assert_eq!(report["file"]["sealedBy"], session.key.as_str());
    assert!(!std::fs::read_to_string(&file).unwrap().contains(PROMPT), "no prompts without --with-events");
}

#[test]
fn changed_file_is_refused() {
    let session = SignedSession::new();
    let text = std::fs::read_to_string(session.export(&[])).unwrap();
    let other = SignedSession::new();
    let forged = std::fs::read_to_string(other.export(&[])).unwrap();
    let changed = session.home.path("changed.json");
    for (text, expected) in [
        (text.replacen("\"modeColumn\":\"code\"", "\"modeColumn\":\"plan\"", 1), "its seal does not match"),
        (text.replacen("{\"version\"", "{ \"version\"", 1), "its seal does not match"),
        (text.replace(&session.key, &other.key), "its seal does not match"),
        (text.replacen("evidence 1", "evidence 2", 1), "use a newer one"),
        (text.replacen("\"format\"", "\"extra\":1,\"format\"", 1), "unknown field"),
        (text[..text.len() / 2].to_owned(), "it is no file of `modegate audit --export`"),
        ("{}".to_owned(), "it is no file of `modegate audit --export`"),
    ] {
        assert_ne!(std::fs::read_to_string(session.home.path("evidence.json")).unwrap(), text);
        std::fs::write(&changed, &text).unwrap();
        let (code, out, errors) = audit_elsewhere(&changed, &[]);
        assert!(code == 1 && errors.contains(expected), "{expected}: {out}{errors}");
    }
    // A whole file of another key is only found by who knows the key.
    std::fs::write(&changed, forged).unwrap();
    assert_eq!(audit_elsewhere(&changed, &[]).0, 0);
    let (code, text, _) = audit_elsewhere(&changed, &["--key", &session.key]);
    assert!(code == 1 && text.contains("the file is sealed by another key"), "{text}");
}

#[test]
fn events_are_in_the_file_if_requested() {
    let session = SignedSession::new();
    let file = session.export(&["--with-events"]);
    assert!(std::fs::read_to_string(&file).unwrap().contains(PROMPT));
    assert_eq!(audit_elsewhere(&file, &["--key", &session.key]).0, 0);
    let (code, _, errors) = session.home.run(&["audit", &session.id, "--export", file.to_str().unwrap()]);
    assert!(code == 1 && errors.contains("exists already"), "{errors}");
}

#[test]
fn key_is_private_and_read_by_no_tool() {
    let session = SignedSession::new();
    let key = session.home.path(".config/modegate/evidence-key.pem");
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let script = session.home.path("read.jsonl");
    let lines = [
        serde_json::json!({ "tool_call": { "id": "r", "name": "read_file", "arguments": { "path": key } } }),
        serde_json::json!({ "stop": "done" }),
        serde_json::json!({ "stop": "done" }),
    ];
    std::fs::write(&script, lines.map(|line| format!("{line}\n")).concat()).unwrap();
    let model = format!("scripted:{}", script.display());
    let add = key.parent().unwrap().to_str().unwrap();
    let allow = session.home.run(&["permissions", "allow", &format!("read_file({add}/**)")]);
    assert_eq!(allow.0, 0, "{}", allow.2);
    let (_, _, errors) = session.home.run(&["--model", &model, "--mode", "code", "-p", "read it"]);
    assert!(errors.contains("belongs to Modegate: no tool reads or changes it"), "{errors}");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, _, errors) = session.home.run(&["--model", "offline", "--mode", "plan", "-p", "look"]);
    assert!(code == 2 && errors.contains("chmod 600"), "{code} {errors}");
}

#[test]
fn settings_choose_whether_and_with_which_key_logs_are_signed() {
    let session = SignedSession::new();
    let settings = session.home.path(".config/modegate/config.yaml");
    let other = session.home.path("other.pem");
    let text = format!("evidence: {{sign: true, key_file: {}}}\n", other.display());
    for (settings_text, keys) in [("evidence: {sign: false}\n", 0), (&text, 1)] {
        std::fs::write(&settings, settings_text).unwrap();
        session.change("DELETE FROM signed_heads");
        session.home.run(&["--resume", &session.id, "--model", "offline", "-p", "create b.txt with text"]);
        let signatures = &session.audit()["signatures"];
        assert_eq!(signatures["keys"].as_array().unwrap().len(), keys, "{signatures}");
    }
    assert!(other.exists());
}
