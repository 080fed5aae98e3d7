//! Changes of a brokered agent that wait for a decision. The user gets one question at a time, whose answer
//! may cover the others.

use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;

use super::consents::Consents;
use super::message::{AgentMessage, AgentOutput, AnsweredChange, ProcessMessage};
use super::model_note::ModelNote;
use super::moved_content::{self, MovedContent};
use super::permission::{decide, permitted};
use super::question::{self, AskedQuestion, REJECT_TURN};
use super::refused::{self, RefusalNotices};
use super::{AgentLimits, ExternalAgentHost, host};
use crate::acp::{
    RequestPermissionOutcome, RequestPermissionRequest, SessionUpdate, ToolCall, ToolCallId,
    ToolCallLocation, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields,
};
use crate::client::ClientError;
use crate::conversation::acp_updates::text_content;
use crate::event::SessionEvent;
use crate::permission::{self, CallFacts, CallSource, Target, Verdict};
use crate::process::program::Program;
use crate::process::{BrokerEvent, ChangeKind, ChangeQuestion};

/// Time that a program waits for the user. Then its change is refused.
pub const LIMIT: Duration = Duration::from_mins(10);

/// Maximum number of refused changes that are recorded in one turn.
const MAX_REFUSED: usize = 100;

pub(super) const TOOL: &str = "harness";

