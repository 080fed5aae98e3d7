//! The limits of a session: its mode, its agent, its ancestors, and the answers that it remembers.
//!
//! The same ceilings decide which tools are offered, which calls may run, and which calls must end.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use super::ancestry::{Ancestry, Parent};
use super::ceilings::add;
use crate::acp::SessionModeId;
use crate::agents::AgentSpec;
use crate::error::AgentError;
use crate::external_agent::capability;
use crate::external_agent::session::AgentLimits;
use crate::ids;
use crate::managed_policy::BY_POLICY;
use crate::mode::{DEFAULT, Mode, UnknownMode};
use crate::permission::external::{Requirement, requirement};
use crate::permission::{self, CallFacts, CallSource, Ceilings, Denial, Effect, Grants, Verdict, compare};
use crate::session::{SessionContext, valid_modes};
use crate::store::entry::RecordedConsent;
use crate::tool::{self, Tool, ToolSpec, Toolset, skill};

pub(crate) struct Policy {
    /// Shared, so that a flow can read it while it changes the policy.
    pub(crate) context: Arc<SessionContext>,
    pub(crate) mode: SessionModeId,
    /// Mode before the last change.
    pub(crate) previous: Option<SessionModeId>,
    /// Mode in which a reopened session was left, until its first prompt.
    pub(crate) left_in: Option<SessionModeId>,
    /// Tighter modes whose change could not be recorded. They stay ceilings until a change is recorded.
    pub(crate) unrecorded_modes: Vec<SessionModeId>,
    pub(crate) agent: Arc<AgentSpec>,
    pub(crate) ancestry: Ancestry,
    pub(crate) grants: Grants,
    /// Ceilings at the start of the reply. Its calls, and the agents that they start, never exceed them.
    reply: Option<ReplyCeilings>,
    /// Ceilings of the session's own modes, for its sub-agents.
    own_ceilings: watch::Sender<Arc<Ceilings>>,
    /// True if the second mode is tighter than the first, apart from tools of servers. Modes, rules and built-in tools
    /// never change in a session.
    known_tightness: HashMap<(SessionModeId, SessionModeId), bool>,
}

struct ReplyCeilings {
    mode: SessionModeId,
    calls: Ceilings,
    /// Ceilings for agents that the reply starts, for their whole life. They exclude the limits of this
    /// session's own agent (D49).
    started: Arc<Ceilings>,
}

impl Policy {
    pub(crate) fn new(
        context: SessionContext,
        mode: SessionModeId,
        unrecorded_modes: Vec<SessionModeId>,
        agent: Arc<AgentSpec>,
        ancestry: Ancestry,
    ) -> Self {
        let ceilings = context.ceilings(std::iter::once(&mode).chain(&unrecorded_modes));
        let (own_ceilings, _) = watch::channel(Arc::new(ceilings));
        Self {
            context: Arc::new(context),
            mode,
            previous: None,
            left_in: None,
            unrecorded_modes,
            agent,
            ancestry,
            grants: Grants::default(),
            reply: None,
            own_ceilings,
            known_tightness: HashMap::new(),
        }
    }

    fn modes(&self) -> impl Iterator<Item = &SessionModeId> {
        std::iter::once(&self.mode).chain(&self.unrecorded_modes)
    }

    /// Makes sub-agents decide under the new ceilings from now on.
    pub(crate) fn publish_ceilings(&self) {
        self.own_ceilings.send_replace(Arc::new(self.context.ceilings(self.modes())));
    }

    /// Returns the ancestry of an agent that the current reply starts.
    pub(crate) fn ancestry_below(&self, parent: Parent) -> Ancestry {
        let reply = self.reply.as_ref().map(|reply| Arc::clone(&reply.started));
        self.ancestry.below(self.own_ceilings.subscribe(), reply, parent)
    }

    pub(crate) fn begin_reply(&mut self) {
        let mut started = self.context.ceilings(self.modes());
        self.ancestry.add_to(&mut started);
        self.reply = Some(ReplyCeilings {
            mode: self.mode.clone(),
            calls: self.ceilings(),
            started: Arc::new(started),
        });
    }

