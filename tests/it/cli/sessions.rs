//! Commands about stored sessions: `modegate sessions`, `modegate audit`, `--continue`, `--resume`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::headless_output::check_lines;
use crate::support::make_fifo;
#[cfg(target_os = "linux")]
use crate::support::user_terminal::TestTerminal;
use crate::support::waiting::block_until;

/// The last characters of an id, which name the session, too.
fn part(id: &str) -> &str {
    &id[id.len() - 8..]
}

/// A home, a project and a script in which each prompt writes a file.
pub(super) struct CliFixture(tempfile::TempDir);

impl CliFixture {
    pub(super) fn new() -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(fixture.work()).unwrap();
        let write = json!({ "path": "a.txt", "content": "written\n" });
        let lines = [
            json!({ "text": "I write." }),
            json!({ "tool_call": { "id": "w", "name": "write_file", "arguments": write } }),
            json!({ "stop": "done" }),
            json!({ "text": "Done." }),
            json!({ "stop": "done" }),
        ];
        std::fs::write(fixture.path("script.jsonl"), lines.map(|line| format!("{line}\n")).concat()).unwrap();
        fixture
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    pub(super) fn work(&self) -> PathBuf {
        self.path("work")
    }

    pub(super) fn file(&self) -> Option<String> {
        std::fs::read_to_string(self.work().join("a.txt")).ok()
    }

    /// Runs the binary in the project. Returns the exit code, stdout and stderr.
    pub(super) fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        self.run_in(&self.work(), arguments)
    }

    pub(super) fn run_in(&self, folder: &Path, arguments: &[&str]) -> (i32, String, String) {
        let output = self.command(folder, arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let stdout = text(output.stdout);
        check_lines(&stdout);
        (output.status.code().unwrap(), stdout, text(output.stderr))
    }

    fn command(&self, folder: &Path, arguments: &[&str]) -> Command {
        let store = self.path("store.db");
        let store = ["--store", store.to_str().unwrap()];
        let has_store = !["permissions", "schema"].contains(&arguments[0]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
        command.args(arguments).args(if has_store { &store[..] } else { &[] });
        command.current_dir(folder).env("HOME", self.0.path());
        command
    }

    pub(super) fn prompt(&self, arguments: &[&str]) -> (i32, String, String) {
        let model = format!("scripted:{}", self.path("script.jsonl").display());
        self.run(&[&["--model", &model], arguments].concat())
    }

    /// A home with a session in code mode, which wrote the file. Also returns the session's id, and the head of its
    /// audit log that the run printed.
    pub(super) fn with_session() -> (Self, String, String) {
        let fixture = Self::new();
        let (code, _, errors) = fixture.prompt(&["--mode", "code", "-p", "write it"]);
        assert_eq!(code, 0, "{errors}");
        let head =
            errors.lines().find_map(|line| line.strip_prefix("modegate: head of the audit log ")).unwrap();
        let id = fixture.only_session()["id"].as_str().unwrap().to_owned();
        (fixture, id, head.to_owned())
    }

    pub(super) fn only_session(&self) -> Value {
        let (code, listed, errors) = self.run(&["sessions", "list", "--json"]);
        assert_eq!(code, 0, "{errors}");
        let mut lines = listed.lines();
        let session = serde_json::from_str(lines.next().expect("there is one")).unwrap();
        assert_eq!(lines.next(), None);
        session
    }

    /// Number of sessions in a client's list.
    #[cfg(target_os = "linux")]
    fn listed_by_client(&self) -> usize {
        let requests = [
            json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": { "protocolVersion": 1 } }),
            json!({ "jsonrpc": "2.0", "id": 1, "method": "session/list", "params": {} }),
        ];
        let input = self.path("requests.jsonl");
        std::fs::write(&input, requests.map(|request| format!("{request}\n")).concat()).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args(["--model", "offline", "--store"])
            .arg(self.path("store.db"))
            .env("HOME", self.0.path())
            .stdin(std::fs::File::open(input).unwrap())
            .output()
            .unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let mut answers = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let list = answers.find(|answer| answer["id"] == 1).expect("the list is answered");
        list["result"]["sessions"].as_array().unwrap().len()
    }
}

#[test]
fn sessions_without_a_store_are_an_error() {
    let (code, _, errors) = CliFixture::new().run(&["sessions", "list"]);
    assert!(code == 1 && errors.contains("there is no session store yet"), "{errors}");
}

#[test]
fn headless_session_is_listed() {
    let fixture = CliFixture::new();
    let (code, answer, _) = fixture.prompt(&["--mode", "code", "-p", "write it"]);
    let file = fixture.file();
    assert_eq!((code, answer.as_str(), file.as_deref()), (0, "I write.\n\nDone.\n", Some("written\n")));
    let session = fixture.only_session();
    assert_eq!(
        (&session["mode"], &session["title"], &session["turns"]),
        (&json!("code"), &json!("write it"), &json!(1))
    );
}

#[test]
fn audit_compares_the_printed_head() {
    let (fixture, id, head) = CliFixture::with_session();
    let (code, text, _) = fixture.run(&["audit", part(&id), "--head", &head]);
    assert!(
        code == 0 && text.contains("calls that may change something: 1") && text.contains("\nok "),
        "{text}"
    );
    let (code, json, _) = fixture.run(&["audit", &id, "--json", "--head", &"0".repeat(64)]);
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &report["ok"], &report["head"]["hash"]), (1, &json!(false), &json!(head)));
}

