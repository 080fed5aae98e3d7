//! Runs session actions: sub-agents in the foreground or background, and handoffs.
//!
//! A sub-agent keeps the call's permit until it has ended, so a mode that denies delegation ends it.

use super::message::TurnMessage;
use crate::acp::ToolCallId;
use crate::conversation::content::ToolContent;
use crate::gate::Permit;
use crate::session::subagent::spawn::Spawned;
use crate::session::turn::{After, EndedCall, Turn, TurnError, WITHDRAWN};
use crate::tool::agent::background::Finished;
use crate::tool::{SessionAction, ToolOutput};

pub(crate) async fn run(
    turn: &Turn,
    id: ToolCallId,
    action: SessionAction,
    permit: Permit,
) -> Result<After, TurnError> {
    if let SessionAction::Delegate { agent: Some(agent), .. } = &action
        && let Ok(agent) = turn.context.agents.resolve(agent)
    {
        turn.context.try_broker(agent).await;
    }
    let call = id.clone();
    let cancel = permit.cancel.clone();
    let spawned = turn.ask_actor(|reply| TurnMessage::SessionAction { call, action, cancel, reply }).await?;
    let (mut session, mut was_cancelled) = (None, false);
    let finished = match spawned {
        Spawned::Refused(text) => return turn.failed(id, text).await,
        Spawned::Done(text) => {
            drop(permit);
            Finished { text, ..Finished::default() }
        }
        Spawned::Subagent(subagent) => {
            let (cancel, denied) = (permit.cancel.clone(), permit.denied.clone());
            let withdrawn = permit.withdrawn.clone();
            session = Some(subagent.session.clone());
            let mut finished = subagent.work(cancel, None).await;
            drop(permit);
            if denied.is_cancelled() && !turn.cancel.is_cancelled() {
                finished.text.push_str("\nThe session's mode has changed and does not allow this call.");
            } else if withdrawn.is_cancelled() {
                finished.text = format!("{}\n{WITHDRAWN}", finished.text);
            }
            was_cancelled = denied.is_cancelled() || withdrawn.is_cancelled();
            finished
        }
        Spawned::Background(subagent, background, status) if turn.context.live => {
            let text = format!(
                "{} is running as {}. You are notified when it has finished; view_background shows its answer.",
                background.agent, background.id
            );
            session = Some(subagent.session.clone());
            tokio::spawn(async move {
                let cancel = permit.cancel.child_token();
                let stop = async {
                    background.stop.cancelled().await;
                    cancel.cancel();
                };
                let mut done = std::pin::pin!(subagent.work(cancel.clone(), Some(background.clone())));
                let finished = tokio::select! {
                    finished = &mut done => finished,
                    () = stop => done.await,
                };
                status.send_modify(|status| status.end = Some(finished));
                drop(permit);
            });
            Finished { text, ..Finished::default() }
        }
        // Deterministic runs have no background work.
        Spawned::Background(subagent, background, status) => {
            session = Some(subagent.session.clone());
            let finished = subagent.work(permit.cancel.clone(), None).await;
            status.send_modify(|status| status.end = Some(finished.clone()));
            drop(permit);
            let text = format!("{} ran as {}:\n{}", background.agent, background.id, finished.text);
            Finished { text, ..finished }
        }
    };
    let Finished { text, has_failed, plan } = finished;
    if has_failed && was_cancelled {
        return turn.cancelled(id, text).await;
    }
    if has_failed {
        return turn.failed(id, text).await;
    }
    let parts = [plan.as_str(), &text].into_iter().filter(|part| !part.is_empty());
    let session = session.map(ToolContent::Session);
    let content = session.into_iter().chain(parts.map(ToolContent::text)).collect();
    let output = ToolOutput { text, content, ..ToolOutput::default() };
    turn.finish(EndedCall { id, title: None, output, instructions: Vec::new() }).await?;
    Ok(After::Continue)
}
