//! Rules that deny or ask, against lines that run, hide or only mention the denied program. Compares their
//! decisions with the programs that bash runs, as strace sees them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::CommandLine;
use crate::mode::{Modes, ShellUse};
use crate::permission::rules::RuleTexts;
use crate::permission::{CallFacts, Ceilings, Effect, Grants, Verdict, decide};
use crate::tool::shell::command_line::commands_of;

/// `denied`, `asked` or `runs`, for a command in code mode.
fn decision(rules: &str, line: &str) -> &'static str {
    decision_of(&ceilings_of("code", rules), line)
}

fn ceilings_of(mode: &str, rules: &str) -> Ceilings {
    let texts: RuleTexts = serde_saphyr::from_str(rules).unwrap();
    let rules = Arc::new(texts.translated().unwrap().compile(true).unwrap());
    Ceilings { modes: Modes::built_in().ceilings(mode).unwrap(), rules: vec![rules] }
}

fn decision_of(ceilings: &Ceilings, line: &str) -> &'static str {
    verdict(ceilings, &facts_of(line))
}

fn facts_of(line: &str) -> CallFacts {
    let commands = commands_of(line);
    CallFacts { shell: ShellUse::Full, commands, ..CallFacts::of_tool("shell", Effect::Execute) }
}

fn verdict(ceilings: &Ceilings, facts: &CallFacts) -> &'static str {
    match decide(ceilings, &Grants::default(), facts) {
        Verdict::Allow => "runs",
        Verdict::Ask(_) => "asked",
        Verdict::Deny(_) => "denied",
    }
}

fn check(pattern: &str, expected: &str, lines: &[&str]) {
    let ceilings = ceilings_of("code", &format!("deny: ['shell({pattern})']"));
    let wrong: Vec<String> = lines
        .iter()
        .map(|line| (line, decision_of(&ceilings, line)))
        .filter(|(_, found)| *found != expected)
        .map(|(line, found)| format!("{found}: {line}"))
        .collect();
    assert!(wrong.is_empty(), "under {pattern}, not {expected}:\n{}", wrong.join("\n"));
}

const PUSHES: &[&str] = &[
    "git push",
    "git push origin main",
    "git -C . push",
    "git -c a.b=c push",
    "git --no-pager --git-dir=.git push",
    "git --git-dir .git push -f",
    "git -c \"user.name=$X\" push",
    "/usr/bin/git push",
    "\"$HOME\"/bin/git push",
    "git-push origin",
    "/usr/lib/git-core/git-push origin",
    "FOO=1 git push",
    "FOO=\"a b\" BAR=$(date) git push",
    "env git push",
    "/usr/bin/env git push",
    "env -i A=b git push",
    "env -u A --chdir=. B=c git push",
    "env -S 'git push'",
    "env -iS 'git push'",
    "bash -c 'git push'",
    "/bin/bash -c 'git push'",
    "bash -lc 'cd x && git push'",
    "bash -o pipefail -ec 'git push'",
    "bash --norc -c 'git push' name",
    "sh -c \"git push\"",
    "sh -c 'bash -c \"git push\"'",
    "eval git push",
    "eval 'git push'",
    "trap 'git push' EXIT",
    "xargs git push",
    "echo a | xargs -I{} -P 4 git push {}",
    "xargs -0 -n1 git -C . push < list",
    "command git push",
    "command -p git push",
    "exec git push",
    "exec -a x git push",
    "builtin command git push",
    "timeout 9 git push",
    "timeout -k 1 --signal=KILL 9s git push",
    "/usr/bin/timeout 5 git push",
    "nice git push",
    "nice -n 5 git push",
    "nice -5 git push",
    "ionice -c3 git push",
    "nohup git push &",
    "sudo git push",
    "sudo -u me -E A=b git push",
    "doas -u me git push",
    "setsid -w git push",
    "stdbuf -oL git push",
    "stdbuf -o L git push",
    "time git push",
    "time -p git push",
    "/usr/bin/time -f %e git push",
    "sudo env A=b nice timeout 5 bash -c 'git push'",
    "find . -exec git push \\;",
    "find . -name x -exec env git push {} +",
    "git p\\ush",
    "g\\it push",
    "git 'push'",
    "\"git\" pu''sh",
    "git $'push'",
    "$'\\x67it' push",
    "git \\\n  push",
    "ls; git push",
    "ls && git push || ls",
    "(git push)",
    "{ git push; }",
    "if true; then git push; fi",
    "for i in 1 2; do git push; done",
    "while ! git push; do sleep 1; done",
    "case x in x) git push;; esac",
    "case x in (a|x) git push;; *) ls;; esac",
    "case x in x) ls;; esac; git push",
    "case x in\n  a|x)\n    git push\n    ;;\nesac",
    "X=1 case x in; git push",
    "f() { git push; }; f",
    "echo \"$(git push)\"",
    "echo `git push`",
    "cat <(git push)",
    "cat <<E\n$(git push)\nE",
    "cat <<E\na\nE\ngit push",
    "bash <<E\ngit push\nE",
    "bash <<< 'git push'",
    "bash -c bash <<E\ngit push\nE",
    "busybox sh -c 'git push'",
    "watch -n 2 git push",
    "strace -f -e x git push",
    "git push $X",
    "bash -c \"git push $X\"",
    "git -c alias.x='!git push' x",
];

