//! Facts that the model is told once and keeps: files that were put back, a change that a kill cut off, a background agent that has
//! finished, a session that goes on, other claims of a server.
//!
//! A fact becomes an event ([`SessionEvent::SystemNote`]), and with it a part of the conversation, only where the conversation has a
//! place for it that every later reading finds again: between turns, or right before a request. What is said of modes is no such
//! fact: it stands in reminders, which are never stored ([`super::reminder`]).

use super::actor::Actor;
use crate::event::SessionEvent;

/// Facts that may wait for the next request. What goes on for ever is not told for ever.
const MAX_PENDING: usize = 20;

impl Actor {
    /// Tells the model a fact: with the next request or the next turn, or, if no turn is running, now.
    pub(super) fn note_for_model(&mut self, text: String) {
        let is_between_turns = self.turn.is_none() && self.session.open_calls.is_empty();
        if is_between_turns && self.has_model() {
            self.session.apply_new(SessionEvent::SystemNote { text });
            self.post_unsaved();
        } else {
            self.note_later(text);
        }
    }

    /// Tells the model a fact once there is a turn that it matters to.
    pub(super) fn note_later(&mut self, text: String) {
        let pending = &mut self.session.pending_model_notes;
        if pending.len() < MAX_PENDING && !pending.contains(&text) {
            pending.push(text);
        }
    }

    /// Makes the facts that wait a part of the conversation. All calls before must be over.
    pub(super) fn deliver_notes(&mut self) {
        let pending = std::mem::take(&mut self.session.pending_model_notes);
        if self.has_model() {
            for text in pending {
                self.session.apply_new(SessionEvent::SystemNote { text });
            }
        }
    }

    /// Whether a model reads this conversation. An external agent has its own.
    fn has_model(&self) -> bool {
        self.session.agent.external_agent.is_none()
    }
}
