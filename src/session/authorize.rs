//! Authorization of tool calls.
//!
//! Each call is decided under the current mode when it is about to run, and again after the user's answer.
//! Only an offered option that allows is consent. An error, a cancellation or an unknown option is not.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::actor::Actor;
use super::event_log::EventLog;
use super::permission_options::{self, PermissionAnswer};
use super::policy::Policy;
use super::turn_message::Authorization;
use crate::acp::{RequestPermissionRequest, RequestPermissionResponse, ToolCallId};
use crate::client::ClientError;
use crate::conversation::acp_updates;
use crate::event::{SessionEvent, ToolCallUpdateEvent};
use crate::permission::{self, AskReason, CallFacts, Claim, Denial, Effect, FilesBelow, Scope, Verdict};
use crate::store::entry::{Consent, Entry, Facts};
use crate::store::sessions::StoredGrant;
use crate::store::{self, Row};
use crate::tool::ToolContent;

const MAX_DENIALS: u32 = 3;

pub(super) type Answer = Result<RequestPermissionResponse, ClientError>;

#[derive(Default)]
pub(super) struct Approvals {
    /// Open permission requests, by request id.
    pub(super) open: HashMap<u64, OpenQuestion>,
    pub(super) answers: FuturesUnordered<BoxFuture<'static, (u64, Answer)>>,
    pub(super) denials: DenialCount,
    /// Hash of the ceilings under which the last recorded call was decided.
    recorded_under: Option<String>,
}

pub(super) struct OpenQuestion {
    call: ToolCallId,
    facts: CallFacts,
    /// False for a request that an MCP server makes during a call.
    runs: bool,
    /// Grants that "always" would add, in `mode`.
    scopes: Vec<Scope>,
    mode: String,
    reply: oneshot::Sender<Authorization>,
}

#[derive(Clone, Copy)]
enum UserConsent {
    Yes,
    No,
}

#[derive(Default)]
pub(super) struct DenialCount {
    last: u64,
    count: u32,
}

impl DenialCount {
    fn add(&mut self, call: &crate::event::ToolCallEvent, rule: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        (&call.name, call.arguments.to_string(), rule).hash(&mut hasher);
        let hash = hasher.finish();
        self.count = if hash == self.last { self.count + 1 } else { 1 };
        self.last = hash;
        self.count >= MAX_DENIALS
    }
}

impl Actor {
    /// Decides a call, or denies it as unknown without `facts`. `fits` is false for invalid arguments and for
    /// requests of MCP servers: they never count as started.
    pub(super) async fn authorize(
        &mut self,
        call: ToolCallId,
        facts: Option<CallFacts>,
        fits: bool,
    ) -> Authorization {
        let Some(facts) = facts else {
            let name = self
                .log
                .conversation
                .open_calls
                .get(&call)
                .map(|call| call.name.as_str())
                .unwrap_or_default();
            if let Some(message) = self.context.tools.servers().why_missing(name) {
                return self.denied(call, Denial { rule: "unknown_tool", message });
            }
            let ceilings = self.policy.ceilings();
            let grants = &self.policy.grants;
            let tools = self.context.tools.all();
            let names: Vec<&str> = tools
                .iter()
                .filter(|tool| permission::is_available(&ceilings, grants, &tool.spec().facts()))
                .map(|tool| &*tool.spec().name)
                .collect();
            let message = format!("There is no such tool. Available: {}.", names.join(", "));
            return self.denied(call, Denial { rule: "unknown_tool", message });
        };
        let facts = self.policy.now(&facts);
        match self.policy.decide(&facts) {
            Verdict::Allow => self.granted(call, facts, fits, UserConsent::No).await,
            Verdict::Ask(_) => Authorization::Ask,
            Verdict::Deny(denial) if !fits && !facts.is_servers() && facts.tool.starts_with("mcp_") => {
                self.denied_server_request(call, facts.tool, denial)
            }
            Verdict::Deny(denial) => self.denied(call, denial),
        }
    }

