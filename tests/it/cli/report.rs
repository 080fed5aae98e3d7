//! `modegate report`: contents of the page, and texts of models and files that could break it.

use std::path::Path;

use html5gum::{Token, Tokenizer};
use serde_json::json;

use modegate::store::{Store, StoreLocation, Sync};

use super::sessions::CliFixture;

/// Texts that would break a page that escapes too little.
const HOSTILE: [&str; 8] = [
    "</p></details><script>alert(1)</script>",
    "\"><svg onload=alert(2)>",
    "'><img src=x onerror=alert(3)>",
    "<style>*{display:none}</style>",
    "<!-- --><![CDATA[ ]]>",
    "&lt;script&gt;&#x3c;script>",
    "\u{202e}<base href=https://example.org>\u{200b}",
    "<meta http-equiv=refresh content='0;url=javascript:alert(4)'>",
];

const TAGS: [&str; 32] = [
    "a", "b", "code", "details", "div", "fieldset", "h1", "h2", "html", "input", "label", "legend", "li",
    "line", "main", "meta", "nav", "p", "pre", "rect", "span", "style", "summary", "svg", "table", "td",
    "text", "th", "title", "tr", "ul", "!doctype",
];

/// Writes a script in which each kind of text is `text`. Every second call is denied.
fn write_script(path: &Path, text: &str) {
    let write = json!({ "path": "a.txt", "content": format!("{text}\n") });
    let delete = json!({ "path": format!("/outside/{}", text.replace('/', "_")) });
    let lines = [
        json!({ "thought": text }),
        json!({ "text": text }),
        json!({ "tool_call": { "id": "w", "name": "write_file", "arguments": write } }),
        json!({ "tool_call": { "id": "d", "name": "delete_file", "arguments": delete } }),
        json!({ "tool_call": { "id": "u", "name": text, "arguments": { "x": text } } }),
        json!({ "stop": "done" }),
        json!({ "text": text }),
        json!({ "stop": "done" }),
    ];
    std::fs::write(path, lines.map(|line| format!("{line}\n")).concat()).unwrap();
}

/// The tags of a page in order, with the names of their attributes.
fn structure(page: &str) -> Vec<String> {
    let tags = Tokenizer::new(page).filter_map(|token| match token.unwrap() {
        Token::StartTag(tag) => {
            let names = tag.attributes.keys().map(|name| String::from_utf8_lossy(name).into_owned());
            Some(format!("{} {}", String::from_utf8_lossy(&tag.name), names.collect::<Vec<_>>().join(" ")))
        }
        Token::EndTag(tag) => Some(format!("/{}", String::from_utf8_lossy(&tag.name))),
        _ => None,
    });
    tags.collect()
}

fn page_of(text: &str) -> String {
    let fixture = CliFixture::new();
    let script = fixture.path("hostile.jsonl");
    write_script(&script, text);
    let model = format!("scripted:{}", script.display());
    fixture.run(&["--model", &model, "--mode", "code", "-p", text]);
    let (code, page, errors) = fixture.run(&["report", "last"]);
    assert_eq!(code, 0, "{errors}");
    page
}

#[test]
fn texts_of_models_and_users_do_not_change_the_structure_of_the_page() {
    let harmless = page_of("harmless");
    let expected = structure(&harmless);
    for tag in &expected {
        let name = tag.trim_start_matches('/').split(' ').next().unwrap();
        assert!(TAGS.contains(&name) && !tag.contains(" on"), "{tag}");
    }
    assert!(
        harmless.contains("default-src 'none'")
            && !harmless.contains("http:")
            && !harmless.contains("https:"),
        "nothing is loaded"
    );
    for text in HOSTILE {
        assert_eq!(structure(&page_of(text)), expected, "{text}");
    }
}

/// A plan, a refactoring of which one turn was undone, a wrapped agent, a task of a fleet whose model failed, and an
/// attack with texts that try to break the page.
const RECORDED: [&str; 5] = ["plan", "refactoring", "wrapped", "failed_task", "attack"];