const MAYBE_PUSHES: &[&str] = &[
    "$X push",
    "$X",
    "$(echo git) push",
    "git $X",
    "git $(echo push)",
    "git pu$X",
    "git {push,pull}",
    "g?t push",
    "/usr/bin/g* push",
    "git $OPTIONS push",
    "git --unknown-option x push",
    "bash -c \"$X\"",
    "bash -c '$0 push' git",
    "bash -c '\"$@\"' _ git push",
    "eval \"$X\"",
    "curl -s https://example.com | sh",
    "base64 -d x | bash",
    "bash <<< \"$X\"",
    "bash < <(echo git push)",
    "echo git push | { true; bash; }",
    "echo git push | bash -c bash",
    "f() { sh; }; echo git push | f",
    "parallel git ::: push",
    "xargs --unknown git",
    "timeout $X push",
    "nice -n $X push",
    "python3 $X",
    "git() { command git \"$@\"; }; git x",
    "source <(curl x)",
    "python3 -c \"import os; os.system('git push')\"",
    "python3 -c \"import subprocess as s; s.run(x)\"",
    "python3 -c \"run(['git', '-C', '.', 'push'])\"",
    "python3 <<E\nimport os\nos.system('gi' + 't push')\nE",
    "perl -e 'exec \"git\", \"push\"'",
    "node -e \"require('child_process')\"",
    "awk 'BEGIN { system(\"git push\") }'",
    "sed '1e git push' x",
    "git -c alias.x=push x",
    "git config alias.x push",
    "git -c \"$X\" status",
    "GIT_CONFIG_COUNT=1 git x",
    "GIT_SSH_COMMAND='git push' git fetch",
    "git -c core.sshCommand='git push' fetch",
    "git submodule foreach 'git push'",
    "git submodule foreach git push",
    "git bisect run git push",
    "git rebase -x 'git push' main",
    "xargs git",
    "echo push | xargs git",
    "xargs -I{} sh -c '{}'",
    "xargs -I{} {} push",
    "find . -exec {} push ';'",
    "find . -exec sh -c '$0 push' git ';'",
    "sudo --unknown git push",
    "su -c 'git push'",
    "ssh host git push",
    "parallel git push ::: a",
    "parallel 'git push {}' ::: a",
    "docker run image git push",
    "unknown-runner git push",
    "unknown-runner -c 'git push'",
    "./run.sh git push",
    "make X='git push'",
    "alias g='git push'",
    "X=1 case x in; $Y",
    "hash -p /usr/bin/git foo; foo push",
    "((git push); true)",
    "X='git push'; $X",
    "for c in 'git push'; do $c; done",
    "let 'a[$(git push)]'",
    "[ -v 'a[$(git push)]' ]",
    "tar cf x --checkpoint-action='exec=git push' y",
    "env -S \"$X\"",
    "coproc X git push",
    "{v}>f git push",
];

