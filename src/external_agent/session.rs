//! The external agent of a session: started for the current mode, stopped when a tighter one is set, started
//! again for the next prompt. [`ExternalAgentSession::handle`] takes each message, and returns the
//! [`AgentOutput`]s for the session's actor.
//!
//! The process has a permit at the gate ([`super::capability`]). An unsandboxed process ends before Modegate
//! confirms a mode that requires the sandbox.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;

use super::capability::Control;
use super::client::{ExternalAgent, ExternalAgentError};
use super::options;
use super::requested_call::{Readers, RequestedCall};
use crate::acp::{
    AvailableCommand, McpServer, SessionConfigOption, SessionId, SessionModeId, SessionUpdate, ToolCallId,
};
use crate::agents::AgentSpec;
use crate::client::{Client, ClientCapabilities};
use crate::conversation::open_calls::is_end;
use crate::event::SessionEvent;
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::gate::Gate;
use crate::hooks::runner::Hooks;
use crate::lazy_channel::LazyChannel;
use crate::permission::Ceilings;
use crate::process::TerminalAccess;
use crate::process::shell::Shell;
use change::AskedChanges;
pub use change::LIMIT as QUESTION_LIMIT;
use change_source::ChangeSource;
pub use message::{AgentMessage, AgentOutput, ReadyReply, WaitingPrompt};
use message::{ProcessMessage, Relayed, RequestId};
use permission::ForwardedRequest;
use process::AgentProcess;
use process_state::{ProcessAccess, ProcessState};
pub use prompt::{PromptOutcome, ReadyAgent};
pub use refused_act::RefusedAct;
pub use retained_context::RetainedContext;

mod change;
mod change_call;
mod change_source;
mod consents;
mod denied_change;
mod git_data;
mod hooked_change;
mod host;
mod message;
mod model_note;
mod moved_content;
mod permission;
mod process;
mod process_state;
mod prompt;
mod question;
mod refusal_notices;
mod refused_act;
mod relay;
mod restart;
mod retained_context;
mod run;
mod temporary;

pub struct ExternalAgentSession {
    host: ExternalAgentHost,
    /// Unbounded: updates take send permits, and no message may wait for a session that is ending.
    messages: LazyChannel<AgentMessage>,
    state: ProcessState,
    /// `None` in [`ProcessState::Stopped`].
    process: Option<AgentProcess>,
    waiting: Vec<WaitingPrompt>,
    /// Number of the last start. A restored session continues from its event count, which keeps ids unique.
    starts: u64,
    retained_context: RetainedContext,
    /// The agent's own mode before the sandbox.
    mode_to_restore: Option<SessionModeId>,
    /// The user declined a restart without the sandbox.
    stays_sandboxed: bool,
    commands: Vec<AvailableCommand>,
    calls: HashMap<ToolCallId, RequestedCall>,
    open_requests: HashMap<RequestId, ForwardedRequest>,
    restart_question: CancellationToken,
    asked_changes: AskedChanges,
}

/// The session that the agent answers.
pub struct ExternalAgentHost {
    /// Its definition is `None` in a session of Modegate's own agents.
    pub agent: Arc<AgentSpec>,
    pub session: SessionId,
    pub client: Client,
    pub hooks: Hooks,
    /// `None` if external agents do not start.
    pub shell: Option<Shell>,
    pub control: Control,
    pub cwd: PathBuf,
    pub directories: Vec<PathBuf>,
    pub servers: Vec<McpServer>,
    pub capabilities: ClientCapabilities,
    pub readers: Readers,
}

