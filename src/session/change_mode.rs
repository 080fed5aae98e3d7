//! The one function that changes a session's mode, whoever asks.
//!
//! In order: record and commit; close the permission requests that the new mode denies; end what runs and no longer
//! fits; tell the client; and only then does the caller answer. A record that fails fails the change; if it was to
//! tighten, what the new mode denies is denied all the same until a change can be recorded.

use std::sync::Arc;
use std::time::Duration;

use super::actor::Actor;
use super::reminder::Transition;
use super::{ModeEffect, capability, valid_modes};
use crate::acp::SessionModeId;
use crate::error::AgentError;
use crate::event::SessionEvent;
use crate::mode::{Mode, UnknownMode};
use crate::permission::{self, CallFacts, Ceilings, Grants, Verdict, compare};
use crate::store::Why;

/// How long a change waits for what it ended. What takes longer is named in the answer.
pub(super) const DEADLINE: Duration = Duration::from_secs(2);

impl Actor {
    /// Changes the mode. The mode that is on already is a silent success, without an effect.
    ///
    /// # Errors
    /// The mode is unknown, or the change could not be recorded: then nothing has changed.
    pub(super) async fn change_mode(
        &mut self,
        mode: &SessionModeId,
        why: impl Into<Why>,
    ) -> Result<Option<ModeEffect>, AgentError> {
        let why = why.into();
        let (keeps_unrecorded, source) = (why.keeps_unrecorded, why.source.as_str());
        let modes = Arc::clone(&self.context.modes);
        let new = modes.resolve(&mode.0).map_err(|unknown| {
            tracing::warn!(session = %self.session.id, "the mode was not changed: {unknown}");
            self.no_mode(&mode.0, &unknown)
        })?;
        let (from, to) = (self.session.mode.clone(), new.mode_id());
        if from == to {
            return Ok(None);
        }
        let before = self.ceilings();
        // What happened before it is written before it.
        self.post_unsaved();
        let change = self.mode_change(Some(from.clone()), to.clone(), why);
        let link = change.link.clone();
        let tightened = self.is_tighter(&from.0, &to.0);
        // Nothing is decided meanwhile: this loop is the one that decides.
        if let Err(error) = self.context.store.record_mode_change(change).await {
            tracing::error!(%error, "a mode change was not made");
            if !tightened {
                return Err(AgentError::Unrecorded);
            }
            // The mode is what the record says; but nobody who asked for less gets more because a disk is full.
            if !self.session.unrecorded_modes.contains(&to) {
                self.session.unrecorded_modes.push(to.clone());
            }
            self.end_what_is_denied().await;
            return Err(AgentError::ModeUnrecorded {
                mode: from.0.to_string(),
                unrecorded: to.0.to_string(),
            });
        }
        tracing::debug!(session = %self.session.id, %from, %to, source, "the mode changed");
        self.session.head.follow(&link);
        self.session.mode = to.clone();
        self.session.previous = Some(from.clone());
        let void = self.close_switches();
        // What was asked, or answered, about starting an agent anew was about the mode before.
        self.external_agent.restart_question.cancel();
        self.external_agent.stays_sandboxed = false;
        if !keeps_unrecorded {
            self.session.unrecorded_modes.clear();
        }
        let selection = self.mode_selection();
        self.session.active = selection;
        let (mut closed, ended) = self.end_what_is_denied().await;
        closed.extend(void);
        let during = self.turn.is_some().then_some(self.session.turns);
        let unconfirmed = ended.unconfirmed.clone();
        self.session.note_transition(
            Transition { from: from.clone(), to: to.clone(), before, unconfirmed: unconfirmed.len() },
            during,
        );
        // The change is on the record; should the process end before this event is, the next load makes it up.
        self.record(SessionEvent::ModeChange { from, to, unconfirmed }, None).await;
        Ok(Some(ModeEffect { tightened, ended, closed }))
    }

    /// There is no such mode, or not for this agent.
    fn no_mode(&self, requested: &str, unknown: &UnknownMode) -> AgentError {
        let modes = &self.context.modes;
        capability::unsupported(requested, &self.context.unsupported_modes, modes)
            .unwrap_or_else(|| AgentError::invalid_params(unknown.to_string(), valid_modes(modes)))
    }

    /// Whether anything that the old mode lets a tool do is denied or asked for in the new one.
    fn is_tighter(&self, old: &str, new: &str) -> bool {
        let ceilings = |id| self.context.modes.ceilings(id).unwrap_or_default();
        let (old, new) = (ceilings(old), ceilings(new));
        let strictness = |modes: &[Arc<Mode>], facts: &CallFacts| {
            let ceilings = Ceilings { modes: modes.to_vec(), rules: vec![Arc::clone(&self.context.rules)] };
            match permission::decide(&ceilings, &Grants::default(), facts) {
                Verdict::Allow => 0,
                Verdict::Ask(_) => 1,
                Verdict::Deny(_) => 2,
            }
        };
        if compare::allows_more(&old, &new) {
            return true;
        }
        // The exit itself restricts nothing.
        self.context.tools.all().iter().filter(|tool| !tool.spec().is_exit).any(|tool| {
            let facts = tool.spec().facts();
            strictness(&new, &facts) > strictness(&old, &facts)
        })
    }
}
