//! Words and paths of a prompt that are worth a search. Pure.

use std::collections::HashSet;

/// Words that do not help a search, sorted.
#[rustfmt::skip]
const COMMON: [&str; 131] = [
    "about", "add", "after", "all", "also", "and", "any", "are", "because", "been", "before", "being",
    "between", "but", "called", "can", "change", "code", "computed", "could", "create", "defined", "does",
    "done", "each", "explain", "file", "files", "find", "fix", "for", "from", "get", "give", "had", "handle",
    "handled", "handles", "happen", "happens", "has", "have", "hello", "help", "her", "here", "him", "his",
    "how", "implement", "implemented", "into", "its", "just", "know", "let", "line", "lines", "logic", "look",
    "make", "makes", "many", "may", "more", "most", "must", "need", "needs", "new", "not", "now", "off",
    "one", "only", "other", "our", "out", "over", "plan", "please", "project", "put", "refactor", "remove",
    "repo", "repository", "same", "see", "she", "should", "show", "some", "such", "take", "tell", "than",
    "thanks", "that", "the", "their", "them", "then", "there", "these", "they", "this", "those", "use",
    "used", "uses", "using", "want", "was", "way", "were", "what", "when", "where", "which", "while", "who",
    "why", "will", "with", "work", "works", "would", "write", "you", "your",
];

/// Words of [`COMMON`] that often name a function, sorted: verbs in their base form, and `new`.
const VERBS: [&str; 21] = [
    "add",
    "change",
    "create",
    "explain",
    "find",
    "fix",
    "get",
    "give",
    "handle",
    "help",
    "implement",
    "look",
    "make",
    "new",
    "put",
    "remove",
    "show",
    "take",
    "tell",
    "use",
    "write",
];

/// Words after which no sentence continues with a verb in its base form, sorted. Such a verb is a name.
const BEFORE_NAMES: [&str; 12] = [
    "are", "class", "does", "explain", "find", "fix", "function", "is", "method", "refactor", "show",
    "struct",
];

/// Maximum characters of a prompt that are examined, because pasted logs repeat themselves.
const MAX_SCANNED: usize = 4_000;

const LONGEST: usize = 60;

/// Endings of inflected forms, longest first.
const ENDINGS: [&str; 12] = ["ying", "ies", "ied", "ing", "ers", "es", "ed", "er", "y", "e", "s", ""];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PromptWord {
    pub text: String,
    /// Shared start of all forms, in lower case. Identifiers stay whole.
    pub stem: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedPath {
    pub path: String,
    pub line: Option<u32>,
}

impl PromptWord {
    fn new(text: &str) -> Self {
        Self { text: text.to_owned(), stem: stem(&text.to_lowercase()) }
    }

    /// Regular expression for the forms of the word, alone or as a part of `snake_case` or `camelCase`.
    pub(super) fn pattern(&self) -> String {
        if is_identifier(&self.text) {
            return format!("(?i:{})", escape(&self.text));
        }
        let forms = format!("(?:{})", ENDINGS.join("|"));
        let (stem, end) = (escape(&self.stem), r"(?:\b|_|[A-Z])");
        let mut capital = self.stem.clone();
        if let Some(first) = capital.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        format!(r"(?:\b|_)(?i:{stem}{forms}){end}|{}{forms}{end}", escape(&capital))
    }

    /// Regular expression for lines that seem to define a name with this word.
    pub(super) fn definition_pattern(&self) -> String {
        const BEFORE: &str = r"(?:pub(?:\([^)]*\))?|export|default|async|static|public|private|protected|abstract|final|unsafe|extern|inline|const)";
        const KIND: &str =
            "(?:fn|func|function|def|class|struct|enum|trait|interface|type|mod|module|const|macro_rules!)";
        format!(r"^\s*(?:{BEFORE}\s+)*{KIND}\s+(?:\([^)]*\)\s*)?\w*(?i:{})", escape(&self.stem))
    }
}

/// The most specific words come first: names, then long words.
pub(super) fn of(prompt: &str, most: usize) -> Vec<PromptWord> {
    let scanned: String = prompt.chars().take(MAX_SCANNED).collect();
    let mut known_stems = HashSet::new();
    let mut words: Vec<(bool, PromptWord)> = Vec::new();
    let mut before = String::new();
    for PromptToken { text, is_marked } in tokens(&scanned) {
        let lower = text.to_lowercase();
        let is_common = COMMON.binary_search(&lower.as_str()).is_ok();
        let is_asked = VERBS.binary_search(&lower.as_str()).is_ok()
            && BEFORE_NAMES.binary_search(&before.as_str()).is_ok();
        before = lower;
        let is_name = is_marked || is_asked;
        let has_length = (3..=LONGEST).contains(&text.chars().count());
        if !has_length || is_common && !is_name || text.parse::<u64>().is_ok() {
            continue;
        }
        let word = PromptWord::new(text);
        if known_stems.insert(word.stem.clone()) {
            words.push((is_name || is_identifier(text), word));
        }
    }
    words.sort_by_key(|(is_name, word)| std::cmp::Reverse((*is_name, word.stem.chars().count())));
    words.truncate(most);
    words.into_iter().map(|(_, word)| word).collect()
}

struct PromptToken<'a> {
    text: &'a str,
    /// The prompt marks the word as code: in backticks, or as a call.
    is_marked: bool,
}

