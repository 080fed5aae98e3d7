//! Changes of a brokered agent that wait for a decision. In an editor the user gets one question at a time, in the panel
//! of a terminal program a list. An answer may cover the other changes.

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::oneshot;

use super::change_call::concluded;
use super::change_source::ChangeSource;
use super::consents::{ConsentScope, Consents};
use super::hooked_change;
use super::message::{AgentMessage, AgentOutput, AnsweredChange, HookedChange, ProcessMessage};
use super::model_note::ModelNote;
use super::moved_content::{self, MovedContent};
use super::permission::{decide, permitted};
use super::question::{self, AskedQuestion, REJECT_TURN};
use super::refusal_notices::{self, RefusalNotices};
use super::{AgentLimits, RefusedAct, denied_change, host};
use crate::acp::{
    RequestPermissionOutcome, RequestPermissionRequest, SessionUpdate, ToolCall, ToolCallId,
    ToolCallLocation, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields,
};
use crate::client::{self, ClientError, ClientRequest};
use crate::event::SessionEvent;
use crate::permission::{self, CallFacts, Verdict};
use crate::process::BrokerEvent;

/// Time that a program waits for the user. Then its change is refused.
pub const LIMIT: Duration = Duration::from_mins(10);

/// Most questions that are open at the same time for a terminal program.
const MAX_OPEN: usize = 20;

/// Maximum number of refused changes that are recorded in one turn.
const MAX_REFUSED: usize = 100;

pub(super) const TOOL: &str = "harness";

/// Changes that wait, and the user's consents.
#[derive(Default)]
pub(super) struct AskedChanges {
    pub consents: Consents,
    /// Folders in which the agent may change files besides the session's.
    pub unrecorded: Vec<PathBuf>,
    /// The caches among them, each with one question for all its changes.
    pub caches: Vec<PathBuf>,
    /// True from a prompt to the end of its turn.
    is_in_turn: bool,
    open: Vec<OpenChange>,
    waiting: VecDeque<AskedQuestion>,
    /// Numbers of the changes that hooks look at.
    hooking: HashSet<u64>,
    /// Titles of the changes that were refused in this turn without a question. Each is recorded once.
    refused: HashSet<String>,
    refusals: RefusalNotices,
    /// For the next prompt.
    pub note: ModelNote,
    /// The user was told about changes between turns.
    told: bool,
}

struct OpenChange {
    question: AskedQuestion,
    facts: CallFacts,
    call: ToolCallId,
    request: u64,
}

impl OpenChange {
    /// Number of the change.
    fn number(&self) -> u64 {
        self.question.change.number
    }

    /// Withdraws the question.
    fn close(&self, why: &str, source: &ChangeSource<'_>) -> AgentOutput {
        source.host.client.withdraw(self.request);
        concluded(self.call.clone(), Some(why))
    }
}

enum Decision {
    Answer(bool, Vec<AgentOutput>),
    Ask(Box<CallFacts>),
}

impl AskedChanges {
    pub(super) fn begin_turn(&mut self) {
        self.is_in_turn = true;
    }

    /// `content` is that of a file that waits to be moved.
    pub(super) fn broker_event(
        &mut self,
        event: BrokerEvent,
        content: Option<MovedContent>,
        source: &ChangeSource<'_>,
        limits: &AgentLimits,
    ) -> Vec<AgentOutput> {
        let outputs = match event {
            BrokerEvent::Asked(change) => {
                let cache = self.caches.iter().find(|cache| change.ends().all(|end| end.starts_with(cache)));
                let cache = cache.cloned();
                let question = AskedQuestion { change, content, cache, is_postponed: false, earlier: 0 };
                let facts = source.facts(&question.change, &self.unrecorded);
                let call = format!("agent_change_{}_{}", source.start, question.change.number);
                let is_denied = matches!(decide(&facts, limits), Verdict::Deny(_));
                let hooked = hooked_change::facts(call, &facts, source.host, limits);
                if let Some(facts) = hooked.filter(|_| !is_denied) {
                    self.hooking.insert(question.change.number);
                    let (start, messages) = (source.start, source.messages.sender());
                    hooked_change::run(facts, &source.host.hooks, messages, move |refusal| {
                        let hooked = HookedChange { question, refusal };
                        AgentMessage::Process(start, ProcessMessage::ChangeHooked(hooked))
                    });
                    return Vec::new();
                }
                self.waiting.push_back(question);
                self.decide(source, limits)
            }
            BrokerEvent::Withdrawn(number) => {
                self.hooking.remove(&number);
                self.waiting.retain(|question| question.change.number != number);
                let mut outputs = Vec::new();
                for open in self.open.extract_if(.., |open| open.number() == number) {
                    outputs.push(open.close("The program ended.", source));
                }
                outputs.extend(self.decide(source, limits));
                outputs
            }
            BrokerEvent::HostRefused(host) => host::refused(&host, source.host, limits),
            BrokerEvent::SocketRefused(path) => host::socket_refused(&path, source.host, limits),
            BrokerEvent::Ended(writers) => vec![refusal_notices::ended(&writers)],
            BrokerEvent::Refused(call) => {
                if refusal_notices::is_known(&call, limits) {
                    let mode = &limits.mode;
                    self.note.add(&format!("Changes of files failed, because {mode} mode changes nothing."));
                }
                self.refusals.add(call, source.host, limits)
            }
            // An agent's changes are questions, and the rules decide them here.
            BrokerEvent::RuleRefused(_) | BrokerEvent::PolicySet { .. } | BrokerEvent::RecordSaved(_) => {
                Vec::new()
            }
        };
        self.note.add_notices(&outputs);
        outputs
    }

