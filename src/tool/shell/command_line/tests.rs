//! Compares the parser with bash itself: the words of a line, the commands it runs, and the files it opens,
//! writes and runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::tool::shell;
use crate::workspace::Workspace;

fn always(line: &str, is_inside: bool) -> Vec<String> {
    match CommandLine::parse(line).to_commands(None, is_inside) {
        Commands::Line { always, .. } => always.iter().map(ToString::to_string).collect(),
        Commands::None => Vec::new(),
    }
}

/// Checks the widest "always" option; `-` if there is none.
fn check(line: &str, offered: &str) {
    assert_eq!(always(line, true).first().map_or("-", String::as_str), offered, "{line}");
}

#[test]
fn always_allow_covers_programs_per_their_table_row() {
    check("cat a.txt", "`cat` on any files in the session's folders");
    check("head -20 'a b' -n 3", "`head` on any files in the session's folders");
    check("ls -la src", "`ls` on any files in the session's folders");
    check("grep -rn 'x y' src --include='*.rs'", "`grep` on any files in the session's folders");
    check("sed -n '3,$p' a", "`sed -n` of any lines, on any files in the session's folders");
    check("find src -name '*.rs' -type f", "`find` without actions, in the session's folders");
    check("git status --short", "`git status` on any paths");
    check("git log --oneline -5 HEAD~3", "`git log` without patches, of any revisions and paths");
    check("cargo test --lib a::b -- --nocapture", "`cargo test` with any tests, packages and features");
    check(
        "cargo clippy --all-targets -- -D warnings",
        "`cargo clippy` with any packages, targets, features and lints",
    );
    check("go test ./... -run 'A|B'", "`go test` with any packages and tests in the session's folders");
    check("python -m pytest tests/a.py::b -q", "`python -m pytest` with any tests in the session's folders");
    check("echo a 'b c'", "`echo` with any words");
}

#[test]
fn path_operands_are_found() {
    for (line, paths) in [
        ("cat a b/c", "a b/c"),
        ("cat -n -- -x", "-x"),
        ("grep x", ""),
        ("grep -e x y", "y"),
        ("grep -nA3 x y z", "y z"),
        ("grep -A 3 x y", "y"),
        ("rg -g '*.rs' -t rust x y", "y"),
        ("head -c 5 /etc/passwd", "/etc/passwd"),
        ("sed -n 5p a", "a"),
        ("find /etc -name x", "/etc"),
        ("git log main ../other", "main ../other"),
        ("go test ./a/...", "./a/"),
        ("pytest ../t.py::x", "../t.py"),
        ("echo /etc/passwd", ""),
    ] {
        assert_eq!(CommandLine::parse(line).paths().join(" "), paths, "{line}");
        // With a path outside, a grant covers only the line itself.
        assert_eq!(always(line, false), [format!("exactly `{line}`")]);
    }
}

