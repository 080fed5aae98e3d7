//! Programs for which "always allow" covers more than one line. Pure.
//!
//! A row must be certain: every command it matches opens, writes and runs only files that the row describes.
//! Any other option (even abbreviated) or program is covered word for word.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Covered {
    /// Text for people; also the identity of the remembered answer.
    pub shown: String,
    pub paths: Vec<String>,
    pub depends_on_folder: bool,
}

struct Program {
    words: &'static str,
    varies: &'static str,
    /// Short options without a value.
    flags: &'static str,
    /// Short options with a value, attached or as the next word.
    valued: &'static str,
    /// Long options. A trailing `=` means an attached value; a trailing space, a value attached or as the
    /// next word.
    long: &'static [&'static str],
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
    Revisions,
    /// Cargo tests; after `--`, test names and options of the test program.
    CargoTests,
    /// No operands; after `--`, lint levels.
    Lints,
    GoPackages,
    Pytest,
}

use Operands::{
    CargoTests, GoPackages, LinesAndPaths, Lints, Paths, PathsAndConditions, PatternAndPaths, Pytest,
    Revisions, Words,
};

const CARGO: &[&str] = &[
    "lib",
    "bins",
    "bin ",
    "tests",
    "test ",
    "examples",
    "example ",
    "benches",
    "bench ",
    "all-targets",
    "all",
    "workspace",
    "package ",
    "exclude ",
    "features ",
    "all-features",
    "no-default-features",
    "release",
    "profile ",
    "jobs ",
    "keep-going",
    "no-run",
    "no-fail-fast",
    "doc",
    "locked",
    "offline",
    "frozen",
    "quiet",
    "verbose",
    "message-format ",
    "color ",
];

const PYTEST: &[&str] = &[
    "quiet",
    "verbose",
    "exitfirst",
    "maxfail=",
    "tb=",
    "durations=",
    "no-header",
    "no-summary",
    "collect-only",
    "last-failed",
    "lf",
    "failed-first",
    "ff",
    "stepwise",
    "sw",
];

const IN_FOLDERS: &str = "on any files in the session's folders";
const TARGETS: &str = "with any packages, targets and features";
const TESTS: &str = "with any tests in the session's folders";

const fn row(words: &'static str, varies: &'static str, operands: Operands) -> Program {
    Program { words, varies, flags: "", valued: "", long: &[], operands }
}

