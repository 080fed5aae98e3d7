//! `modegate modes import` in the binary (G46, G47).

use std::fs;
use std::path::Path;
use std::process::Command;

use rusqlite::Connection;

const SCHEMA: &str = include_str!("../../../docs/mode-database/schema.sql");
const SEED: &str = include_str!("../../../docs/mode-database/seed.sql");

/// Runs `modegate modes` in a home. Returns the exit code, stdout and stderr.
pub(crate) fn modes(home: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
    command.arg("modes").args(arguments).current_dir(home).env_clear().env("HOME", home);
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

/// A home with a database `c.db` made by these statements.
fn home(statements: &str) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    Connection::open(home.path().join("c.db")).unwrap().execute_batch(statements).unwrap();
    home
}

/// Stores a printed modes file as the user's file.
pub(crate) fn install(home: &Path, file: &str) {
    fs::create_dir_all(home.join(".config/modegate")).unwrap();
    fs::write(home.join(".config/modegate/modes.yaml"), file).unwrap();
}

#[test]
fn documented_schema_and_seed_can_be_imported() {
    let home = home(&format!("{SCHEMA}{SEED}{SCHEMA}{SEED}"));
    let (code, file, errors) = modes(home.path(), &["import", "c.db"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    install(home.path(), &file);
    let expected = (0, "6 modes, 0 rules, 0 servers: fine\n".into(), String::new());
    assert_eq!(modes(home.path(), &["check"]), expected, "{file}");
}

#[test]
fn imported_rows_extend_ask_and_empty_lists_allow_nothing() {
    let home = home(
        "CREATE TABLE Agent_Modes (extra INTEGER, NAME TEXT, prompt TEXT, allowed_tools TEXT);
        INSERT INTO agent_modes VALUES (1, ' Chat ', 'Be ''short'': yes.', ' todo , read_*,'), (2, 'all', NULL, NULL),
            (3, 'none', '', ''), (4, 'plan', NULL, NULL);",
    );
    let (code, file, errors) = modes(home.path(), &["import", "c.db"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let expected = r#"# Written by `modegate modes import`.
modes:
  - id: "all"
    name: "all"
    extends: ask
  - id: "chat"
    name: "Chat"
    extends: ask
    tools: {allow: ["todo","read_*"]}
    prompt: |
      Be 'short': yes.
  - id: "none"
    name: "none"
    extends: ask
    tools: {allow: []}
  - id: "plan"
    name: "plan"
    extends: plan
"#;
    assert_eq!(file, expected);
    install(home.path(), &file);
    let explained = |mode: &str, tool: &str| modes(home.path(), &["explain", mode, tool]).1;
    assert!(explained("chat", "read_file").contains("allow"), "{}", explained("chat", "read_file"));
    assert!(explained("all", "write_file").contains("ask"), "{}", explained("all", "write_file"));
    for (mode, tool) in [("none", "todo"), ("chat", "write_file"), ("plan", "write_file")] {
        assert!(explained(mode, tool).contains("den"), "{}", explained(mode, tool));
    }
    // Names are compared in any case. Only the named rows are checked.
    let (code, one, _) = modes(home.path(), &["import", "c.db", "CHAT"]);
    assert_eq!((code, one.matches("- id").count()), (0, 1));
}

#[test]
fn invalid_rows_are_named_and_nothing_is_printed() {
    for (row, reason) in [
        ("('two words', NULL, NULL)", "row \"two words\": \"two words\" is not a valid id"),
        ("('undo', NULL, NULL)", "row \"undo\": \"undo\" is reserved for the slash command /undo"),
        ("('a: b' || char(10) || 'default_mode: code', NULL, NULL)", "is not a valid id"),
        ("('Build', NULL, NULL)", "row \"Build\": \"build\" is already an alias of \"code\""),
        ("('bad', NULL, 'a, [')", "row \"bad\": "),
        ("('bad', x'00ff', NULL)", "Invalid column type Blob"),
        ("(' FINE', NULL, NULL)", "mode \"fine\" is defined twice"),
    ] {
        let home = home(&format!("{SCHEMA}INSERT INTO agent_modes VALUES ('fine', 'x', NULL), {row}"));
        let (code, printed, errors) = modes(home.path(), &["import", "c.db"]);
        assert_eq!((code, printed.as_str()), (1, ""), "{row}");
        assert!(errors.contains("c.db: ") && errors.contains(reason), "{row}: {errors}");
    }
}

#[test]
fn rows_without_a_name_are_skipped_and_reported() {
    for nameless in ["NULL", "''", "' '"] {
        let rows = format!("({nameless}, 'Be short.' || char(10) || 'Always.', NULL), ('fine', 'x', NULL)");
        let home = home(&format!(
            "CREATE TABLE agent_modes (name, prompt, allowed_tools); INSERT INTO agent_modes VALUES {rows}"
        ));
        let (code, printed, errors) = modes(home.path(), &["import", "c.db"]);
        assert_eq!((code, printed.matches("- id").count()), (0, 1), "{printed}");
        assert_eq!(errors, "modegate: c.db: skipped a row without a name, with the prompt \"Be short.\"\n");
    }
}

#[test]
fn import_rejects_other_files_and_names_the_format() {
    let expected = "expected a SQLite database with a table agent_modes (name, prompt, allowed_tools)";
    let home = home("CREATE TABLE other (name TEXT)");
    fs::write(home.path().join("text"), "modes: []\n").unwrap();
    let errors = |file: &str| {
        let (code, printed, errors) = modes(home.path(), &["import", file]);
        assert_eq!((code, printed.as_str()), (1, ""), "{errors}");
        errors
    };
    assert!(errors("missing.db").contains("No such file"));
    assert!(!home.path().join("missing.db").exists());
    for (file, reason) in [(".", "not a regular file"), ("text", "not a database"), ("c.db", "no such table")]
    {
        let text = errors(file);
        assert!(text.contains(reason) && text.contains(expected), "{file}: {text}");
    }
    assert_eq!(fs::read_to_string(home.path().join("text")).unwrap(), "modes: []\n");
    let statements = format!("DROP TABLE other; {SCHEMA}");
    Connection::open(home.path().join("c.db")).unwrap().execute_batch(&statements).unwrap();
    assert!(errors("c.db").contains("the table agent_modes is empty"));
    Connection::open(home.path().join("c.db")).unwrap().execute_batch(SEED).unwrap();
    let (_, _, unknown) = modes(home.path(), &["import", "c.db", "nope"]);
    assert!(unknown.contains("unknown mode \"nope\"; valid: [\"Explain\""), "{unknown}");
}
