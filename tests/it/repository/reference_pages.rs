//! The pages below `docs/reference` that are generated from the code. `UPDATE_EXPECT=1 cargo test --test it
//! reference_pages` writes them. Without the variable, each test compares a page with the generated text.
//!
//! Facts come from the code: the command line, schemas, error types, and constants. Tables beside them add
//! explanations that the code does not have. A row that matches nothing in the code fails.

use std::fmt::Write;
use std::fs;
use std::path::Path;

mod cli;
mod clients;
mod config;
mod constants;
mod errors;
mod exit_codes;
mod known_agents;
mod limits;
mod managed_policy;
mod messages;
mod methods;
mod telemetry;
mod tools;

const WIDTH: usize = 110;

const COMMENT: &str =
    "<!-- This page is generated, do not edit it. Change tests/it/repository/reference_pages or the code, and run
     UPDATE_EXPECT=1 cargo test --test it reference_pages -->\n";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn source(file: &str) -> String {
    let path = root().join("src").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares the table of a page that begins with `head` with the generated one, or writes it.
fn check_table(page: &str, head: &str, table: &str) {
    let path = root().join(page);
    let text = fs::read_to_string(&path).unwrap();
    let start = text.find(head).expect("the page has the table");
    let end = start + text[start..].find("\n\n").expect("text follows the table") + 1;
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        return fs::write(path, [&text[..start], table, &text[end..]].concat()).unwrap();
    }
    assert_eq!(
        &text[start..end],
        table,
        "{page} is out of date: run UPDATE_EXPECT=1 cargo test --test it reference_pages"
    );
}

/// A page in Markdown.
struct Page(String);

impl Page {
    fn new(title: &str) -> Self {
        Self(format!("# {title}\n\n{COMMENT}"))
    }

    fn heading(&mut self, level: usize, text: &str) {
        write!(self.0, "\n{} {text}\n", "#".repeat(level)).unwrap();
    }

    /// Wraps the text. Lines in the source are joined.
    fn paragraph(&mut self, text: &str) {
        write!(self.0, "\n{}", wrapped(text, "", "")).unwrap();
    }

    /// Starts a list unless `items` continue one.
    fn list(&mut self, items: impl IntoIterator<Item = String>) {
        self.0.push('\n');
        for item in items {
            self.0.push_str(&wrapped(&item, "- ", "  "));
        }
    }

    fn code(&mut self, language: &str, text: &str) {
        write!(self.0, "\n```{language}\n{}\n```\n", text.trim_end()).unwrap();
    }

    /// Adds a table, unless there are no rows.
    fn table<const N: usize>(&mut self, head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_none() {
            return;
        }
        write!(self.0, "\n| {} |\n|{}\n", head.join(" | "), " --- |".repeat(N)).unwrap();
        for row in rows {
            let cells = row.map(|cell| {
                let line = cell.split_whitespace().collect::<Vec<_>>().join(" ");
                line.replace('|', "\\|")
            });
            writeln!(self.0, "| {} |", cells.join(" | ")).unwrap();
        }
    }

    /// Compares the page with the file, or writes the file.
    fn check(self, name: &str) {
        let path = root().join("docs/reference").join(name);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            return fs::write(path, self.0).unwrap();
        }
        let old = fs::read_to_string(&path).unwrap_or_default();
        let mut lines = self.0.lines().zip(old.lines().chain(std::iter::repeat("(nothing)")));
        let difference = lines.find(|(expected, old)| expected != old);
        assert!(
            difference.is_none() && self.0.lines().count() == old.lines().count(),
            "docs/reference/{name} is out of date: run UPDATE_EXPECT=1 cargo test --test it reference_pages. The \
             first difference, as it should be and as it is: {difference:#?}"
        );
    }
}

fn wrapped(text: &str, first: &str, rest: &str) -> String {
    let mut lines = String::from(first);
    let mut length = first.len();
    let mut is_start = true;
    for word in text.split_whitespace() {
        if !is_start && length + 1 + word.chars().count() > WIDTH {
            lines.push('\n');
            lines.push_str(rest);
            length = rest.len();
            is_start = true;
        }
        if !is_start {
            lines.push(' ');
            length += 1;
        }
        lines.push_str(word);
        length += word.chars().count();
        is_start = false;
    }
    lines + "\n"
}

/// Splits `text` at its last sentence `Default: …`.
fn without_default(text: &str) -> (String, Option<String>) {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.split_once("Default: ") {
        Some((before, default)) => {
            (before.trim_end().to_owned(), Some(default.trim_end_matches('.').to_owned()))
        }
        None => (text, None),
    }
}

/// Returns the type of a schema in a few words. A reference is looked up in the whole schema.
fn type_of(schema: &serde_json::Value, whole: &serde_json::Value) -> String {
    use serde_json::Value;
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return type_of(&whole["$defs"][name], whole);
    }
    if let Some(words) = schema["enum"].as_array() {
        let words = words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`"));
        return words.collect::<Vec<_>>().join(", ");
    }
    if let Some(word) = schema["const"].as_str() {
        return format!("`{word}`");
    }
    if let Some(kinds) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        let kinds: Vec<String> =
            kinds.iter().map(|kind| type_of(kind, whole)).filter(|kind| kind != "null").collect();
        let is_list_of_words = kinds.iter().all(|kind| kind.starts_with('`'));
        return kinds.join(if is_list_of_words { ", " } else { " or " });
    }
    match &schema["type"] {
        Value::String(kind) if kind == "array" => format!("list of {}", type_of(&schema["items"], whole)),
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => {
            let kinds = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
            match kinds.collect::<Vec<_>>()[..] {
                ["array"] => format!("list of {}", type_of(&schema["items"], whole)),
                ref kinds => kinds.join(" or "),
            }
        }
        _ => "any".into(),
    }
}

#[test]
fn paragraphs_are_wrapped_and_cells_escaped() {
    let mut page = Page::new("T");
    page.paragraph(&"word ".repeat(30));
    page.table(["a"], [["x|\ny".to_owned()]]);
    assert!(page.0.lines().all(|line| line.len() <= WIDTH + 20) && page.0.ends_with("| x\\| y |\n"));
    assert_eq!(without_default("Some text.\nDefault: none."), ("Some text.".into(), Some("none".into())));
}

#[test]
fn permissions_page_rules_are_valid() {
    use modegate::policy::{LayerOwner, Layers};
    let page = fs::read_to_string(root().join("docs/guides/permissions.md")).unwrap();
    let blocks: Vec<&str> =
        page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        Layers::default()
            .add("modes.yaml", block, LayerOwner::User)
            .unwrap_or_else(|error| panic!("{error}"));
    }
}
