//! The sub-agents of a session: handles their reports, and makes them follow its mode changes.
//!
//! A sub-agent is an ordinary session with two differences: its client is a [`super::subagent_relay`], and
//! the ceilings of all its ancestors limit it ([`super::ancestry`]).

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::DEADLINE;
use super::SessionHandle;
use super::actor::Actor;
use super::handle::SessionCommand;
use super::subagent_relay::{ENDED, Report, below};
use crate::acp::{ToolCallId, Update};
use crate::conversation::acp_updates;
use crate::conversation::neutralise::neutralise;
use crate::event::SessionEvent;
use crate::gate::{Ended, Gate};
use crate::tool::background::{BackgroundAgent, BackgroundStatus};
use crate::tool::background_list::forget;
use crate::tool::{Job, JobSnapshot};

/// Maximum time without activity, except while a person decides or a call runs.
pub const IDLE_TIMEOUT: Duration = Duration::from_mins(10);

pub(super) struct Subagents {
    active: HashMap<ToolCallId, SessionHandle>,
    open_requests: HashMap<(ToolCallId, u64), u64>,
    /// Unbounded: updates take send permits, and no report may wait for a session that is ending.
    pub reports: (mpsc::UnboundedSender<Report>, mpsc::UnboundedReceiver<Report>),
    pub background: Vec<BackgroundAgent>,
    started: u64,
    pub is_closing: bool,
}

impl Default for Subagents {
    fn default() -> Self {
        Self {
            active: HashMap::new(),
            open_requests: HashMap::new(),
            reports: mpsc::unbounded_channel(),
            background: Vec::new(),
            started: 0,
            is_closing: false,
        }
    }
}

impl Subagents {
    /// Cancel-safe: a dropped call loses no report.
    pub(super) async fn next(&mut self) -> Option<Report> {
        self.reports.1.recv().await
    }

    pub(super) fn add(&mut self, call: ToolCallId, handle: SessionHandle) {
        self.active.insert(call, handle);
    }

    pub(super) fn add_background(
        &mut self,
        agent: &str,
        title: String,
        status: watch::Receiver<BackgroundStatus>,
    ) -> (BackgroundAgent, Vec<String>) {
        let discarded = self.forget();
        self.started += 1;
        let (id, stop) = (format!("agent_{}", self.started), CancellationToken::new());
        let background = BackgroundAgent { id, agent: agent.into(), title, status, stop };
        self.background.push(background.clone());
        (background, discarded)
    }

    /// Forgets the oldest finished sub-agents, because each keeps its whole answer.
    fn forget(&mut self) -> Vec<String> {
        forget(&mut self.background, BackgroundAgent::is_over, |agent| agent.id.clone())
    }
}

impl Actor {
    pub(super) fn add_job(&mut self, job: Job) {
        if self.context.live {
            let (ending, id, to) = (job.ending(), job.id.clone(), self.subagents.reports.0.clone());
            tokio::spawn(async move {
                ending.await;
                // The session may have ended.
                let _ = to.send(Report::JobEnded { id });
            });
        }
        let jobs = &mut self.jobs;
        jobs.push(job);
        let discarded = forget(jobs, Job::is_over, |job| job.id.clone());
        self.note_discarded("jobs", &discarded);
    }

    pub(super) fn note_discarded(&mut self, what: &str, ids: &[String]) {
        if !ids.is_empty() {
            let ids = ids.join(", ");
            self.note_for_model(format!(
                "The results of these finished background {what} are no longer available: {ids}."
            ));
        }
    }

    async fn job_over(&mut self, id: &str) {
        let Some(job) = self.jobs.iter().find(|job| job.id == id).cloned() else { return };
        let Some(JobSnapshot { written, end: Some(end), .. }) = job.snapshot().await else { return };
        if end.is_unrequested() && !self.subagents.is_closing {
            let line = neutralise(job.line.lines().next().unwrap_or_default()).into_owned();
            let how = end.describe(written == 0);
            self.note_for_model(format!(
                "The background job {id} ({line}) has ended: {how} view_background_job shows its output."
            ));
        }
    }

