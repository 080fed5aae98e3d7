//! Requests of an external agent to the client, decided under the current ceilings and those at its last
//! prompt.
//!
//! Reads are allowed. If the ceilings require the sandbox, all else is denied and recorded, and the client
//! sees why. Otherwise the mode decides between asking and allowing.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::hooked_change;
use super::message::{AgentMessage, AgentOutput, HookedRequest, Relayed, RelayedRequest, RequestId};
use super::process::admit;
use super::{AgentLimits, ExternalAgentSession};
use crate::acp::{
    Meta, PermissionOptionId, PermissionOptionKind, RequestPermissionOutcome, RequestPermissionRequest,
    RequestPermissionResponse, SelectedPermissionOutcome, SessionUpdate, ToolCallId, ToolCallUpdate,
    ToolCallUpdateFields,
};
use crate::client::{ClientError, ClientRequest, ReplySender};
use crate::conversation::acp_updates::{DENIED_META, text_content};
use crate::event::SessionEvent;
use crate::external_agent::requested_call::{EDIT, RequestedCall};
use crate::gate::{Gate, Permit};
use crate::hooks::{HookFacts, HookRefusal};
use crate::permission::{self, CallFacts, Denial, Grants, Verdict};
use crate::text::visible_line;

/// Tool and rule of a denied request in the audit log.
const TOOL: &str = "harness";
const RULE: &str = "access";

/// A request that the client gets.
pub(super) struct ForwardedRequest {
    pub id: u64,
    asked: Option<ForwardedPermission>,
}

impl ForwardedRequest {
    fn is_denied(&self, limits: &AgentLimits) -> bool {
        let facts = self.asked.as_ref().map(|asked| &asked.facts);
        facts.is_some_and(|facts| matches!(decide(facts, limits), Verdict::Deny(_)))
    }
}

/// A permission request that the client has, and the facts of its call.
struct ForwardedPermission {
    request: Box<RequestPermissionRequest>,
    facts: CallFacts,
}

impl ExternalAgentSession {
    /// Withdraws permission requests that are now denied. Returns their calls.
    pub fn close_denied_requests(&mut self, limits: impl FnOnce() -> AgentLimits) -> Vec<ToolCallId> {
        if self.open_requests.is_empty() && !self.asked_changes.asks() {
            return Vec::new();
        }
        let limits = limits();
        // The broker withdraws its question when the mode applies to it.
        let mut calls: Vec<_> = self.asked_changes.denied_calls(&limits).cloned().collect();
        for (_, open_request) in self.open_requests.extract_if(|_, request| request.is_denied(&limits)) {
            self.host.client.withdraw(open_request.id);
            calls.extend(open_request.asked.map(|asked| asked.request.tool_call.tool_call_id));
        }
        calls.sort_by(|a, b| a.0.cmp(&b.0));
        calls
    }

    /// Lets hooks see the call first that the request is about, if they may refuse it.
    pub(super) fn request(
        &mut self,
        request: RelayedRequest,
        limits: &AgentLimits,
        gate: &mut Gate,
    ) -> Vec<AgentOutput> {
        if let Some(facts) = self.hooked_call(&request.content, limits) {
            hooked_change::run(facts, &self.host.hooks, self.messages.sender(), |refusal| {
                AgentMessage::Relayed(Relayed::HookedRequest(HookedRequest { request, refusal }), None)
            });
            return Vec::new();
        }
        self.hooked_request(HookedRequest { request, refusal: None }, limits, gate)
    }

    /// Returns `None` if no hook may refuse the call of a request.
    fn hooked_call(&self, request: &ClientRequest, limits: &AgentLimits) -> Option<HookFacts> {
        if !self.host.hooks.denies() {
            return None;
        }
        let (call, facts) = match request {
            ClientRequest::RequestPermission(request) => {
                (request.tool_call.tool_call_id.to_string(), self.facts_of(request))
            }
            ClientRequest::WriteTextFile(write) => {
                (TOOL.to_owned(), self.facts(&RequestedCall::write(&write.path)))
            }
            _ => return None,
        };
        let is_denied = matches!(decide(&facts, limits), Verdict::Deny(_));
        hooked_change::facts(call, &facts, &self.host, limits).filter(|_| !is_denied)
    }

