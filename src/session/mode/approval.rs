//! Decides tool calls, and asks the user where the mode says so.
//!
//! Each call is decided under the current mode when it is about to run, and again after the user's answer.
//! Only an offered option that allows is consent. An error, a cancellation or an unknown option is not.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::permission_options::{self, Answer, PermissionAnswer};
use super::policy::{Policy, text_of_ceilings};
use crate::acp::{RequestPermissionRequest, ToolCallId};
use crate::conversation::acp_updates;
use crate::conversation::content::ToolContent;
use crate::event::ToolCallEvent;
use crate::ids;
use crate::mode::definition::near;
use crate::permission::{
    self, AskReason, CallFacts, CallSource, Ceilings, Denial, Effect, Scope, Target, UNRECORDED, Verdict,
};
use crate::session::event_log::EventLog;
use crate::session::turn::message::Authorization;
use crate::store::entry::{ChainEntry, RecordedConsent, RecordedFacts};
use crate::store::sessions::StoredGrant;
use crate::store::{self, Row};
use crate::tool::client_io::ClientIo;

const MAX_DENIALS: u32 = 3;

type Reply = oneshot::Sender<Authorization>;

#[derive(Default)]
pub(crate) struct Approvals {
    /// Open permission requests, by request id.
    open: HashMap<u64, OpenQuestion>,
    pub(crate) answers: FuturesUnordered<BoxFuture<'static, (u64, Answer)>>,
    denials: DenialCount,
    /// Hash of the ceilings under which the last recorded call was decided.
    recorded_under: Option<String>,
    /// Hash of the ceilings under which the external agent was last permitted to change files.
    permitted_under: Option<String>,
}

struct OpenQuestion {
    call: ToolCallId,
    facts: CallFacts,
    /// Grants that "always" would add, in `mode`.
    scopes: Vec<Scope>,
    mode: String,
    reply: Reply,
}

/// A decision. The actor turns a grant into a permit at the gate.
#[allow(clippy::large_enum_variant, reason = "one at a time, moved once")]
pub(crate) enum Decided {
    Final(Authorization),
    Ask(CallFacts),
    Granted(Grant),
}

pub(crate) struct Grant {
    pub(crate) call: ToolCallId,
    pub(crate) facts: CallFacts,
    pub(crate) has_user_consent: bool,
}

#[derive(Default)]
struct DenialCount {
    last: u64,
    count: u32,
}

impl DenialCount {
    fn add(&mut self, call: &ToolCallEvent, rule: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        (&call.name, call.arguments.to_string(), rule).hash(&mut hasher);
        let hash = hasher.finish();
        self.count = if hash == self.last { self.count + 1 } else { 1 };
        self.last = hash;
        self.count >= MAX_DENIALS
    }
}

impl Approvals {
    pub(crate) fn forget_denials(&mut self) {
        self.denials = DenialCount::default();
    }

    /// Decides a call, or denies it as unknown without `facts`. `fits` is false for invalid arguments.
    pub(crate) fn decide(
        &mut self,
        call: ToolCallId,
        facts: Option<CallFacts>,
        fits: bool,
        policy: &Policy,
        log: &mut EventLog,
    ) -> Decided {
        let Some(facts) = facts else {
            let denial = Denial { rule: "unknown_tool", message: unknown_tool(&call, policy, log) };
            return Decided::Final(self.denied(call, denial, policy, log));
        };
        let facts = policy.refreshed(&facts);
        match policy.decide(&facts) {
            Verdict::Allow if !fits => Decided::Final(Authorization::Invalid),
            Verdict::Allow => Decided::Granted(Grant { call, facts, has_user_consent: false }),
            Verdict::Ask(_) => Decided::Ask(facts),
            Verdict::Deny(denial) => Decided::Final(self.denied(call, denial, policy, log)),
        }
    }

