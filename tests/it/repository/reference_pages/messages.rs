//! `docs/reference/messages.md`: the messages of the sources, below the pages that explain them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{Page, root};

/// Pages, each with the beginnings of the modules whose messages it explains. The first that fits counts.
const SUBJECTS: [(&str, &str, &[&str]); 22] = [
    (
        "Terminal programs",
        "guides/terminal-programs.md",
        &["cli/run", "cli/mode.rs", "cli/mode/", "terminal_run", "terminal_host", "process/terminal"],
    ),
    ("External agents", "guides/external-agents.md", &["cli/wrap", "external_agent"]),
    (
        "Headless runs",
        "guides/headless.md",
        &["headless", "cli/prompt", "cli/from_plan", "cli/piped", "cli/limit_flags"],
    ),
    (
        "Modes",
        "reference/modes-file.md",
        &["cli/modes", "cli/mode_import", "cli/trust", "mode", "policy", "yaml_error"],
    ),
    ("Permissions", "guides/permissions.md", &["cli/permissions", "permission"]),
    (
        "Models and keys",
        "guides/models.md",
        &["cli/setup", "config/connections", "config/providers", "model"],
    ),
    ("Signed audit logs", "guides/evidence.md", &["config/evidence_key", "evidence_bundle", "signing"]),
    ("The audit log", "reference/audit-log.md", &["cli/audit", "audit", "chain"]),
    ("The session store", "reference/store.md", &["cli/store", "store", "config/places"]),
    (
        "Sessions",
        "reference/sessions.md",
        &["cli/sessions", "cli/report", "cli/memories", "memory", "session"],
    ),
    ("Undo", "reference/undo.md", &["workspace/restore"]),
    ("MCP servers", "guides/mcp.md", &["cli/mcp", "tool/mcp", "mcp", "server"]),
    ("Skills", "guides/skills.md", &["cli/skills", "skill"]),
    ("Agents", "reference/agents-file.md", &["cli/agents", "agents"]),
    (
        "Policies of organisations",
        "reference/managed-policy.md",
        &["cli/managed_policy", "managed_policy", "config/session_policy"],
    ),
    (
        "Recordings and transcripts",
        "client-developers/recordings.md",
        &["cli/replay", "transcript", "replay"],
    ),
    ("Scripts", "client-developers/scripted-model.md", &["cli/scripts", "scripts"]),
    ("The sandbox", "guides/running-commands.md", &["sandbox", "process", "supervisor", "tool/shell"]),
    ("Files", "reference/tools.md", &["bounded_file", "file_lock", "tool", "workspace"]),
    ("Settings", "reference/config.md", &["config", "hooks", "otlp", "budget"]),
    (
        "ACP",
        "reference/acp.md",
        &["acp", "agent", "client", "conversation", "error", "rpc", "transport", "json_rpc"],
    ),
    ("The command line", "reference/cli.md", &["cli", "main"]),
];

/// What stands before the text of a message.
const BEGINNINGS: [&str; 9] = [
    "bail!(",
    "anyhow!(",
    "#[error(",
    "context(",
    "with_context(|| ",
    "UsageError(",
    "UsageError::new(",
    "invalid_params(",
    "StoreError(",
];

const LINE: &str = "\"modegate: ";

#[test]
fn messages_page_has_every_message() {
    let mut page = Page::new("Every message");
    page.paragraph(
        "What commands, sessions and the log print, below the page that explains its subject: search for a few words of \
         what you saw. `…` stands for a name, a number or a cause. [Messages](errors.md) has the frequent ones with their \
         remedies, and those for models.",
    );
    let mut messages: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for (module, text) in sources() {
        let subject =
            SUBJECTS.iter().position(|(.., modules)| modules.iter().any(|part| module.starts_with(part)));
        let found = messages_of(&text);
        assert!(
            subject.is_some() || found.is_empty(),
            "src/{module} has messages, and no page explains them"
        );
        messages.entry(subject.unwrap_or_default()).or_default().extend(found);
    }
    let mut unused: Vec<&&[&str]> = Vec::new();
    for (number, (title, path, modules)) in SUBJECTS.iter().enumerate() {
        assert!(root().join("docs").join(path).is_file(), "{path}");
        let found = messages.remove(&number).unwrap_or_default();
        if found.is_empty() {
            unused.push(modules);
            continue;
        }
        page.heading(2, title);
        let link = path.strip_prefix("reference/").map_or_else(|| format!("../{path}"), str::to_owned);
        page.paragraph(&format!("Explained in [{title}]({link})."));
        page.list(found.iter().map(|text| format!("`{}`", text.replace('`', "'"))));
    }
    assert!(unused.is_empty(), "modules without messages: {unused:?}");
    page.check("messages.md");
}

/// Path and text of each file below `src`, without its tests.
fn sources() -> Vec<(String, String)> {
    fn read(folder: &Path, all: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, all);
            } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
                let name = path.strip_prefix(root().join("src")).unwrap().to_string_lossy().into_owned();
                let text = fs::read_to_string(&path).unwrap();
                all.push((name, text.split("#[cfg(test)]\nmod tests").next().unwrap().to_owned()));
            }
        }
    }
    let mut all = Vec::new();
    read(&root().join("src"), &mut all);
    all
}

fn messages_of(source: &str) -> Vec<String> {
    let lines = source.match_indices(LINE).map(|(at, _)| &source[at..]);
    let others = BEGINNINGS
        .iter()
        .flat_map(|beginning| source.match_indices(beginning).map(|(at, _)| &source[at + beginning.len()..]));
    let texts = lines.chain(others).filter_map(literal).map(|text| without_values(&text));
    texts
        .filter(|text| text.split(' ').filter(|word| word.contains(char::is_alphabetic)).count() > 1)
        .collect()
}

/// The string with which the code begins.
fn literal(code: &str) -> Option<String> {
    let code = code.trim_start();
    let code = code.strip_prefix("format!(").unwrap_or(code).trim_start();
    let mut rest = code.strip_prefix('"')?.chars().peekable();
    let mut text = String::new();
    loop {
        match rest.next()? {
            '"' => return Some(text),
            '\\' => match rest.next()? {
                '\n' => while rest.next_if(|character| character.is_whitespace()).is_some() {},
                'n' | 't' => text.push(' '),
                other => text.push(other),
            },
            other => text.push(other),
        }
    }
}

/// Replaces the places of values.
fn without_values(text: &str) -> String {
    let text = text.strip_prefix("modegate: ").unwrap_or(text);
    let (mut shown, mut depth) = (String::new(), 0_u32);
    let text = text.replace("{{", "\u{1}").replace("}}", "\u{2}");
    for character in text.chars() {
        match character {
            '{' => {
                depth += 1;
                shown.push('…');
            }
            '}' => depth -= 1,
            other if depth == 0 => shown.push(other),
            _ => {}
        }
    }
    shown.replace('\u{1}', "{").replace('\u{2}', "}").trim().to_owned()
}

#[test]
fn messages_are_found_in_code() {
    let code = r#"bail!("{} is gone: {why:?}"); x.context("one"); writeln!(out, "modegate: a {{b}} \
                  c")?; #[error("it ends")]"#;
    assert_eq!(messages_of(code), ["a {b} c", "… is gone: …", "it ends"]);
}
