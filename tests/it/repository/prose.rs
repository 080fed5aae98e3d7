//! Limits on the project's writing and dependencies. Phrases that slow down new readers stay rare in pages and in the
//! comments of code and tests, as they do in well-read Rust projects. Pages stay short, and their links lead to a
//! heading.
#![allow(clippy::cast_precision_loss, reason = "counts of words are small")]

use std::fs;
use std::path::{Path, PathBuf};

/// A figure per 1,000 words.
type Count = fn(&[String]) -> usize;

const FIGURES: [(&str, Count, f64); 6] = [
    ("vague persons (nobody, somebody, …)", vague_persons, 0.2),
    ("nominal clauses (what it is, what was, …)", nominal_clauses, 0.6),
    ("reported passives (is said, is told, …)", reported_passives, 0.6),
    ("filler adverbs (at once, by itself, …)", fillers, 0.5),
    ("hold, holds, held", |words| count(words, &["hold", "holds", "held"]), 1.5),
    ("metaphors (room, door, mend, …)", |words| count(words, &METAPHORS), 0.3),
];

const METAPHORS: [&str; 9] = ["room", "rooms", "house", "houses", "door", "doors", "mend", "mends", "mended"];

/// First words that hide the subject of a doc comment.
const QUESTIONS: [&str; 9] = ["what", "whether", "how", "who", "whom", "whose", "where", "why", "when"];
const PRONOUNS: [&str; 7] = ["it", "its", "that", "those", "these", "one", "none"];

/// The most packages that `Cargo.lock` may name.
const MAX_PACKAGES: usize = 365;

fn count(words: &[String], wanted: &[&str]) -> usize {
    words.iter().filter(|word| wanted.contains(&word.as_str())).count()
}

fn pairs(words: &[String], first: &[&str], second: &[&str]) -> usize {
    let is_pair = |pair: &&[String]| first.contains(&pair[0].as_str()) && second.contains(&pair[1].as_str());
    words.windows(2).filter(is_pair).count()
}

fn vague_persons(words: &[String]) -> usize {
    count(words, &["nobody", "somebody", "whoever", "everybody", "whom"])
}

fn nominal_clauses(words: &[String]) -> usize {
    pairs(words, &["what"], &["it", "is", "was", "were", "they", "has", "a", "the", "one", "there"])
}

fn reported_passives(words: &[String]) -> usize {
    let said = ["said", "told", "heard", "shown", "asked", "named"];
    pairs(words, &["is", "are", "was", "were", "be", "been"], &said)
}

fn fillers(words: &[String]) -> usize {
    pairs(words, &["at"], &["once"])
        + pairs(words, &["by"], &["itself"])
        + pairs(words, &["for"], &["certain"])
        + pairs(words, &["of"], &["old"])
        + count(words, &["likewise", "besides", "meanwhile"])
}

fn words(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || "_'-".contains(c);
    let words = text.split(|c| !is_part(c)).filter(|word| word.contains(char::is_alphanumeric));
    words.map(str::to_lowercase).collect()
}

/// The most lines of the README: one screen.
const README: usize = 80;

/// The widest line of prose. Tables, headings and code may be wider.
const WIDTH: usize = 110;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
}

