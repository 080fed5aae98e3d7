//! Decides tool calls, asks the user where the mode says so, and records the decisions.
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

use super::permission_options::{self, PermissionAnswer, PermissionReply};
use super::policy::{Policy, text_of_ceilings};
use crate::acp::ToolCallId;
use crate::conversation::acp_updates;
use crate::conversation::question_text::CallPreview;
use crate::event::ToolCallEvent;
use crate::gate::Permit;
use crate::hooks::HookFacts;
use crate::ids;
use crate::permission::{
    self, AskReason, CallFacts, CallSource, Ceilings, Denial, Effect, FilesBelow, Scope, Target, UNRECORDED,
    Verdict,
};
use crate::session::event_log::EventLog;
use crate::store::entry::{ChainEntry, RecordedConsent, RecordedFacts};
use crate::store::sessions::StoredGrant;
use crate::store::{self, Row};
use crate::tool::client_io::ClientIo;
use crate::tool::foreign_call;
use crate::tool::{LastSeen, SessionState};

const MAX_DENIALS: u32 = 3;

type AuthorizationReply = oneshot::Sender<Authorization>;

/// The limits of a session together with its record: a call is decided under the one and recorded in the other.
pub(crate) struct Decider {
    pub(crate) policy: Policy,
    pub(crate) log: EventLog,
    /// Open permission requests, by request id.
    open: HashMap<u64, OpenQuestion>,
    pub(crate) answers: FuturesUnordered<BoxFuture<'static, (u64, PermissionReply)>>,
    denials: DenialCount,
    /// For the model: the commands that the user allowed for good with the last answer.
    pub(crate) allowed_note: Option<String>,
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
    reply: AuthorizationReply,
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

#[allow(clippy::large_enum_variant, reason = "one at a time, moved once")]
pub(crate) enum Authorization {
    Granted {
        permit: Permit,
        state: SessionState,
    },
    /// The user must decide first. `last_seen` is the content of the targets that the model last saw, and `files` are
    /// those that it may learn of.
    Ask {
        last_seen: Vec<Option<LastSeen>>,
        files: Box<FilesBelow>,
    },
    /// Not denied, and hooks that may refuse the call have not run.
    Hooks(Box<HookFacts>),
    /// Not denied, but the arguments are invalid.
    Invalid,
    /// Rejected by the user, or the user was unreachable.
    Rejected {
        message: String,
        too_often: bool,
    },
    /// Denied by the mode. As in `Rejected`, `too_often` ends the turn.
    Denied {
        rule: &'static str,
        message: String,
        too_often: bool,
    },
    /// The turn is being cancelled.
    Cancelled,
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

impl Decider {
    pub(crate) fn new(policy: Policy, log: EventLog) -> Self {
        Self {
            policy,
            log,
            open: HashMap::new(),
            answers: FuturesUnordered::new(),
            denials: DenialCount::default(),
            allowed_note: None,
            recorded_under: None,
            permitted_under: None,
        }
    }

    pub(crate) fn forget_denials(&mut self) {
        self.denials = DenialCount::default();
    }

    /// Decides a call, or denies it as unknown without `facts`. `fits` is false for invalid arguments.
    pub(crate) fn decide(&mut self, call: ToolCallId, facts: Option<CallFacts>, fits: bool) -> Decided {
        let Some(facts) = facts else {
            let denial = Denial { rule: "unknown_tool", message: self.unknown_tool(&call) };
            return Decided::Final(self.denied(call, denial));
        };
        let facts = self.policy.refreshed(&facts);
        self.log.traced(|trace| trace.note_server(&call, facts.server.as_deref()));
        match self.policy.decide(&facts) {
            Verdict::Allow if !fits => Decided::Final(Authorization::Invalid),
            Verdict::Allow => Decided::Granted(Grant { call, facts, has_user_consent: false }),
            Verdict::Ask(_) => Decided::Ask(facts),
            Verdict::Deny(denial) => Decided::Final(self.denied(call, denial)),
        }
    }