#[test]
fn continued_session_keeps_its_id_and_mode() {
    let (fixture, id, _) = CliFixture::with_session();
    let (code, _, errors) = fixture.prompt(&["--continue", "-p", "again"]);
    assert!(code == 0 && errors.contains(&format!("code mode, session {id}")), "{errors}");
    assert_eq!(fixture.only_session()["turns"], 2);
}

#[test]
fn resumed_session_takes_the_mode_of_the_command_line() {
    let (fixture, id, _) = CliFixture::with_session();
    let (code, _, errors) = fixture.prompt(&["--resume", part(&id), "--mode", "plan", "-p", "once more"]);
    assert!(
        errors.contains("plan mode, session") && errors.contains("is not available in plan mode"),
        "{code} {errors}"
    );
    assert_eq!(fixture.only_session()["mode"], "plan");
}

#[test]
fn shown_session_has_its_turns_modes_and_calls() {
    let (fixture, id, _) = CliFixture::with_session();
    fixture.prompt(&["--resume", &id, "--mode", "plan", "-p", "once more"]);
    let (_, shown, _) = fixture.run(&["sessions", "show", part(&id)]);
    for line in [
        "you      write it",
        "-- turn 2 --",
        "mode     code -> plan",
        "tool     Write a.txt",
        "failed   denied (access)",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
}

#[test]
fn set_mode_changes_a_session_that_is_not_open() {
    let fixture = CliFixture::new();
    fixture.prompt(&["--mode", "plan", "-p", "write it"]);
    let session = fixture.only_session();
    let id = session["id"].as_str().unwrap();
    let (code, output, errors) = fixture.run(&["sessions", "set-mode", part(id), "architekt"]);
    assert!(code == 2 && errors.contains("the modes are ask, plan, code"), "{output}{errors}");
    assert_eq!(fixture.only_session()["mode"], "plan");
    let (code, output, _) = fixture.run(&["sessions", "set-mode", part(id), "build"]);
    assert!(code == 0 && output.starts_with(&format!("{id}: code mode; head of the audit log ")), "{output}");
    assert_eq!(fixture.only_session()["mode"], "code");
    let (code, text, _) = fixture.run(&["audit", id]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn exported_page_replaces_no_file() {
    let (fixture, id, _) = CliFixture::with_session();
    fixture.prompt(&["--continue", "-p", "once more"]);
    let page = fixture.path("page.md");
    let export = ["sessions", "export", part(&id), "--output", page.to_str().unwrap()];
    assert_eq!(fixture.run(&export).0, 0);
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.starts_with("# write it\n") && text.contains("## You (turn 2)\n\nonce more\n"), "{text}");
    let (code, _, errors) = fixture.run(&export);
    assert!(code == 1 && errors.contains("page.md exists already: name another file"), "{errors}");
}

#[test]
fn session_is_exported_as_json_lines() {
    let (fixture, id, _) = CliFixture::with_session();
    let (_, lines, _) = fixture.run(&["sessions", "export", part(&id), "--format", "jsonl"]);
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&first["kind"], &first["body"]["content"][0]["text"]),
        (&json!("user_message"), &json!("write it"))
    );
}

#[test]
fn undo_restores_the_state_before_a_turn() {
    let (fixture, id, _) = CliFixture::with_session();
    // Turn 2 writes the same content again. Turn 1 created the file.
    fixture.prompt(&["--continue", "-p", "again"]);
    let (code, output, errors) = fixture.run(&["sessions", "undo", part(&id), "--turn", "1"]);
    assert!(
        code == 0 && output.contains("Undid the changes of turn 1:") && output.contains("a.txt"),
        "{output}{errors}"
    );
    assert_eq!(fixture.file(), None);
    let (code, _, errors) = fixture.run(&["sessions", "undo", part(&id)]);
    assert!(code == 1 && errors.contains("there is nothing to undo"), "{errors}");
}

