//! Agents that a session can run or delegate to. Pure.
//!
//! An agent's limits apply in addition to the mode. A read-only agent changes nothing in any mode (D49).

use std::sync::{Arc, LazyLock};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::external_agent::definition::ExternalAgentDefinition;
use crate::mode::definition::{self, Fault};
use crate::mode::{
    Access, CeilingKind, Consent, Globs, InBand, Mode, Network, ReminderPosition, ShellUse, ToolGlobs,
};
use crate::model::Effort;

mod yaml;

pub const DEFAULT: &str = "general";

const MAX_ID: usize = 32;

const MAX_PROMPT: usize = 64 * 1024;

const BUILT_IN: [(&str, &str, &str, &str, bool); 2] = [
    (DEFAULT, "General", "Does any task, with all the tools that the mode allows", "", false),
    (
        "explore",
        "Explore",
        "Researches and changes nothing, in every mode",
        "You research the user's code. Search widely first, then read what matters, and answer with what you found: \
         each place as path:line, the answer first, and what you could not find. You change nothing.",
        true,
    ),
];

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentDefinition {
    /// Unique: lower-case letters, digits, `-` and `_`, beginning with a letter.
    #[schemars(with = "String")]
    pub id: Spanned<String>,
    /// Display name. Default: the id.
    pub name: Option<String>,
    /// Description in one sentence, for people and models that choose an agent.
    pub description: Option<String>,
    /// Instructions at the start of the agent's model requests.
    #[serde(default)]
    pub prompt: String,
    /// Model, as `provider/name`, unless the mode names one.
    pub model: Option<String>,
    /// Reasoning effort, unless the mode sets one.
    pub thinking: Option<Effort>,
    /// Permitted tools, as globs over their names. Default: all.
    #[serde(default)]
    pub tools: ToolGlobs,
    /// True if the agent changes nothing in any mode.
    #[serde(default)]
    pub readonly: bool,
    /// External agent, run over ACP with its own prompt, model and tools.
    #[serde(rename = "harness")]
    pub external_agent: Option<ExternalAgentDefinition>,
}