const HARMLESS: &[&str] = &[
    "make -j$(nproc)",
    "make -j $(nproc) all",
    "timeout 10 cargo test",
    "FOO=1 cargo test",
    "FOO=\"a b\" cargo test",
    "for i in 1 2; do echo x; done",
    "for f in *.rs; do rustfmt $f; done",
    "for d in a b; do git -C $d status; done",
    "for d in */; do (cd \"$d\" && make); done",
    "test -f x && echo y",
    "[ -f x ] && echo y || echo z",
    "sh -c ls",
    "bash -c 'cargo test && echo ok'",
    "find . -name '*.rs' | xargs grep foo",
    "find . -name '*.rs' -exec grep foo {} +",
    "find . -type f -print0 | xargs -0 -n 1 wc -l",
    "git status",
    "git -C push status",
    "git -c push=x status",
    "git --git-dir \"$X\" status",
    "git log --grep push",
    "git commit -m 'git push later'",
    "git commit -m \"$(cat <<'E'\ngit push\nE\n)\"",
    "git stash push",
    "git config user.name x",
    "echo git push",
    "echo 'git push'",
    "grep -rn 'git push' docs",
    "command -v git",
    "which git",
    "man git-push",
    "type git",
    "sudo apt-get install -y git",
    "cargo test push",
    "cargo test -- $X",
    "ls $X",
    "cat \"$X\"",
    "rm -rf \"$TMPDIR/x\"",
    "cd $HOME && ls",
    "export PATH=/x:$PATH; make",
    "PATH=/x:$PATH make",
    "cat <<E > x\ngit push\nE",
    "cat <<'E' > x\n$(git push)\nE",
    "cat <<E\n$(date)\nE",
    "echo $((1 + 2))",
    "((i++)); ls",
    "python3 -c 'print(1)'",
    "python3 -c \"import json, sys; print(json.load(sys.stdin)['a'])\"",
    "curl -s x | python3 -c 'import json,sys; print(json.load(sys.stdin))'",
    "python3 -m pytest -q",
    "python3 script.py --flag",
    "node script.js",
    "bash script.sh arg",
    "bash script.sh | tail",
    "timeout \"$X\" make",
    "python3 \"$X\"",
    "parallel echo ::: git push",
    "./push.sh",
    "awk '{print $1}' x",
    "awk -F: '{ print $1 \"|\" $2 }' x",
    "sed -n 's/a/b/p' x",
    "sed -i 's/git/hg/' x",
    "npm run build && npm test",
    "npm run push",
    "docker build -t x .",
    "docker push x",
    "time make",
    "env A=b make",
    "nohup make &",
    "if git diff --quiet; then echo same; fi",
    "while read -r x; do echo \"$x\"; done < list",
    "case \"$x\" in a) ls;; *) make;; esac",
    "case $x in a|*.rs) ls;; (-*|+*) make;; $y) ls;; esac",
    "case $x in\n  *.a|*.b)\n    ls\n    ;;\n  *)\n    make\n    ;;\nesac",
    "f() { ls; }; f",
    "trap 'rm -f x' EXIT",
    "set -e; cargo build",
    "xargs -n1 echo git push < x",
    "cat x | sort | uniq -c | sort -rn | head",
    "ls &> out.txt",
    "cargo build 2>&1 | tail -20",
    "perl -pe 's/a/b/' x",
];

#[test]
fn denied_subcommands_are_found_behind_options_runners_and_quotes() {
    check("git push *", "denied", PUSHES);
}

#[test]
fn lines_that_may_run_the_denied_program_are_asked_about() {
    check("git push *", "asked", MAYBE_PUSHES);
}

#[test]
fn other_lines_run_without_a_question() {
    check("git push *", "runs", HARMLESS);
}

#[test]
fn ask_rules_ask_where_deny_rules_deny_or_ask() {
    let ceilings = ceilings_of("code", "ask: ['shell(git push *)']");
    for (lines, expected) in [(PUSHES, "asked"), (MAYBE_PUSHES, "asked"), (HARMLESS, "runs")] {
        for line in lines {
            assert_eq!(decision_of(&ceilings, line), expected, "{line}");
        }
    }
}

