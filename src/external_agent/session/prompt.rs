//! A prompt to an external agent that is ready for it.

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::acp::{ContentBlock, StopReason};
use crate::external_agent::{ExternalAgent, ExternalAgentError};

pub struct Ready {
    pub(super) agent: ExternalAgent,
    pub(super) fences: mpsc::Sender<oneshot::Sender<()>>,
    /// Cancelled when a mode change ends the process.
    pub(super) stopped: CancellationToken,
}

pub enum PromptOutcome {
    Stopped(StopReason),
    /// The agent was ended, because the new mode requires the sandbox.
    ModeChanged,
}

impl Ready {
    /// Passes the prompt on unchanged. Returns after all updates of the agent have reached the session.
    pub async fn prompt(
        self,
        content: Vec<ContentBlock>,
        cancel: &CancellationToken,
    ) -> Result<PromptOutcome, ExternalAgentError> {
        let outcome = self.agent.prompt(content, cancel.clone()).await;
        let (fence, passed) = oneshot::channel::<()>();
        if self.fences.send(fence).await.is_ok() {
            // The sender is only ever dropped.
            let _ = passed.await;
        }
        if self.stopped.is_cancelled() && !cancel.is_cancelled() {
            return Ok(PromptOutcome::ModeChanged);
        }
        outcome.map(PromptOutcome::Stopped)
    }
}