#[tokio::test]
async fn pages_of_recorded_sessions_are_those_of_the_fixtures() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/reports");
    for name in RECORDED {
        let fixture = CliFixture::new();
        let store = Store::open(StoreLocation::File(fixture.path("store.db")), Sync::Normal).unwrap();
        store.flush().await.unwrap();
        drop(store);
        let connection = rusqlite::Connection::open(fixture.path("store.db")).unwrap();
        let rows = std::fs::read_to_string(folder.join(name).with_extension("sql")).unwrap();
        connection.execute_batch(&rows).unwrap();
        let id: String = connection
            .query_row("SELECT id FROM sessions WHERE parent IS NULL", [], |row| row.get(0))
            .unwrap();
        let (code, page, errors) = fixture.run(&["report", &id]);
        assert_eq!(code, 0, "{errors}");
        let file = folder.join(name).with_extension("html");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&file, &page).unwrap();
        }
        assert!(
            page == std::fs::read_to_string(&file).unwrap(),
            "{} differs: run UPDATE_EXPECT=1 cargo test --test it cli::report, and read the difference",
            file.display()
        );
    }
}

#[test]
fn long_session_begins_with_a_list_of_closed_turns() {
    let (fixture, id, _) = CliFixture::with_session();
    let short = fixture.run(&["report", &id]).1;
    assert!(short.contains(" id=\"turn-1\" open=") && !short.contains("<nav>"), "{short}");
    let connection = rusqlite::Connection::open(fixture.path("store.db")).unwrap();
    for seq in 0..5_000 {
        let (event, at) =
            (json!({ "message_id": "m", "text": "on" }).to_string(), 1_790_000_000_000_i64 + seq);
        let values = rusqlite::params![id, 1_000 + seq, 2 + seq / 25, event, at];
        connection.execute("INSERT INTO events VALUES (?1, ?2, ?3, 'agent_text', ?4, ?5)", values).unwrap();
    }
    let (code, page, errors) = fixture.run(&["report", &id]);
    assert_eq!(code, 0, "{errors}");
    assert!(page.contains("<summary>201 turns</summary>") && page.contains("<a href=\"#turn-201\">"));
    assert_eq!(page.matches("<details class=\"turn\"").count(), 201);
    assert_eq!(page.matches(" open=").count(), 0);
}

#[test]
fn page_has_calls_decisions_changes_and_the_audit() {
    let (fixture, _, head) = CliFixture::with_session();
    let (_, page, _) = fixture.run(&["report"]);
    for part in [
        "<title>write it</title>",
        "Write a.txt",
        "allowed by mode and rules",
        "<span class=\"add\">+written</span>",
        "The audit log is valid: 2 entries",
        "<a href=\"#turn-1\">1</a>",
        &head,
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn page_is_written_to_a_new_private_file() {
    let (fixture, id, _) = CliFixture::with_session();
    let file = fixture.path("report.html");
    let report = ["report", &id, "-o", file.to_str().unwrap()];
    assert_eq!(fixture.run(&report).0, 0);
    let (code, _, errors) = fixture.run(&report);
    assert!(code == 1 && errors.contains("exists already"), "{errors}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), fixture.run(&["report", &id]).1);
}

#[test]
fn two_sessions_stand_side_by_side() {
    let (fixture, first, _) = CliFixture::with_session();
    fixture.prompt(&["--mode", "plan", "-p", "plan it"]);
    let (code, page, errors) = fixture.run(&["report", &first, "--compare", "last"]);
    assert_eq!(code, 0, "{errors}");
    for part in ["plan it", "write it", "<th>denied calls</th>", "calls of write_file", "a.txt"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn session_without_a_prompt_has_a_page() {
    let (fixture, id, _) = CliFixture::with_session();
    rusqlite::Connection::open(fixture.path("store.db")).unwrap().execute("DELETE FROM events", []).unwrap();
    let (code, page, errors) = fixture.run(&["report", &id]);
    assert!(code == 0 && page.contains("The audit found something wrong"), "{errors}");
}