    /// Asks the user, unless a mode change has made the question unnecessary or impossible. Then returns the
    /// decision.
    pub(crate) fn ask(
        &mut self,
        (call, facts, preview): (ToolCallId, CallFacts, &[ToolContent]),
        is_cancelled: bool,
        policy: &Policy,
        log: &mut EventLog,
        reply: Reply,
    ) -> Option<(Decided, Reply)> {
        let facts = policy.refreshed(&facts);
        let scopes = match policy.decide(&facts) {
            Verdict::Ask(scopes) => scopes,
            Verdict::Allow => {
                let grant = Grant { call, facts, has_user_consent: false };
                return Some((Decided::Granted(grant), reply));
            }
            Verdict::Deny(denial) => {
                return Some((Decided::Final(self.denied(call, denial, policy, log)), reply));
            }
        };
        let Some(announced) = log.conversation.open_calls.get(&call).filter(|_| !is_cancelled) else {
            return Some((Decided::Final(Authorization::Cancelled), reply));
        };
        let mode = policy.mode.0.to_string();
        let claim = facts.claim.as_ref().map(|claim| claim.server.as_str());
        let request = RequestPermissionRequest::new(
            log.id.clone(),
            acp_updates::call_for_permission(announced, preview, claim),
            permission_options::options(&scopes, &mode, policy.context.capabilities.forms),
        );
        let (id, answer) = log.client.request_permission(request);
        self.answers.push(answer.map(move |answer| (id, answer)).boxed());
        self.open.insert(id, OpenQuestion { call, facts, scopes, mode, reply });
        None
    }

    /// Handles an answer and decides again, under the current mode. Returns `None` for other questions, and if
    /// the user is asked for the reason of a rejection.
    pub(crate) fn answered(
        &mut self,
        number: u64,
        answer: Answer,
        cancel: Option<CancellationToken>,
        policy: &mut Policy,
        log: &mut EventLog,
        client_io: &ClientIo,
    ) -> Option<(Decided, Reply)> {
        let OpenQuestion { call, facts, scopes, mode, reply } = self.open.remove(&number)?;
        let decided = match permission_options::read_answer(answer) {
            PermissionAnswer::Always => {
                remember(&mode, true, scopes, policy, log);
                self.decide_again(call, &facts, policy, log)
            }
            PermissionAnswer::Once => self.decide_again(call, &facts, policy, log),
            PermissionAnswer::Never => {
                remember(&mode, false, scopes, policy, log);
                let message = "The user rejected this call and all later calls like it.".into();
                Decided::Final(Authorization::Rejected { message, too_often: false })
            }
            PermissionAnswer::Unreachable(why) => {
                let message = not_asked(why, &facts);
                let denial = Denial { rule: permission::NO_USER, message };
                Decided::Final(self.denied(call, denial, policy, log))
            }
            PermissionAnswer::No(message) => {
                let too_often = self.rejected(&call, log);
                Decided::Final(Authorization::Rejected { message, too_often })
            }
            PermissionAnswer::AskReason => {
                let Some(cancel) = cancel else {
                    return Some((Decided::Final(Authorization::Cancelled), reply));
                };
                self.ask_why(&call, cancel, log, client_io, reply);
                return None;
            }
        };
        Some((decided, reply))
    }

    /// Decides again after the user's consent: only a denial still prevents the call.
    fn decide_again(
        &mut self,
        call: ToolCallId,
        facts: &CallFacts,
        policy: &Policy,
        log: &mut EventLog,
    ) -> Decided {
        let facts = policy.refreshed(facts);
        match policy.decide(&facts) {
            Verdict::Allow | Verdict::Ask(_) => {
                Decided::Granted(Grant { call, facts, has_user_consent: true })
            }
            Verdict::Deny(denial) => Decided::Final(self.denied(call, denial, policy, log)),
        }
    }

    /// Returns true if the same call was rejected too often.
    fn rejected(&mut self, call: &ToolCallId, log: &EventLog) -> bool {
        let announced = log.conversation.open_calls.get(call);
        announced.is_some_and(|call| self.denials.add(call, "rejected"))
    }

