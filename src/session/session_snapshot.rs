//! The state of a session, for requests that open it. Plain data.

use crate::acp::{SessionConfigOption, SessionModeState};
use crate::chain::Head;
use crate::model::ModelId;

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
    /// Number of checks.
    pub checks: usize,
    /// Says why the model that the mode or the agent names cannot be used.
    pub unusable_model: Option<String>,
    /// Mode that limits the session, and why, if the session's mode would allow more.
    pub limited_to: Option<(String, &'static str)>,
}

impl SessionSnapshot {
    /// Such as `limited to plan by --max-mode`. `None` if the session's mode decides alone.
    pub fn mode_limit(&self) -> Option<String> {
        self.limited_to.as_ref().map(|(limit, why)| format!("limited to {limit} {why}"))
    }
}

/// The tools and limits of the present mode, and what each mode permits in this session.
#[derive(Debug)]
pub struct SessionOffer {
    /// Names of the tools that the mode offers. Empty if an external agent answers.
    pub tools: Vec<String>,
    /// Maximum number of model requests in a turn.
    pub max_steps: u32,
    pub permits: Vec<(String, ModePermits)>,
    /// The reason for which changes cannot be recorded and are refused, as a clause.
    pub unrecordable: Option<String>,
}

/// Coarse classes of modes, by the changes that they permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModePermits {
    Reading,
    /// Changes that the user allows one by one.
    AskedChanges,
    Changes,
}
