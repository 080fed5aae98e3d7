//! The sessions that work for calls of this one: beginning them, hearing of them, and holding them to what holds here.
//!
//! A child is a session like any other: the same actor and the same turns. What differs is who its client is (a
//! [`super::relay`]), and that it decides under the ceilings of everybody above it, too ([`super::lineage`]).

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::actor::Actor;
use super::change_mode::BOUND;
use super::child::Child;
use super::encoder;
use super::handle::SessionCommand;
use super::history::neutralise;
use super::lineage::{MAX_AT_WORK, Parent};
use super::possible;
use super::relay::{ENDED, Life, Relay, Report, below};
use super::{Definitions, Origin, SessionHandle, Shared, Start};
use crate::acp::{ContentBlock, ToolCallId, Update};
use crate::client::{self, Abilities};
use crate::error::AgentError;
use crate::event::SessionEvent;
use crate::gate::{Ended, Gate};
use crate::permission::{CallFacts, Effect};
use crate::roster::AgentSpec;
use crate::skill::Skill;
use crate::store::entry::Entry;
use crate::tool::Errand;
use crate::tool::background::{BackgroundAgent, Finished, Standing};
use crate::tool::errand;

/// How long a session may be without a sign of life, unless a person is asked or one of its calls runs.
pub const STILL: Duration = Duration::from_secs(600);

/// How many of those that worked in the background can be looked at once they are over.
const KEPT: usize = 32;

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

/// The sessions at work for this one.
pub(super) struct Children {
    at_work: HashMap<ToolCallId, SessionHandle>,
    /// What they ask of the client, by their call and their number.
    asked: HashMap<(ToolCallId, u64), u64>,
    /// What they report. No bound: each update has taken the client's room, and nothing is to wait for a session that ends.
    pub reports: (mpsc::UnboundedSender<Report>, mpsc::UnboundedReceiver<Report>),
    /// What came of somebody else's agent while something was being ended: it may want the gate, and waits.
    later: VecDeque<Report>,
    /// Those in the background, in order; also the last that are over.
    pub background: Vec<BackgroundAgent>,
    /// How many were begun there.
    begun: u64,
}

impl Default for Children {
    fn default() -> Self {
        Self {
            at_work: HashMap::new(),
            asked: HashMap::new(),
            reports: mpsc::unbounded_channel(),
            later: VecDeque::new(),
            background: Vec::new(),
            begun: 0,
        }
    }
}

impl Children {
    /// The next report. May be given up and asked for again.
    pub async fn next(&mut self) -> Option<Report> {
        match self.later.pop_front() {
            Some(report) => Some(report),
            None => self.reports.1.recv().await,
        }
    }

    /// Forgets those in the background that were over first, but for so many: each has its whole answer.
    fn forget(&mut self) {
        let over = self.background.iter().filter(|agent| agent.is_over()).count();
        let mut surplus = over.saturating_sub(KEPT);
        self.background.retain(|agent| {
            let goes = surplus > 0 && agent.is_over();
            surplus -= usize::from(goes);
            !goes
        });
    }
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
        self.children.forget();
        self.children.begun += 1;
        let id = format!("agent_{}", self.children.begun);
        let stop = CancellationToken::new();
        let background = BackgroundAgent { id, agent: agent.id.clone(), title, standing, stop };
        self.children.background.push(background.clone());
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
        let mut ceilings = self.ceilings();
        ceilings.modes.extend(agent.limits.iter().cloned());
        match possible::is_held(&ceilings, self.shared.can_hold(harness)) {
            Some(_) => Ok(()),
            None => Err(format!(
                "unsupported_mode: {} has tools of its own and cannot be held to {} mode. It was not started.",
                agent.id, self.session.mode
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
            shadow,
        };
        let lineage = self.session.lineage.below(self.standing.subscribe(), parent);
        let id = self.shared.source.session_id();
        let start = Start {
            id: id.clone(),
            workspace: self.session.workspace.clone(),
            mode: self.session.mode.clone(),
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
        let abilities = Abilities { forms: false, urls: false, ..self.shared.abilities };
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
        self.children.at_work.insert(call.clone(), handle.clone());
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

    /// Waits for what is to end, and takes meanwhile what sessions below report: what they end may need the client.
    pub(super) async fn hearing<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                Some(report) = self.children.reports.1.recv() => {
                    let not_theirs = self.report_below(report).await;
                    self.children.later.extend(not_theirs);
                }
            }
        }
    }

    /// Puts the gate back that ended something, beside what was left below meanwhile.
    pub(super) fn put_back(&mut self, gate: Gate) {
        let meanwhile = std::mem::replace(&mut self.gate, gate);
        self.gate.take_over(meanwhile, ToolCallId::clone);
    }