    /// Handles reports of sub-agents during `work`: the calls that `work` ends may need the client. An
    /// external agent may need the gate, so its messages wait.
    pub(super) async fn handle_reports_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                Some(report) = self.subagents.next() => self.report(report).await,
            }
        }
    }

    /// Restores the gate, and keeps calls that sub-agents left unfinished since it was taken.
    pub(super) fn restore_gate(&mut self, gate: Gate) {
        let interim_gate = std::mem::replace(&mut self.gate, gate);
        self.gate.take_over(interim_gate, ToolCallId::clone);
    }

    pub(super) async fn take_last_reports(&mut self) {
        while let Some(report) = self.subagents.next().now_or_never().flatten() {
            self.report(report).await;
        }
        while let Some(message) = self.external_agent.next().now_or_never().flatten() {
            self.external_agent_message(message).await;
        }
        for ended in self.log.conversation.relayed_open_calls.end(Some(ENDED)) {
            self.log.record(SessionEvent::ForwardedUpdate { update: Box::new(ended.update) }, None).await;
        }
    }

    pub(super) async fn report(&mut self, report: Report) {
        match report {
            Report::Update { update, is_recorded: true, send_permit } => {
                self.log.record(SessionEvent::ForwardedUpdate { update }, send_permit).await;
            }
            Report::Update { update, is_recorded: false, send_permit } => {
                self.log.send(Update::Schema(update), send_permit);
            }
            Report::Progress { call, content, send_permit } => {
                // A background sub-agent has no open call.
                if self.log.conversation.open_calls.contains_key(&call) {
                    self.log.send(acp_updates::progress(call, &content), send_permit);
                }
            }
            Report::Request { call, number, request, reply } => {
                let id = self.log.client.forward(request.of_session(&self.log.id), reply);
                self.subagents.open_requests.insert((call, number), id);
            }
            Report::Withdraw { call, number } => {
                if let Some(id) = self.subagents.open_requests.remove(&(call, number)) {
                    self.log.client.withdraw(id);
                }
            }
            Report::JobEnded { id } => self.job_over(&id).await,
            Report::Ended { call, note, unfinished } => {
                if let Some(unfinished) = unfinished {
                    self.subagents.active.remove(&call);
                    self.gate.take_over(unfinished, |id| below(&call, id));
                }
                for (_, id) in self.subagents.open_requests.extract_if(|(of, _), _| *of == call) {
                    self.log.client.withdraw(id);
                }
                // A note on the session's next start reports this.
                if let Some(note) = note.filter(|_| !self.subagents.is_closing) {
                    if self.turns.running.is_none() {
                        self.notes.for_user.push(format!("{note}\n\n"));
                    }
                    self.note_for_model(note);
                }
            }
        }
    }

    /// Makes every sub-agent end the calls that are now denied. Also returns the closed requests.
    pub(super) fn tighten_subagents(&self) -> impl Future<Output = (Vec<ToolCallId>, Ended)> + use<> {
        let requests: Vec<_> = self
            .subagents
            .active
            .iter()
            .map(|(call, handle)| {
                let (reply, answer) = oneshot::channel();
                // A session that is over or closing drops the reply channel.
                drop(handle.post(SessionCommand::Tighten(reply)));
                (call.clone(), answer)
            })
            .collect();
        async move {
            let deadline = Instant::now() + DEADLINE + DEADLINE / 4;
            let (mut all_closed, mut all) = (Vec::new(), Ended::default());
            for (call, answer) in requests {
                let under = |ids: Vec<ToolCallId>| ids.into_iter().map(|id| below(&call, &id));
                match tokio::time::timeout_at(deadline, answer).await {
                    Ok(Ok((closed, ended))) => {
                        all_closed.extend(under(closed));
                        all.confirmed.extend(under(ended.confirmed));
                        all.unconfirmed.extend(under(ended.unconfirmed));
                    }
                    // Nothing confirms that all calls of this sub-agent have ended.
                    Ok(Err(_)) | Err(_) => all.unconfirmed.push(call),
                }
            }
            (all_closed, all)
        }
    }
}