    /// Decides a request that hooks have seen, under the ceilings of this moment.
    pub(super) fn hooked_request(
        &mut self,
        hooked: HookedRequest,
        limits: &AgentLimits,
        gate: &mut Gate,
    ) -> Vec<AgentOutput> {
        let HookedRequest { request: RelayedRequest { number, content: request, reply }, refusal } = hooked;
        let refusal = refusal.as_ref();
        let mut outputs = Vec::new();
        let (permission, permit) = match &request {
            ClientRequest::RequestPermission(request) => {
                let facts = self.facts_of(request);
                if let Some((mut outputs, answer)) = Self::answer(request, &facts, limits, refusal) {
                    self.allow_requested(request, &facts, &answer);
                    outputs.push(AgentOutput::Answer(reply, answer));
                    return outputs;
                }
                (Some(ForwardedPermission { request: request.clone(), facts }), None)
            }
            ClientRequest::WriteTextFile(write) => {
                let title = format!("write {}", write.path.display());
                // A write is not asked for again: agents ask before they write.
                let facts = self.facts(&RequestedCall::write(&write.path));
                let denial = match decide_hooked(&facts, limits, refusal) {
                    Verdict::Deny(denial) => Some(with_call(&title, &denial, limits)),
                    Verdict::Allow | Verdict::Ask(_) if self.is_sandboxed() => {
                        Some(no_change(&title, limits))
                    }
                    Verdict::Allow | Verdict::Ask(_) => None,
                };
                if let Some(Denial { rule, message }) = denial {
                    let rule = recorded_rule(rule, refusal);
                    return vec![
                        AgentOutput::Denied { call: ToolCallId::new(TOOL), tool: TOOL, rule },
                        AgentOutput::Notice(format!("{message}\n\n")),
                        AgentOutput::Answer(reply, Err(ClientError::Refused(message))),
                    ];
                }
                // A forwarded write lasts until the client answers. Without an answer, its end is unknown.
                let call = format!("agent_write_{}_{}", number.0, number.1);
                let permit = admit(gate, &call, false);
                outputs.push(permitted(&ToolCallId::new(call), &facts, false));
                (None, Some(permit))
            }
            _ => (None, None),
        };
        let reply = self.until_answered(number, permit, permission.is_some(), reply);
        let request = in_lines(request.of_session(&self.host.session));
        let id = self.host.client.reserve_id();
        self.open_requests.insert(number, ForwardedRequest { id, asked: permission });
        outputs.push(AgentOutput::Forward { id, request, reply });
        outputs
    }

    /// Decides again, because the mode may have changed since the client was asked.
    pub(super) fn answered(
        &mut self,
        number: RequestId,
        answer: Result<Value, ClientError>,
        reply: ReplySender,
        limits: &AgentLimits,
    ) -> Vec<AgentOutput> {
        let Some(ForwardedPermission { request, facts }) =
            self.open_requests.remove(&number).and_then(|open| open.asked)
        else {
            return Vec::new();
        };
        match selected(&request, &answer) {
            Selected::Allowing => {}
            Selected::Rejecting => {
                let call = request.tool_call.tool_call_id.clone();
                let denied = AgentOutput::Denied { call, tool: TOOL, rule: permission::REJECTED.into() };
                return vec![denied, AgentOutput::Answer(reply, answer)];
            }
            Selected::Nothing => return vec![AgentOutput::Answer(reply, answer)],
            // An unknown option may mean anything to the agent.
            Selected::NotOffered => return vec![AgentOutput::Answer(reply, rejection(&request))],
        }
        if matches!(decide(&facts, limits), Verdict::Deny(_))
            && let Some((mut outputs, refused)) = Self::answer(&request, &facts, limits, None)
        {
            outputs.push(AgentOutput::Answer(reply, refused));
            return outputs;
        }
        self.allow_requested(&request, &facts, &answer);
        let mut outputs = Vec::new();
        if facts.effect.is_change() {
            outputs.push(permitted(&request.tool_call.tool_call_id, &facts, true));
        }
        outputs.push(AgentOutput::Answer(reply, answer));
        outputs
    }

    /// Asks no second time when a brokered agent makes the changes that were allowed.
    fn allow_requested(
        &mut self,
        request: &RequestPermissionRequest,
        facts: &CallFacts,
        answer: &Result<Value, ClientError>,
    ) {
        if facts.effect.is_change() && matches!(selected(request, answer), Selected::Allowing) {
            let is_edit = facts.effect == permission::Effect::Edit;
            let paths = facts.mentions.iter().filter(|path| is_edit && path.is_absolute());
            let paths: Vec<PathBuf> = paths.cloned().collect();
            self.asked_changes.consents.allow_call(&request.tool_call.tool_call_id, &paths);
        }
    }

