//! `modegate modes check` and `modes explain` in the binary, about MCP servers and denied reads.

use super::modes_import::{install, modes};
use crate::support::requirements::require_sandbox;

const SERVERS: &str = "\
servers:
  notes: {command: c, args: ['${HOME}/notes.py'], tools: {list_notes: read_only}}
  nots: {trust_hints: true}
permissions:
  allow: [\"mcp__notes__add_note(x)\", mcp__notes__find]
";

#[test]
fn check_reports_settings_without_effect() {
    let home = tempfile::tempdir().unwrap();
    install(home.path(), SERVERS);
    let (code, text, _) = modes(home.path(), &["check"]);
    assert_eq!(code, 0, "{text}");
    for expected in [
        "allow mcp__notes__add_note(x): an allow rule for an MCP tool matches only without a pattern",
        "\"nots\" has no command and no url, so it configures the client's server",
        "\"${HOME}/notes.py\" is passed as it is",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    assert_eq!(text.lines().count(), 4, "nothing else is reported: {text}");
}

#[test]
fn explain_applies_the_users_entries_to_a_server_that_is_not_started() {
    let home = tempfile::tempdir().unwrap();
    install(home.path(), SERVERS);
    let explain = |tool: &str| modes(home.path(), &["explain", "plan", tool]).1;
    let text = explain("mcp__notes__list_notes");
    assert!(text.starts_with("The MCP server notes was not started. Your settings for it decide"), "{text}");
    assert!(
        text.ends_with(
            "mcp__notes__list_notes: allowed in plan: no rule denies it or requires a permission request\n"
        ),
        "{text}"
    );
    let text = explain("mcp__notes__add_note");
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].contains("so the decision depends on its hints"), "{text}");
    assert!(lines[1].contains("add_note: denied by access"), "{text}");
    assert!(lines[2].contains("add_note with readOnlyHint: asked for in plan"), "{text}");
}

/// Rules that deny reading apply to commands only in some sandboxes.
#[test]
fn explain_says_whether_commands_can_read_what_rules_deny() {
    require_sandbox();
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".config/modegate");
    std::fs::create_dir_all(&folder).unwrap();
    let explain = |arguments: &[&str]| modes(home.path(), &[&["explain", "code"], arguments].concat()).1;
    let files = "read the files of *(**/.env), read_file(secrets/**)";
    let rules = "['*(**/.env)', 'read_file(secrets/**)', 'shell(rm *)', '*(https://example.com)']";
    std::fs::write(folder.join("modes.yaml"), format!("permissions: {{deny: {rules}}}")).unwrap();
    for (sandbox, command) in [("workspace", "A command cannot"), ("'off'", "A command can still")] {
        std::fs::write(folder.join("config.yaml"), format!("shell: {{sandbox: {sandbox}}}")).unwrap();
        let text = explain(&["shell", "cat .env"]);
        assert!(text.contains(&format!("{command} {files}")), "{text}");
        let text = explain(&["read_file", "a", "--external-agent"]);
        assert!(text.contains(&format!("The agent can still {files}, unless")), "{text}");
        assert!(!explain(&["read_file", "a"]).contains(files), "the control");
    }
    std::fs::write(folder.join("modes.yaml"), "permissions: {deny: ['shell(rm *)', 'edit_file(**/.env)']}")
        .unwrap();
    assert!(!explain(&["shell", "cat .env"]).contains("read the files of"), "the control");
}

/// Each YAML block of these pages is a modes file.
#[test]
fn recipes_of_pages_are_modes_files() {
    let home = tempfile::tempdir().unwrap();
    for page in ["cookbook", "team"] {
        let path = format!("{}/docs/guides/{page}.md", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let recipes: Vec<_> =
            text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(recipes.len() > 1, "{page}");
        for recipe in recipes {
            install(home.path(), recipe);
            let (code, text, errors) = modes(home.path(), &["check"]);
            assert!(code == 0 && text.lines().all(|line| line.ends_with("fine")), "{recipe}: {text}{errors}");
        }
    }
}