impl ExternalAgentHost {
    /// What messages call the process.
    fn kind(&self) -> &'static str {
        if self.is_terminal_program() { "program" } else { "agent" }
    }

    /// True for a program whose terminal has a line of Modegate at the start, and perhaps the panel.
    fn has_terminal_host(&self) -> bool {
        let definition = self.agent.external_agent.as_ref();
        definition.is_some_and(|definition| definition.terminal_program == Some(TerminalAccess::Foreground))
    }

    fn announces_sandbox(&self) -> bool {
        let definition = self.agent.external_agent.as_ref();
        !self.has_terminal_host() && definition.is_none_or(|definition| !definition.hides_sandbox)
    }

    /// True for a program that has a terminal, and no interface in the client.
    fn is_terminal_program(&self) -> bool {
        self.agent.external_agent.as_ref().is_some_and(|definition| definition.terminal_program.is_some())
    }
}

/// Current limits of the session.
pub struct AgentLimits {
    pub mode: SessionModeId,
    /// Ceilings of a new process.
    pub ceilings: Ceilings,
    /// Ceilings of a request, which include those of the last prompt.
    pub call_ceilings: Ceilings,
    /// True if the session's own mode requires no sandbox.
    pub is_mode_unrestricted: bool,
}

impl ExternalAgentSession {
    pub fn new(host: ExternalAgentHost) -> Self {
        Self {
            host,
            messages: LazyChannel::default(),
            state: ProcessState::Stopped,
            process: None,
            waiting: Vec::new(),
            starts: 0,
            retained_context: RetainedContext::default(),
            mode_to_restore: None,
            stays_sandboxed: false,
            commands: Vec::new(),
            calls: HashMap::new(),
            open_requests: HashMap::new(),
            restart_question: CancellationToken::new(),
            asked_changes: AskedChanges::default(),
        }
    }

    pub fn resume(
        &mut self,
        events: u64,
        retained_context: RetainedContext,
        mode_to_restore: Option<SessionModeId>,
    ) {
        (self.starts, self.retained_context, self.mode_to_restore) =
            (events, retained_context, mode_to_restore);
    }

    /// Cancel-safe: a dropped call loses no message.
    pub async fn next(&mut self) -> Option<AgentMessage> {
        self.messages.recv().await
    }

    /// `None` while no process runs.
    pub fn client(&self) -> Option<&ExternalAgent> {
        self.process.as_ref()?.agent.as_ref()
    }

    /// Folder of the record of the changes of the running process. `None` if they are not recorded.
    pub fn record(&self) -> Option<&Path> {
        self.process.as_ref()?.record()
    }

    pub fn commands(&self) -> &[AvailableCommand] {
        &self.commands
    }

    /// Merges the `shared` options of the session with those of the agent.
    pub fn options(&self, own: Vec<SessionConfigOption>, shared: &[&str]) -> Vec<SessionConfigOption> {
        if self.definition().is_none() {
            return own;
        }
        let agent_options = self.client().map(ExternalAgent::options).unwrap_or_default();
        let modes = self.client().and_then(ExternalAgent::modes);
        options::merged(own, shared, &agent_options, modes.as_ref())
    }

    /// Returns the options at the time when the future is awaited.
    pub fn current_options(&self) -> impl Future<Output = Option<Vec<SessionConfigOption>>> + use<> {
        let to = self.messages.sender();
        async move {
            let (reply, options) = oneshot::channel();
            to.send(AgentMessage::Options(reply)).ok()?;
            options.await.ok()
        }
    }

    fn definition(&self) -> Option<&Arc<ExternalAgentDefinition>> {
        self.host.agent.external_agent.as_ref()
    }

    /// True if no process is left.
    pub fn is_stopped(&self) -> bool {
        self.state == ProcessState::Stopped
    }