    /// Answers the waiting changes, or asks the user about them, up to the limit of open questions.
    fn decide(&mut self, source: &ChangeSource<'_>, limits: &AgentLimits) -> Vec<AgentOutput> {
        let mut outputs = Vec::new();
        let most = if source.host.is_terminal_program() { MAX_OPEN } else { 1 };
        while self.open.len() < most {
            let Some(mut question) = self.take_waiting() else { break };
            question.is_postponed = self.consents.is_postponed(&question.change.path);
            match self.decide_one(&question, source, limits) {
                Decision::Answer(allows, more) => {
                    outputs.extend(more);
                    outputs.extend(source.answer(question.change.number, allows));
                }
                Decision::Ask(facts) => outputs.extend(self.ask(question, *facts, source, limits)),
            }
        }
        outputs
    }

    /// Changes of a cache wait while a question about the cache is open.
    fn take_waiting(&mut self) -> Option<AskedQuestion> {
        let is_asked = |question: &AskedQuestion| {
            question.cache.is_some() && self.open.iter().any(|open| open.question.cache == question.cache)
        };
        let position = self.waiting.iter().position(|question| !is_asked(question))?;
        self.waiting.remove(position)
    }

    fn decide_one(
        &mut self,
        question: &AskedQuestion,
        source: &ChangeSource<'_>,
        limits: &AgentLimits,
    ) -> Decision {
        let facts = source.facts(&question.change, &self.unrecorded);
        match decide(&facts, limits) {
            Verdict::Deny(denial) => {
                let why = denied_change::reason(&facts, &denial, source.host, limits);
                Decision::Answer(false, self.refuse_one(question, why, denial.rule, source))
            }
            Verdict::Allow => Decision::Answer(true, Vec::new()),
            Verdict::Ask(_) if self.consents.refuses(&question.change) => {
                let act =
                    RefusedAct::new(question.title(source.host), "An earlier answer of yours rejects it.");
                Decision::Answer(false, self.refused_once(act, permission::REJECTED, source))
            }
            Verdict::Ask(_) if self.consents.cover(&question.change, &limits.mode.0) => {
                Decision::Answer(true, Vec::new())
            }
            Verdict::Ask(_) if self.is_in_turn && self.consents.postpones(&question.change) => {
                Decision::Answer(true, Vec::new())
            }
            Verdict::Ask(_) if self.is_in_turn => Decision::Ask(Box::new(facts)),
            Verdict::Ask(_) => {
                let call = ToolCallId::new(TOOL);
                let mut outputs =
                    vec![AgentOutput::Denied { call, tool: TOOL, rule: permission::NO_USER.into() }];
                if !std::mem::replace(&mut self.told, true) {
                    outputs.push(AgentOutput::NoticeInTurn(format!(
                        "Modegate refused changes of the agent that no turn asked for, the first of them: {}.\n\n",
                        question.title(source.host)
                    )));
                }
                Decision::Answer(false, outputs)
            }
        }
    }

    /// Records the refusal of a change, and tells the user.
    fn refuse_one(
        &mut self,
        question: &AskedQuestion,
        why: String,
        rule: impl Into<Cow<'static, str>>,
        source: &ChangeSource<'_>,
    ) -> Vec<AgentOutput> {
        let title = question.title(source.host);
        let text = format!("Refused by Modegate: {title}. {why}\n\n");
        let mut outputs = self.refused_once(RefusedAct::new(title, why), rule, source);
        if !outputs.is_empty() {
            outputs.push(AgentOutput::NoticeInTurn(text));
        }
        outputs
    }

