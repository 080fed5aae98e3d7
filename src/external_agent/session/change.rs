//! Changes of a brokered agent that wait for a decision. The user gets one question at a time, whose answer
//! may cover the others.

use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;

use super::consents::{ConsentScope, Consents, folder};
use super::message::{AgentMessage, AgentOutput, ProcessMessage};
use super::permission::{decide, permitted};
use super::{AgentLimits, ExternalAgentHost, host};
use crate::acp::{
    PermissionOption, PermissionOptionKind, RequestPermissionOutcome, RequestPermissionRequest,
    RequestPermissionResponse, SessionUpdate, ToolCall, ToolCallId, ToolCallLocation, ToolCallStatus,
    ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};
use crate::client::ClientError;
use crate::conversation::acp_updates::text_content;
use crate::event::SessionEvent;
use crate::external_agent::ExternalAgent;
use crate::permission::{self, CallFacts, CallSource, Target, Verdict};
use crate::process::{BrokerEvent, ChangeKind, ChangeQuestion};
use crate::text;

/// Time that a program waits for the user. Then its change is refused.
pub const LIMIT: Duration = Duration::from_mins(10);

/// Maximum number of refused changes that are reported in one turn.
const MAX_REFUSED: usize = 100;

pub(super) const TOOL: &str = "harness";

/// The options of a question, in their order.
const OPTIONS: [(&str, PermissionOptionKind, Option<ConsentScope>); 6] = [
    ("allow_once", PermissionOptionKind::AllowOnce, Some(ConsentScope::Path)),
    ("allow_folder", PermissionOptionKind::AllowAlways, Some(ConsentScope::Folder)),
    ("allow_turn", PermissionOptionKind::AllowAlways, Some(ConsentScope::Turn)),
    ("allow_session", PermissionOptionKind::AllowAlways, Some(ConsentScope::Session)),
    ("reject_once", PermissionOptionKind::RejectOnce, None),
    (REJECT_TURN, PermissionOptionKind::RejectAlways, None),
];

const REJECT_TURN: &str = "reject_turn";

pub(super) type ChangeAnswer = Result<RequestPermissionResponse, ClientError>;

/// Changes that wait, and the user's consents.
#[derive(Default)]
pub(super) struct AskedChanges {
    pub consents: Consents,
    /// Folders in which the agent may change files besides the session's.
    pub caches: Vec<PathBuf>,
    /// True from a prompt to the end of its turn.
    is_in_turn: bool,
    open: Option<OpenChange>,
    waiting: VecDeque<ChangeQuestion>,
    /// Titles of the changes that a rule or mode refused in this turn. Each is reported once.
    refused: HashSet<String>,
    /// The user was told about changes between turns.
    told: bool,
}

struct OpenChange {
    question: ChangeQuestion,
    facts: CallFacts,
    call: ToolCallId,
    request: u64,
}

