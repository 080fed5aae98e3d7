//! Background work at the end of a turn that is the session's last: without it, the work would end with the turn,
//! and the model would never learn the result that it was promised.

use futures_util::future::{FutureExt, select_all};

use super::message::{Background, TurnMessage};
use super::{Turn, TurnError};

/// Waits for background agents. Returns true if the model needs another request: an agent has ended, or jobs
/// still run, which the model learns once.
pub(super) async fn goes_on(turn: &Turn) -> Result<bool, TurnError> {
    if !turn.context.ends_with_turn {
        return Ok(false);
    }
    match turn.ask_actor(|reply| TurnMessage::BackgroundAtEnd { reply }).await? {
        Background::Nothing => Ok(false),
        Background::News => Ok(true),
        Background::Agents(agents) => {
            let ends = agents.iter().map(|agent| agent.over().boxed());
            tokio::select! {
                biased;
                // The next step reports the cancellation.
                () = turn.cancel.cancelled() => {}
                _ = select_all(ends) => {}
            }
            Ok(true)
        }
    }
}
