//! `modegate wrap -- COMMAND…`: any ACP agent as an editor starts it, under modes that hold.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::config::environment::Environment;
use crate::roster::harness::{HarnessDefinition, HarnessModes, HarnessSandbox};

/// A folder of state: the variable that says where it is, where it is without, and what lies there of the agent's.
type Folder = (&'static str, &'static str, Option<&'static str>);

/// Agents whose folders of state are known, by a part of their command: the folders, and the mode of their own that is set while
/// they are held, where that is not one that is found by its id.
const KNOWN: [(&str, &[Folder], Option<&str>); 3] = [
    ("gemini", &[("GEMINI_CLI_HOME", "~", Some(".gemini"))], None),
    (
        "opencode",
        &[
            ("XDG_DATA_HOME", "~/.local/share", Some("opencode")),
            ("XDG_STATE_HOME", "~/.local/state", Some("opencode")),
            ("XDG_CACHE_HOME", "~/.cache", Some("opencode")),
        ],
        None,
    ),
    // Its own sandbox for commands cannot be made inside of the hold; in this mode it makes none.
    ("codex", &[("CODEX_HOME", "~/.codex", None)], Some("full-access")),
];

/// Programs that run others, which they are told.
const RUNNERS: [&str; 9] = ["node", "npx", "npm", "bun", "bunx", "deno", "pnpm", "yarn", "uvx"];

/// How they are told to.
const RUN: [&str; 4] = ["dlx", "exec", "run", "x"];

/// What is said of the agent.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A folder in which it keeps its state: what it may write while a mode changes nothing; may be repeated [default: those of
    /// gemini, opencode and codex are known]
    #[arg(long, value_name = "DIR")]
    state_dir: Vec<PathBuf>,
    /// The mode of its own that is set while it is held [default: one whose id says so: plan, read-only, …]
    #[arg(long, value_name = "ID")]
    read_only_mode: Option<String>,
    /// The mode of its own that is set while everything is allowed [default: the one that it begins with]
    #[arg(long, value_name = "ID")]
    full_mode: Option<String>,
    /// The agent's command, behind --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Arguments {
    /// The agent, with an id by which the record has it. It gets these keys, and `variable` says what else it will see.
    pub fn agent(
        self,
        environment: &Environment,
        variable: impl Fn(&str) -> Option<String>,
    ) -> (String, HarnessDefinition) {
        let Self { state_dir, read_only_mode, full_mode, command } = self;
        let known = agent_of(&command).and_then(|word| KNOWN.iter().find(|(name, ..)| names(word, name)));
        let mut words = command.iter().cloned();
        let program = words.next().unwrap_or_default();
        let state_dirs = match known {
            Some((_, folders, _)) if state_dir.is_empty() => {
                folders.iter().map(|folder| place(folder, &variable)).collect()
            }
            _ => state_dir,
        };
        let read_only = read_only_mode.or_else(|| known.and_then(|(.., mode)| mode.map(str::to_owned)));
        let id = known.map_or_else(|| id_of(&program), |(name, ..)| (*name).to_owned());
        let definition = HarnessDefinition {
            command: program,
            args: words.collect(),
            // What was taken out of the environment is the user's to give to whom they start.
            env: environment.keys().collect(),
            sandbox: Some(HarnessSandbox { state_dirs }),
            modes: HarnessModes { read_only, full: full_mode },
            inherits: true,
            missing: None,
        };
        (id, definition)
    }
}

/// Where a folder is.
fn place((name, usual, below): &Folder, variable: impl Fn(&str) -> Option<String>) -> PathBuf {
    let set = variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = set.unwrap_or_else(|| PathBuf::from(usual));
    below.map_or(base.clone(), |below| base.join(below))
}

/// The word of a command that says which agent it is: the program, or what a runner of programs is to run. What an agent is told
/// says nothing: it may name a model.
fn agent_of(command: &[String]) -> Option<&str> {
    let (program, told) = command.split_first()?;
    let program = Path::new(program).file_name()?.to_str()?;
    let is_said = |word: &&String| !word.starts_with('-') && !RUN.contains(&word.as_str());
    if RUNNERS.contains(&program) { told.iter().find(is_said).map(String::as_str) } else { Some(program) }
}

/// Whether a word of a command is a program, or a path to a part of one, that begins with a name.
fn names(word: &str, name: &str) -> bool {
    Path::new(word).components().any(|part| part.as_os_str().to_string_lossy().starts_with(name))
}

/// The program's name as an id.
fn id_of(program: &str) -> String {
    let stem = Path::new(program).file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    let id: String = stem
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .skip_while(|c| !c.is_ascii_lowercase())
        .take(30)
        .collect();
    if id.is_empty() { "wrapped".into() } else { id }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(command: &[&str], state: &[&str]) -> (String, HarnessDefinition) {
        let arguments = Arguments {
            state_dir: state.iter().map(PathBuf::from).collect(),
            read_only_mode: None,
            full_mode: None,
            command: command.iter().map(|word| (*word).to_owned()).collect(),
        };
        let variable = |name: &str| match name {
            "XDG_STATE_HOME" => Some("/state".into()),
            "XDG_CACHE_HOME" => Some("not/absolute".into()),
            _ => None,
        };
        arguments.agent(&Environment::default(), variable)
    }

    #[test]
    fn what_is_known_of_an_agent_is_found_by_its_command() {
        let dirs = |command: &[&str], state: &[&str]| {
            let (id, definition) = agent(command, state);
            let dirs = definition.sandbox.unwrap().state_dirs;
            (id, dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(" "))
        };
        for (command, state, id, expected) in [
            (&["gemini", "--acp"][..], &[][..], "gemini", "~/.gemini"),
            (&["node", "/opt/gemini/bundle/gemini.js"], &[], "gemini", "~/.gemini"),
            (&["npx", "-y", "@google/gemini-cli", "--acp"], &[], "gemini", "~/.gemini"),
            (&["/home/codex/other", "--model", "gemini-3"], &[], "other", ""),
            (&["npx", "other", "gemini"], &[], "npx", ""),
            (&["/x/codex-acp"], &["/state"], "codex", "/state"),
            (&["codex-acp"], &[], "codex", "~/.codex"),
            (&["opencode"], &[], "opencode", "~/.local/share/opencode /state/opencode ~/.cache/opencode"),
            (&["opencode"], &["/own"], "opencode", "/own"),
            (&["/usr/bin/My Agent"], &[], "my-agent", ""),
            (&["./7"], &[], "wrapped", ""),
        ] {
            assert_eq!(dirs(command, state), (id.to_owned(), expected.to_owned()), "{command:?}");
        }
        let (_, codex) = agent(&["codex-acp"], &[]);
        assert_eq!(codex.modes.read_only.as_deref(), Some("full-access"));
    }
}
