//! Updates for the client that are not recorded.

use tokio::sync::OwnedSemaphorePermit;

use super::EventLog;
use crate::acp::{MessageId, ToolCallId, Update};
use crate::conversation::acp_updates;
use crate::event::SessionEvent;

impl EventLog {
    /// Shows the text that a question about a call is about, without recording it.
    pub(in crate::session) fn show_question(&mut self, call: &ToolCallId, text: &str) {
        let message_id = MessageId::new(format!("msg_{call}"));
        let mut updates = Vec::new();
        acp_updates::question(text, &message_id, |update| updates.push(update));
        self.send_separated(updates);
    }

    fn send_separated(&mut self, updates: Vec<Update>) {
        for mut update in updates {
            if let Some(breaks) = &mut self.breaks {
                breaks.separate(&mut update);
            }
            self.send(update, None);
        }
    }

    /// Shows a notice without recording it.
    pub(in crate::session) fn show(&mut self, notice: &SessionEvent) {
        let mut updates = Vec::new();
        acp_updates::encode(notice, self.updates, Vec::new, |update| updates.push(update));
        self.send_separated(updates);
    }

    /// Sends an update that is not recorded.
    pub(in crate::session) fn send(
        &self,
        update: impl Into<Update>,
        send_permit: Option<OwnedSemaphorePermit>,
    ) {
        self.client.update(self.id.clone(), update.into(), send_permit);
    }

    pub(in crate::session) fn replay(&self, update: Update, send_permit: Option<OwnedSemaphorePermit>) {
        self.client.replay(self.id.clone(), update, send_permit);
    }
}