/// Programs and options that write, run something, follow links, or read files other than their operands.
const NOT_BY_PROGRAM: &[&str] = &[
    "make test",
    "make",
    "git config user.name",
    "git submodule status",
    "git stash list",
    "git remote -v",
    "git worktree list",
    "git notes show",
    "git bisect log",
    "git diff",
    "git show",
    "git log -p",
    "git log --output=x",
    "git log --outp=x",
    "git log --show-signature",
    "git log --format=%G?",
    "git log --ext-diff",
    "git status :/x",
    "git -c core.pager=x log",
    "git grep -O./evil x",
    "git branch",
    "gh pr list",
    "gh api x",
    "npm config get x",
    "npm test",
    "npm run build",
    "helm list",
    "uv pip list",
    "uv run x",
    "docker ps",
    "kubectl get pods",
    "xxd a",
    "xxd -r a b",
    "sort a",
    "sort -o b a",
    "sort --compress-program=./evil a",
    "uniq a b",
    "diff -r a b",
    "tee a",
    "xargs rm",
    "env ls",
    "env",
    "date -s x",
    "date",
    "less a",
    "man ls",
    "tree -o x",
    "tree",
    "jq . a",
    "awk '{print}' a",
    "awk 'BEGIN{system(\"x\")}'",
    "sed -i s/a/b/ a",
    "sed -n 'w x' a",
    "sed -n '1e x' a",
    "sed -n -i 5p a",
    "sed -n 5p",
    "sed -n 5w a",
    "sed p a",
    "rg --pre ./evil x",
    "rg --pre=./evil x",
    "rg -L x",
    "rg --follow x",
    "rg -z x",
    "rg -f a x",
    "rg --hostname-bin=./evil x",
    "rg --type-add=x:include:y x",
    "grep -R x .",
    "grep -f a b",
    "grep --file=a b",
    "grep --fi=a b",
    "find . -delete",
    "find . -exec x ';'",
    "find . -execdir x ';'",
    "find . -ok x ';'",
    "find . -fprint x",
    "find . -fls x",
    "find -L .",
    "find . -newer a",
    "find . -name",
    "find . -type f x",
    "find -files0-from a",
    "ls -L a",
    "ls -H a",
    "ls --color=always",
    "ls --dereference",
    "du -L a",
    "du --files0-from=a",
    "wc --files0-from=a",
    "wc --files0-from a",
    "md5sum -c a",
    "md5sum --check a",
    "stat -L a",
    "stat -f a",
    "tail -f a",
    "head -5c a",
    "cat -",
    "cat -l a",
    "cargo test --config x",
    "cargo test --config=x",
    "cargo test --manifest-path x",
    "cargo test --target-dir=x",
    "cargo test --target-d x",
    "cargo test -Zx",
    "cargo test -C x",
    "cargo test -- --logfile x",
    "cargo test -- --logfile=x",
    "cargo +nightly test",
    "cargo run",
    "cargo build --artifact-dir=x",
    "cargo build x",
    "cargo clippy --fix",
    "cargo clippy -- -C linker=x",
    "cargo clippy -- -Clinker=x",
    "cargo clippy -- -D",
    "cargo check -- -D x",
    "cargo fmt",
    "cargo install x",
    "cargo",
    "cargo bench",
    "go test -exec ./evil",
    "go test -toolexec=./evil",
    "go test -o x",
    "go test -args x",
    "go test example.com/x",
    "go test .../x",
    "go build ./x",
    "go vet -vettool=x",
    "pytest -p evil",
    "pytest -c x",
    "pytest --rootdir=x",
    "pytest --basetemp=x",
    "pytest @x",
    "pytest -- -p evil",
    "pytest -- -pevil",
    "pytest -- @x",
    "pytest -k @x",
    "pytest -qm @x",
    "pytest -k -p evil",
    "python -m pytest -r @x",
    "cargo test -p --config x",
    "cargo test -qp --manifest-path=../x/Cargo.toml",
    "cargo build -p --target-dir=x",
    "cargo clippy -p -Zx",
    "pytest --junitxml=x",
    "pytest -o x=y",
    "pytest ::x",
    "python -m x",
    "python x.py",
    "node x.js",
    "npx x",
    "sh -c x",
    "bash -c x",
    "sudo ls",
    "timeout 5 ls",
    "time ls",
    "printf -v x y",
    "rm -rf x",
    "./cat a",
    "/bin/cat a",
    "bin/ls",
];

const NOT_LITERAL: &[&str] = &[
    "cat < a",
    "cat <a b",
    "cat a > b",
    "cat a 2>&1",
    "cat a >> b",
    "cat <<< x",
    "cat a | head",
    "cat a && cat b",
    "cat a; cat b",
    "cat a & cat b",
    "cat a\ncat b",
    "cd sub && cat x",
    "(cat a)",
    "{ cat a; }",
    "! cat a",
    "cat \\/etc/x",
    "cat .\"$x\"",
    "cat $x",
    "cat ${x}",
    "cat $(x)",
    "cat `x`",
    "cat <(x)",
    "cat ~/x",
    "cat ~",
    "cat ~root/x",
    "cat a:~/x",
    "cat *",
    "cat a?",
    "cat [a]",
    "cat {a,b}",
    "cat $'a'",
    "cat $\"a\"",
    "X=1 cat a",
    "X=1",
    "cat a # b",
    "cat 'a",
    "cat \"a",
    "cat a\\\n b",
    "cat !x",
    "cat a&b",
    "cat a;",
    "cat \"a\nb\"",
    "echo $HOME",
    "PYTHONPATH=src .venv/bin/python -m pytest -q 2>&1 | tail -5",
    "if true; then ls; fi",
    "ls > /dev/null",
];

#[test]
fn other_lines_are_covered_only_verbatim() {
    for line in NOT_BY_PROGRAM.iter().chain(NOT_LITERAL) {
        check(line, &format!("exactly `{line}`"));
        assert_eq!(always(line, true).len(), 1, "{line}");
    }
    assert_ne!(always("ls a | x", true), always("ls  a | x", true));
    assert_ne!(always("ls \\ ", true), always("ls \\", true));
    let commands = CommandLine::parse("make deploy").to_commands(Some("sub"), true);
    let Commands::Line { always, .. } = commands else { panic!() };
    assert_eq!(always, [CommandScope::line("make deploy".into()).within(Some("sub"))]);
    assert_eq!(always[0].to_string(), "exactly `make deploy`, in sub");
}

