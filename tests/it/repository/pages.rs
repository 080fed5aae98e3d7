//! Statements that stand on several pages, or in the code and on a page: they agree.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use modegate::tool::effect_of;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// All files below a folder, relative to the repository.
fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut paths = Vec::new();
    for path in entries {
        let relative = path.strip_prefix(root()).unwrap().to_owned();
        if path.is_dir() { paths.extend(files(relative.to_str().unwrap())) } else { paths.push(relative) }
    }
    paths
}

fn pages() -> Vec<String> {
    let paths = files("docs").into_iter().filter(|path| path.extension().is_some_and(|it| it == "md"));
    paths.map(|path| path.to_str().unwrap().to_owned()).collect()
}

/// The words between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn table_of_effects_has_every_tool() {
    let permissions = page("docs/guides/permissions.md");
    let section = permissions.split("## Effects").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let mut listed = BTreeSet::new();
    for cells in rows.map(|row| row.split(" | ").collect::<Vec<_>>()) {
        let effects: Vec<&str> = cells[0].trim_start_matches("| ").split(", ").collect();
        let tools: String =
            cells[1].split('(').map(|part| part.split_once(')').map_or(part, |(_, rest)| rest)).collect();
        for tool in quoted(&tools) {
            let Some(effect) = effect_of(tool) else { continue };
            let effect = format!("{effect:?}").to_lowercase();
            assert!(effects.contains(&effect.as_str()), "{tool} has the effect {effect}, not {effects:?}");
            listed.insert(tool.to_owned());
        }
    }
    let tools = page("docs/reference/tools.md");
    let tools = tools.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    assert_eq!(listed, tools.map(str::to_owned).collect());
}

/// `docs/security/systems.md` has the guarantees of every system, so no other page repeats a part of them.
#[test]
fn sandboxes_of_other_systems_are_described_on_one_page() {
    let others = ["macOS", "Windows", "Seatbelt", "other than Linux"];
    let repeats = |part: &str| {
        part.replace("unsandboxed", "").contains("sandbox")
            && others.iter().any(|name| part.contains(name))
            && !part.contains("systems.md")
    };
    assert!(repeats("Systems other than Linux have no sandbox."), "the control");
    for name in pages() {
        let is_for_users = !name.starts_with("docs/internals/") && !name.ends_with("security/systems.md");
        let text = page(&name).replace("\n- ", "\n\n").replace("\n|", "\n\n");
        let repeated: Vec<&str> = text.split("\n\n").filter(|part| is_for_users && repeats(part)).collect();
        assert!(repeated.is_empty(), "{name} has no link to systems.md here: {repeated:?}");
    }
}

#[test]
fn paths_on_pages_exist() {
    let existing: Vec<PathBuf> = ["src", "tests", "fixtures", "docs"].into_iter().flat_map(files).collect();
    let is_missing =
        |path: &str| !root().join(path).exists() && !existing.iter().any(|file| file.ends_with(path));
    assert!(is_missing("session/no_such_file.rs") && !is_missing("repository/pages.rs"), "the control");
    for name in pages().iter().filter(|name| !name.contains("internals/decisions/")) {
        let text = page(name);
        let text = text.split("```").step_by(2).collect::<String>();
        let is_path = |word: &&str| {
            let is_play = Path::new(word).extension().is_some_and(|extension| extension == "play");
            let is_source = word.contains('/') && [".rs", ".py"].iter().any(|ending| word.ends_with(ending));
            let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_/.-".contains(c);
            (is_play || is_source) && word.chars().all(is_name)
        };
        let missing: Vec<&str> = quoted(&text).filter(is_path).filter(|path| is_missing(path)).collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
    }
}

#[test]
fn testing_page_has_every_folder_of_tests() {
    let testing = page("docs/internals/testing.md");
    let section = testing.split("## Where tests are").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let folders = fs::read_dir(root().join("tests/it")).unwrap().map(|entry| entry.unwrap().path());
    let folders = folders.filter(|path| path.is_dir() && !path.ends_with("support"));
    let names = folders.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
    assert_eq!(rows.map(str::to_owned).collect::<BTreeSet<_>>(), names.collect());
}

#[test]
fn pages_have_the_number_of_escape_attempts() {
    let cases = |name: &str| page(name).lines().filter(|line| line.starts_with("== ")).count();
    let attempts = cases("tests/escape/cases.txt");
    let numbers = |name: &str, noun: &str| -> Vec<usize> {
        let text = page(name);
        let words: Vec<&str> = text.split_whitespace().collect();
        let pairs = words.windows(2).filter(|pair| pair[1].trim_end_matches(',') == noun);
        pairs.filter_map(|pair| pair[0].parse().ok()).collect()
    };
    assert_eq!(numbers("docs/security/sandbox.md", "attempts"), [attempts]);
    assert_eq!(numbers("docs/security/threat-model.md", "cases"), [attempts]);
    assert_eq!(numbers("docs/security/sandbox.md", "useful"), [cases("tests/escape/useful.txt")]);
}