#[test]
fn other_programs_have_options_before_their_subcommand() {
    for (pattern, denied, runs) in [
        ("cargo publish *", "cargo +nightly --offline -Z x publish", "cargo test publish"),
        ("npm publish *", "npm --prefix pkg publish", "npm run publish"),
        ("docker push *", "docker --context x push y", "docker pull push"),
        ("kubectl delete *", "kubectl -n x --context=y delete pod z", "kubectl -n delete get pods"),
        ("terraform apply *", "terraform -chdir=x apply", "terraform plan"),
        ("helm uninstall *", "helm --namespace x uninstall y", "helm list"),
        ("make deploy *", "make -C x -j4 deploy", "make -C deploy"),
        ("pip install *", "python3 -m pip install x", "pip list"),
        ("rm *", "find . -exec rm {} +", "git rm x"),
        ("rm *", "ls | xargs rm -f", "grep rm x"),
        ("git push origin *", "git -C . push origin main", "git push upstream"),
        ("/usr/bin/git push *", "sudo /usr/bin/git push", "git pull"),
        ("{git,hg} push *", "hg -R x push", "svn push"),
    ] {
        check(pattern, "denied", &[denied]);
        check(pattern, "runs", &[runs]);
    }
    check("git push origin *", "asked", &["git push -f origin main", "git push --repo x origin"]);
    check("npm run deploy *", "asked", &["npm run --silent deploy"]);
    check("git", "denied", &["git", "env git"]);
    check("git", "runs", &["git status"]);
    check("*--force*", "denied", &["git push --force", "bash -c 'git push --force'"]);
    check("*--force*", "asked", &["git push $OPTIONS", "bash -c \"$X\""]);
    check("*--force*", "runs", &["git push", "make -j$(nproc)"]);
}

#[test]
fn rules_for_files_do_not_ask_about_expansions() {
    let rule = "deny: ['*(**/.env)']";
    for (line, expected) in [
        ("cat src/.env", "denied"),
        ("bash -c 'cat src/.env'", "denied"),
        ("make -j$(nproc)", "runs"),
        ("for f in *; do cat $f; done", "runs"),
        ("bash -c \"$X\"", "asked"),
    ] {
        assert_eq!(decision(rule, line), expected, "{line}");
    }
}

