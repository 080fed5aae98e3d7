//! Background work at the end of a turn. If the turn is the session's last, the work would end with it, and the
//! model would never learn the result that it was promised. Otherwise, the user learns what still runs.

use futures_util::future::{FutureExt, select_all};

use super::message::{Background, TurnMessage};
use super::{Turn, TurnError};
use crate::acp::MessageId;
use crate::event::NoticeKind;
use crate::tool::agent::background::BackgroundAgent;

/// Waits for background agents if the turn is the session's last. Returns true if the model needs another request:
/// an agent has ended, or jobs still run, which the model learns once.
pub(super) async fn goes_on(turn: &Turn, message_id: MessageId) -> Result<bool, TurnError> {
    match turn.ask_actor(|reply| TurnMessage::BackgroundAtEnd { reply }).await? {
        Background::Nothing => Ok(false),
        Background::News => Ok(true),
        Background::Agents(agents) if turn.context.ends_with_turn => {
            let ends = agents.iter().map(|agent| agent.over().boxed());
            tokio::select! {
                biased;
                // The next step reports the cancellation.
                () = turn.cancel.cancelled() => {}
                _ = select_all(ends) => {}
            }
            Ok(true)
        }
        Background::Agents(agents) => {
            turn.post_notice(message_id, NoticeKind::Message, still_running(&agents)).await?;
            Ok(false)
        }
    }
}

fn still_running(agents: &[BackgroundAgent]) -> String {
    let agents: Vec<String> = agents.iter().map(|agent| format!("{} ({})", agent.id, agent.agent)).collect();
    let (verb, answer) = if agents.len() == 1 { ("runs", "its answer") } else { ("run", "their answers") };
    format!(
        "\n{} still {verb} in the background. The model gets {answer} with your next prompt.\n",
        agents.join(", ")
    )
}
