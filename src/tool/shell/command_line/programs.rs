//! Programs for which an "always allow" answer covers more than the exact command. Pure.
//!
//! A row must hold for every command that it matches: the command opens, writes and runs nothing but what
//! `varies` says. An answer for any other program, or with any other option (even an abbreviated one), covers
//! only the same words.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Covered {
    /// Text for people, and the key of the remembered answer.
    pub shown: String,
    pub paths: Vec<String>,
    /// True if the answer is only for the same working directory, because the command finds its project there.
    pub depends_on_folder: bool,
}

struct CoveredProgram {
    /// First words of the command.
    words: &'static str,
    /// What differs between covered commands, as displayed after the words.
    varies: &'static str,
    /// Short options without a value.
    flags: &'static str,
    /// Short options with a value, attached or as the next word.
    valued: &'static str,
    /// True if a number is a short option, as in `head -20`.
    takes_number: bool,
    /// Long options without a value.
    long: &'static [&'static str],
    /// Long options with a value after `=`.
    attached: &'static [&'static str],
    /// Long options with a value after `=` or as the next word.
    either: &'static [&'static str],
    operands: Operands,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operands {
    Words,
    Paths,
    PatternAndPaths,
    /// A range of lines (`10,20p`), then at least one path.
    LinesAndPaths,
    PathsAndConditions,
    RevisionsAndPaths,
    /// Cargo tests; after `--`, test names and options of the test program.
    CargoTests,
    Nothing,
    /// No operands; after `--`, lint levels.
    Lints,
    GoPackages,
    Pytest,
}

use Operands::{
    CargoTests, GoPackages, LinesAndPaths, Lints, Nothing, Paths, PathsAndConditions, PatternAndPaths,
    Pytest, RevisionsAndPaths, Words,
};

#[rustfmt::skip]
const CARGO: &[&str] = &[
    "lib", "bins", "tests", "examples", "benches", "all-targets", "all", "workspace", "all-features",
    "no-default-features", "release", "keep-going", "no-run", "no-fail-fast", "doc", "locked", "offline", "frozen",
    "quiet", "verbose",
];

#[rustfmt::skip]
const CARGO_VALUED: &[&str] = &[
    "bin", "test", "example", "bench", "package", "exclude", "features", "profile", "jobs", "message-format",
    "color",
];

#[rustfmt::skip]
const PYTEST: &[&str] = &[
    "quiet", "verbose", "exitfirst", "no-header", "no-summary", "collect-only", "last-failed", "lf", "failed-first",
    "ff", "stepwise", "sw",
];

const PYTEST_ATTACHED: &[&str] = &["maxfail", "tb", "durations"];

const IN_FOLDERS: &str = "on any files in the session's folders";
const TARGETS: &str = "with any packages, targets and features";
const TESTS: &str = "with any tests in the session's folders";

const fn row(words: &'static str, varies: &'static str, operands: Operands) -> CoveredProgram {
    CoveredProgram {
        words,
        varies,
        flags: "",
        valued: "",
        takes_number: false,
        long: &[],
        attached: &[],
        either: &[],
        operands,
    }
}