    /// Asks the user, unless a mode change has made the question unnecessary or impossible. Then returns the
    /// decision.
    pub(crate) fn ask(
        &mut self,
        call: ToolCallId,
        facts: &CallFacts,
        preview: &CallPreview,
        is_cancelled: bool,
        reply: AuthorizationReply,
    ) -> Option<(Decided, AuthorizationReply)> {
        let facts = self.policy.refreshed(facts);
        let scopes = match self.policy.decide(&facts) {
            Verdict::Ask(scopes) => scopes,
            Verdict::Allow => {
                let grant = Grant { call, facts, has_user_consent: false };
                return Some((Decided::Granted(grant), reply));
            }
            Verdict::Deny(denial) => {
                return Some((Decided::Final(self.denied(call, denial)), reply));
            }
        };
        let Some(announced) = self.log.open_call(&call).filter(|_| !is_cancelled) else {
            return Some((Decided::Final(Authorization::Cancelled), reply));
        };
        let mode = self.policy.mode.0.to_string();
        let claim = facts.claim.as_ref().map(|claim| claim.server.as_str());
        let display = self.policy.context.updates.display;
        let accepted = self.policy.context.updates;
        let mut call_update = acp_updates::call_for_permission(announced, &preview.content, claim, accepted);
        let claimed = claim.map(|server| (server, announced.name.as_str()));
        let title = call_update.fields.title.clone().unwrap_or_default();
        let message = preview.unseen(&title, display, claimed);
        if let Some(width) = display.question_width {
            let title = preview.title_away_from_chat(&title, width, message.is_some());
            call_update.fields.title = Some(title);
        }
        if let Some(text) = message {
            self.log.show_question(&call, &text);
        }
        let options = permission_options::options(&scopes, &mode, self.policy.context.capabilities.forms);
        let (id, answer) = self.log.request_permission(call_update, options);
        self.answers.push(answer.map(move |answer| (id, answer)).boxed());
        self.log.traced(|trace| trace.asked(id, &call, &mode));
        self.open.insert(id, OpenQuestion { call, facts, scopes, mode, reply });
        None
    }

    /// Handles an answer and decides again, under the current mode. Returns `None` for other questions, and if
    /// the user is asked for the reason of a rejection.
    pub(crate) fn answered(
        &mut self,
        number: u64,
        answer: PermissionReply,
        cancel: Option<CancellationToken>,
        client_io: &ClientIo,
    ) -> Option<(Decided, AuthorizationReply)> {
        let OpenQuestion { call, facts, scopes, mode, reply } = self.open.remove(&number)?;
        let answer = permission_options::read_answer(answer);
        self.log.traced(|trace| trace.answered(number, answer.outcome()));
        let decided = match answer {
            PermissionAnswer::Always => {
                self.allowed_note = permission_options::allowed_note(&scopes, &mode);
                self.remember(&mode, true, scopes);
                self.decide_again(call, &facts)
            }
            PermissionAnswer::Once => self.decide_again(call, &facts),
            PermissionAnswer::Never => {
                self.remember(&mode, false, scopes);
                let message = "The user rejected this call and all later calls like it.".into();
                Decided::Final(Authorization::Rejected { message, too_often: false })
            }
            PermissionAnswer::Unreachable(why) => {
                let denial = Denial { rule: permission::NO_USER, message: not_asked(why, &facts) };
                Decided::Final(self.denied(call, denial))
            }
            PermissionAnswer::No(message) => {
                Decided::Final(Authorization::Rejected { message, too_often: self.rejected(&call) })
            }
            PermissionAnswer::AskReason => {
                let Some(cancel) = cancel else {
                    return Some((Decided::Final(Authorization::Cancelled), reply));
                };
                self.ask_why(&call, cancel, client_io, reply);
                return None;
            }
        };
        Some((decided, reply))
    }

    /// Decides again after the user's consent: only a denial still prevents the call.
    fn decide_again(&mut self, call: ToolCallId, facts: &CallFacts) -> Decided {
        let facts = self.policy.refreshed(facts);
        match self.policy.decide(&facts) {
            Verdict::Allow | Verdict::Ask(_) => {
                Decided::Granted(Grant { call, facts, has_user_consent: true })
            }
            Verdict::Deny(denial) => Decided::Final(self.denied(call, denial)),
        }
    }

    /// Returns true if the same call was rejected too often.
    fn rejected(&mut self, call: &ToolCallId) -> bool {
        let announced = self.log.open_call(call).filter(|call| call.check.is_none());
        announced.is_some_and(|call| self.denials.add(call, "rejected"))
    }

