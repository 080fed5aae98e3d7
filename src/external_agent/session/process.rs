//! The process of an external agent: started as the mode requires, followed through its states
//! ([`super::process_state`]), and started again after its end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::message::{AgentOutput, StartedAgent, WaitingPrompt};
use super::process_state::{Loosening, ProcessAccess, ProcessAction, ProcessEvent, ProcessState};
use super::prompt::ReadyAgent;
use super::relay::ExternalAgentRelay;
use super::run::{AgentRun, NewPermit, PermittedChanges, policy_of, report_panic};
use super::{AgentLimits, ExternalAgentSession, restart};
use crate::acp::ToolCallId;
use crate::client;
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::external_agent::{ExternalAgent, ExternalAgentError, StartRequest, capability};
use crate::gate::{Gate, Permit};
use crate::permission::CallFacts;
use crate::permission::external::{ChangeLevel, change_level, facts_of_changes};
use crate::process::BrokerPolicy;
use crate::process::program::Program;

const PROCESS_CALL: &str = "agent";

/// Stands for the changes of a brokered process, which goes on without them.
const CHANGES_CALL: &str = "agent_changes";

/// How long the answer about a looser mode waits for an agent that is starting or at work.
pub(super) const APPLIED_LIMIT: Duration = Duration::from_millis(500);

/// Handles of a process. Its [`ProcessState`] says which changes it may make.
pub(super) struct AgentProcess {
    pub start: u64,
    /// `None` if the process is not brokered.
    changes: Option<ChangePermits>,
    /// The sandbox that the user was last told about.
    announced: Option<bool>,
    /// `None` before the program runs.
    pub program: Option<Program>,
    /// `None` if the process was never ready.
    pub agent: Option<ExternalAgent>,
    /// Folder of the record of changes. `None` if changes are not recorded.
    record: Option<PathBuf>,
    fences: mpsc::Sender<oneshot::Sender<()>>,
    /// Shuts the process down gracefully when cancelled.
    stop: CancellationToken,
    _stops: DropGuard,
    /// Cancelled when a mode change ends the process.
    stopped: CancellationToken,
}

/// Permits of a brokered process to change files.
struct ChangePermits {
    /// Cancelled when a mode denies the last permit.
    denied: Option<CancellationToken>,
    permits: mpsc::UnboundedSender<NewPermit>,
    /// Number of the last permit that was sent, and of the last one whose level applies to the process.
    sent: u64,
    applied: watch::Receiver<u64>,
}

impl AgentProcess {
    pub(super) fn record(&self) -> Option<&Path> {
        self.record.as_deref()
    }

    /// Events that the handles tell of. Repeated ones change nothing.
    fn events(&self) -> impl Iterator<Item = ProcessEvent> + use<> {
        let changes = self.changes.as_ref();
        let denied = changes.and_then(|changes| changes.denied.as_ref());
        let events = [
            (denied.is_some_and(CancellationToken::is_cancelled), ProcessEvent::Denied),
            (changes.is_some_and(|changes| *changes.applied.borrow() == changes.sent), ProcessEvent::Applied),
            (self.agent.as_ref().is_some_and(ExternalAgent::is_over), ProcessEvent::Exited),
            (self.stopped.is_cancelled(), ProcessEvent::Cancelled),
        ];
        events.into_iter().filter_map(|(has_happened, event)| has_happened.then_some(event))
    }
}

impl ExternalAgentSession {
    /// Catches up with the process, whose permits the gate cancels without a message.
    pub(super) fn observe(&mut self) {
        for event in self.process.iter().flat_map(AgentProcess::events) {
            self.state = self.state.on(event).0;
        }
    }

    pub(super) fn is_sandboxed(&self) -> bool {
        self.state.access().is_some_and(ProcessAccess::is_sandboxed)
    }

    /// Waits until a looser mode applies to a brokered process, for [`APPLIED_LIMIT`] at most.
    pub fn applied(&self) -> impl Future<Output = ()> + use<> {
        let changes = self.process.as_ref().and_then(|process| process.changes.as_ref());
        let applied = changes.map(|changes| (changes.sent, changes.applied.clone()));
        async move {
            if let Some((sent, mut applied)) = applied {
                // Also over when the process is.
                let _ = timeout(APPLIED_LIMIT, applied.wait_for(|number| *number >= sent)).await;
            }
        }
    }

