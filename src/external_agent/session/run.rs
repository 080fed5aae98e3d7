//! One run of an external agent. The task keeps its permit until the process is gone.

use std::convert::Infallible;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Message;
use crate::acp::{SessionId, SessionModeId};
use crate::client::Client;
use crate::external_agent::definition::ExternalAgentModes;
use crate::external_agent::{ExternalAgent, StartError, StartRequest};
use crate::gate::Permit;
use crate::process::shell::Shell;

pub struct Started {
    pub agent: ExternalAgent,
    pub context: ContextState,
    /// The agent's own mode before the sandbox.
    pub previous_mode: Option<SessionModeId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextState {
    Resumed,
    /// Contains the reason if the agent failed to load a session.
    New(Option<String>),
}

pub(super) struct AgentRun {
    pub request: StartRequest,
    pub shell: Shell,
    pub session: SessionId,
    pub client: Client,
    pub modes: ExternalAgentModes,
    pub previous_mode: Option<SessionModeId>,
    pub permit: Permit,
    pub stop: CancellationToken,
    pub over: CancellationToken,
    pub to: mpsc::UnboundedSender<Message>,
    pub start: u64,
}

impl AgentRun {
    /// Ends the agent when requested, even during the start.
    pub(super) async fn run(self, relay: tokio::task::JoinHandle<()>) {
        let Self {
            mut request,
            shell,
            session,
            client,
            modes,
            previous_mode,
            permit,
            stop,
            over: _,
            to,
            start,
        } = self;
        let report = |message| drop(to.send(message));
        let is_sandboxed = request.sandboxed;
        let unwanted = || async {
            tokio::select! {
                () = permit.cancel.cancelled() => {}
                () = stop.cancelled() => {}
            }
        };
        let mut context =
            if request.load.is_some() { ContextState::Resumed } else { ContextState::New(None) };
        let begin =
            |request| ExternalAgent::start(request, &shell, session.clone(), client.clone(), unwanted());
        let mut started = begin(request.clone()).await;
        let is_wanted = !permit.cancel.is_cancelled() && !stop.is_cancelled();
        if let (true, Err(StartError { error, is_gone: true }), true) =
            (request.load.take().is_some(), &started, is_wanted)
        {
            context = ContextState::New(Some(error.to_string()));
            started = begin(request).await;
        }
        // The relay ends once no client is left.
        drop(client);
        let agent = match started {
            Ok(agent) => agent,
            Err(StartError { error, is_gone }) => {
                release_permit(permit, is_gone);
                report(Message::Started { start, outcome: Err(error) });
                return;
            }
        };
        let ready = async {
            let previous_mode = set_agent_mode(&agent, &modes, is_sandboxed, previous_mode).await;
            let started = Started { agent: agent.clone(), context, previous_mode };
            report(Message::Started { start, outcome: Ok(started) });
            std::future::pending::<Infallible>().await
        };
        let (is_gone, why) = tokio::select! {
            biased;
            () = permit.cancel.cancelled() => (agent.end().await, "it was stopped".to_owned()),
            () = stop.cancelled() => (agent.shut_down().await, "it was closed".to_owned()),
            why = agent.over() => (agent.shut_down().await, why),
            never = ready => match never {},
        };
        drop(agent);
        release_permit(permit, is_gone);
        if let Err(error) = relay.await {
            tracing::error!(%error, "some updates of an agent were not forwarded");
        }
        report(Message::Ended { start, why });
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
    previous_mode: Option<SessionModeId>,
) -> Option<SessionModeId> {
    let offered = agent.modes()?;
    let full = || modes.full.as_deref().map(SessionModeId::new).or_else(|| previous_mode.clone());
    let wanted = if is_sandboxed { modes.read_only_of(&offered) } else { full() };
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
    previous_mode.or_else(|| is_changed.then_some(offered.current_mode_id)).filter(|_| is_sandboxed)
}
