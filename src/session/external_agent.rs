//! The external agent of a session: started for the current mode, stopped when a tighter one is set, started
//! again for the next prompt.
//!
//! Its process has a permit at the gate ([`super::capability`]). An unsandboxed process ends before Modegate
//! confirms a mode that requires the sandbox.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::actor::Actor;
use super::capability;
use crate::acp::{AvailableCommand, McpServer, SessionModeId, ToolCallId, ToolKind};
use crate::agents::external::ExternalAgentDefinition;
use crate::client;
use crate::external_agent::{ExternalAgent, ExternalAgentError, StartRequest};
use crate::gate::Permit;
use crate::store::Row;
use crate::store::entry::Entry;
use crate::workspace::Changes;
use permission::{OpenRequest, RequestId};
use relay::ExternalAgentRelay;
use retained_context::RetainedContext;
use run::{AgentRun, RunEvent};

mod notices;
pub mod options;
pub(super) mod permission;
pub(super) mod relay;
mod report;
mod restart;
pub(super) mod retained_context;
pub(super) mod run;
pub(super) mod turn;

const PROCESS_CALL: &str = "agent";

pub(super) struct Ready {
    pub agent: ExternalAgent,
    pub fences: mpsc::Sender<oneshot::Sender<()>>,
    /// Cancelled when a mode change ends the process.
    pub stopped: CancellationToken,
}

type Waiting = oneshot::Sender<Result<Ready, ExternalAgentError>>;

#[derive(Default)]
pub(super) struct ExternalAgentSession {
    running: Option<Running>,
    waiting: Vec<Waiting>,
    /// Number of the last start. A restored session continues from its event count, which keeps ids unique.
    pub starts: u64,
    retained_context: RetainedContext,
    /// The agent's own mode before the sandbox.
    previous_mode: Option<SessionModeId>,
    restarts: bool,
    /// The user declined a restart without the sandbox.
    pub stays_sandboxed: bool,
    pub commands: Vec<AvailableCommand>,
    pub servers: Vec<McpServer>,
    pub kinds: HashMap<ToolCallId, ToolKind>,
    pub open_requests: HashMap<RequestId, OpenRequest>,
    pub restart_question: CancellationToken,
}

struct Running {
    start: u64,
    is_sandboxed: bool,
    is_announced: bool,
    /// `None` while the process starts.
    agent: Option<ExternalAgent>,
    fences: mpsc::Sender<oneshot::Sender<()>>,
    /// Shuts the process down gracefully when cancelled.
    stop: CancellationToken,
    _stops: DropGuard,
    stopped: CancellationToken,
    over: CancellationToken,
}

impl Running {
    fn is_ending(&self) -> bool {
        self.stop.is_cancelled()
            || self.stopped.is_cancelled()
            || self.agent.as_ref().is_some_and(ExternalAgent::is_over)
    }
}

impl ExternalAgentSession {
    pub(super) fn new(servers: Vec<McpServer>) -> Self {
        Self { servers, ..Self::default() }
    }

    pub(super) fn resume(
        &mut self,
        events: u64,
        retained_context: RetainedContext,
        previous_mode: Option<SessionModeId>,
    ) {
        (self.starts, self.retained_context, self.previous_mode) = (events, retained_context, previous_mode);
    }
}

impl Actor {
    pub(super) fn external_agent_definition(&self) -> Option<Arc<ExternalAgentDefinition>> {
        self.policy.agent.external_agent.clone()
    }

    /// Restarts the agent if its sandbox does not match the mode.
    pub(super) async fn ready_external_agent(&mut self, reply: Option<Waiting>) {
        let refuse = |reply: Option<Waiting>, text: String| {
            if let Some(reply) = reply {
                // The turn may be cancelled by now, here and below.
                let _ = reply.send(Err(ExternalAgentError::NotStarted(text)));
            }
        };
        let Some(definition) = self.external_agent_definition() else {
            return refuse(reply, "this agent no longer exists".into());
        };
        let Some(wants_sandbox) =
            capability::is_sandboxed(&self.policy.ceilings(), self.context.can_sandbox(&definition))
        else {
            let text = format!("it cannot be sandboxed for {} mode", self.policy.mode);
            return refuse(reply, text);
        };
        if let Some(running) = &self.external_agent.running
            && (running.is_ending()
                || running.is_sandboxed != wants_sandbox
                    && !(running.is_sandboxed && self.external_agent.stays_sandboxed))
        {
            if !running.is_ending()
                && running.is_sandboxed
                && self.external_agent.retained_context.is_lost_by_restart()
                && reply.is_some()
            {
                self.external_agent.waiting.extend(reply);
                let start = running.start;
                return self.ask_to_restart(start);
            }
            // The next process starts after this one has ended.
            running.stop.cancel();
            self.external_agent.restarts = true;
            return self.external_agent.waiting.extend(reply);
        }
        self.external_agent.waiting.extend(reply);
        match &self.external_agent.running {
            None => self.start_external_agent(&definition, wants_sandbox).await,
            Some(_) => self.reply_ready().await,
        }
    }

