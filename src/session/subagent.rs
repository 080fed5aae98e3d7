//! Another session at work for a call of this one: from its prompt to its answer. What it shows meanwhile is passed on by its
//! [`super::relay`]; what came of it is said as it is, and what failed is never said to have been done.

use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::SessionHandle;
use super::change_mode::DEADLINE;
use super::subagent_relay::{Heartbeat, Report, SubagentOutput};
use crate::acp::{ContentBlock, StopReason, ToolCallId};
use crate::tool::background::Finished;

/// How long one may take to end that is to: as long as its turn and what it began may take.
const CLOSE: Duration = Duration::from_secs(3 * DEADLINE.as_secs());

/// A session that is about to work.
pub(super) struct Subagent {
    /// The call that it works for.
    pub call: ToolCallId,
    /// Which agent.
    pub agent: String,
    /// The session.
    pub handle: SessionHandle,
    /// What it is told.
    pub task: Vec<ContentBlock>,
    /// Who passes on what it shows.
    pub relay: JoinHandle<SubagentOutput>,
    /// Cancelled, its relay waits for nobody.
    pub relay_cancel: CancellationToken,
    /// Its signs of life.
    pub heartbeat: watch::Receiver<Heartbeat>,
    /// How long it may be without any.
    pub idle_timeout: Duration,
    /// Where its end is told.
    pub to: mpsc::UnboundedSender<Report>,
    /// Its place among those at work.
    pub slot: OwnedSemaphorePermit,
}

impl Subagent {
    /// Lets it work until it has answered, or is to end; then nothing of it goes on. A `note` is made of its end.
    pub async fn work(
        self,
        cancel: CancellationToken,
        note: impl FnOnce(&Finished) -> Option<String>,
    ) -> Finished {
        let Self { call, agent, handle, task, relay, relay_cancel, mut heartbeat, idle_timeout, to, slot } =
            self;
        let outcome = {
            let token = cancel.child_token();
            let _ended = token.clone().drop_guard();
            let turn = handle.prompt(task, token);
            tokio::select! {
                biased;
                end = turn => Some(end.map(|end| end.reason)),
                () = idle(&mut heartbeat, idle_timeout) => None,
            }
        };
        relay_cancel.cancel();
        let unfinished =
            tokio::time::timeout(CLOSE, handle.close()).await.ok().flatten().map(|closed| closed.unfinished);
        let is_closed = unfinished.is_some();
        drop(handle);
        let output = match tokio::time::timeout(CLOSE, relay).await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => {
                tracing::error!(%error, "what an agent showed was not passed on to its end");
                SubagentOutput::default()
            }
            Err(_) => SubagentOutput::default(),
        };
        drop(slot);
        let mut finished = match outcome {
            Some(Ok(StopReason::EndTurn)) if output.stopped.is_some() => {
                failed(&output, output.stopped.unwrap_or_default())
            }
            Some(Ok(StopReason::EndTurn)) if output.text.trim().is_empty() => {
                failed(&output, "ended without an answer")
            }
            Some(Ok(StopReason::EndTurn)) => {
                Finished { text: output.text.clone(), has_failed: false, plan: output.plan.clone() }
            }
            Some(Ok(StopReason::MaxTokens)) => failed(&output, "ran out of tokens before it was done"),
            Some(Ok(StopReason::MaxTurnRequests)) => {
                failed(&output, "made as many requests as the mode allows, and was not done")
            }
            Some(Ok(StopReason::Refusal)) => failed(&output, "refused the task"),
            Some(Ok(StopReason::Cancelled)) => failed(&output, "was stopped before it was done"),
            Some(Ok(_)) => failed(&output, "ended for a reason that is not known"),
            Some(Err(error)) => {
                let text = error.to_string();
                // Who failed is said before it.
                let why = text.strip_prefix(&format!("the agent {agent}: ")).unwrap_or(&text);
                failed(&output, &format!("failed: {why}"))
            }
            None => {
                failed(&output, &format!("did nothing for {} s and was stopped", idle_timeout.as_secs_f64()))
            }
        };
        if !is_closed {
            finished.text =
                format!("{}\nIt has not ended yet: what it began may still go on.", finished.text);
            finished.has_failed = true;
        }
        if finished.has_failed {
            finished.text = format!("The agent {agent} {}", finished.text);
        }
        let note = note(&finished);
        // The session above may be over.
        let _ = to.send(Report::Ended { call, note, unfinished });
        finished
    }
}

/// What is said of one that did not do what it was to do.
fn failed(output: &SubagentOutput, how: &str) -> Finished {
    let last = output.text.trim();
    let text = if last.is_empty() { format!("{how}.") } else { format!("{how}. It said last:\n{last}") };
    Finished { text, has_failed: true, plan: output.plan.clone() }
}

/// Ends when there was no sign of life for so long, but for a person who is asked.
async fn idle(heartbeat: &mut watch::Receiver<Heartbeat>, idle_timeout: Duration) {
    loop {
        let Heartbeat { at, waits } = *heartbeat.borrow_and_update();
        let changed = heartbeat.changed();
        let changed = if waits {
            changed.await
        } else {
            match tokio::time::timeout_at(at + idle_timeout, changed).await {
                Ok(changed) => changed,
                Err(_) => return,
            }
        };
        if changed.is_err() {
            // Its relay is over, and so will be its turn.
            return std::future::pending().await;
        }
    }
}