    /// Asks the user for the reason of a rejection. The call stays rejected whatever the answer.
    fn ask_why(
        &mut self,
        call: &ToolCallId,
        cancel: CancellationToken,
        log: &EventLog,
        client_io: &ClientIo,
        mut reply: Reply,
    ) {
        let title = log.conversation.title_of(call);
        let too_often = self.rejected(call, log);
        let client_io = client_io.for_call(call);
        tokio::spawn(async move {
            let authorization = tokio::select! {
                biased;
                () = cancel.cancelled() => Authorization::Cancelled,
                () = reply.closed() => return,
                message = permission_options::reason(&client_io, &title) => Authorization::Rejected { message, too_often },
            };
            let _ = reply.send(authorization);
        });
    }

    pub(crate) fn ask_reason(&self, call: &ToolCallId, policy: &Policy) -> Option<AskReason> {
        let question = self.open.values().find(|question| question.call == *call)?;
        Some(permission::ask_reason(&policy.call_ceilings(), &question.facts))
    }

    /// Withdraws obsolete questions. Returns their calls.
    pub(crate) fn close(
        &mut self,
        is_obsolete: impl Fn(&CallFacts) -> bool,
        policy: &Policy,
        log: &mut EventLog,
    ) -> Vec<ToolCallId> {
        let mut obsolete: Vec<u64> =
            self.open.iter().filter(|(_, it)| is_obsolete(&it.facts)).map(|(number, _)| *number).collect();
        obsolete.sort_unstable();
        let mut closed = Vec::new();
        for number in obsolete {
            let Some(question) = self.open.remove(&number) else { continue };
            log.client.withdraw(number);
            let authorization = match policy.decide(&question.facts) {
                Verdict::Deny(denial) => self.denied(question.call.clone(), denial, policy, log),
                Verdict::Allow | Verdict::Ask(_) => Authorization::Cancelled,
            };
            closed.push(question.call);
            // The turn may no longer wait.
            let _ = question.reply.send(authorization);
        }
        closed
    }

    /// Records a call before it starts, with the ceilings under which it was decided.
    pub(crate) async fn record(&mut self, grant: &Grant, policy: &Policy, log: &mut EventLog) {
        let Grant { call, facts, has_user_consent } = grant;
        let consent = if *has_user_consent { RecordedConsent::User } else { policy.without_asking(facts) };
        // The event of the call precedes its chain entry.
        log.post_unsaved();
        let hash = self.record_ceilings(&policy.call_ceilings(), log);
        // The hash lets an audit compare the chain with the events.
        let arguments = |call: &ToolCallEvent| ids::hash(&call.arguments.to_string());
        let entry = ChainEntry::Call {
            turn: log.turns,
            call: call.to_string(),
            facts: RecordedFacts::new(facts, policy.context.source.is_counted()),
            arguments: log.conversation.open_calls.get(call).map(arguments).unwrap_or_default(),
            mode: policy.mode.to_string(),
            under: hash,
            consent,
            at: log.now_ms(),
        };
        log.chain(&entry);
        log.save().await;
    }

    /// Refuses a call that could not be recorded, where the user's setting says so.
    pub(crate) fn refuse_unrecorded(
        &mut self,
        call: &ToolCallId,
        policy: &Policy,
        log: &mut EventLog,
    ) -> Option<Authorization> {
        let reason = log.failure().filter(|_| policy.context.refuses_unrecorded)?.to_owned();
        let message = format!(
            "The call was not made, because it could not be recorded: {reason}. Only the user can correct this."
        );
        Some(self.denied(call.clone(), Denial { rule: UNRECORDED, message }, policy, log))
    }

    /// `is_decided` is true if each change of the agent is decided for its path.
    pub(crate) async fn record_process(
        &mut self,
        sandboxed: bool,
        is_decided: bool,
        policy: &Policy,
        log: &mut EventLog,
    ) {
        let under = Some(self.record_ceilings(&policy.ceilings(), log));
        if !sandboxed {
            self.permitted_under.clone_from(&under);
        }
        let (turn, at, agent) = (log.turns, log.now_ms(), policy.agent.id.clone());
        log.chain(&ChainEntry::ExternalAgent { turn, agent, sandboxed, decided: is_decided, under, at });
        log.save().await;
    }

