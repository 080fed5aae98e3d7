//! Reads the output of a command for those who show it, without keeping the command alive.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::{Job, JobMessage, News};

#[derive(Debug, Clone)]
pub struct OutputWatcher {
    mailbox: mpsc::WeakSender<JobMessage>,
    changes: watch::Receiver<bool>,
}

impl OutputWatcher {
    pub fn of(job: &Job) -> Self {
        Self { mailbox: job.mailbox.downgrade(), changes: job.changes.clone() }
    }

    /// Returns `None` if the command is lost.
    pub async fn since(&self, from: usize) -> Option<News> {
        let (reply, answer) = oneshot::channel();
        self.mailbox.upgrade()?.send(JobMessage::Since(from, reply)).await.ok()?;
        answer.await.ok()
    }

    /// Waits for more output, and then until the command is over or `pace` has passed.
    pub async fn changed(&mut self, pace: Duration) {
        let _ = self.changes.changed().await;
        // Either the command is over, or its task is gone.
        let _ = tokio::time::timeout(pace, self.changes.wait_for(|is_over| *is_over)).await;
    }
}
