//! Requests of an external agent to the client, decided under the current ceilings and those at its last
//! prompt.
//!
//! Reads are allowed. If the ceilings require the sandbox, all else is denied and recorded, and the client
//! sees why. Otherwise the mode decides between asking and allowing.

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::relay::ExternalAgentReport;
use crate::acp::{
    Meta, PermissionOptionKind, RequestPermissionOutcome, RequestPermissionRequest,
    RequestPermissionResponse, SelectedPermissionOutcome, SessionUpdate, ToolCallId, ToolCallUpdate,
    ToolCallUpdateFields, ToolKind,
};
use crate::client::{ClientError, ClientRequest};
use crate::conversation::acp_updates::{DENIED_META, text_content};
use crate::event::SessionEvent;
use crate::gate::Permit;
use crate::permission::Denial;
use crate::session::actor::Actor;
use crate::session::capability::{self, Decision, Requirement};
use crate::session::subagent_relay::{Answer, Report};

const RULE: &str = "access";

/// Number of the agent's start, and number of its request.
pub(in crate::session) type RequestId = (u64, u64);

pub(in crate::session) struct OpenRequest {
    pub id: u64,
    call: Option<(ToolCallId, Option<ToolKind>)>,
}

impl Actor {
    /// Withdraws permission requests that are now denied. Returns their calls.
    pub(in crate::session) fn close_external_agent_requests(&mut self) -> Vec<ToolCallId> {
        let ceilings = self.policy.call_ceilings();
        let is_refused = |open_request: &OpenRequest| {
            open_request
                .call
                .as_ref()
                .is_some_and(|(_, kind)| capability::decide(&ceilings, *kind) == Decision::Deny)
        };
        let refused: Vec<_> = self
            .external_agent
            .open_requests
            .extract_if(|_, open_request| is_refused(open_request))
            .collect();
        let mut calls = Vec::new();
        for (_, open_request) in refused {
            self.log.client.withdraw(open_request.id);
            calls.extend(open_request.call.map(|(call, _)| call));
        }
        calls.sort_by(|a, b| a.0.cmp(&b.0));
        calls
    }

    pub(in crate::session) async fn external_agent_request(
        &mut self,
        number: RequestId,
        request: ClientRequest,
        reply: Answer,
    ) {
        let answer = match &request {
            ClientRequest::RequestPermission(request) => self.decide_permission_request(request).await,
            ClientRequest::WriteTextFile(write)
                if self.is_external_agent_sandboxed()
                    || capability::requirement(&self.policy.call_ceilings()) != Requirement::Unrestricted =>
            {
                let what = format!("write {}", write.path.display());
                Some(Err(ClientError::Refused(self.refuse_external_agent(&what, None).await)))
            }
            _ => None,
        };
        if let Some(answer) = answer {
            return drop(reply.send(answer));
        }
        let call = match &request {
            ClientRequest::RequestPermission(request) => {
                Some((request.tool_call.tool_call_id.clone(), self.kind_of(request)))
            }
            _ => None,
        };
        // A forwarded write lasts until the client answers. Without an answer, its end is unknown.
        let permit = matches!(request, ClientRequest::WriteTextFile(_))
            .then(|| self.admit_external_agent(&format!("agent_write_{}_{}", number.0, number.1), false));
        let reply = self.until_answered(number, permit, reply);
        let id = self.log.client.forward(request.of_session(&self.log.id), reply);
        self.external_agent.open_requests.insert(number, OpenRequest { id, call });
    }

    /// Returns a channel that passes the client's answer on and then closes the request.
    fn until_answered(&self, number: RequestId, permit: Option<Permit>, reply: Answer) -> Answer {
        let (to, answer) = oneshot::channel();
        let reports = self.subagents.reports.0.clone();
        tokio::spawn(async move {
            let answer = answer.await;
            match permit {
                Some(permit) if answer.is_err() => permit.release_unconfirmed(),
                done => drop(done),
            }
            let _ = reports.send(Report::ExternalAgent {
                report: ExternalAgentReport::Closed { number },
                send_permit: None,
            });
            let _ = answer.map(|answer| reply.send(answer));
        });
        to
    }

    fn kind_of(&self, request: &RequestPermissionRequest) -> Option<ToolKind> {
        let call = &request.tool_call;
        call.fields.kind.or_else(|| self.external_agent.kinds.get(&call.tool_call_id).copied())
    }

    /// `None` if the user must decide.
    async fn decide_permission_request(
        &mut self,
        request: &RequestPermissionRequest,
    ) -> Option<Result<Value, ClientError>> {
        let call = &request.tool_call;
        let kind = self.kind_of(request);
        let option = |kind| request.options.iter().find(|option| option.kind == kind);
        let select = |outcome| {
            let answer = RequestPermissionResponse::new(outcome);
            serde_json::to_value(answer).map_err(|error| ClientError::Malformed(error.to_string()))
        };
        let selected = |id: &crate::acp::PermissionOptionId| {
            select(RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(id.clone())))
        };
        match capability::decide(&self.policy.call_ceilings(), kind) {
            Decision::Ask => None,
            // Only the user may choose a lasting option.
            Decision::Allow => option(PermissionOptionKind::AllowOnce).map(|it| selected(&it.option_id)),
            Decision::Deny => {
                let reject = option(PermissionOptionKind::RejectOnce).map(|it| it.option_id.clone());
                let what = call.fields.title.clone().unwrap_or_else(|| "untitled call".into());
                self.refuse_external_agent(&what, Some(call.tool_call_id.clone())).await;
                Some(match reject {
                    Some(id) => selected(&id),
                    None => select(RequestPermissionOutcome::Cancelled),
                })
            }
        }
    }

    async fn refuse_external_agent(&mut self, what: &str, call: Option<ToolCallId>) -> String {
        let who = if self.policy.is_mode_unrestricted() {
            "another limit of this session".to_owned()
        } else {
            format!("{} mode", self.policy.mode)
        };
        let message = format!("Refused by Modegate: {who} allows no changes ({what}).");
        let denial = Denial { rule: RULE, message: message.clone() };
        let id = call.clone().unwrap_or_else(|| ToolCallId::new(capability::EXTERNAL_AGENT));
        self.note_denial(id, capability::EXTERNAL_AGENT.to_owned(), denial);
        match call {
            Some(call) => {
                let fields = ToolCallUpdateFields::new().content(vec![text_content(&message)]);
                let meta = Meta::from_iter([(DENIED_META.to_owned(), json!(RULE))]);
                let update = SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(call, fields).meta(meta));
                self.log.record(SessionEvent::ForwardedUpdate { update: Box::new(update) }, None).await;
            }
            None => self.record_external_agent_notice(format!("{message}\n\n")).await,
        }
        message
    }
}