    /// Asks the user for the reason of a rejection. The call stays rejected whatever the answer.
    fn ask_why(
        &mut self,
        call: &ToolCallId,
        cancel: CancellationToken,
        client_io: &ClientIo,
        mut reply: AuthorizationReply,
    ) {
        let title = self.log.conversation().title_of(call);
        let too_often = self.rejected(call);
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

    pub(crate) fn ask_reason(&self, call: &ToolCallId) -> Option<AskReason> {
        let question = self.open.values().find(|question| question.call == *call)?;
        Some(permission::ask_reason(&self.policy.call_ceilings(), &question.facts))
    }

    /// Withdraws obsolete questions. Returns their calls.
    pub(crate) fn close(&mut self, is_obsolete: impl Fn(&CallFacts) -> bool) -> Vec<ToolCallId> {
        let mut obsolete: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, open)| is_obsolete(&open.facts))
            .map(|(number, _)| *number)
            .collect();
        obsolete.sort_unstable();
        let mut closed = Vec::new();
        for number in obsolete {
            let Some(question) = self.open.remove(&number) else { continue };
            self.log.client().withdraw(number);
            self.log.traced(|trace| trace.withdrawn(number));
            let authorization = match self.policy.decide(&question.facts) {
                Verdict::Deny(denial) => self.denied(question.call.clone(), denial),
                Verdict::Allow | Verdict::Ask(_) => Authorization::Cancelled,
            };
            closed.push(question.call);
            // The turn may no longer wait.
            let _ = question.reply.send(authorization);
        }
        closed
    }

    /// Records a call before it starts, with the ceilings under which it was decided.
    pub(crate) async fn record(&mut self, grant: &Grant) {
        let Grant { call, facts, has_user_consent } = grant;
        let consent =
            if *has_user_consent { RecordedConsent::User } else { self.policy.without_asking(facts) };
        // The event of the call precedes its chain entry.
        self.log.post_unsaved();
        let hash = self.record_ceilings(&self.policy.call_ceilings());
        // The hash lets an audit compare the chain with the events.
        let arguments = self.log.open_call(call).map(|call| ids::hash(&call.arguments.to_string()));
        let entry = ChainEntry::Call {
            turn: self.log.turn(),
            call: call.to_string(),
            facts: RecordedFacts::new(facts, self.policy.context.source.is_counted()),
            arguments: arguments.unwrap_or_default(),
            check: self.log.open_call(call).and_then(|call| call.check.clone()),
            mode: self.policy.mode.to_string(),
            under: hash,
            consent,
            at: self.log.now_ms(),
        };
        self.log.chain(&entry);
        self.log.save().await;
    }

    /// Records a call of the model that may change something. Returns the refusal of a call that could not be
    /// recorded, where the user's setting says so.
    pub(crate) async fn record_start(&mut self, grant: &Grant) -> Option<Authorization> {
        // A server's hint is only a claim, so calls of its tools are always recorded.
        if !grant.facts.effect.is_change() && grant.facts.server.is_none() {
            return None;
        }
        self.record(grant).await;
        let reason = self.log.failure().filter(|_| self.policy.context.refuses_unrecorded)?.to_owned();
        let message = format!(
            "The call was not made, because it could not be recorded: {reason}. Only the user can correct this."
        );
        Some(self.denied(grant.call.clone(), Denial { rule: UNRECORDED, message }))
    }

    /// The facts keep the claim only if no answer of the user allowed the call. Such a call ends under a mode that
    /// denies changes.
    pub(crate) fn without_consented_claim(&self, facts: CallFacts, has_user_consent: bool) -> CallFacts {
        let claim = facts.claim.clone();
        let claim = claim
            .filter(|_| !has_user_consent && self.policy.without_asking(&facts) == RecordedConsent::Mode);
        CallFacts { claim, ..facts }
    }

    /// Decides which files below a folder a call may read.
    pub(crate) fn files_of(&self, call: CallFacts) -> FilesBelow {
        FilesBelow::new(self.policy.call_ceilings(), self.policy.grants.clone(), call)
    }

