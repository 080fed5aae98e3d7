//! Modes out of a catalogue and into one, with the real binary (G46, G47).

use std::fs;
use std::path::Path;
use std::process::Command;

use rusqlite::Connection;

const SCHEMA: &str = include_str!("../../docs/catalogue/schema.sql");
const SEED: &str = include_str!("../../docs/catalogue/seed.sql");

/// Runs `modegate modes` for a user in their home.
fn modes(home: &Path, arguments: &[&str]) -> (i32, String, String) {
    modes_in(home, home, arguments)
}

/// The same in a folder: exit code, stdout, stderr.
fn modes_in(folder: &Path, home: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
    command.arg("modes").args(arguments).current_dir(folder).env_clear().env("HOME", home);
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

/// A home whose user has these modes.
fn home(own: &str) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir_all(home.path().join(".config/modegate")).unwrap();
    fs::write(home.path().join(".config/modegate/modes.yaml"), own).unwrap();
    home
}

/// A catalogue made of statements, as any SQLite shell makes it.
fn catalogue(home: &Path, statements: &str) {
    Connection::open(home.join("c.db")).unwrap().execute_batch(statements).unwrap();
}

/// The rows of a catalogue: name, prompt, list, definition.
fn rows(home: &Path) -> Vec<[Option<String>; 4]> {
    let connection = Connection::open(home.join("c.db")).unwrap();
    let mut statement = connection.prepare("SELECT * FROM agent_modes ORDER BY rowid").unwrap();
    let rows =
        statement.query_map([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?])).unwrap();
    rows.map(Result::unwrap).collect()
}

const OWN: &str = r#"
modes:
  - {id: code, extends: code, permission: ask, prompt: "  Indented,\nand not: #1"}
  - id: docs
    name: Docs, or "words"
    extends: plan
    access: edit
    exits_to: review
    tools: {allow: ["read_*", "{write,edit}_file"], deny: [think]}
    write_paths: ["docs/**"]
  - {id: review, extends: plan, exits_to: docs, tools: {allow: []}, model: openai/gpt, thinking: high, max_steps: 7}
"#;

