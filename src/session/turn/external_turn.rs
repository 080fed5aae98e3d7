//! A turn that an external agent answers: gets its prompt, and ends when the agent ends it.

use super::message::TurnMessage;
use crate::acp::{ContentBlock, MessageId, StopReason};
use crate::event::NoticeKind;
use crate::external_agent::ExternalAgentError;
use crate::external_agent::session::{PromptOutcome, ReadyAgent};
use crate::model::{Failure, ModelError};
use crate::session::prompt_end::EndReason;
use crate::session::turn::{Turn, TurnError};
use crate::workspace::{Changes, Intent, Recorded, recorded_changes};

const STOPPED: &str =
    "\nStopped: the mode has changed, so the agent was ended. The next prompt starts it again.\n";

pub(crate) async fn run(turn: &Turn, content: Vec<ContentBlock>) -> Result<EndReason, TurnError> {
    let ready = tokio::select! {
        biased;
        () = turn.cancel.cancelled() => return Ok(StopReason::Cancelled.into()),
        ready = turn.ask_actor(|reply| TurnMessage::ExternalAgent { reply }) => ready?,
    };
    let outcome = match ready {
        Ok(ready) => {
            let intent = record_intent(turn, &ready).await;
            let outcome = ready.prompt(content, &turn.cancel).await;
            record_changes(turn, &ready, intent).await;
            outcome
        }
        Err(_) if turn.cancel.is_cancelled() => return Ok(StopReason::Cancelled.into()),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(PromptOutcome::Stopped(reason)) => Ok(reason.into()),
        Ok(PromptOutcome::ModeChanged) => {
            let message_id = MessageId::new(format!("msg_{}_stopped", turn.number));
            turn.post_notice(message_id, NoticeKind::Message, STOPPED).await?;
            Ok(EndReason::ModeChanged)
        }
        Err(error) => Err(TurnError::Model(failure(turn, &error))),
    }
}

/// Records that the turn's changes follow. Returns the token of the intent.
async fn record_intent(turn: &Turn, ready: &ReadyAgent) -> Option<String> {
    if !ready.may_change_recorded() {
        return None;
    }
    let intent = Intent::of_agent(turn.external_agent.as_deref().unwrap_or_default());
    let (intents, token) = (turn.intents.clone(), intent.token.clone());
    let recorded = tokio::task::spawn_blocking(move || intents.record(intent)).await;
    recorded.is_ok_and(|recorded| recorded == Recorded::Committed).then_some(token)
}

async fn record_changes(turn: &Turn, ready: &ReadyAgent, intent: Option<String>) {
    let Some((folder, state)) = ready.save_record().await else { return };
    let (workspace, folder) = (turn.workspace.clone(), folder.to_owned());
    let read = tokio::task::spawn_blocking(move || recorded_changes(&workspace, &folder, &state)).await;
    let mut changes = read.unwrap_or_else(|error| {
        tracing::error!(%error, "reading a record of changes panicked");
        let text = "The changes of this turn are unknown, because their record could not be read.";
        Changes { unrecorded: vec![text.into()], ..Changes::default() }
    });
    if !changes.changed.is_empty() {
        let paths = changes.changed.iter().map(|changed| changed.path.clone());
        let targets = paths.map(|path| turn.workspace.place(path)).collect();
        // The session may be over, here and below.
        let _ = turn.post(TurnMessage::AgentChanges(targets)).await;
    }
    changes.concludes = intent;
    if !changes.is_empty() {
        let _ = turn.changes.send((turn.number, Box::new(changes)));
    }
}

fn failure(turn: &Turn, error: &ExternalAgentError) -> ModelError {
    let agent = turn.external_agent.as_deref().unwrap_or_default();
    let text = format!("the agent {agent}: {error}");
    match error {
        ExternalAgentError::AuthRequired(_) => ModelError { failure: Failure::Key, text },
        _ => ModelError::new(text),
    }
}