    /// Continues with a change that hooks have seen. The mode of this moment decides first.
    pub(super) fn hooked(
        &mut self,
        hooked: HookedChange,
        source: &ChangeSource<'_>,
        limits: &AgentLimits,
    ) -> Vec<AgentOutput> {
        let HookedChange { question, refusal } = hooked;
        let number = question.change.number;
        if !self.hooking.remove(&number) {
            // Withdrawn, or answered at the end of the turn.
            return Vec::new();
        }
        let facts = source.facts(&question.change, &self.unrecorded);
        let Some(refusal) = refusal.filter(|_| !matches!(decide(&facts, limits), Verdict::Deny(_))) else {
            self.waiting.push_back(question);
            return self.decide(source, limits);
        };
        let rule = refusal.recorded_rule();
        let mut outputs = self.refuse_one(&question, refusal.message, rule, source);
        self.note.add_notices(&outputs);
        outputs.extend(source.answer(number, false));
        outputs
    }

    /// Empty if the refusal is recorded, or too many are: a program may try again and again.
    fn refused_once(
        &mut self,
        act: RefusedAct,
        rule: impl Into<Cow<'static, str>>,
        source: &ChangeSource<'_>,
    ) -> Vec<AgentOutput> {
        let shown = act.shown(source.host);
        if self.refused.len() >= MAX_REFUSED || !self.refused.insert(act.act) {
            return Vec::new();
        }
        let rule = rule.into();
        let denied = AgentOutput::Denied { call: ToolCallId::new(TOOL), tool: TOOL, rule };
        [denied].into_iter().chain(shown).collect()
    }

    fn ask(
        &mut self,
        question: AskedQuestion,
        facts: CallFacts,
        source: &ChangeSource<'_>,
        limits: &AgentLimits,
    ) -> [AgentOutput; 2] {
        let start = source.start;
        let change = question.change.clone();
        let again = if question.earlier == 0 { String::new() } else { format!("_{}", question.earlier) };
        let call = ToolCallId::new(format!("agent_change_{start}_{}{again}", change.number));
        let (title, kind) = (question.title(source.host), question.kind());
        // JSON has texts only; the title names every path.
        let locations = change.ends().filter(|path| path.to_str().is_some()).map(ToolCallLocation::new);
        let announced = ToolCall::new(call.clone(), title.clone())
            .kind(kind)
            .status(ToolCallStatus::Pending)
            .content(question.content(source.host))
            .locations(locations.collect::<Vec<_>>());
        let fields = ToolCallUpdateFields::new()
            .title(title)
            .kind(kind)
            .status(ToolCallStatus::Pending)
            .content(announced.content.clone())
            .locations(announced.locations.clone());
        let request = RequestPermissionRequest::new(
            source.host.session.clone(),
            ToolCallUpdate::new(call.clone(), fields),
            question.options(source.host, &limits.mode.0),
        );
        let id = source.host.client.reserve_id();
        let (reply, answer) = oneshot::channel();
        let messages = source.messages.sender();
        tokio::spawn(async move {
            let answer = match tokio::time::timeout(LIMIT, answer).await {
                Ok(answer) => client::decode(answer.unwrap_or(Err(ClientError::Gone))),
                Err(_) => Err(ClientError::Late(LIMIT)),
            };
            let content = moved_content::read(&change).await;
            let answered = AnsweredChange { number: change.number, answer, content };
            // The session may be gone.
            let _ = messages.send(AgentMessage::Process(start, ProcessMessage::ChangeAnswered(answered)));
        });
        self.open.push(OpenChange { question, facts, call, request: id });
        let update = Box::new(SessionUpdate::ToolCall(announced));
        let announcement = AgentOutput::Record(SessionEvent::ForwardedUpdate { update }, None);
        let request = ClientRequest::RequestPermission(Box::new(request));
        [announcement, AgentOutput::Forward { id, request, reply }]
    }