    /// `is_decided` is true if each change of the agent is decided for its path.
    pub(crate) async fn record_process(&mut self, sandboxed: bool, is_decided: bool) {
        let under = Some(self.record_ceilings(&self.policy.ceilings()));
        if !sandboxed {
            self.permitted_under.clone_from(&under);
        }
        let (turn, at, agent) = (self.log.turn(), self.log.now_ms(), self.policy.agent.id.clone());
        self.log.chain(&ChainEntry::ExternalAgent { turn, agent, sandboxed, decided: is_decided, under, at });
        self.log.save().await;
    }

    pub(crate) async fn record_agent_changes(&mut self, targets: Vec<Target>) {
        let Some(under) = &self.permitted_under else { return };
        let facts = CallFacts {
            source: CallSource::Broker,
            targets,
            ..CallFacts::of_tool("edit_file", Effect::Edit)
        };
        self.log.chain(&ChainEntry::Changes {
            turn: self.log.turn(),
            agent: self.policy.agent.id.clone(),
            facts: RecordedFacts::new(&facts, self.policy.context.source.is_counted()),
            under: under.clone(),
            at: self.log.now_ms(),
        });
        self.log.save().await;
    }

    /// Stores the ceilings of a decision. Returns their hash.
    fn record_ceilings(&mut self, ceilings: &Ceilings) -> String {
        let (hash, text) = text_of_ceilings(ceilings);
        if self.recorded_under.as_deref() != Some(&hash) {
            self.log.queue(Row::Text { hash: hash.clone(), text });
            self.recorded_under = Some(hash.clone());
        }
        hash
    }

    fn denied(&mut self, call: ToolCallId, denial: Denial) -> Authorization {
        let Denial { rule, message } = denial;
        self.denied_by(call, rule, rule, message)
    }

    /// `recorded` is the rule in the record.
    pub(super) fn denied_by(
        &mut self,
        call: ToolCallId,
        rule: &'static str,
        recorded: &str,
        message: String,
    ) -> Authorization {
        let announced = self.log.open_call(&call);
        let tool = announced.map(|call| call.name.clone()).unwrap_or_default();
        let of_model = announced.filter(|call| call.check.is_none());
        let too_often = of_model.is_some_and(|call| self.denials.add(call, rule));
        self.record_denial(call, tool, recorded);
        Authorization::Denied { rule, message, too_often }
    }

    fn unknown_tool(&self, call: &ToolCallId) -> String {
        let tools = &self.policy.context.tools;
        let name = self.log.open_call(call).map(|call| call.name.as_str()).unwrap_or_default();
        if let Some(message) = tools.servers().why_missing(name) {
            return message;
        }
        let (ceilings, all) = (self.policy.ceilings(), tools.all());
        let is_available =
            |facts: &CallFacts| permission::is_available(&ceilings, &self.policy.grants, facts);
        let names: Vec<&str> = all
            .iter()
            .filter(|tool| is_available(&tool.spec().facts()))
            .map(|tool| &*tool.spec().name)
            .collect();
        format!(
            "There is no such tool. {}",
            foreign_call::advice(name, &names, &tools.servers().tool_names())
        )
    }

    fn remember(&mut self, mode: &str, allows: bool, scopes: Vec<Scope>) {
        let (turn, at) = (self.log.turn(), self.log.now_ms());
        for scope in scopes {
            let entry =
                ChainEntry::Answer { turn, mode: mode.to_owned(), allows, scope: (&scope).into(), at };
            let link = self.log.link(&entry);
            let grant = StoredGrant { mode: mode.to_owned(), allows, scope: scope.clone() };
            self.log.queue(Row::Grant { session: self.log.id().clone(), turn, grant, link, at });
            if allows {
                self.policy.grants.allow(mode, scope);
            } else {
                self.policy.grants.reject(mode, scope);
            }
        }
    }

    pub(crate) fn record_denial(&mut self, call: ToolCallId, tool: String, rule: &str) {
        let mode = self.policy.mode.clone();
        tracing::info!(session = %self.log.id(), %mode, tool, rule, "denied a call");
        let (turn, at) = (self.log.turn(), self.log.now_ms());
        let link = self.log.link(&ChainEntry::Denial {
            turn,
            call: call.to_string(),
            tool: tool.clone(),
            mode: mode.to_string(),
            rule: rule.to_owned(),
            at,
        });
        self.log.queue(Row::Denial(store::DenialRow {
            session: self.log.id().clone(),
            turn,
            call,
            tool,
            mode,
            rule: rule.into(),
            link,
            at,
        }));
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