    async fn reply_ready(&mut self) {
        self.external_agent.waiting.retain(|reply| !reply.is_closed());
        let (is_sandboxed, was_announced) = match &mut self.external_agent.running {
            Some(Running { agent: Some(_), is_sandboxed, is_announced, .. })
                if !self.external_agent.waiting.is_empty() =>
            {
                (*is_sandboxed, std::mem::replace(is_announced, true))
            }
            _ => return,
        };
        if is_sandboxed && !was_announced {
            self.announce_sandbox().await;
        }
        if !is_sandboxed {
            let text = format!(
                "Changes that the agent {} makes with its own tools are unknown and cannot be undone.",
                self.policy.agent.id
            );
            self.record_changes(self.log.turns, Changes { uncovered: vec![text], ..Changes::default() });
            self.log.save().await;
        }
        // Until the next prompt, the agent may not exceed the current ceilings.
        self.policy.begin_reply();
        let Some(Running { agent: Some(agent), fences, stopped, .. }) = &self.external_agent.running else {
            return;
        };
        for reply in std::mem::take(&mut self.external_agent.waiting) {
            let ready = Ready { agent: agent.clone(), fences: fences.clone(), stopped: stopped.clone() };
            if reply.send(Ok(ready)).is_ok() {
                self.external_agent.retained_context.add();
            }
        }
    }

    async fn start_external_agent(&mut self, definition: &ExternalAgentDefinition, is_sandboxed: bool) {
        self.external_agent.starts += 1;
        let start = self.external_agent.starts;
        let Some(shell) = self.context.tools.shell().cloned().filter(|_| self.context.live) else {
            let text = "deterministic runs do not start external agents".into();
            return self.fail_external_agent(&ExternalAgentError::NotStarted(text));
        };
        let (turn, at) = (self.log.turns, self.log.now_ms());
        let agent = self.policy.agent.id.clone();
        self.log.chain(&Entry::ExternalAgent { turn, agent: agent.clone(), sandboxed: is_sandboxed, at });
        self.log.save().await;
        let permit = self.admit_external_agent(PROCESS_CALL, is_sandboxed);
        let (fences, to_fence) = mpsc::channel(4);
        let (stop, over) = (CancellationToken::new(), CancellationToken::new());
        let stopped = permit.cancel.clone();
        let (cwd, directories) = self.folders();
        let request = StartRequest {
            name: agent,
            definition: definition.clone(),
            sandboxed: is_sandboxed,
            cwd,
            directories,
            servers: self.external_agent.servers.clone(),
            capabilities: self.context.capabilities,
            load: self.external_agent.retained_context.session_id().map(str::to_owned),
        };
        let (client, end) = client::channel();
        let to = self.subagents.reports.0.clone();
        let relay_cancel = stop.clone();
        let relay = ExternalAgentRelay {
            start,
            to: to.clone(),
            client: self.log.client.clone(),
            cancel: relay_cancel,
            fences: to_fence,
        };
        let run = AgentRun {
            request,
            shell,
            session: self.log.id.clone(),
            client,
            modes: definition.modes.clone(),
            previous_mode: self.external_agent.previous_mode.clone(),
            permit,
            stop: stop.clone(),
            over: over.clone(),
            to,
            start,
        };
        let relay = tokio::spawn(relay.run(end));
        tokio::spawn(async move {
            let _over = run.over.clone().drop_guard();
            run.run(relay).await;
        });
        let stops = stop.clone().drop_guard();
        self.external_agent.running = Some(Running {
            start,
            is_sandboxed,
            is_announced: false,
            agent: None,
            fences,
            stop,
            _stops: stops,
            stopped,
            over,
        });
    }

    /// Such an effect belongs to no turn.
    pub(super) fn admit_external_agent(&mut self, call: &str, is_sandboxed: bool) -> Permit {
        self.gate.admit(ToolCallId::new(call), capability::facts(is_sandboxed), 0, &CancellationToken::new())
    }