    /// Asks the user, unless a mode change has made the question unnecessary or impossible.
    pub(super) async fn ask(
        &mut self,
        call: ToolCallId,
        facts: CallFacts,
        preview: &[ToolContent],
        runs: bool,
        reply: oneshot::Sender<Authorization>,
    ) {
        let facts = self.policy.now(&facts);
        let scopes = match self.policy.decide(&facts) {
            Verdict::Ask(scopes) => scopes,
            Verdict::Allow => {
                return drop(reply.send(self.granted(call, facts, runs, UserConsent::No).await));
            }
            Verdict::Deny(denial) => return drop(reply.send(self.denied(call, denial))),
        };
        let cancelled = self.turns.running.as_ref().is_none_or(|turn| turn.cancel.is_cancelled());
        let Some(announced) = self.log.conversation.open_calls.get(&call).filter(|_| !cancelled) else {
            return drop(reply.send(Authorization::Cancelled));
        };
        let mode = self.policy.mode.0.to_string();
        let claim = facts.claim.as_ref().map(|claim| claim.server.as_str());
        let request = RequestPermissionRequest::new(
            self.log.id.clone(),
            acp_updates::call_for_permission(announced, preview, claim),
            permission_options::options(&scopes, &mode, self.client_io.capabilities().forms),
        );
        let (id, answer) = self.log.client.request_permission(request);
        self.approvals.answers.push(answer.map(move |answer| (id, answer)).boxed());
        self.approvals.open.insert(id, OpenQuestion { call, facts, runs, scopes, mode, reply });
    }

    /// Handles an answer and decides again, under the current mode.
    pub(super) async fn answered(&mut self, number: u64, answer: Answer) {
        let Some(question) = self.approvals.open.remove(&number) else { return };
        let OpenQuestion { call, facts, runs, scopes, mode, reply } = question;
        let authorization = match permission_options::read_answer(answer) {
            PermissionAnswer::Always => {
                self.remember(&mode, true, scopes);
                self.decide_again(call, facts, runs).await
            }
            PermissionAnswer::Once => self.decide_again(call, facts, runs).await,
            PermissionAnswer::Never => {
                self.remember(&mode, false, scopes);
                Authorization::Rejected {
                    message: "The user rejected this call and all later calls like it.".into(),
                    too_often: false,
                }
            }
            PermissionAnswer::Unreachable(why) if facts.claim.is_some() => {
                let server = facts.claim.as_ref().map(|claim| claim.server.clone()).unwrap_or_default();
                let message = format!(
                    "{why} Only the MCP server {server} claims that {} is read-only. To trust the claim, the user can \
                     set `trust_hints: true` for the server in the user's modes.yaml.",
                    facts.tool
                );
                self.not_asked(call, facts, runs, message)
            }
            PermissionAnswer::Unreachable(why) => self.not_asked(call, facts, runs, why),
            PermissionAnswer::No(why) => self.rejected(&call, why),
            PermissionAnswer::AskReason => return self.ask_why(&call, reply),
        };
        let _ = reply.send(authorization);
    }

    /// Denies a call that needs permission, because the user could not be asked.
    fn not_asked(
        &mut self,
        call: ToolCallId,
        facts: CallFacts,
        runs: bool,
        message: String,
    ) -> Authorization {
        let denial = Denial { rule: permission::NO_USER, message };
        if runs { self.denied(call, denial) } else { self.denied_server_request(call, facts.tool, denial) }
    }

    /// Returns why an open question is asked, or `None` if the call has none.
    pub(super) fn ask_reason(&self, call: &ToolCallId) -> Option<AskReason> {
        let question = self.approvals.open.values().find(|question| question.call == *call)?;
        Some(permission::ask_reason(&self.policy.call_ceilings(), &question.facts))
    }

    fn rejected(&mut self, call: &ToolCallId, message: String) -> Authorization {
        let announced = self.log.conversation.open_calls.get(call);
        let too_often = announced.is_some_and(|call| self.approvals.denials.add(call, "rejected"));
        Authorization::Rejected { message, too_often }
    }

