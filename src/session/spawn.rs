//! Starts a session action: a sub-agent or a handoff. [`super::subagent`] then runs the sub-agent.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::actor::Actor;
use super::ancestry::{MAX_RUNNING, Parent};
use super::intents;
use super::subagent::Subagent;
use super::subagent_relay::{Heartbeat, SubagentRelay};
use super::{Origin, SessionContext, SessionInit, start};
use crate::acp::{ContentBlock, ToolCallId};
use crate::agents::AgentSpec;
use crate::client::{self, ClientCapabilities};
use crate::conversation::neutralise::neutralise;
use crate::skill::Skill;
use crate::store::entry::Entry;
use crate::tool::SessionAction;
use crate::tool::background::{BackgroundAgent, BackgroundStatus, Finished};

/// Texts are for the model.
pub(super) enum Spawned {
    Refused(String),
    Done(String),
    Subagent(Box<Subagent>),
    Background(Box<Subagent>, BackgroundAgent, watch::Sender<BackgroundStatus>),
}

impl Actor {
    pub(super) async fn start_session_action(&mut self, call: ToolCallId, action: SessionAction) -> Spawned {
        let (agent, task, is_background) = match action {
            SessionAction::Handoff { agent } => {
                return match self.handoff(&agent).await {
                    Ok(text) => Spawned::Done(text),
                    Err(text) => Spawned::Refused(text),
                };
            }
            SessionAction::Delegate { agent, task, is_background } => {
                let agent = match agent.as_deref().map(|id| self.context.agents.resolve(id).cloned()) {
                    None => Arc::clone(&self.policy.agent),
                    Some(Ok(agent)) => agent,
                    Some(Err(unknown)) => {
                        return Spawned::Refused(format!("Not started: {unknown}."));
                    }
                };
                (agent, task, is_background)
            }
            SessionAction::Skill { skill, task } => {
                let Some(task) = self.context.skills.find(&skill).map(|skill| skill_task(skill, &task))
                else {
                    let names: Vec<&str> =
                        self.context.skills.iter().map(|skill| skill.name.as_str()).collect();
                    let names = names.join(", ");
                    return Spawned::Refused(format!(
                        "There is no skill {skill:?}. The skills are: {names}."
                    ));
                };
                (Arc::clone(&self.policy.agent), task, false)
            }
        };
        if let Err(text) = self.policy.check_external_agent(&agent) {
            return Spawned::Refused(text);
        }
        let title =
            self.log.conversation.open_calls.get(&call).map(|call| call.title.clone()).unwrap_or_default();
        let (status_sender, status) = watch::channel(BackgroundStatus::default());
        let subagent = match self.spawn_subagent(call, &agent, task, status_sender.clone()).await {
            Ok(subagent) => Box::new(subagent),
            Err(text) => return Spawned::Refused(text),
        };
        if !is_background {
            return Spawned::Subagent(subagent);
        }
        let (background, discarded) = self.subagents.add_background(&agent.id, title, status);
        self.note_discarded("agents", &discarded);
        Spawned::Background(subagent, background, status_sender)
    }

    async fn spawn_subagent(
        &mut self,
        call: ToolCallId,
        agent: &Arc<AgentSpec>,
        task: String,
        status: watch::Sender<BackgroundStatus>,
    ) -> Result<Subagent, String> {
        let Ok(slot) = Arc::clone(&self.policy.ancestry.slots).try_acquire_owned() else {
            return Err(format!("{MAX_RUNNING} agents are already running: wait until one has finished."));
        };
        let snapshot =
            self.checkpoints.shared_snapshot(&self.policy.ancestry, &self.workspace, &self.log).await;
        let parent = Parent {
            session: self.log.id.clone(),
            turn: self.log.turns,
            changes: self.checkpoints.sender(),
            intents: intents::intent_log(&self.policy.ancestry, &self.log),
            snapshot,
        };
        let ancestry = self.policy.ancestry_below(parent);
        let id = self.context.source.session_id();
        let init = SessionInit {
            id: id.clone(),
            workspace: self.workspace.clone(),
            mode: self.policy.mode_for_started(),
            pending_user_notices: Vec::new(),
            unrecorded_modes: Vec::new(),
            origin: Origin::New,
            agent: Arc::clone(agent),
            ancestry,
            servers: Vec::new(),
            chosen: Some(self.models.chosen.clone()),
        };
        let (turn, at) = (self.log.turns, self.log.now_ms());
        let entry = Entry::Delegate {
            turn,
            call: call.to_string(),
            session: id.to_string(),
            agent: agent.id.clone(),
            at,
        };
        self.log.chain(&entry);
        let capabilities = ClientCapabilities {
            forms: false,
            urls: false,
            shows_output: false,
            ..self.context.capabilities
        };
        let context = SessionContext {
            tools: self.context.tools.for_subagent(init.ancestry.may_go_deeper()),
            capabilities,
            ..SessionContext::clone(&self.context)
        };
        let (client, end) = client::channel();
        // A sub-agent shares this session's servers, which report here.
        let (_, servers) = mpsc::unbounded_channel();
        let idle_timeout = self.context.idle_timeout;
        let handle = start(init, servers, context, client);
        self.subagents.add(call.clone(), handle.clone());
        let (heartbeat, heartbeats) = watch::channel(Heartbeat { at: Instant::now(), waits: false });
        let relay_cancel = CancellationToken::new();
        let to = self.subagents.reports.0.clone();
        let relay = SubagentRelay {
            call: call.clone(),
            agent: agent.id.clone(),
            to: to.clone(),
            client: self.log.client.clone(),
            cancel: relay_cancel.clone(),
            sends_progress: self.context.live,
            is_bounded: agent.external_agent.is_none(),
            heartbeat,
            status,
        };
        let relay = tokio::spawn(relay.run(end));
        // A model or a file wrote the task, which may contain a forged reminder.
        let task = vec![ContentBlock::from(neutralise(&task).into_owned())];
        Ok(Subagent {
            call,
            agent: agent.id.clone(),
            handle,
            task,
            relay,
            relay_cancel,
            heartbeat: heartbeats,
            idle_timeout,
            to,
            slot,
        })
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

impl Spawned {
    pub(super) fn note(background: &BackgroundAgent, finished: &Finished) -> String {
        let BackgroundAgent { id, agent, title, .. } = background;
        let how = if finished.has_failed { "failed" } else { "has finished" };
        // A model wrote the title, and the note stands between Modegate's own tags.
        let title = neutralise(title);
        format!("The background agent {id} ({agent}) {how}: {title}. view_background_agent shows its answer.")
    }
}
