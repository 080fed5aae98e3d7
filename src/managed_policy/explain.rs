//! Lists the limits of a policy, and explains which key decides about an act. Pure.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::allowed_program::AgentCommand;
use super::{CheckedPolicy, ManagedLimits, PlaceLimit, PolicyState, SessionPlace};
use crate::mode::Mode;
use crate::model::ModelId;
use crate::otlp::telemetry_settings::TelemetrySettings;
use crate::permission::compare;
use crate::server::ServerTransport;

/// Output of `modegate policy show --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyOutput {
    /// The only place of the file.
    pub file: String,
    pub state: PolicyFileState,
    /// The reason not to believe the file. Absent if it is believed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Keys that limit something in this folder.
    pub keys: Vec<PolicyKey>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyFileState {
    Absent,
    Valid,
    /// The strictest limits count.
    Unusable,
}

/// A key that limits something here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyKey {
    /// As in the file, such as `allowed.models`.
    pub key: String,
    /// The value in words.
    pub value: String,
    /// Reason why the key counts here.
    pub reason: String,
}

/// The policy's decision about an act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyDecision {
    pub outcome: PolicyOutcome,
    /// The key that decides. Absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The decision in a sentence.
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyOutcome {
    Allowed,
    /// Possible, within the value of the key.
    Limited,
    Refused,
}

impl PolicyDecision {
    pub fn refused(key: &str, text: String) -> Self {
        Self { outcome: PolicyOutcome::Refused, key: Some(key.to_owned()), text }
    }

    pub fn limited(key: &str, text: String) -> Self {
        Self { outcome: PolicyOutcome::Limited, key: Some(key.to_owned()), text }
    }

    pub fn allowed(text: String) -> Self {
        Self { outcome: PolicyOutcome::Allowed, key: None, text }
    }

    fn of(is_allowed: bool, key: &str, what: &str) -> Self {
        if is_allowed {
            Self::allowed(format!("{what}: allowed"))
        } else {
            Self::refused(key, format!("{what}: refused by {key}"))
        }
    }
}

impl PolicyOutput {
    pub fn of(file: &str, state: &PolicyState, place: &SessionPlace) -> Self {
        let (file_state, problem, keys) = match state {
            PolicyState::Absent => (PolicyFileState::Absent, None, Vec::new()),
            PolicyState::Valid(policy) => (PolicyFileState::Valid, None, policy.keys(place)),
            PolicyState::Unusable(diagnostic) => {
                (PolicyFileState::Unusable, Some(diagnostic.to_string()), Vec::new())
            }
        };
        Self { file: file.to_owned(), state: file_state, problem, keys }
    }
}

const EVERYWHERE: &str = "everywhere";

impl CheckedPolicy {
    /// The keys that limit something in a place.
    fn keys(&self, place: &SessionPlace) -> Vec<PolicyKey> {
        let definition = self.definition();
        let mut keys = KeyList::default();
        if let Some(mode) = &definition.max_mode {
            keys.add("max_mode", mode.value.clone());
        }
        for limit in &definition.places {
            if let Some(reason) = limit.reason(place) {
                keys.0.push(PolicyKey {
                    key: "places.max_mode".into(),
                    value: limit.max_mode.value.clone(),
                    reason,
                });
            }
        }
        for (key, entries) in definition.allowed.lists() {
            keys.add(&format!("allowed.{key}"), join(&entries));
        }
        for (key, rules) in definition.rules().into_iter().filter(|(_, rules)| !rules.is_empty()) {
            keys.add(&format!("permissions.{key}"), join(&rules));
        }
        if definition.budgets.is_some() {
            keys.add("budgets", "see the file".into());
        }
        let hooks: Vec<&str> = definition.hooks.iter().map(|hook| hook.id.as_str()).collect();
        if !hooks.is_empty() {
            keys.add("hooks", join(&hooks));
        }
        let requirements = definition.require.names().into_iter().filter(|(_, is_set)| *is_set);
        requirements.for_each(|(key, _)| keys.add(&format!("require.{key}"), "true".into()));
        if let Some(TelemetrySettings { endpoint, required, contents, .. }) = &definition.telemetry {
            let texts = [
                ("endpoint", endpoint.clone()),
                ("contents", contents.map(|is_set| is_set.to_string())),
                ("required", required.map(|is_set| is_set.to_string())),
            ];
            for (key, text) in texts.into_iter().filter_map(|(key, text)| Some((key, text?))) {
                keys.add(&format!("telemetry.{key}"), text);
            }
        }
        let choices = definition.user_may.names().into_iter().filter(|(_, may)| !may);
        choices.for_each(|(key, _)| keys.add(&format!("user_may.{key}"), "false".into()));
        keys.0
    }
}

