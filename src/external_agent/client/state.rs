//! Modes and options that an external agent last announced. Pure.

use crate::acp::{
    SessionConfigId, SessionConfigKind, SessionConfigOption, SessionConfigOptionCategory,
    SessionConfigSelectOption, SessionConfigSelectOptions, SessionMode, SessionModeId, SessionModeState,
    SessionUpdate,
};

#[derive(Debug, Clone, Default)]
pub(super) struct AgentState {
    pub modes: Option<SessionModeState>,
    pub options: Vec<SessionConfigOption>,
    pub fault: Option<&'static str>,
}

impl AgentState {
    /// Values that the answer lacks stay as announced during loading.
    pub(super) fn session_started(
        &mut self,
        modes: Option<SessionModeState>,
        options: Option<Vec<SessionConfigOption>>,
    ) {
        self.modes = modes.or_else(|| self.modes.take());
        if let Some(options) = options {
            self.options = options;
        }
    }

    pub(super) fn apply(&mut self, update: &SessionUpdate) -> bool {
        match update {
            SessionUpdate::CurrentModeUpdate(update) => self.set_mode(&update.current_mode_id),
            SessionUpdate::ConfigOptionUpdate(update) => self.options.clone_from(&update.config_options),
            _ => return false,
        }
        true
    }

    pub(super) fn set_mode(&mut self, mode: &SessionModeId) {
        if let Some(modes) = &mut self.modes {
            modes.current_mode_id = mode.clone();
        }
    }

    /// The announced modes, or the values of the config option for them.
    pub(super) fn all_modes(&self) -> Option<SessionModeState> {
        if let Some(modes) = &self.modes {
            return Some(modes.clone());
        }
        let SessionConfigKind::Select(select) = &self.mode_option()?.kind else { return None };
        let values = match &select.options {
            SessionConfigSelectOptions::Ungrouped(values) => values.iter().collect(),
            SessionConfigSelectOptions::Grouped(groups) => {
                groups.iter().flat_map(|group| &group.options).collect()
            }
            // The schema may grow.
            _ => Vec::new(),
        };
        let modes: Vec<_> = values.into_iter().map(mode_of_value).collect();
        Some(SessionModeState::new(select.current_value.0.to_string(), modes))
    }

    pub(super) fn option_of_mode(&self) -> Option<SessionConfigId> {
        if self.modes.is_some() { None } else { self.mode_option().map(|option| option.id.clone()) }
    }

    fn mode_option(&self) -> Option<&SessionConfigOption> {
        self.options.iter().find(|option| {
            matches!(option.kind, SessionConfigKind::Select(_))
                && (option.category == Some(SessionConfigOptionCategory::Mode)
                    || (option.category.is_none() && &*option.id.0 == "mode"))
        })
    }
}

fn mode_of_value(value: &SessionConfigSelectOption) -> SessionMode {
    SessionMode::new(value.value.0.to_string(), value.name.clone()).description(value.description.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(modes: bool) -> AgentState {
        let option = json!({ "id": "how", "name": "How", "category": "mode", "type": "select", "currentValue": "build",
            "options": [{ "value": "build", "name": "Build" }, { "value": "plan", "name": "Plan" }] });
        let named = json!({ "currentModeId": "a", "availableModes": [{ "id": "a", "name": "A" }, { "id": "b", "name": "B" }] });
        AgentState {
            modes: modes.then(|| serde_json::from_value(named).unwrap()),
            options: vec![serde_json::from_value(option).unwrap()],
            fault: None,
        }
    }

    fn check(state: &AgentState, expected: &[&str], option: Option<&str>) {
        let modes = state.all_modes().unwrap();
        let ids =
            std::iter::once(&modes.current_mode_id).chain(modes.available_modes.iter().map(|mode| &mode.id));
        assert_eq!(ids.map(|id| &*id.0).collect::<Vec<_>>(), expected);
        assert_eq!(state.option_of_mode().as_ref().map(|id| &*id.0), option);
    }

    #[test]
    fn modes_come_from_modes_or_the_mode_option() {
        check(&state(true), &["a", "a", "b"], None);
        check(&state(false), &["build", "build", "plan"], Some("how"));
        assert!(AgentState::default().all_modes().is_none());
        let mut agent_state = state(true);
        let update = |json| serde_json::from_value::<SessionUpdate>(json).unwrap();
        assert!(
            agent_state
                .apply(&update(json!({ "sessionUpdate": "current_mode_update", "currentModeId": "b" })))
        );
        check(&agent_state, &["b", "a", "b"], None);
        assert!(
            agent_state
                .apply(&update(json!({ "sessionUpdate": "config_option_update", "configOptions": [] })))
        );
        assert!(agent_state.options.is_empty());
        let chunk =
            json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "a" } });
        assert!(!agent_state.apply(&update(chunk)));
    }
}
