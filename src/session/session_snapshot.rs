//! What a request that opens a session gets to know of it.

use super::options;
use crate::acp::{SessionConfigOption, SessionModeState};
use crate::chain::Head;
use crate::mode::Access;
use crate::model::ModelId;
use crate::session::mode::decider::Decider;
use crate::session::turn::model_selection::Models;

#[derive(Debug)]
pub struct SessionSnapshot {
    pub modes: SessionModeState,
    pub options: Vec<SessionConfigOption>,
    pub head: Head,
    pub has_unrecorded_modes: bool,
    /// `None` if an external agent answers.
    pub model: Option<ModelId>,
    pub is_fallback: bool,
    pub is_read_only: bool,
    /// Says why the model that the mode or the agent names cannot be used.
    pub unusable_model: Option<String>,
    /// Mode that limits the session, and why, if the session's mode would allow more.
    pub limited_to: Option<(String, &'static str)>,
}

impl SessionSnapshot {
    pub(super) fn new(decider: &Decider, models: &Models, options: Vec<SessionConfigOption>) -> Self {
        let policy = &decider.policy;
        let context = &policy.context;
        let model = Some(&models.active.model).filter(|_| policy.agent.external_agent.is_none());
        let unusable_model =
            options::unusable_model(&context.modes, &context.models, &policy.mode, &policy.agent);
        Self {
            model: model.cloned(),
            is_fallback: model.is_some_and(|model| context.models.is_fallback(model)),
            is_read_only: policy.ceilings().modes.iter().any(|mode| mode.access == Access::ReadOnly),
            modes: options::mode_state(&context.modes, &policy.mode),
            options,
            head: decider.log.head().clone(),
            has_unrecorded_modes: !policy.unrecorded_modes.is_empty(),
            unusable_model: unusable_model.filter(|_| model.is_some()),
            limited_to: policy.limited_to(),
        }
    }
}