    /// Starts the agent or makes it follow the mode, for a prompt or before the first one.
    pub(super) fn want(
        &mut self,
        prompt: Option<WaitingPrompt>,
        limits: &AgentLimits,
        gate: &mut Gate,
    ) -> Vec<AgentOutput> {
        if let Some(text) = self.refusal(limits) {
            refuse(prompt, &ExternalAgentError::NotStarted(text));
            return Vec::new();
        }
        let loosening = if self.stays_sandboxed {
            Loosening::Stay
        } else if prompt.is_some() && self.retained_context.is_lost_by_restart() {
            Loosening::Ask
        } else {
            Loosening::Restart
        };
        self.waiting.extend(prompt);
        let required = self.required_access(limits);
        self.advance(ProcessEvent::Wanted { required, loosening }, limits, gate)
    }

    pub(super) fn follow(&mut self, limits: &AgentLimits, gate: &mut Gate) -> Vec<AgentOutput> {
        let required = self.required_access(limits);
        self.advance(ProcessEvent::Followed { required }, limits, gate)
    }

    pub(super) fn advance(
        &mut self,
        event: ProcessEvent,
        limits: &AgentLimits,
        gate: &mut Gate,
    ) -> Vec<AgentOutput> {
        let (state, action) = self.state.on(event);
        self.state = state;
        match action {
            ProcessAction::Start => return self.start(gate).into_iter().collect(),
            ProcessAction::AskToRestart => self.ask_to_restart(limits),
            ProcessAction::ShutDown => self.shut_down(),
            ProcessAction::PermitChanges(level) => {
                return self.permit_changes(level, gate).into_iter().collect();
            }
            ProcessAction::AnswerPrompts => return self.answer_prompts(limits),
            ProcessAction::Nothing | ProcessAction::StartAgain | ProcessAction::FailPrompts => {}
        }
        Vec::new()
    }

    pub(super) fn close(&mut self) -> Vec<AgentOutput> {
        self.state = self.state.on(ProcessEvent::Closed).0;
        self.shut_down();
        Vec::new()
    }

    fn shut_down(&self) {
        if let Some(process) = &self.process {
            process.stop.cancel();
        }
    }

    /// The reason why no process can be as the mode requires.
    fn refusal(&self, limits: &AgentLimits) -> Option<String> {
        if self.definition().is_none() {
            return Some("this agent no longer exists".into());
        }
        if capability::is_sandboxed(&limits.ceilings, self.host.control).is_none() {
            return Some(format!("it cannot be sandboxed for {} mode", limits.mode));
        }
        self.host.shell.is_none().then(|| "deterministic runs do not start external agents".into())
    }

    fn required_access(&self, limits: &AgentLimits) -> ProcessAccess {
        if self.definition().is_some_and(|definition| definition.is_brokered()) {
            let level = change_level(&limits.ceilings).unwrap_or(ChangeLevel::Nothing);
            // A hook that may refuse changes gets each of them.
            let most = if self.host.hooks.denies() { ChangeLevel::Decided } else { ChangeLevel::All };
            return ProcessAccess::Brokered(level.min(most));
        }
        match capability::is_sandboxed(&limits.ceilings, self.host.control) {
            Some(false) => ProcessAccess::Unsandboxed,
            Some(true) | None => ProcessAccess::Sandboxed,
        }
    }

    fn ask_to_restart(&mut self, limits: &AgentLimits) {
        self.restart_question = CancellationToken::new();
        if let Some(prompt) = self.waiting.last() {
            let void = self.restart_question.clone();
            restart::ask(&self.host, &limits.mode, prompt, void, self.messages.sender());
        }
    }

    /// [`super::message::ProcessMessage::Switched`] follows.
    fn permit_changes(&mut self, level: ChangeLevel, gate: &mut Gate) -> Option<AgentOutput> {
        let changes = self.process.as_mut()?.changes.as_mut()?;
        let permit = admit_changes(gate, level)?;
        let (recorded, to_permit) = oneshot::channel();
        changes.denied = Some(permit.cancel.clone());
        changes.sent += 1;
        // If the process has ended, its end answers the waiting prompts.
        let _ = changes.permits.send(NewPermit { number: changes.sent, level, permit, recorded: to_permit });
        Some(AgentOutput::RecordChanges { level, recorded })
    }

    pub(super) fn retain(&self) -> AgentOutput {
        AgentOutput::Retain {
            session: self.retained_context.session_id().map(str::to_owned),
            mode: self.mode_to_restore.as_ref().map(ToString::to_string),
        }
    }