    /// `limits` is read only for messages that depend on it, because updates are many.
    pub fn handle(
        &mut self,
        message: AgentMessage,
        limits: impl FnOnce() -> AgentLimits,
        gate: &mut Gate,
    ) -> Vec<AgentOutput> {
        self.observe();
        match message {
            AgentMessage::Prompt(prompt) => self.want(Some(prompt), &limits(), gate),
            AgentMessage::Prepare => self.want(None, &limits(), gate),
            AgentMessage::ModeChanging => {
                // The question about a restart, or its answer, concerned the old mode.
                self.restart_question.cancel();
                self.stays_sandboxed = false;
                Vec::new()
            }
            AgentMessage::ModeChanged { tightened } => self.mode_changed(tightened, &limits(), gate),
            AgentMessage::TurnCancelled => {
                let (changes, source) = self.asked_changes();
                changes.refuse(&source)
            }
            AgentMessage::TurnEnded => {
                let (changes, source) = self.asked_changes();
                changes.end_turn(&source)
            }
            AgentMessage::Closing => self.close(),
            AgentMessage::Closed => {
                self.waiting.clear();
                // The last handle of the agent: its relay ends once there is none.
                if let Some(process) = &mut self.process {
                    (process.agent, process.program) = (None, None);
                }
                self.close()
            }
            AgentMessage::Relayed(relayed, send_permit) => self.relayed(relayed, send_permit, limits, gate),
            AgentMessage::Process(start, message) => {
                if self.process.as_ref().is_none_or(|process| process.start != start) {
                    // The message is about an earlier process.
                    return Vec::new();
                }
                self.process_message(message, &limits(), gate)
            }
            AgentMessage::Restart(restarts) => {
                let Some(prompt) = self.waiting.pop() else { return Vec::new() };
                self.stays_sandboxed = restarts == Some(false);
                if restarts == Some(true) {
                    self.retained_context.discard();
                }
                self.want(Some(prompt), &limits(), gate)
            }
            AgentMessage::Options(reply) => vec![AgentOutput::ReplyOptions(reply)],
        }
    }

    fn process_message(
        &mut self,
        message: ProcessMessage,
        limits: &AgentLimits,
        gate: &mut Gate,
    ) -> Vec<AgentOutput> {
        match message {
            ProcessMessage::ProgramStarted(program) => {
                if let Some(process) = &mut self.process {
                    process.program = Some(program);
                }
                Vec::new()
            }
            ProcessMessage::Started(Ok(started)) => self.started(started, limits, gate),
            ProcessMessage::Started(Err(error)) => self.ended(&error, limits, gate),
            ProcessMessage::Switched { mode_to_restore } => {
                self.mode_to_restore = mode_to_restore;
                let mut outputs = vec![self.retain()];
                outputs.extend(self.follow(limits, gate));
                outputs
            }
            ProcessMessage::Broker { event, content } => {
                let (changes, source) = self.asked_changes();
                changes.broker_event(event, content, &source, limits)
            }
            ProcessMessage::ChangeHooked(hooked) => {
                let (changes, source) = self.asked_changes();
                changes.hooked(hooked, &source, limits)
            }
            ProcessMessage::ChangeAnswered(answered) => {
                let (changes, source) = self.asked_changes();
                changes.answered(answered, &source, limits)
            }
            ProcessMessage::Ended { why } => {
                for (_, request) in std::mem::take(&mut self.open_requests) {
                    self.host.client.withdraw(request.id);
                }
                let (changes, source) = self.asked_changes();
                let mut outputs = changes.forget(&source);
                outputs.extend(self.ended(&ExternalAgentError::Ended(why), limits, gate));
                outputs
            }
        }
    }

    fn relayed(
        &mut self,
        relayed: Relayed,
        send_permit: Option<OwnedSemaphorePermit>,
        limits: impl FnOnce() -> AgentLimits,
        gate: &mut Gate,
    ) -> Vec<AgentOutput> {
        match relayed {
            Relayed::Event(event) => {
                if let SessionEvent::ForwardedUpdate { update } = &event {
                    self.note_call(update);
                }
                vec![AgentOutput::Record(event, send_permit)]
            }
            Relayed::Transient(update) => {
                self.note_call(&update);
                vec![AgentOutput::Show(update, send_permit)]
            }
            Relayed::Commands(commands) => {
                self.commands = commands;
                vec![AgentOutput::ShowCommands]
            }
            Relayed::Options => vec![AgentOutput::ShowOptions],
            Relayed::Request(request) => self.request(request, &limits(), gate),
            Relayed::HookedRequest(hooked) => self.hooked_request(hooked, &limits(), gate),
            Relayed::Answered { number, answer, reply } => self.answered(number, answer, reply, &limits()),
            Relayed::Closed(number) => {
                self.close_request(number);
                Vec::new()
            }
        }
    }

