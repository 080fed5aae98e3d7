//! What somebody else's agent shows and asks, taken by the session that it answers for.

use super::actor::Actor;
use super::harness_relay::OuterReport;
use super::relayed::is_end;
use crate::acp::SessionUpdate;
use crate::event::SessionEvent;

impl Actor {
    /// Takes what it shows or asks.
    pub(super) async fn outer_report(
        &mut self,
        report: OuterReport,
        room: Option<tokio::sync::OwnedSemaphorePermit>,
    ) {
        match report {
            OuterReport::Event(event) => {
                if let SessionEvent::Relayed { update } = &event {
                    self.note_kind(update);
                }
                self.record(event, room).await;
            }
            OuterReport::Moment(update) => {
                self.client.update(self.session.id.clone(), (*update).into(), room);
            }
            OuterReport::Commands(commands) => {
                self.outer.commands = commands;
                self.show_commands();
            }
            OuterReport::Options => self.show_options(),
            OuterReport::Asks { number, request, reply } => self.outer_asks(number, request, reply).await,
            OuterReport::Closed { number } => {
                if let Some(asked) = self.outer.asked.remove(&number) {
                    self.client.withdraw(asked.id);
                }
            }
        }
    }

    fn note_kind(&mut self, update: &SessionUpdate) {
        match update {
            SessionUpdate::ToolCall(call) => {
                self.outer.kinds.insert(call.tool_call_id.clone(), call.kind);
            }
            SessionUpdate::ToolCallUpdate(update) => {
                if let Some(kind) = update.fields.kind {
                    self.outer.kinds.insert(update.tool_call_id.clone(), kind);
                }
                if update.fields.status.is_some_and(is_end) {
                    self.outer.kinds.remove(&update.tool_call_id);
                }
            }
            _ => {}
        }
    }
}