    fn answer_prompts(&mut self, limits: &AgentLimits) -> Vec<AgentOutput> {
        self.waiting.retain(|prompt| !prompt.reply.is_closed());
        let is_sandboxed = self.is_sandboxed();
        let Some(process) = self.process.as_mut().filter(|_| !self.waiting.is_empty()) else {
            return Vec::new();
        };
        let Some(agent) = process.agent.clone() else { return Vec::new() };
        let copied = if process.announced.is_none() { agent.copied() } else { &[] };
        let was_announced = process.announced.replace(is_sandboxed) == Some(is_sandboxed);
        let name = &self.host.agent.id;
        let kind = self.host.kind();
        let mut outputs = Vec::new();
        if let [first, rest @ ..] = copied {
            let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            outputs.push(AgentOutput::Notice(format!(
                "Before the start of the {kind} {name}, Modegate replaced hard links in its state folders by \
                 copies, because their files have names elsewhere, too: {}{more}.\n\n",
                first.display()
            )));
        }
        if !is_sandboxed && process.record.is_none() {
            outputs.push(AgentOutput::Uncovered(format!(
                "Changes that the {kind} {name} makes with its own tools are unknown and cannot be undone."
            )));
        } else if is_sandboxed && !was_announced && self.host.announces_sandbox() {
            // Explains why changes fail, which the agent itself may not do.
            let when = if limits.is_mode_unrestricted {
                "in every mode of this session".to_owned()
            } else {
                format!("in {} mode", limits.mode)
            };
            outputs.push(AgentOutput::Notice(format!(
                "The {kind} {name} is sandboxed: {when} all changes that it attempts fail.\n\n"
            )));
        }
        let ready = ReadyAgent {
            fences: process.fences.clone(),
            stopped: process.stopped.clone(),
            record: process.record.clone(),
            is_sandboxed,
            note: self.asked_changes.note.take().filter(|_| !self.host.is_terminal_program()),
            agent,
        };
        self.asked_changes.begin_turn();
        self.retained_context.add();
        // Until the next prompt, the agent may not exceed the current ceilings.
        outputs.push(AgentOutput::BeginReply);
        outputs.push(AgentOutput::AnswerPrompts(std::mem::take(&mut self.waiting), Box::new(ready)));
        outputs
    }

    fn start(&mut self, gate: &mut Gate) -> Option<AgentOutput> {
        let (definition, shell) = (self.definition().cloned()?, self.host.shell.clone()?);
        self.starts += 1;
        let start = self.starts;
        let level = match self.state.access()? {
            ProcessAccess::Brokered(level) => Some(level),
            ProcessAccess::Unsandboxed | ProcessAccess::Sandboxed => None,
        };
        let is_sandboxed = self.is_sandboxed();
        let roots: Vec<_> = [&self.host.cwd].into_iter().chain(&self.host.directories).cloned().collect();
        let unrecorded = definition.sandbox.as_ref().map(|sandbox| shell.unrecorded(sandbox.folders(&roots)));
        // A start with wrong folders fails.
        self.asked_changes.unrecorded = unrecorded.and_then(Result::ok).unwrap_or_default();
        self.asked_changes.caches = shell.agent_caches(&roots);
        let permit = admit(gate, PROCESS_CALL, is_sandboxed || level.is_some());
        let may_change = level.and_then(|level| admit_changes(gate, level));
        let denied = may_change.as_ref().map(|permit| permit.cancel.clone());
        let (permits, new_permits) = mpsc::unbounded_channel();
        let (applied, to_apply) = watch::channel(0);
        let (fences, to_fence) = mpsc::channel(4);
        let (recorded, to_run) = oneshot::channel();
        let stop = CancellationToken::new();
        let stopped = permit.cancel.clone();
        let request = StartRequest {
            name: self.host.agent.id.clone(),
            definition: ExternalAgentDefinition::clone(&definition),
            sandboxed: is_sandboxed,
            policy: level.map_or(BrokerPolicy::Nothing, policy_of),
            cwd: self.host.cwd.clone(),
            directories: self.host.directories.clone(),
            servers: self.host.servers.clone(),
            capabilities: self.host.capabilities,
            load: self.retained_context.session_id().map(str::to_owned),
            record: None,
        };
        let (client, end) = client::channel();
        let to = self.messages.sender();
        let relay = ExternalAgentRelay {
            start,
            to: to.clone(),
            client: self.host.client.clone(),
            cancel: stop.clone(),
            fences: to_fence,
        };
        let run = AgentRun {
            request,
            shell,
            session: self.host.session.clone(),
            client,
            modes: definition.modes.clone(),
            mode_to_restore: self.mode_to_restore.clone(),
            permit,
            changes: PermittedChanges { permit: may_change, new_permits, applied },
            stop: stop.clone(),
            recorded: to_run,
            to,
            start,
        };
        let ending = self.messages.sender();
        tokio::spawn(report_panic(tokio::spawn(run.run(tokio::spawn(relay.run(end)))), start, ending));
        let changes = ChangePermits { denied, permits, sent: 0, applied: to_apply };
        self.process = Some(AgentProcess {
            start,
            changes: level.is_some().then_some(changes),
            announced: None,
            program: None,
            agent: None,
            record: None,
            fences,
            _stops: stop.clone().drop_guard(),
            stop,
            stopped,
        });
        let is_decided = level == Some(ChangeLevel::Decided);
        Some(AgentOutput::RecordStart { is_sandboxed, is_decided, recorded })
    }

