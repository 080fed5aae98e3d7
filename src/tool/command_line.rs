//! A command line as a person reads it: which programs it runs, what it reads and writes. Pure.
//!
//! This is for the question to the user, and for what "always" covers. It restricts nothing: what a command may do is
//! held by the kernel, and whatever is not understood here is simply asked for each time.

use std::fmt::Write;

use tree_sitter::{Node, Parser};

use crate::permission::Commands;

/// Programs whose first word says what they do: an answer for one says nothing of another.
const BY_SUBCOMMAND: &[&str] = &[
    "apt",
    "apt-get",
    "brew",
    "bun",
    "bundle",
    "cargo",
    "composer",
    "conda",
    "deno",
    "docker",
    "dotnet",
    "gh",
    "git",
    "go",
    "gradle",
    "gradlew",
    "helm",
    "just",
    "kubectl",
    "make",
    "mix",
    "mvn",
    "npm",
    "npx",
    "pip",
    "pip3",
    "pnpm",
    "podman",
    "poetry",
    "rails",
    "rake",
    "rustup",
    "systemctl",
    "task",
    "terraform",
    "uv",
    "uvx",
    "yarn",
];

/// Subcommands that run something else.
const RUNNERS: &[&str] = &["exec", "dlx", "run", "x"];

/// Where `run` names a script of the project, or the project itself.
const RUN_SCRIPTS: &[&str] = &["npm", "pnpm", "yarn", "bun"];
const RUN_ITSELF: &[&str] = &["cargo", "dotnet"];

/// Programs that run whatever they are given, and words of the shell that change what others mean.
const WRAPPERS: &[&str] = &[
    ".",
    "alias",
    "ash",
    "awk",
    "bash",
    "builtin",
    "busybox",
    "chroot",
    "command",
    "coproc",
    "csh",
    "dash",
    "declare",
    "doas",
    "ed",
    "emacs",
    "enable",
    "env",
    "eval",
    "ex",
    "exec",
    "expect",
    "export",
    "find",
    "fish",
    "flock",
    "gawk",
    "hash",
    "ionice",
    "ksh",
    "let",
    "local",
    "lua",
    "mapfile",
    "nice",
    "node",
    "nohup",
    "osascript",
    "parallel",
    "perl",
    "php",
    "printf",
    "pwsh",
    "python",
    "python2",
    "python3",
    "read",
    "readonly",
    "ruby",
    "screen",
    "script",
    "sed",
    "set",
    "setsid",
    "sh",
    "shopt",
    "source",
    "ssh",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "taskset",
    "tee",
    "time",
    "timeout",
    "tmux",
    "trap",
    "typeset",
    "unset",
    "vi",
    "vim",
    "watch",
    "xargs",
    "zsh",
];

