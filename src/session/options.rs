//! What a client sees of the modes: the mode list of ACP's session modes and the same as a config option. Pure.
//!
//! Both are always sent and always in step. The option's id is exactly `mode`, because clients look for it, and the
//! list of options is never empty, because a client then hides the modes.

use crate::acp::{
    SessionConfigOption, SessionConfigOptionCategory, SessionConfigSelectOption, SessionMode, SessionModeId,
    SessionModeState,
};
use crate::mode::{Mode, Modes};

/// The id of the config option that holds the mode.
pub const MODE_OPTION: &str = "mode";

/// The `modes` of a session.
pub fn mode_state(modes: &Modes, current: &SessionModeId) -> SessionModeState {
    let mode = |mode: &Mode| {
        SessionMode::new(mode.mode_id(), mode.name.as_str()).description(mode.description.clone())
    };
    SessionModeState::new(current.clone(), modes.iter().map(mode).collect())
}

/// The `configOptions` of a session, complete.
pub fn config_options(modes: &Modes, current: &SessionModeId) -> Vec<SessionConfigOption> {
    let value = |mode: &Mode| {
        SessionConfigSelectOption::new(mode.id.clone(), mode.name.as_str())
            .description(mode.description.clone())
    };
    let values: Vec<_> = modes.iter().map(value).collect();
    let option = SessionConfigOption::select(MODE_OPTION, "Mode", current.0.to_string(), values)
        .description("What the agent may do".to_owned())
        .category(SessionConfigOptionCategory::Mode);
    vec![option]
}
