//! Merges the config options of a session with those of its external agent. The agent's own modes become an
//! option of their own, which never loosens the session's mode. Pure.

use crate::acp::{
    SessionConfigOption, SessionConfigOptionCategory, SessionConfigSelectOption, SessionModeState,
};

pub const AGENT_MODE_OPTION: &str = "agent_mode";

/// Keeps only the `shared` options of the session: the agent chooses its own model.
pub fn merged(
    own: Vec<SessionConfigOption>,
    shared: &[&str],
    agent_options: &[SessionConfigOption],
    modes: Option<&SessionModeState>,
) -> Vec<SessionConfigOption> {
    let is_shared = |option: &SessionConfigOption| shared.contains(&&*option.id.0);
    let mut all: Vec<_> = own.into_iter().filter(is_shared).collect();
    let agent_options = agent_options.iter().filter(|option| {
        !is_shared(option)
            && &*option.id.0 != AGENT_MODE_OPTION
            && option.category != Some(SessionConfigOptionCategory::Mode)
    });
    all.extend(agent_options.cloned());
    if let Some(modes) = modes.filter(|modes| modes.available_modes.len() > 1) {
        let values: Vec<_> = modes
            .available_modes
            .iter()
            .map(|mode| {
                SessionConfigSelectOption::new(mode.id.0.to_string(), mode.name.clone())
                    .description(mode.description.clone())
            })
            .collect();
        let current = modes.current_mode_id.0.to_string();
        let option = SessionConfigOption::select(AGENT_MODE_OPTION, "The agent's own mode", current, values);
        all.push(
            option.description(
                "The agent's own setting; Modegate's mode limits what the agent can do".to_owned(),
            ),
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::SessionMode;

    #[test]
    fn agent_options_merge_with_session_options() {
        let option = |id: &str, category: Option<SessionConfigOptionCategory>| {
            let values = vec![SessionConfigSelectOption::new("a", "A")];
            let option = SessionConfigOption::select(id.to_owned(), "X", "a", values);
            match category {
                Some(category) => option.category(category),
                None => option,
            }
        };
        let own = vec![option("mode", None), option("model", None), option("agent", None)];
        let agent_options = [
            option("model", Some(SessionConfigOptionCategory::Model)),
            option("mode", None),
            option("build", Some(SessionConfigOptionCategory::Mode)),
            option("agent_mode", None),
            option("temperature", None),
        ];
        let modes = SessionModeState::new("b", vec![SessionMode::new("a", "A"), SessionMode::new("b", "B")]);
        let ids = |modes| {
            let all = merged(own.clone(), &["mode", "agent"], &agent_options, modes);
            all.iter().map(|option| option.id.0.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ids(Some(&modes)), ["mode", "agent", "model", "temperature", "agent_mode"]);
        assert_eq!(ids(None), ["mode", "agent", "model", "temperature"]);
    }
}
