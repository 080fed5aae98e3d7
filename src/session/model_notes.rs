//! Facts that stay in the conversation, such as undone files or finished background agents.
//!
//! A fact becomes an event only between turns or right before a request, so that later loads reproduce its
//! position. Reminders, which are never stored, describe the mode.

use super::actor::Actor;
use super::event_log::EventLog;
use crate::acp::MessageId;
use crate::event::SessionEvent;

/// Limits facts that recur without end.
const MAX_PENDING: usize = 20;

#[derive(Default)]
pub(super) struct Notes {
    for_model: Vec<String>,
    /// Notices for the start of the next turn.
    pub(super) for_user: Vec<String>,
    /// Notices about interrupted operations, unless a replay shows them anyway.
    pub(super) interruptions: Vec<SessionEvent>,
    /// Number of recorded notices, for their ids.
    pub(super) recorded: u64,
}

impl Notes {
    pub(super) fn new(for_user: Vec<String>) -> Self {
        Self { for_user, ..Self::default() }
    }

    /// Records a notice to the user.
    pub(super) async fn record_notice(&mut self, text: String, log: &mut EventLog) {
        self.recorded += 1;
        let message_id = MessageId::new(format!("msg_{}_s{}", log.turns, self.recorded));
        log.record_notice(message_id, text).await;
    }
}

impl Actor {
    /// Adds a fact immediately if no turn is running.
    pub(super) fn note_for_model(&mut self, text: String) {
        let is_between_turns = self.turns.running.is_none() && self.log.conversation.open_calls.is_empty();
        if is_between_turns && self.has_model() {
            self.log.apply_new(SessionEvent::SystemNote { text });
            self.log.post_unsaved();
        } else {
            self.note_later(text);
        }
    }

    pub(super) fn note_later(&mut self, text: String) {
        let pending = &mut self.notes.for_model;
        if pending.len() < MAX_PENDING && !pending.contains(&text) {
            pending.push(text);
        }
    }

    /// All earlier calls must have ended.
    pub(super) fn deliver_notes(&mut self) {
        let pending = std::mem::take(&mut self.notes.for_model);
        if self.has_model() {
            for text in pending {
                self.log.apply_new(SessionEvent::SystemNote { text });
            }
        }
    }

    /// An external agent has its own conversation.
    fn has_model(&self) -> bool {
        self.policy.agent.external_agent.is_none()
    }
}
