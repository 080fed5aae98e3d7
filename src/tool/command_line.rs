//! A command line as a person reads it: which programs it runs, what it reads and writes. Pure.
//!
//! This is for the question to the user, and for what "always" covers. It restricts nothing: what a command may do is
//! held by the kernel, and whatever is not understood here is simply asked for each time.

use std::fmt::Write;

use tree_sitter::{Node, Parser};

use crate::permission::Commands;

/// Programs that only say something: an answer for one covers it with any arguments.
#[rustfmt::skip]
const SAYING: &[&str] = &[
    ":", "basename", "dirname", "echo", "expr", "false", "free", "groups", "id", "lscpu", "nproc", "pwd", "seq", "sleep", "true",
    "tty", "type", "uname", "uptime", "which", "whoami",
];

/// Programs that only read and print: an answer for one covers it with any arguments that stay in the folder.
#[rustfmt::skip]
const READING: &[&str] = &[
    "cat", "cd", "cmp", "comm", "cut", "df", "diff", "du", "egrep", "fgrep", "grep", "head", "hexdump", "jq", "ls", "md5sum", "nl",
    "od", "paste", "readlink", "realpath", "rev", "sha1sum", "sha256sum", "stat", "strings", "tac", "tail", "tr", "wc", "xxd",
];

/// Programs whose first words say what they do, as long as no option follows: an answer covers those words with any further
/// ones that are no options.
#[rustfmt::skip]
const BY_SUBCOMMAND: &[&str] = &[
    "apt", "apt-get", "brew", "bun", "bundle", "cargo", "composer", "conda", "deno", "dotnet", "gh", "git", "go", "gradle",
    "helm", "just", "make", "mix", "mvn", "npm", "pip", "pip3", "pnpm", "poetry", "rails", "rake", "rustup", "systemctl",
    "task", "terraform", "uv", "yarn",
];

/// Subcommands that run what comes behind them.
const RUNNERS: &[&str] =
    &["exec", "dlx", "run", "x", "tool", "eval", "foreach", "bisect", "rebase", "filter-branch"];

/// Where `run` names a script of the project.
const SCRIPTS: &[&str] = &["npm", "pnpm", "yarn", "bun"];

/// What a line may be made of to be understood: anything else is asked for each time.
#[rustfmt::skip]
const UNDERSTOOD: &[&str] = &[
    "program", "list", "pipeline", "redirected_statement", "negated_command", "command", "command_name", "word", "number",
    "raw_string", "string", "string_content", "concatenation", "simple_expansion", "variable_name", "special_variable_name",
    "command_substitution", "process_substitution", "file_redirect", "file_descriptor", "subshell", "compound_statement",
    "if_statement", "elif_clause", "else_clause", "while_statement", "do_group", "comment",
];

/// Words of the shell that change what others mean, or run what they are given: no answer covers them.
#[rustfmt::skip]
const SHELL_WORDS: &[&str] = &[
    ".", "alias", "bind", "builtin", "command", "compgen", "complete", "coproc", "declare", "enable", "eval", "exec", "export",
    "fc", "getopts", "hash", "history", "jobs", "let", "local", "mapfile", "popd", "printf", "pushd", "read", "readarray", "readonly", "set", "shopt",
    "source", "test", "[", "time", "trap", "typeset", "unset", "wait", "sudo", "doas", "su", "env", "xargs", "sh", "bash", "dash", "zsh",
    "ksh", "fish", "nohup", "setsid", "timeout", "nice", "watch", "ssh", "parallel",
];

/// Bytes of a line that can be shown whole: there is no "always" for what was not seen.
const MAX_SHOWN: usize = 4 * 1024;

/// What a command line does.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// As it was written.
    text: String,
    /// The commands in it, in their order, also those in pipes, substitutions and blocks.
    commands: Vec<Simple>,
    /// What redirects read.
    reads: Vec<String>,
    /// What redirects write.
    writes: Vec<String>,
    /// Something in it is not as plain as it looks.
    is_opaque: bool,
}

/// One command.
#[derive(Debug, PartialEq, Eq)]
struct Simple {
    /// As it was written.
    text: String,
    /// Its words without quotes, assignments and the program's folder.
    plain: String,
    place: Place,
    /// What an answer for it would cover; none where it runs something else.
    prefix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Plain,
    /// It reads the output of the one before.
    Piped,
    /// Its output becomes part of another command.
    Substituted,
}

impl CommandLine {
    /// Reads a command line.
    pub fn parse(text: &str) -> Self {
        let mut parser = Parser::new();
        let language = parser.set_language(&tree_sitter_bash::LANGUAGE.into());
        let tree = language.ok().and_then(|()| parser.parse(text, None));
        let Some(tree) = tree else { return Self { is_opaque: true, ..Self::default() } };
        let is_odd = |c: char| {
            c == '`' || (c.is_control() && c != '\n' && c != '\t') || (c.is_whitespace() && !c.is_ascii())
        };
        let is_opaque = tree.root_node().has_error() || text.contains(is_odd);
        let mut line = Self { text: text.trim().to_owned(), is_opaque, ..Self::default() };
        let mut nodes = vec![tree.root_node()];
        while let Some(node) = nodes.pop() {
            line.look_at(node, text);
            let mut cursor = node.walk();
            let children: Vec<_> = node.named_children(&mut cursor).collect();
            nodes.extend(children.into_iter().rev());
        }
        line.is_opaque |= line.commands.is_empty();
        line
    }

