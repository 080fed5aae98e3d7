//! Starts a sub-agent for a session action. [`super::runner`] then runs it.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::announcement::Child;
use super::handoff;
use super::relay::{Heartbeat, SubagentRelay};
use super::runner::Subagent;
use super::subagents::Subagents;
use crate::acp::{ContentBlock, ToolCallId};
use crate::agents::AgentSpec;
use crate::client::{self, ClientCapabilities, ClientDisplay};
use crate::conversation::neutralise::neutralise;
use crate::model::catalog::ModelCatalog;
use crate::session::mode::ancestry::{MAX_RUNNING, Parent};
use crate::session::mode::decider::Decider;
use crate::session::mode::policy::Policy;
use crate::session::options::ModelSelection;
use crate::session::{OptionalUpdates, Origin, SessionContext, SessionInit, start};
use crate::skill::Skill;
use crate::store::entry::ChainEntry;
use crate::tool::SessionAction;
use crate::tool::agent::background::{BackgroundAgent, BackgroundStatus};
use crate::workspace::Workspace;

/// Texts are for the model.
pub(crate) enum Spawned {
    Refused(String),
    Done(String),
    Subagent(Box<Subagent>),
    Background(Box<Subagent>, BackgroundAgent, watch::Sender<BackgroundStatus>),
}

/// A task that a sub-agent may take on.
pub(crate) struct Delegation {
    agent: Arc<AgentSpec>,
    task: String,
    is_background: bool,
    slot: OwnedSemaphorePermit,
}

/// State that a sub-agent gets from its parent.
pub(crate) struct Inherited {
    pub parent: Parent,
    pub workspace: Workspace,
    pub chosen: ModelSelection,
}

/// What a session action asks for.
pub(crate) enum Requested {
    Subagent(Delegation),
    /// This agent continues the conversation.
    Handoff(Arc<AgentSpec>),
}

impl Delegation {
    /// The error is for the model.
    pub(crate) fn of(action: SessionAction, policy: &Policy) -> Result<Requested, String> {
        match action {
            SessionAction::Delegate { agent, task, is_background, is_reader: _ } => {
                Self::to_agent(agent.as_deref(), task, is_background, policy).map(Requested::Subagent)
            }
            SessionAction::Skill { skill, task } => {
                Self::to_skill(&skill, &task, policy).map(Requested::Subagent)
            }
            SessionAction::Handoff { agent } => handoff::proposed(&agent, policy).map(Requested::Handoff),
        }
    }

    /// Delegates to the agent with this id, or to the session's own agent. The error is for the model.
    fn to_agent(
        agent: Option<&str>,
        task: String,
        is_background: bool,
        policy: &Policy,
    ) -> Result<Self, String> {
        let agent = match agent.map(|id| policy.context.agents.resolve(id).cloned()) {
            None => Arc::clone(&policy.agent),
            Some(Ok(agent)) => agent,
            Some(Err(unknown)) => return Err(format!("Not started: {unknown}.")),
        };
        Self::new(agent, task, is_background, policy)
    }

    /// Delegates a skill to the session's own agent. The error is for the model.
    fn to_skill(id: &str, task: &str, policy: &Policy) -> Result<Self, String> {
        let skills = &policy.context.skills;
        let Some(skill) = skills.find(id) else {
            let names: Vec<&str> = skills.iter().map(|skill| skill.name.as_str()).collect();
            return Err(format!("There is no skill {id:?}. The skills are: {}.", names.join(", ")));
        };
        Self::new(Arc::clone(&policy.agent), skill_task(skill, task), false, policy)
    }

    fn new(
        agent: Arc<AgentSpec>,
        task: String,
        is_background: bool,
        policy: &Policy,
    ) -> Result<Self, String> {
        let agent = policy.context.with_broker(agent);
        policy.check_external_agent(&agent)?;
        let slot = Arc::clone(&policy.ancestry.slots)
            .try_acquire_owned()
            .map_err(|_| format!("{MAX_RUNNING} agents are already running: wait until one has finished."))?;
        Ok(Self { agent, task, is_background, slot })
    }
}