// `words` and `varies` are the key of remembered answers: with another wording, earlier answers do not apply.
#[rustfmt::skip]
const PROGRAMS: &[CoveredProgram] = &[
    row("echo", "with any words", Words),
    CoveredProgram { flags: "AbEnstTuv", ..row("cat", IN_FOLDERS, Paths) },
    CoveredProgram { flags: "qv", valued: "nc", takes_number: true, ..row("head", IN_FOLDERS, Paths) },
    CoveredProgram { flags: "qv", valued: "nc", takes_number: true, ..row("tail", IN_FOLDERS, Paths) },
    CoveredProgram { flags: "clmwL", ..row("wc", IN_FOLDERS, Paths) },
    CoveredProgram { flags: "lahAtrRSd1isngop", long: &["all", "almost-all", "human-readable", "recursive", "reverse"], ..row("ls", IN_FOLDERS, Paths) },
    CoveredProgram { valued: "c", attached: &["format"], ..row("stat", IN_FOLDERS, Paths) },
    CoveredProgram { flags: "shackmx", valued: "d", long: &["summarize", "human-readable", "all", "total"], attached: &["max-depth"], ..row("du", IN_FOLDERS, Paths) },
    row("md5sum", IN_FOLDERS, Paths),
    row("sha1sum", IN_FOLDERS, Paths),
    row("sha256sum", IN_FOLDERS, Paths),
    CoveredProgram {
        flags: "EFGPivwxcLloqshHnrI", valued: "ABme",
        long: &[
            "line-number", "ignore-case", "recursive", "count", "files-with-matches", "files-without-match", "word-regexp", "line-regexp",
            "fixed-strings", "extended-regexp", "perl-regexp", "only-matching", "no-messages", "invert-match", "no-filename", "with-filename",
        ],
        attached: &[
            "include", "exclude", "exclude-dir", "color", "max-count", "after-context", "before-context", "context",
        ],
        ..row("grep", IN_FOLDERS, PatternAndPaths)
    },
    CoveredProgram {
        flags: "nNiSswxclovFUaHIP0pqu", valued: "ABCegmtT",
        long: &[
            "hidden", "no-ignore", "ignore-case", "smart-case", "case-sensitive", "fixed-strings", "line-number", "no-line-number", "no-heading",
            "heading", "count", "count-matches", "files-with-matches", "files-without-match", "word-regexp", "line-regexp", "multiline",
            "only-matching", "invert-match", "with-filename", "no-filename", "vimgrep", "json", "stats",
        ],
        attached: &[
            "glob", "iglob", "type", "type-not", "max-count", "max-depth", "context", "after-context", "before-context", "color", "sort",
        ],
        ..row("rg", IN_FOLDERS, PatternAndPaths)
    },
    row("find", "without actions, in the session's folders", PathsAndConditions),
    CoveredProgram { flags: "n", ..row("sed -n", "of any lines, on any files in the session's folders", LinesAndPaths) },
    CoveredProgram { flags: "sb", long: &["short", "branch", "long", "porcelain", "ignored"], attached: &["porcelain", "untracked-files"], ..row("git status", "on any paths", RevisionsAndPaths) },
    CoveredProgram {
        valued: "n", takes_number: true,
        long: &[
            "oneline", "graph", "all", "decorate", "no-decorate", "no-merges", "merges", "first-parent", "reverse", "abbrev-commit", "name-only",
            "name-status",
        ],
        attached: &[
            "max-count", "skip", "since", "until", "after", "before", "author", "grep",
        ],
        ..row("git log", "without patches, of any revisions and paths", RevisionsAndPaths)
    },
    CoveredProgram { flags: "qvr", valued: "pjF", long: CARGO, either: CARGO_VALUED, ..row("cargo test", "with any tests, packages and features", CargoTests) },
    CoveredProgram { flags: "qvr", valued: "pjF", long: CARGO, either: CARGO_VALUED, ..row("cargo build", TARGETS, Nothing) },
    CoveredProgram { flags: "qvr", valued: "pjF", long: CARGO, either: CARGO_VALUED, ..row("cargo check", TARGETS, Nothing) },
    CoveredProgram { flags: "qvr", valued: "pjF", long: CARGO, either: CARGO_VALUED, ..row("cargo clippy", "with any packages, targets, features and lints", Lints) },
    row("go test", "with any packages and tests in the session's folders", GoPackages),
    CoveredProgram { flags: "qvxsl", valued: "kmr", long: PYTEST, attached: PYTEST_ATTACHED, ..row("pytest", TESTS, Pytest) },
    CoveredProgram { flags: "qvxsl", valued: "kmr", long: PYTEST, attached: PYTEST_ATTACHED, ..row("python -m pytest", TESTS, Pytest) },
    CoveredProgram { flags: "qvxsl", valued: "kmr", long: PYTEST, attached: PYTEST_ATTACHED, ..row("python3 -m pytest", TESTS, Pytest) },
];