#[test]
fn cli_finds_lists_deletes_and_prunes_sessions() {
    let fixture = CliFixture::new();
    for prompt in ["one", "two"] {
        fixture.prompt(&["--mode", "plan", "-p", prompt]);
    }
    let (code, _, errors) = fixture.run(&["sessions", "show", "sess_0"]);
    assert!(code == 1 && errors.contains("matches sess_"), "{errors}");
    let (code, _, errors) = fixture.run(&["sessions", "delete", "a"]);
    assert!(code == 1 && errors.contains("too short"), "{errors}");
    let (code, _, errors) = fixture.run(&["sessions", "show", "nothing"]);
    assert!(code == 1 && errors.contains("there is no session \"nothing\""), "{errors}");
    let (_, elsewhere, _) = fixture.run_in(fixture.0.path(), &["sessions", "list"]);
    assert!(elsewhere.contains("No sessions in this directory"), "{elsewhere}");
    let (_, all, _) = fixture.run_in(fixture.0.path(), &["sessions", "list", "--all"]);
    assert_eq!(all.lines().count(), 2, "{all}");
    let newest = all.split_whitespace().next().unwrap().to_owned();
    assert!(all.lines().next().unwrap().contains("two"), "{all}");
    let (code, _, errors) = fixture.run_in(fixture.0.path(), &["--continue", "-p", "x"]);
    assert!(code == 1 && errors.contains("no session to continue in this directory"), "{errors}");

    let (_, text, _) = fixture.run(&["sessions", "prune", "--older-than", "1h"]);
    assert_eq!(text, "0 sessions deleted\n");
    let (_, text, _) = fixture.run(&["sessions", "prune", "--older-than", "0h", "--dry-run"]);
    assert!(text.ends_with("2 sessions would be deleted\n"), "{text}");
    assert_eq!(fixture.run(&["sessions", "delete", &newest]).0, 0);
    let prune = ["sessions", "prune", "--older-than", "0h"];
    let (code, text, errors) = fixture.run(&prune);
    assert!(
        code == 2 && errors.contains("add --yes") && text.contains("would delete sess_"),
        "{text}{errors}"
    );
    let (_, text, _) = fixture.run_in(fixture.0.path(), &[&prune[..], &["--yes"]].concat());
    assert_eq!(text, "0 sessions deleted\n", "it is of another directory");
    let (_, text, _) = fixture.run_in(fixture.0.path(), &[&prune[..], &["--yes", "--all"]].concat());
    assert!(text.starts_with("deleted sess_") && text.ends_with("1 session deleted\n"), "{text}");
    let (code, _, errors) = fixture.run(&["sessions", "prune", "--older-than", "soon"]);
    assert!(code == 2 && errors.contains("a time such as 12h, 30d or 8w"), "{errors}");
    let (_, all, _) = fixture.run(&["sessions", "list", "--all"]);
    assert_eq!(all, "No sessions. `modegate -p \"TEXT\"` begins one.\n");
}

#[cfg(target_os = "linux")]
#[test]
fn delete_asks_in_a_terminal_and_names_the_title() {
    let fixture = CliFixture::new();
    for prompt in ["one", "two", "three"] {
        fixture.prompt(&["--mode", "plan", "-p", prompt]);
    }
    let delete = |options: &[&str]| {
        TestTerminal::start(&fixture.command(&fixture.work(), &[&["sessions", "delete"], options].concat()))
    };
    for (answer, outcome) in [("n", "nothing was deleted"), ("y", "deleted sess_")] {
        let mut terminal = delete(&["last"]);
        let listed = terminal.wait_for("Delete 1 session permanently? [y/N] ");
        assert!(listed.starts_with("would delete sess_") && listed.ends_with("  three\r\n"), "{listed}");
        terminal.line(answer);
        terminal.wait_for(outcome);
        assert!(terminal.end().success());
    }
    // The controls: no question with the option, or without a terminal.
    let mut terminal = delete(&["last", "--yes"]);
    assert!(terminal.end().success() && !terminal.has_shown("[y/N]"));
    let (code, text, _) = fixture.run(&["sessions", "delete", "last"]);
    assert!(code == 0 && text.starts_with("deleted sess_") && text.ends_with("  one\n"), "{text}");
    let (_, all, _) = fixture.run(&["sessions", "list", "--all"]);
    assert_eq!(all, "No sessions. `modegate -p \"TEXT\"` begins one.\n");
}

#[cfg(unix)]
#[test]
fn reading_commands_leave_foreign_files_as_they_are() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = CliFixture::new();
    let store = fixture.path("store.db");
    let database = fixture.path("other.db");
    rusqlite::Connection::open(&database).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let foreign = std::fs::read(database).unwrap();
    let cases =
        [(b"notes".to_vec(), "file is not a database"), (foreign, "it is a database of another program")];
    let readable = || std::fs::set_permissions(&store, PermissionsExt::from_mode(0o644)).unwrap();
    let rights = || std::fs::metadata(&store).unwrap().permissions().mode() & 0o777;
    for (before, reason) in cases {
        std::fs::write(&store, &before).unwrap();
        readable();
        let (code, _, errors) = fixture.run(&["sessions", "list"]);
        assert!(code == 1 && errors.contains(reason), "{errors}");
        assert_eq!((rights(), std::fs::read(&store).unwrap() == before), (0o644, true), "{reason}");
        std::fs::remove_file(&store).unwrap();
    }
    make_fifo(&store);
    readable();
    let (code, _, errors) = fixture.run(&["sessions", "list"]);
    assert!(code == 1 && errors.contains("it is not a file"), "{errors}");
    assert_eq!(rights(), 0o644);
    std::fs::remove_file(&store).unwrap();
    fixture.prompt(&["--mode", "plan", "-p", "one"]);
    readable();
    assert_eq!(fixture.run(&["sessions", "list"]).0, 0);
    assert_eq!(rights(), 0o600, "the control");
}

