//! What somebody else's agent shows and asks, taken by the session that it answers for.

use super::Outer;
use super::relay::OuterReport;
use crate::acp::SessionUpdate;
use crate::event::SessionEvent;
use crate::session::actor::Actor;
use crate::session::relayed::is_end;

impl Actor {
    /// Takes what it shows or asks.
    pub(in crate::session) async fn outer_report(
        &mut self,
        report: OuterReport,
        room: Option<tokio::sync::OwnedSemaphorePermit>,
    ) {
        match report {
            OuterReport::Event(event) => {
                if let SessionEvent::Relayed { update } = &event {
                    self.outer.note_kind(update);
                }
                self.record(event, room).await;
            }
            OuterReport::Moment(update) => {
                self.outer.note_kind(&update);
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
}

impl Outer {
    /// Keeps the kinds of the calls that are open, as they were said last.
    fn note_kind(&mut self, update: &SessionUpdate) {
        let (id, kind, status) = match update {
            SessionUpdate::ToolCall(call) => (&call.tool_call_id, Some(call.kind), Some(call.status)),
            SessionUpdate::ToolCallUpdate(update) => {
                (&update.tool_call_id, update.fields.kind, update.fields.status)
            }
            _ => return,
        };
        if let Some(kind) = kind {
            self.kinds.insert(id.clone(), kind);
        }
        if status.is_some_and(is_end) {
            self.kinds.remove(id);
        }
    }
}
