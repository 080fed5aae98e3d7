//! The background jobs of a session.

use crate::lazy_channel::LazyChannel;
use crate::text::first_line;
use crate::tool::agent::background_list::{discarded_note, forget};
use crate::tool::{Job, JobSnapshot};

#[derive(Default)]
pub(super) struct Jobs {
    list: Vec<Job>,
    /// Ids of jobs that have ended. Unbounded: each job sends one.
    endings: LazyChannel<String>,
}

impl Jobs {
    pub(super) fn list(&self) -> &[Job] {
        &self.list
    }

    /// Ids and command lines of the running jobs.
    pub(super) fn running(&self) -> Vec<String> {
        let running = self.list.iter().filter(|job| !job.is_over());
        running.map(|job| format!("{} ({})", job.id, first_line(&job.line))).collect()
    }

    /// Returns the id of the next job that has ended. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<String> {
        self.endings.recv().await
    }

    /// Returns a note for the model if results of other jobs were discarded.
    pub(super) fn add(&mut self, job: Job, reports_end: bool) -> Option<String> {
        if reports_end {
            let (ending, id, to) = (job.ending(), job.id.clone(), self.endings.sender());
            tokio::spawn(async move {
                ending.await;
                // The session may have ended.
                let _ = to.send(id);
            });
        }
        self.list.push(job);
        let discarded = forget(&mut self.list, Job::is_over, |job| job.id.clone());
        discarded_note("jobs", &discarded)
    }

    /// Returns a note for the model, or `None` if the job ended on request.
    pub(super) async fn ended(&self, id: &str) -> Option<String> {
        let job = self.list.iter().find(|job| job.id == id)?.clone();
        let JobSnapshot { written, end: Some(end), .. } = job.snapshot().await? else { return None };
        let line = job.line.lines().next().unwrap_or_default();
        end.is_unrequested().then(|| {
            let how = end.describe(written == 0);
            format!("The background job {id} ({line}) has ended: {how} view_background shows its output.")
        })
    }
}