#[test]
fn lines_with_hidden_characters_are_never_covered() {
    let long = format!("echo {}", "x".repeat(MAX_SHOWN));
    for line in [long.as_str(), "ls\rx", "ls a\u{202e}b", "ls \u{200b}x", "ls\u{a0}x", "ls \u{b}x"] {
        check(line, "-");
    }
}

#[test]
fn shell_syntax_hides_no_command_from_rules() {
    for line in [
        "git \"push\" x",
        "git pu''sh x",
        "FOO=1 git push x",
        "/usr/bin/git push x",
        "git \\\npush x",
        "ls; git push x",
        "ls | git push x",
        "(git push x)",
        "{ git push x; }",
        "echo $(git push x)",
        "echo \"$(git push x)\"",
        "echo `git push x`",
        "cat <(git push x)",
        "! git push x",
        "if git push x; then ls; fi",
        "while git push x; do ls; done",
        "for a in b; do git push x; done",
        "case x in a) git push x;; esac",
        "f() { git push x; }; f",
        "function f { git push x; }",
        "time git push x",
        "ls &\ngit push x",
        "ls && git push x > out",
        ">out git push x",
        "2>&1 git push x",
        "[[ -n a ]]; git push x",
        "echo ${a:-$(git push x)}",
        "echo $((1 + $(git push x)))",
        "cat <<E\nhello\nE\ngit push x",
        "ls #a\ngit push x",
    ] {
        let Commands::Line { plain, .. } = CommandLine::parse(line).to_commands(None, true) else {
            panic!("{line}")
        };
        assert!(plain.iter().any(|words| words == "git push x"), "{line}: {plain:?}");
    }
}

fn is_understood(line: &str) -> bool {
    CommandLine::parse(line).is_understood()
}

#[test]
fn only_plain_shell_syntax_is_understood() {
    for line in [
        "git status",
        "ls -la; ls src/*.rs",
        "cargo test 2>&1 | tail -20",
        "echo $(git rev-parse HEAD) $HOME \"a b\"",
        "ls > /dev/null 2>&1",
        "(cd sub && ls)",
        "if true; then ls; fi",
        "! ls",
        "make deploy",
        "cat < /dev/null",
        "ls 2>&- 3>&1-",
    ] {
        assert!(is_understood(line), "{line}");
    }
    for line in [
        "sh -c 'git status'",
        "bash -lc ls",
        "env git status",
        "sudo ls",
        "ls | xargs rm",
        "eval ls",
        "FOO=1 ls",
        "FOO=1; ls",
        "export PATH=/tmp:$PATH; git status",
        "git() { rm -rf .; }; git status",
        "$CMD",
        "\"$x\" y",
        "git $(echo push)",
        "ls > out.txt",
        "ls >> out.txt",
        "ls &> all.txt",
        "ls >| all.txt",
        "ls >& all.txt",
        "ls | sh",
        ". ./env",
        "",
        "   ",
        "((",
        "'",
        "rm *",
        "rm $x",
        "git \\\nstatus && sh x",
        "l\\s",
        "/bin/[l]s",
        "echo `sh x`",
        "trap x EXIT",
        "timeout 5 ls",
        "cat <<EOF\n`touch pwn`\nEOF",
        "cat <<E'O'F\nhi\nEOF\ntouch pwn\nE'O'F",
        "cat <<< x",
        "echo ${HOME#$(x)}",
        "echo ${x:-`x`}",
        "echo ${x:=y}",
        "echo `ls \\`x\\``",
        "for PATH in ./bin; do ls; done",
        "((PATH=1)); ls",
        "echo $((PATH=1)); ls",
        "ls $[PATH=1]; ls",
        "echo ${a[PATH=1]}; ls",
        "getopts x PATH; ls",
        "wait -p PATH; ls",
        "[[ -v 'a[$(x)]' ]]; ls",
        "[ -v 'a[$(x)]' ]; ls",
        "test -v 'a[$(x)]'",
        ": ${x:='$(x)'}; ls ${x@P}",
        "compgen -C x",
        "readarray -C x",
        "jobs -x ls",
        "./ls\u{b}x",
        "ls\rx",
        "ls\u{a0}x",
        "printf -v PATH x; ls",
        "read PATH; ls",
        "select x in a; do ls; done",
        "case x in *) ls;; esac",
        "time ls",
        "coproc ls",
        "ls $'a'",
        "ls {a,b}; x=1",
        "cat < /etc/passwd",
        "wc -l <a",
        "cat ../*",
        "cat /etc/*",
        "a[1]=x ls",
        "A+=x ls",
        "ls <> x",
        "ls; until ls; do ls; done",
        "ls $(",
        "ls \"",
        "(ls",
        "ls)",
        "cat <<E",
        "git status &> >(sh)",
        "echo x >&1-2",
        "echo x >&$(echo f)",
        "echo x 1>&1$(echo f)",
        "echo x >&\"$(echo f)\"",
    ] {
        assert!(!is_understood(line), "{line}");
    }
}

