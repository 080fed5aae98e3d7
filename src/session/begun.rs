//! An errand, set about: another session is begun for a call, or it is said why not. What becomes of it is
//! [`super::child`]'s, and what it shows [`super::children`]'s.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::actor::Actor;
use super::child::Child;
use super::inert::neutralise;
use super::lineage::{MAX_AT_WORK, Parent};
use super::possible;
use super::relay::{Life, Relay};
use super::{Origin, SessionHandle, Shared, Start};
use crate::acp::{ContentBlock, ToolCallId};
use crate::client::{self, Abilities};
use crate::permission::{CallFacts, Effect};
use crate::roster::AgentSpec;
use crate::skill::Skill;
use crate::store::entry::Entry;
use crate::tool::Errand;
use crate::tool::background::{BackgroundAgent, Finished, Standing};
use crate::tool::errand;

/// What came of an errand so far.
pub(super) enum Begun {
    /// It cannot be done; for the model.
    Refused(String),
    /// It is done; for the model.
    Done(String),
    /// Somebody works on it.
    Child(Box<Child>),
    /// Somebody works on it in the background; for the model.
    Background(Box<Child>, BackgroundAgent, watch::Sender<Standing>),
}

impl Actor {
    /// Sets about an errand.
    pub(super) async fn begin_errand(&mut self, call: ToolCallId, errand: Errand) -> Begun {
        let (agent, task, is_background) = match errand {
            Errand::Handoff { agent } => {
                return match self.hand_over(&agent).await {
                    Ok(text) => Begun::Done(text),
                    Err(text) => Begun::Refused(text),
                };
            }
            Errand::Delegate { agent, task, is_background } => {
                let agent = match agent.as_deref().map(|id| self.shared.agents.resolve(id).cloned()) {
                    None => Arc::clone(&self.session.agent),
                    Some(Ok(agent)) => agent,
                    Some(Err(unknown)) => {
                        return Begun::Refused(format!("There is no such agent: {unknown}."));
                    }
                };
                (agent, task, is_background)
            }
            Errand::Skill { skill, task } => {
                let Some(task) = self.shared.skills.find(&skill).map(|skill| by_skill(skill, &task)) else {
                    let names: Vec<&str> =
                        self.shared.skills.iter().map(|skill| skill.name.as_str()).collect();
                    let names = names.join(", ");
                    return Begun::Refused(format!("There is no skill {skill:?}. The skills are: {names}."));
                };
                (Arc::clone(&self.session.agent), task, false)
            }
        };
        if let Err(text) = self.check_outer(&agent) {
            return Begun::Refused(text);
        }
        let title = self.session.open_calls.get(&call).map(|call| call.title.clone()).unwrap_or_default();
        let (tell, standing) = watch::channel(Standing::default());
        let child = match self.begin_child(call, &agent, task, tell.clone()).await {
            Ok(child) => Box::new(child),
            Err(text) => return Begun::Refused(text),
        };
        if !is_background {
            return Begun::Child(child);
        }
        let (background, forgotten) = self.children.add_background(&agent.id, title, standing);
        self.note_forgotten("agents", &forgotten);
        Begun::Background(child, background, tell)
    }

    /// Says which agent a call is about: rules are about agents by their ids.
    pub(super) fn name_agent(&self, facts: &mut CallFacts) {
        if facts.effect != Effect::Delegate || facts.tool == errand::RUN {
            return;
        }
        let named = facts.mentions.first().and_then(|name| name.to_str());
        let agent = named.map_or(Ok(&self.session.agent), |name| self.shared.agents.resolve(name));
        // One that there is not is not begun either.
        if let Ok(agent) = agent {
            facts.mentions = vec![PathBuf::from(&agent.id)];
        }
    }

