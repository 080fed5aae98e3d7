//! Other modes and rules in the place of those that hold: all of them at once, and what they deny ends.

use std::sync::Arc;

use serde_json::{Value, json};

use super::actor::Actor;
use super::{Definitions, Shared};
use super::{options, possible};
use crate::error::AgentError;
use crate::store::{ModeSource, Why};

impl Actor {
    /// Takes them, here and in the sessions below. A mode that is on and no longer there is left for the most restrictive one.
    pub(super) async fn reload(&mut self, definitions: Definitions) -> Result<Value, AgentError> {
        let Definitions { modes, rules, agents, commands, skills } = definitions.clone();
        let current = self.session.mode.clone();
        let was = self.text_of(&current);
        let before = self.shared.clone();
        self.shared.held_to = None;
        self.shared.modes = modes;
        self.shared.hold_to(&agents.stored(Some(&self.session.agent.id)).0);
        let Shared { modes, impossible, .. } = &self.shared;
        // One that is possible could allow more than the one that is on.
        if let Some(error) = possible::unsupported(&current.0, impossible, modes) {
            self.shared = before;
            return Err(error);
        }
        let is_gone = self.shared.modes.resolve(&current.0).is_err();
        let refuge = self.shared.modes.most_restrictive().mode_id();
        self.shared.rules = rules;
        let agent = Arc::clone(&self.session.agent);
        self.take_agents(agents);
        // What was asked was asked of other modes.
        self.close_switches();
        if is_gone {
            let why = Why { keeps_hold: true, ..ModeSource::Reload.into() };
            if let Err(error) = self.change_mode(&refuge, why).await {
                (self.shared, self.session.agent) = (before, agent);
                // So it does for those below.
                self.end_what_is_denied().await;
                return Err(error);
            }
        } else {
            self.end_what_is_denied().await;
            let text = self.text_of(&current);
            if text != was {
                self.post_mode_change(Some(current.clone()), current, ModeSource::Reload);
            }
        }
        let choice = self.choice_of_mode();
        self.session.active = choice;
        self.shared.commands = commands;
        self.shared.tools = self.shared.tools.clone().with_skills(&skills);
        self.shared.skills = skills;
        if self.session.lineage.parent.is_some() {
            self.shared.tools = self.shared.tools.for_child(self.session.lineage.may_go_deeper());
        }
        self.reload_children(&definitions).await;
        self.show_commands();
        if !is_gone {
            self.show_options();
        }
        let options = self.options();
        let modes = options::mode_state(&self.shared.modes, &self.session.mode);
        Ok(json!({ "modes": modes, "configOptions": options }))
    }
}
