//! Handles the reports of an external agent's relay in the session's actor.

use super::ExternalAgentSession;
use super::relay::ExternalAgentReport;
use crate::acp::SessionUpdate;
use crate::conversation::open_calls::is_end;
use crate::event::SessionEvent;
use crate::session::actor::Actor;

impl Actor {
    pub(in crate::session) async fn external_agent_report(
        &mut self,
        report: ExternalAgentReport,
        send_permit: Option<tokio::sync::OwnedSemaphorePermit>,
    ) {
        match report {
            ExternalAgentReport::Event(event) => {
                if let SessionEvent::ForwardedUpdate { update } = &event {
                    self.external_agent.note_kind(update);
                }
                self.log.record(event, send_permit).await;
            }
            ExternalAgentReport::Transient(update) => {
                self.external_agent.note_kind(&update);
                self.log.send(*update, send_permit);
            }
            ExternalAgentReport::Commands(commands) => {
                self.external_agent.commands = commands;
                self.send_commands();
            }
            ExternalAgentReport::Options => self.send_config_options(),
            ExternalAgentReport::Request { number, request, reply } => {
                self.external_agent_request(number, request, reply).await;
            }
            ExternalAgentReport::Closed { number } => {
                if let Some(open_request) = self.external_agent.open_requests.remove(&number) {
                    self.log.client.withdraw(open_request.id);
                }
            }
        }
    }
}

impl ExternalAgentSession {
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
