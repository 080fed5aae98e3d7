//! The external agent of a session: started for the current mode, stopped when a tighter one is set, started
//! again for the next prompt. Methods return the [`Effect`]s for the session's actor.
//!
//! The process has a permit at the gate ([`super::capability`]). An unsandboxed process ends before Modegate
//! confirms a mode that requires the sandbox.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::oneshot;
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
use crate::lazy_channel::LazyChannel;
use crate::permission::Ceilings;
use crate::process::shell::Shell;
pub use change::LIMIT as QUESTION_LIMIT;
use change::{AskedChanges, Asker};
use message::Relayed;
pub use message::{Effect, Message};
use permission::{OpenRequest, RequestId};
use process::Running;
pub use prompt::{PromptOutcome, Ready};
pub use restart::CurrentTurn;
pub use retained_context::RetainedContext;

mod change;
mod consents;
mod host;
mod message;
mod permission;
mod process;
mod prompt;
mod relay;
mod restart;
mod retained_context;
mod run;

pub type Waiting = oneshot::Sender<Result<Ready, ExternalAgentError>>;

pub struct ExternalAgentSession {
    host: Host,
    /// Unbounded: updates take send permits, and no message may wait for a session that is ending.
    messages: LazyChannel<Message>,
    running: Option<Running>,
    waiting: Vec<Waiting>,
    /// Number of the last start. A restored session continues from its event count, which keeps ids unique.
    starts: u64,
    retained_context: RetainedContext,
    /// The agent's own mode before the sandbox.
    previous_mode: Option<SessionModeId>,
    restarts: bool,
    /// The user declined a restart without the sandbox.
    stays_sandboxed: bool,
    commands: Vec<AvailableCommand>,
    calls: HashMap<ToolCallId, RequestedCall>,
    open_requests: HashMap<RequestId, OpenRequest>,
    restart_question: CancellationToken,
    asked_changes: AskedChanges,
}

/// The session that the agent answers.
pub struct Host {
    /// Its definition is `None` in a session of Modegate's own agents.
    pub agent: Arc<AgentSpec>,
    pub session: SessionId,
    pub client: Client,
    /// `None` if external agents do not start.
    pub shell: Option<Shell>,
    pub control: Control,
    pub cwd: PathBuf,
    pub directories: Vec<PathBuf>,
    pub servers: Vec<McpServer>,
    pub capabilities: ClientCapabilities,
    pub readers: Readers,
}

/// Current limits of the session.
pub struct Limits {
    pub mode: SessionModeId,
    /// Ceilings of a new process.
    pub ceilings: Ceilings,
    /// Ceilings of a request, which include those of the last prompt.
    pub call_ceilings: Ceilings,
    /// True if the session's own mode requires no sandbox.
    pub is_mode_unrestricted: bool,
}