#[test]
fn explain_rejects_broken_json_instead_of_reading_it_as_text() {
    let fixture = CliFixture::new();
    let folder = fixture.path(".config/modegate");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("modes.yaml"), "permissions: {deny: ['*(**/.env)']}\n").unwrap();
    let explain = |arguments| fixture.run(&["modes", "explain", "code", "write_file", arguments]);
    for (arguments, reason) in [
        ("{\"path\": \".env\", \"content\": \"\",}", "the arguments are not valid JSON: trailing comma"),
        ("[\".env\"]", "the arguments are not a JSON object"),
    ] {
        let (code, output, errors) = explain(arguments);
        assert!((code, output.as_str()) == (2, "") && errors.contains(reason), "{output}{errors}");
    }
    for arguments in ["{\"path\": \".env\", \"content\": \"\"}", ".env"] {
        let (code, output, _) = explain(arguments);
        assert!(code == 0 && output.contains("denied by deny_rule"), "the control: {output}");
    }
}

#[test]
fn explain_decides_requests_of_external_agents() {
    let fixture = CliFixture::new();
    let rule = fixture.run(&["permissions", "deny", "shell(git push *)"]);
    assert_eq!(rule.0, 0, "{rule:?}");
    for (mode, tool, arguments, expected) in [
        ("plan", "edit_file", "a.txt", ["in the sandbox", "denied by access"]),
        ("plan", "read_file", "a.txt", ["in the sandbox", "allowed in plan"]),
        ("code", "shell", "git push", ["without the sandbox", "denied by deny_rule"]),
        ("code", "shell", "git status", ["without the sandbox", "allowed in code"]),
        ("ask", "write_file", "a.txt", ["without the sandbox", "asked for in ask"]),
    ] {
        let (code, text, _) = fixture.run(&["modes", "explain", mode, tool, arguments, "--external-agent"]);
        assert!(code == 0 && expected.iter().all(|part| text.contains(part)), "{mode} {tool}: {text}");
    }
}

#[test]
fn explain_gives_people_the_reason_without_advice_to_the_model() {
    let fixture = CliFixture::new();
    let (code, text, _) = fixture.run(&["modes", "explain", "plan", "write_file"]);
    assert_eq!((code, text.as_str()), (0, "write_file: denied by access: plan mode changes nothing.\n"));
}

#[test]
fn wrong_usage_of_subcommands_exits_with_2() {
    let fixture = CliFixture::new();
    for (arguments, reason) in [
        (&["modes", "explain", "cod", "shell"][..], "the modes are ask, plan, code"),
        (&["modes", "show", "cod"], "the modes are ask, plan, code"),
        (&["modes", "explain", "code", "shel"], "there is no tool \"shel\"; did you mean shell?"),
        (&["modes", "explain", "code", "Write"], "there is no tool \"Write\"; its name here is write_file"),
        (&["modes", "explain", "code", "foo"], "Modegate's own tools are read_file, "),
        (
            &["permissions", "deny", "Foo(x)"],
            "there is no tool \"Foo\"; Modegate's own tools are read_file, ",
        ),
        (&["modes", "explain", "code", "todo", "--external-agent"], "external agents request no todo"),
        (&["permissions", "allow", "shel(x)"], "did you mean shell"),
        (&["permissions", "allow", "shell(x"], "shell(x"),
    ] {
        let (code, _, errors) = fixture.run(arguments);
        assert!(code == 2 && errors.contains(reason), "{arguments:?}: {code} {errors}");
    }
    assert_eq!(fixture.run(&["modes", "explain", "code", "shell"]).0, 0, "the control");
    for (word, tip) in [("plan", "--mode plan"), ("replai", "'replay'")] {
        let (code, _, errors) = fixture.run(&[word, "-p", "x"]);
        assert!(code == 2 && errors.contains(tip), "{errors}");
    }
}

#[test]
fn a_short_id_limits_the_log_of_mode_changes() {
    let fixture = CliFixture::new();
    for prompt in ["one", "two"] {
        fixture.prompt(&["--mode", "plan", "-p", prompt]);
    }
    let (_, all, _) = fixture.run(&["modes", "log"]);
    let id = all.split_whitespace().find(|word| word.starts_with("sess_")).unwrap();
    let (code, output, errors) = fixture.run(&["modes", "log", "--session", &id[id.len() - 8..]]);
    assert!(code == 0 && output.lines().count() == 1 && output.contains(id), "{output}{errors}");
    assert_eq!(all.lines().count(), 2, "the control: {all}");
    let (code, _, errors) = fixture.run(&["modes", "log", "--session", "nothing"]);
    assert!(code == 1 && errors.contains("there is no session \"nothing\""), "{errors}");
}

