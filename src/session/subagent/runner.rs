//! Runs a sub-agent from its prompt to its answer. A failed run is never reported as done.

use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::relay::{Heartbeat, SubagentOutput, SubagentReport};
use crate::acp::{ContentBlock, SessionId, StopReason, ToolCallId};
use crate::session::handle::PromptOptions;
use crate::session::notes::endings::BackgroundEnd;
use crate::session::prompt_end::EndReason;
use crate::session::{DEADLINE, SessionHandle};
use crate::tool::agent::background::{BackgroundAgent, Finished};

/// Time for a turn and its calls to end.
const CLOSE: Duration = Duration::from_secs(3 * DEADLINE.as_secs());

pub(crate) struct Subagent {
    pub call: ToolCallId,
    pub agent: String,
    pub session: SessionId,
    pub handle: SessionHandle,
    pub task: Vec<ContentBlock>,
    pub relay: JoinHandle<SubagentOutput>,
    /// Once cancelled, the relay needs no send permits.
    pub relay_cancel: CancellationToken,
    pub heartbeat: watch::Receiver<Heartbeat>,
    pub idle_timeout: Duration,
    pub to: mpsc::UnboundedSender<SubagentReport>,
    pub slot: OwnedSemaphorePermit,
}

impl Subagent {
    /// Runs until the sub-agent answers, is cancelled or stays idle, then closes its session.
    pub(crate) async fn work(
        self,
        cancel: CancellationToken,
        background: Option<BackgroundAgent>,
    ) -> Finished {
        let Self {
            call,
            agent,
            session: _,
            handle,
            task,
            relay,
            relay_cancel,
            mut heartbeat,
            idle_timeout,
            to,
            slot,
        } = self;
        let outcome = {
            let token = cancel.child_token();
            let _ended = token.clone().drop_guard();
            let turn = handle.prompt(task, PromptOptions::default(), token);
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
                tracing::error!(%error, "some updates of an agent were not forwarded");
                SubagentOutput::default()
            }
            Err(_) => SubagentOutput::default(),
        };
        drop(slot);
        let mut finished = match outcome {
            Some(Ok(EndReason::Stop(StopReason::EndTurn))) if !output.text.trim().is_empty() => {
                Finished { text: output.text, has_failed: false, plan: output.plan }
            }
            Some(Ok(reason)) => failed(output, failure(reason)),
            Some(Err(error)) => {
                let text = error.to_string();
                let why = text.strip_prefix(&format!("the agent {agent}: ")).unwrap_or(&text);
                failed(output, &format!("failed: {why}"))
            }
            None => {
                failed(output, &format!("did nothing for {} s and was stopped", idle_timeout.as_secs_f64()))
            }
        };
        if !is_closed {
            finished.text = format!(
                "{}\nThe agent has not ended yet, and its calls may still be running.",
                finished.text
            );
            finished.has_failed = true;
        }
        if finished.has_failed {
            finished.text = format!("The agent {agent} {}", finished.text);
        }
        let end = |agent| BackgroundEnd::Agent { agent, finished: finished.clone() };
        let background = background.map(end);
        // The parent session may have ended.
        let answer = finished.text.clone();
        let _ = to.send(SubagentReport::Ended { call, background, answer, unfinished });
        finished
    }
}

fn failed(output: SubagentOutput, how: &str) -> Finished {
    let last = output.text.trim();
    let text = if last.is_empty() { format!("{how}.") } else { format!("{how}. Its last message:\n{last}") };
    Finished { text, has_failed: true, plan: output.plan }
}

/// How a turn without an answer ended.
fn failure(reason: EndReason) -> &'static str {
    match reason {
        EndReason::RefusedAgain => "was stopped because the same call was refused again and again",
        EndReason::Looping => "was stopped because it repeated the same calls with the same results",
        EndReason::NoAnswer => "was asked again several times and gave no answer",
        EndReason::ChecksFailed => "ended with checks that fail",
        EndReason::ModeChanged => "was stopped because the new mode denies its calls",
        EndReason::BudgetExceeded(_) => "was stopped because a budget is used up",
        EndReason::Stop(StopReason::EndTurn) => "ended without an answer",
        EndReason::Stop(StopReason::MaxTokens) => "ran out of tokens before it finished",
        EndReason::Stop(StopReason::MaxTurnRequests) => {
            "made as many requests as the mode allows and did not finish"
        }
        EndReason::Stop(StopReason::Refusal) => "refused the task",
        EndReason::Stop(StopReason::Cancelled) => "was stopped before it finished",
        EndReason::Stop(_) => "ended for an unknown reason",
    }
}

/// Completes after `idle_timeout` without activity, except while [`Heartbeat::waits`].
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
            // The turn ends soon, too.
            return std::future::pending().await;
        }
    }
}