/// The words of a prompt outside of paths.
fn tokens(prompt: &str) -> impl Iterator<Item = PromptToken<'_>> {
    let outside_paths = prompt.split_whitespace().filter(|part| named(part).is_none());
    outside_paths.flat_map(|part| {
        let mut end = 0;
        let words = part.split(|c: char| !is_word_char(c)).map(move |text| {
            let start = end;
            end = start + text.len();
            let (before, after) = (&part[..start], &part[end..]);
            end += after.chars().next().map_or(0, char::len_utf8);
            let is_marked = before.ends_with('`') && after.starts_with('`') || after.starts_with("()");
            PromptToken { text, is_marked }
        });
        words.filter(|token| !token.text.is_empty())
    })
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

pub(super) fn paths(prompt: &str, most: usize) -> Vec<NamedPath> {
    let scanned: String = prompt.chars().take(MAX_SCANNED).collect();
    let mut paths: Vec<NamedPath> = scanned.split_whitespace().filter_map(named).collect();
    paths.dedup();
    paths.truncate(most);
    paths
}

fn named(token: &str) -> Option<NamedPath> {
    // An editor's link: `[name](file:///path)`.
    let token = token.split_once("](").map_or(token, |(_, link)| link);
    let token = token.trim_start_matches("file://");
    let token =
        token.trim_matches(|c: char| matches!(c, '(' | ')' | '"' | '\'' | '`' | ',' | ';' | '?' | '!'));
    let token = token.trim_end_matches(['.', ':']);
    let (path, line) = match token.split_once(':') {
        Some((path, rest)) => (path, rest.split(':').next().and_then(|line| line.parse().ok())),
        None => (token, None),
    };
    let (stem, ending) = path.rsplit_once('.')?;
    let is_ending = (1..=5).contains(&ending.len()) && ending.chars().all(|c| c.is_ascii_alphanumeric());
    let is_name = stem.chars().count() > 1 && !path.contains("://") && path.chars().any(char::is_alphabetic);
    let is_number = ending.chars().all(|c| c.is_ascii_digit());
    (is_ending && is_name && !is_number).then(|| NamedPath { path: path.to_owned(), line })
}

fn is_identifier(text: &str) -> bool {
    text.contains('_') || text.chars().skip(1).any(char::is_uppercase)
}

/// Returns the shared start of a word's forms: `retr` for `retry` and `retries`.
fn stem(word: &str) -> String {
    if word.contains('_') || word.ends_with("ss") {
        return word.to_owned();
    }
    let shorter = ENDINGS.into_iter().find_map(|ending| {
        let stem = word.strip_suffix(ending)?;
        (ending.is_empty() || stem.chars().count() >= 3).then_some(stem)
    });
    shorter.unwrap_or(word).to_owned()
}

fn escape(stem: &str) -> String {
    stem.chars().flat_map(|c| if c.is_alphanumeric() || c == '_' { vec![c] } else { vec!['\\', c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(prompt: &str, expected: &[&str]) {
        let stems: Vec<_> = of(prompt, 4).into_iter().map(|word| word.stem).collect();
        assert_eq!(stems, expected, "{prompt}");
    }

    #[test]
    fn distinctive_keywords_are_extracted() {
        check("where is the retry logic?", &["retr"]);
        check("Where are retries handled? And retrying?", &["retr"]);
        check("Why does parse_config fail in ConfigLoader::new", &["parse_config", "configload", "fail"]);
        check("is it? 12 345", &[]);
        check("access classes", &["access", "class"]);
        check("what is wrong in src/main.rs:12?", &["wrong"]);
    }

    #[test]
    fn common_words_are_keywords_where_they_are_names() {
        check("where is add?", &["add"]);
        check("Explain add", &["add"]);
        check("how is the function get tested", &["get", "function", "test"]);
        check("why does `for` or show() fail", &["show", "for", "fail"]);
        for control in ["add a file", "what is this?", "is there a fix", "explain the change, please"] {
            check(control, &[]);
        }
    }

    #[test]
    fn lists_of_words_are_sorted() {
        assert!(COMMON.is_sorted() && VERBS.is_sorted() && BEFORE_NAMES.is_sorted());
        assert!(VERBS.iter().all(|verb| COMMON.contains(verb)));
    }

    #[test]
    fn keyword_pattern_matches_only_inflected_forms() {
        let matches = |text: &str, line: &str| {
            grep_regex::RegexMatcher::new(&of(text, 1)[0].pattern())
                .is_ok_and(|matcher| grep_matcher::Matcher::is_match(&matcher, line.as_bytes()).unwrap())
        };
        for line in
            ["fn retry()", "retries = 3", "RetryPolicy", "max_retries", "maxRetries", "was retried.", "RETRY"]
        {
            assert!(matches("retry", line), "{line}");
        }
        for line in ["retrieve it", "a retrospective", "symmetry", "multicast"] {
            assert!(!matches("retry", line), "{line}");
        }
        assert!(matches("notify_waiters", "pub fn notify_waiters(&self)"));
    }

    #[test]
    fn file_paths_in_a_prompt_are_found() {
        let seen =
            |prompt: &str| paths(prompt, 3).into_iter().map(|it| (it.path, it.line)).collect::<Vec<_>>();
        assert_eq!(seen("look at ./src/a.rs:238, please"), [("./src/a.rs".into(), Some(238))]);
        assert_eq!(
            seen("[b.py](file:///tmp/x/b.py) and 1.5 or e.g. https://a.com"),
            [("/tmp/x/b.py".into(), None)]
        );
    }

    #[test]
    fn keyword_count_is_limited_for_very_long_prompts() {
        let words: String = (0..200_000).map(|n| n.to_string() + "word ").collect();
        assert_eq!(of(&words, 4).len(), 4);
        assert_eq!(of(&"x".repeat(10_000_000), 4), []);
    }
}