#[test]
fn revoke_names_the_file_that_has_the_rule() {
    let fixture = CliFixture::new();
    let (_, output, _) = fixture.run(&["modes", "check"]);
    assert!(output.starts_with("no modes file: ") && output.ends_with("built in: 3 modes\n"), "{output}");
    let folder = fixture.path(".config/modegate");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("modes.yaml"), "permissions:\n  deny: [fetch]\n").unwrap();
    assert_eq!(fixture.run(&["modes", "check"]).1, "3 modes, 1 rule, 0 servers: fine\n");
    fixture.run(&["permissions", "ask", "ask_user"]);
    fixture.run(&["permissions", "deny", "fetch"]);
    let (_, list, _) = fixture.run(&["permissions", "list"]);
    let ends: Vec<_> = list.lines().map(|line| (&line[..11], line.rsplit('/').next().unwrap())).collect();
    let expected = [
        ("deny  fetch", "modes.yaml"),
        ("deny  fetch", "permissions.yaml"),
        ("ask   ask_u", "permissions.yaml"),
    ];
    assert_eq!(ends, expected, "{list}");
    assert_eq!(fixture.run(&["permissions", "revoke", "fetch"]).0, 0);
    let (code, _, errors) = fixture.run(&["permissions", "revoke", "fetch"]);
    assert!(code == 1 && errors.contains("modes.yaml:2: remove it there"), "{errors}");
    let (code, _, errors) = fixture.run(&["permissions", "revoke", "todo"]);
    assert!(code == 1 && errors.contains("permissions.yaml, which has ask_user"), "{errors}");
    assert_eq!(fixture.run(&["permissions", "revoke", "ask_user"]).0, 0, "the control");
}

#[test]
fn audit_finds_changes_in_the_tables_of_mode_changes_and_denials() {
    let fixture = CliFixture::new();
    fixture.prompt(&["--mode", "code", "-p", "hello"]);
    fixture.prompt(&["--continue", "--mode", "plan", "-p", "write it"]);
    let id = fixture.only_session()["id"].as_str().unwrap().to_owned();
    let (code, text, _) = fixture.run(&["audit", &id]);
    assert!(code == 0 && text.contains("denials: 1"), "the control: {text}");
    let store = fixture.path("store.db");
    let intact = fixture.path("intact.db");
    let open = |path| rusqlite::Connection::open(path).unwrap();
    open(&store).execute("VACUUM INTO ?1", [intact.to_str()]).unwrap();
    for (table, columns) in [
        ("mode_changes", &["turn", "to_mode", "source", "mode_hash", "plan_hash", "at"][..]),
        ("denials", &["turn", "tool_call_id", "tool", "mode", "rule", "at"]),
    ] {
        for column in columns {
            for log in ["store.db-wal", "store.db-shm"] {
                drop(std::fs::remove_file(fixture.path(log)));
            }
            std::fs::copy(&intact, &store).unwrap();
            let change = format!("UPDATE {table} SET {column} = 7");
            open(&store).execute(&change, []).unwrap();
            let (code, text, _) = fixture.run(&["audit", &id]);
            assert!(code == 1 && text.contains("does not agree with the chain"), "{change}: {text}");
        }
    }
}

#[test]
fn a_call_that_needs_permission_without_a_user_is_in_the_audit_log() {
    for (mode, code, denials, counts) in [
        ("ask", 3, 1, "denials: 1, calls that may change something: 0"),
        ("code", 0, 0, "denials: 0, calls that may change something: 1"),
    ] {
        let fixture = CliFixture::new();
        let (ended, output, errors) = fixture.prompt(&["--mode", mode, "--output", "json", "-p", "write it"]);
        assert_eq!(ended, code, "{errors}");
        let result: Value = serde_json::from_str(&output).unwrap();
        assert_eq!(result["denied"].as_array().unwrap().len(), denials, "{result}");
        assert_eq!(errors.matches("denied: Write a.txt").count(), denials, "{errors}");
        assert!(!errors.contains("failed:"), "{errors}");
        let (ended, text, _) = fixture.run(&["audit", result["sessionId"].as_str().unwrap()]);
        assert!(ended == 0 && text.contains(counts), "{text}");
        let store = rusqlite::Connection::open(fixture.path("store.db")).unwrap();
        let mut statement = store.prepare("SELECT tool, rule FROM denials").unwrap();
        let rows: Vec<(String, String)> = statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let expected = vec![("write_file".to_owned(), "no_user".to_owned()); denials];
        assert_eq!(rows, expected, "{mode}");
    }
}

#[test]
fn a_slash_command_answers_on_stdout_and_sets_the_exit_code() {
    let fixture = CliFixture::new();
    for mode in ["plan", "code"] {
        for (prompt, code, answer) in [
            ("/help", 0, "/undo"),
            ("/permissions", 0, "Rules:"),
            ("/mode plan", 0, "Mode: plan."),
            ("/compact", 0, "There is nothing to summarise yet."),
            ("/mode cod", 1, "the modes are ask, plan, code"),
            ("/undo 77", 1, "nothing was undone"),
            ("/undo x", 1, "/undo"),
        ] {
            let (ended, output, errors) = fixture.prompt(&["--mode", mode, "-p", prompt]);
            assert_eq!(ended, code, "{mode} {prompt}: {output}{errors}");
            assert!(output.contains(answer), "{mode} {prompt}: {output}{errors}");
            assert!(!errors.contains(&format!("modegate: {output}")), "{mode} {prompt}: {errors}");
        }
    }
}