    fn look_at(&mut self, node: Node<'_>, source: &str) {
        self.is_opaque |= !UNDERSTOOD.contains(&node.kind());
        match node.kind() {
            "command" => self.commands.push(simple(node, source)),
            "file_redirect" => self.redirect(node, source),
            _ => {}
        }
    }

    fn redirect(&mut self, node: Node<'_>, source: &str) {
        let target =
            node.child_by_field_name("destination").map(|node| text_of(node, source)).unwrap_or_default();
        let operator = text_of(node, source);
        if !operator.contains('>') {
            self.reads.push(target);
        } else if !(operator.contains(">&")
            && target.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'))
            && target != "/dev/null"
        {
            self.writes.push(target);
        }
    }

    /// What an answer would cover. `elsewhere` names the folder, where that is not the session's own: there the same words
    /// can mean something else.
    pub fn to_commands(&self, elsewhere: Option<&str>) -> Commands {
        Commands::Line {
            line: self.text.clone(),
            texts: self.commands.iter().map(|command| command.text.clone()).collect(),
            plain: self.commands.iter().map(|command| command.plain.clone()).collect(),
            covered: self.covered(elsewhere),
        }
    }

    fn covered(&self, elsewhere: Option<&str>) -> Option<Vec<String>> {
        if self.is_opaque || !self.writes.is_empty() || self.text.len() > MAX_SHOWN {
            return None;
        }
        let prefixes: Option<Vec<&String>> =
            self.commands.iter().map(|command| command.prefix.as_ref()).collect();
        let prefixes = prefixes?;
        let is_plain =
            |prefix: &&String| SAYING.contains(&prefix.as_str()) || READING.contains(&prefix.as_str());
        let place = elsewhere.map(|place| format!(" (in {place})")).unwrap_or_default();
        let moves = prefixes.iter().any(|prefix| *prefix == "cd");
        if moves && !prefixes.iter().all(is_plain) {
            return Some(vec![format!("{}{place}", self.text)]);
        }
        let mut known: Vec<String> = Vec::new();
        for prefix in prefixes {
            let covered = if is_plain(&prefix) { prefix.clone() } else { format!("{prefix}{place}") };
            if !known.contains(&covered) {
                known.push(covered);
            }
        }
        Some(known)
    }

    /// The parts, one line each, for the question to the user. Nothing for a line of one plain command.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        if self.commands.len() > 1 {
            for (number, command) in self.commands.iter().enumerate() {
                let place = match command.place {
                    Place::Plain => "",
                    Place::Piped => " (reads the output of the one before)",
                    Place::Substituted => " (its output becomes part of the command)",
                };
                let first = command.text.lines().next().unwrap_or_default();
                let _ = writeln!(text, "{}. `{first}`{place}", number + 1);
            }
        }
        for (what, places) in [("Reads", &self.reads), ("Writes", &self.writes)] {
            if !places.is_empty() {
                let _ = writeln!(text, "{what}: {}", places.join(", "));
            }
        }
        text
    }
}

fn simple(node: Node<'_>, source: &str) -> Simple {
    let mut cursor = node.walk();
    let (mut words, mut plain) = (Vec::new(), Vec::new());
    for child in node.named_children(&mut cursor) {
        let word = match child.kind() {
            "command_name" => child.named_child(0).unwrap_or(child),
            "file_redirect" => continue,
            "variable_assignment" => {
                words.push(None);
                continue;
            }
            _ => child,
        };
        let bare: String =
            text_of(word, source).chars().filter(|c| !matches!(c, '\'' | '"' | '\\' | '\n')).collect();
        let is_program = plain.is_empty();
        plain.push(if is_program { bare.rsplit('/').next().unwrap_or_default().to_owned() } else { bare });
        words.push(literal(word, source));
    }
    let text = text_of(node, source);
    Simple { prefix: prefix(&words, &text), plain: plain.join(" "), text, place: place(node) }
}

/// The word that stands there, if it stands there as it is.
fn literal(node: Node<'_>, source: &str) -> Option<String> {
    let text = text_of(node, source);
    match node.kind() {
        "word" | "number" if !text.contains(['\\', '*', '?', '[', '{', '~', '$']) => Some(text),
        "raw_string" => Some(text.trim_matches('\'').to_owned()),
        "string" => Some(text.trim_matches('"').to_owned()).filter(|inner| !inner.contains(['$', '\\', '"'])),
        _ => None,
    }
}

