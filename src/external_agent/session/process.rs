//! Starts the process of an external agent as the mode requires, and starts it again after its end.

use std::path::PathBuf;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::relay::ExternalAgentRelay;
use super::run::{AgentRun, NewPermit, PermittedChanges, Started};
use super::{Effect, ExternalAgentSession, Limits, Ready, Waiting};
use crate::acp::ToolCallId;
use crate::client;
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::external_agent::{ExternalAgent, ExternalAgentError, StartRequest, capability};
use crate::gate::{Gate, Permit};
use crate::permission::CallFacts;
use crate::permission::external::{ChangeLevel, change_level, facts_of_changes};

const PROCESS_CALL: &str = "agent";

/// Stands for the changes of a brokered process, which goes on without them.
const CHANGES_CALL: &str = "agent_changes";

pub(super) struct Running {
    pub start: u64,
    is_sandboxed: bool,
    /// `None` if the process is not brokered.
    changes: Option<Changes>,
    /// The sandbox that the user was last told about.
    announced: Option<bool>,
    /// `None` while the process starts.
    pub agent: Option<ExternalAgent>,
    fences: mpsc::Sender<oneshot::Sender<()>>,
    /// Shuts the process down gracefully when cancelled.
    pub stop: CancellationToken,
    _stops: DropGuard,
    stopped: CancellationToken,
    pub over: CancellationToken,
}

/// Permission of a brokered process to change files, which ends with a permit.
struct Changes {
    /// Until `denied` is cancelled.
    level: ChangeLevel,
    denied: Option<CancellationToken>,
    permits: mpsc::UnboundedSender<NewPermit>,
    /// Number of the last permit that was sent, and of the last one whose level applies to the process.
    sent: u64,
    applied: watch::Receiver<u64>,
    /// Folder of the record. `None` if changes are not recorded.
    record: Option<PathBuf>,
}

impl Running {
    /// Returns true if changes of the process fail, apart from its own folders.
    pub(super) fn is_sandboxed(&self) -> bool {
        self.level().map_or(self.is_sandboxed, |level| level == ChangeLevel::Nothing)
    }

    /// `None` if the process is not brokered.
    fn level(&self) -> Option<ChangeLevel> {
        let Changes { level, denied, .. } = self.changes.as_ref()?;
        let is_denied = denied.as_ref().is_none_or(CancellationToken::is_cancelled);
        Some(if is_denied { ChangeLevel::Nothing } else { *level })
    }

    /// Returns true if the process does not have its level of changes yet.
    fn is_switching(&self) -> bool {
        self.changes.as_ref().is_some_and(|changes| *changes.applied.borrow() < changes.sent)
    }

    fn is_ending(&self) -> bool {
        self.stop.is_cancelled()
            || self.stopped.is_cancelled()
            || self.agent.as_ref().is_some_and(ExternalAgent::is_over)
    }
}

impl ExternalAgentSession {
    /// Without `reply`, only starts the agent. Restarts it if its sandbox does not match the mode.
    pub fn ready(&mut self, reply: Option<Waiting>, limits: &Limits) -> Vec<Effect> {
        let refuse = |reply: Option<Waiting>, text: String| {
            if let Some(reply) = reply {
                // The turn may be cancelled by now, here and below.
                let _ = reply.send(Err(ExternalAgentError::NotStarted(text)));
            }
            Vec::new()
        };
        if self.definition().is_none() {
            return refuse(reply, "this agent no longer exists".into());
        }
        let Some(wants_sandbox) = capability::is_sandboxed(&limits.ceilings, self.host.control) else {
            return refuse(reply, format!("it cannot be sandboxed for {} mode", limits.mode));
        };
        let Some(running) = &self.running else {
            self.waiting.extend(reply);
            return self.prepare_start(wants_sandbox, limits);
        };
        if running.changes.is_some() && !running.is_ending() {
            self.waiting.extend(reply);
            return self.follow_mode(limits);
        }
        let is_sandboxed = running.is_sandboxed();
        let matches = is_sandboxed == wants_sandbox || is_sandboxed && self.stays_sandboxed;
        if matches && !running.is_ending() {
            self.waiting.extend(reply);
            return self.reply_ready(limits);
        }
        let loses_context = is_sandboxed && self.retained_context.is_lost_by_restart();
        if !running.is_ending() && loses_context && reply.is_some() {
            self.waiting.extend(reply);
            return vec![Effect::AskToRestart];
        }
        // The next process starts after this one has ended.
        running.stop.cancel();
        self.restarts = true;
        self.waiting.extend(reply);
        Vec::new()
    }