#[rustfmt::skip]
const PROGRAMS: &[Program] = &[
    row("echo", "with any words", Words),
    Program { flags: "AbEnstTuv", ..row("cat", IN_FOLDERS, Paths) },
    Program { flags: "qv", valued: "nc", ..row("head", IN_FOLDERS, Paths) },
    Program { flags: "qv", valued: "nc", ..row("tail", IN_FOLDERS, Paths) },
    Program { flags: "clmwL", ..row("wc", IN_FOLDERS, Paths) },
    Program { flags: "lahAtrRSd1isngop", long: &["all", "almost-all", "human-readable", "recursive", "reverse"], ..row("ls", IN_FOLDERS, Paths) },
    Program { valued: "c", long: &["format="], ..row("stat", IN_FOLDERS, Paths) },
    Program { flags: "shackmx", valued: "d", long: &["summarize", "human-readable", "all", "total", "max-depth="], ..row("du", IN_FOLDERS, Paths) },
    row("md5sum", IN_FOLDERS, Paths),
    row("sha1sum", IN_FOLDERS, Paths),
    row("sha256sum", IN_FOLDERS, Paths),
    Program {
        flags: "EFGPivwxcLloqshHnrI", valued: "ABme",
        long: &[
            "include=", "exclude=", "exclude-dir=", "color=", "line-number", "ignore-case", "recursive", "count", "files-with-matches",
            "files-without-match", "word-regexp", "line-regexp", "fixed-strings", "extended-regexp", "perl-regexp", "only-matching",
            "no-messages", "invert-match", "max-count=", "after-context=", "before-context=", "context=", "no-filename", "with-filename",
        ],
        ..row("grep", IN_FOLDERS, PatternAndPaths)
    },
    Program {
        flags: "nNiSswxclovFUaHIP0pqu", valued: "ABCegmtT",
        long: &[
            "hidden", "no-ignore", "ignore-case", "smart-case", "case-sensitive", "fixed-strings", "line-number", "no-line-number", "no-heading",
            "heading", "count", "count-matches", "files-with-matches", "files-without-match", "word-regexp", "line-regexp", "multiline",
            "only-matching", "invert-match", "glob=", "iglob=", "type=", "type-not=", "max-count=", "max-depth=", "context=",
            "after-context=", "before-context=", "color=", "sort=", "with-filename", "no-filename", "vimgrep", "json", "stats",
        ],
        ..row("rg", IN_FOLDERS, PatternAndPaths)
    },
    row("find", "without actions, in the session's folders", PathsAndConditions),
    Program { flags: "n", ..row("sed -n", "of any lines, on any files in the session's folders", LinesAndPaths) },
    Program { flags: "sb", long: &["short", "branch", "long", "porcelain", "porcelain=", "ignored", "untracked-files="], ..row("git status", "on any paths", Revisions) },
    Program {
        valued: "n",
        long: &[
            "oneline", "graph", "all", "decorate", "no-decorate", "no-merges", "merges", "first-parent", "reverse", "abbrev-commit",
            "name-only", "name-status", "max-count=", "skip=", "since=", "until=", "after=", "before=", "author=", "grep=",
        ],
        ..row("git log", "without patches, of any revisions and paths", Revisions)
    },
    Program { flags: "qvr", valued: "pjF", long: CARGO, ..row("cargo test", "with any tests, packages and features", CargoTests) },
    Program { flags: "qvr", valued: "pjF", long: CARGO, ..row("cargo build", TARGETS, Lints) },
    Program { flags: "qvr", valued: "pjF", long: CARGO, ..row("cargo check", TARGETS, Lints) },
    Program { flags: "qvr", valued: "pjF", long: CARGO, ..row("cargo clippy", "with any packages, targets, features and lints", Lints) },
    row("go test", "with any packages and tests in the session's folders", GoPackages),
    Program { flags: "qvxsl", valued: "kmr", long: PYTEST, ..row("pytest", TESTS, Pytest) },
    Program { flags: "qvxsl", valued: "kmr", long: PYTEST, ..row("python -m pytest", TESTS, Pytest) },
    Program { flags: "qvxsl", valued: "kmr", long: PYTEST, ..row("python3 -m pytest", TESTS, Pytest) },
];

const MAX_PATHS: usize = 64;

pub(super) fn covered(words: &[String]) -> Option<Covered> {
    let begins =
        |program: &&Program| program.words.split(' ').eq(words.iter().take(program.words.split(' ').count()));
    let program = PROGRAMS.iter().find(begins)?;
    let rest = &words[program.words.split(' ').count()..];
    let paths = match program.operands {
        PathsAndConditions => find(rest)?,
        GoPackages => go_test(rest)?,
        _ => operands(program, &program.options(rest)?)?,
    };
    let is_certain = paths.len() <= MAX_PATHS && !paths.iter().any(String::is_empty);
    let depends_on_folder =
        !matches!(program.operands, Words | Paths | PatternAndPaths | LinesAndPaths | PathsAndConditions);
    let shown = format!("`{}` {}", program.words, program.varies);
    is_certain.then_some(Covered { shown, paths, depends_on_folder })
}

#[derive(Default)]
struct Rest {
    operands: Vec<String>,
    behind: Vec<String>,
    has_pattern: bool,
}

