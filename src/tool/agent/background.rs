//! Background agents, as tools see them. The session (`session/subagents`) owns the agents.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How a tool takes part in background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackgroundRole {
    #[default]
    None,
    /// Some of its calls start background work.
    Starts,
    /// Useful only while there is background work.
    Controls,
}

#[derive(Debug, Clone)]
pub struct BackgroundAgent {
    pub id: String,
    pub agent: String,
    /// The task, on one line.
    pub title: String,
    pub status: watch::Receiver<BackgroundStatus>,
    /// Cancel to end the agent.
    pub stop: CancellationToken,
    pub seen_end: SeenEnd,
}

/// Whether the model has read how background work ended. The clones share the mark.
#[derive(Debug, Clone, Default)]
pub struct SeenEnd(Arc<AtomicBool>);

impl SeenEnd {
    pub fn mark(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub fn is_marked(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Debug, Clone, Default)]
pub struct BackgroundStatus {
    pub output: String,
    pub end: Option<Finished>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finished {
    pub text: String,
    pub has_failed: bool,
    /// The last task list, for people.
    pub plan: String,
}

impl BackgroundAgent {
    pub fn is_over(&self) -> bool {
        self.status.borrow().end.is_some()
    }

    pub(super) fn describe(&self) -> String {
        let Self { id, agent, title, status, .. } = self;
        let state = match &status.borrow().end {
            None => "running",
            Some(Finished { has_failed: true, .. }) => "failed",
            Some(Finished { has_failed: false, .. }) => "finished",
        };
        format!("{id} ({agent}): {title} [{state}]")
    }

    /// For the model, which has then seen the end.
    pub(super) fn snapshot(&self) -> String {
        let status = self.status.borrow();
        match &status.end {
            Some(Finished { text, has_failed, .. }) => {
                self.seen_end.mark();
                let state = if *has_failed { "It failed." } else { "It has finished." };
                format!("[{state}]\n{text}")
            }
            None if status.output.is_empty() => "[Running. No output yet.]".into(),
            None => format!("{}\n[Running.]", status.output),
        }
    }

    pub async fn over(&self) {
        let mut status = self.status.clone();
        // An error means that the sender is gone, so the agent is over, too.
        let _ = status.wait_for(|status| status.end.is_some()).await;
    }
}