impl Subagents {
    /// Also returns a note for the model if results of earlier sub-agents were discarded.
    pub(crate) fn spawn(
        &mut self,
        call: ToolCallId,
        delegation: Delegation,
        inherited: Inherited,
        decider: &mut Decider,
    ) -> (Spawned, Option<String>) {
        let Decider { policy, log, .. } = decider;
        let Delegation { agent, task, is_background, slot } = delegation;
        let title = log.open_call(&call).map(|call| call.title.clone()).unwrap_or_default();
        let (status_sender, status) = watch::channel(BackgroundStatus::default());
        let Inherited { parent, workspace, chosen } = inherited;
        let agent = with_small_model(agent, &policy.context.models);
        let ancestry = policy.ancestry_below(parent);
        let id = policy.context.source.session_id();
        let init = SessionInit {
            id: id.clone(),
            workspace,
            mode: policy.mode_for_started(),
            pending_user_notices: Vec::new(),
            unrecorded_modes: Vec::new(),
            origin: Origin::New,
            agent: Arc::clone(&agent),
            ancestry,
            servers: Vec::new(),
            chosen: Some(chosen),
        };
        let (turn, at) = (log.turn(), log.now_ms());
        log.chain(&ChainEntry::Delegate {
            turn,
            call: call.to_string(),
            session: id.to_string(),
            agent: agent.id.clone(),
            at,
        });
        let context = &policy.context;
        let is_listed = is_background && context.live && context.capabilities.lists_background;
        let child = Child { session: id.clone(), is_listed };
        self.show(&call, child, (&title, &agent.id, &task), log);
        let (client, end) = client::channel();
        let mut context = context_below(&policy.context, init.ancestry.may_go_deeper());
        if let Some(traced) = &mut context.traced {
            traced.above = log.traced(|trace| trace.link_of_call(&call)).flatten();
        }
        // A sub-agent shares this session's servers, which report here.
        let handle = start(init, None, context, client);
        self.active.insert(call.clone(), handle.clone());
        let (heartbeat, heartbeats) = watch::channel(Heartbeat { at: Instant::now(), waits: false });
        let relay_cancel = CancellationToken::new();
        let to = self.reports.sender();
        let relay = SubagentRelay {
            call: call.clone(),
            agent: agent.id.clone(),
            session: id.clone(),
            to: to.clone(),
            client: log.client().clone(),
            cancel: relay_cancel.clone(),
            sends_progress: policy.context.live,
            is_bounded: agent.external_agent.is_none(),
            heartbeat,
            status: status_sender.clone(),
        };
        let relay = tokio::spawn(relay.run(end));
        // A model or a file wrote the task, which may contain a forged reminder. For Modegate's own models the
        // history neutralises it.
        let task = if agent.external_agent.is_some() { neutralise(&task).into_owned() } else { task };
        let task = vec![ContentBlock::from(task)];
        let subagent = Box::new(Subagent {
            call,
            agent: agent.id.clone(),
            session: id,
            handle,
            task,
            relay,
            relay_cancel,
            heartbeat: heartbeats,
            idle_timeout: policy.context.idle_timeout,
            to,
            slot,
        });
        if !is_background {
            return (Spawned::Subagent(subagent), None);
        }
        let (background, discarded) = self.add_background(&agent.id, title, status);
        (Spawned::Background(subagent, background, status_sender), discarded)
    }
}

/// Gives the small model to a read-only agent without a model of its own.
fn with_small_model(agent: Arc<AgentSpec>, models: &ModelCatalog) -> Arc<AgentSpec> {
    let takes_it = agent.is_read_only && agent.model.is_none() && agent.external_agent.is_none();
    match models.small_model().filter(|_| takes_it) {
        Some(small) => Arc::new(AgentSpec { model: Some(small.to_string()), ..AgentSpec::clone(&agent) }),
        None => agent,
    }
}

/// Returns the context of a sub-agent, whose client has no forms and no terminals.
fn context_below(context: &SessionContext, may_go_deeper: bool) -> SessionContext {
    let capabilities = ClientCapabilities {
        forms: false,
        urls: false,
        shows_output: false,
        lists_background: false,
        ..context.capabilities
    };
    // The parent's client shows its text as content of a call.
    let display = ClientDisplay { separate_messages: true, ..context.updates.display };
    let updates = OptionalUpdates { plans: false, subagents: false, display, ..context.updates };
    SessionContext {
        tools: context.tools.for_subagent(may_go_deeper),
        capabilities,
        updates,
        ..context.clone()
    }
}

fn skill_task(skill: &Skill, task: &str) -> String {
    let Skill { name, body, folder, .. } = skill;
    format!(
        "{}\n\nFollow this skill. Its other files are in {}; read_skill reads them.\n\n<skill \
         name=\"{name}\">\n{}\n</skill>",
        task.trim(),
        folder.display(),
        body.trim()
    )
}