    /// Takes the last reports of sessions below, and ends what they have not ended: this one is about to end.
    pub(super) async fn hear_the_last(&mut self) {
        while let Some(report) = self.children.next().now_or_never().flatten() {
            self.report(report).await;
        }
        for ended in self.session.relayed.end(ENDED) {
            self.record(SessionEvent::Relayed { update: Box::new(ended.update) }, None).await;
        }
    }

    /// Takes what a session below reports, or somebody else's agent that answers here.
    pub(super) async fn report(&mut self, report: Report) {
        match self.report_below(report).await {
            Some(Report::Outer { report, room }) => self.outer_report(report, room).await,
            Some(Report::Kept { start, kept }) => self.kept_outer(start, kept).await,
            // It is taken.
            Some(_) | None => {}
        }
    }

    /// Takes what a session below reports; what somebody else reports comes back.
    async fn report_below(&mut self, report: Report) -> Option<Report> {
        match report {
            Report::Update { update, lasts: true, room } => {
                self.record(SessionEvent::Relayed { update }, room).await;
            }
            Report::Update { update, lasts: false, room } => {
                self.client.update(self.session.id.clone(), Update::Schema(update), room);
            }
            Report::Progress { call, content, room } => {
                // One in the background shows what it says where it is looked for.
                if self.session.open_calls.contains_key(&call) {
                    self.client.update(self.session.id.clone(), encoder::progress(call, &content), room);
                }
            }
            Report::Request { call, number, request, reply } => {
                let id = self.client.forward(request.of_session(&self.session.id), reply);
                self.children.asked.insert((call, number), id);
            }
            Report::Withdraw { call, number } => {
                if let Some(id) = self.children.asked.remove(&(call, number)) {
                    self.client.withdraw(id);
                }
            }
            Report::Outer { .. } | Report::Kept { .. } => return Some(report),
            Report::Over { call, note, left } => {
                if let Some(left) = left {
                    self.children.at_work.remove(&call);
                    self.gate.take_over(left, |id| below(&call, id));
                }
                // Nobody waits for their answers any more.
                for (_, id) in self.children.asked.extract_if(|(of, _), _| *of == call) {
                    self.client.withdraw(id);
                }
                if let Some(note) = note {
                    if self.turn.is_none() {
                        self.session.notices.push(format!("{note}\n\n"));
                    }
                    self.session.for_model.push((note, false));
                }
            }
        }
        None
    }

    /// Has every session below take what files say now. What holds here holds them from before; what their agents are held to
    /// is their own.
    pub(super) async fn reload_children(&mut self, definitions: &Definitions) {
        let deadline = Instant::now() + BOUND * 2;
        let asked: Vec<_> =
            self.children.at_work.values().cloned().map(|handle| (handle, definitions.clone())).collect();
        let asked = asked.into_iter().map(|(handle, definitions)| {
            tokio::time::timeout_at(deadline, async move { handle.reload(definitions).await })
        });
        for outcome in self.hearing(join_all(asked)).await {
            match outcome {
                // One that is over takes nothing any more.
                Ok(Ok(_) | Err(AgentError::SessionDied)) => {}
                Ok(Err(error)) => tracing::error!(%error, "an agent at work did not take what was reloaded"),
                Err(_) => tracing::error!("an agent at work did not take what was reloaded in time"),
            }
        }
    }

    /// Has every session below end what is denied from now on. Says which questions were closed, what ended, and what could not
    /// be confirmed to have.
    pub(super) fn tighten_children(&self) -> impl Future<Output = (Vec<ToolCallId>, Ended)> + use<> {
        let asked: Vec<_> = self
            .children
            .at_work
            .iter()
            .map(|(call, handle)| {
                let (reply, answer) = oneshot::channel();
                // One that is over drops the question; so does one that is being closed.
                drop(handle.post(SessionCommand::Tighten(reply)));
                (call.clone(), answer)
            })
            .collect();
        async move {
            let deadline = Instant::now() + BOUND + BOUND / 4;
            let (mut all_closed, mut all) = (Vec::new(), Ended::default());
            for (call, answer) in asked {
                let under = |ids: Vec<ToolCallId>| ids.into_iter().map(|id| below(&call, &id));
                match tokio::time::timeout_at(deadline, answer).await {
                    Ok(Ok((closed, ended))) => {
                        all_closed.extend(under(closed));
                        all.confirmed.extend(under(ended.confirmed));
                        all.unconfirmed.extend(under(ended.unconfirmed));
                    }
                    // Of one that is over and was not heard out yet, nobody knows here whether all of it has ended.
                    Ok(Err(_)) | Err(_) => all.unconfirmed.push(call),
                }
            }
            (all_closed, all)
        }
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
