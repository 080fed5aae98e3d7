//! Entries of a session's hash chain, as JSON. A call entry contains all facts that its decision used, so
//! that `modegate audit` can decide the call again.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::invocation_row::Runs;
use crate::mode::ShellUse;
use crate::permission::{CallFacts, CallSource, Claim, CommandScope, Commands, Effect, Scope, Target};

/// A chain entry. `at` is in milliseconds since 1970, and `turn` is 0 before the first turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "written and read one at a time")]
pub enum ChainEntry {
    Mode {
        turn: u64,
        from: Option<String>,
        to: String,
        source: String,
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<String>,
        at: i64,
    },
    /// First entry of a session that is older than chains. The counts cover the time before.
    Older {
        turns: u64,
        mode: Option<String>,
        mode_changes: u64,
        denials: u64,
        at: i64,
    },
    /// A refused call, or a rule that refused acts of a call: see [`refuses_acts`].
    Denial {
        turn: u64,
        call: String,
        tool: String,
        mode: String,
        rule: String,
        at: i64,
    },
    Answer {
        turn: u64,
        mode: String,
        allows: bool,
        scope: ScopeRow,
        at: i64,
    },
    /// A permitted call that changes something.
    Call {
        turn: u64,
        call: String,
        facts: RecordedFacts,
        arguments: String,
        /// The check that the call runs. `None` for a call of the model.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        check: Option<String>,
        mode: String,
        /// Hash of the modes and rules that the decision used.
        under: String,
        consent: RecordedConsent,
        at: i64,
    },
    /// An MCP server changed its claims about a tool.
    Hint {
        turn: u64,
        tool: String,
        from: String,
        to: String,
        at: i64,
    },
    Delegate {
        turn: u64,
        call: String,
        session: String,
        agent: String,
        at: i64,
    },
    #[serde(rename = "harness")]
    /// The process of an external agent starts.
    ExternalAgent {
        turn: u64,
        agent: String,
        #[serde(rename = "held")]
        sandboxed: bool,
        /// True if each change is decided for its path.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        decided: bool,
        /// Hash of the modes and rules that the decision used. `None` in old entries.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        under: Option<String>,
        at: i64,
    },
    /// Files that a brokered external agent changed in a turn.
    Changes {
        turn: u64,
        agent: String,
        facts: RecordedFacts,
        /// Hash of the modes and rules under which the agent was permitted to change files.
        under: String,
        at: i64,
    },
    Agent {
        turn: u64,
        from: String,
        to: String,
        at: i64,
    },
    Undo {
        turn: u64,
        files: u64,
        at: i64,
    },
    /// The record of a turn's changes failed, so that changes may be unknown.
    Unrecorded {
        turn: u64,
        /// A sentence.
        why: String,
        at: i64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedConsent {
    /// Modes and rules allow the call without asking.
    Mode,
    User,
    Remembered,
    /// A write of an external agent: it asks before it writes, so Modegate does not ask again.
    ExternalAgent,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedFacts {
    tool: String,
    effect: String,
    shell: String,
    background: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    targets: Vec<StoredPath>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<CommandLineRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claim: Option<ClaimRow>,
    /// True for a request of an external agent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    external: bool,
    /// True for a change of a brokered agent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    brokered: bool,
    /// Paths that an external agent names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    mentions: Vec<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ClaimRow {
    server: String,
    flips: u64,
}

/// A path below the session's folder (`inside`), absolute (`path`), or both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoredPath {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inside: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CommandLineRow {
    #[serde(rename = "line")]
    whole: String,
    texts: Vec<String>,
    plain: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    covered: Option<Vec<String>>,
    /// `None` in old entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    understood: Option<bool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    always: Vec<ScopeRow>,
    /// `None` in old entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    runs: Option<Runs>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScopeRow {
    /// `tool`, `below`, `line`, `program`, `origin` or `claims`; `command` in old entries.
    pub kind: String,
    /// The tool, or the MCP server for `claims`.
    pub tool: String,
    /// Empty for `tool`. For `line` and `program`, a JSON pair of folder and text.
    pub value: String,
}

/// True if the rule of a denial refused acts of a call that ran, and not the call. It is the text of a rule then.
pub fn refuses_acts(rule: &str) -> bool {
    rule.starts_with("deny ")
}

impl ChainEntry {
    pub fn to_body(&self) -> String {
        serde_json::to_string(self).expect("an entry is texts and numbers")
    }

    pub fn read(body: &str) -> Result<Self, String> {
        serde_json::from_str(body).map_err(|error| error.to_string())
    }
}

const EFFECTS: [(Effect, &str); 8] = [
    (Effect::Read, "read"),
    (Effect::Session, "session"),
    (Effect::Delegate, "delegate"),
    (Effect::Network, "network"),
    (Effect::Edit, "edit"),
    (Effect::Execute, "execute"),
    (Effect::State, "state"),
    (Effect::Unknown, "unknown"),
];

pub fn effect(effect: Effect) -> String {
    word(&EFFECTS, effect)
}

const SHELLS: [(ShellUse, &str); 3] =
    [(ShellUse::Off, "off"), (ShellUse::ReadOnly, "read_only"), (ShellUse::Full, "full")];

fn word<T: Copy + PartialEq>(table: &[(T, &'static str)], value: T) -> String {
    table.iter().find(|(known, _)| *known == value).map_or_else(String::new, |(_, word)| (*word).to_owned())
}

/// Unknown names map to the last row, which is the strictest.
fn meaning<T: Copy>(table: &[(T, &'static str)], word: &str) -> T {
    table.iter().find(|(_, known)| *known == word).unwrap_or(&table[table.len() - 1]).0
}

impl RecordedFacts {
    /// `is_portable` leaves out absolute paths in the session's folders: every run gives the same bytes.
    pub fn new(facts: &CallFacts, is_portable: bool) -> Self {
        // A new field must be stored, or left out on purpose: an audit decides again from the stored facts.
        let CallFacts {
            tool,
            effect,
            shell,
            is_background,
            targets,
            commands,
            claim,
            source,
            mentions,
            server: _,
            is_exit: _,
            address: _,
            outputs: _,
        } = facts;
        let external = *source != CallSource::Tool;
        let place = |target: &Target| {
            let inside = target.inside.as_ref().map(|inside| inside.to_string_lossy().into_owned());
            let is_left_out = is_portable && inside.is_some();
            StoredPath { path: (!is_left_out).then(|| target.path.to_string_lossy().into_owned()), inside }
        };
        let command = match commands {
            Commands::None => None,
            Commands::Line { line, texts, plain, is_understood, always, invocations, before, .. } => {
                Some(CommandLineRow {
                    whole: line.clone(),
                    texts: texts.clone(),
                    plain: plain.clone(),
                    covered: before.clone(),
                    understood: before.is_none().then_some(*is_understood),
                    always: always
                        .iter()
                        .map(|scope| (&Scope::Run(tool.clone(), scope.clone())).into())
                        .collect(),
                    runs: invocations.as_deref().map(Runs::new),
                })
            }
        };
        Self {
            tool: tool.clone(),
            effect: word(&EFFECTS, *effect),
            shell: word(&SHELLS, *shell),
            background: *is_background,
            targets: targets.iter().map(place).collect(),
            command,
            claim: claim.as_ref().map(|claim| ClaimRow { server: claim.server.clone(), flips: claim.flips }),
            external,
            brokered: *source == CallSource::Broker,
            mentions: mentions.iter().filter(|_| external).cloned().collect(),
        }
    }

    pub fn is_external(&self) -> bool {
        self.external
    }

    pub fn tool(&self) -> &str {
        &self.tool
    }

    pub fn to_call(&self, cwd: &Path) -> CallFacts {
        let target = |place: &StoredPath| {
            let inside = place.inside.as_ref().map(PathBuf::from);
            let below = inside.as_ref().map(|inside| cwd.join(inside));
            Target { path: place.path.as_ref().map(PathBuf::from).or(below).unwrap_or_default(), inside }
        };
        let commands = self.command.as_ref().map_or(Commands::None, |command| Commands::Line {
            line: command.whole.clone(),
            texts: command.texts.clone(),
            plain: command.plain.clone(),
            is_understood: command.understood.unwrap_or(command.covered.is_some()),
            always: command.always.iter().filter_map(command_scope).collect(),
            // Parts can only reject, and this call was allowed.
            parts: Vec::new(),
            invocations: command.runs.as_ref().map(|runs| Box::new(runs.to_invocations())),
            before: command.covered.clone(),
        });
        CallFacts {
            source: match (self.brokered, self.external) {
                (true, _) => CallSource::Broker,
                (false, true) => CallSource::ExternalAgent,
                (false, false) => CallSource::Tool,
            },
            mentions: self.mentions.clone(),
            shell: meaning(&SHELLS, &self.shell),
            is_background: self.background,
            targets: self.targets.iter().map(target).collect(),
            commands,
            claim: self
                .claim
                .as_ref()
                .map(|claim| Claim { server: claim.server.clone(), flips: claim.flips }),
            ..CallFacts::of_tool(self.tool.clone(), meaning(&EFFECTS, &self.effect))
        }
    }
}

fn command_scope(row: &ScopeRow) -> Option<CommandScope> {
    match row.to_scope() {
        Some(Scope::Run(_, scope)) => Some(scope),
        _ => None,
    }
}

impl From<&Scope> for ScopeRow {
    fn from(scope: &Scope) -> Self {
        let (kind, tool, value) = match scope {
            Scope::Tool(tool) => ("tool", tool, String::new()),
            Scope::Below(tool, path) => ("below", tool, path.to_string_lossy().into_owned()),
            Scope::Run(tool, CommandScope::Line { text, folder }) => {
                ("line", tool, pair(folder.as_ref(), text))
            }
            Scope::Run(tool, CommandScope::Program { shown, folder }) => {
                ("program", tool, pair(folder.as_ref(), shown))
            }
            Scope::Command(tool, command) => ("command", tool, command.clone()),
            Scope::Origin(tool, origin) => ("origin", tool, origin.clone()),
            Scope::Claims(server, flips) => ("claims", server, flips.to_string()),
        };
        Self { kind: kind.to_owned(), tool: tool.clone(), value }
    }
}

fn pair(folder: Option<&String>, text: &str) -> String {
    serde_json::json!([folder, text]).to_string()
}

impl ScopeRow {
    /// Returns `None` for an unknown kind, which covers nothing.
    pub fn to_scope(&self) -> Option<Scope> {
        let tool = self.tool.clone();
        match self.kind.as_str() {
            "tool" => Some(Scope::Tool(tool)),
            "below" => Some(Scope::Below(tool, self.value.clone().into())),
            "line" | "program" => {
                let (folder, text): (Option<String>, String) = serde_json::from_str(&self.value).ok()?;
                let is_line = self.kind == "line";
                let scope = if is_line { CommandScope::line(text) } else { CommandScope::program(text) };
                Some(Scope::Run(tool, scope.within(folder.as_deref())))
            }
            "command" => Some(Scope::Command(tool, self.value.clone())),
            "origin" => Some(Scope::Origin(tool, self.value.clone())),
            "claims" => Some(Scope::Claims(tool, self.value.parse().ok()?)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permission::{CommandWord, Invocation, Invocations};

    #[test]
    fn call_facts_round_trip_and_portable_form_omits_folder() {
        let facts = CallFacts {
            shell: ShellUse::Full,
            is_background: true,
            targets: vec![
                Target { path: "/w/a/b".into(), inside: Some("a/b".into()) },
                Target { path: "/other/c".into(), inside: Some("c".into()) },
                Target { path: "/etc/x".into(), inside: None },
            ],
            commands: Commands::Line {
                line: "git status".into(),
                texts: vec!["git status".into()],
                plain: vec!["git status".into()],
                is_understood: true,
                always: vec![CommandScope::line("git status".into()).within(Some("sub"))],
                parts: Vec::new(),
                invocations: Some(Box::new(Invocations {
                    commands: vec![Invocation {
                        words: ["git", "status"].map(|word| CommandWord::Text(word.into())).to_vec(),
                        essential: Some(vec![CommandWord::Start("g".into()), CommandWord::Any]),
                    }],
                    arguments: vec![vec![CommandWord::Any]],
                    code: vec!["print(1)".into()],
                    hides_commands: true,
                })),
                before: None,
            },
            claim: Some(Claim { server: "s".into(), flips: 3 }),
            ..CallFacts::of_tool("shell", Effect::Execute)
        };
        let text = |is_portable| serde_json::to_string(&RecordedFacts::new(&facts, is_portable)).unwrap();
        assert!(!text(true).contains("/w/"), "{}", text(true));
        let read: RecordedFacts = serde_json::from_str(&text(false)).unwrap();
        let back = read.to_call(Path::new("/elsewhere"));
        assert_eq!(format!("{back:?}"), format!("{facts:?}"));
    }

    #[test]
    fn facts_of_external_agents_keep_the_named_paths() {
        let facts = CallFacts {
            source: CallSource::ExternalAgent,
            mentions: vec!["/w/a".into(), "a".into()],
            ..CallFacts::of_tool("edit_file", Effect::Edit)
        };
        let back = RecordedFacts::new(&facts, false).to_call(Path::new("/elsewhere"));
        assert_eq!(format!("{back:?}"), format!("{facts:?}"));
    }

    #[test]
    fn unknown_stored_values_mean_the_strictest() {
        assert_eq!(meaning(&EFFECTS, "dance"), Effect::Unknown);
        assert_eq!(meaning(&SHELLS, "dance"), ShellUse::Full);
        let row = ScopeRow { kind: "dance".into(), tool: "t".into(), value: String::new() };
        assert_eq!(row.to_scope(), None);
    }

    #[test]
    fn grant_scopes_round_trip() {
        for scope in [
            Scope::Tool("t".into()),
            Scope::Below("t".into(), "/a".into()),
            Scope::Command("t".into(), "git status".into()),
            Scope::Run("t".into(), CommandScope::line("a [\"b".into())),
            Scope::Run("t".into(), CommandScope::program("`ls`".into()).within(Some("sub"))),
            Scope::Origin("t".into(), "https://docs.rs".into()),
            Scope::Claims("s".into(), 2),
        ] {
            assert_eq!(ScopeRow::from(&scope).to_scope(), Some(scope));
        }
    }
}
