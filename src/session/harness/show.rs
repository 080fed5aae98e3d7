//! What the client is told of somebody else's agent besides what it says itself: that it is held, and the options as they are.

use std::future::Future;

use tokio::sync::oneshot;

use super::keeper::Kept;
use crate::acp::{MessageId, SessionConfigOption, SessionUpdate};
use crate::event::SessionEvent;
use crate::harness::Harness;
use crate::permission::Ceilings;
use crate::session::actor::Actor;
use crate::session::possible::{self, Need};
use crate::session::relay::Report;

impl Actor {
    /// Says why what it tries to change fails: it says so in its own words, or not at all.
    pub(in crate::session) async fn say_held(&mut self) {
        let (agent, mode) = (&self.session.agent.id, &self.session.mode);
        let when = if self.is_mode_free() { "whatever the mode is," } else { &format!("in {mode} mode") };
        let text = format!(
            "The agent {agent} is held: {when} it changes nothing, and what it tries to change fails.\n\n"
        );
        self.notice_outer(text).await;
    }

    /// Whether the session's mode by itself does not hold it. What does then is above it, or was the user's wish.
    pub(in crate::session) fn is_mode_free(&self) -> bool {
        let modes = self.shared.modes.ceilings(&self.session.mode.0).unwrap_or_default();
        possible::need(&Ceilings { modes, rules: Vec::new() }) == Need::Free
    }

    /// Says that it has not the mode of its own that it was to be in.
    pub(in crate::session) async fn say_unknown_mode(&mut self, harness: &Harness) {
        let Some(definition) = self.outer_definition() else { return };
        let modes = &definition.modes;
        let wanted = if self.is_outer_held() { &modes.read_only } else { &modes.full };
        if let Some(missing) = wanted.as_deref().and_then(|id| harness.missing_mode(id)) {
            let text = format!("The agent {} has no {missing}.\n\n", self.session.agent.id);
            self.say_of_outer(text).await;
        }
    }

    /// Says something now, or with the next prompt.
    async fn say_of_outer(&mut self, text: String) {
        if self.turn.is_some() {
            self.notice_outer(text).await;
        } else if !self.session.notices.contains(&text) {
            self.session.notices.push(text);
        }
    }

    pub(in crate::session) async fn notice_outer(&mut self, text: String) {
        self.session.server_notices += 1;
        let message_id =
            MessageId::new(format!("msg_{}_s{}", self.session.turns, self.session.server_notices));
        self.record(SessionEvent::Notice { message_id, text }, None).await;
    }

    /// Shows the client all options, as they are now.
    pub(in crate::session) fn show_options(&self) {
        let options = crate::acp::ConfigOptionUpdate::new(self.options());
        let update = SessionUpdate::ConfigOptionUpdate(options);
        self.client.update(self.session.id.clone(), update.into(), None);
    }

    /// The options as they are when this is awaited.
    pub(in crate::session) fn looking(
        &self,
    ) -> impl Future<Output = Option<Vec<SessionConfigOption>>> + use<> {
        let to = self.children.reports.0.clone();
        let start = self.outer.starts;
        async move {
            let (reply, options) = oneshot::channel();
            to.send(Report::Kept { start, kept: Kept::Look(reply) }).ok()?;
            options.await.ok()
        }
    }
}
