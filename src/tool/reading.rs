//! A call that reads something and answers with text: what listing, walking and searching have in common.

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::{PreparedCall, RunContext, ToolError, ToolOutput, effect};
use crate::permission::Target;

/// What is done once the call may run. The token is cancelled when it has to stop.
type Work = Box<dyn FnOnce(&CancellationToken) -> Result<String, ToolError> + Send>;

/// The call.
pub struct Reading {
    title: String,
    targets: [Target; 1],
    work: Work,
}

impl Reading {
    /// A call about one place.
    pub fn boxed(
        title: String,
        target: Target,
        work: impl FnOnce(&CancellationToken) -> Result<String, ToolError> + Send + 'static,
    ) -> Box<dyn PreparedCall> {
        Box::new(Self { title, targets: [target], work: Box::new(work) })
    }
}

impl std::fmt::Debug for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reading")
            .field("title", &self.title)
            .field("targets", &self.targets)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl PreparedCall for Reading {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn targets(&self) -> &[Target] {
        &self.targets
    }

    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError> {
        effect(context.permit, move |cancel| {
            let text = (self.work)(cancel)?;
            Ok(ToolOutput { text, ..ToolOutput::default() })
        })
        .await
    }
}
