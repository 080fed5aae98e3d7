//! Asks the user before a looser mode restarts an external agent that would lose its context.

use tokio_util::sync::CancellationToken;

use super::run::RunEvent;
use crate::acp::{
    PermissionOption, PermissionOptionKind, RequestPermissionOutcome, RequestPermissionRequest, ToolCallId,
    ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};
use crate::conversation::acp_updates::text_content;
use crate::session::actor::Actor;
use crate::session::subagent_relay::Report;

const RESTART: &str = "restart";
const STAY: &str = "stay";

impl Actor {
    pub(in crate::session) fn ask_to_restart(&mut self, start: u64) {
        let Some(turn) = &self.turns.running else { return };
        let cancel = turn.cancel.clone();
        let void = CancellationToken::new();
        self.external_agent.restart_question = void.clone();
        let text = format!(
            "The agent {} is sandboxed, and {} mode does not require that. To run without the sandbox, the agent must \
             restart and then loses this conversation.",
            self.policy.agent.id, self.policy.mode
        );
        let fields = ToolCallUpdateFields::new()
            .title("Restart the agent without the sandbox?".to_owned())
            .kind(ToolKind::SwitchMode)
            .status(ToolCallStatus::Pending)
            .content(vec![text_content(&text)]);
        let call = ToolCallUpdate::new(ToolCallId::new(format!("restart_{}", self.log.turns)), fields);
        let options = vec![
            PermissionOption::new(RESTART, "Restart the agent", PermissionOptionKind::AllowOnce),
            PermissionOption::new(STAY, "Keep the sandbox", PermissionOptionKind::RejectOnce),
        ];
        let mut question =
            self.log.client.ask(RequestPermissionRequest::new(self.log.id.clone(), call, options));
        let to = self.subagents.reports.0.clone();
        tokio::spawn(async move {
            let answer = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                () = void.cancelled() => None,
                answer = question.answer() => Some(answer),
            };
            // Withdraws the question first.
            drop(question);
            // Only an explicit yes counts.
            let is_yes = answer.map(|answer| {
                answer.is_ok_and(|answer| {
                    matches!(answer.outcome, RequestPermissionOutcome::Selected(chosen) if &*chosen.option_id.0 == RESTART)
                })
            });
            let _ = to.send(Report::ExternalAgentRun { start, event: RunEvent::Restart(is_yes) });
        });
    }
}
