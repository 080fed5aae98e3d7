//! Programs whose changes cannot be recorded have no mode that permits changes.

use crate::acp::SessionModeId;
use crate::error::AgentError;
use crate::session::{ModePermits, SessionHandle};

/// The reason for which a program may not run in the mode, as a clause. `None` if it may.
pub(super) async fn refusal(
    handle: &SessionHandle,
    mode: &SessionModeId,
) -> Result<Option<String>, AgentError> {
    let offer = handle.offer().await?;
    let Some(reason) = offer.unrecordable else { return Ok(None) };
    let permits = offer.permits.iter().find(|(id, _)| **id == *mode.0).map(|(_, permits)| *permits);
    if permits == Some(ModePermits::Reading) {
        return Ok(None);
    }
    Ok(Some(format!(
        "the program's changes in {mode} mode could not be recorded, because {reason}. `modegate store check` says more; plan mode \
         works; and `store: {{unrecorded_changes: allow}}` in config.yaml permits unrecorded changes"
    )))
}