#[test]
fn permission_request_lists_the_commands_of_a_line() {
    let text = CommandLine::parse("git log $(git rev-parse HEAD) | head -3 > out.txt < in.txt").describe();
    assert_eq!(
        text,
        "1. `git log $(git rev-parse HEAD)`\n2. `git rev-parse HEAD` (its output becomes part of the command)\n\
         3. `head -3` (reads the output of the one before)\nReads: in.txt\nWrites: out.txt\n"
    );
    assert_eq!(CommandLine::parse("ls -la").describe(), "");
    // Invisible characters are escaped, and a file name starts no new line.
    let text = CommandLine::parse("ls a\u{202e}b; ls > 'x\u{61c}\u{2028}y\n3. `ls`'").describe();
    assert_eq!(text, "1. `ls a\\u{202e}b`\n2. `ls`\nWrites: 'x\\u{61c}\\u{2028}y\\n3. `ls`'\n");
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

fn bash(script: &str, folder: &Path, path: &str) -> Vec<u8> {
    let file = folder.join("script");
    fs::write(&file, script).unwrap();
    let mut bash = Command::new("/bin/bash");
    bash.arg(&file).current_dir(folder).env_clear().env("PATH", path).env("HOME", folder);
    bash.stdin(Stdio::null()).stderr(Stdio::null()).output().unwrap().stdout
}

const PIECES: &[&str] = &[
    "a", "b", "c d", "'x y'", "\"q r\"", "$HOME", "$", "\\", "~", "~/x", "~root", "*", "?", "[a]", "{a,b}",
    "{1..3}", "=", "a=b", "#", "!", "^", "%", "&&", ";", "|", ">", "<", "\n", "\t", "`a`", "$(a)", "é",
    "\u{a0}", "''", "\"\"", "-n", "--", "~1", "HEAD~1", "HEAD^", "a~b", "a:~", "@", "+", ":", "/", ".", "..",
    "(", ")", "!!", "a'b'c", "\"'\"", "'\"'", "'", "\"", ",", "]", "}", " ", " ", " ", " ", "$'a'", "'$x'",
    "'`'", "'\\'", "'*'",
];

#[test]
fn literal_words_match_bash() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b", "x"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let mut random = Random(0x5eed);
    let (mut script, mut expected) =
        ("f() { printf '%s\\0' \"$@\"; printf '\\1\\0'; }\n".to_owned(), Vec::new());
    let mut accepted = BTreeSet::new();
    for _ in 0..60_000 {
        let line: String = (0..=random.below(7)).map(|_| random.of(PIECES)).collect();
        let Some(words) = literal::literal_words(&line) else { continue };
        if accepted.insert(line.clone()) {
            let _ = writeln!(script, "f {line}");
            expected.extend(words.into_iter().chain(["\u{1}".into()]));
        }
    }
    assert!(accepted.len() > 1_000, "{}", accepted.len());
    let printed = String::from_utf8(bash(&script, folder.path(), "/nowhere")).unwrap();
    let found: Vec<&str> = printed.split_terminator('\0').collect();
    assert!(found.iter().zip(&expected).all(|(found, expected)| found == expected), "{found:?} {expected:?}");
    assert_eq!(found.len(), expected.len());
}

const SHELL_PIECES: &[&str] = &[
    "p0",
    "p1",
    "p0",
    "p1",
    "p2 x",
    "p3 'a b'",
    "p0 \"$(p1)\"",
    "p2",
    " ",
    " ",
    " ",
    " && ",
    " || ",
    "; ",
    " | ",
    "\n",
    " & ",
    "( ",
    " )",
    "$(",
    ")",
    "`",
    "{ ",
    "; }",
    "if ",
    "; then ",
    "; fi",
    "while ",
    "; do ",
    "; done",
    "! ",
    "'",
    "\"",
    "\\",
    "#",
    " # ",
    "2>&1",
    ">/dev/null",
    "<(p1)",
    "$HOME",
    "*",
    "a=",
    "a=b ",
    "${",
    "}",
    "case ",
    " in ",
    ";;",
    "esac",
    "[[ ",
    " ]]",
    "((",
    "))",
    "$((",
    "<<E\n",
    "\nE\n",
    "<<<",
    "$'",
    "for x in ",
    "f() ",
    "function ",
    "time ",
    "\\\n",
    "x",
    "-n",
];