    pub(super) fn answered(
        &mut self,
        answered: AnsweredChange,
        source: &ChangeSource<'_>,
        limits: &AgentLimits,
    ) -> Vec<AgentOutput> {
        let AnsweredChange { number, answer, content } = answered;
        let Some(position) = self.open.iter().position(|open| open.number() == number) else {
            return Vec::new();
        };
        let OpenChange { question, facts, call, request } = self.open.remove(position);
        let mut outputs = Vec::new();
        let (selected, rule, refusal) = match answer.map(|answer| answer.outcome) {
            Ok(RequestPermissionOutcome::Selected(selected)) => {
                let refusal = "The user rejected this change.".to_owned();
                (selected.option_id.0.to_string(), permission::REJECTED, refusal)
            }
            // Nothing else is consent.
            Ok(_) => {
                let refusal = "The question to the user was cancelled.".to_owned();
                (String::new(), permission::UNANSWERED, refusal)
            }
            Err(ClientError::Late(limit)) => {
                source.host.client.withdraw(request);
                let refusal = format!("No answer came within {} minutes.", limit.as_secs() / 60);
                let text = format!("{refusal} Refused: {}.\n\n", question.title(source.host));
                outputs.push(AgentOutput::NoticeInTurn(text));
                (String::new(), permission::UNANSWERED, refusal)
            }
            Err(error) => {
                let refusal = format!("The user could not be asked: {error}.");
                (String::new(), permission::NO_USER, refusal)
            }
        };
        let scope = question::consent(&selected);
        if scope.is_some() && content != question.content {
            outputs.push(concluded(call, Some("The content has changed since the question.")));
            let earlier = question.earlier + 1;
            self.waiting.push_front(AskedQuestion { content, earlier, ..question });
            outputs.extend(self.decide(source, limits));
            return outputs;
        }
        let denial = match decide(&facts, limits) {
            Verdict::Deny(denial) => Some(denial.rule),
            Verdict::Allow | Verdict::Ask(_) => None,
        };
        let allows = scope.is_some() && denial.is_none();
        if let Some(scope) = scope.filter(|_| allows) {
            match (&question.cache, scope) {
                (Some(cache), ConsentScope::Path) => self.consents.answer_folder(cache, true),
                _ => self.consents.allow(&question.change, scope, &limits.mode.0),
            }
            outputs.push(permitted(&call, &facts, true));
        } else {
            match &question.cache {
                Some(cache) => self.consents.answer_folder(cache, false),
                None => self.consents.reject(&question.change),
            }
            if selected == REJECT_TURN {
                self.consents.refuse_turn();
            }
            let rule = denial.unwrap_or(rule);
            outputs.push(AgentOutput::Denied { call: call.clone(), tool: TOOL, rule: rule.into() });
            outputs.extend(RefusedAct::new(question.title(source.host), &*refusal).shown(source.host));
        }
        if !allows {
            self.note.add(&format!("{refusal} {}", question.title(source.host)));
        }
        outputs.push(concluded(call, (!allows).then_some(&*refusal)));
        outputs.extend(source.answer(question.change.number, allows));
        outputs.extend(self.decide_open("An answer to another question covers it.", source, limits));
        outputs
    }

    /// Withdraws the open questions that need no answer any more, and decides the waiting ones.
    fn decide_open(
        &mut self,
        why: &str,
        source: &ChangeSource<'_>,
        limits: &AgentLimits,
    ) -> Vec<AgentOutput> {
        let mut outputs = Vec::new();
        for open in std::mem::take(&mut self.open) {
            match self.decide_one(&open.question, source, limits) {
                Decision::Ask(_) => self.open.push(open),
                Decision::Answer(allows, more) => {
                    outputs.push(open.close(why, source));
                    outputs.extend(more);
                    outputs.extend(source.answer(open.number(), allows));
                }
            }
        }
        outputs.extend(self.decide(source, limits));
        outputs
    }

    fn close_all(&mut self, why: &str, source: &ChangeSource<'_>) -> Vec<AgentOutput> {
        std::mem::take(&mut self.open).into_iter().map(|open| open.close(why, source)).collect()
    }

    /// The turn is cancelled or over.
    pub(super) fn refuse(&mut self, source: &ChangeSource<'_>) -> Vec<AgentOutput> {
        let open: Vec<u64> = self.open.iter().map(OpenChange::number).collect();
        let waiting = std::mem::take(&mut self.waiting);
        let hooking = std::mem::take(&mut self.hooking);
        let numbers =
            open.into_iter().chain(hooking).chain(waiting.into_iter().map(|question| question.change.number));
        let refused: Vec<AgentOutput> = numbers.filter_map(|number| source.answer(number, false)).collect();
        let mut outputs = self.close_all("The turn has ended.", source);
        outputs.extend(refused);
        outputs
    }

    /// The process is gone, and with it all that waits.
    pub(super) fn forget(&mut self, source: &ChangeSource<'_>) -> Vec<AgentOutput> {
        self.waiting.clear();
        self.hooking.clear();
        self.close_all("The agent has ended.", source)
    }

    pub(super) fn end_turn(&mut self, source: &ChangeSource<'_>) -> Vec<AgentOutput> {
        self.is_in_turn = false;
        self.told = false;
        self.refused.clear();
        self.consents.end_turn();
        let mut outputs = self.refuse(source);
        outputs.extend(self.refusals.end_turn(source.host));
        outputs
    }

    pub(super) fn asks(&self) -> bool {
        !self.open.is_empty()
    }

    /// The calls of open questions whose changes are now denied.
    pub(super) fn denied_calls(&self, limits: &AgentLimits) -> impl Iterator<Item = &ToolCallId> {
        let denied = |open: &&OpenChange| matches!(decide(&open.facts, limits), Verdict::Deny(_));
        self.open.iter().filter(denied).map(|open| &open.call)
    }

    pub(super) fn decide_again(
        &mut self,
        source: &ChangeSource<'_>,
        limits: &AgentLimits,
    ) -> Vec<AgentOutput> {
        self.decide_open("The mode has changed.", source, limits)
    }
}