#[derive(Debug, Clone)]
pub struct AgentSpec {
    pub id: String,
    pub name: String,
    pub description: String,
    pub prompt: String,
    pub model: Option<String>,
    pub thinking: Option<Effort>,
    pub is_read_only: bool,
    pub external_agent: Option<Arc<ExternalAgentDefinition>>,
    /// Additional ceilings of the agent, expressed as modes.
    pub limits: Vec<Arc<Mode>>,
    pub origin: AgentOrigin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentOrigin {
    BuiltIn,
    User,
    Project,
}

#[derive(Debug, Clone)]
pub struct AgentRegistry(Vec<Arc<AgentSpec>>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown agent {asked:?}: the agents are {}", valid.join(", "))]
pub struct UnknownAgent {
    pub asked: String,
    pub valid: Vec<String>,
}

impl Default for AgentRegistry {
    fn default() -> Self {
        static BUILT: LazyLock<AgentRegistry> = LazyLock::new(|| {
            let agents = BUILT_IN.map(|(id, name, description, prompt, is_read_only)| {
                // A read-only agent must not delegate changes.
                let deny = if is_read_only { vec!["delegate".into()] } else { Vec::new() };
                let deny = Globs::new(deny).expect("it is a glob");
                Arc::new(AgentSpec {
                    id: id.into(),
                    name: name.into(),
                    description: description.into(),
                    prompt: prompt.into(),
                    model: None,
                    thinking: None,
                    is_read_only,
                    external_agent: None,
                    limits: limits(id, name, &ToolGlobs { allow: None, deny }, is_read_only),
                    origin: AgentOrigin::BuiltIn,
                })
            });
            AgentRegistry(agents.into())
        });
        BUILT.clone()
    }
}

impl AgentRegistry {
    pub fn iter(&self) -> impl Iterator<Item = &Arc<AgentSpec>> {
        self.0.iter()
    }

    pub fn has_own(&self) -> bool {
        self.0.iter().any(|agent| agent.origin != AgentOrigin::BuiltIn)
    }

    pub fn resolve(&self, id: &str) -> Result<&Arc<AgentSpec>, UnknownAgent> {
        self.0.iter().find(|agent| agent.id.eq_ignore_ascii_case(id)).ok_or_else(|| UnknownAgent {
            asked: id.to_owned(),
            valid: self.0.iter().map(|agent| agent.id.clone()).collect(),
        })
    }

    pub fn first(&self) -> Arc<AgentSpec> {
        Arc::clone(self.resolve(DEFAULT).unwrap_or(&self.0[0]))
    }

    /// Substitutes a read-only agent, with a message to the user, for one that no longer exists: its limits
    /// are unknown.
    pub fn stored(&self, id: Option<&str>) -> (Arc<AgentSpec>, Option<String>) {
        let Some(id) = id else { return (self.first(), None) };
        match self.resolve(id) {
            Ok(agent) => (Arc::clone(agent), None),
            Err(unknown) => {
                let name = "Missing agent";
                let agent = AgentSpec {
                    id: id.into(),
                    name: name.into(),
                    limits: limits("gone", name, &ToolGlobs::default(), true),
                    is_read_only: true,
                    description: String::new(),
                    ..AgentSpec::clone(&self.first())
                };
                let text = format!(
                    "The agent of this session does not exist: {unknown}. Until another one is chosen, this session changes nothing.\n\n"
                );
                (Arc::new(agent), Some(text))
            }
        }
    }

    pub fn wrapping(id: &str, definition: ExternalAgentDefinition) -> Self {
        let agent = AgentSpec {
            id: id.into(),
            name: id.into(),
            description: "The wrapped external agent".into(),
            external_agent: Some(Arc::new(definition)),
            origin: AgentOrigin::User,
            ..AgentSpec::clone(&Self::default().first())
        };
        Self(vec![Arc::new(agent)])
    }

    #[must_use]
    pub fn filled(mut self, fill: impl Fn(ExternalAgentDefinition) -> ExternalAgentDefinition) -> Self {
        for agent in &mut self.0 {
            if let Some(definition) = &agent.external_agent {
                let definition = Arc::new(fill(ExternalAgentDefinition::clone(definition)));
                Arc::make_mut(agent).external_agent = Some(definition);
            }
        }
        self
    }

    /// Keeps the agents that `limit` returns. Without any, the built-in agent that only reads remains.
    #[must_use]
    pub fn limited(&self, limit: impl FnMut(&Arc<AgentSpec>) -> Option<Arc<AgentSpec>>) -> Self {
        let kept: Vec<Arc<AgentSpec>> = self.0.iter().filter_map(limit).collect();
        if !kept.is_empty() {
            return Self(kept);
        }
        Self(Self::default().0.into_iter().filter(|agent| agent.is_read_only).collect())
    }

    /// Adds the agents of one file. The user's replace built-in ones with the same id; a project's need ids
    /// of their own.
    pub fn add(&mut self, definitions: &[AgentDefinition], origin: AgentOrigin) -> Result<(), Fault> {
        let mut seen: Vec<&str> = Vec::new();
        for definition in definitions {
            let id = definition.id.value.as_str();
            if seen.contains(&id) {
                return Err(Fault::at(&definition.id, format!("agent {id:?} is defined twice")));
            }
            seen.push(id);
            let spec = Arc::new(definition.complete(origin)?);
            if origin == AgentOrigin::Project {
                self.check_projects(definition, &spec)?;
            }
            match self.0.iter_mut().find(|known| known.id == spec.id) {
                Some(known) => *known = spec,
                None => self.0.push(spec),
            }
        }
        Ok(())
    }

    fn check_projects(&self, definition: &AgentDefinition, spec: &AgentSpec) -> Result<(), Fault> {
        let fault = |text: String| Err(Fault::at(&definition.id, text));
        let id = &spec.id;
        if self.0.iter().any(|known| known.id == *id) {
            return fault(format!("{id:?} is already an agent: a project's agents have ids of their own"));
        }
        if self.0.iter().any(|known| known.name.eq_ignore_ascii_case(spec.name.trim())) {
            return fault("the name of a project's agent may not be that of another agent".into());
        }
        // Security: the model decides where prompts and keys go, so only the user chooses it.
        if spec.model.is_some() {
            return fault("a project's agent may not name a `model`".into());
        }
        Ok(())
    }
}

impl AgentSpec {
    /// True if neither this agent nor an agent that it starts changes anything, in any mode. `readonly` alone does
    /// not limit the agents that it starts (D49).
    pub fn only_reads(&self) -> bool {
        self.is_read_only && self.limits.iter().any(|limit| !limit.tools.admit("delegate"))
    }
}

impl AgentDefinition {
    fn complete(&self, origin: AgentOrigin) -> Result<AgentSpec, Fault> {
        let id = self.id.value.clone();
        let fault = |text: String| Err(Fault::at(&self.id, text));
        definition::check_id(&self.id, MAX_ID)?;
        let name = self.name.clone().unwrap_or_else(|| id.clone());
        let description = self.description.clone().unwrap_or_default();
        if [&name, &description].iter().any(|text| text.contains(char::is_control)) {
            return fault(format!("agent {id:?}: `name` and `description` are one line of text"));
        }
        if self.prompt.len() > MAX_PROMPT {
            return fault(format!("agent {id:?}: `prompt` is longer than {} KiB", MAX_PROMPT / 1024));
        }
        if self.model.as_ref().is_some_and(|model| model.trim().is_empty()) {
            return fault(format!("agent {id:?}: `model` is PROVIDER/NAME"));
        }
        let is_own = self.prompt.is_empty()
            && self.model.is_none()
            && self.thinking.is_none()
            && !has_lists(&self.tools);
        if let Some(definition) = &self.external_agent {
            if origin == AgentOrigin::Project {
                return fault(format!(
                    "agent {id:?}: a project may not name a `harness`: move it to your own file, or trust this \
                     one with `modegate trust`"
                ));
            }
            if let Some(why) = definition.fault() {
                return fault(format!("agent {id:?}: its harness: {why}"));
            }
            if !is_own {
                let conflict = "a `harness` cannot be combined with `prompt`, `model`, `thinking` or `tools`: it has its own";
                return fault(format!("agent {id:?}: {conflict}"));
            }
        }
        let description = match origin {
            AgentOrigin::Project => format!("This project's: {description}"),
            AgentOrigin::BuiltIn | AgentOrigin::User => description,
        };
        Ok(AgentSpec {
            limits: limits(&id, &name, &self.tools, self.readonly),
            name,
            description,
            prompt: self.prompt.clone(),
            model: self.model.clone(),
            thinking: self.thinking,
            is_read_only: self.readonly,
            external_agent: self.external_agent.clone().map(Arc::new),
            origin,
            id,
        })
    }
}

fn has_lists(tools: &ToolGlobs) -> bool {
    tools.allow.is_some() || !tools.deny.patterns.is_empty()
}

fn limits(id: &str, name: &str, tools: &ToolGlobs, is_read_only: bool) -> Vec<Arc<Mode>> {
    if !is_read_only && !has_lists(tools) {
        return Vec::new();
    }
    let (access, shell) =
        if is_read_only { (Access::ReadOnly, ShellUse::ReadOnly) } else { (Access::Full, ShellUse::Full) };
    vec![Arc::new(Mode {
        id: format!("agent-{id}"),
        kind: CeilingKind::Agent(id.to_owned()),
        name: format!("The agent {name}"),
        description: "Limits of the agent in every mode".into(),
        prompt: String::new(),
        subagent_prompt: None,
        access,
        permission: Consent::Auto,
        shell,
        network: Network::Allow,
        tools: tools.clone(),
        write_paths: None,
        tool_list: None,
        model: None,
        thinking: None,
        max_steps: u32::MAX,
        exits_to: None,
        in_band_switch: InBand::Off,
        reminder_position: ReminderPosition::default(),
        under: None,
    })]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(agents: &mut AgentRegistry, text: &str, origin: AgentOrigin) -> Result<(), String> {
        let definitions: Vec<AgentDefinition> = serde_saphyr::from_str(text).unwrap();
        agents.add(&definitions, origin).map_err(|fault| fault.text)
    }

    #[test]
    fn read_only_and_tool_listed_agents_are_limited() {
        let mut agents = AgentRegistry::default();
        assert!(!agents.has_own());
        add(
            &mut agents,
            "[{id: docs, tools: {allow: ['read_*', write_file]}}, {id: any, prompt: x}]",
            AgentOrigin::User,
        )
        .unwrap();
        assert!(agents.has_own());
        let limit = |id: &str| agents.resolve(id).unwrap().limits.first().cloned();
        assert!(limit("general").is_none() && limit("any").is_none());
        assert_eq!(limit("EXPLORE").unwrap().access, Access::ReadOnly);
        let docs = limit("docs").unwrap();
        assert!(docs.tools.admit("write_file") && !docs.tools.admit("delete_file"));
        // The event log stores limits as a mode and reads them back.
        let parsed: crate::mode::definition::ModeDefinition =
            serde_saphyr::from_str(&docs.to_yaml()).unwrap();
        assert_eq!(parsed.complete(None).unwrap().to_yaml(), docs.to_yaml());
    }

    #[test]
    fn project_agent_neither_replaces_nor_sets_user_only_keys() {
        for (text, expected) in [
            ("[{id: explore}]", "is already an agent"),
            ("[{id: x, name: ' general'}]", "may not be that of another agent"),
            ("[{id: x, model: a/b}]", "may not name a `model`"),
            ("[{id: x, harness: {command: a}}]", "may not name a `harness`"),
        ] {
            let error = add(&mut AgentRegistry::default(), text, AgentOrigin::Project).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let mut agents = AgentRegistry::default();
        add(&mut agents, "[{id: explore, prompt: x}]", AgentOrigin::User).unwrap();
        assert!(
            agents.resolve("explore").unwrap().limits.is_empty(),
            "the user's agent replaces the built-in agent"
        );
        add(&mut agents, "[{id: x, description: d, readonly: true}]", AgentOrigin::Project).unwrap();
        assert_eq!(agents.resolve("x").unwrap().description, "This project's: d");
    }

    #[test]
    fn refusal_by_an_agents_limits_names_the_agent() {
        let message = |modes: Vec<Arc<Mode>>| {
            let ceilings = crate::permission::Ceilings { modes, rules: vec![] };
            let call = crate::permission::CallFacts::of_tool("write_file", crate::permission::Effect::Edit);
            match crate::permission::decide(&ceilings, &crate::permission::Grants::default(), &call) {
                crate::permission::Verdict::Deny(denial) => denial.message,
                verdict => panic!("{verdict:?}"),
            }
        };
        let explore = AgentRegistry::default().resolve("explore").unwrap().limits.clone();
        let expected = "write_file is not available to the agent explore, which changes nothing. You can";
        assert!(message(explore.clone()).contains(expected), "{}", message(explore));
        let plan = crate::mode::Modes::built_in().ceilings("plan").unwrap();
        assert!(message(plan.clone()).contains("is not available in plan mode, which"), "{}", message(plan));
    }

    #[test]
    fn invalid_agent_definitions_are_reported() {
        for (text, expected) in [
            (
                "[{id: X}]",
                "is not a valid id: use lower-case letters, digits, - and _, beginning with a letter, at most 32",
            ),
            ("[{id: a12345678901234567890123456789012}]", "at most 32"),
            ("[{id: a}, {id: a}]", "is defined twice"),
            ("[{id: a, name: \"x\\ny\"}]", "one line of text"),
            ("[{id: a, model: ' '}]", "PROVIDER/NAME"),
            ("[{id: a, harness: {command: ''}}]", "its harness: its `command` is empty"),
            ("[{id: a, prompt: x, harness: {command: b}}]", "cannot be combined with `prompt`"),
        ] {
            let error = add(&mut AgentRegistry::default(), text, AgentOrigin::User).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn unknown_stored_agent_is_read_only() {
        let agents = AgentRegistry::default();
        let (agent, text) = agents.stored(Some("gone"));
        assert_eq!((agent.id.as_str(), agent.is_read_only, text.is_some()), ("gone", true, true));
        assert_eq!(agent.limits[0].access, Access::ReadOnly);
        assert_eq!(agents.stored(None).0.id, DEFAULT);
    }
}
