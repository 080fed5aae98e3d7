//! Call type of tools that read one target and return text.

use async_trait::async_trait;

use super::{PreparedCall, RunContext, ToolError, ToolOutput, blocking};
use crate::gate::Permit;
use crate::permission::Target;

/// The permit says when to stop and which files are readable.
type Work = Box<dyn FnOnce(&Permit) -> Result<String, ToolError> + Send>;

pub(super) struct Reading {
    title: String,
    targets: [Target; 1],
    work: Work,
}

impl Reading {
    pub(super) fn boxed(
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
        // The work owns the permit until its end, even if the caller stops waiting.
        blocking(move || {
            let text = (self.work)(&permit)?;
            Ok(ToolOutput { text, ..ToolOutput::default() })
        })
        .await
    }
}