#[test]
fn understood_lines_run_only_the_parsed_commands() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(0xcafe);
    let log = "log() { ((++n > 30)) && exit; echo \"$line $1\" >&9; return $((n % 2)); }";
    let mut script = format!("exec 9>>log\nn=0\n{log}\n");
    for name in 0..4 {
        let _ = writeln!(script, "p{name}() {{ log p{name}; }}");
    }
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    while lines.len() < 1_500 {
        let line: String = (0..=random.below(9)).map(|_| random.of(SHELL_PIECES)).collect();
        let parsed = CommandLine::parse(&line);
        if parsed.is_understood() && !lines.iter().any(|(known, _)| *known == line) {
            let found = parsed.commands.iter().map(|command| command.plain.clone()).collect();
            let quoted = line.replace('\'', "'\\''");
            // Background commands may end later, so each entry carries the number of its line.
            let _ = writeln!(script, "line={}; ( eval '{quoted}' )", lines.len());
            lines.push((line, found));
        }
    }
    bash(&script, folder.path(), "/nowhere");
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    let mut ran = BTreeSet::new();
    for entry in log.lines() {
        let (number, name) = entry.split_once(' ').unwrap();
        let (line, found) = &lines[number.parse::<usize>().unwrap()];
        let is_found = found.iter().any(|plain| plain.split(' ').next() == Some(name));
        assert!(is_found, "{line:?} ran {name}, and has {found:?}");
        ran.insert(number);
    }
    assert!(ran.len() > 200, "{}", ran.len());
    println!("{} lines of {} ran a command", ran.len(), lines.len());
}

/// Combines every redirect with every kind of target: an understood line creates no file.
#[test]
fn understood_lines_write_no_file() {
    const OPERATORS: &[&str] = &[
        ">", ">>", ">|", ">&", "&>", "&>>", "<>", "<", "<&", "1>", "2>>", "1>&", "2>&", "0<&", "1<>", "0<>",
        "{v}>", "{v}>&",
    ];
    const TARGETS: &[&str] = &[
        "f",
        " f",
        "1",
        "2",
        "-",
        "1-",
        "1-2",
        "1--",
        "--",
        "-f",
        "2f",
        "''",
        "'1'",
        "\"-\"",
        "\\-",
        "$(echo f)",
        "\"$(echo f)\"",
        "1$(echo f)",
        "$(echo 1)f",
        "`echo f`",
        "$v",
        "\"$v\"",
        "1$v",
        "${v}",
        "$((1))",
        "/dev/null",
        "f*",
        "~/f",
        "&1",
        " 1",
        "1 f",
        "<(echo x)",
        ">(echo x)",
    ];
    let place = tempfile::tempdir().unwrap();
    let (mut lines, mut script) = (Vec::new(), "v=file\nHOME=.\n".to_owned());
    for operator in OPERATORS {
        for target in TARGETS {
            for line in [format!("echo a {operator}{target}"), format!("{operator}{target} echo a | cat")] {
                let quoted = line.replace('\'', "'\\''");
                let _ = writeln!(script, "mkdir {0}; ( cd {0}; eval '{quoted}' )", lines.len());
                lines.push(line);
            }
        }
    }
    bash(&script, place.path(), &std::env::var("PATH").unwrap());
    let (mut understood, mut written) = (0, 0);
    for (number, line) in lines.iter().enumerate() {
        let makes_a_file = fs::read_dir(place.path().join(number.to_string())).unwrap().next().is_some();
        assert!(!(makes_a_file && is_understood(line)), "{line}");
        understood += usize::from(is_understood(line));
        written += usize::from(makes_a_file);
    }
    assert!(understood > 50 && written > 200, "{understood} understood, {written} wrote");
}

