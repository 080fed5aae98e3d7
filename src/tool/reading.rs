//! A call that reads something and answers with text: what listing, walking and searching have in common.

use async_trait::async_trait;

use super::{PreparedCall, RunContext, ToolError, ToolOutput, blocking};
use crate::gate::Permit;
use crate::permission::Target;

/// What is done once the call may run. The permit says when it has to stop, and what it may read.
type Work = Box<dyn FnOnce(&Permit) -> Result<String, ToolError> + Send>;

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
        work: impl FnOnce(&Permit) -> Result<String, ToolError> + Send + 'static,
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
        let permit = context.permit;
        // The permit stays with the work until it is over, whether or not somebody still waits for it.
        blocking(move || {
            let text = (self.work)(&permit)?;
            Ok(ToolOutput { text, ..ToolOutput::default() })
        })
        .await
    }
}
