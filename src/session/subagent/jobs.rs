//! The background jobs of a session.

use crate::lazy_channel::LazyChannel;
use crate::session::notes::endings::BackgroundEnd;
use crate::text::first_line;
use crate::tool::Job;
use crate::tool::agent::background_list::{discarded_note, forget};

#[derive(Default)]
pub(crate) struct Jobs {
    list: Vec<Job>,
    /// Ids of jobs that have ended. Unbounded: each job sends one.
    endings: LazyChannel<String>,
}

impl Jobs {
    pub(crate) fn list(&self) -> &[Job] {
        &self.list
    }

    /// Ids and command lines of the running jobs.
    pub(crate) fn running(&self) -> Vec<String> {
        let running = self.list.iter().filter(|job| !job.is_over());
        running.map(|job| format!("{} ({})", job.id, first_line(&job.line))).collect()
    }

    /// Returns the id of the next job that has ended. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<String> {
        self.endings.recv().await
    }

    /// Returns a note for the model if results of other jobs were discarded.
    pub(crate) fn add(&mut self, job: Job, reports_end: bool) -> Option<String> {
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

    /// Returns the end of a job, or `None` if the job ended on request.
    pub(crate) async fn ended(&self, id: &str) -> Option<BackgroundEnd> {
        let job = self.list.iter().find(|job| job.id == id)?.clone();
        let is_unrequested = job.snapshot().await?.end?.is_unrequested();
        is_unrequested.then_some(BackgroundEnd::Job(job))
    }
}