impl ExternalAgentSession {
    pub fn new(host: Host) -> Self {
        Self {
            host,
            messages: LazyChannel::default(),
            running: None,
            waiting: Vec::new(),
            starts: 0,
            retained_context: RetainedContext::default(),
            previous_mode: None,
            restarts: false,
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
        previous_mode: Option<SessionModeId>,
    ) {
        (self.starts, self.retained_context, self.previous_mode) = (events, retained_context, previous_mode);
    }

    /// Cancel-safe: a dropped call loses no message.
    pub async fn next(&mut self) -> Option<Message> {
        self.messages.recv().await
    }

    /// `None` while no process runs.
    pub fn client(&self) -> Option<&ExternalAgent> {
        self.running.as_ref()?.agent.as_ref()
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
    pub fn current_options(&mut self) -> impl Future<Output = Option<Vec<SessionConfigOption>>> + use<> {
        let to = self.messages.sender();
        async move {
            let (reply, options) = oneshot::channel();
            to.send(Message::Options(reply)).ok()?;
            options.await.ok()
        }
    }

    fn definition(&self) -> Option<&Arc<ExternalAgentDefinition>> {
        self.host.agent.external_agent.as_ref()
    }

    fn is_sandboxed(&self) -> bool {
        self.running.as_ref().is_some_and(Running::is_sandboxed)
    }

    /// `limits` is read only for messages that depend on it, because updates are many.
    pub fn handle(
        &mut self,
        message: Message,
        limits: impl FnOnce() -> Limits,
        gate: &mut Gate,
    ) -> Vec<Effect> {
        let is_current = |start| self.running.as_ref().is_some_and(|running| running.start == start);
        match message {
            Message::Relayed(relayed, send_permit) => match relayed {
                Relayed::Event(event) => {
                    if let SessionEvent::ForwardedUpdate { update } = &event {
                        self.note_call(update);
                    }
                    vec![Effect::Record(event, send_permit)]
                }
                Relayed::Transient(update) => {
                    self.note_call(&update);
                    vec![Effect::Show(update, send_permit)]
                }
                Relayed::Commands(commands) => {
                    self.commands = commands;
                    vec![Effect::ShowCommands]
                }
                Relayed::Options => vec![Effect::ShowOptions],
                Relayed::Request(request) => self.request(request, &limits(), gate),
                Relayed::Answered { number, answer, reply } => {
                    self.answered(number, answer, reply, &limits())
                }
                Relayed::Closed(number) => {
                    self.close_request(number);
                    Vec::new()
                }
            },
            Message::Started { start, outcome: Ok(started) } if is_current(start) => {
                self.started(started, &limits())
            }
            Message::Started { start, outcome: Err(error) } if is_current(start) => {
                self.ended(&error, &limits())
            }
            Message::Switched { start, previous_mode } if is_current(start) => {
                self.previous_mode = previous_mode;
                let retain = self.retain();
                std::iter::once(retain).chain(self.follow_mode(&limits())).collect()
            }
            Message::Broker { start, event } if is_current(start) => {
                let (changes, asker) = self.asked_changes();
                changes.broker_event(event, &asker, &limits())
            }
            Message::ChangeAnswered { start, change, answer } if is_current(start) => {
                let (changes, asker) = self.asked_changes();
                changes.answered(change, answer, &asker, &limits())
            }
            Message::Started { .. }
            | Message::Switched { .. }
            | Message::Broker { .. }
            | Message::ChangeAnswered { .. } => Vec::new(),
            Message::Ended { start, why } => {
                let is_current = is_current(start);
                for (_, open_request) in std::mem::take(&mut self.open_requests) {
                    self.host.client.withdraw(open_request.id);
                }
                if !is_current {
                    return Vec::new();
                }
                let (changes, asker) = self.asked_changes();
                let mut effects = changes.forget(&asker);
                effects.extend(self.ended(&ExternalAgentError::Ended(why), &limits()));
                effects
            }
            Message::Options(reply) => vec![Effect::ReplyOptions(reply)],
            Message::Restart(restarts) => {
                let Some(reply) = self.waiting.pop() else { return Vec::new() };
                self.stays_sandboxed = restarts == Some(false);
                if restarts == Some(true) {
                    self.retained_context.discard();
                }
                self.ready(Some(reply), &limits())
            }
        }
    }

    fn asked_changes(&mut self) -> (&mut AskedChanges, Asker<'_>) {
        let start = self.running.as_ref().map_or(0, |running| running.start);
        let asker = Asker { host: &self.host, start, messages: self.messages.sender() };
        (&mut self.asked_changes, asker)
    }

    pub fn refuse_changes(&mut self) -> Vec<Effect> {
        let (changes, asker) = self.asked_changes();
        changes.refuse(&asker)
    }

    pub fn end_turn(&mut self) -> Vec<Effect> {
        let (changes, asker) = self.asked_changes();
        changes.end_turn(&asker)
    }

    pub fn decide_changes_again(&mut self, limits: &Limits) -> Vec<Effect> {
        let (changes, asker) = self.asked_changes();
        changes.decide_again(&asker, limits)
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

    /// Completes [`Effect::AskToRestart`].
    pub fn ask_to_restart(&mut self, turn: &CurrentTurn<'_>) {
        self.restart_question = CancellationToken::new();
        restart::ask(&self.host, turn, self.restart_question.clone(), self.messages.sender());
    }

    /// The question about a restart, or its answer, concerned the old mode.
    pub fn on_mode_changed(&mut self) {
        self.restart_question.cancel();
        self.stays_sandboxed = false;
    }

    /// Shuts the agent down gracefully. Its relay stops waiting for send permits.
    pub fn on_close(&self) {
        if let Some(running) = &self.running {
            running.stop.cancel();
        }
    }

    /// Shuts the agent down for good. The returned token is cancelled at its end. Returns `None` if no process runs.
    pub fn close(&mut self) -> Option<CancellationToken> {
        // A prompt that still waits must not start the agent again.
        self.waiting.clear();
        let Running { stop, over, .. } = self.running.take()?;
        stop.cancel();
        Some(over)
    }
}
