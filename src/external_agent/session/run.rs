//! One run of an external agent. The task keeps its permit until the process is gone.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::message::{AgentMessage, ContextState, ProcessMessage, StartedAgent};
use super::moved_content;
use crate::acp::{SessionId, SessionModeId};
use crate::client::Client;
use crate::external_agent::definition::ExternalAgentModes;
use crate::external_agent::{ExternalAgent, StartError, StartRequest, StartingAgent};
use crate::gate::Permit;
use crate::permission::external::ChangeLevel;
use crate::process::shell::Shell;
use crate::process::{BrokerEvent, BrokerPolicy};

/// How long a looser mode waits for the agent's own mode. Most agents answer within 20 ms, one at work may take longer.
/// Shorter than [`APPLIED_LIMIT`](super::process::APPLIED_LIMIT), after which the mode change is answered.
const OWN_MODE_LIMIT: Duration = Duration::from_millis(300);

pub(super) struct AgentRun {
    pub request: StartRequest,
    pub shell: Shell,
    pub session: SessionId,
    pub client: Client,
    pub modes: ExternalAgentModes,
    pub mode_to_restore: Option<SessionModeId>,
    pub permit: Permit,
    pub changes: PermittedChanges,
    pub stop: CancellationToken,
    /// Resolves when the start is recorded.
    pub recorded: oneshot::Receiver<Option<PathBuf>>,
    pub to: mpsc::UnboundedSender<AgentMessage>,
    pub start: u64,
}

/// Changes that a brokered agent may make.
pub(super) struct PermittedChanges {
    /// The agent may make changes while this exists and is not cancelled.
    pub permit: Option<Permit>,
    pub new_permits: mpsc::UnboundedReceiver<NewPermit>,
    /// Number of the last permit whose level applies to the process.
    pub applied: watch::Sender<u64>,
}

/// Allows a brokered agent other changes than before, perhaps none.
pub(super) struct NewPermit {
    /// Counts from 1.
    pub number: u64,
    pub level: ChangeLevel,
    pub permit: Permit,
    /// Resolves when the permit is recorded.
    pub recorded: oneshot::Receiver<()>,
}

impl AgentRun {
    /// Ends the agent when requested, even during the start.
    pub(super) async fn run(self, relay: JoinHandle<()>) {
        let Self {
            mut request,
            shell,
            session,
            client,
            modes,
            mode_to_restore,
            permit,
            mut changes,
            stop,
            recorded,
            to,
            start,
        } = self;
        // Without a record of the start, the session is gone.
        let Ok(change_record) = recorded.await else { return };
        request.record.clone_from(&change_record);
        let is_sandboxed = request.sandboxed;
        let roots = request.roots();
        let unwanted = || async {
            tokio::select! {
                () = permit.cancel.cancelled() => {}
                () = stop.cancelled() => {}
                () = denied(changes.permit.as_ref()) => {}
            }
        };
        let mut context =
            if request.load.is_some() { ContextState::Resumed } else { ContextState::New(None) };
        let starts = AgentStarts { shell: &shell, session: &session, client: &client, start, to: &to };
        let mut started = starts.run(request.clone(), unwanted()).await;
        let is_wanted = !permit.cancel.is_cancelled() && !stop.is_cancelled();
        let was_loading = request.load.take().is_some();
        if let Err(StartError { error, is_gone: true }) = &started
            && was_loading
            && is_wanted
        {
            context = ContextState::New(Some(error.to_string()));
            started = starts.run(request, unwanted()).await;
        }
        // The relay ends once no client is left.
        drop(client);
        let agent = match started {
            Ok(agent) => agent,
            Err(StartError { error, is_gone }) => {
                changes.permit.into_iter().chain([permit]).for_each(|permit| release_permit(permit, is_gone));
                // The session may be over, here and below.
                let _ = to.send(AgentMessage::Process(start, ProcessMessage::Started(Err(error))));
                return;
            }
        };
        let ready = async {
            let mode_to_restore = set_agent_mode(&agent, &modes, is_sandboxed, mode_to_restore.clone()).await;
            let started = StartedAgent {
                agent: agent.clone(),
                context,
                mode_to_restore: mode_to_restore.clone(),
                record: change_record,
            };
            let _ = to.send(AgentMessage::Process(start, ProcessMessage::Started(Ok(started))));
            let switches =
                LevelSwitches { agent: &agent, modes: &modes, shell: &shell, roots: &roots, start, to: &to };
            switches.run(&mut changes, mode_to_restore).await
        };
        let (is_gone, why) = tokio::select! {
            biased;
            () = permit.cancel.cancelled() => (agent.end().await, "it was stopped".to_owned()),
            () = stop.cancelled() => (agent.shut_down().await, "it was closed".to_owned()),
            why = agent.over() => (agent.shut_down().await, why),
            CannotRevoke = ready => {
                (agent.end().await, "it was stopped, because it could still write files".to_owned())
            }
        };
        drop(agent);
        changes.permit.into_iter().chain([permit]).for_each(|permit| release_permit(permit, is_gone));
        if let Err(error) = relay.await {
            tracing::error!(%error, "some updates of an agent were not forwarded");
        }
        let _ = to.send(AgentMessage::Process(start, ProcessMessage::Ended { why }));
    }
}

