//! Other modes and rules in the place of those that hold: all of them at once, and what they deny ends.

use std::sync::Arc;

use serde_json::{Value, json};

use super::actor::Actor;
use super::options;
use crate::acp::{AvailableCommandsUpdate, ConfigOptionUpdate, SessionModeId, SessionUpdate};
use crate::error::AgentError;
use crate::mode::Modes;
use crate::permission::rules::Rules;
use crate::store::ModeSource;

impl Actor {
    /// Takes them. A mode that is on and no longer there is left for the most restrictive one.
    pub(super) async fn reload(&mut self, modes: Arc<Modes>, rules: Arc<Rules>) -> Result<Value, AgentError> {
        let current = self.session.mode.clone();
        let is_gone = modes.resolve(&current.0).is_err();
        let refuge = modes.most_restrictive().mode_id();
        self.shared.modes = modes;
        self.shared.rules = rules;
        // What was held because a file could not be used: the files can be used.
        self.shared.max_mode.clone_from(&self.shared.asked_max_mode);
        if is_gone {
            self.change_mode(&refuge, ModeSource::Reload).await?;
        } else {
            self.end_what_is_denied(&SessionModeId::new(Arc::clone(&current.0))).await;
        }
        let choice = self.choice_of_mode();
        self.session.active = choice;
        let commands = AvailableCommandsUpdate::new(super::command::available(&self.shared.modes));
        let id = self.session.id.clone();
        self.client.update(id.clone(), SessionUpdate::AvailableCommandsUpdate(commands).into(), None);
        let options = self.options();
        let update = SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(options.clone()));
        self.client.update(id, update.into(), None);
        let modes = options::mode_state(&self.shared.modes, &self.session.mode);
        Ok(json!({ "modes": modes, "configOptions": options }))
    }
}
