//! A prompt to an external agent that is ready for it.

use std::path::{Path, PathBuf};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::model_note::noted;
use crate::acp::{ContentBlock, StopReason};
use crate::external_agent::{ExternalAgent, ExternalAgentError};
use crate::process::RecordState;

#[derive(Clone)]
pub struct ReadyAgent {
    pub(super) agent: ExternalAgent,
    pub(super) fences: mpsc::Sender<oneshot::Sender<()>>,
    /// Cancelled when a mode change ends the process.
    pub(super) stopped: CancellationToken,
    /// Folder of the record of changes. `None` if changes are not recorded.
    pub(super) record: Option<PathBuf>,
    /// True if the process may change no files when the prompt begins.
    pub(super) is_sandboxed: bool,
    /// For the agent's model, behind the prompt.
    pub(super) note: Option<String>,
}

pub enum PromptOutcome {
    Stopped(StopReason),
    /// The agent was ended, because the new mode requires the sandbox.
    ModeChanged,
}

impl ReadyAgent {
    pub fn may_change_recorded(&self) -> bool {
        self.record.is_some() && !self.is_sandboxed
    }

    /// Saves the record of changes, and returns its folder. `None` if changes are not recorded.
    pub async fn save_record(&self) -> Option<(&Path, RecordState)> {
        let record = self.record.as_deref()?;
        Some((record, self.agent.program().save_record().await))
    }

    /// Passes the prompt on, with a note about earlier refusals. Returns after all updates of the agent have reached the session.
    pub async fn prompt(
        &self,
        content: Vec<ContentBlock>,
        cancel: &CancellationToken,
    ) -> Result<PromptOutcome, ExternalAgentError> {
        let outcome = self.agent.prompt(noted(content, self.note.clone()), cancel.clone()).await;
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
