//! Asks the user before a looser mode restarts an external agent that would lose its context.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::ExternalAgentHost;
use super::message::{AgentMessage, WaitingPrompt};
use crate::acp::{
    PermissionOption, PermissionOptionKind, RequestPermissionOutcome, RequestPermissionRequest,
    SessionModeId, ToolCallId, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};
use crate::conversation::acp_updates::text_content;

const RESTART: &str = "restart";
const STAY: &str = "stay";

/// Asks in the turn of `prompt`, and sends the answer to the session.
pub(super) fn ask(
    host: &ExternalAgentHost,
    mode: &SessionModeId,
    prompt: &WaitingPrompt,
    void: CancellationToken,
    to: mpsc::UnboundedSender<AgentMessage>,
) {
    let cancel = prompt.cancel.clone();
    let text = format!(
        "The agent {} is sandboxed, and {} mode does not require that. To run without the sandbox, the agent must \
         restart and then loses this conversation.",
        host.agent.id, mode
    );
    let fields = ToolCallUpdateFields::new()
        .title("Restart the agent without the sandbox?".to_owned())
        .kind(ToolKind::SwitchMode)
        .status(ToolCallStatus::Pending)
        .content(vec![text_content(&text)]);
    let call = ToolCallUpdate::new(ToolCallId::new(format!("restart_{}", prompt.turn)), fields);
    let options = vec![
        PermissionOption::new(RESTART, "Restart the agent", PermissionOptionKind::AllowOnce),
        PermissionOption::new(STAY, "Keep the sandbox", PermissionOptionKind::RejectOnce),
    ];
    let request = RequestPermissionRequest::new(host.session.clone(), call, options);
    let mut question = host.client.ask(request);
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
        let _ = to.send(AgentMessage::Restart(is_yes));
    });
}