impl Program {
    fn options(&self, words: &[String]) -> Option<Rest> {
        let mut rest = Rest::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if self.operands == Words {
                rest.operands.push(word.clone());
            } else if word == "--" {
                rest.behind = words.cloned().collect();
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
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let ends = |end: char| self.long.iter().any(|known| known.strip_suffix(end) == Some(name));
        match value {
            Some(_) => (ends('=') || ends(' ')).then_some(()),
            None if self.long.contains(&name) => Some(()),
            None if ends(' ') => words.next().filter(|value| !value.starts_with('-')).map(|_| ()),
            None => None,
        }
    }

    /// False for cargo and pytest, where the word after a valued short option may be an option: cargo's `-p`
    /// needs no value, and pytest looks for `-p` and `@file` everywhere.
    fn takes_any_value(&self) -> bool {
        !matches!(self.operands, CargoTests | Lints | Pytest)
    }

    fn short<'a>(&self, bundle: &str, words: &mut impl Iterator<Item = &'a String>) -> Option<bool> {
        let counts = matches!(self.words, "head" | "tail" | "git log");
        if counts && !bundle.is_empty() && bundle.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(false);
        }
        for (at, option) in bundle.char_indices() {
            if self.valued.contains(option) {
                if at + option.len_utf8() == bundle.len() {
                    words.next().filter(|value| self.takes_any_value() || !value.starts_with(['-', '@']))?;
                }
                return Some(option == 'e');
            }
            if !self.flags.contains(option) {
                return None;
            }
        }
        (!bundle.is_empty()).then_some(false)
    }
}

fn operands(program: &Program, rest: &Rest) -> Option<Vec<String>> {
    let all = || rest.operands.iter().chain(&rest.behind).cloned();
    match program.operands {
        Words => Some(Vec::new()),
        Paths => Some(all().collect()),
        PatternAndPaths => Some(all().skip(usize::from(!rest.has_pattern)).collect()),
        LinesAndPaths => {
            let lines = all().next()?;
            let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let range = lines.strip_suffix('p')?;
            let is_range = match range.split_once(',') {
                Some((first, last)) => is_number(first) && (is_number(last) || last == "$"),
                None => is_number(range) || range == "$",
            };
            let paths: Vec<String> = all().skip(1).collect();
            (is_range && !paths.is_empty()).then_some(paths)
        }
        Revisions => {
            // Revisions are checked as paths: one that leaves the folders is rejected either way.
            let is_magic = |word: &String| word.starts_with(':');
            (!all().any(|word| is_magic(&word))).then(|| all().collect())
        }
        CargoTests => is_for_tests(&rest.behind).then(Vec::new),
        Lints => (rest.operands.is_empty() && are_lints(program, &rest.behind)).then(Vec::new),
        Pytest => {
            let path = |word: &String| word.split("::").next().unwrap_or_default().to_owned();
            // `@file` contains further arguments, and pytest loads a plugin even with a `-p` after `--`.
            (!all().any(|word| word.starts_with(['@', '-']))).then(|| all().map(|word| path(&word)).collect())
        }
        PathsAndConditions | GoPackages => None,
    }
}

fn is_for_tests(words: &[String]) -> bool {
    const FLAGS: &[&str] = &[
        "--nocapture",
        "--no-capture",
        "--exact",
        "--ignored",
        "--include-ignored",
        "--list",
        "--quiet",
        "-q",
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

fn are_lints(program: &Program, words: &[String]) -> bool {
    let is_lint = |pair: &[String]| {
        matches!(pair, [level, lint] if matches!(level.as_str(), "-D" | "-W" | "-A")
            && lint.starts_with(char::is_alphabetic)
            && lint.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-')))
    };
    words.is_empty() || (program.words == "cargo clippy" && words.chunks(2).all(is_lint))
}

fn find(words: &[String]) -> Option<Vec<String>> {
    const PLAIN: &[&str] =
        &["-empty", "-print", "-print0", "-not", "!", "-a", "-and", "-o", "-or", "-prune", "-depth", "-xdev"];
    const VALUED: &[&str] = &[
        "-name",
        "-iname",
        "-path",
        "-ipath",
        "-type",
        "-maxdepth",
        "-mindepth",
        "-size",
        "-mtime",
        "-mmin",
        "-regex",
        "-iregex",
    ];
    let is_condition = |word: &String| word.starts_with('-') || word == "!";
    let paths: Vec<String> = words.iter().take_while(|word| !is_condition(word)).cloned().collect();
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
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let is_known = (value.is_none() && FLAGS.contains(&name))
            || (VALUED.contains(&name) && (value.is_some() || words.next().is_some()));
        if !is_known {
            return None;
        }
    }
    Some(paths)
}
