//! The one function that changes a session's mode.
//!
//! Order: commit the change; close permission requests that the new mode denies; end running calls that no
//! longer fit; notify the client; return. If recording fails, the mode stays, but a tighter new mode still
//! becomes a ceiling until a change is recorded.

use std::sync::Arc;
use std::time::Duration;

use super::ModeEffect;
use super::actor::Actor;
use crate::acp::SessionModeId;
use crate::conversation::reminder::Transition;
use crate::error::AgentError;
use crate::event::SessionEvent;
use crate::store::ChangeReason;

/// Maximum wait for ended calls. The answer lists calls that take longer.
pub(super) const DEADLINE: Duration = Duration::from_secs(2);

impl Actor {
    /// Returns `None` if the mode is active already.
    ///
    /// # Errors
    /// Returns an error if the mode is unknown or the change cannot be recorded. The mode then stays.
    pub(super) async fn change_mode(
        &mut self,
        mode: &SessionModeId,
        why: impl Into<ChangeReason>,
    ) -> Result<Option<ModeEffect>, AgentError> {
        let why = why.into();
        let (keeps_unrecorded, source) = (why.keeps_unrecorded, why.source.as_str());
        let modes = Arc::clone(&self.context.modes);
        let new = modes.resolve(&mode.0).map_err(|unknown| {
            tracing::warn!(session = %self.log.id, "the mode was not changed: {unknown}");
            self.policy.no_mode(&mode.0, &unknown)
        })?;
        let (from, to) = (self.policy.mode.clone(), new.mode_id());
        if from == to {
            return Ok(None);
        }
        let before = self.policy.ceilings();
        self.log.post_unsaved();
        let text = self.policy.text_of(&to);
        let change = self.log.mode_change(Some(from.clone()), to.clone(), why, text);
        let link = change.link.clone();
        let tightened = self.policy.is_tighter(&from.0, &to.0);
        // Nothing is decided during this wait: only this loop decides.
        if let Err(error) = self.log.store.record_mode_change(change).await {
            tracing::error!(%error, "a mode change was not made");
            if !tightened {
                return Err(AgentError::Unrecorded);
            }
            // The recorded mode stays, but a full disk must not give more access than requested.
            if !self.policy.unrecorded_modes.contains(&to) {
                self.policy.unrecorded_modes.push(to.clone());
            }
            self.end_denied_calls().await;
            return Err(AgentError::ModeUnrecorded {
                mode: from.0.to_string(),
                unrecorded: to.0.to_string(),
            });
        }
        tracing::debug!(session = %self.log.id, %from, %to, source, "the mode changed");
        self.log.head.follow(&link);
        self.policy.mode = to.clone();
        self.policy.previous = Some(from.clone());
        let void = self.close_switches();
        self.external_agent.on_mode_changed();
        if !keeps_unrecorded {
            self.policy.unrecorded_modes.clear();
        }
        let selection = self.models.of_mode(&self.policy);
        self.models.active = selection;
        let (mut closed, ended) = self.end_denied_calls().await;
        closed.extend(void);
        let during = self.turns.running.is_some().then_some(self.log.turns);
        let unconfirmed = ended.unconfirmed.clone();
        self.requests.note_transition(
            Transition { from: from.clone(), to: to.clone(), before, unconfirmed: unconfirmed.len() },
            during,
        );
        // If the process ends before this event is stored, the next load adds it.
        let options = self.options();
        self.log.record_with_options(SessionEvent::ModeChange { from, to, unconfirmed }, options).await;
        Ok(Some(ModeEffect { tightened, ended, closed }))
    }
}