    /// True if the ceilings that agents of the reply keep for their whole life deny all changes.
    pub(crate) fn starts_only_readers(&self) -> bool {
        let started = self.reply.as_ref().map(|reply| &reply.started);
        started.is_some_and(|started| compare::changes_nothing(&started.modes))
    }

    /// Returns the mode at the start of the reply if it allows no more than the current one, else the current
    /// one.
    pub(crate) fn mode_for_started(&self) -> SessionModeId {
        let now = self.mode_ceilings(&self.mode);
        let then = self.reply.as_ref().map(|reply| &reply.mode);
        let tighter = then.filter(|then| !compare::allows_more(&self.mode_ceilings(then), &now));
        tighter.unwrap_or(&self.mode).clone()
    }

    /// Maximum number of model requests in a turn: 1 in an unknown mode.
    pub(crate) fn max_steps(&self) -> u32 {
        let mode = self.context.modes.resolve(&self.mode.0).ok();
        mode.map_or(1, |mode| mode.max_steps).min(self.context.max_steps.unwrap_or(u32::MAX))
    }

    /// The mode, and those that it cannot exceed. None of an unknown mode.
    pub(crate) fn mode_ceilings(&self, mode: &SessionModeId) -> Vec<Arc<Mode>> {
        self.context.modes.ceilings(&mode.0).unwrap_or_default()
    }

    pub(crate) fn ceilings(&self) -> Ceilings {
        self.ceilings_in(self.modes())
    }

