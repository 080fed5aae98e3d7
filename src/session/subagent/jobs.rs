//! The background jobs of a session.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use crate::acp::ToolCallId;
use crate::client::{BackgroundWork, EndedWork, SessionSignal};
use crate::conversation::content::{ToolContent, terminal_id};
use crate::error::AgentError;
use crate::event::ToolCallUpdateEvent;
use crate::lazy_channel::LazyChannel;
use crate::session::SessionContext;
use crate::session::event_log::EventLog;
use crate::session::mode::decider::Decider;
use crate::session::notes::endings::BackgroundEnd;
use crate::text::first_line;
use crate::tool::agent::background_list::{discarded_note, forget};
use crate::tool::shell::job::OutputWatcher;
use crate::tool::shell::output_terminal::{OutputPiece, OutputPieces, terminal_exit};
use crate::tool::{Job, JobSnapshot};

/// Pause between updates about the output of one job.
const PACE: Duration = Duration::from_millis(100);

/// Time for a denied job, whose processes have ended, to report its end.
const REPORT: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct Jobs {
    list: Vec<Job>,
    /// Calls that started the running jobs that the client lists, by the jobs' ids.
    listed: HashMap<String, ToolCallId>,
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
        if reports_end && !self.listed.contains_key(&job.id) {
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

    /// Shows a job to a client that lists background work: its output, and its end after that. The call of the job
    /// shows the job's terminal, which the call has announced.
    pub(crate) fn show(
        &mut self,
        job: &Job,
        update: &mut ToolCallUpdateEvent,
        decider: &Decider,
        cwd: &Path,
    ) {
        let Decider { policy, log, .. } = decider;
        let SessionContext { live, capabilities, .. } = *policy.context;
        if !live || !capabilities.lists_background || !capabilities.shows_output {
            return;
        }
        let id = self.begin(job, &update.id, log, cwd);
        if let Some(first) = update.content.iter_mut().flatten().next() {
            let shown = Box::new(std::mem::replace(first, ToolContent::Text(String::new())));
            *first = ToolContent::Terminal { id, shown };
        }
    }

    /// Returns the id of the job's terminal.
    fn begin(&mut self, job: &Job, call: &ToolCallId, log: &EventLog, cwd: &Path) -> String {
        let terminal = terminal_id(log.id(), call);
        let work =
            BackgroundWork::Terminal { id: terminal.clone(), command: job.line.clone(), cwd: cwd.to_owned() };
        log.signal(SessionSignal::WorkBegan(work));
        self.listed.insert(job.id.clone(), call.clone());
        let (output, ending, to) = (OutputWatcher::of(job), job.ending(), self.endings.sender());
        let (id, session, client, shown) =
            (job.id.clone(), log.id().clone(), log.client().clone(), terminal.clone());
        tokio::spawn(async move {
            let mut pieces = OutputPieces::new(output, PACE);
            while let Some(OutputPiece::Text(text)) = pieces.next().await {
                let send_permit = Some(client.send_permit().await);
                let terminal = shown.clone();
                client.signal(session.clone(), SessionSignal::WorkOutput { terminal, text, send_permit });
            }
            ending.await;
            // The session may have ended.
            let _ = to.send(id);
        });
        terminal
    }

    /// Returns the end of a job, or `None` if the job ended on request.
    pub(crate) async fn ended(&mut self, id: &str, log: &EventLog) -> Option<BackgroundEnd> {
        let job = self.list.iter().find(|job| job.id == id)?.clone();
        let snapshot = job.snapshot().await;
        self.show_end(id, snapshot.as_ref(), log);
        let is_unrequested = snapshot?.end?.is_unrequested();
        is_unrequested.then_some(BackgroundEnd::Job(job))
    }

    /// Shows the ends of listed jobs whose calls have been ended.
    pub(crate) async fn show_ends_of(&mut self, is_ended: impl Fn(&ToolCallId) -> bool, log: &EventLog) {
        let of_ended = self.listed.iter().filter(|(_, call)| is_ended(call));
        let mut ids: Vec<String> = of_ended.map(|(id, _)| id.clone()).collect();
        ids.sort();
        for id in ids {
            let Some(job) = self.list.iter().find(|job| job.id == id).cloned() else { continue };
            // A job that cannot be ended stays listed.
            if tokio::time::timeout(REPORT, job.ending()).await.is_ok() {
                self.show_end(&id, job.snapshot().await.as_ref(), log);
            }
        }
    }

    fn show_end(&mut self, id: &str, snapshot: Option<&JobSnapshot>, log: &EventLog) {
        let Some(call) = self.listed.remove(id) else { return };
        let exit = snapshot.and_then(|snapshot| snapshot.end.as_ref()).and_then(|end| end.exit);
        let work = EndedWork::Terminal { id: terminal_id(log.id(), &call), exit: terminal_exit(exit) };
        log.signal(SessionSignal::WorkEnded(work));
    }

    /// Asks the listed job of a terminal to end.
    pub(crate) async fn stop(&self, terminal: &str, log: &EventLog) -> Result<(), AgentError> {
        let mut listed = self.listed.iter();
        let found = listed.find(|(_, call)| terminal_id(log.id(), call) == terminal);
        let job = found.and_then(|(id, _)| self.list.iter().find(|job| job.id == *id));
        match job.filter(|job| !job.is_over()) {
            Some(job) => {
                job.stop().await;
                Ok(())
            }
            None => Err(AgentError::not_cancellable("terminal", terminal)),
        }
    }
}