#[test]
fn a_headless_run_shows_the_limit_of_max_mode_and_how_commands_end() {
    let fixture = CliFixture::new();
    let header = |mode| fixture.prompt(&["--max-mode", "plan", "--mode", mode, "-p", "x"]).2;
    assert!(header("code").starts_with("modegate: code mode, limited to plan by --max-mode, session"));
    assert!(header("plan").starts_with("modegate: plan mode, session"), "the control");
    let script = |command: &str| {
        let call = json!({ "id": "s", "name": "shell", "arguments": { "command": command } });
        let lines = [
            json!({ "tool_call": call }),
            json!({ "stop": "done" }),
            json!({ "text": "Done." }),
            json!({ "stop": "done" }),
        ];
        std::fs::write(fixture.path("script.jsonl"), lines.map(|line| format!("{line}\n")).concat()).unwrap();
    };
    for (command, end) in [("exit 2", "  Exit status 2.\n"), ("true", "  Exit status 0, no output.\n")] {
        script(command);
        let (_, _, errors) = fixture.prompt(&["--mode", "code", "-p", "x"]);
        assert!(errors.contains(end), "{command}: {errors}");
    }
    // A rule also requires a permission request in code mode.
    fixture.run(&["permissions", "ask", "shell(make *)"]);
    fixture.run(&["permissions", "deny", "shell(git push *)"]);
    for (command, hint) in [
        ("make", "the rule ask shell(make *) requires a question: revoke it, or answer it in an editor"),
        ("X=1; $X push", "the rule deny shell(git push *) may match a part of this line"),
    ] {
        script(command);
        let (code, _, errors) = fixture.prompt(&["--mode", "code", "-p", "x"]);
        assert!(code == 3 && errors.contains(hint), "{command}: {errors}");
    }
    let (_, text, _) = fixture.run(&["modes", "explain", "code", "shell", "X=1; $X push"]);
    assert!(text.contains("a part of it may match the rule deny shell(git push *)"), "{text}");
    script("make");
    fixture.run(&["permissions", "revoke", "shell(make *)"]);
    let (_, _, errors) = fixture.prompt(&["--mode", "ask", "-p", "x"]);
    assert!(errors.contains("use --mode code to allow changes without asking"), "the control: {errors}");
}

/// A missing file is an error only if `--store` names the file.
#[test]
fn lists_are_empty_before_the_first_session() {
    for (arguments, text) in [
        (&["sessions", "list"][..], "No sessions in this directory"),
        (&["sessions", "list", "--json"], ""),
        (&["memories", "list"], "No memories of this directory"),
        (&["sessions", "prune", "--older-than", "1d"], "0 sessions deleted\n"),
        (&["permissions", "list"], "No rules.\n"),
    ] {
        let fixture = CliFixture::new();
        let run = |more: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
            command.args(more).args(arguments).current_dir(fixture.work()).env_clear();
            let output = command.env("HOME", fixture.0.path()).output().unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        let (code, output) = run(&[]);
        assert!(code == Some(0) && output.starts_with(text), "{arguments:?}: {output}");
        assert_eq!(output.is_empty(), text.is_empty(), "{arguments:?}: {output}");
        assert!(!fixture.path(".local").exists(), "{arguments:?} creates no store");
        if arguments[0] != "permissions" {
            assert_eq!(run(&["--store", "none.db"]).0, Some(1), "{arguments:?}: the control");
        }
    }
}

#[test]
fn sessions_list_tells_how_many_it_leaves_out() {
    let fixture = CliFixture::new();
    for _ in 0..3 {
        fixture.prompt(&["--mode", "code", "-p", "write it"]);
    }
    for (limit, shown, errors) in
        [("2", 2, "modegate: 1 more; `--limit N` lists them\n"), ("3", 3, ""), ("9", 3, "")]
    {
        let (code, output, told) = fixture.run(&["sessions", "list", "--limit", limit]);
        assert_eq!((code, output.lines().count(), told.as_str()), (0, shown, errors));
    }
}

#[test]
fn sessions_are_found_by_title_and_prompts_and_opened_by_their_short_ids() {
    let fixture = CliFixture::new();
    for prompt in ["rename the cart", "100% sure_thing \\ \"quoted\"", "the last"] {
        fixture.prompt(&["--mode", "plan", "-p", prompt]);
    }
    fixture.prompt(&["--continue", "--mode", "plan", "-p", "and about the CART again"]);
    let list = |text: &str| fixture.run(&["sessions", "list", "--search", text]).1;
    for (text, count) in [
        ("cart", 2),
        ("the last", 1),
        ("100%", 1),
        ("0%s", 0),
        ("e_t", 1),
        ("\\", 1),
        ("\"quoted", 1),
        ("type", 0),
        ("", 3),
    ] {
        let found = list(text);
        let lines = if found.starts_with("No sessions") { 0 } else { found.lines().count() };
        assert_eq!(lines, count, "{text:?}: {found}");
    }
    assert!(list("nowhere").starts_with("No sessions with \"nowhere\" in this directory"));
    let found = list("rename");
    let id = found.split_whitespace().next().unwrap();
    assert!(id.len() < 12, "{id}");
    let (code, shown, errors) = fixture.run(&["sessions", "show", id]);
    assert!(code == 0 && shown.contains("rename the cart"), "{errors}");
}