/// The running agent and the way to its client.
pub(super) struct Asker<'a> {
    pub host: &'a ExternalAgentHost,
    pub start: u64,
    /// `None` if no process is ready.
    pub agent: Option<&'a ExternalAgent>,
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

    pub(super) fn broker_event(
        &mut self,
        event: BrokerEvent,
        asker: &Asker<'_>,
        limits: &AgentLimits,
    ) -> Vec<AgentOutput> {
        match event {
            BrokerEvent::Asked(question) => {
                self.waiting.push_back(question);
                self.decide(asker, limits)
            }
            BrokerEvent::Withdrawn(number) => {
                self.waiting.retain(|question| question.number != number);
                let is_open = self.open.as_ref().is_some_and(|it| it.question.number == number);
                let mut effects = if is_open { self.close("The program ended.", asker) } else { Vec::new() };
                effects.extend(self.decide(asker, limits));
                effects
            }
            BrokerEvent::HostRefused(host) => host::refused(&host, asker.host, limits),
            BrokerEvent::SocketRefused(path) => host::socket_refused(&path, asker.host, limits),
            BrokerEvent::PolicySet { .. } | BrokerEvent::RecordSaved(_) => Vec::new(),
        }
    }

    /// Answers the waiting changes up to the first one that the user must decide.
    fn decide(&mut self, asker: &Asker<'_>, limits: &AgentLimits) -> Vec<AgentOutput> {
        let mut effects = Vec::new();
        while self.open.is_none() {
            let Some(question) = self.waiting.pop_front() else { break };
            match self.decide_one(&question, asker, limits) {
                Decision::Answer(allows, more) => {
                    effects.extend(more);
                    effects.extend(asker.answer(question.number, allows));
                }
                Decision::Ask(facts) => effects.push(self.ask(question, *facts, asker, limits)),
            }
        }
        effects
    }

    fn decide_one(&mut self, question: &ChangeQuestion, asker: &Asker<'_>, limits: &AgentLimits) -> Decision {
        let facts = asker.facts(question, &self.caches);
        match decide(&facts, limits) {
            Verdict::Deny(denial) => {
                let title = asker.title(question);
                let text = format!("Refused by Modegate: {title}. {}\n\n", denial.message);
                // A program may try again and again.
                if self.refused.len() >= MAX_REFUSED || !self.refused.insert(title) {
                    return Decision::Answer(false, Vec::new());
                }
                let call = ToolCallId::new(TOOL);
                let denied = AgentOutput::Denied { call, tool: TOOL, rule: denial.rule };
                Decision::Answer(false, vec![denied, AgentOutput::NoticeInTurn(text)])
            }
            Verdict::Allow => Decision::Answer(true, Vec::new()),
            Verdict::Ask(_) if self.consents.refuses() => Decision::Answer(false, Vec::new()),
            Verdict::Ask(_) if self.consents.cover(question, &limits.mode.0) => {
                Decision::Answer(true, Vec::new())
            }
            Verdict::Ask(_) if self.is_in_turn => Decision::Ask(Box::new(facts)),
            Verdict::Ask(_) => {
                let call = ToolCallId::new(TOOL);
                let mut effects = vec![AgentOutput::Denied { call, tool: TOOL, rule: permission::NO_USER }];
                if !std::mem::replace(&mut self.told, true) {
                    effects.push(AgentOutput::NoticeInTurn(format!(
                        "Between two turns, changes of the agent were refused, the first of them: {}.\n\n",
                        asker.title(question)
                    )));
                }
                Decision::Answer(false, effects)
            }
        }
    }

    fn ask(
        &mut self,
        question: ChangeQuestion,
        facts: CallFacts,
        asker: &Asker<'_>,
        limits: &AgentLimits,
    ) -> AgentOutput {
        let start = asker.start;
        let call = ToolCallId::new(format!("agent_change_{start}_{}", question.number));
        let kind = match question.change {
            ChangeKind::Delete | ChangeKind::DeleteFolder => ToolKind::Delete,
            ChangeKind::Move => ToolKind::Move,
            _ => ToolKind::Edit,
        };
        let title = asker.title(&question);
        let program = text::quoted_name(&question.program);
        let mut details =
            format!("By the program {program}. The new content is not known before the change.");
        if matches!(question.change, ChangeKind::Create | ChangeKind::Write) {
            details.push_str(" Until the program closes the file, it can write it, also after this turn.");
        }
        // JSON has texts only; the title names every path.
        let locations = question.ends().filter(|path| path.to_str().is_some()).map(ToolCallLocation::new);
        let announced = ToolCall::new(call.clone(), title.clone())
            .kind(kind)
            .status(ToolCallStatus::Pending)
            .content(vec![text_content(&details)])
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
            asker.options(&question, &limits.mode.0),
        );
        let (number, answer) = asker.host.client.request_permission(request);
        let (messages, change) = (asker.messages.clone(), question.number);
        tokio::spawn(async move {
            let answer = tokio::time::timeout(LIMIT, answer).await.unwrap_or(Err(ClientError::Late(LIMIT)));
            // The session may be gone.
            let _ = messages
                .send(AgentMessage::Process(start, ProcessMessage::ChangeAnswered { change, answer }));
        });
        self.open = Some(OpenChange { question, facts, call, request: number });
        let update = Box::new(SessionUpdate::ToolCall(announced));
        AgentOutput::Record(SessionEvent::ForwardedUpdate { update }, None)
    }

    pub(super) fn answered(
        &mut self,
        change: u64,
        answer: ChangeAnswer,
        asker: &Asker<'_>,
        limits: &AgentLimits,
    ) -> Vec<AgentOutput> {
        let Some(OpenChange { question, facts, call, request }) =
            self.open.take_if(|open| open.question.number == change)
        else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        let (selected, refusal) = match answer.map(|answer| answer.outcome) {
            Ok(RequestPermissionOutcome::Selected(selected)) => {
                (selected.option_id.0.to_string(), "The user rejected this change.".to_owned())
            }
            // Nothing else is consent.
            Ok(_) => (String::new(), "The question to the user was cancelled.".into()),
            Err(ClientError::Late(limit)) => {
                asker.host.client.withdraw(request);
                let refusal = format!("No answer came within {} minutes.", limit.as_secs() / 60);
                let text = format!("{refusal} Refused: {}.\n\n", asker.title(&question));
                effects.push(AgentOutput::NoticeInTurn(text));
                (String::new(), refusal)
            }
            Err(error) => (String::new(), format!("The user could not be asked: {error}.")),
        };
        let chosen = OPTIONS.iter().find(|(id, ..)| *id == selected);
        let consent = chosen.and_then(|(.., scope)| *scope);
        let is_denied = matches!(decide(&facts, limits), Verdict::Deny(_));
        let allows = consent.is_some() && !is_denied;
        if let Some(scope) = consent.filter(|_| allows) {
            self.consents.allow(&question, scope, &limits.mode.0);
            effects.push(permitted(&call, &facts, true));
        } else if selected == REJECT_TURN {
            self.consents.refuse_turn();
        }
        effects.push(concluded(call, (!allows).then_some(&*refusal)));
        effects.extend(asker.answer(question.number, allows));
        effects.extend(self.decide(asker, limits));
        effects
    }

    /// Withdraws the open question.
    fn close(&mut self, why: &str, asker: &Asker<'_>) -> Vec<AgentOutput> {
        let Some(OpenChange { call, request, .. }) = self.open.take() else { return Vec::new() };
        asker.host.client.withdraw(request);
        vec![concluded(call, Some(why))]
    }

    /// The turn is cancelled or over.
    pub(super) fn refuse(&mut self, asker: &Asker<'_>) -> Vec<AgentOutput> {
        let open = self.open.as_ref().map(|open| open.question.number);
        let waiting = std::mem::take(&mut self.waiting);
        let numbers = open.into_iter().chain(waiting.into_iter().map(|question| question.number));
        let refused: Vec<AgentOutput> = numbers.filter_map(|number| asker.answer(number, false)).collect();
        let mut effects = self.close("The turn has ended.", asker);
        effects.extend(refused);
        effects
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
        self.refuse(asker)
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
        let mut effects = self.close("The mode has changed.", asker);
        self.waiting.push_front(question);
        effects.extend(self.decide(asker, limits));
        effects
    }
}