/// Changes that wait, and the user's consents.
#[derive(Default)]
pub(super) struct AskedChanges {
    pub consents: Consents,
    /// Folders in which the agent may change files besides the session's.
    pub unrecorded: Vec<PathBuf>,
    /// True from a prompt to the end of its turn.
    is_in_turn: bool,
    open: Option<OpenChange>,
    waiting: VecDeque<AskedQuestion>,
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

/// The running agent and the way to its client.
pub(super) struct Asker<'a> {
    pub host: &'a ExternalAgentHost,
    pub start: u64,
    /// `None` if no process runs.
    pub program: Option<&'a Program>,
    pub messages: mpsc::UnboundedSender<AgentMessage>,
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
        asker: &Asker<'_>,
        limits: &AgentLimits,
    ) -> Vec<AgentOutput> {
        let outputs = match event {
            BrokerEvent::Asked(change) => {
                self.waiting.push_back(AskedQuestion { change, content, is_postponed: false, earlier: 0 });
                self.decide(asker, limits)
            }
            BrokerEvent::Withdrawn(number) => {
                self.waiting.retain(|question| question.change.number != number);
                let is_open = self.open.as_ref().is_some_and(|it| it.question.change.number == number);
                let mut outputs = if is_open { self.close("The program ended.", asker) } else { Vec::new() };
                outputs.extend(self.decide(asker, limits));
                outputs
            }
            BrokerEvent::HostRefused(host) => host::refused(&host, asker.host, limits),
            BrokerEvent::SocketRefused(path) => host::socket_refused(&path, asker.host, limits),
            BrokerEvent::Ended(writers) => vec![refused::ended(&writers)],
            BrokerEvent::Refused(call) => {
                if refused::is_known(&call, limits) {
                    let mode = &limits.mode;
                    self.note.add(&format!("Changes of files failed, because {mode} mode changes nothing."));
                }
                self.refusals.add(call, asker.host, limits)
            }
            BrokerEvent::PolicySet { .. } | BrokerEvent::RecordSaved(_) => Vec::new(),
        };
        self.note.add_notices(&outputs);
        outputs
    }

    /// Answers the waiting changes up to the first one that the user must decide.
    fn decide(&mut self, asker: &Asker<'_>, limits: &AgentLimits) -> Vec<AgentOutput> {
        let mut outputs = Vec::new();
        while self.open.is_none() {
            let Some(mut question) = self.waiting.pop_front() else { break };
            question.is_postponed = self.consents.is_postponed(&question.change.path);
            match self.decide_one(&question, asker, limits) {
                Decision::Answer(allows, more) => {
                    outputs.extend(more);
                    outputs.extend(asker.answer(question.change.number, allows));
                }
                Decision::Ask(facts) => outputs.push(self.ask(question, *facts, asker, limits)),
            }
        }
        outputs
    }

    fn decide_one(&mut self, question: &AskedQuestion, asker: &Asker<'_>, limits: &AgentLimits) -> Decision {
        let facts = asker.facts(&question.change, &self.unrecorded);
        match decide(&facts, limits) {
            Verdict::Deny(denial) => {
                let title = question.title(asker.host);
                let text = format!("Refused by Modegate: {title}. {}\n\n", denial.message);
                let denied = self.refused_once(title, denial.rule);
                let notice = denied.is_some().then_some(AgentOutput::NoticeInTurn(text));
                Decision::Answer(false, denied.into_iter().chain(notice).collect())
            }
            Verdict::Allow => Decision::Answer(true, Vec::new()),
            Verdict::Ask(_) if self.consents.refuses(&question.change) => {
                let denied = self.refused_once(question.title(asker.host), permission::REJECTED);
                Decision::Answer(false, denied.into_iter().collect())
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
                let mut outputs = vec![AgentOutput::Denied { call, tool: TOOL, rule: permission::NO_USER }];
                if !std::mem::replace(&mut self.told, true) {
                    outputs.push(AgentOutput::NoticeInTurn(format!(
                        "Modegate refused changes of the agent that no turn asked for, the first of them: {}.\n\n",
                        question.title(asker.host)
                    )));
                }
                Decision::Answer(false, outputs)
            }
        }
    }

    /// `None` if the refusal is recorded, or too many are: a program may try again and again.
    fn refused_once(&mut self, title: String, rule: &'static str) -> Option<AgentOutput> {
        let is_new = self.refused.len() < MAX_REFUSED && self.refused.insert(title);
        is_new.then(|| AgentOutput::Denied { call: ToolCallId::new(TOOL), tool: TOOL, rule })
    }

    fn ask(
        &mut self,
        question: AskedQuestion,
        facts: CallFacts,
        asker: &Asker<'_>,
        limits: &AgentLimits,
    ) -> AgentOutput {
        let start = asker.start;
        let change = question.change.clone();
        let again = if question.earlier == 0 { String::new() } else { format!("_{}", question.earlier) };
        let call = ToolCallId::new(format!("agent_change_{start}_{}{again}", change.number));
        let (title, kind) = (question.title(asker.host), question.kind());
        // JSON has texts only; the title names every path.
        let locations = change.ends().filter(|path| path.to_str().is_some()).map(ToolCallLocation::new);
        let announced = ToolCall::new(call.clone(), title.clone())
            .kind(kind)
            .status(ToolCallStatus::Pending)
            .content(question.content())
            .locations(locations.collect::<Vec<_>>());
        let fields = ToolCallUpdateFields::new()
            .title(title)
            .kind(kind)
            .status(ToolCallStatus::Pending)
            .content(announced.content.clone())
            .locations(announced.locations.clone());
        let request = RequestPermissionRequest::new(
            asker.host.session.clone(),
            ToolCallUpdate::new(call.clone(), fields),
            question.options(asker.host, &limits.mode.0),
        );
        let (number, answer) = asker.host.client.request_permission(request);
        let messages = asker.messages.clone();
        tokio::spawn(async move {
            let answer = tokio::time::timeout(LIMIT, answer).await.unwrap_or(Err(ClientError::Late(LIMIT)));
            let content = moved_content::read(&change).await;
            let answered = AnsweredChange { number: change.number, answer, content };
            // The session may be gone.
            let _ = messages.send(AgentMessage::Process(start, ProcessMessage::ChangeAnswered(answered)));
        });
        self.open = Some(OpenChange { question, facts, call, request: number });
        let update = Box::new(SessionUpdate::ToolCall(announced));
        AgentOutput::Record(SessionEvent::ForwardedUpdate { update }, None)
    }

    pub(super) fn answered(
        &mut self,
        answered: AnsweredChange,
        asker: &Asker<'_>,
        limits: &AgentLimits,
    ) -> Vec<AgentOutput> {
        let AnsweredChange { number, answer, content } = answered;
        let Some(OpenChange { question, facts, call, request }) =
            self.open.take_if(|open| open.question.change.number == number)
        else {
            return Vec::new();
        };
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
                asker.host.client.withdraw(request);
                let refusal = format!("No answer came within {} minutes.", limit.as_secs() / 60);
                let text = format!("{refusal} Refused: {}.\n\n", question.title(asker.host));
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
            outputs.extend(self.decide(asker, limits));
            return outputs;
        }
        let denial = match decide(&facts, limits) {
            Verdict::Deny(denial) => Some(denial.rule),
            Verdict::Allow | Verdict::Ask(_) => None,
        };
        let allows = scope.is_some() && denial.is_none();
        if let Some(scope) = scope.filter(|_| allows) {
            self.consents.allow(&question.change, scope, &limits.mode.0);
            outputs.push(permitted(&call, &facts, true));
        } else {
            self.consents.reject(&question.change);
            if selected == REJECT_TURN {
                self.consents.refuse_turn();
            }
            let rule = denial.unwrap_or(rule);
            outputs.push(AgentOutput::Denied { call: call.clone(), tool: TOOL, rule });
        }
        if !allows {
            self.note.add(&format!("{refusal} {}", question.title(asker.host)));
        }
        outputs.push(concluded(call, (!allows).then_some(&*refusal)));
        outputs.extend(asker.answer(question.change.number, allows));
        outputs.extend(self.decide(asker, limits));
        outputs
    }

    /// Withdraws the open question.
    fn close(&mut self, why: &str, asker: &Asker<'_>) -> Vec<AgentOutput> {
        let Some(OpenChange { call, request, .. }) = self.open.take() else { return Vec::new() };
        asker.host.client.withdraw(request);
        vec![concluded(call, Some(why))]
    }

    /// The turn is cancelled or over.
    pub(super) fn refuse(&mut self, asker: &Asker<'_>) -> Vec<AgentOutput> {
        let open = self.open.as_ref().map(|open| open.question.change.number);
        let waiting = std::mem::take(&mut self.waiting);
        let numbers = open.into_iter().chain(waiting.into_iter().map(|question| question.change.number));
        let refused: Vec<AgentOutput> = numbers.filter_map(|number| asker.answer(number, false)).collect();
        let mut outputs = self.close("The turn has ended.", asker);
        outputs.extend(refused);
        outputs
    }

    /// The process is gone, and with it all that waits.
    pub(super) fn forget(&mut self, asker: &Asker<'_>) -> Vec<AgentOutput> {
        self.waiting.clear();
        self.close("The agent has ended.", asker)
    }

    pub(super) fn end_turn(&mut self, asker: &Asker<'_>) -> Vec<AgentOutput> {
        self.is_in_turn = false;
        self.told = false;
        self.refused.clear();
        self.consents.end_turn();
        let mut outputs = self.refuse(asker);
        outputs.extend(self.refusals.end_turn());
        outputs
    }

    pub(super) fn asks(&self) -> bool {
        self.open.is_some()
    }

    /// The call of the open question, if its change is now denied.
    pub(super) fn denied_call(&self, limits: &AgentLimits) -> Option<&ToolCallId> {
        let open = self.open.as_ref()?;
        matches!(decide(&open.facts, limits), Verdict::Deny(_)).then_some(&open.call)
    }

    pub(super) fn decide_again(&mut self, asker: &Asker<'_>, limits: &AgentLimits) -> Vec<AgentOutput> {
        let Some(open) = &self.open else { return self.decide(asker, limits) };
        if matches!(decide(&open.facts, limits), Verdict::Ask(_)) {
            return Vec::new();
        }
        let question = open.question.clone();
        let mut outputs = self.close("The mode has changed.", asker);
        self.waiting.push_front(question);
        outputs.extend(self.decide(asker, limits));
        outputs
    }
}