#[test]
#[cfg(target_os = "linux")]
fn last_is_the_newest_session_whatever_ran_in_it() {
    let fixture = CliFixture::new();
    fixture.prompt(&["--mode", "code", "-p", "Run: a prompt that only begins as the title of a program"]);
    let store = fixture.path("store.db");
    // The option that the fixture adds becomes an argument of the shell.
    let command = ["run", "--mode", "plan", "--", "sh", "-c", "echo x > new; echo y > /outside"];
    let (_, _, errors) = fixture.run(&[&["--store", store.to_str().unwrap()], &command[..]].concat());
    assert!(errors.contains("2 acts refused; `modegate sessions show"), "{errors}");
    let (_, shown, _) = fixture.run(&["sessions", "show", "last"]);
    assert!(shown.contains("Run: sh -c") && shown.contains("refused  1 (access), 1 (outside)"), "{shown}");
    let (code, undone, errors) = fixture.run(&["sessions", "undo", "last"]);
    assert!(code != 0 && fixture.file().is_some(), "the run changed nothing: {undone}{errors}");
    let (_, command) = errors.split_once("modegate sessions undo ").expect("the other session is named");
    let (code, undone, errors) = fixture.run(&["sessions", "undo", command.split('`').next().unwrap()]);
    assert!(code == 0 && fixture.file().is_none(), "{undone}{errors}");
    assert!(!fixture.run(&["sessions", "undo", "last"]).2.contains("another one"), "nothing is left");
    let listed = |flags: &[&str]| fixture.run(&[&["sessions", "list"], flags].concat()).1;
    let (prompts, all) = (listed(&[]), listed(&["--runs"]));
    assert!(prompts.lines().count() == 1 && !prompts.contains("Run: sh"), "{prompts}");
    assert!(all.lines().count() == 2 && all.contains("Run: sh -c"), "{all}");
    assert_eq!(listed(&["--json"]).lines().count(), 1);
    let modes_and_turns = listed(&["--json", "--runs"])
        .lines()
        .map(|line| {
            let session: Value = serde_json::from_str(line).unwrap();
            (session["mode"].as_str().unwrap().to_owned(), session["turns"].as_u64().unwrap())
        })
        .collect::<Vec<_>>();
    assert_eq!(modes_and_turns, [("code".to_owned(), 1), ("plan".to_owned(), 1)]);
    assert_eq!(fixture.listed_by_client(), 1, "clients cannot load a run");
    assert_eq!(
        listed(&["--search", "outside"]),
        "No sessions; --runs lists the programs of `modegate run`.\n"
    );
    let (_, shown, errors) = fixture.prompt(&["--continue", "--mode", "plan", "-p", "go on"]);
    assert!(shown.contains("Done."), "a run takes no prompts, so the session before it continues: {errors}");
}