/// Reports the end of a process whose task panics: nothing else would.
pub(super) async fn report_panic(task: JoinHandle<()>, start: u64, to: mpsc::UnboundedSender<AgentMessage>) {
    if let Err(error) = task.await {
        tracing::error!(%error, "the task of an agent failed");
        let ended = ProcessMessage::Ended { why: "an error in Modegate ended it".into() };
        // The session may be gone.
        let _ = to.send(AgentMessage::Process(start, ended));
    }
}

/// The attempts of a start: to load the session, and to create one.
struct AgentStarts<'a> {
    shell: &'a Shell,
    session: &'a SessionId,
    client: &'a Client,
    start: u64,
    to: &'a mpsc::UnboundedSender<AgentMessage>,
}

impl AgentStarts<'_> {
    async fn run(
        &self,
        request: StartRequest,
        unwanted: impl Future<Output = ()>,
    ) -> Result<ExternalAgent, StartError> {
        let (session, client) = (self.session.clone(), self.client.clone());
        let starting = StartingAgent::spawn(request, self.shell, session, client).await?;
        let program = starting.program().clone();
        let events = program.take_broker_events();
        // The session may be gone.
        let _ = self.to.send(AgentMessage::Process(self.start, ProcessMessage::ProgramStarted(program)));
        let forwarded = tokio::spawn(forward_events(events, self.start, self.to.clone()));
        let started = starting.begin(unwanted).await;
        if matches!(started, Err(StartError { is_gone: true, .. })) {
            // The next program asks under the same numbers.
            let _ = forwarded.await;
        }
        started
    }
}

/// Follows the mode with the policy of a brokered agent.
struct LevelSwitches<'a> {
    agent: &'a ExternalAgent,
    modes: &'a ExternalAgentModes,
    shell: &'a Shell,
    /// The session's folders.
    roots: &'a [PathBuf],
    start: u64,
    to: &'a mpsc::UnboundedSender<AgentMessage>,
}

/// Changes that are no longer permitted cannot be prevented.
struct CannotRevoke;

/// Sets the agent's own mode. Returns the mode to restore.
type OwnMode<'a> = BoxFuture<'a, Option<SessionModeId>>;

