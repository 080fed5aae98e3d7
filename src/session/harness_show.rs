//! What the client is told of somebody else's agent besides what it says itself: that it is held, and the options as they are.

use std::future::Future;

use tokio::sync::oneshot;

use super::actor::Actor;
use super::harness_keeper::Kept;
use super::possible;
use super::relay::Report;
use crate::acp::{MessageId, SessionConfigOption, SessionUpdate};
use crate::event::SessionEvent;

impl Actor {
    /// Says why what it tries to change fails: it says so in its own words, or not at all.
    pub(super) async fn say_held(&mut self) {
        let (agent, mode) = (&self.session.agent.id, &self.session.mode);
        let own =
            if possible::is_by_own(&self.ceilings()) { format!("in {mode} mode ") } else { String::new() };
        let text = format!(
            "The agent {agent} is held: {own}it changes nothing, and what it tries to change fails.\n\n"
        );
        self.notice_outer(text).await;
    }

    pub(super) async fn notice_outer(&mut self, text: String) {
        self.session.server_notices += 1;
        let message_id =
            MessageId::new(format!("msg_{}_s{}", self.session.turns, self.session.server_notices));
        self.record(SessionEvent::Notice { message_id, text }, None).await;
    }

    /// Shows the client all options, as they are now.
    pub(super) fn show_options(&self) {
        let options = crate::acp::ConfigOptionUpdate::new(self.options());
        let update = SessionUpdate::ConfigOptionUpdate(options);
        self.client.update(self.session.id.clone(), update.into(), None);
    }

    /// The options as they are when this is awaited.
    pub(super) fn looking(&self) -> impl Future<Output = Option<Vec<SessionConfigOption>>> + use<> {
        let to = self.children.reports.0.clone();
        let start = self.outer.starts;
        async move {
            let (reply, options) = oneshot::channel();
            to.send(Report::Kept { start, kept: Kept::Look(reply) }).ok()?;
            options.await.ok()
        }
    }
}