    /// Asks the user for the reason of a rejection. The call stays rejected whatever the answer.
    fn ask_why(&mut self, call: &ToolCallId, mut reply: oneshot::Sender<Authorization>) {
        let Some(cancel) = self.turns.running.as_ref().map(|turn| turn.cancel.clone()) else {
            return drop(reply.send(Authorization::Cancelled));
        };
        let title =
            self.log.conversation.open_calls.get(call).map(|call| call.title.clone()).unwrap_or_default();
        let Authorization::Rejected { too_often, .. } = self.rejected(call, String::new()) else { return };
        let client_io = self.client_io.for_call(call);
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

    pub(super) fn close_server_requests(&mut self, call: &ToolCallId) {
        let void: Vec<u64> = self
            .approvals
            .open
            .iter()
            .filter(|(_, it)| !it.runs && it.call == *call)
            .map(|(id, _)| *id)
            .collect();
        for number in void {
            self.log.client.withdraw(number);
            // Dropping the sender cancels the request.
            self.approvals.open.remove(&number);
        }
    }

    pub(super) fn close_questions(&mut self, is_obsolete: impl Fn(&CallFacts) -> bool) -> Vec<ToolCallId> {
        let mut void: Vec<u64> =
            self.approvals.open.iter().filter(|(_, q)| is_obsolete(&q.facts)).map(|(n, _)| *n).collect();
        void.sort_unstable();
        let mut closed = Vec::new();
        for number in void {
            let Some(question) = self.approvals.open.remove(&number) else { continue };
            self.log.client.withdraw(number);
            let authorization = match self.policy.decide(&question.facts) {
                Verdict::Deny(denial) => self.denied(question.call.clone(), denial),
                Verdict::Allow | Verdict::Ask(_) => Authorization::Cancelled,
            };
            closed.push(question.call);
            let _ = question.reply.send(authorization);
        }
        closed
    }

    /// Decides again after the user's consent: only a denial still prevents the call.
    async fn decide_again(&mut self, call: ToolCallId, facts: CallFacts, runs: bool) -> Authorization {
        let facts = self.policy.now(&facts);
        match self.policy.decide(&facts) {
            Verdict::Allow | Verdict::Ask(_) => self.granted(call, facts, runs, UserConsent::Yes).await,
            Verdict::Deny(denial) => self.denied(call, denial),
        }
    }

    fn remember(&mut self, mode: &str, allows: bool, scopes: Vec<Scope>) {
        let (turn, at) = (self.log.turns, self.log.now_ms());
        for scope in scopes {
            let mode = mode.to_owned();
            let entry = Entry::Answer { turn, mode: mode.clone(), allows, scope: (&scope).into(), at };
            let link = self.log.link(&entry);
            let grant = StoredGrant { mode: mode.clone(), allows, scope: scope.clone() };
            let session = self.log.id.clone();
            self.log.store.post(Row::Grant { session, turn, grant, link, at });
            if allows {
                self.policy.grants.allow(&mode, scope);
            } else {
                self.policy.grants.reject(&mode, scope);
            }
        }
    }

    async fn record_permission(&mut self, call: &ToolCallId, facts: &CallFacts, user_consent: UserConsent) {
        let consent = match user_consent {
            UserConsent::Yes => Consent::User,
            UserConsent::No => self.policy.without_asking(facts),
        };
        // The event of the call precedes its chain entry.
        self.log.post_unsaved();
        let (hash, text) = self.policy.text_of_call();
        if self.approvals.recorded_under.as_deref() != Some(&hash) {
            self.log.store.post(Row::Text { hash: hash.clone(), text });
            self.approvals.recorded_under = Some(hash.clone());
        }
        let entry = Entry::Call {
            turn: self.log.turns,
            call: call.to_string(),
            facts: Facts::new(facts, self.context.source.is_counted()),
            arguments: self.log.conversation.open_calls.get(call).map(arguments_hash).unwrap_or_default(),
            mode: self.policy.mode.to_string(),
            under: hash,
            consent,
            at: self.log.now_ms(),
        };
        self.log.chain(&entry);
        self.log.save().await;
    }

    async fn granted(
        &mut self,
        call: ToolCallId,
        facts: CallFacts,
        runs: bool,
        consent: UserConsent,
    ) -> Authorization {
        let Some(turn) = &self.turns.running else { return Authorization::Cancelled };
        if turn.cancel.is_cancelled() {
            return Authorization::Cancelled;
        }
        let cancel = turn.cancel.clone();
        let last_seen =
            facts.targets.iter().map(|target| self.turns.seen.get(&target.path).copied()).collect();
        if runs {
            self.approvals.denials = DenialCount::default();
        }
        let (jobs, agents) = (self.jobs.clone(), self.subagents.background.clone());
        let snapshot = if runs { self.snapshot_handle(facts.shell).await } else { None };
        let runs = runs && !facts.is_exit;
        // A server's hint is only a claim, so calls of its tools are always recorded.
        if runs && (facts.effect.is_change() || facts.is_servers()) {
            self.record_permission(&call, &facts, consent).await;
        }
        // The facts keep the claim only if no answer of the user allowed the call. Such a call ends under a
        // mode that denies changes.
        let claim = facts.claim.clone();
        let has_no_consent = |_: &Claim| {
            matches!(consent, UserConsent::No) && matches!(self.policy.without_asking(&facts), Consent::Mode)
        };
        let unconsented = claim.clone().filter(has_no_consent);
        let facts = CallFacts { claim: unconsented, ..facts };
        let reads = facts.effect == Effect::Read && !facts.targets.is_empty();
        let files = reads
            .then(|| FilesBelow::new(self.policy.call_ceilings(), self.policy.grants.clone(), facts.clone()));
        let mut permit = self.gate.admit(call.clone(), facts, self.log.turns, &cancel);
        (permit.files, permit.claim) = (files, claim);
        if runs {
            // Recorded together with the permit: no mode change comes between the two.
            self.log.record(SessionEvent::ToolCallUpdate(ToolCallUpdateEvent::in_progress(call)), None).await;
        }
        Authorization::Granted { permit, last_seen, jobs, agents, snapshot }
    }

    fn denied(&mut self, call: ToolCallId, denial: Denial) -> Authorization {
        let announced = self.log.conversation.open_calls.get(&call);
        let tool = announced.map(|call| call.name.clone()).unwrap_or_default();
        let too_often = announced.is_some_and(|call| self.approvals.denials.add(call, denial.rule));
        self.record_denial(call, tool, denial, too_often)
    }

    /// Denies a server request, without counting against its call.
    fn denied_server_request(&mut self, call: ToolCallId, setting: String, denial: Denial) -> Authorization {
        self.record_denial(call, setting, denial, false)
    }

    fn record_denial(
        &mut self,
        call: ToolCallId,
        tool: String,
        denial: Denial,
        too_often: bool,
    ) -> Authorization {
        let Denial { rule, message } = denial;
        record_denial(call, tool, rule, &self.policy, &mut self.log);
        Authorization::Denied { rule, message, too_often }
    }
}

pub(super) fn record_denial(
    call: ToolCallId,
    tool: String,
    rule: &'static str,
    policy: &Policy,
    log: &mut EventLog,
) {
    let mode = policy.mode.clone();
    tracing::info!(session = %log.id, %mode, tool, rule, "denied a call");
    let (turn, at) = (log.turns, log.now_ms());
    let link = log.link(&Entry::Denial {
        turn,
        call: call.to_string(),
        tool: tool.clone(),
        mode: mode.to_string(),
        rule: rule.to_owned(),
        at,
    });
    let session = log.id.clone();
    log.store.post(Row::Denial(store::Denial {
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

/// Hash for comparing the chain with the events.
fn arguments_hash(call: &crate::event::ToolCallEvent) -> String {
    crate::ids::hash(&call.arguments.to_string())
}