    fn mode_changed(&mut self, tightened: bool, limits: &AgentLimits, gate: &mut Gate) -> Vec<AgentOutput> {
        let mut outputs = Vec::new();
        if !tightened && matches!(self.state.access(), Some(ProcessAccess::Brokered(_))) {
            // The agent's requests follow, too: the start of a reply of its model is unknown.
            outputs.push(AgentOutput::BeginReply);
        }
        outputs.extend(self.follow(limits, gate));
        let (changes, source) = self.asked_changes();
        outputs.extend(changes.decide_again(&source, limits));
        outputs
    }

    fn asked_changes(&mut self) -> (&mut AskedChanges, ChangeSource<'_>) {
        let start = self.process.as_ref().map_or(0, |process| process.start);
        let program = self.process.as_ref().and_then(|process| process.program.as_ref());
        let source = ChangeSource { host: &self.host, start, program, messages: &self.messages };
        (&mut self.asked_changes, source)
    }

    fn note_call(&mut self, update: &SessionUpdate) {
        let (id, status) = match update {
            SessionUpdate::ToolCall(call) => {
                self.calls.insert(call.tool_call_id.clone(), RequestedCall::announced(call));
                (&call.tool_call_id, Some(call.status))
            }
            SessionUpdate::ToolCallUpdate(update) => {
                let (id, fields) = (&update.tool_call_id, &update.fields);
                // Content may arrive after the end of its call, and then says nothing new.
                if fields.status.is_some() || fields.kind.is_some() || self.calls.contains_key(id) {
                    self.calls.entry(id.clone()).or_default().apply(fields);
                }
                (id, fields.status)
            }
            _ => return,
        };
        if status.is_some_and(is_end) {
            self.calls.remove(id);
            self.asked_changes.consents.end_call(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::agents::AgentRegistry;
    use crate::mode::Modes;
    use crate::permission::Commands;

    fn own_agents_session() -> ExternalAgentSession {
        let agent = Arc::clone(AgentRegistry::default().iter().next().unwrap());
        ExternalAgentSession::new(ExternalAgentHost {
            agent,
            session: SessionId::new("sess_1"),
            client: crate::client::channel().0,
            hooks: Hooks::default(),
            shell: None,
            control: Control::None,
            cwd: PathBuf::from("/"),
            directories: Vec::new(),
            servers: Vec::new(),
            capabilities: ClientCapabilities::default(),
            readers: Readers { command: |_| Commands::default(), address: |_| None },
        })
    }

    #[test]
    fn session_without_an_external_agent_has_no_channel_for_one() {
        let mut session = own_agents_session();
        assert!(session.definition().is_none());
        let modes = Modes::built_in().ceilings("code").unwrap();
        let ceilings = Ceilings { modes, rules: Vec::new() };
        let limits = || AgentLimits {
            mode: SessionModeId::new("code"),
            ceilings: ceilings.clone(),
            call_ceilings: ceilings.clone(),
            is_mode_unrestricted: true,
        };
        for message in [
            AgentMessage::ModeChanging,
            AgentMessage::ModeChanged { tightened: true },
            AgentMessage::ModeChanged { tightened: false },
            AgentMessage::TurnCancelled,
            AgentMessage::TurnEnded,
        ] {
            session.handle(message, limits, &mut Gate::default());
        }
        assert!(matches!(session.next().now_or_never(), Some(None)));
        drop(session.current_options());
        assert!(session.next().now_or_never().is_none(), "a sender was made");
    }
}