#[test]
fn modes_that_are_exported_and_imported_are_the_same_modes() {
    let before = home(OWN);
    let (code, said, errors) = modes(before.path(), &["export", "c.db"]);
    assert_eq!((code, said.as_str()), (0, "c.db: code, docs, review written\n"), "{errors}");
    let written = rows(before.path());
    let list = |at: usize| written[at][2].as_deref();
    assert_eq!((list(0), list(1), list(2)), (None, Some("read_*,{write,edit}_file"), Some("")));

    let (code, file, errors) = modes(before.path(), &["import", "c.db"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let after = home(&file);
    assert_eq!(modes(after.path(), &["check"]).0, 0, "{file}");
    for mode in ["code", "docs", "review"] {
        assert_eq!(modes(after.path(), &["show", mode]), modes(before.path(), &["show", mode]));
    }
    assert_eq!(modes(after.path(), &["export", "c.db"]).0, 0);
    assert_eq!(rows(after.path()), written);
}

#[test]
fn an_export_replaces_modes_of_the_same_name_and_leaves_the_others() {
    let home = home("modes: [{id: mine, extends: plan}]");
    let foreign = "CREATE TABLE agent_modes (name TEXT PRIMARY KEY, prompt TEXT, allowed_tools TEXT);
        INSERT INTO agent_modes VALUES ('other', 'p', 'a'), (' MINE', 'old', NULL), ('Mine', 'old', NULL);";
    catalogue(home.path(), foreign);
    assert_eq!(modes(home.path(), &["export", "c.db"]), (0, "c.db: mine written\n".into(), String::new()));
    let found = rows(home.path());
    assert_eq!(found.iter().map(|row| row[0].as_deref().unwrap()).collect::<Vec<_>>(), ["other", "mine"]);
    assert_eq!(found[1][3], Some(modes(home.path(), &["show", "mine"]).1));
}

#[test]
fn what_cannot_be_exported_is_said_and_no_catalogue_is_made() {
    let own = home("modes: [{id: a, extends: plan, exits_to: b}, {id: b, extends: ask}]");
    let project = own.path().join("work");
    fs::create_dir_all(project.join(".modegate")).unwrap();
    let theirs = "modes: [{id: theirs, extends: plan, access: full}]";
    fs::write(project.join(".modegate/modes.yaml"), theirs).unwrap();
    let none = home("");
    for (home, mode, reason) in [
        (&none, None, "no modes of your own to export; the built-in ones can be named: ask, plan, code"),
        (&own, Some("nope"), "unknown mode \"nope\""),
        (&own, Some("a"), "row \"a\": unknown mode \"b\""),
        (&own, Some("theirs"), "a project's mode and can do no more than \"plan\""),
    ] {
        let folder = if home.path() == own.path() { &project } else { home.path() };
        let arguments: Vec<&str> = ["export", "c.db"].into_iter().chain(mode).collect();
        let (code, said, errors) = modes_in(folder, home.path(), &arguments);
        assert_eq!((code, said.as_str()), (1, ""), "{errors}");
        assert!(errors.contains(reason), "{errors}");
        assert!(!folder.join("c.db").exists());
    }
    let said = "c.db: a, b written\n";
    assert_eq!(modes_in(&project, own.path(), &["export", "c.db"]).1, said, "a project's modes stay");
    assert_eq!(modes(none.path(), &["export", "c.db", "Architect"]).1, "c.db: plan written\n");
    fs::write(none.path().join(".config/modegate/modes.yaml"), "modes: [{id: a}]").unwrap();
    let (code, _, errors) = modes(none.path(), &["export", "c.db", "ask"]);
    assert!(
        code == 1 && errors.contains("nothing is exported while a file of modes cannot be used"),
        "{errors}"
    );
    assert_eq!(rows(none.path()).len(), 1);
}

#[test]
fn the_documented_schema_and_seed_load_in_a_plain_connection_and_can_be_imported() {
    let home = home("");
    catalogue(home.path(), &format!("{SCHEMA}{SEED}{SCHEMA}{SEED}"));
    let (code, file, errors) = modes(home.path(), &["import", "c.db"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let begins = "# Written by `modegate modes import`.\nmodes:\n  - id: docs\n    name: \"Docs\"\n";
    assert!(file.starts_with(begins), "{file}");
    let after = self::home(&file);
    assert_eq!(
        modes(after.path(), &["check"]),
        (0, "7 modes, 0 rules, 0 servers: fine\n".into(), String::new())
    );
    // The seed's definition is written as ours are, so that it is exported unchanged.
    let definition = rows(home.path())
        .into_iter()
        .find_map(|[name, .., definition]| definition.filter(|_| name.unwrap() == "docs"));
    assert_eq!(modes(after.path(), &["show", "docs"]).1, definition.unwrap());
}

#[test]
fn a_row_of_another_tool_asks_before_each_change_and_an_empty_list_allows_nothing() {
    let home = home("");
    let foreign = "CREATE TABLE Agent_Modes (extra INTEGER, NAME TEXT, prompt TEXT, allowed_tools TEXT);
        INSERT INTO agent_modes VALUES (1, ' Chat ', 'Be ''short'': yes.', ' think , read_*,'), (2, 'all', NULL, NULL),
            (3, 'none', '', ''), (4, 'plan', NULL, NULL), (5, NULL, 'lost', NULL), (6, '  ', 'lost', NULL);";
    catalogue(home.path(), foreign);
    let (code, file, errors) = modes(home.path(), &["import", "c.db"]);
    assert_eq!((code, errors.as_str()), (0, "modegate: c.db: rows without a name are left out: 2\n"));
    let expected = r#"# Written by `modegate modes import`.
modes:
  - id: "all"
    name: "all"
    extends: ask
  - id: "chat"
    name: "Chat"
    extends: ask
    tools: {allow: ["think","read_*"]}
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
    let after = self::home(&file);
    let explained = |mode: &str, tool: &str| modes(after.path(), &["explain", mode, tool]).1;
    let server = explained("plan", "mcp__x__y");
    assert!(server.contains("denied by access") && server.contains("only read: allowed in plan"), "{server}");
    assert!(
        server.contains("says that it only reads: asked for in plan: only the server x says"),
        "{server}"
    );
    assert!(explained("chat", "read_file").contains("allow"), "{}", explained("chat", "read_file"));
    assert!(explained("all", "write_file").contains("ask"), "{}", explained("all", "write_file"));
    for (mode, tool) in [("none", "think"), ("chat", "write_file"), ("plan", "write_file")] {
        assert!(explained(mode, tool).contains("den"), "{}", explained(mode, tool));
    }
    // Names are compared in any case, and what is not named is not looked at.
    let (code, one, _) = modes(home.path(), &["import", "c.db", "CHAT"]);
    assert_eq!((code, one.matches("- id").count()), (0, 1));
}

#[test]
fn what_cannot_be_imported_is_named_with_its_reason_and_nothing_is_written() {
    for (row, reason) in [
        ("('bad', NULL, NULL, 'id: bad\nacess: edit')", "row \"bad\": definition:2:1: unknown field `acess`"),
        ("('bad', NULL, NULL, '')", "row \"bad\": definition"),
        (
            "('bad', NULL, NULL, 'id: good\naccess: edit')",
            "row \"bad\": its definition is that of another mode, \"good\"",
        ),
        (
            "('bad', NULL, NULL, 'id: bad\nextends: fine')",
            "row \"bad\": definition:2:10: unknown mode \"fine\"",
        ),
        (
            "('bad', NULL, NULL, 'id: bad\naccess: edit\nexits_to: gone')",
            "row \"bad\": unknown mode \"gone\"",
        ),
        (
            "('bad', NULL, NULL, 'id: bad\naccess: edit\nshell: full')",
            "row \"bad\": definition:1:5: mode \"bad\": `shell: full` needs",
        ),
        ("('two words', NULL, NULL, NULL)", "row \"two words\": \"two words\" is no id"),
        ("('a: b' || char(10) || 'default_mode: code', NULL, NULL, NULL)", "is no id"),
        ("('Build', NULL, NULL, NULL)", "row \"Build\": \"build\" stands for \"code\" already"),
        ("('bad', NULL, 'a, [', NULL)", "row \"bad\": "),
        ("('bad', x'00ff', NULL, NULL)", "Invalid column type Blob"),
        ("(' FINE', NULL, NULL, NULL)", "mode \"fine\" is there twice"),
    ] {
        let home = home("");
        catalogue(
            home.path(),
            &format!("{SCHEMA}INSERT INTO agent_modes VALUES ('fine', 'x', NULL, NULL), {row}"),
        );
        for arguments in [vec!["import", "c.db"], vec!["import", "c.db", "--output", "new.yaml"]] {
            let (code, said, errors) = modes(home.path(), &arguments);
            assert_eq!((code, said.as_str()), (1, ""), "{row}");
            assert!(errors.contains("c.db: ") && errors.contains(reason), "{row}: {errors}");
            assert!(!home.path().join("new.yaml").exists());
        }
    }
}

#[test]
fn a_file_that_is_no_catalogue_is_left_alone_and_what_is_expected_is_said() {
    let home = home("modes: [{id: mine, extends: plan}]");
    let path = home.path().join("c.db");
    let expected = "a catalogue is a SQLite database with a table agent_modes (name, prompt, allowed_tools";
    let said = |arguments: &[&str]| {
        let (code, said, errors) = modes(home.path(), arguments);
        assert_eq!((code, said.as_str()), (1, ""), "{errors}");
        errors
    };
    assert!(said(&["import", "c.db"]).contains("there is no such file"));
    assert!(!path.exists());
    assert!(said(&["import", "."]).contains("it is a folder"));
    fs::write(&path, "modes: []\n").unwrap();
    for command in ["import", "export"] {
        let errors = said(&[command, "c.db"]);
        assert!(errors.contains("it is no database") && errors.contains(expected), "{errors}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "modes: []\n");
    fs::remove_file(&path).unwrap();
    catalogue(home.path(), "CREATE TABLE agent_modes (name TEXT, prompt TEXT)");
    let before = fs::read(&path).unwrap();
    for command in ["import", "export"] {
        let errors = said(&[command, "c.db"]);
        assert!(errors.contains("no column allowed_tools") && errors.contains(expected), "{errors}");
    }
    assert_eq!(fs::read(&path).unwrap(), before);
    catalogue(home.path(), "DROP TABLE agent_modes");
    assert!(said(&["import", "c.db"]).contains("it has no table agent_modes"));
    catalogue(home.path(), SCHEMA);
    assert!(said(&["import", "c.db"]).contains("there is no mode in it"));
    catalogue(home.path(), SEED);
    assert!(
        said(&["import", "c.db", "nope"])
            .contains("there is no mode \"nope\"; those there are [\"docs\", \"Explain\"")
    );
}

#[test]
fn an_import_writes_a_new_file_and_overwrites_none() {
    let home = home("");
    catalogue(home.path(), &format!("{SCHEMA}{SEED}"));
    let file = home.path().join("new.yaml");
    fs::write(&file, "precious").unwrap();
    let (code, said, errors) = modes(home.path(), &["import", "c.db", "--output", "new.yaml"]);
    assert_eq!((code, said.as_str()), (1, ""));
    assert!(errors.contains("new.yaml: ") && errors.contains("exists"), "{errors}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    // With nothing in its place it is written, and it is what is printed otherwise.
    fs::remove_file(&file).unwrap();
    let (code, said, _) = modes(home.path(), &["import", "c.db", "--output", "new.yaml"]);
    assert_eq!((code, said.as_str()), (0, "new.yaml: 4 modes written\n"));
    assert_eq!(fs::read_to_string(&file).unwrap(), modes(home.path(), &["import", "c.db"]).1);
    assert_eq!(modes(home.path(), &["check", "new.yaml"]).0, 0);
}
