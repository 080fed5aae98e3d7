//! Search results: places in files, ranked. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::keywords::PromptWord;
use super::kind_and_number;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FindingPlace {
    pub path: String,
    pub line: u32,
    pub text: String,
}

#[derive(Debug)]
struct FindingFile {
    score: f64,
    words: BTreeSet<usize>,
    places: Vec<(f64, FindingPlace)>,
}

#[derive(Debug)]
pub(super) struct Findings {
    files: Vec<(String, FindingFile)>,
}

impl Findings {
    /// Reads search results. Calls `defined_N` and `mentioned_N` are about word N.
    pub(super) fn of<'a>(words: &[PromptWord], results: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut files: BTreeMap<String, FindingFile> = BTreeMap::new();
        for (id, text) in results {
            let (kind, number) = kind_and_number(id);
            let worth = match kind {
                "defined" => 3.0,
                "mentioned" => 1.0,
                _ => continue,
            };
            let Some((at, word)) = number.and_then(|at| Some((at, words.get(at)?))) else { continue };
            let places: Vec<FindingPlace> = text.lines().filter_map(place).collect();
            if places.is_empty() {
                continue;
            }
            #[expect(clippy::cast_precision_loss, reason = "a few hundred lines at most")]
            let rarity = 1.0 / (1.0 + (places.len() as f64).ln());
            for place in places {
                // Prefers `fn retry(` to `fn retry_after(`.
                let exact = kind == "defined" && has_word(&place.text, &word.text);
                let worth = worth * rarity * if exact { 3.0 } else { 1.0 };
                add(&mut files, WordMatch { place, worth, word: at, stem: &word.stem });
            }
        }
        let mut files: Vec<_> = files.into_iter().collect();
        for (path, file) in &mut files {
            // A file with two of the words counts more than a file with many matches of one word.
            #[expect(clippy::cast_precision_loss, reason = "a handful of words")]
            let breadth = file.words.len() as f64;
            file.score *= trust(path) * breadth;
            file.places.sort_by(|(a, left), (b, right)| b.total_cmp(a).then(left.line.cmp(&right.line)));
        }
        files.sort_by(|(a, left), (b, right)| right.score.total_cmp(&left.score).then(a.cmp(b)));
        Self { files }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub(super) fn places(&self) -> impl Iterator<Item = &FindingPlace> {
        self.files.iter().filter_map(|(_, file)| file.places.first().map(|(_, place)| place))
    }

    pub(super) fn files(&self, most: usize, each: usize) -> impl Iterator<Item = (&str, Vec<&FindingPlace>)> {
        self.files.iter().take(most).map(move |(path, file)| {
            (path.as_str(), file.places.iter().take(each).map(|(_, place)| place).collect())
        })
    }

    pub(super) fn tests(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|(path, _)| path.as_str()).filter(|path| is_test(path))
    }
}

/// A line that defines or mentions a word of the question.
struct WordMatch<'a> {
    place: FindingPlace,
    worth: f64,
    /// Index of the word.
    word: usize,
    stem: &'a str,
}

fn add(files: &mut BTreeMap<String, FindingFile>, WordMatch { place, worth, word, stem }: WordMatch<'_>) {
    let file = files.entry(place.path.clone()).or_insert_with(|| FindingFile {
        score: 0.0,
        words: BTreeSet::new(),
        places: Vec::new(),
    });
    file.words.insert(word);
    if file.places.is_empty() && place.path.to_lowercase().contains(stem) {
        file.score += 2.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "a few hundred lines at most")]
    let weight = worth / (1.0 + file.places.len() as f64 / 4.0);
    file.score += weight;
    match file.places.iter_mut().find(|(_, known)| known.line == place.line) {
        Some((score, _)) => *score += worth,
        None => file.places.push((worth, place)),
    }
}

fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        !is_word_part(text[..at].chars().next_back()) && !is_word_part(text[at + word.len()..].chars().next())
    })
}

fn is_word_part(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_alphanumeric() || c == '_')
}

/// Tools report paths with the separators of their system.
const SEPARATORS: [char; 2] = ['/', '\\'];

/// Changes go to code. Prose and generated files only mention it.
fn trust(path: &str) -> f64 {
    let ending = path.rsplit('.').next().unwrap_or_default();
    let name = path.rsplit(SEPARATORS).next().unwrap_or_default().to_lowercase();
    let is_fixture = path
        .split(SEPARATORS)
        .any(|part| matches!(part, "fixtures" | "testdata" | "vendor" | "node_modules"));
    let is_generated = ["lock", "svg", "map", "snap", "csv", "orig"].contains(&ending);
    if name.starts_with("changelog") || name.starts_with("license") || is_fixture || is_generated {
        0.1
    } else if ["md", "txt", "rst", "adoc", "html", "json", "yaml", "yml", "toml"].contains(&ending) {
        0.4
    } else if is_test(path) {
        0.6
    } else {
        1.0
    }
}

fn is_test(path: &str) -> bool {
    let path = path.to_lowercase();
    let name = path.rsplit(SEPARATORS).next().unwrap_or_default();
    path.split(SEPARATORS).any(|part| matches!(part, "test" | "tests" | "spec" | "specs" | "__tests__"))
        || name.starts_with("test_")
        || ["_test.", ".test.", ".spec.", "_spec."].iter().any(|mark| name.contains(mark))
}

fn place(line: &str) -> Option<FindingPlace> {
    line.match_indices(':').find_map(|(at, _)| {
        let (number, text) = line[at + 1..].split_once(':')?;
        let line_number = number.parse().ok()?;
        Some(FindingPlace { path: line[..at].to_owned(), line: line_number, text: text.trim().to_owned() })
    })
}

#[cfg(test)]
mod tests {
    use super::super::keywords;
    use super::*;

    #[test]
    fn definitions_in_code_rank_before_mentions_in_prose() {
        let words = keywords::of("retry", 4);
        let results = [
            ("defined_0", "src/http.rs:40:pub fn retry() {"),
            (
                "mentioned_0",
                "README.md:3:Retry is on\nsrc/http.rs:7:// retry\nsrc/http.rs:40:pub fn retry() {",
            ),
        ];
        let findings = Findings::of(&words, results.into_iter());
        let best: Vec<_> = findings.places().map(|place| (place.path.as_str(), place.line)).collect();
        assert_eq!(best, [("src/http.rs", 40), ("README.md", 3)]);
    }

    #[test]
    fn search_result_lines_are_parsed() {
        let read = |line| place(line).map(|place| (place.path, place.line, place.text));
        assert_eq!(read("a/b.rs:12:   let x: u8 = 1;"), Some(("a/b.rs".into(), 12, "let x: u8 = 1;".into())));
        assert_eq!(read("c:d.rs:3:y"), Some(("c:d.rs".into(), 3, "y".into())));
        for note in ["[No line matches.]", "[a.rs: 2 more matching lines.]"] {
            assert_eq!(read(note), None);
        }
    }
}