/// Each path is resolved for the decision. Commands with more are covered word for word.
const MAX_PATHS: usize = 64;

pub(super) fn covered(words: &[String]) -> Option<Covered> {
    let (program, rest) = PROGRAMS.iter().find_map(|program| {
        let (start, rest) = words.split_at_checked(program.words.split(' ').count())?;
        program.words.split(' ').eq(start).then_some((program, rest))
    })?;
    let paths = program.paths(rest)?;
    // An empty word names no file, and programs read it in different ways.
    let has_usable_paths = paths.len() <= MAX_PATHS && !paths.iter().any(String::is_empty);
    let depends_on_folder =
        !matches!(program.operands, Words | Paths | PatternAndPaths | LinesAndPaths | PathsAndConditions);
    let shown_words = format!("`{}` {}", program.words, program.varies);
    has_usable_paths.then_some(Covered { shown: shown_words, paths, depends_on_folder })
}

#[derive(Default)]
struct ProgramOperands {
    operands: Vec<String>,
    after_dashes: Vec<String>,
    has_pattern: bool,
}

impl ProgramOperands {
    fn all(&self) -> impl Iterator<Item = String> {
        self.operands.iter().chain(&self.after_dashes).cloned()
    }
}

impl CoveredProgram {
    /// Returns the paths that the words name, or `None` if one of the words is unknown.
    fn paths(&self, words: &[String]) -> Option<Vec<String>> {
        match self.operands {
            Words => Some(Vec::new()),
            PathsAndConditions => find(words),
            GoPackages => go_test(words),
            Paths => Some(self.options(words)?.all().collect()),
            PatternAndPaths => {
                let rest = self.options(words)?;
                Some(rest.all().skip(usize::from(!rest.has_pattern)).collect())
            }
            LinesAndPaths => {
                let rest = self.options(words)?;
                let lines = rest.all().next()?;
                let is_number =
                    |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                let range = lines.strip_suffix('p')?;
                let is_range = match range.split_once(',') {
                    Some((first, last)) => is_number(first) && (is_number(last) || last == "$"),
                    None => is_number(range) || range == "$",
                };
                let paths: Vec<String> = rest.all().skip(1).collect();
                (is_range && !paths.is_empty()).then_some(paths)
            }
            RevisionsAndPaths => {
                // A word may be a revision or a path. Each is checked as a path, because that is the stricter reading.
                let words: Vec<String> = self.options(words)?.all().collect();
                (!words.iter().any(|word| word.starts_with(':'))).then_some(words)
            }
            CargoTests => are_test_options(&self.options(words)?.after_dashes).then(Vec::new),
            Nothing => self.options(words)?.all().next().is_none().then(Vec::new),
            Lints => {
                let rest = self.options(words)?;
                (rest.operands.is_empty() && are_lint_levels(&rest.after_dashes)).then(Vec::new)
            }
            Pytest => {
                // `@file` contains further arguments, and pytest loads a plugin even with a `-p` after `--`.
                let rest = self.options(words)?;
                let has_options = rest.all().any(|word| word.starts_with(['@', '-']));
                let paths = rest.all().map(|word| word.split("::").next().unwrap_or_default().to_owned());
                (!has_options).then(|| paths.collect())
            }
        }
    }