    pub(crate) fn ceilings_in<'a>(&self, modes: impl Iterator<Item = &'a SessionModeId>) -> Ceilings {
        let mut ceilings = self.context.ceilings(modes);
        if !ceilings.modes.is_empty() {
            ceilings.modes.extend(self.agent.limits.iter().cloned());
        }
        self.ancestry.add_to(&mut ceilings);
        ceilings
    }

    /// Returns the ceilings for a call. A loosened mode takes effect with the next reply.
    pub(crate) fn call_ceilings(&self) -> Ceilings {
        let mut ceilings = self.ceilings();
        if let Some(reply) = &self.reply {
            add(&mut ceilings, &reply.calls);
        }
        ceilings
    }

    pub(crate) fn no_mode(&self, requested: &str, unknown: &UnknownMode) -> AgentError {
        let modes = &self.context.modes;
        capability::unsupported(requested, &self.context.unsupported_modes, modes)
            .unwrap_or_else(|| AgentError::invalid_params(unknown.to_string(), valid_modes(modes)))
    }

    pub(crate) fn is_tighter(&mut self, old: &SessionModeId, new: &SessionModeId) -> bool {
        let tools = &self.context.tools;
        let modes = (old.clone(), new.clone());
        let is_tighter = if let Some(known) = self.known_tightness.get(&modes) {
            *known
        } else {
            let (of_old, of_new) = (self.mode_ceilings(old), self.mode_ceilings(new));
            let is_tighter =
                compare::allows_more(&of_old, &of_new) || self.is_tighter_for(tools.own(), old, new);
            self.known_tightness.insert(modes, is_tighter);
            is_tighter
        };
        is_tighter || self.is_tighter_for(&self.context.tools.of_servers(), old, new)
    }

    fn is_tighter_for(&self, tools: &[Arc<dyn Tool>], old: &SessionModeId, new: &SessionModeId) -> bool {
        if tools.is_empty() {
            return false;
        }
        let [old, new] = [old, new].map(|mode| Ceilings {
            modes: self.mode_ceilings(mode),
            rules: vec![Arc::clone(&self.context.rules)],
        });
        let grants = Grants::default();
        let strictness =
            |ceilings: &Ceilings, facts: &CallFacts| match permission::decide(ceilings, &grants, facts) {
                Verdict::Allow => 0,
                Verdict::Ask(_) => 1,
                Verdict::Deny(_) => 2,
            };
        tools.iter().filter(|tool| !tool.spec().is_exit).any(|tool| {
            let facts = tool.spec().facts();
            strictness(&new, &facts) > strictness(&old, &facts)
        })
    }

    pub(crate) fn would_widen(&self, target: &SessionModeId) -> bool {
        // Unrecorded tighter modes are in force too, and grants may be wider in the target mode.
        let now: Vec<Arc<Mode>> = self.modes().flat_map(|mode| self.mode_ceilings(mode)).collect();
        compare::allows_more(&self.mode_ceilings(target), &now)
            || self.grants.may_allow_more(&target.0, &self.mode.0)
    }

    /// True if the target allows more than the current mode, but not under the other limits of the session.
    pub(crate) fn is_void_exit(&self, target: &SessionModeId) -> bool {
        let now = self.ceilings().modes;
        compare::allows_more(&self.mode_ceilings(target), &now)
            && !compare::allows_more(&self.ceilings_in(std::iter::once(target)).modes, &now)
    }

    /// Returns a notice if the client has widened the mode of a reopened session before its first prompt. Some
    /// clients do so by themselves: they apply the mode that was selected last.
    pub(crate) fn widened_by_client(&mut self) -> Option<String> {
        let (left_in, now) = (self.left_in.take()?, &self.mode);
        let ceilings = |mode: &SessionModeId| self.context.ceilings(std::iter::once(mode)).modes;
        compare::allows_more(&ceilings(now), &ceilings(&left_in)).then(|| {
            format!(
                "This session was left in {left_in} mode. Since it was opened again, the editor has set {now} mode, perhaps by \
                 itself: some editors apply the mode that you selected last. To prevent it, start Modegate with \
                 `--max-mode {left_in}`.\n\n"
            )
        })
    }

    /// Returns the choices: the previous mode, the model's proposal, the mode's `exits_to`, the default.
    pub(crate) fn exits(&self, requested: Option<&str>) -> Vec<SessionModeId> {
        let modes = &self.context.modes;
        let previous = self.previous.as_ref().map(|mode| mode.0.to_string());
        let exits_to = modes.resolve(&self.mode.0).ok().and_then(|mode| mode.exits_to.clone());
        let all = [previous, requested.map(str::to_owned), exits_to, Some(DEFAULT.to_owned())];
        let mut targets: Vec<SessionModeId> = Vec::new();
        for id in all.into_iter().flatten() {
            let Ok(mode) = modes.resolve(&id) else { continue };
            if mode.mode_id() != self.mode && !targets.contains(&mode.mode_id()) {
                targets.push(mode.mode_id());
            }
        }
        targets
    }

    pub(crate) fn decide(&self, facts: &CallFacts) -> Verdict {
        match permission::decide(&self.call_ceilings(), &self.grants, facts) {
            Verdict::Deny(denial) => Verdict::Deny(self.explain_stale(denial, facts)),
            verdict => verdict,
        }
    }

    fn explain_stale(&self, denial: Denial, facts: &CallFacts) -> Denial {
        let then = self.reply.as_ref().map(|reply| &reply.mode).filter(|then| **then != self.mode);
        let Some(then) = then else { return denial };
        if matches!(permission::decide(&self.ceilings(), &self.grants, facts), Verdict::Deny(_)) {
            return denial;
        }
        let (tool, now) = (&facts.tool, &self.mode);
        let message = format!(
            "The reply with this call began in {then} mode, which does not allow {tool}. The session is in {now} mode \
             now: call {tool} again in the next reply."
        );
        Denial { message, ..denial }
    }

    pub(crate) fn without_asking(&self, facts: &CallFacts) -> RecordedConsent {
        match permission::decide(&self.call_ceilings(), &Grants::default(), facts) {
            Verdict::Ask(_) if facts.source == CallSource::ExternalAgent => RecordedConsent::ExternalAgent,
            Verdict::Ask(_) => RecordedConsent::Remembered,
            Verdict::Allow | Verdict::Deny(_) => RecordedConsent::Mode,
        }
    }

    /// Replaces an agent's name by its id, because rules match ids.
    pub(crate) fn name_agent(&self, facts: &mut CallFacts) {
        if facts.effect != Effect::Delegate || facts.tool == skill::RUN {
            return;
        }
        let name = facts.mentions.first().and_then(|name| name.to_str());
        let agent = name.map_or(Ok(&self.agent), |name| self.context.agents.resolve(name));
        // An unknown agent never starts.
        if let Ok(agent) = agent {
            facts.mentions = vec![PathBuf::from(&agent.id)];
        }
    }

    /// Returns an error if the agent cannot be sandboxed under the current ceilings. Runs before anything
    /// starts (D47, D48).
    pub(crate) fn check_external_agent(&self, agent: &AgentSpec) -> Result<(), String> {
        let Some(external_agent) = &agent.external_agent else { return Ok(()) };
        self.context.check_required_broker(agent)?;
        let mut ceilings = self.call_ceilings();
        ceilings.modes.extend(agent.limits.iter().cloned());
        match capability::is_sandboxed(&ceilings, self.context.control_of(external_agent)) {
            Some(_) => Ok(()),
            None => Err(format!(
                "unsupported_mode: {} uses its own tools and cannot be sandboxed for {} mode. It was not started.",
                agent.id,
                self.mode_for_started()
            )),
        }
    }

    /// Updates the facts of a call: see [`current_facts`] and [`Self::name_agent`].
    pub(crate) fn refreshed(&self, facts: &CallFacts) -> CallFacts {
        let mut facts = current_facts(&self.context.tools, facts);
        self.name_agent(&mut facts);
        facts
    }

    pub(crate) fn limits(&self) -> AgentLimits {
        let of_mode = Ceilings { modes: self.mode_ceilings(&self.mode), rules: Vec::new() };
        AgentLimits {
            mode: self.mode.clone(),
            ceilings: self.ceilings(),
            call_ceilings: self.call_ceilings(),
            is_mode_unrestricted: requirement(&of_mode) == Requirement::Unrestricted,
        }
    }

    /// The tools that the ceilings do not deny.
    pub(crate) fn available_tools(
        &self,
        all: &[Arc<dyn Tool>],
        has_background_work: bool,
    ) -> Vec<Arc<dyn Tool>> {
        let ceilings = self.ceilings();
        let is_available = |spec: &ToolSpec| permission::is_available(&ceilings, &self.grants, &spec.facts());
        tool::offered(all, has_background_work, is_available)
    }

    /// Returns the mode that limits the session, and why, if the session's mode would allow more.
    pub(crate) fn limited_to(&self) -> Option<(String, &'static str)> {
        let SessionContext { modes, max_modes, managed_modes, fallback_ceiling, .. } = &*self.context;
        let of_mode = modes.ceilings(&self.mode.0).ok()?;
        let fallback = fallback_ceiling.as_ref().map(std::slice::from_ref).unwrap_or_default();
        let limits = [(fallback, "because a modes file cannot be used"), (max_modes, "by --max-mode")];
        let managed = managed_modes.iter().map(std::slice::from_ref).map(|modes| (modes, BY_POLICY));
        // The policy first: no user can change it.
        managed.chain(limits).find_map(|(ceilings, why)| {
            let limit = ceilings.first().filter(|_| compare::allows_more(&of_mode, ceilings))?;
            Some((limit.id.clone(), why))
        })
    }
}

/// Returns hash and text of all ceilings of a decision, so that an audit can repeat it ([`crate::audit`]).
pub(crate) fn text_of_ceilings(ceilings: &Ceilings) -> (String, String) {
    let Ceilings { modes, rules } = ceilings;
    let mut documents: Vec<String> = Vec::new();
    for document in modes.iter().map(|mode| mode.to_yaml()).chain(rules.iter().map(|rules| rules.to_yaml())) {
        if !documents.contains(&document) {
            documents.push(document);
        }
    }
    let text = documents.join("---\n");
    (ids::hash(&text), text)
}

/// Updates the facts of a server's tool, which may have changed since. A missing tool gets the worst effect.
pub(crate) fn current_facts(tools: &Toolset, facts: &CallFacts) -> CallFacts {
    if facts.server.is_none() {
        return facts.clone();
    }
    let tool = tools.find(&facts.tool);
    let (effect, claim) =
        tool.map_or((Effect::Unknown, None), |tool| (tool.spec().effect, tool.spec().claim.clone()));
    CallFacts { effect, claim, ..facts.clone() }
}