    pub(crate) async fn record_agent_changes(
        &mut self,
        targets: Vec<Target>,
        policy: &Policy,
        log: &mut EventLog,
    ) {
        let Some(under) = &self.permitted_under else { return };
        let facts = CallFacts {
            source: CallSource::Broker,
            targets,
            ..CallFacts::of_tool("edit_file", Effect::Edit)
        };
        log.chain(&ChainEntry::Changes {
            turn: log.turns,
            agent: policy.agent.id.clone(),
            facts: RecordedFacts::new(&facts, policy.context.source.is_counted()),
            under: under.clone(),
            at: log.now_ms(),
        });
        log.save().await;
    }

    /// Stores the ceilings of a decision. Returns their hash.
    fn record_ceilings(&mut self, ceilings: &Ceilings, log: &EventLog) -> String {
        let (hash, text) = text_of_ceilings(ceilings);
        if self.recorded_under.as_deref() != Some(&hash) {
            log.store.post(Row::Text { hash: hash.clone(), text });
            self.recorded_under = Some(hash.clone());
        }
        hash
    }

    fn denied(
        &mut self,
        call: ToolCallId,
        denial: Denial,
        policy: &Policy,
        log: &mut EventLog,
    ) -> Authorization {
        let announced = log.conversation.open_calls.get(&call);
        let tool = announced.map(|call| call.name.clone()).unwrap_or_default();
        let too_often = announced.is_some_and(|call| self.denials.add(call, denial.rule));
        let Denial { rule, message } = denial;
        record_denial(call, tool, rule, policy, log);
        Authorization::Denied { rule, message, too_often }
    }
}

fn unknown_tool(call: &ToolCallId, policy: &Policy, log: &EventLog) -> String {
    let tools = &policy.context.tools;
    let name = log.conversation.open_calls.get(call).map(|call| call.name.as_str()).unwrap_or_default();
    if let Some(message) = tools.servers().why_missing(name) {
        return message;
    }
    let (ceilings, all) = (policy.ceilings(), tools.all());
    let is_available = |facts: &CallFacts| permission::is_available(&ceilings, &policy.grants, facts);
    let names: Vec<&str> =
        all.iter().filter(|tool| is_available(&tool.spec().facts())).map(|tool| &*tool.spec().name).collect();
    match near(&name.to_lowercase(), &names) {
        Some(known) => format!("There is no such tool. Did you mean {known}?"),
        None => "There is no such tool. Use only the tools that this session offers.".into(),
    }
}

fn not_asked(why: String, facts: &CallFacts) -> String {
    let Some(claim) = &facts.claim else { return why };
    format!(
        "{why} Only the MCP server {} claims that {} is read-only. To trust the claim, the user can set \
         `trust_hints: true` for the server in the user's modes.yaml.",
        claim.server, facts.tool
    )
}

fn remember(mode: &str, allows: bool, scopes: Vec<Scope>, policy: &mut Policy, log: &mut EventLog) {
    let (turn, at) = (log.turns, log.now_ms());
    for scope in scopes {
        let entry = ChainEntry::Answer { turn, mode: mode.to_owned(), allows, scope: (&scope).into(), at };
        let link = log.link(&entry);
        let grant = StoredGrant { mode: mode.to_owned(), allows, scope: scope.clone() };
        log.store.post(Row::Grant { session: log.id.clone(), turn, grant, link, at });
        if allows {
            policy.grants.allow(mode, scope);
        } else {
            policy.grants.reject(mode, scope);
        }
    }
}

pub(crate) fn record_denial(
    call: ToolCallId,
    tool: String,
    rule: &'static str,
    policy: &Policy,
    log: &mut EventLog,
) {
    let mode = policy.mode.clone();
    tracing::info!(session = %log.id, %mode, tool, rule, "denied a call");
    let (turn, at) = (log.turns, log.now_ms());
    let link = log.link(&ChainEntry::Denial {
        turn,
        call: call.to_string(),
        tool: tool.clone(),
        mode: mode.to_string(),
        rule: rule.to_owned(),
        at,
    });
    let session = log.id.clone();
    log.store.post(Row::Denial(store::DenialRow {
        session,
        turn,
        call,
        tool,
        mode,
        rule: rule.into(),
        link,
        at,
    }));
}