    pub(super) fn started(
        &mut self,
        started: StartedAgent,
        limits: &AgentLimits,
        gate: &mut Gate,
    ) -> Vec<AgentOutput> {
        let StartedAgent { agent, context, mode_to_restore, record } = started;
        let ProcessState::Starting(_) = self.state else { return Vec::new() };
        let mut outputs = self.advance(ProcessEvent::Started, limits, gate);
        if let Some(process) = &mut self.process {
            process.agent = Some(agent.clone());
            process.record = record.filter(|_| process.changes.is_some());
        }
        let session = agent.can_load().then(|| agent.session_id());
        let lost_context = self.retained_context.started(session, context);
        self.mode_to_restore = mode_to_restore;
        outputs.push(self.retain());
        let name = &self.host.agent.id;
        if let Some(why) = lost_context {
            outputs.push(AgentOutput::Notice(format!(
                "The agent {name} was restarted and has lost the earlier conversation{why}.\n\n"
            )));
        }
        let requested = self.definition().and_then(|definition| {
            let modes = &definition.modes;
            if self.is_sandboxed() { modes.read_only.as_deref() } else { modes.full.as_deref() }
        });
        if let Some(missing) = requested.and_then(|id| agent.missing_mode(id)) {
            outputs.push(AgentOutput::NoticeInTurn(format!("The agent {name} has no {missing}.\n\n")));
        }
        outputs.push(AgentOutput::ShowOptions);
        // The mode may have changed, and the agent has not received the prompt yet.
        outputs.extend(match self.waiting.pop() {
            Some(prompt) => self.want(Some(prompt), limits, gate),
            None => self.follow(limits, gate),
        });
        outputs
    }

    /// Starts the agent again for a waiting prompt if a restart or a mode change ended it.
    pub(super) fn ended(
        &mut self,
        error: &ExternalAgentError,
        limits: &AgentLimits,
        gate: &mut Gate,
    ) -> Vec<AgentOutput> {
        let (state, action) = self.state.on(ProcessEvent::Ended);
        (self.state, self.process) = (state, None);
        self.restart_question.cancel();
        self.waiting.retain(|prompt| !prompt.reply.is_closed());
        if action == ProcessAction::StartAgain
            && let Some(next) = self.waiting.pop()
        {
            return self.want(Some(next), limits, gate);
        }
        refuse(self.waiting.drain(..), error);
        Vec::new()
    }
}

fn refuse(prompts: impl IntoIterator<Item = WaitingPrompt>, error: &ExternalAgentError) {
    for prompt in prompts {
        // The turn may be cancelled by now.
        let _ = prompt.reply.send(Err(error.clone()));
    }
}

/// Such an effect belongs to no turn.
pub(super) fn admit(gate: &mut Gate, call: &str, is_sandboxed: bool) -> Permit {
    gate.admit(
        ToolCallId::new(call),
        CallFacts::of_external_process(is_sandboxed),
        0,
        &CancellationToken::new(),
    )
}

/// `None` if nothing may be changed.
fn admit_changes(gate: &mut Gate, level: ChangeLevel) -> Option<Permit> {
    let facts = facts_of_changes(level)?;
    Some(gate.admit(ToolCallId::new(CHANGES_CALL), facts, 0, &CancellationToken::new()))
}