    pub(super) fn close_request(&mut self, number: RequestId) {
        if let Some(open_request) = self.open_requests.remove(&number) {
            self.host.client.withdraw(open_request.id);
        }
    }

    /// Returns a channel for the client's answer. The session handles the answer to a permission request
    /// (`is_asked`); another answer is passed on, and then the request is closed.
    fn until_answered(
        &mut self,
        number: RequestId,
        permit: Option<Permit>,
        is_asked: bool,
        reply: ReplySender,
    ) -> ReplySender {
        let (to, answer) = oneshot::channel();
        let messages = self.messages.sender();
        tokio::spawn(async move {
            let answer = match answer.await {
                Ok(answer) if is_asked => {
                    let answered = Relayed::Answered { number, answer, reply };
                    // The session may be gone.
                    let _ = messages.send(AgentMessage::Relayed(answered, None));
                    return;
                }
                answer => answer,
            };
            match permit {
                Some(permit) if answer.is_err() => permit.release_unconfirmed(),
                done => drop(done),
            }
            let _ = messages.send(AgentMessage::Relayed(Relayed::Closed(number), None));
            let _ = answer.map(|answer| reply.send(answer));
        });
        to
    }

    fn facts_of(&self, request: &RequestPermissionRequest) -> CallFacts {
        let call = &request.tool_call;
        let mut requested = self.calls.get(&call.tool_call_id).cloned().unwrap_or_default();
        requested.apply(&call.fields);
        self.facts(&requested)
    }

    fn facts(&self, requested: &RequestedCall) -> CallFacts {
        let host = &self.host;
        let folders: Vec<&Path> =
            [&host.cwd].into_iter().chain(&host.directories).map(PathBuf::as_path).collect();
        requested.facts(&folders, host.readers)
    }

    /// Returns the answer and the outputs before it, or `None` if the user must decide.
    fn answer(
        request: &RequestPermissionRequest,
        facts: &CallFacts,
        limits: &AgentLimits,
        refusal: Option<&HookRefusal>,
    ) -> Option<(Vec<AgentOutput>, Result<Value, ClientError>)> {
        match decide_hooked(facts, limits, refusal) {
            Verdict::Ask(_) => None,
            // Only the user may choose a lasting option.
            Verdict::Allow => {
                let it = option(request, PermissionOptionKind::AllowOnce)?;
                let call = &request.tool_call.tool_call_id;
                let recorded = facts.effect.is_change().then(|| permitted(call, facts, false));
                Some((recorded.into_iter().collect(), outcome(Some(it))))
            }
            Verdict::Deny(denial) => {
                let call = request.tool_call.tool_call_id.clone();
                let title = request.tool_call.fields.title.as_deref().unwrap_or("untitled call");
                let Denial { rule, message } = with_call(title, &denial, limits);
                let content = vec![text_content(&message)];
                let meta = Meta::from_iter([(DENIED_META.to_owned(), json!(rule))]);
                let fields = ToolCallUpdateFields::new().content(content);
                let update =
                    SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(call.clone(), fields).meta(meta));
                let event = SessionEvent::ForwardedUpdate { update: Box::new(update) };
                let outputs = vec![
                    AgentOutput::Denied { call, tool: TOOL, rule: recorded_rule(rule, refusal) },
                    AgentOutput::Record(event, None),
                ];
                Some((outputs, rejection(request)))
            }
        }
    }
}

/// The agent's own words about a call must not pass for Modegate's.
fn in_lines(mut request: ClientRequest) -> ClientRequest {
    if let ClientRequest::RequestPermission(request) = &mut request {
        if let Some(title) = &mut request.tool_call.fields.title {
            *title = visible_line(title);
        }
        for option in &mut request.options {
            option.name = visible_line(&option.name);
        }
    }
    request
}

fn option(request: &RequestPermissionRequest, kind: PermissionOptionKind) -> Option<&PermissionOptionId> {
    request.options.iter().find(|option| option.kind == kind).map(|option| &option.option_id)
}

/// The answer that selects an option, or cancels.
fn outcome(selected: Option<&PermissionOptionId>) -> Result<Value, ClientError> {
    let outcome = match selected {
        Some(id) => RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(id.clone())),
        None => RequestPermissionOutcome::Cancelled,
    };
    let answer = serde_json::to_value(RequestPermissionResponse::new(outcome));
    answer.map_err(|error| ClientError::Malformed(error.to_string()))
}