    pub fn is_brokered(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.changes.is_some())
    }

    /// Permits a brokered agent the changes of the mode, then answers waiting prompts.
    pub fn follow_mode(&mut self, limits: &Limits) -> Vec<Effect> {
        let Some(running) = self.running.as_ref().filter(|running| !running.is_ending()) else {
            return Vec::new();
        };
        // A process that is starting follows when it has started.
        let (Some(level), true) = (running.level(), running.agent.is_some()) else {
            return self.reply_ready(limits);
        };
        // The gate ends a permit that a tighter mode denies.
        match change_level(&limits.ceilings) {
            Some(wanted) if wanted != level && wanted != ChangeLevel::Nothing => {
                vec![Effect::PermitChanges(wanted)]
            }
            // Otherwise the first calls of the agent would be refused. [`Message::Switched`] follows.
            Some(_) if level != ChangeLevel::Nothing && running.is_switching() => Vec::new(),
            _ => self.reply_ready(limits),
        }
    }

    /// Completes [`Effect::PermitChanges`]. [`Message::Switched`] follows.
    pub fn permit_changes(&mut self, level: ChangeLevel, gate: &mut Gate) {
        let changes = self.running.as_mut().and_then(|running| running.changes.as_mut());
        let (Some(changes), Some(permit)) = (changes, admit_changes(gate, level)) else { return };
        (changes.level, changes.denied) = (level, Some(permit.cancel.clone()));
        // If the process has ended, its end answers the waiting prompts.
        changes.sent += 1;
        let _ = changes.permits.send(NewPermit { number: changes.sent, level, permit });
    }

    pub(super) fn retain(&self) -> Effect {
        Effect::Retain {
            session: self.retained_context.session_id().map(str::to_owned),
            mode: self.previous_mode.as_ref().map(ToString::to_string),
        }
    }

    pub(super) fn reply_ready(&mut self, limits: &Limits) -> Vec<Effect> {
        self.waiting.retain(|reply| !reply.is_closed());
        let Some(running) = self.running.as_mut() else { return Vec::new() };
        let Some(started) = &running.agent else { return Vec::new() };
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let is_sandboxed = running.is_sandboxed();
        let copied = if running.announced.is_none() { started.copied() } else { &[] };
        let was_announced = running.announced.replace(is_sandboxed) == Some(is_sandboxed);
        let agent = &self.host.agent.id;
        let definition = self.host.agent.external_agent.as_ref();
        let is_program = definition.is_some_and(|definition| definition.is_terminal_program);
        let kind = if is_program { "program" } else { "agent" };
        let mut effects = Vec::new();
        if let [first, rest @ ..] = copied {
            let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            effects.push(Effect::Notice(format!(
                "Before the start of the {kind} {agent}, Modegate replaced hard links in its state folders by \
                 copies, because their files have names elsewhere, too: {}{more}.\n\n",
                first.display()
            )));
        }
        let is_recorded = running.changes.as_ref().is_some_and(|changes| changes.record.is_some());
        if !is_sandboxed && !is_recorded {
            effects.push(Effect::Uncovered(format!(
                "Changes that the {kind} {agent} makes with its own tools are unknown and cannot be undone."
            )));
        } else if is_sandboxed && !was_announced {
            // Explains why changes fail, which the agent itself may not do.
            let when = if limits.is_mode_unrestricted {
                "in every mode of this session".to_owned()
            } else {
                format!("in {} mode", limits.mode)
            };
            effects.push(Effect::Notice(format!(
                "The {kind} {agent} is sandboxed: {when} all changes that it attempts fail.\n\n"
            )));
        }
        // Until the next prompt, the agent may not exceed the current ceilings.
        effects.push(Effect::BeginReply);
        effects
    }

    /// Completes [`Effect::BeginReply`].
    pub fn answer_waiting(&mut self) {
        let Some(Running { agent: Some(agent), fences, stopped, changes, is_sandboxed, .. }) = &self.running
        else {
            return;
        };
        let record = changes.as_ref().and_then(|changes| changes.record.as_ref());
        for reply in std::mem::take(&mut self.waiting) {
            let ready = Ready {
                agent: agent.clone(),
                fences: fences.clone(),
                stopped: stopped.clone(),
                record: record.cloned(),
                is_sandboxed: *is_sandboxed,
            };
            if reply.send(Ok(ready)).is_ok() {
                self.asked_changes.begin_turn();
                self.retained_context.add();
            }
        }
    }

    fn prepare_start(&mut self, is_sandboxed: bool, limits: &Limits) -> Vec<Effect> {
        self.starts += 1;
        if self.host.shell.is_none() {
            let text = "deterministic runs do not start external agents".into();
            self.fail(&ExternalAgentError::NotStarted(text));
            return Vec::new();
        }
        let is_brokered = self.definition().is_some_and(|definition| definition.is_brokered());
        // The session answers questions about changes only after the start.
        let may_change_all = change_level(&limits.ceilings) == Some(ChangeLevel::All);
        let limits_network = change_level(&limits.ceilings) == Some(ChangeLevel::Nothing);
        let is_sandboxed = if is_brokered { !may_change_all } else { is_sandboxed };
        vec![Effect::Start { is_sandboxed, limits_network }]
    }

    /// Completes [`Effect::Start`].
    pub fn start(
        &mut self,
        is_sandboxed: bool,
        limits_network: bool,
        record: Option<PathBuf>,
        gate: &mut Gate,
    ) {
        let (Some(definition), Some(shell)) = (self.definition().cloned(), self.host.shell.clone()) else {
            return;
        };
        let start = self.starts;
        let is_brokered = definition.is_brokered();
        let roots: Vec<_> = [&self.host.cwd].into_iter().chain(&self.host.directories).cloned().collect();
        self.asked_changes.caches = shell.caches(&roots);
        let permit = admit(gate, PROCESS_CALL, is_sandboxed || is_brokered);
        let may_change =
            if is_brokered && !is_sandboxed { admit_changes(gate, ChangeLevel::All) } else { None };
        let denied = may_change.as_ref().map(|permit| permit.cancel.clone());
        let (permits, new_permits) = mpsc::unbounded_channel();
        let (applied, to_apply) = watch::channel(0);
        let (fences, to_fence) = mpsc::channel(4);
        let (stop, over) = (CancellationToken::new(), CancellationToken::new());
        let stopped = permit.cancel.clone();
        let request = StartRequest {
            name: self.host.agent.id.clone(),
            definition: ExternalAgentDefinition::clone(&definition),
            sandboxed: is_sandboxed,
            limits_network,
            cwd: self.host.cwd.clone(),
            directories: self.host.directories.clone(),
            servers: self.host.servers.clone(),
            capabilities: self.host.capabilities,
            load: self.retained_context.session_id().map(str::to_owned),
            record: record.clone(),
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
            previous_mode: self.previous_mode.clone(),
            permit,
            changes: PermittedChanges { permit: may_change, new_permits, applied },
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
        self.running = Some(Running {
            start,
            is_sandboxed,
            changes: is_brokered.then_some(Changes {
                level: ChangeLevel::All,
                denied,
                permits,
                sent: 0,
                applied: to_apply,
                record,
            }),
            announced: None,
            agent: None,
            fences,
            _stops: stop.clone().drop_guard(),
            stop,
            stopped,
            over,
        });
    }

    fn fail(&mut self, error: &ExternalAgentError) {
        for reply in std::mem::take(&mut self.waiting) {
            let _ = reply.send(Err(error.clone()));
        }
    }

    pub(super) fn started(&mut self, started: Started, limits: &Limits) -> Vec<Effect> {
        let Started { agent, context, previous_mode } = started;
        let Some(running) = self.running.as_mut().filter(|running| !running.is_ending()) else {
            return Vec::new();
        };
        running.agent = Some(agent.clone());
        let is_sandboxed = running.is_sandboxed();
        let session = agent.can_load().then(|| agent.session_id());
        let lost = self.retained_context.started(session, context);
        self.previous_mode = previous_mode;
        let mut effects = vec![self.retain()];
        let name = &self.host.agent.id;
        if let Some(why) = lost {
            effects.push(Effect::Notice(format!(
                "The agent {name} was restarted and has lost the earlier conversation{why}.\n\n"
            )));
        }
        let requested = self.definition().and_then(|definition| {
            let modes = &definition.modes;
            if is_sandboxed { modes.read_only.as_deref() } else { modes.full.as_deref() }
        });
        if let Some(missing) = requested.and_then(|id| agent.missing_mode(id)) {
            effects.push(Effect::NoticeInTurn(format!("The agent {name} has no {missing}.\n\n")));
        }
        effects.push(Effect::ShowOptions);
        // The mode may have changed, and the agent has not received the prompt yet.
        if let Some(reply) = self.waiting.pop() {
            effects.extend(self.ready(Some(reply), limits));
        } else {
            effects.extend(self.follow_mode(limits));
        }
        effects
    }

    /// Starts the agent again for a waiting prompt if a restart or a mode change ended it.
    pub(super) fn ended(&mut self, error: &ExternalAgentError, limits: &Limits) -> Vec<Effect> {
        let was_stopped = self.running.take().is_some_and(|running| running.stopped.is_cancelled());
        let starts_again = std::mem::take(&mut self.restarts) || was_stopped;
        self.restart_question.cancel();
        self.waiting.retain(|reply| !reply.is_closed());
        if starts_again && let Some(next) = self.waiting.pop() {
            return self.ready(Some(next), limits);
        }
        self.fail(error);
        Vec::new()
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