/// What a command line does.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
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
        let tree = parser
            .set_language(&tree_sitter_bash::LANGUAGE.into())
            .ok()
            .and_then(|()| parser.parse(text, None));
        let Some(tree) = tree else { return Self { is_opaque: true, ..Self::default() } };
        let mut line = Self { is_opaque: tree.root_node().has_error(), ..Self::default() };
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
        match node.kind() {
            "command" => self.commands.push(simple(node, source)),
            "file_redirect" => self.redirect(node, source),
            // The programs behind these names are no longer those that a person thinks of.
            "variable_assignment" | "function_definition" | "declaration_command" | "unset_command" => {
                self.is_opaque = true;
            }
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

    /// What an answer would cover.
    pub fn to_commands(&self) -> Commands {
        if self.is_opaque || !self.writes.is_empty() {
            return Commands::Opaque;
        }
        let prefixes = self.commands.iter().map(|command| command.prefix.clone());
        let mut prefixes: Vec<String> = match prefixes.collect() {
            Some(prefixes) => prefixes,
            None => return Commands::Opaque,
        };
        let mut seen = std::collections::HashSet::new();
        prefixes.retain(|prefix| seen.insert(prefix.clone()));
        Commands::Known(prefixes)
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
    let children: Vec<_> = node.named_children(&mut cursor).collect();
    let mut words = Vec::new();
    for child in &children {
        match child.kind() {
            "command_name" => words.push(child.named_child(0).and_then(|name| literal(name, source))),
            "variable_assignment" | "file_redirect" | "heredoc_redirect" | "herestring_redirect" => {}
            _ => words.push(literal(*child, source)),
        }
    }
    Simple { text: text_of(node, source), place: place(node), prefix: prefix(&words) }
}

/// The word that stands there, if it stands there as it is.
fn literal(node: Node<'_>, source: &str) -> Option<String> {
    let text = text_of(node, source);
    match node.kind() {
        "word" | "number" if !text.contains(['\\', '*', '?', '[', '{', '~']) => Some(text),
        "raw_string" => Some(text.trim_matches('\'').to_owned()),
        _ => None,
    }
}

fn prefix(words: &[Option<String>]) -> Option<String> {
    let name = words.first()?.as_deref()?;
    let program = name.rsplit('/').next().unwrap_or(name);
    if WRAPPERS.contains(&program) {
        return None;
    }
    if !BY_SUBCOMMAND.contains(&program) {
        return Some(name.to_owned());
    }
    let Some(subcommand) = words.get(1) else { return Some(name.to_owned()) };
    let subcommand = subcommand.as_deref().filter(|word| !word.starts_with('-'))?;
    match subcommand {
        "run" if RUN_ITSELF.contains(&program) => {}
        "run" if RUN_SCRIPTS.contains(&program) => {
            let script = words.get(2)?.as_deref().filter(|word| !word.starts_with('-'))?;
            return Some(format!("{name} run {script}"));
        }
        runner if RUNNERS.contains(&runner) => return None,
        _ => {}
    }
    Some(format!("{name} {subcommand}"))
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
        let found = match CommandLine::parse(line).to_commands() {
            Commands::Known(prefixes) => prefixes.join(", "),
            Commands::Opaque => "-".into(),
            Commands::None => panic!("a command line has commands"),
        };
        assert_eq!(found, covers, "{line}");
    }

    #[test]
    fn an_answer_covers_what_is_run_and_nothing_that_runs_something_else() {
        check("git status", "git status");
        check("git status --short && git diff | head -5", "git status, git diff, head");
        check("ls -la; ls /tmp", "ls");
        check("cargo test -- --nocapture 2>&1 | tail -20", "cargo test, tail");
        check("npm run build", "npm run build");
        check("make", "make");
        check("make deploy", "make deploy");
        check("./scripts/check.sh --all", "./scripts/check.sh");
        check("echo $(git rev-parse HEAD)", "echo, git rev-parse");
        check("cat <(git show HEAD)", "cat, git show");
        check("wc -l < notes.txt", "wc");
        check("ls > /dev/null 2>&1", "ls");
        check("(cd sub && ls)", "cd, ls");
        check("if grep -q x y; then ls; fi", "grep, ls");
    }

    #[test]
    fn what_is_not_plain_is_asked_each_time() {
        for line in [
            "sh -c 'git status'",
            "bash -lc ls",
            "/usr/bin/env git status",
            "sudo ls",
            "xargs rm",
            "find . -delete",
            "eval ls",
            "python3 -c 'print(1)'",
            "FOO=1 ls",
            "FOO=1; ls",
            "export PATH=/tmp:$PATH; git status",
            "git() { rm -rf .; }; git status",
            "$CMD",
            "\"$x\" y",
            "git $(echo push)",
            "git -c core.pager=x log",
            "git",
            "ls > out.txt",
            "ls >> out.txt",
            "ls &> all.txt",
            "echo x | tee f",
            "ls | sh",
            "ls | xargs -n1 rm",
            "docker run x",
            "uv run x",
            "npx",
            "npm exec x",
            "npm run",
            "sed -i s/a/b/ f",
            ". ./env",
            "",
            "   ",
            "((",
            "'",
            "git \\\nstatus && sh x",
            "l\\s",
            "/bin/[l]s",
            "case x in",
            "echo `sh x`",
            "trap x EXIT",
            "timeout 5 ls",
        ] {
            if ["git", "npx"].contains(&line) {
                check(line, line);
            } else {
                check(line, "-");
            }
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
