//! Session modes and config options as clients see them. Pure.
//!
//! Modes are always sent in both forms. Clients look for the ids `mode`, `model` and `reasoning_effort`, and
//! hide the modes if the list of options is empty.

use crate::acp::{
    SessionConfigKind, SessionConfigOption, SessionConfigOptionCategory, SessionConfigSelectOption,
    SessionConfigSelectOptions, SessionMode, SessionModeId, SessionModeState,
};
use crate::agents::{self, AgentRegistry, AgentSpec};
use crate::mode::Modes;
use crate::model::catalog::ModelCatalog;
use crate::model::{Effort, ModelId};

pub const MODE_OPTION: &str = "mode";

pub const MODEL_OPTION: &str = "model";

pub const AGENT_OPTION: &str = "agent";

/// Options that also apply in a session of an external agent.
pub const SHARED: [&str; 2] = [MODE_OPTION, AGENT_OPTION];

pub const ALL: [&str; 4] = [MODE_OPTION, MODEL_OPTION, EFFORT_OPTION, AGENT_OPTION];

pub const EFFORT_OPTION: &str = "reasoning_effort";

/// `None` if the option is not a select.
pub fn values(option: &SessionConfigOption) -> Option<Vec<&str>> {
    let SessionConfigKind::Select(select) = &option.kind else { return None };
    let options: Vec<_> = match &select.options {
        SessionConfigSelectOptions::Ungrouped(options) => options.iter().collect(),
        SessionConfigSelectOptions::Grouped(groups) => {
            groups.iter().flat_map(|group| &group.options).collect()
        }
        _ => return None,
    };
    Some(options.into_iter().map(|option| &*option.value.0).collect())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSelection {
    pub model: ModelId,
    pub effort: Effort,
}

impl ModelSelection {
    pub fn of(models: &ModelCatalog) -> Self {
        Self { model: models.default_model().clone(), effort: models.default_effort() }
    }
}

/// The mode's own selection, else the agent's, else the user's choice. Skips unavailable models.
pub fn entering(
    modes: &Modes,
    catalog: &ModelCatalog,
    mode: &SessionModeId,
    agent: &AgentSpec,
    chosen: &ModelSelection,
) -> ModelSelection {
    let mut selection = chosen.clone();
    let mode = modes.resolve(&mode.0).ok();
    for (whose, model) in
        [(&agent.id, &agent.model)].into_iter().chain(mode.map(|mode| (&mode.id, &mode.model)))
    {
        match model.as_deref().map(|model| catalog.resolve(model)) {
            Some(Ok(id)) => selection.model = id,
            Some(Err(error)) => tracing::warn!(whose, %error, "a configured model cannot be used"),
            None => {}
        }
    }
    selection.effort = mode.and_then(|mode| mode.thinking).or(agent.thinking).unwrap_or(selection.effort);
    selection
}

/// Says why the model that the mode, or else the agent, names cannot be used.
pub fn unusable_model(
    modes: &Modes,
    catalog: &ModelCatalog,
    mode: &SessionModeId,
    agent: &AgentSpec,
) -> Option<String> {
    let mode = modes.resolve(&mode.0).ok();
    let of_mode = mode.and_then(|mode| Some((format!("{} mode", mode.id), mode.model.as_ref()?)));
    let of_agent = agent.model.as_ref().map(|model| (format!("the agent {}", agent.id), model));
    let (owner, named) = of_mode.or(of_agent)?;
    let error = catalog.resolve(named).err()?;
    Some(format!("{owner} names the model {named}: {error}"))
}

pub fn mode_state(modes: &Modes, current: &SessionModeId) -> SessionModeState {
    let modes = modes.iter().map(|mode| {
        SessionMode::new(mode.mode_id(), mode.name.as_str()).description(mode.description.clone())
    });
    SessionModeState::new(current.clone(), modes.collect())
}

pub fn config_options(
    modes: &Modes,
    mode: &SessionModeId,
    catalog: &ModelCatalog,
    selection: &ModelSelection,
    agents: (&AgentRegistry, &AgentSpec),
) -> Vec<SessionConfigOption> {
    let values = modes.iter().map(|mode| {
        SessionConfigSelectOption::new(mode.id.clone(), mode.name.as_str())
            .description(mode.description.clone())
    });
    let values: Vec<_> = values.collect();
    let option = SessionConfigOption::select(MODE_OPTION, "Mode", mode.0.to_string(), values)
        .description("What the agent may do".to_owned())
        .category(SessionConfigOptionCategory::Mode);
    let mut options = vec![option, model_option(catalog, selection)];
    options.extend(effort_option(catalog, selection));
    options.extend(agent_option(agents.0, agents.1));
    options
}

/// `None` if there is no other agent, or if no user-defined agent exists and the default is active.
fn agent_option(agents: &AgentRegistry, current: &AgentSpec) -> Option<SessionConfigOption> {
    if !agents.has_own() && current.id == agents::DEFAULT {
        return None;
    }
    let value = |agent: &AgentSpec| {
        SessionConfigSelectOption::new(agent.id.clone(), agent.name.as_str())
            .description(agent.description.clone())
    };
    // An external agent answers a whole session, so it cannot replace another agent.
    let supported = agents.iter().filter(|agent| {
        agent.id == current.id || (agent.external_agent.is_none() && current.external_agent.is_none())
    });
    let mut values: Vec<_> = supported.map(|agent| value(agent)).collect();
    if agents.resolve(&current.id).is_err() {
        values.push(value(current));
    }
    if values.len() < 2 {
        return None;
    }
    let option = SessionConfigOption::select(AGENT_OPTION, "Agent", current.id.clone(), values);
    Some(option.description("The agent: its prompt and its limits".to_owned()))
}

fn model_option(models: &ModelCatalog, selection: &ModelSelection) -> SessionConfigOption {
    let values: Vec<_> = models
        .models(&selection.model)
        .into_iter()
        .map(|selection| {
            SessionConfigSelectOption::new(selection.id.to_string(), selection.name)
                .description(selection.description)
        })
        .collect();
    SessionConfigOption::select(MODEL_OPTION, "Model", selection.model.to_string(), values)
        .description("The model that answers".to_owned())
        .category(SessionConfigOptionCategory::Model)
}

fn effort_option(models: &ModelCatalog, selection: &ModelSelection) -> Option<SessionConfigOption> {
    let efforts = efforts(models, &selection.model);
    if efforts.is_empty() {
        return None;
    }
    let values: Vec<_> = efforts
        .iter()
        .map(|effort| SessionConfigSelectOption::new(effort.as_str(), effort_title(*effort)))
        .collect();
    let current = if efforts.contains(&selection.effort) { selection.effort } else { Effort::Default };
    let option = SessionConfigOption::select(EFFORT_OPTION, "Thinking", current.as_str(), values)
        .description("How long the model thinks before it answers".to_owned())
        .category(SessionConfigOptionCategory::ThoughtLevel);
    Some(option)
}

pub fn efforts(models: &ModelCatalog, model: &ModelId) -> Vec<Effort> {
    let efforts = models.facts(model).efforts;
    if efforts.is_empty() { Vec::new() } else { [&[Effort::Default], efforts].concat() }
}

fn effort_title(effort: Effort) -> &'static str {
    match effort {
        Effort::Default => "Default",
        Effort::None => "Off",
        Effort::Minimal => "Minimal",
        Effort::Low => "Low",
        Effort::Medium => "Medium",
        Effort::High => "High",
        Effort::XHigh => "Very high",
        Effort::Max => "Maximal",
    }
}