impl LevelSwitches<'_> {
    async fn run(
        &self,
        changes: &mut PermittedChanges,
        mut mode_to_restore: Option<SessionModeId>,
    ) -> CannotRevoke {
        // An agent at work may answer late, and the next switch does not wait for it.
        let mut own_mode: Option<OwnMode<'_>> = None;
        loop {
            tokio::select! {
                biased;
                () = denied(changes.permit.as_ref()) => {
                    if !self.agent.program().set_policy(BrokerPolicy::Nothing).await {
                        return CannotRevoke;
                    }
                    // The mode change is answered when the permit is gone.
                    changes.permit = None;
                    own_mode = Some(self.set_agent_mode(true, own_mode.take(), mode_to_restore.clone()));
                }
                Some(NewPermit { number, level, permit, recorded }) = changes.new_permits.recv() => {
                    if recorded.await.is_err() {
                        continue;
                    }
                    // An earlier permit allowed less.
                    let permit = changes.permit.insert(permit);
                    if !permit.cancel.is_cancelled() {
                        if level != ChangeLevel::Nothing {
                            self.shell.make_caches(self.roots);
                        }
                        self.agent.program().set_policy(policy_of(level)).await;
                        let mut setting =
                            self.set_agent_mode(false, own_mode.take(), mode_to_restore.clone());
                        // Otherwise the agent's own mode could refuse calls that the new mode allows.
                        let mode = tokio::select! {
                            mode = &mut setting => Some(mode),
                            () = tokio::time::sleep(OWN_MODE_LIMIT) => None,
                            () = permit.cancel.cancelled() => None,
                        };
                        changes.applied.send_replace(number);
                        match mode {
                            Some(mode) => mode_to_restore = self.switched(mode),
                            None => own_mode = Some(setting),
                        }
                    }
                }
                mode = async { own_mode.as_mut()?.await }, if own_mode.is_some() => {
                    own_mode = None;
                    mode_to_restore = self.switched(mode);
                }
            }
        }
    }

    /// Reports the agent's new mode. Returns the mode to restore.
    fn switched(&self, mode_to_restore: Option<SessionModeId>) -> Option<SessionModeId> {
        let message = ProcessMessage::Switched { mode_to_restore: mode_to_restore.clone() };
        let _ = self.to.send(AgentMessage::Process(self.start, message));
        mode_to_restore
    }

    /// Sets the agent's own mode after an `earlier` request to do so.
    fn set_agent_mode<'a>(
        &'a self,
        is_sandboxed: bool,
        earlier: Option<OwnMode<'a>>,
        mode_to_restore: Option<SessionModeId>,
    ) -> OwnMode<'a> {
        let set = async move {
            let mode_to_restore = match earlier {
                Some(earlier) => earlier.await,
                None => mode_to_restore,
            };
            set_agent_mode(self.agent, self.modes, is_sandboxed, mode_to_restore).await
        };
        set.boxed()
    }
}

/// Passes on the events of the broker until the program has ended.
async fn forward_events(
    events: Option<mpsc::UnboundedReceiver<BrokerEvent>>,
    start: u64,
    to: mpsc::UnboundedSender<AgentMessage>,
) {
    let Some(mut events) = events else { return };
    while let Some(event) = events.recv().await {
        let content = match &event {
            BrokerEvent::Asked(question) => moved_content::read(question).await,
            _ => None,
        };
        let _ = to.send(AgentMessage::Process(start, ProcessMessage::Broker { event, content }));
    }
}

pub(super) fn policy_of(level: ChangeLevel) -> BrokerPolicy {
    match level {
        ChangeLevel::Nothing => BrokerPolicy::Nothing,
        ChangeLevel::Decided => BrokerPolicy::Ask,
        ChangeLevel::All => BrokerPolicy::Roots,
    }
}

async fn denied(permit: Option<&Permit>) {
    match permit {
        Some(permit) => permit.cancel.cancelled().await,
        None => std::future::pending().await,
    }
}

/// Later mode changes that deny a process with an unknown end list it.
fn release_permit(permit: Permit, is_gone: bool) {
    if is_gone {
        drop(permit);
    } else {
        permit.release_unconfirmed();
    }
}

/// Returns the mode to restore after the sandbox: a loaded session is in the mode that was set last.
async fn set_agent_mode(
    agent: &ExternalAgent,
    modes: &ExternalAgentModes,
    is_sandboxed: bool,
    mode_to_restore: Option<SessionModeId>,
) -> Option<SessionModeId> {
    let offered = agent.modes()?;
    let wanted = if is_sandboxed {
        modes.read_only_of(&offered)
    } else {
        modes.full_of(&offered).or_else(|| mode_to_restore.clone())
    };
    let is_changed = match wanted.filter(|id| *id != offered.current_mode_id) {
        Some(id) => match agent.set_mode(&id.0).await {
            Ok(()) => true,
            Err(error) => {
                // Not fatal: the sandbox enforces the limits, or no limits apply.
                tracing::warn!(%error, mode = %id, "cannot set the agent's own mode");
                false
            }
        },
        None => false,
    };
    mode_to_restore.or_else(|| is_changed.then_some(offered.current_mode_id)).filter(|_| is_sandboxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_of_a_task_is_the_end_of_its_process() {
        let (to, mut messages) = mpsc::unbounded_channel();
        report_panic(tokio::spawn(async {}), 1, to.clone()).await;
        assert!(messages.try_recv().is_err(), "the control");
        report_panic(tokio::spawn(async { panic!("as a test") }), 2, to).await;
        let message = messages.try_recv().unwrap();
        assert!(matches!(message, AgentMessage::Process(2, ProcessMessage::Ended { .. })));
    }
}