    fn options(&self, words: &[String]) -> Option<ProgramOperands> {
        let mut rest = ProgramOperands::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--" {
                rest.after_dashes = words.cloned().collect();
                break;
            } else if let Some(long) = word.strip_prefix("--") {
                self.long(long, &mut words)?;
            } else if let Some(short) = word.strip_prefix('-') {
                rest.has_pattern |= self.short(short, &mut words)?;
            } else {
                rest.operands.push(word.clone());
            }
        }
        Some(rest)
    }

    fn long<'a>(&self, option: &str, words: &mut impl Iterator<Item = &'a String>) -> Option<()> {
        let (name, value) = name_and_value(option);
        match value {
            Some(_) => (self.attached.contains(&name) || self.either.contains(&name)).then_some(()),
            None if self.long.contains(&name) => Some(()),
            None if self.either.contains(&name) => {
                words.next().filter(|value| !value.starts_with('-')).map(|_| ())
            }
            None => None,
        }
    }

    /// False for cargo and pytest, which may take the next word for an option although it looks like a value:
    /// cargo's `-p` has an optional value, and pytest reads `-p` and `@file` anywhere.
    fn takes_any_value(&self) -> bool {
        !matches!(self.operands, CargoTests | Nothing | Lints | Pytest)
    }

    /// Returns whether the options contain a pattern (`-e`), or `None` if one is unknown.
    fn short<'a>(&self, bundle: &str, words: &mut impl Iterator<Item = &'a String>) -> Option<bool> {
        if self.takes_number && !bundle.is_empty() && bundle.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(false);
        }
        for (at, option) in bundle.char_indices() {
            if self.valued.contains(option) {
                if at + option.len_utf8() == bundle.len() {
                    words.next().filter(|value| self.takes_any_value() || !value.starts_with(['-', '@']))?;
                }
                return Some(option == 'e' && self.operands == PatternAndPaths);
            }
            if !self.flags.contains(option) {
                return None;
            }
        }
        (!bundle.is_empty()).then_some(false)
    }
}

fn name_and_value(option: &str) -> (&str, Option<&str>) {
    option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)))
}

fn are_test_options(words: &[String]) -> bool {
    #[rustfmt::skip]
    const FLAGS: &[&str] = &[
        "--nocapture", "--no-capture", "--exact", "--ignored", "--include-ignored", "--list", "--quiet", "-q",
        "--show-output",
    ];
    const VALUED: &[&str] = &["--test-threads", "--skip"];
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let name = word.split('=').next().unwrap_or_default();
        let is_known = !word.starts_with('-')
            || FLAGS.contains(&word)
            || (VALUED.contains(&name) && (word.contains('=') || words.next().is_some()));
        if !is_known {
            return false;
        }
    }
    true
}

fn are_lint_levels(words: &[String]) -> bool {
    words.chunks(2).all(|pair| {
        matches!(pair, [level, lint] if matches!(level.as_str(), "-D" | "-W" | "-A")
            && lint.starts_with(char::is_alphabetic)
            && lint.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-')))
    })
}

fn find(words: &[String]) -> Option<Vec<String>> {
    const PLAIN: &[&str] =
        &["-empty", "-print", "-print0", "-not", "!", "-a", "-and", "-o", "-or", "-prune", "-depth", "-xdev"];
    #[rustfmt::skip]
    const VALUED: &[&str] = &[
        "-name", "-iname", "-path", "-ipath", "-type", "-maxdepth", "-mindepth", "-size", "-mtime", "-mmin",
        "-regex", "-iregex",
    ];
    let paths: Vec<String> =
        words.iter().take_while(|word| !word.starts_with('-') && *word != "!").cloned().collect();
    let mut conditions = words[paths.len()..].iter();
    while let Some(word) = conditions.next() {
        let is_known = PLAIN.contains(&word.as_str())
            || (VALUED.contains(&word.as_str()) && conditions.next().is_some());
        if !is_known {
            return None;
        }
    }
    Some(paths)
}

fn go_test(words: &[String]) -> Option<Vec<String>> {
    const FLAGS: &[&str] = &["v", "race", "short", "failfast", "cover", "json"];
    const VALUED: &[&str] = &["run", "skip", "count", "timeout", "cpu", "parallel", "p"];
    let mut paths = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(option) = word.strip_prefix('-') else {
            let folder = word.strip_suffix("...").unwrap_or(word);
            let is_local = word == "." || word.starts_with("./");
            if !is_local || folder.contains("...") {
                return None;
            }
            paths.push(folder.to_owned());
            continue;
        };
        let (name, value) = name_and_value(option);
        let is_known = (value.is_none() && FLAGS.contains(&name))
            || (VALUED.contains(&name) && (value.is_some() || words.next().is_some()));
        if !is_known {
            return None;
        }
    }
    Some(paths)
}
