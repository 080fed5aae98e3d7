//! The next request to the model: the history, and the tools and the reminder of the mode that is on now.

use std::sync::Arc;

use super::actor::Actor;
use super::{Session, reminder};
use crate::model::ModelRequest;
use crate::permission;
use crate::tool::ToolSpec;

impl Actor {
    /// What the model is asked next: the tools and the reminder of the mode that is on now. `None` when the turn has
    /// made as many requests as the mode allows: nothing is then noted as asked or told.
    pub(super) fn next_request(&mut self, requests: u32) -> Option<ModelRequest> {
        let modes = Arc::clone(&self.shared.modes);
        let mode = modes.resolve(&self.session.mode.0).ok();
        if requests >= mode.map_or(1, |mode| mode.max_steps) {
            return None;
        }
        self.session.asked_under = Some(self.session.mode.clone());
        self.offer_tools();
        let transition = self.session.transition.as_mut().map(|pending| {
            pending.told = true;
            &pending.transition
        });
        let names: Vec<&str> = self.offers.iter().map(|offer| offer.name.as_str()).collect();
        let reminder = mode.and_then(|mode| reminder::compose(mode, transition, &names));
        let ordinal = self.session.requests;
        self.session.requests += 1;
        Some(ModelRequest {
            session: self.session.id.clone(),
            ordinal,
            system: system_prompt(&self.session),
            tools: Arc::clone(&self.offers),
            messages: reminder::splice(self.session.history.messages(), reminder),
        })
    }

    /// The tools that the session's ceilings do not deny. The same list is kept while it stays the same.
    fn offer_tools(&mut self) {
        let (ceilings, grants) = (self.ceilings(), &self.session.grants);
        let specs = self.shared.tools.iter().map(crate::tool::Tool::spec);
        let is_available =
            |spec: &&ToolSpec| permission::is_available(&ceilings, grants, spec.name, spec.effect);
        let offered: Vec<&ToolSpec> = specs.filter(is_available).collect();
        let is_same =
            self.offers.iter().map(|offer| offer.name.as_str()).eq(offered.iter().map(|spec| spec.name));
        if !is_same {
            self.offers = offered.into_iter().map(ToolSpec::to_offer).collect();
        }
    }
}

/// The same bytes for the life of a session. Modes are not mentioned: they live in the reminder.
fn system_prompt(session: &Session) -> Arc<str> {
    format!(
        "You are Modegate, a coding agent in the user's editor. Work with the tools you are given, and say briefly what \
         you did and where. The working directory is {}.",
        session.workspace.cwd().display()
    )
    .into()
}
