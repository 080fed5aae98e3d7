//! Notices of Modegate about an external agent, and updates of the config options.

use std::future::Future;

use tokio::sync::oneshot;

use super::run::RunEvent;
use crate::acp::{MessageId, SessionConfigOption, SessionUpdate};
use crate::external_agent::ExternalAgent;
use crate::session::actor::Actor;
use crate::session::subagent_relay::Report;

impl Actor {
    /// Explains why changes fail, which the agent itself may not do.
    pub(in crate::session) async fn announce_sandbox(&mut self) {
        let (agent, mode) = (&self.policy.agent.id, &self.policy.mode);
        let when = if self.policy.is_mode_unrestricted() {
            "in every mode of this session"
        } else {
            &format!("in {mode} mode")
        };
        let text = format!("The agent {agent} is sandboxed: {when} all changes that it attempts fail.\n\n");
        self.record_external_agent_notice(text).await;
    }

    pub(in crate::session) async fn report_unknown_mode(&mut self, agent: &ExternalAgent) {
        let Some(definition) = self.external_agent_definition() else { return };
        let modes = &definition.modes;
        let requested = if self.is_external_agent_sandboxed() { &modes.read_only } else { &modes.full };
        if let Some(missing) = requested.as_deref().and_then(|id| agent.missing_mode(id)) {
            let text = format!("The agent {} has no {missing}.\n\n", self.policy.agent.id);
            self.notify_about_external_agent(text).await;
        }
    }

    async fn notify_about_external_agent(&mut self, text: String) {
        if self.turns.running.is_some() {
            self.record_external_agent_notice(text).await;
        } else if !self.notes.for_user.contains(&text) {
            self.notes.for_user.push(text);
        }
    }

    pub(in crate::session) async fn record_external_agent_notice(&mut self, text: String) {
        self.notes.recorded += 1;
        let message_id = MessageId::new(format!("msg_{}_s{}", self.log.turns, self.notes.recorded));
        self.log.record_notice(message_id, text).await;
    }

    pub(in crate::session) fn send_config_options(&self) {
        let options = crate::acp::ConfigOptionUpdate::new(self.options());
        let update = SessionUpdate::ConfigOptionUpdate(options);
        self.log.send(update, None);
    }

    /// Returns the options at the time when the future is awaited.
    pub(in crate::session) fn current_options(
        &self,
    ) -> impl Future<Output = Option<Vec<SessionConfigOption>>> + use<> {
        let to = self.subagents.reports.0.clone();
        let start = self.external_agent.starts;
        async move {
            let (reply, options) = oneshot::channel();
            to.send(Report::ExternalAgentRun { start, event: RunEvent::Options(reply) }).ok()?;
            options.await.ok()
        }
    }
}
