//! What an external agent asks of the client: decided on first, by the modes that hold now and by those under which its last
//! prompt was sent.
//!
//! What only reads is let through; under a mode that changes nothing the rest is refused here, on the record, and the client is
//! told why. Where everything is allowed, the user is asked as the mode says.

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::relay::ExternalAgentReport;
use crate::acp::{
    Meta, PermissionOptionKind, RequestPermissionOutcome, RequestPermissionRequest,
    RequestPermissionResponse, SelectedPermissionOutcome, SessionUpdate, ToolCallId, ToolCallUpdate,
    ToolCallUpdateFields, ToolKind,
};
use crate::client::{ClientError, ClientRequest};
use crate::event::SessionEvent;
use crate::gate::Permit;
use crate::permission::Denial;
use crate::session::actor::Actor;
use crate::session::capability::{self, Decision, Requirement};
use crate::session::encoder::{DENIED_META, text_content};
use crate::session::subagent_relay::{Answer, Report};

/// The rule that refuses it, for the record.
const RULE: &str = "access";

/// Which start of it asks, and its number for what it asks.
pub(in crate::session) type RequestId = (u64, u64);

/// Something that it asks of the client.
pub(in crate::session) struct OpenRequest {
    /// The number of the request to the client.
    pub id: u64,
    /// Its call and the kind of it, where it asks leave for one.
    call: Option<(ToolCallId, Option<ToolKind>)>,
}

impl Actor {
    /// Takes back what it asks leave for and is not to have from now on. Returns its calls.
    pub(in crate::session) fn close_external_agent_requests(&mut self) -> Vec<ToolCallId> {
        let ceilings = self.call_ceilings();
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
            self.client.withdraw(open_request.id);
            calls.extend(open_request.call.map(|(call, _)| call));
        }
        calls.sort_by(|a, b| a.0.cmp(&b.0));
        calls
    }

    /// Decides on something that it asks.
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
                    || capability::requirement(&self.call_ceilings()) != Requirement::Unrestricted =>
            {
                let what = format!("write {}", write.path.display());
                Some(Err(ClientError::Refused(self.refuse_external_agent(&what, None).await)))
            }
            _ => None,
        };
        if let Some(answer) = answer {
            // It may have taken it back.
            return drop(reply.send(answer));
        }
        let call = match &request {
            ClientRequest::RequestPermission(request) => {
                Some((request.tool_call.tool_call_id.clone(), self.kind_of(request)))
            }
            _ => None,
        };
        // A write that the client has goes on until it has answered; where it never does, nobody knows.
        let permit = matches!(request, ClientRequest::WriteTextFile(_))
            .then(|| self.admit_external_agent(&format!("agent_write_{}_{}", number.0, number.1), false));
        let reply = self.until_answered(number, permit, reply);
        let id = self.client.forward(request.of_session(&self.session.id), reply);
        self.external_agent.open_requests.insert(number, OpenRequest { id, call });
    }

    /// Where the client's answer goes: from here to whoever asked. It is not open from then on.
    fn until_answered(&self, number: RequestId, permit: Option<Permit>, reply: Answer) -> Answer {
        let (to, answer) = oneshot::channel();
        let reports = self.subagents.reports.0.clone();
        tokio::spawn(async move {
            let answer = answer.await;
            match permit {
                Some(permit) if answer.is_err() => permit.give_back_unconfirmed(),
                done => drop(done),
            }
            // The session may be over; and it may have taken it back.
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

    /// The answer to a request for permission; none: the user is to give it.
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
        match capability::decide(&self.call_ceilings(), kind) {
            Decision::Ask => None,
            // What would hold for ever is for the user to say.
            Decision::Allow => option(PermissionOptionKind::AllowOnce).map(|it| selected(&it.option_id)),
            Decision::Deny => {
                let reject = option(PermissionOptionKind::RejectOnce).map(|it| it.option_id.clone());
                let what = call.fields.title.clone().unwrap_or_else(|| "do this".into());
                self.refuse_external_agent(&what, Some(call.tool_call_id.clone())).await;
                Some(match reject {
                    Some(id) => selected(&id),
                    None => select(RequestPermissionOutcome::Cancelled),
                })
            }
        }
    }

    /// Puts a refusal on the record and tells the client why. Returns what is said.
    async fn refuse_external_agent(&mut self, what: &str, call: Option<ToolCallId>) -> String {
        let who = if self.is_mode_unrestricted() {
            "the agent is held and".to_owned()
        } else {
            format!("{} mode", self.session.mode)
        };
        let message = format!("Refused by Modegate: {who} changes nothing ({what}).");
        let denial = Denial { rule: RULE, message: message.clone() };
        let id = call.clone().unwrap_or_else(|| ToolCallId::new(capability::PROCESS));
        self.note_denial(id, capability::PROCESS.to_owned(), denial);
        match call {
            Some(call) => {
                let fields = ToolCallUpdateFields::new().content(vec![text_content(&message)]);
                let meta = Meta::from_iter([(DENIED_META.to_owned(), json!(RULE))]);
                let update = SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(call, fields).meta(meta));
                self.record(SessionEvent::Relayed { update: Box::new(update) }, None).await;
            }
            None => self.record_external_agent_notice(format!("{message}\n\n")).await,
        }
        message
    }
}
