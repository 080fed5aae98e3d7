//! The words of a prompt that are worth searching for. Pure.

/// Words that say nothing about where to look.
const COMMON: [&str; 120] = [
    "about",
    "add",
    "after",
    "all",
    "also",
    "and",
    "any",
    "are",
    "because",
    "been",
    "before",
    "being",
    "between",
    "but",
    "can",
    "change",
    "code",
    "could",
    "create",
    "does",
    "done",
    "each",
    "explain",
    "file",
    "files",
    "find",
    "fix",
    "for",
    "from",
    "get",
    "give",
    "had",
    "has",
    "have",
    "her",
    "here",
    "him",
    "his",
    "how",
    "implement",
    "implemented",
    "into",
    "its",
    "just",
    "know",
    "let",
    "line",
    "lines",
    "logic",
    "look",
    "make",
    "makes",
    "many",
    "may",
    "more",
    "most",
    "must",
    "need",
    "needs",
    "new",
    "not",
    "now",
    "off",
    "one",
    "only",
    "other",
    "our",
    "out",
    "over",
    "plan",
    "please",
    "project",
    "put",
    "refactor",
    "remove",
    "repo",
    "repository",
    "same",
    "see",
    "she",
    "should",
    "show",
    "some",
    "such",
    "take",
    "tell",
    "than",
    "that",
    "the",
    "their",
    "them",
    "then",
    "there",
    "these",
    "they",
    "this",
    "those",
    "use",
    "used",
    "uses",
    "using",
    "want",
    "was",
    "way",
    "were",
    "what",
    "when",
    "where",
    "which",
    "while",
    "who",
    "why",
    "will",
    "with",
    "work",
    "works",
    "would",
    "write",
    "you",
    "your",
];

/// A word and how it is searched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// As the prompt has it.
    pub text: String,
    /// Its stem, lower case: what lines are searched for.
    pub stem: String,
}

impl Word {
    fn new(text: &str) -> Self {
        Self { text: text.to_owned(), stem: stem(&text.to_lowercase()) }
    }

    /// A regular expression for lines that mention it.
    pub fn pattern(&self) -> String {
        escape(&self.stem)
    }

    /// A regular expression for lines that look like its definition, in most languages.
    pub fn definition_pattern(&self) -> String {
        format!(
            r"\b(fn|func|def|class|struct|enum|trait|type|mod|const|function|interface|module)\b[^=;]*{}",
            escape(&self.stem)
        )
    }
}

/// The most telling words of a prompt, at most `most`: identifiers first, then long words, each once.
pub fn of(prompt: &str, most: usize) -> Vec<Word> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut words: Vec<Word> = Vec::new();
    for text in prompt.split(|c: char| !is_part(c)) {
        let lower = text.to_lowercase();
        if text.chars().count() < 3
            || COMMON.binary_search(&lower.as_str()).is_ok()
            || text.parse::<u64>().is_ok()
        {
            continue;
        }
        let word = Word::new(text);
        if words.iter().all(|known| known.stem != word.stem) {
            words.push(word);
        }
    }
    words.sort_by_key(|word| std::cmp::Reverse((is_identifier(&word.text), word.stem.chars().count())));
    words.truncate(most);
    words
}

fn is_identifier(text: &str) -> bool {
    text.contains('_') || text.chars().skip(1).any(char::is_uppercase)
}

/// The part that the forms of a word share: `retries` and `retry` are both found by `retr`.
fn stem(word: &str) -> String {
    let cut = [("ies", 3), ("ying", 4), ("y", 3), ("ing", 4), ("ed", 4), ("es", 4), ("s", 3)];
    let shorter = cut.iter().find_map(|(ending, least)| {
        word.strip_suffix(ending).filter(|stem| stem.chars().count() >= *least && !word.ends_with("ss"))
    });
    if word.contains('_') { word.to_owned() } else { shorter.unwrap_or(word).to_owned() }
}

/// Words are letters, digits and underscores, so only the rest of Unicode could surprise; it stands for itself.
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
    fn the_telling_words_are_found() {
        assert!(COMMON.is_sorted());
        check("where is the retry logic?", &["retr"]);
        check("Where are retries handled? And retrying?", &["handl", "retr"]);
        check("Why does parse_config fail in ConfigLoader::new", &["parse_config", "configloader", "fail"]);
        check("is it? 12 345", &[]);
        check("access classes", &["access", "class"]);
    }
}
