//! Hooks: programs of the user or of an administrator that get the facts of a decision as JSON. A `deny` hook may
//! refuse a call that modes and rules allow, and never allows one. A `notify` hook gets events, and delays nothing.
//!
//! Only the user's settings and a policy define hooks; a project's files cannot. This file is pure: [`runner`] starts
//! the programs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::permission::{Address, CallFacts, CallSource, Commands, Effect, HOOK};

pub mod runner;

const MAX_ID: usize = 40;

const SECONDS: u64 = 5;
const MAX_SECONDS: u64 = 60;

/// Most bytes of a reason that the model and the user get.
const MAX_REASON: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HookDefinition {
    /// Unique: lower-case letters, digits, `-` and `_`.
    pub id: String,
    /// Events that start the program. A `deny` hook has `call` alone.
    pub on: Vec<HookEvent>,
    /// `deny` may refuse a call; `notify` gets each event.
    pub kind: HookKind,
    /// Program and arguments, without a shell. Started in the session's folder with your rights, without a sandbox.
    pub command: Vec<String>,
    /// Effects of the calls that start the program. Default: all.
    pub effects: Option<Vec<Effect>>,
    /// Seconds, at most 60. Default: 5.
    pub timeout_s: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HookKind {
    Deny,
    Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HookEvent {
    Call,
    Question,
    ModeChange,
    SessionStart,
    TurnEnd,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    pub id: String,
    pub events: Vec<HookEvent>,
    pub kind: HookKind,
    pub command: Vec<String>,
    /// `None` for all.
    pub effects: Option<Vec<Effect>>,
    pub timeout: Duration,
}

/// The JSON object on a hook's standard input. `docs/guides/hooks.md` lists its members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HookFacts {
    pub event: HookEvent,
    pub session: String,
    pub mode: String,
    pub agent: String,
    pub folder: PathBuf,
    #[serde(flatten)]
    pub of: EventFacts,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum EventFacts {
    Call(Box<HookedCall>),
    ModeChange {
        from: String,
        /// How the mode was changed, as in the record of mode changes.
        source: &'static str,
    },
    SessionStart {},
    #[serde(rename_all = "camelCase")]
    TurnEnd {
        /// ACP's stop reason, or `error`.
        stop_reason: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HookedCall {
    pub call: String,
    /// `None` before the decision is final: for `deny` hooks, and for questions.
    pub decision: Option<HookDecision>,
    pub tool: String,
    pub effect: Effect,
    pub source: HookSource,
    /// Paths that the call is about. Contents of files are not passed on.
    pub paths: Vec<PathBuf>,
    pub command_line: Option<String>,
    /// Origin of a web address: scheme, host and port.
    pub address: Option<String>,
    pub server: Option<String>,
    pub is_background: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HookDecision {
    Allow,
    Deny,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HookSource {
    Tool,
    ExternalAgent,
    Broker,
}

/// Why a `deny` hook refuses a call. The text is a sentence for the model and the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookRefusal {
    pub hook: String,
    pub message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HookAnswer {
    decision: AnsweredDecision,
    reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum AnsweredDecision {
    Deny,
}

impl HookDefinition {
    /// The error is a clause that names the hook and the key.
    pub fn complete(&self) -> Result<Hook, String> {
        let Self { id, on, kind, command, effects, timeout_s } = self.clone();
        if id.is_empty() || id.len() > MAX_ID || !id.chars().all(is_id_character) {
            return Err(format!(
                "hooks: {id:?} is no id: it has lower-case letters, digits, `-` and `_`, at most {MAX_ID}"
            ));
        }
        if command.first().is_none_or(|program| program.trim().is_empty()) {
            return Err(format!(
                "hooks: {id}: `command` is empty: it is a list of a program and its arguments"
            ));
        }
        // Security: a session's folder, in which hooks start, must not supply their programs.
        let program = Path::new(&command[0]);
        if program.components().count() > 1 && !program.is_absolute() {
            return Err(format!("hooks: {id}: `command` begins with a program's name or its absolute path"));
        }
        if on.is_empty() {
            return Err(format!("hooks: {id}: `on` is empty: name at least one event"));
        }
        if kind == HookKind::Deny && on != [HookEvent::Call] {
            return Err(format!("hooks: {id}: a `deny` hook is for the event `call` alone"));
        }
        let seconds = timeout_s.unwrap_or(SECONDS);
        if !(1..=MAX_SECONDS).contains(&seconds) {
            return Err(format!("hooks: {id}: `timeout_s` is a number of seconds from 1 to {MAX_SECONDS}"));
        }
        Ok(Hook { id, events: on, kind, command, effects, timeout: Duration::from_secs(seconds) })
    }
}

fn is_id_character(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_')
}

/// Completes hooks in order: those of a policy, then those of the user, who cannot reuse an id.
pub fn complete(policy: &[HookDefinition], user: &[HookDefinition]) -> Result<Vec<Hook>, String> {
    let mut hooks: Vec<Hook> = Vec::new();
    for definition in policy.iter().chain(user) {
        let hook = definition.complete()?;
        if hooks.iter().any(|other| other.id == hook.id) {
            return Err(format!("hooks: {} is defined twice", hook.id));
        }
        hooks.push(hook);
    }
    Ok(hooks)
}

impl Hook {
    pub fn is_for(&self, facts: &HookFacts) -> bool {
        let has_effect = match &facts.of {
            EventFacts::Call(call) => {
                self.effects.as_ref().is_none_or(|effects| effects.contains(&call.effect))
            }
            EventFacts::ModeChange { .. } | EventFacts::SessionStart {} | EventFacts::TurnEnd { .. } => true,
        };
        has_effect && self.events.contains(&facts.event)
    }

    pub fn refusal(&self, reason: &str) -> HookRefusal {
        let end = reason.floor_char_boundary(MAX_REASON);
        let reason = reason[..end].trim().trim_end_matches('.');
        HookRefusal {
            hook: self.id.clone(),
            message: format!("Refused by the hook {}: {reason}. Do not try to get round it.", self.id),
        }
    }

    /// Reads the output of a program that ended with status 0. An output that is neither empty nor a valid answer
    /// refuses: a hook that fails must not let a call pass.
    pub fn read_answer(&self, output: &[u8]) -> Result<(), HookRefusal> {
        if output.trim_ascii().is_empty() {
            return Ok(());
        }
        match serde_json::from_slice(output) {
            Ok(HookAnswer { decision: AnsweredDecision::Deny, reason }) => {
                let reason = reason.filter(|reason| !reason.trim().is_empty());
                Err(self.refusal(reason.as_deref().unwrap_or("it gave no reason")))
            }
            Err(_) => Err(self.refusal(
                "its output is neither empty nor {\"decision\": \"deny\", \"reason\": …}, so the call is refused",
            )),
        }
    }
}

impl HookRefusal {
    /// The rule of the denial in the record.
    pub fn recorded_rule(&self) -> String {
        format!("{HOOK}:{}", self.hook)
    }
}

impl HookedCall {
    pub fn new(call: String, facts: &CallFacts, decision: Option<HookDecision>) -> Self {
        let command_line = match &facts.commands {
            Commands::None => None,
            Commands::Line { line, .. } => Some(line.clone()),
        };
        let targets = facts.targets.iter().map(|target| target.path.clone());
        Self {
            call,
            decision,
            tool: facts.tool.clone(),
            effect: facts.effect,
            source: facts.source.into(),
            paths: targets.chain(facts.mentions.iter().cloned()).collect(),
            command_line,
            address: facts.address.as_ref().map(Address::origin),
            server: facts.server.as_deref().map(str::to_owned),
            is_background: facts.is_background,
        }
    }
}

impl From<CallSource> for HookSource {
    fn from(source: CallSource) -> Self {
        match source {
            CallSource::Tool => Self::Tool,
            CallSource::ExternalAgent => Self::ExternalAgent,
            CallSource::Broker => Self::Broker,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(yaml: &str) -> Result<Hook, String> {
        serde_saphyr::from_str::<HookDefinition>(yaml).unwrap().complete()
    }

    const DENY: &str = "id: a\non: [call]\nkind: deny\ncommand: [check]\n";

    #[test]
    fn definitions_are_complete_or_name_their_fault() {
        let complete = hook(DENY).unwrap();
        assert_eq!((complete.timeout, complete.effects), (Duration::from_secs(5), None));
        for (yaml, fault) in [
            (DENY.replace("id: a", "id: A"), "is no id"),
            (DENY.replace("[check]", "[]"), "`command` is empty"),
            (DENY.replace("[check]", "[./check]"), "a program's name or its absolute path"),
            (DENY.replace("[call]", "[]"), "`on` is empty"),
            (DENY.replace("[call]", "[call, turn_end]"), "for the event `call` alone"),
            (format!("{DENY}timeout_s: 0"), "from 1 to 60"),
        ] {
            assert!(hook(&yaml).unwrap_err().contains(fault), "{yaml}");
        }
        let one: HookDefinition = serde_saphyr::from_str(DENY).unwrap();
        let two = HookDefinition { id: "b".into(), ..one.clone() };
        assert_eq!(complete_ids(std::slice::from_ref(&two), std::slice::from_ref(&one)).unwrap(), ["b", "a"]);
        assert_eq!(
            complete_ids(std::slice::from_ref(&one), &[two, one.clone()]).unwrap_err(),
            "hooks: a is defined twice"
        );
    }

    fn complete_ids(policy: &[HookDefinition], user: &[HookDefinition]) -> Result<Vec<String>, String> {
        Ok(super::complete(policy, user)?.into_iter().map(|hook| hook.id).collect())
    }

    #[test]
    fn only_an_empty_output_lets_a_call_pass() {
        let hook = hook(DENY).unwrap();
        for (output, refusal) in [
            ("", None),
            (" \n", None),
            (r#"{"decision":"deny","reason":"No deploys on Friday."}"#, Some("No deploys on Friday.")),
            (r#"{"decision":"deny"}"#, Some("it gave no reason.")),
            (r#"{"decision":"allow"}"#, Some("its output is neither")),
            (r#"{"decision":"deny","more":1}"#, Some("its output is neither")),
            ("{}", Some("its output is neither")),
            ("ok", Some("its output is neither")),
        ] {
            let refused = hook.read_answer(output.as_bytes()).err().map(|refusal| refusal.message);
            assert_eq!(refused.is_some(), refusal.is_some(), "{output}");
            let expected = refusal.map(|text| format!("Refused by the hook a: {text}")).unwrap_or_default();
            assert!(refused.unwrap_or_default().starts_with(&expected), "{output}");
        }
        let long = hook.refusal(&"ä".repeat(2000)).message;
        assert!(long.len() < 1100, "{}", long.len());
    }

    #[test]
    fn hook_is_for_its_events_and_effects() {
        let facts = |effect| HookFacts {
            event: HookEvent::Call,
            session: "s".into(),
            mode: "code".into(),
            agent: "general".into(),
            folder: "/work".into(),
            of: EventFacts::Call(Box::new(HookedCall::new(
                "c".into(),
                &CallFacts::of_tool("t", effect),
                None,
            ))),
        };
        let all = hook(DENY).unwrap();
        let some = hook(&format!("{DENY}effects: [execute]")).unwrap();
        assert!(all.is_for(&facts(Effect::Read)) && some.is_for(&facts(Effect::Execute)));
        assert!(!some.is_for(&facts(Effect::Read)));
        let turn = HookFacts {
            event: HookEvent::TurnEnd,
            of: EventFacts::TurnEnd { stop_reason: "end_turn".into() },
            ..facts(Effect::Read)
        };
        assert!(!all.is_for(&turn));
        let json = serde_json::to_value(facts(Effect::Edit)).unwrap();
        let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            names.join(" "),
            "event session mode agent folder call decision tool effect source paths commandLine address server isBackground"
        );
    }
}