#[test]
fn parse_time_and_memory_are_bounded_by_length() {
    const NESTS: &[(&str, &str)] = &[
        ("{ a; ", "}; "),
        ("(", ")"),
        ("$(", ")"),
        ("echo $(echo ", ")"),
        ("cat <(", ")"),
        ("\"$(", ")\""),
        ("'", ""),
        ("\"", ""),
        ("a<<E;", ""),
        ("a<<E\n", ""),
        ("case x in a) ", ";; esac "),
        ("$((", "))"),
        ("((", "))"),
        ("`", ""),
        ("\\`", ""),
        ("${a", "}"),
        ("{", "}"),
        ("[[ ", ""),
        ("if ", "fi "),
        ("while a; do ", "done "),
        ("f() { ", "}; "),
        ("a|", ""),
        ("a;", ""),
        ("a&&", ""),
        ("!", ""),
        ("#\n", ""),
        ("<", ""),
        (">a ", ""),
        ("a=", ""),
        ("a[", "]"),
        ("$'", ""),
        ("\\\n", ""),
        ("é", ""),
        ("a ", ""),
    ];
    for size in [16 * 1024, 64 * 1024, MAX_LINE, 1024 * 1024] {
        for (open, close) in NESTS {
            let count = size / (open.len() + close.len());
            let text = open.repeat(count) + &close.repeat(count);
            let begin = Instant::now();
            let line = CommandLine::parse(&text);
            let commands = line.to_commands(None, false);
            let shown = line.describe();
            let took = begin.elapsed();
            let Commands::Line { texts, parts, .. } = &commands else { panic!() };
            let bytes: usize = texts.iter().map(String::len).sum::<usize>() + shown.len() + 64 * parts.len();
            if size > MAX_LINE {
                assert!(line.is_opaque && texts.is_empty(), "{open}: a line over the limit is not parsed");
            }
            println!("{size:8} {open:14?} {took:?} {bytes} bytes");
            assert!(took < Duration::from_secs(20), "{size} of {open:?} took {took:?}");
            assert!(bytes < 100 * size.min(MAX_LINE), "{size} of {open:?}: {bytes} bytes");
        }
    }
}

const MAX_LINE: usize = 100 * 1024;

/// A session folder, beside files that no covered command may touch.
struct Place {
    dir: tempfile::TempDir,
    work: PathBuf,
    workspace: Workspace,
}

const SECRET: &str = "content from outside";

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(dir.path()).unwrap();
        let (work, outside) = (top.join("work"), top.join("outside"));
        for folder in ["work/sub/deep", "outside/inner", "bin"] {
            fs::create_dir_all(top.join(folder)).unwrap();
        }
        for (path, text) in [
            ("work/notes.txt", "notes\nneedle\n"),
            ("work/sub/x", "x\n"),
            ("work/a b", "spaces\n"),
            ("work/-n", "dash\n"),
            ("work/sub/deep/y.rs", "fn needle() {}\n"),
            ("work/list", "notes.txt\n"),
            ("outside/key", SECRET),
            ("outside/inner/key", SECRET),
            ("bin/evil", "#!/bin/sh\necho ran > ../ran\n"),
        ] {
            fs::write(top.join(path), text).unwrap();
        }
        fs::set_permissions(top.join("bin/evil"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink(outside.join("key"), work.join("key")).unwrap();
        symlink(&outside, work.join("out")).unwrap();
        symlink("../../outside", work.join("sub/up")).unwrap();
        symlink("notes.txt", work.join("same")).unwrap();
        symlink("nowhere", work.join("dangling")).unwrap();
        let workspace = Workspace::new(&work, &[]).unwrap();
        Self { dir, work, workspace }
    }

    /// Every file with its content, or with its target if it is a link.
    fn tree(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut tree, mut folders) = (BTreeMap::new(), vec![self.dir.path().to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let (entry, path) = entry.map(|entry| (entry.file_type().unwrap(), entry.path())).unwrap();
                if entry.is_dir() {
                    folders.push(path);
                } else if entry.is_symlink() {
                    tree.insert(
                        path.clone(),
                        fs::read_link(path).unwrap().into_os_string().into_encoded_bytes(),
                    );
                } else {
                    tree.insert(path.clone(), fs::read(path).unwrap());
                }
            }
        }
        tree
    }
}

