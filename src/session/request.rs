//! The next request to the model: the history, and the tools and the reminder of the mode that is on now.

use std::sync::Arc;

use super::actor::Actor;
use super::turn::NextRequest;
use super::{Session, reminder};
use crate::model::ModelRequest;
use crate::permission;
use crate::tool::ToolSpec;

impl Actor {
    /// What the model is asked next: the tools and the reminder of the mode that is on now.
    pub(super) fn next_request(&mut self) -> NextRequest {
        self.session.asked_under = Some(self.session.mode.clone());
        let modes = Arc::clone(&self.shared.modes);
        let mode = modes.resolve(&self.session.mode.0).ok();
        let ceilings = self.ceilings();
        let grants = &self.session.grants;
        let specs = self.shared.tools.iter().map(crate::tool::Tool::spec);
        let offered: Vec<&ToolSpec> = specs
            .filter(|spec| permission::is_available(&ceilings, grants, spec.name, spec.effect))
            .collect();
        let names: Vec<&str> = offered.iter().map(|spec| spec.name).collect();
        let same = self.offers.iter().map(|offer| offer.name.as_str()).eq(names.iter().copied());
        let offers = (!same).then(|| offered.iter().map(|spec| spec.to_offer()).collect());
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        if let Some(offers) = offers {
            self.offers = offers;
        }
        let transition = self.session.transition.as_mut().map(|pending| {
            pending.told = true;
            &pending.transition
        });
        let reminder = mode.and_then(|mode| {
            reminder::compose(mode, transition, &names.iter().map(String::as_str).collect::<Vec<_>>())
        });
        let ordinal = self.session.requests;
        self.session.requests += 1;
        NextRequest {
            max_steps: mode.map_or(1, |mode| mode.max_steps),
            request: ModelRequest {
                session: self.session.id.clone(),
                ordinal,
                system: system_prompt(&self.session),
                tools: Arc::clone(&self.offers),
                messages: reminder::splice(self.session.history.messages(), reminder),
            },
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