    /// Whether an agent whose tools are its own can work under what holds here. Before anything is begun (D47, D48).
    fn check_outer(&self, agent: &AgentSpec) -> Result<(), String> {
        let Some(harness) = &agent.harness else { return Ok(()) };
        let mut ceilings = self.call_ceilings();
        ceilings.modes.extend(agent.limits.iter().cloned());
        match possible::is_held(&ceilings, self.shared.can_hold(harness)) {
            Some(_) => Ok(()),
            None => Err(format!(
                "unsupported_mode: {} has tools of its own and cannot be held to {} mode. It was not started.",
                agent.id,
                self.mode_for_started()
            )),
        }
    }

    /// Begins a session that works on a task for a call.
    async fn begin_child(
        &mut self,
        call: ToolCallId,
        agent: &Arc<AgentSpec>,
        task: String,
        standing: watch::Sender<Standing>,
    ) -> Result<Child, String> {
        let Ok(place) = Arc::clone(&self.session.lineage.places).try_acquire_owned() else {
            return Err(format!("{MAX_AT_WORK} agents are at work already: wait until one has finished."));
        };
        let shadow = self.shared_shadow().await;
        let parent = Parent {
            session: self.session.id.clone(),
            turn: self.session.turns,
            changes: self.changes.0.clone(),
            intents: self.intents(),
            shadow,
        };
        let reply = self.session.asked_under.as_ref().map(|reply| Arc::clone(&reply.started));
        let lineage = self.session.lineage.below(self.standing.subscribe(), reply, parent);
        let id = self.shared.source.session_id();
        let start = Start {
            id: id.clone(),
            workspace: self.session.workspace.clone(),
            mode: self.mode_for_started(),
            notices: Vec::new(),
            held: Vec::new(),
            origin: Origin::New,
            agent: Arc::clone(agent),
            lineage,
            servers: Vec::new(),
            chosen: Some(self.session.chosen.clone()),
        };
        let (turn, at) = (self.session.turns, self.shared.source.now_ms());
        let entry = Entry::Delegate {
            turn,
            call: call.to_string(),
            session: id.to_string(),
            agent: agent.id.clone(),
            at,
        };
        self.chain(&entry);
        let abilities = Abilities { forms: false, urls: false, shows_output: false, ..self.shared.abilities };
        let shared = Shared {
            tools: self.shared.tools.for_child(start.lineage.may_go_deeper()),
            abilities,
            ..self.shared.clone()
        };
        let (client, end) = client::channel();
        // Its servers are those of this session, which hears of them.
        let (_, servers) = mpsc::unbounded_channel();
        let still = self.shared.still;
        let handle = SessionHandle::start(start, servers, shared, client);
        self.children.add(call.clone(), handle.clone());
        let (life, lives) = watch::channel(Life { at: Instant::now(), waits: false });
        let hurry = CancellationToken::new();
        let to = self.children.reports.0.clone();
        let relay = Relay {
            call: call.clone(),
            agent: agent.id.clone(),
            to: to.clone(),
            client: self.client.clone(),
            cancel: hurry.clone(),
            live: self.shared.live,
            is_bounded: agent.harness.is_none(),
            life,
            standing,
        };
        let relay = tokio::spawn(relay.run(end));
        // A model wrote it, or a file: what looks like a reminder in it is none.
        let task = vec![ContentBlock::from(neutralise(&task).into_owned())];
        Ok(Child { call, agent: agent.id.clone(), handle, task, relay, hurry, life: lives, still, to, place })
    }
}

/// A task with the instructions that it is to be done by.
fn by_skill(skill: &Skill, task: &str) -> String {
    let Skill { name, body, folder, .. } = skill;
    format!(
        "{}\n\nDo it by this skill. Its other files lie in {}; read_skill reads them.\n\n<skill name=\"{name}\">\n{}\n</skill>",
        task.trim(),
        folder.display(),
        body.trim()
    )
}

impl Begun {
    /// What is noted when one in the background has finished.
    pub(super) fn note(background: &BackgroundAgent, finished: &Finished) -> String {
        let BackgroundAgent { id, agent, title, .. } = background;
        let how = if finished.has_failed { "failed" } else { "has finished" };
        // A model wrote the task, and what is noted stands in a reminder.
        let title = neutralise(title);
        format!("The background agent {id} ({agent}) {how}: {title}. view_background_agent has its answer.")
    }
}