/// What an answer for a command covers: the program with any arguments, its first words with any further ones, or exactly
/// this; none for what changes the meaning of others.
fn prefix(words: &[Option<String>], text: &str) -> Option<String> {
    let program = words.first()?.as_deref()?;
    if SHELL_WORDS.contains(&program) {
        return None;
    }
    if SAYING.contains(&program) || (READING.contains(&program) && stays_inside(text)) {
        return Some(program.to_owned());
    }
    // Exactly this can only be said of what stands there as it is.
    let exact = || words.iter().all(Option::is_some).then(|| text.to_owned());
    let (Some(Some(subcommand)), true) = (words.get(1), BY_SUBCOMMAND.contains(&program)) else {
        return exact();
    };
    let is_word = |word: &&Option<String>| {
        word.as_deref().is_some_and(|word| !word.starts_with(['-', '+']) && !word.contains('='))
    };
    let plain_words = words.iter().skip(1).take_while(is_word).count();
    if plain_words + 1 < words.len() || RUNNERS.contains(&subcommand.as_str()) {
        return match words.get(2) {
            Some(Some(script))
                if subcommand == "run" && SCRIPTS.contains(&program) && plain_words + 1 == words.len() =>
            {
                Some(format!("{program} run {script}"))
            }
            _ => exact(),
        };
    }
    Some(format!("{program} {subcommand}"))
}

/// Whether no word of a command can name a place outside of the folder: none is absolute, goes up, or is only known when
/// it runs.
fn stays_inside(text: &str) -> bool {
    let leaves = |word: &str| {
        let word = word.trim_matches(['\'', '"']);
        word.starts_with(['/', '~']) || word.contains("..") || word.contains("=/") || word.contains('$')
    };
    !text.split([' ', '\t', '\n']).any(leaves)
}

fn place(node: Node<'_>) -> Place {
    let mut child = node;
    while let Some(parent) = child.parent() {
        match parent.kind() {
            "pipeline" if parent.named_child(0) != Some(child) => return Place::Piped,
            "command_substitution" | "process_substitution" => return Place::Substituted,
            _ => child = parent,
        }
    }
    Place::Plain
}

fn text_of(node: Node<'_>, source: &str) -> String {
    source.get(node.byte_range()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What "always" would cover; a dash where there is no such thing.
    fn check(line: &str, covers: &str) {
        let found = CommandLine::parse(line).covered(None).map_or("-".into(), |covered| covered.join(", "));
        assert_eq!(found, covers, "{line}");
    }

    #[test]
    fn an_answer_covers_what_is_run_and_nothing_that_runs_something_else() {
        check("git status", "git status");
        check("git status && git diff src | head -5", "git status, git diff, head");
        check("ls -la; ls src/*.rs", "ls");
        check("cargo test 2>&1 | tail -20", "cargo test, tail");
        check("npm run build", "npm run build");
        check("make", "make");
        check("make deploy", "make deploy");
        check("echo $(git rev-parse HEAD) $HOME \"a b\"", "echo, git rev-parse");
        check("cat <(git show HEAD)", "cat, git show");
        check("wc -l < notes.txt", "wc");
        check("ls > /dev/null 2>&1", "ls");
        check("(cd sub && ls)", "cd, ls");
        check("cd sub && make deploy", "cd sub && make deploy");
        let there = CommandLine::parse("make deploy; ls").covered(Some("sub")).unwrap();
        assert_eq!(there, ["make deploy (in sub)", "ls"]);
    }

    #[test]
    fn quotes_assignments_and_folders_hide_no_command_from_a_rule() {
        for line in [
            "git \"push\" x",
            "git pu''sh x",
            "FOO=1 git push x",
            "/usr/bin/git push x",
            "git \\\npush x",
            "ls; git push x",
        ] {
            let Commands::Line { plain, .. } = CommandLine::parse(line).to_commands(None) else {
                panic!("{line}")
            };
            assert!(plain.iter().any(|words| words == "git push x"), "{line}: {plain:?}");
        }
    }

    #[test]
    fn what_could_mean_more_is_covered_word_for_word() {
        for line in [
            "git status --short",
            "git log --output=x",
            "git -c core.pager=x log",
            "git grep -O./evil.sh x",
            "git",
            "npx",
            "make SHELL=./evil.sh",
            "make -f evil.mk",
            "cargo test -- --nocapture",
            "./scripts/check.sh --all",
            "bin/ls",
            "tar cf x y --checkpoint-action=exec=x",
            "sed -i s/a/b/ f",
            "python3 -c 'print(1)'",
            "find . -delete",
            "uv run x",
            "docker run x",
            "npm exec x",
            "npm run",
            "npm run x -- y",
            "rm -rf x",
            "git rebase main",
            "node x.js",
            "tee f",
            "sort -o x y",
        ] {
            check(line, line);
        }
    }

    #[test]
    fn what_is_not_understood_is_asked_each_time() {
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
        ] {
            check(line, "-");
        }
    }

    #[test]
    fn a_question_shows_the_parts() {
        let text =
            CommandLine::parse("git log $(git rev-parse HEAD) | head -3 > out.txt < in.txt").describe();
        assert_eq!(
            text,
            "1. `git log $(git rev-parse HEAD)`\n2. `git rev-parse HEAD` (its output becomes part of the command)\n\
             3. `head -3` (reads the output of the one before)\nReads: in.txt\nWrites: out.txt\n"
        );
        assert_eq!(CommandLine::parse("ls -la").describe(), "");
    }
}