/// The kind of a comment (`///`, `//!` or `//`) and its words.
type Comment = (&'static str, Vec<String>);

/// Splits a source file before its tests.
fn code_and_tests(text: &str) -> (&str, &str) {
    text.split_at(text.find("#[cfg(test)]\nmod ").unwrap_or(text.len()))
}

fn comments(text: &str) -> Vec<Comment> {
    let mut blocks: Vec<(&str, String)> = Vec::new();
    let mut before = None;
    for line in text.lines().map(str::trim_start) {
        let kind = ["///", "//!", "//"].into_iter().find(|kind| line.starts_with(kind));
        if let Some(kind) = kind {
            let text = &line[kind.len()..];
            match blocks.last_mut() {
                Some((_, block)) if before == Some(kind) => block.push_str(text),
                _ => blocks.push((kind, text.to_owned())),
            }
        }
        before = kind;
    }
    let words_of = |text: &str| {
        // Code such as `None` is no pronoun.
        let code = if text.trim_start().starts_with('`') { "code " } else { "" };
        words(&format!("{code}{text}"))
    };
    blocks.into_iter().map(|(kind, text)| (kind, words_of(&text))).collect()
}

/// Returns the comments of the code and those of the tests.
fn comments_of_code_and_tests() -> [Vec<Comment>; 2] {
    let (mut of_code, mut of_tests) = (Vec::new(), Vec::new());
    for folder in ["src", "tests"] {
        let mut sources = Vec::new();
        files(&root().join(folder), "rs", &mut sources);
        for path in sources {
            let text = fs::read_to_string(&path).unwrap();
            let is_test = folder == "tests" || path.ends_with("tests.rs");
            let (code, tests) = if is_test { ("", text.as_str()) } else { code_and_tests(&text) };
            of_code.extend(comments(code));
            of_tests.extend(comments(tests));
        }
    }
    [of_code, of_tests]
}

/// Checks every figure. The message has all figures over their limit.
fn check(words: &[String]) {
    let over: Vec<String> = FIGURES
        .iter()
        .map(|(name, figure, limit)| (name, 1000.0 * figure(words) as f64 / words.len() as f64, limit))
        .filter(|(_, found, limit)| found > *limit)
        .map(|(name, found, limit)| format!("{name}: {found:.2} per 1,000 words, at most {limit}"))
        .collect();
    assert!(over.is_empty(), "{}", over.join("\n"));
}

#[test]
fn comments_use_plain_words() {
    for comments in comments_of_code_and_tests() {
        let all: Vec<String> = comments.into_iter().flat_map(|(_, words)| words).collect();
        check(&all);
    }
}

struct ProsePage {
    /// Relative to the repository.
    path: String,
    text: String,
    /// Lines outside of code blocks.
    prose: Vec<String>,
}

fn pages() -> Vec<ProsePage> {
    let mut paths = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    files(&root().join("docs"), "md", &mut paths);
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let mut in_code = false;
        let is_prose = |line: &&str| {
            let is_fence = line.trim_start().starts_with("```");
            in_code ^= is_fence;
            !in_code && !is_fence
        };
        let prose = text.lines().filter(is_prose).map(str::to_owned).collect();
        ProsePage { path: path.strip_prefix(root()).unwrap().display().to_string(), prose, text }
    };
    paths.iter().map(read).collect()
}

#[test]
fn pages_use_plain_words() {
    let all: Vec<String> = pages().iter().flat_map(|page| words(&page.prose.join("\n"))).collect();
    check(&all);
}

#[test]
fn readme_fits_a_screen_and_lines_a_window() {
    for ProsePage { path, text, prose } in pages() {
        assert!(path != "README.md" || text.lines().count() <= README, "{path} has over {README} lines");
        let is_text = |line: &&String| !line.starts_with(['|', '#', '<']);
        for line in prose.iter().filter(is_text) {
            assert!(line.chars().count() <= WIDTH, "{path}: over {WIDTH} columns: {line}");
        }
    }
}

/// Single decisions are in the index of decisions.
#[test]
fn contents_name_each_page_once() {
    let contents = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let pages = pages();
    let paths = pages.iter().filter_map(|page| page.path.strip_prefix("docs/"));
    for path in paths.filter(|path| !path.contains("/decisions/0") && *path != "SUMMARY.md") {
        assert_eq!(contents.matches(&format!("]({path})")).count(), 1, "{path}");
    }
    let index = fs::read_to_string(root().join("docs/internals/decisions/README.md")).unwrap();
    let decisions = pages.iter().filter_map(|page| page.path.strip_prefix("docs/internals/decisions/"));
    for path in decisions.filter(|path| *path != "README.md") {
        assert_eq!(index.matches(&format!("]({path})")).count(), 1, "{path}");
    }
}