#[derive(Default)]
struct KeyList(Vec<PolicyKey>);

impl KeyList {
    fn add(&mut self, key: &str, value: String) {
        self.0.push(PolicyKey { key: key.to_owned(), value, reason: EVERYWHERE.into() });
    }
}

fn join(texts: &[&str]) -> String {
    if texts.is_empty() { "none".into() } else { texts.join(", ") }
}

impl PlaceLimit {
    /// The reason why a session is in this place. `None` if it is not.
    fn reason(&self, place: &SessionPlace) -> Option<String> {
        if let Some(path) = self.paths.iter().find(|path| place.overlaps(&path.value)) {
            return Some(format!("the folder {}", path.value.display()));
        }
        let pattern = self.repositories.iter().find(|text| place.has_remote(&text.value))?;
        let unknown = if place.remotes.is_none() { ", because the remotes are unknown" } else { "" };
        Some(format!("the repository {}{unknown}", pattern.value))
    }
}

impl ManagedLimits {
    /// `mode` has the mode and those that it cannot exceed; empty for an unknown mode.
    pub fn explain_mode(&self, id: &str, mode: &[Arc<Mode>]) -> PolicyDecision {
        if !self.allows_mode(id) {
            return PolicyDecision::of(false, "allowed.modes", &format!("{id} mode"));
        }
        let limit = self.ceilings.iter().find(|limit| compare::allows_more(mode, &[Arc::clone(limit)]));
        match limit {
            Some(limit) => PolicyDecision::limited(
                "max_mode",
                format!("{id} mode: can be chosen, and does no more than {} mode", limit.id),
            ),
            None => PolicyDecision::allowed(format!("{id} mode: allowed")),
        }
    }

    pub fn explain_model(&self, id: &ModelId) -> PolicyDecision {
        PolicyDecision::of(self.models.admit(id), "allowed.models", &format!("the model {id}"))
    }

    pub fn explain_host(&self, host: &str, port: u16) -> PolicyDecision {
        let is_allowed = self.hosts.as_ref().is_none_or(|hosts| hosts.allow_server(host, port));
        PolicyDecision::of(is_allowed, "allowed.hosts", &format!("the host {host}, port {port}"))
    }

    /// `is_known` tells whether the agent exists after the limits were applied.
    pub fn explain_agent(&self, id: &str, is_known: bool) -> PolicyDecision {
        let is_listed = self.allows_agent(id);
        let key = if is_listed { "allowed.programs" } else { "allowed.agents" };
        PolicyDecision::of(is_known && is_listed, key, &format!("the agent {id}"))
    }

    pub fn explain_program(&self, command: &AgentCommand<'_>) -> PolicyDecision {
        let is_allowed = self.check_program(command).is_ok();
        PolicyDecision::of(is_allowed, "allowed.programs", &format!("the program {}", command.program))
    }

    pub fn explain_server(&self, name: &str, transport: &ServerTransport) -> PolicyDecision {
        let is_allowed = self.allows_server(name, transport);
        PolicyDecision::of(is_allowed, "allowed.servers", &format!("the MCP server {name}"))
    }
}