    fn fail_external_agent(&mut self, error: &ExternalAgentError) {
        for reply in std::mem::take(&mut self.external_agent.waiting) {
            let _ = reply.send(Err(error.clone()));
        }
    }

    pub(super) async fn external_agent_event(&mut self, start: u64, event: RunEvent) {
        let is_current = self.external_agent.running.as_ref().is_some_and(|running| running.start == start);
        match event {
            RunEvent::Started(Ok((agent, context, previous_mode))) if is_current => {
                if self.external_agent.running.as_ref().is_some_and(Running::is_ending) {
                    return;
                }
                let external_session = agent.can_load().then(|| agent.session_id());
                let lost = self.external_agent.retained_context.started(external_session, context);
                let external_session = self.external_agent.retained_context.session_id().map(str::to_owned);
                self.external_agent.previous_mode = previous_mode;
                let external_mode = self.external_agent.previous_mode.as_ref().map(ToString::to_string);
                self.log.store.post(Row::ExternalAgent {
                    session: self.log.id.clone(),
                    external_session,
                    external_mode,
                });
                if let Some(running) = &mut self.external_agent.running {
                    running.agent = Some(agent);
                }
                if let Some(why) = lost {
                    let text = format!(
                        "The agent {} was restarted and has lost the earlier conversation{why}.\n\n",
                        self.policy.agent.id
                    );
                    self.record_external_agent_notice(text).await;
                }
                if let Some(agent) = self.external_agent_client().cloned() {
                    self.report_unknown_mode(&agent).await;
                }
                self.send_config_options();
                // The mode may have changed, and the agent has not received the prompt yet.
                if let Some(reply) = self.external_agent.waiting.pop() {
                    self.ready_external_agent(Some(reply)).await;
                }
            }
            RunEvent::Started(Err(error)) if is_current => self.external_agent_ended(&error).await,
            RunEvent::Started(_) => {}
            RunEvent::Ended(why) => {
                for (_, open_request) in std::mem::take(&mut self.external_agent.open_requests) {
                    self.log.client.withdraw(open_request.id);
                }
                if is_current {
                    self.external_agent_ended(&ExternalAgentError::Ended(why)).await;
                }
            }
            RunEvent::Options(reply) => drop(reply.send(self.options())),
            RunEvent::Restart(restarts) => {
                let Some(reply) = self.external_agent.waiting.pop() else { return };
                self.external_agent.stays_sandboxed = restarts == Some(false);
                if restarts == Some(true) {
                    self.external_agent.retained_context.discard();
                }
                self.ready_external_agent(Some(reply)).await;
            }
        }
    }

    /// Starts the agent again for a waiting prompt if a restart or a mode change ended it.
    async fn external_agent_ended(&mut self, error: &ExternalAgentError) {
        let was_stopped =
            self.external_agent.running.take().is_some_and(|running| running.stopped.is_cancelled());
        let starts_again = std::mem::take(&mut self.external_agent.restarts) || was_stopped;
        self.external_agent.restart_question.cancel();
        self.external_agent.waiting.retain(|reply| !reply.is_closed());
        match self.external_agent.waiting.pop() {
            Some(next) if starts_again => Box::pin(self.ready_external_agent(Some(next))).await,
            Some(next) => {
                self.external_agent.waiting.push(next);
                self.fail_external_agent(error);
            }
            None => {}
        }
    }

    /// Shuts the agent down gracefully. Its relay stops waiting for send permits.
    pub(super) fn cancel_external_agent(&self) {
        if let Some(running) = &self.external_agent.running {
            running.stop.cancel();
        }
    }

    pub(super) fn is_external_agent_sandboxed(&self) -> bool {
        self.external_agent.running.as_ref().is_some_and(|running| running.is_sandboxed)
    }

    pub(super) fn external_agent_client(&self) -> Option<&ExternalAgent> {
        self.external_agent.running.as_ref()?.agent.as_ref()
    }

    /// Waits for the agent's end, within the deadline of a mode change.
    pub(super) async fn close_external_agent(&mut self) {
        // A prompt that still waits must not start the agent again.
        self.external_agent.waiting.clear();
        let Some(Running { stop, over, .. }) = self.external_agent.running.take() else { return };
        stop.cancel();
        let deadline = tokio::time::Instant::now() + super::change_mode::DEADLINE;
        loop {
            // The agent's last reports are still recorded.
            tokio::select! {
                Some(report) = self.subagents.next() => self.report(report).await,
                () = over.cancelled() => return,
                () = tokio::time::sleep_until(deadline) => {
                    return tracing::warn!("an external agent did not end in time");
                }
            }
        }
    }
}