/// The link to the successor leads to a page, as all links do.
#[test]
fn index_names_the_successor_of_a_replaced_decision() {
    let index = fs::read_to_string(root().join("docs/internals/decisions/README.md")).unwrap();
    let entries: Vec<String> = index.split("\n- ").map(|entry| entry.replace("\n  ", " ")).collect();
    let mut replaced = 0;
    for ProsePage { path, text, .. } in pages() {
        let Some((_, successor)) = text.split_once("\nReplaced by [") else { continue };
        let (number, successor) = (&path["docs/internals/decisions/".len()..][..4], &successor[..4]);
        let entry = entries.iter().find(|entry| entry.starts_with(&format!("[{number}]"))).unwrap();
        assert!(entry.contains(&format!("(replaced by {successor})")), "{entry}");
        replaced += 1;
    }
    assert_eq!(index.matches("(replaced by ").count(), replaced);
}

/// The name of a heading in links, as GitHub and most Markdown tools make it.
fn anchor(heading: &str) -> String {
    let is_part = |c: &char| c.is_alphanumeric() || "_- ".contains(*c);
    let text: String = heading.to_lowercase().chars().filter(is_part).collect();
    text.trim().replace(' ', "-")
}

#[test]
fn links_lead_to_a_page_and_a_heading() {
    for ProsePage { path, prose, .. } in pages() {
        let folder = root().join(&path).parent().unwrap().to_owned();
        let prose = prose.join("\n");
        for (at, _) in prose.match_indices("](") {
            let link = prose[at + 2..].split(')').next().unwrap();
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            if file.contains("://") {
                continue;
            }
            let target = if file.is_empty() { root().join(&path) } else { folder.join(file) };
            assert!(target.exists(), "{path}: {link} leads nowhere");
            if !heading.is_empty() {
                let page = fs::read_to_string(&target).unwrap();
                let headings = page.lines().filter(|line| line.starts_with('#'));
                let mut anchors = headings.map(|line| anchor(line.trim_start_matches('#')));
                assert!(anchors.any(|anchor| anchor == heading), "{path}: {link} has no such heading");
            }
        }
    }
}

#[test]
fn doc_comments_name_their_subject() {
    for comments in comments_of_code_and_tests() {
        let docs: Vec<_> = comments.into_iter().filter(|(kind, _)| *kind == "///").collect();
        let share = |openers: &[&str]| {
            let is_opener =
                |words: &[String]| words.first().is_some_and(|word| openers.contains(&word.as_str()));
            100.0 * docs.iter().filter(|(_, words)| is_opener(words)).count() as f64 / docs.len() as f64
        };
        let short = docs.iter().filter(|(_, words)| words.len() <= 3).count() as f64 / docs.len() as f64;
        assert!(share(&QUESTIONS) <= 6.0, "{:.1} % begin with a question word", share(&QUESTIONS));
        assert!(share(&PRONOUNS) <= 1.0, "{:.1} % begin with a pronoun", share(&PRONOUNS));
        assert!(short <= 0.06, "{:.1} % have three words or fewer", 100.0 * short);
    }
}

#[test]
fn wording_figures_detect_known_bad_text() {
    let text = "What is on at once; nobody is told in whose house it is held.";
    let counts: Vec<usize> = FIGURES.iter().map(|(_, figure, _)| figure(&words(text))).collect();
    assert_eq!(counts, [1, 1, 1, 1, 1, 1]);
    let plain = "Returns the effective mode, or `None` if the session was never saved.";
    assert!(FIGURES.iter().all(|(_, figure, _)| figure(&words(plain)) == 0));
    let source =
        "//! A module.\n//! More.\n\n/// One.\nfn a() {}\n// Why.\n#[cfg(test)]\nmod tests {\n// no\n}";
    let kinds =
        |text: &str| comments(text).iter().map(|(kind, words)| (*kind, words.len())).collect::<Vec<_>>();
    let (code, tests) = code_and_tests(source);
    assert_eq!(kinds(code), [("//!", 3), ("///", 1), ("//", 1)]);
    assert_eq!(kinds(tests), [("//", 1)]);
}

#[test]
fn lock_file_stays_below_the_package_limit() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let packages = lock.lines().filter(|line| *line == "[[package]]").count();
    let page = "docs/internals/decisions/0001-dependencies.md";
    assert!(packages <= MAX_PACKAGES, "{packages} packages, at most {MAX_PACKAGES}: see {page}");
}