fn rejection(request: &RequestPermissionRequest) -> Result<Value, ClientError> {
    outcome(option(request, PermissionOptionKind::RejectOnce))
}

/// Decides as for Modegate's own tools of that kind. The user's remembered answers concern only those.
pub(super) fn decide(facts: &CallFacts, limits: &AgentLimits) -> Verdict {
    let decide = |facts: &CallFacts| permission::decide(&limits.call_ceilings, &Grants::default(), facts);
    let verdict = decide(facts);
    if facts.tool != EDIT || matches!(verdict, Verdict::Deny(_)) {
        return verdict;
    }
    // An edit may write a whole file.
    match decide(&CallFacts { tool: "write_file".into(), ..facts.clone() }) {
        Verdict::Allow => verdict,
        stricter => stricter,
    }
}

/// A hook refuses calls that the ceilings do not deny.
fn decide_hooked(facts: &CallFacts, limits: &AgentLimits, refusal: Option<&HookRefusal>) -> Verdict {
    match (decide(facts, limits), refusal) {
        (Verdict::Allow | Verdict::Ask(_), Some(refusal)) => {
            Verdict::Deny(Denial { rule: permission::HOOK, message: refusal.message.clone() })
        }
        (verdict, _) => verdict,
    }
}

/// The rule in the record, which names the hook.
fn recorded_rule(rule: &'static str, refusal: Option<&HookRefusal>) -> Cow<'static, str> {
    match refusal {
        Some(refusal) if rule == permission::HOOK => refusal.recorded_rule().into(),
        _ => rule.into(),
    }
}

pub(super) fn permitted(call: &ToolCallId, facts: &CallFacts, has_user_consent: bool) -> AgentOutput {
    AgentOutput::Permitted { call: call.clone(), facts: Box::new(facts.clone()), has_user_consent }
}

#[derive(Debug, PartialEq)]
enum Selected {
    Allowing,
    Rejecting,
    NotOffered,
    /// The request was cancelled, or the answer is none.
    Nothing,
}

fn selected(request: &RequestPermissionRequest, answer: &Result<Value, ClientError>) -> Selected {
    let Ok(Ok(RequestPermissionResponse { outcome: RequestPermissionOutcome::Selected(selected), .. })) =
        answer.as_ref().map(|answer| serde_json::from_value(answer.clone()))
    else {
        return Selected::Nothing;
    };
    let allows = [PermissionOptionKind::AllowOnce, PermissionOptionKind::AllowAlways];
    match request.options.iter().find(|it| it.option_id == selected.option_id) {
        Some(option) if allows.contains(&option.kind) => Selected::Allowing,
        Some(_) => Selected::Rejecting,
        None => Selected::NotOffered,
    }
}

/// Adds the refused call to a denial.
fn with_call(title: &str, denial: &Denial, limits: &AgentLimits) -> Denial {
    match denial.rule {
        RULE => no_change(title, limits),
        rule => Denial { rule, message: format!("Refused by Modegate: {title}. {}", denial.message) },
    }
}

fn no_change(title: &str, limits: &AgentLimits) -> Denial {
    let who = if limits.is_mode_unrestricted {
        "another limit of this session".to_owned()
    } else {
        format!("{} mode", limits.mode)
    };
    Denial { rule: RULE, message: format!("Refused by Modegate: {who} allows no changes ({title}).") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_offered_option_that_allows_is_consent() {
        let option = |id: &str, kind: &str| json!({ "optionId": id, "name": id, "kind": kind });
        let request: RequestPermissionRequest = serde_json::from_value(json!({
            "sessionId": "s",
            "toolCall": { "toolCallId": "c" },
            "options": [option("yes", "allow_once"), option("ever", "allow_always"), option("no", "reject_once")],
        }))
        .unwrap();
        let select = |id: &str| Ok(json!({ "outcome": { "outcome": "selected", "optionId": id } }));
        for (answer, expected) in [
            (select("yes"), Selected::Allowing),
            (select("ever"), Selected::Allowing),
            (select("no"), Selected::Rejecting),
            (select("unknown"), Selected::NotOffered),
            (Ok(json!({ "outcome": { "outcome": "cancelled" } })), Selected::Nothing),
            (Ok(json!({})), Selected::Nothing),
            (Err(ClientError::Refused("no".into())), Selected::Nothing),
        ] {
            assert_eq!(selected(&request, &answer), expected, "{answer:?}");
        }
        assert_eq!(rejection(&request).unwrap(), select("no").unwrap());
    }
}