/// By default, a command prints its message without log lines. `MODEGATE_LOG` turns them on.
#[test]
fn commands_log_no_warnings_unless_asked_to() {
    let fixture = CliFixture::new();
    fixture.prompt(&["--mode", "code", "-p", "write it"]);
    let session = fixture.only_session()["id"].as_str().unwrap().to_owned();
    for (arguments, code) in [
        (&["sessions", "set-mode", &session, "foo"][..], 2),
        (&["--continue", "--model", "offline", "-p", "/mode foo"], 1),
    ] {
        for (level, is_logged) in [(None, false), (Some("warn"), true)] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
            command.args(["--store", fixture.path("store.db").to_str().unwrap()]).args(arguments);
            command.current_dir(fixture.work()).env_clear().env("HOME", fixture.0.path());
            let output = command.envs(level.map(|level| ("MODEGATE_LOG", level))).output().unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            let (shown, errors) = (text(output.stdout), text(output.stderr));
            assert_eq!(output.status.code(), Some(code), "{errors}");
            assert!((shown + &errors).contains("the modes are ask, plan, code"), "{errors}");
            assert_eq!(errors.contains(" WARN "), is_logged, "{level:?}: {errors}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_headless_run_tells_what_was_interrupted_and_which_mode_is_gone() {
    let fixture = CliFixture::new();
    let folder = fixture.path(".config/modegate");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("modes.yaml"), "modes: [{id: fast, extends: code}]\n").unwrap();
    let call = json!({ "id": "s", "name": "shell", "arguments": { "command": "touch started; sleep 60" } });
    let lines = [json!({ "tool_call": call }), json!({ "stop": "done" }), json!({ "stop": "done" })];
    std::fs::write(fixture.path("script.jsonl"), lines.map(|line| format!("{line}\n")).concat()).unwrap();
    let mut killed = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .args(["--model", &format!("scripted:{}", fixture.path("script.jsonl").display())])
        .args(["--store", fixture.path("store.db").to_str().unwrap(), "--mode", "fast", "-p", "x"])
        .current_dir(fixture.work())
        .env("HOME", fixture.0.path())
        .stdin(std::process::Stdio::null())
        .spawn()
        .unwrap();
    block_until("started", || fixture.work().join("started").exists());
    killed.kill().unwrap();
    killed.wait().unwrap();
    std::fs::remove_file(folder.join("modes.yaml")).unwrap();
    let expected = [
        "Modegate ended while these calls were running: touch started; sleep 60",
        "Modegate no longer has the fast mode. The session continues in plan mode.",
    ];
    for times in [1, 0] {
        let (_, output, errors) =
            fixture.run(&["--continue", "--model", "offline", "--output", "json", "-p", "/help"]);
        let result: Value = serde_json::from_str(&output).unwrap();
        for text in expected {
            assert_eq!(errors.matches(text).count(), times, "{errors}");
            assert_eq!(result["notices"].to_string().matches(text).count(), times, "{result}");
        }
    }
}

/// Overwrites pages with zeroes, behind those that define the tables. The log must not have these pages.
fn damage(store: &Path) {
    let connection = rusqlite::Connection::open(store).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(connection);
    let mut bytes = std::fs::read(store).unwrap();
    let begin = bytes.len() * 3 / 4 / 4096 * 4096;
    bytes[begin..begin + 4096 * 9].fill(0);
    std::fs::write(store, bytes).unwrap();
}

#[test]
fn damaged_store_is_named_salvaged_and_kept() {
    let fixture = CliFixture::new();
    for prompt in 0..12 {
        fixture.prompt(&["--mode", "plan", "-p", &format!("prompt {prompt}")]);
    }
    let store = fixture.path("store.db");
    let (code, text, _) = fixture.run(&["store", "check"]);
    assert!(code == 0 && text.starts_with("ok ") && text.contains("12 sessions"), "{text}");
    let (code, text, errors) = fixture.run(&["store", "salvage"]);
    assert!(code == 1 && text.is_empty() && errors.contains("`modegate store salvage --force`"), "{errors}");
    assert!(!errors.contains("cannot be used"), "{errors}");
    damage(&store);
    let damaged = std::fs::read(&store).unwrap();
    let (code, text, _) = fixture.run(&["doctor"]);
    assert!(code == 1 && text.contains("is damaged") && text.contains("modegate store salvage"), "{text}");
    let (code, text, _) = fixture.run(&["store", "check"]);
    assert!(code == 1 && text.starts_with("damaged "), "{text}");
    let (code, text, errors) = fixture.run(&["store", "salvage"]);
    assert!(code == 0 && text.contains(" sessions with ") && text.contains("kept as "), "{text}{errors}");
    let kept = text.split("kept as ").nth(1).unwrap().trim();
    assert_eq!(std::fs::read(kept).unwrap(), damaged);
    let (code, text, _) = fixture.run(&["store", "check"]);
    assert!(code == 0 && text.starts_with("ok "), "{text}");
    // The new store accepts sessions, and lists them with the saved ones.
    fixture.prompt(&["--mode", "plan", "-p", "afterwards"]);
    let (_, text, _) = fixture.run(&["sessions", "list", "--all", "--limit", "99"]);
    assert!(text.contains("afterwards") && text.lines().count() > 1, "{text}");
    let names: Vec<_> =
        std::fs::read_dir(fixture.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains("-salvage-")), "{names:?}");
}

#[test]
fn reset_store_is_set_aside_and_an_open_one_is_not() {
    let fixture = CliFixture::new();
    let (code, _, errors) = fixture.run(&["store", "reset"]);
    assert!(code == 1 && errors.contains("there is no session store yet"), "{errors}");
    fixture.prompt(&["--mode", "plan", "-p", "one"]);
    let open =
        modegate::store::Store::open_now(&modegate::store::StoreLocation::File(fixture.path("store.db")))
            .unwrap();
    for action in ["reset", "salvage"] {
        let (code, _, errors) = fixture.run(&["store", action]);
        assert!(code == 1 && errors.contains("another process has it open"), "{errors}");
    }
    drop(open);
    while !std::fs::read_dir(fixture.path("store.db-owners")).unwrap().flatten().all(|_| false) {
        std::thread::yield_now();
    }
    let (code, text, errors) = fixture.run(&["store", "reset"]);
    assert!(code == 0 && text.contains("the store is now "), "{text}{errors}");
    let kept = text.split("the store is now ").nth(1).unwrap().split(';').next().unwrap();
    assert!(Path::new(kept).exists() && !fixture.path("store.db").exists());
    fixture.prompt(&["--mode", "plan", "-p", "two"]);
    let (_, text, _) = fixture.run(&["sessions", "list"]);
    assert_eq!(text.lines().count(), 1, "{text}");
}