impl Asker<'_> {
    fn answer(&self, number: u64, allows: bool) -> Option<AgentOutput> {
        Some(AgentOutput::AnswerChange { agent: self.agent?.clone(), number, allows })
    }

    fn facts(&self, question: &ChangeQuestion, caches: &[PathBuf]) -> CallFacts {
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
            let in_cache = caches.iter().any(|cache| path.starts_with(cache)).then_some(path.as_path());
            let inside = self.inside(&path).or(in_cache).map(Path::to_owned);
            Target { path, inside }
        });
        CallFacts {
            source: CallSource::Broker,
            targets: targets.collect(),
            ..CallFacts::of_tool(tool, permission::Effect::Edit)
        }
    }

    /// The path below the session's folder that contains it.
    fn inside<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        let mut folders = [&self.host.cwd].into_iter().chain(&self.host.directories);
        folders.find_map(|folder| path.strip_prefix(folder).ok())
    }

    fn title(&self, question: &ChangeQuestion) -> String {
        let name = |path: &Path| {
            text::quoted_name(&path.strip_prefix(&self.host.cwd).unwrap_or(path).to_string_lossy())
        };
        let path = name(&question.path);
        let action = match (question.change, &question.to) {
            (ChangeKind::Create, _) => format!("Create {path}"),
            (ChangeKind::CreateFolder, _) => format!("Create the folder {path}"),
            (ChangeKind::Write, _) => format!("Write {path}"),
            (ChangeKind::Delete, _) => format!("Delete {path}"),
            (ChangeKind::DeleteFolder, _) => format!("Delete the folder {path}"),
            (ChangeKind::Move, Some(to)) => format!("Move {path} to {}", name(to)),
            (ChangeKind::Move, None) => format!("Move {path}"),
            (ChangeKind::Link, to) => {
                format!("Create the hard link {} to {path}", to.as_deref().map(name).unwrap_or_default())
            }
            (ChangeKind::Attributes, _) => format!("Change permissions, times or attributes of {path}"),
        };
        format!("{action} ({})", text::visible_line(&self.host.agent.id))
    }

    fn options(&self, question: &ChangeQuestion, mode: &str) -> Vec<PermissionOption> {
        let below = folder(question).map(|folder| match self.inside(folder) {
            Some(inside) if inside.as_os_str().is_empty() => "in this folder".to_owned(),
            Some(inside) => format!("below {}", text::quoted_name(&inside.to_string_lossy())),
            None => format!("below {}", text::quoted_name(&folder.to_string_lossy())),
        });
        let options = OPTIONS.iter().filter_map(|(id, kind, scope)| {
            let name = match scope {
                Some(ConsentScope::Path) => "Allow (this file, this turn)".to_owned(),
                Some(ConsentScope::Folder) => format!("Allow all changes {} (this turn)", below.as_ref()?),
                Some(ConsentScope::Turn) => "Allow all changes (this turn)".to_owned(),
                Some(ConsentScope::Session) => format!("Allow all changes (this session, {mode} mode)"),
                None if *id == REJECT_TURN => "Reject all changes (this turn)".to_owned(),
                None => "Reject".to_owned(),
            };
            Some(PermissionOption::new(*id, name, *kind))
        });
        options.collect()
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