impl Asker<'_> {
    fn answer(&self, number: u64, allows: bool) -> Option<AgentOutput> {
        Some(AgentOutput::AnswerChange { program: self.program?.clone(), number, allows })
    }

    fn facts(&self, question: &ChangeQuestion, unrecorded: &[PathBuf]) -> CallFacts {
        let tool = match question.change {
            ChangeKind::Delete | ChangeKind::DeleteFolder => "delete_file",
            ChangeKind::Move => "move_file",
            ChangeKind::Create
            | ChangeKind::CreateFolder
            | ChangeKind::Write
            | ChangeKind::Link
            | ChangeKind::Attributes => "edit_file",
        };
        let ends = question.ends().map(Path::to_owned);
        let files = question.files.iter().flat_map(|file| question.ends().map(move |end| end.join(file)));
        let targets = ends.chain(files).map(|path| {
            let known = unrecorded.iter().any(|folder| path.starts_with(folder)).then_some(path.as_path());
            let inside = question::inside(self.host, &path).or(known).map(Path::to_owned);
            Target { path, inside }
        });
        CallFacts {
            source: CallSource::Broker,
            targets: targets.collect(),
            ..CallFacts::of_tool(tool, permission::Effect::Edit)
        }
    }
}

fn concluded(call: ToolCallId, refusal: Option<&str>) -> AgentOutput {
    let fields = match refusal {
        None => ToolCallUpdateFields::new().status(ToolCallStatus::Completed),
        Some(why) => {
            ToolCallUpdateFields::new().status(ToolCallStatus::Failed).content(vec![text_content(why)])
        }
    };
    let update = Box::new(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(call, fields)));
    AgentOutput::Record(SessionEvent::ForwardedUpdate { update }, None)
}
