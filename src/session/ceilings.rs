//! What calls are decided under: one list of ceilings, asked of when tools are offered, when calls are dispatched, and when
//! what runs has to end.

use super::actor::Actor;
use super::change_mode::BOUND;
use super::{Session, Shared};
use crate::acp::{SessionModeId, ToolCallId};
use crate::gate::Ended;
use crate::ids;
use crate::permission::{self, CallFacts, Ceilings, Verdict};

impl Shared {
    /// The ceilings of a session in the first of these modes, which is held to the others, too. One that is not known leaves
    /// none, and then nothing is allowed.
    fn ceilings<'a>(&'a self, ids: impl Iterator<Item = &'a SessionModeId>) -> Ceilings<'a> {
        let all = ids.map(|id| self.modes.ceilings(&id.0)).collect::<Result<Vec<_>, _>>();
        let mut modes = all.map(|all| all.concat()).unwrap_or_default();
        if !modes.is_empty() {
            modes.extend(self.max_modes.iter().chain(&self.held_to).map(AsRef::as_ref));
        }
        Ceilings { modes, rules: vec![&self.rules] }
    }
}

impl Session {
    /// The mode that is on, and tighter ones that could not be recorded.
    pub(super) fn modes(&self) -> impl Iterator<Item = &SessionModeId> {
        std::iter::once(&self.mode).chain(&self.held)
    }
}

impl Actor {
    /// The ceilings of this session, its own mode first.
    pub(super) fn ceilings(&self) -> Ceilings<'_> {
        self.shared.ceilings(self.session.modes())
    }

    /// The ceilings of a call: those of the session, and what held when the model was asked. Loosening takes effect with
    /// the next request.
    pub(super) fn call_ceilings(&self) -> Ceilings<'_> {
        let mut ceilings = self.ceilings();
        if let (false, Some(asked)) = (ceilings.modes.is_empty(), &self.session.asked_under) {
            let then = asked.ids.iter().filter_map(|id| asked.modes.ceilings(&id.0).ok());
            ceilings.modes.extend(then.flatten());
            ceilings.rules.push(&asked.rules);
        }
        ceilings
    }

    /// The text of all that a call is decided under, with its hash: the record keeps both, so that the decision can be made
    /// again ([`crate::audit`]).
    pub(super) fn text_of_call(&self) -> (String, String) {
        let Ceilings { modes, rules } = self.call_ceilings();
        let mut documents: Vec<String> = Vec::new();
        for document in
            modes.iter().map(|mode| mode.to_yaml()).chain(rules.iter().map(|rules| rules.to_yaml()))
        {
            if !documents.contains(&document) {
                documents.push(document);
            }
        }
        let text = documents.join("---\n");
        (ids::hash(&text), text)
    }

    /// Closes the questions about calls that are denied from now on, and ends such calls where they run.
    pub(super) async fn end_what_is_denied(&mut self) -> (Vec<ToolCallId>, Ended) {
        let (shared, grants) = (self.shared.clone(), self.session.grants.clone());
        let ids: Vec<SessionModeId> = self.session.modes().cloned().collect();
        let ceilings = shared.ceilings(ids.iter());
        // What a server has said of its tool since then counts, and what it said then, too.
        let tools = shared.tools.clone();
        let is_denied = move |facts: &CallFacts| {
            let is =
                |facts: &CallFacts| matches!(permission::decide(&ceilings, &grants, facts), Verdict::Deny(_));
            is(facts) || is(&super::servers::now(&tools, facts))
        };
        let closed = self.close_questions(&is_denied);
        (closed, self.gate.end(is_denied, BOUND).await)
    }
}