const PROGRAMS: &[&str] = &[
    "cat",
    "head",
    "tail",
    "wc",
    "ls",
    "stat",
    "du",
    "md5sum",
    "sha256sum",
    "grep needle",
    "grep -rn needle",
    "rg needle",
    "rg",
    "find",
    "sed -n",
    "sed -n 1,2p",
    "echo",
    "git status",
    "git log",
    "xxd",
    "sort",
    "uniq",
    "diff",
    "tee",
    "tree",
    "jq",
    "env",
    "xargs",
    "awk",
    "cd",
];
const OPTIONS: &[&str] = &[
    "",
    "",
    "",
    "-n",
    "-l",
    "-r",
    "-R",
    "-a",
    "-L",
    "-H",
    "-c",
    "-n 1",
    "-2",
    "-c 3",
    "--",
    "-i",
    "-o",
    "-w",
    "-f",
    "-f list",
    "-e needle",
    "-s",
    "-h",
    "-d 1",
    "--pre=evil",
    "--pre evil",
    "--follow",
    "--fol",
    "-z",
    "-name '*.rs'",
    "-maxdepth 1",
    "-delete",
    "-exec evil ';'",
    "-fprint new",
    "-type f",
    "-newer out/key",
    "--files0-from=list",
    "--check",
    "--color=always",
    "--hidden",
    "--no-ignore",
    "--dereference",
    "--output=new",
    "--outp=new",
    "-o new",
    "1p",
    "'1,$p'",
    "'w new'",
    "'1e evil'",
    "--recursive",
    "--include='*'",
    "--short",
    "--oneline",
    "-p",
    "-5",
    "--ext-diff",
    "-C .",
    "--reference=out/key",
    "--max-count=1",
    "-T sub",
    "-S",
];
const OPERANDS: &[&str] = &[
    "",
    "",
    "notes.txt",
    "sub",
    "sub/x",
    ".",
    "'a b'",
    "\"a b\"",
    "same",
    "list",
    "-n",
    "./-n",
    "missing",
    "new",
    "needle",
    "sub/deep",
    "key",
    "out",
    "out/key",
    "out/inner",
    "sub/up",
    "sub/up/key",
    "../outside/key",
    "sub/../../outside/key",
    "..",
    "/etc/hostname",
    "/etc",
    "\\/etc/hostname",
    ".\"\"./outside/key",
    "~/key",
    "$HOME/key",
    "k*",
    "?ey",
    "k[e]y",
    "{key,list}",
    "\"$HOME\"/key",
    "$'key'",
    "'key'",
    "k'e'y",
    "\"key\"",
    "dangling",
    "/dev/null",
];
const AROUND: &[(&str, &str)] = &[
    ("", ""),
    ("", ""),
    ("", ""),
    ("", ""),
    ("", ""),
    ("", ""),
    ("", " < out/key"),
    ("", " > new"),
    ("", " | evil"),
    ("evil; ", ""),
    ("cd out && ", ""),
    ("X=1 ", ""),
    ("", " 2>&1"),
    ("(", ")"),
    ("! ", ""),
    ("", " # x"),
    ("", " &"),
    ("", " $(evil)"),
    ("", " <(evil)"),
    ("evil && ", ""),
];

/// Random lines that a grant for their program covers, and the number of lines generated.
fn covered_lines(place: &Place, wanted: usize) -> (Vec<String>, usize) {
    let mut random = Random(0xbeef);
    let (mut lines, mut made) = (BTreeSet::new(), 0);
    while lines.len() < wanted {
        let (before, after) = AROUND[random.below(AROUND.len())];
        let program = random.of(PROGRAMS);
        let mut words = vec![program];
        for _ in 0..random.below(3) {
            words.push(random.of(OPTIONS));
        }
        for _ in 0..random.below(3) {
            words.push(random.of(OPERANDS));
        }
        words.retain(|word| !word.is_empty());
        let line = format!("{before}{}{after}", words.join(" "));
        made += 1;
        assert!(made < 200_000, "only {} lines are covered", lines.len());
        let parsed = CommandLine::parse(&line);
        let is_inside = shell::stays_inside(&parsed, &place.work, &place.workspace);
        let Commands::Line { always, .. } = parsed.to_commands(None, is_inside) else { continue };
        if always.len() > 1 {
            lines.insert(line);
        }
    }
    (lines.into_iter().collect(), made)
}