#[test]
fn rules_of_claude_code_decide_commands() {
    assert_eq!(decision("deny: ['Bash(git push:*)']", "git -C . push"), "denied");
    assert_eq!(decision("deny: ['Bash(git push:*)']", "git pull"), "runs");
    assert_eq!(decision("ask: ['Bash(rm:*)']", "rm -rf x"), "asked");
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

/// Programs with their options before the sub-command, and with sub-commands.
const PROGRAMS: &[(&str, &[&str], &[&str])] = &[
    (
        "git",
        &["-C .", "-c a.b=c", "--no-pager", "--git-dir .git", "--git-dir=.git", "-P"],
        &["push", "commit", "reset", "status"],
    ),
    ("cargo", &["+nightly", "--offline", "--config a=b", "-q", "-Z x"], &["publish", "install", "test"]),
    ("npm", &["--prefix a", "--silent", "-w b", "--registry=c"], &["publish", "install", "run"]),
    ("docker", &["--context a", "-H b", "--debug", "--log-level=x"], &["push", "rm", "ps"]),
    ("kubectl", &["-n a", "--namespace=b", "--context c", "-v 3"], &["delete", "apply", "get"]),
    ("terraform", &["-chdir=a"], &["apply", "destroy", "plan"]),
    ("helm", &["-n a", "--kube-context b", "--debug"], &["uninstall", "install", "list"]),
    ("gh", &["-R a/b", "--repo=c/d"], &["pr", "release", "repo"]),
    ("make", &["-C .", "-j4", "-s", "A=b"], &["deploy", "clean", "check"]),
    ("pip", &["-q", "--proxy a", "--isolated"], &["install", "uninstall", "list"]),
    ("wipe", &[], &["all", "some"]),
];

/// 30 rules for sub-commands, and 10 for whole programs.
fn rules() -> Vec<(&'static str, Option<&'static str>)> {
    let subcommands = PROGRAMS.iter().flat_map(|(program, _, subcommands)| {
        subcommands.iter().take(3).map(move |subcommand| (*program, Some(*subcommand)))
    });
    let programs = PROGRAMS.iter().map(|(program, ..)| (*program, None));
    subcommands.take(30).chain(programs.take(10)).collect()
}

fn ceilings(program: &str, subcommand: Option<&str>) -> Ceilings {
    let pattern = subcommand.map_or(format!("{program} *"), |subcommand| format!("{program} {subcommand} *"));
    ceilings_of("code", &format!("deny: ['shell({pattern})']"))
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Another spelling of a word that means the same to bash.
fn spelled(random: &mut Random, word: &str) -> String {
    let (start, end) = word.split_at(word.len() / 2);
    match random.below(12) {
        0 => format!("'{word}'"),
        1 => format!("\"{word}\""),
        2 => format!("{start}\"\"{end}"),
        3 if !end.is_empty() => format!("{start}\\{end}"),
        4 => format!("$'{word}'"),
        5 => format!("{start}\\\n{end}"),
        _ => word.to_owned(),
    }
}

/// A line of one command. `is_known` if its program and sub-command are words of the line.
struct Line {
    text: String,
    is_known: bool,
    form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A program of a file with its arguments, which another program can run.
    Program,
    /// A command that only the shell can run.
    Command,
}

fn command(random: &mut Random) -> Line {
    let (program, options, subcommands) = PROGRAMS[random.below(PROGRAMS.len())];
    let mut words = Vec::new();
    let name = spelled(random, program);
    let mut is_known = true;
    words.push(match random.below(16) {
        0 => format!("$BIN/{program}"),
        1 => format!("\"$BIN\"/{program}"),
        2 => format!("./../bin/{program}"),
        3 => {
            is_known = false;
            format!("$(printf {program})")
        }
        _ => name,
    });
    is_known &= !words[0].contains('$') || words[0].starts_with("$'");
    for _ in 0..random.below(3) {
        if !options.is_empty() {
            words.push(random.of(options).to_owned());
        }
    }
    let subcommand = random.of(subcommands);
    words.push(match random.below(14) {
        0 => {
            is_known = false;
            format!("${}", subcommand.to_uppercase())
        }
        1 => {
            is_known = false;
            format!("{{{subcommand},x}}")
        }
        _ => spelled(random, subcommand),
    });
    for _ in 0..random.below(3) {
        // Names of other sub-commands are no sub-commands here. `wipe` might run a program that it is given.
        let more: &[&str] = &["x", "-f", "'a b'", "push", "delete", "--all", "> /dev/null", "git"];
        words.push(random.of(if program == "wipe" { &more[..7] } else { more }).to_owned());
    }
    Line { text: words.join(" "), is_known, form: Form::Program }
}

fn in_runner(random: &mut Random, line: Line) -> Line {
    let Line { text, is_known, form } = line;
    let is_plain = !text.contains(['>', '|', '&', ';']);
    let runner = match form {
        Form::Program => random.below(30),
        // The shell's own ways to run a command.
        Form::Command => 14 + random.below(16),
    };
    let (text, form) = match runner {
        0 => (format!("env {text}"), form),
        1 => (format!("env -i PATH=$PATH A=b {text}"), form),
        2 => (format!("/usr/bin/env -u A -C . {text}"), form),
        3 => (format!("timeout 9 {text}"), form),
        4 => (format!("timeout -k 1 --signal TERM 9s {text}"), form),
        5 => (format!("nice -n 5 {text}"), form),
        6 => (format!("nohup {text}"), form),
        7 => (format!("setsid -w {text}"), form),
        8 => (format!("stdbuf -oL {text}"), form),
        9 => (format!("command {text}"), Form::Command),
        10 => (format!("(exec {text})"), Form::Command),
        11 => (format!("echo x | xargs {text}"), Form::Command),
        12 => (format!("echo x | xargs -I% -n 1 {text}"), Form::Command),
        13 if is_plain => (format!("find . -maxdepth 0 -exec {text} \\;"), Form::Command),
        14 => (format!("bash -c {}", quoted(&text)), Form::Program),
        15 => (format!("/bin/bash -o pipefail -ec {} x", quoted(&text)), Form::Program),
        // `time` is a word of bash, and some systems have no such program.
        16 if !text.contains("time ") => {
            (format!("sh -c {}", quoted(&text.replace("$'", "'"))), Form::Program)
        }
        17 => (format!("eval {}", quoted(&text)), Form::Command),
        18 => (format!("bash <<'E'\n{text}\nE\n"), Form::Command),
        19 => (format!("trap {} EXIT", quoted(&text)), Form::Command),
        20 if form == Form::Program => (format!("A=1 B='c d' {text}"), Form::Command),
        21 if form == Form::Program => (format!("time -p {text}"), Form::Command),
        22 if form == Form::Program && !text.contains(['\\', '$']) => {
            (format!("env -S {}", quoted(&text.replace("\\\n", ""))), form)
        }
        _ => (text, form),
    };
    Line { text, is_known, form }
}

fn in_structure(random: &mut Random, line: Line) -> Line {
    let Line { text, mut is_known, form } = line;
    let has_input = text.contains("<<");
    // Nothing may follow the delimiter of a here-document on its line.
    let text = if text.contains("<<") { format!("{{ {text}\n}}") } else { text };
    let structure = random.below(24);
    // A shell may read either of two inputs.
    is_known &= !(has_input && matches!(structure, 12 | 15));
    let text = match structure {
        0 => format!("echo a; {text}"),
        1 => format!("true && {text}"),
        2 => format!("false || {text}"),
        3 => format!("{text} | cat"),
        4 => format!("echo \"$({text})\""),
        5 => format!("for i in 1 2; do {text}; done"),
        6 => format!("if true; then {text}; fi"),
        7 => format!("f() {{ {text}; }}; f"),
        8 => format!("({text})"),
        9 => format!("{{ {text}; }}"),
        10 => format!("! {text}"),
        11 => format!("case a in a|b) {text};; *) true;; esac"),
        12 => format!("cat <<F\n$({text})\nF\n"),
        13 => format!("{text} & wait"),
        14 => format!("while {text}; do break; done"),
        // Nothing waits for a process that does not hold the pipe.
        15 if !text.contains('>') => format!("cat < <({text})"),
        16 => format!("echo `true`; {text}"),
        17 => format!("[ -n a ] && {text}"),
        _ => text,
    };
    Line { text, is_known, form }
}

/// Lines that only mention a command, or run another one.
fn harmless(random: &mut Random) -> Line {
    let mention = command(random).text.replace('\n', " ");
    let text = match random.below(10) {
        0 => format!("echo {}", quoted(&mention)),
        1 => format!("grep -r {} .", quoted(&mention)),
        2 => "make -j$(nproc) all".to_owned(),
        3 => "for i in 1 2; do echo $i; done".to_owned(),
        4 => "find . -name x | xargs grep foo".to_owned(),
        5 => "FOO=1 A=\"b c\" cargo build".to_owned(),
        6 => "for d in a b; do git -C $d log; done".to_owned(),
        7 => format!("cat <<'E'\n{mention}\nE\n"),
        8 => "test -f x && cat x || true".to_owned(),
        _ => format!("printf '%s' {}", quoted("a b")),
    };
    Line { text, is_known: true, form: Form::Command }
}

fn lines(count: usize) -> Vec<Line> {
    let mut random = Random(0x5eed_cafe);
    let mut seen = BTreeSet::new();
    let mut lines = Vec::new();
    while lines.len() < count {
        let mut line = if random.below(5) == 0 { harmless(&mut random) } else { command(&mut random) };
        for _ in 0..random.below(3) {
            line = in_runner(&mut random, line);
        }
        line = in_structure(&mut random, line);
        if seen.insert(line.text.clone()) {
            lines.push(line);
        }
    }
    lines
}

/// The sub-command of a program, read without the parser under test.
fn subcommand(program: &str, arguments: &[String]) -> Option<String> {
    let valued: &[&str] = match program {
        "git" => &["-C", "-c", "--git-dir"],
        "cargo" => &["--config", "-Z"],
        "npm" => &["--prefix", "-w"],
        "docker" => &["--context", "-H"],
        "kubectl" => &["-n", "--context", "-v"],
        "helm" => &["-n", "--kube-context"],
        "gh" => &["-R"],
        "make" => &["-C"],
        "pip" => &["--proxy"],
        _ => &[],
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if valued.contains(&argument.as_str()) {
            arguments.next();
            continue;
        }
        let is_setting = program == "make" && argument.contains('=');
        if !is_setting && !argument.starts_with(['-', '+']) {
            return Some(argument.clone());
        }
    }
    None
}

/// Runs the lines in bash, and returns the arguments of each program of the table that each line ran.
fn run(lines: &[Line], top: &Path) -> Vec<Vec<Vec<String>>> {
    let (bin, work) = (top.join("bin"), top.join("work"));
    fs::create_dir_all(work.join("a")).unwrap();
    fs::create_dir_all(&bin).unwrap();
    for name in PROGRAMS.iter().map(|(program, ..)| *program).chain(["line-marker"]) {
        let path = bin.join(name);
        fs::write(&path, "#!/bin/sh\nexit 0\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut script = String::new();
    for (number, line) in lines.iter().enumerate() {
        let _ = writeln!(script, "line-marker {number}; ( eval {} ); wait", quoted(&line.text));
    }
    let (file, trace) = (top.join("script"), top.join("trace"));
    fs::write(&file, script).unwrap();
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-s", "1000", "-e", "trace=execve", "-o"])
        .arg(&trace)
        .arg("/bin/bash")
        .arg(&file);
    strace.current_dir(&work).env_clear().env("BIN", &bin).env("HOME", top);
    strace.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    for (_, _, subcommands) in PROGRAMS {
        for subcommand in *subcommands {
            strace.env(subcommand.to_uppercase(), subcommand);
        }
    }
    let ended = strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(ended.is_ok(), "this test needs strace: install the package strace");
    let mut ran: Vec<Vec<Vec<String>>> = vec![Vec::new(); lines.len()];
    let mut at = 0;
    for call in fs::read_to_string(&trace).unwrap().lines() {
        let Some((_, arguments)) = call.split_once("execve(\"").filter(|_| !call.contains("= -1 ")) else {
            continue;
        };
        let Some((path, rest)) = arguments.split_once("\", [") else { continue };
        let Some(name) = path.rsplit_once('/').filter(|(folder, _)| {
            folder.ends_with("/bin") && Path::new(folder).starts_with(top) || folder.ends_with("../bin")
        }) else {
            continue;
        };
        let list = rest.rsplit_once("], ").map_or(rest, |(list, _)| list);
        let mut words: Vec<String> =
            serde_json::from_str(&format!("[{}]", list.replace("\\'", "'"))).unwrap_or_default();
        if name.1 == "line-marker" {
            at = words[1].parse().unwrap();
        } else {
            words[0] = name.1.to_owned();
            ran[at].push(words);
        }
    }
    ran
}

#[test]
fn decisions_agree_with_what_bash_runs() {
    let dir = tempfile::tempdir().unwrap();
    let top = fs::canonicalize(dir.path()).unwrap();
    let lines = lines(500);
    let ran = run(&lines, &top);
    let rules = rules();
    assert_eq!(rules.len(), 40);
    let facts: Vec<CallFacts> = lines.iter().map(|line| facts_of(&line.text)).collect();
    let mut wrong = Vec::new();
    let mut counts = [0; 4];
    for (program, of_rule) in rules {
        let ceilings = ceilings(program, of_rule);
        for ((line, commands), facts) in lines.iter().zip(&ran).zip(&facts) {
            let is_denied = |command: &Vec<String>| {
                command[0] == program
                    && of_rule
                        .is_none_or(|wanted| subcommand(program, &command[1..]).as_deref() == Some(wanted))
            };
            let has_run = commands.iter().any(is_denied);
            let decision = verdict(&ceilings, facts);
            let is_right = match (has_run, line.is_known) {
                (true, true) => decision == "denied",
                (true, false) => decision != "runs",
                (false, true) => decision == "runs",
                // An unknown part could be anything.
                (false, false) => true,
            };
            if !is_right {
                wrong.push(format!("{program} {of_rule:?}, ran: {has_run}, {decision}: {}", line.text));
            }
            let kind = match (has_run, decision) {
                (true, "denied") => 0,
                (true, _) => 1,
                (false, "runs") => 2,
                (false, _) => 3,
            };
            counts[kind] += 1;
        }
    }
    let [denied, asked, runs, cautious] = counts;
    println!(
        "{denied} denied and {asked} asked of those that ran, {runs} run, {cautious} stopped for an unknown part"
    );
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(denied > 400 && asked > 20 && runs > 10_000, "the generator covers each case: {counts:?}");
}

fn strictness(decision: &str) -> usize {
    ["runs", "asked", "denied"].iter().position(|known| *known == decision).unwrap()
}

#[test]
fn another_deny_or_ask_rule_never_permits_more() {
    const RULES: &[(&str, &str)] = &[
        ("allow", "git *"),
        ("allow", "cargo *"),
        ("allow", "*"),
        ("ask", "npm *"),
        ("deny", "git push *"),
        ("deny", "*x*"),
    ];
    let of = |some: &[(&str, &str)]| {
        let list = |kind: &str| -> Vec<String> {
            some.iter()
                .filter(|(known, _)| *known == kind)
                .map(|(_, pattern)| format!("shell({pattern})"))
                .collect()
        };
        let text = serde_json::json!({ "deny": list("deny"), "ask": list("ask"), "allow": list("allow") })
            .to_string();
        ceilings_of("ask", &text)
    };
    let pairs: Vec<(Ceilings, Ceilings)> = RULES
        .iter()
        .flat_map(|first| RULES[3..].iter().map(move |second| (of(&[*first]), of(&[*first, *second]))))
        .collect();
    for line in lines(150) {
        let facts = facts_of(&line.text);
        for (one, both) in &pairs {
            let (before, after) = (verdict(one, &facts), verdict(both, &facts));
            assert!(strictness(after) >= strictness(before), "{both:?}: {}", line.text);
        }
    }
}

/// Lines that allow rules permit together, with the commands of each.
#[test]
fn rules_that_allow_a_line_allow_each_of_its_commands() {
    const PIECES: &[&str] = &[
        "git log",
        "cargo test",
        "ls",
        "grep x y",
        "npm run x",
        "cat $(git log)",
        "(cargo test)",
        "env ls",
        "FOO=1 ls",
        "ls > x",
        "ls > /dev/null",
        "echo `ls`",
        "git log &",
    ];
    const JOINTS: &[&str] = &[" | ", " && ", "; ", " || ", "\n"];
    let rules = ["git log *", "cargo *", "ls *", "grep *", "cat *", "echo *"];
    let ceilings = |rules: &[&str]| {
        let list: Vec<String> = rules.iter().map(|rule| format!("shell({rule})")).collect();
        ceilings_of("ask", &format!("allow: {}", serde_json::json!(list)))
    };
    let mut random = Random(0xa110);
    let (mut allowed, mut joined) = (0, 0);
    let mut some_of = || rules.iter().copied().filter(|_| random.below(3) > 0).collect::<Vec<_>>();
    let sets: Vec<(Vec<&str>, Ceilings)> =
        (0..12).map(|_| some_of()).map(|some| (some.clone(), ceilings(&some))).collect();
    for _ in 0..3_000 {
        let (some, ceilings) = &sets[random.below(sets.len())];
        let mut line = random.of(PIECES).to_owned();
        for _ in 0..random.below(3) {
            line.extend([random.of(JOINTS), random.of(PIECES)]);
        }
        if decision_of(ceilings, &line) != "runs" {
            continue;
        }
        allowed += 1;
        let parsed = CommandLine::parse(&line);
        assert!(parsed.is_understood(), "{line}");
        joined += usize::from(parsed.commands.len() > 1);
        for command in &parsed.commands {
            assert_eq!(decision_of(ceilings, &command.text), "runs", "{some:?}: {} of {line}", command.text);
        }
    }
    assert!(allowed > 300 && joined > 100, "{allowed} allowed, {joined} of several commands");
}
