//! What a client sees of the modes and the models: the mode list of ACP's session modes, and the config options. Pure.
//!
//! Modes are always sent both ways and always in step. The options' ids are exactly `mode`, `model` and
//! `reasoning_effort`, because clients look for them, and the list is never empty, because a client then hides the modes.

use crate::acp::{
    SessionConfigOption, SessionConfigOptionCategory, SessionConfigSelectOption, SessionMode, SessionModeId,
    SessionModeState,
};
use crate::mode::{Mode, Modes};
use crate::model::catalogue::Catalogue;
use crate::model::{Effort, ModelId};

/// The id of the config option that holds the mode.
pub const MODE_OPTION: &str = "mode";

/// The id of the config option that holds the model.
pub const MODEL_OPTION: &str = "model";

/// The id of the config option that holds how long the model is to think.
pub const EFFORT_OPTION: &str = "reasoning_effort";

/// Who answers, and how long it is to think.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Who answers.
    pub model: ModelId,
    /// How long it is to think.
    pub effort: Effort,
}

impl Choice {
    /// That of a session for which nothing else was asked.
    pub fn of(catalogue: &Catalogue) -> Self {
        Self { model: catalogue.default_model().clone(), effort: catalogue.default_effort() }
    }
}

/// Who answers in a mode: its own model and thinking, where it names them and they can be had.
pub fn entering(modes: &Modes, catalogue: &Catalogue, mode: &SessionModeId, chosen: &Choice) -> Choice {
    let mut choice = chosen.clone();
    let Ok(mode) = modes.resolve(&mode.0) else { return choice };
    if let Some(model) = &mode.model {
        match catalogue.resolve(model) {
            Ok(found) => choice.model = found,
            Err(error) => tracing::warn!(mode = mode.id, %error, "the mode's model cannot be used"),
        }
    }
    choice.effort = mode.thinking.unwrap_or(choice.effort);
    choice
}

/// The `modes` of a session.
pub fn mode_state(modes: &Modes, current: &SessionModeId) -> SessionModeState {
    let mode = |mode: &Mode| {
        SessionMode::new(mode.mode_id(), mode.name.as_str()).description(mode.description.clone())
    };
    SessionModeState::new(current.clone(), modes.iter().map(mode).collect())
}

/// The `configOptions` of a session, complete. A model that does not think has no option for it.
pub fn config_options(
    modes: &Modes,
    mode: &SessionModeId,
    catalogue: &Catalogue,
    choice: &Choice,
) -> Vec<SessionConfigOption> {
    let value = |mode: &Mode| {
        SessionConfigSelectOption::new(mode.id.clone(), mode.name.as_str())
            .description(mode.description.clone())
    };
    let values: Vec<_> = modes.iter().map(value).collect();
    let option = SessionConfigOption::select(MODE_OPTION, "Mode", mode.0.to_string(), values)
        .description("What the agent may do".to_owned())
        .category(SessionConfigOptionCategory::Mode);
    let mut options = vec![option, model_option(catalogue, choice)];
    options.extend(effort_option(catalogue, choice));
    options
}

fn model_option(catalogue: &Catalogue, choice: &Choice) -> SessionConfigOption {
    let values: Vec<_> = catalogue
        .choices(&choice.model)
        .into_iter()
        .map(|choice| {
            SessionConfigSelectOption::new(choice.id.to_string(), choice.name).description(choice.description)
        })
        .collect();
    SessionConfigOption::select(MODEL_OPTION, "Model", choice.model.to_string(), values)
        .description("Who answers".to_owned())
        .category(SessionConfigOptionCategory::Model)
}

fn effort_option(catalogue: &Catalogue, choice: &Choice) -> Option<SessionConfigOption> {
    let efforts = efforts(catalogue, &choice.model);
    if efforts.is_empty() {
        return None;
    }
    let values: Vec<_> = efforts
        .iter()
        .map(|effort| SessionConfigSelectOption::new(effort.as_str(), effort_title(*effort)))
        .collect();
    let current = if efforts.contains(&choice.effort) { choice.effort } else { Effort::Default };
    let option = SessionConfigOption::select(EFFORT_OPTION, "Thinking", current.as_str(), values)
        .description("How long the model thinks before it answers".to_owned())
        .category(SessionConfigOptionCategory::ThoughtLevel);
    Some(option)
}

/// The efforts that can be asked of a model: none of one that does not think.
pub fn efforts(catalogue: &Catalogue, model: &ModelId) -> Vec<Effort> {
    let own = catalogue.facts(model).efforts;
    if own.is_empty() { Vec::new() } else { [&[Effort::Default], own].concat() }
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