fn run_lines(lines: &[String], place: &Place, tracer: &[&str]) -> String {
    let top = fs::canonicalize(place.dir.path()).unwrap();
    let script: String = lines.iter().fold(String::new(), |mut script, line| {
        let _ = writeln!(script, "{line}");
        script
    });
    let file = top.join("script");
    fs::write(&file, script).unwrap();
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", top.join("bin").display());
    let words: Vec<&str> = tracer.iter().copied().chain(["/bin/bash", "../script"]).collect();
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .current_dir(&place.work)
        .env_clear()
        .env("PATH", path)
        .env("HOME", top.join("outside"));
    command.env("GIT_CEILING_DIRECTORIES", &top);
    let output = command.stdin(Stdio::null()).output().unwrap();
    fs::remove_file(file).unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn covered_commands_touch_nothing_outside_the_workspace() {
    let place = Place::new();
    let (lines, made) = covered_lines(&place, 500);
    let before = place.tree();
    let printed = run_lines(&lines, &place, &[]);
    assert!(printed.contains("needle") && printed.contains("spaces"), "the control: {printed}");
    assert!(!printed.contains(SECRET), "{printed}");
    assert_eq!(place.tree(), before, "nothing was written, nothing else ran");
    // The control: the checks above detect these violations.
    for line in ["cat key", "evil", "cat notes.txt > new"] {
        let place = Place::new();
        let printed = run_lines(&[line.to_owned()], &place, &[]);
        assert!(printed.contains(SECRET) || place.tree() != rebased(&place, &before), "the control: {line}");
    }
    opens_nothing_else(&place, &lines);
    println!("{} covered lines of {made} were run", lines.len());
}

fn rebased(place: &Place, tree: &BTreeMap<PathBuf, Vec<u8>>) -> BTreeMap<PathBuf, Vec<u8>> {
    let top =
        tree.keys().next().and_then(|path| path.ancestors().find(|top| top.join("work").is_dir())).unwrap();
    let moved = |path: &PathBuf| place.dir.path().join(path.strip_prefix(top).unwrap());
    let text = |content: &Vec<u8>| {
        let text = String::from_utf8_lossy(content).into_owned();
        text.replace(&*top.to_string_lossy(), &place.dir.path().to_string_lossy()).into_bytes()
    };
    tree.iter().map(|(path, content)| (moved(path), text(content))).collect()
}

/// Checks with `strace` that commands open and run nothing outside the session's folder beyond the files that
/// their program always opens.
fn opens_nothing_else(place: &Place, lines: &[String]) {
    let has_strace = Command::new("strace").arg("-V").output().is_ok();
    assert!(has_strace, "this test needs strace: install the package strace");
    let names = |lines: &[String]| {
        let trace = place.dir.path().join("trace");
        let to = trace.to_str().unwrap();
        run_lines(lines, place, &["strace", "-f", "-qq", "-y", "-o", to, "-e", "trace=open,openat,execve"]);
        let text = fs::read_to_string(&trace).unwrap();
        fs::remove_file(trace).unwrap();
        opened(&text)
    };
    let plain: Vec<String> = [
        "cat notes.txt",
        "head notes.txt",
        "tail notes.txt",
        "wc notes.txt",
        "ls -l",
        "stat notes.txt",
        "du",
        "md5sum list",
        "sha1sum list",
        "sha256sum list",
        "grep -rn needle .",
        "grep -P needle list",
        "rg needle",
        "find .",
        "sed -n 1p list",
        "echo",
        "git status",
        "git log",
    ]
    .map(str::to_owned)
    .into();
    let usual = names(&plain);
    let work = place.work.to_str().unwrap();
    let is_inside = |path: &String| path.starts_with(work);
    let found: Vec<String> =
        names(lines).into_iter().filter(|path| !usual.contains(path) && !is_inside(path)).collect();
    assert_eq!(found, Vec::<String>::new());
    // The control: a read through a link is detected.
    assert!(names(&["cat key".into()]).iter().any(|path| path.ends_with("outside/key")));
    println!("{} lines: {} other files are opened, as each program does", lines.len(), usual.len());
}

/// The files that a trace opened, by the kernel's name of the descriptor, and the programs it ran.
fn opened(trace: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for line in trace.lines() {
        if line.contains("execve(") && line.ends_with("= 0") {
            all.extend(line.split('"').nth(1).map(str::to_owned));
        } else if let Some((_, result)) = line.rsplit_once(" = ") {
            let path = result.split_once('<').and_then(|(_, path)| path.strip_suffix('>'));
            all.extend(path.map(|path| match path.strip_prefix("/proc/") {
                Some(own) => format!("/proc/PID{}", own.trim_start_matches(|c: char| c.is_ascii_digit())),
                None => path.to_owned(),
            }));
        }
    }
    all
}

#[test]
fn program_is_found_by_its_name_in_every_place() {
    for line in [
        "apply_patch <<'EOF'\n*** Begin Patch\n*** End Patch\nEOF",
        "cd src && apply_patch < a.patch",
        "cat a.patch | apply_patch",
        "bash -lc \"apply_patch 'x'\"",
        "'apply_patch' '*** Begin Patch\n*** End Patch'",
    ] {
        assert!(CommandLine::parse(line).runs("apply_patch"), "{line}");
    }
    for line in ["echo apply_patch", "./apply_patch a", "git apply a.patch", "cat <<'EOF'\napply_patch\nEOF"]
    {
        assert!(!CommandLine::parse(line).runs("apply_patch"), "{line}");
    }
}
