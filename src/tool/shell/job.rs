//! Runs a command in a task that owns its process, permit and output. Callers may stop waiting; the task
//! continues.
//!
//! The task returns the permit when the supervisor confirms that no process of the command is left, and
//! otherwise as unconfirmed.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::gate::Permit;
use crate::process::{BrokerEvent, Event, Exit, Process, RecordState};
use crate::tool::agent::background::SeenEnd;
use crate::workspace::Outputs;
pub use command_output::CommandOutput;
pub use job_end::{JobEnd, JobNotes, JobSandbox, StopCause};
use output::JobOutput;
pub(in crate::tool) use output::shortened;
pub use output_watcher::OutputWatcher;

mod clean;
mod command_output;
mod job_end;
mod output;
mod output_watcher;

/// Grace period between asking a command to end and killing it.
const TIMEOUT: Duration = Duration::from_secs(2);

const MAILBOX: usize = 4;

/// Running or finished command. Cheap to clone; dropping the last clone ends the command.
#[derive(Debug, Clone)]
pub struct Job {
    /// Such as `job_1`; empty for calls of the shell tools.
    pub id: String,
    pub line: String,
    mailbox: mpsc::Sender<JobMessage>,
    /// True once the command is over. Changes with each event of the command.
    changes: watch::Receiver<bool>,
    last_record: Arc<Mutex<RecordState>>,
    pub seen_end: SeenEnd,
}

#[derive(Debug)]
enum JobMessage {
    Snapshot(oneshot::Sender<JobSnapshot>),
    Unseen(oneshot::Sender<JobSnapshot>),
    Since(usize, oneshot::Sender<News>),
    SaveRecord(oneshot::Sender<RecordState>),
    OutputFile(oneshot::Sender<Option<PathBuf>>),
    Stop,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// Whole characters, with a note in place of dropped bytes.
    pub text: String,
    pub next: usize,
    pub is_over: bool,
    pub exit: Option<Exit>,
}

#[derive(Debug, Clone)]
pub struct JobSnapshot {
    pub output: String,
    /// Total bytes, including dropped ones.
    pub written: usize,
    /// `None` while the command runs.
    pub end: Option<JobEnd>,
}

#[derive(Debug)]
pub struct JobSpec {
    pub id: String,
    pub line: String,
    pub notes: JobNotes,
    /// Long output is kept here.
    pub outputs: Outputs,
    pub scratch: PathBuf,
}

impl Job {
    pub fn begin(spec: JobSpec, process: Process, permit: Permit, limit: Option<Duration>) -> Self {
        let JobSpec { id, line, notes, outputs, scratch } = spec;
        let (mailbox, messages) = mpsc::channel(MAILBOX);
        let (sender, changes) = watch::channel(false);
        let last_record = Arc::<Mutex<RecordState>>::default();
        let task = JobTask {
            process,
            messages,
            changed: sender,
            output: JobOutput::default(),
            seen: 0,
            record_replies: VecDeque::new(),
            last_record: Arc::clone(&last_record),
            outputs,
            scratch,
            end: None,
        };
        tokio::spawn(task.run(notes, permit, limit));
        Self { id, line, mailbox, changes, last_record, seen_end: SeenEnd::default() }
    }

    pub async fn changed(&mut self) {
        let _ = self.changes.changed().await;
    }

    pub async fn snapshot(&self) -> Option<JobSnapshot> {
        self.ask(JobMessage::Snapshot).await
    }

    /// Like [`Self::snapshot`], with only the output since the last call of this method. For the model.
    pub async fn unseen(&self) -> Option<JobSnapshot> {
        self.ask(JobMessage::Unseen).await
    }

    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> JobMessage) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.mailbox.send(message(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Waits for the end. Returns `None` if the task has died.
    pub async fn over(&mut self) -> Option<JobSnapshot> {
        loop {
            self.changes.mark_unchanged();
            let snapshot = self.snapshot().await?;
            if snapshot.end.is_some() {
                return Some(snapshot);
            }
            self.changed().await;
        }
    }

    /// Waits for the end without keeping the command alive.
    pub fn ending(&self) -> impl Future<Output = ()> + use<> {
        let mut changes = self.changes.clone();
        async move {
            let _ = changes.wait_for(|is_over| *is_over).await;
        }
    }

    /// Saves the record of a brokered command's changes, without keeping the command alive.
    pub fn record_saver(&self) -> RecordSaver {
        RecordSaver { mailbox: self.mailbox.downgrade(), last_record: Arc::clone(&self.last_record) }
    }

    pub fn is_over(&self) -> bool {
        *self.changes.borrow() || self.changes.has_changed().is_err()
    }

    pub async fn stop(&self) {
        let _ = self.mailbox.send(JobMessage::Stop).await;
    }
}

/// See [`Job::record_saver`].
#[derive(Debug, Clone)]
pub struct RecordSaver {
    mailbox: mpsc::WeakSender<JobMessage>,
    last_record: Arc<Mutex<RecordState>>,
}

impl RecordSaver {
    /// Returns when the record is saved. The end of the command saves it, too.
    pub async fn save(&self) -> RecordState {
        let (reply, saved) = oneshot::channel();
        if let Some(mailbox) = self.mailbox.upgrade()
            && mailbox.send(JobMessage::SaveRecord(reply)).await.is_ok()
            && let Ok(state) = saved.await
        {
            return state;
        }
        take(&self.last_record)
    }
}

fn take(state: &Mutex<RecordState>) -> RecordState {
    std::mem::take(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

struct JobTask {
    process: Process,
    messages: mpsc::Receiver<JobMessage>,
    changed: watch::Sender<bool>,
    output: JobOutput,
    /// Bytes of the output that [`Job::unseen`] has returned.
    seen: usize,
    /// In the order of the requests.
    record_replies: VecDeque<oneshot::Sender<RecordState>>,
    /// Of the end of the command. Taken once.
    last_record: Arc<Mutex<RecordState>>,
    outputs: Outputs,
    scratch: PathBuf,
    end: Option<JobEnd>,
}

impl JobTask {
    async fn run(mut self, notes: JobNotes, mut permit: Permit, limit: Option<Duration>) {
        let mut end = JobEnd { notes, ..JobEnd::default() };
        let started = Instant::now();
        // Until then the command runs or, once `end.why` is set, may end gracefully.
        let mut deadline = limit.map(|limit| started + limit);
        let mut is_ending = false;
        let mut last_record = RecordState::default();
        loop {
            tokio::select! {
                biased;
                () = permit.cancel.cancelled(), if !is_ending => {
                    end.why.get_or_insert(StopCause::Revoked);
                    is_ending = true;
                    self.process.end().await;
                }
                () = at(deadline), if !is_ending => {
                    if end.why.is_none() {
                        end.why = Some(StopCause::Time(limit.unwrap_or_default()));
                        deadline = Some(Instant::now() + TIMEOUT);
                        self.process.request_exit().await;
                    } else {
                        is_ending = true;
                        self.process.end().await;
                    }
                }
                event = self.process.next() => match event {
                    Some(Event::Output(bytes) | Event::Error(bytes)) => {
                        self.output.push(&bytes);
                        self.save().await;
                    }
                    Some(Event::Exited(exit)) => end.exit = Some(exit),
                    Some(Event::Failed(failure)) => end.failure = Some(failure.reason),
                    Some(Event::Broker(BrokerEvent::RecordSaved(state))) => {
                        match self.record_replies.pop_front() {
                            Some(reply) => drop(reply.send(state)),
                            None => last_record = state,
                        }
                        continue;
                    }
                    // The notes at the end tell the model. The audit log has the command.
                    Some(Event::Broker(BrokerEvent::Refused(call))) => end.refused = Some(call.kind),
                    Some(Event::Broker(BrokerEvent::RuleRefused(refusal))) => {
                        if let Some(reporter) = &mut permit.rule_reporter {
                            reporter.report(&refusal.rule);
                        }
                        end.rule_refusals.push(refusal);
                    }
                    // The policy stays the same, and neither questions nor hosts are limited.
                    Some(
                        Event::Job(_)
                        | Event::Broker(
                            BrokerEvent::PolicySet { .. }
                            | BrokerEvent::Ended(_)
                            | BrokerEvent::Asked(_)
                            | BrokerEvent::Withdrawn(_)
                            | BrokerEvent::HostRefused(_)
                            | BrokerEvent::SocketRefused(_),
                        ),
                    ) => {}
                    Some(Event::Gone { left_behind, confirmed }) => {
                        (end.left_behind, end.confirmed) = (left_behind, confirmed);
                        break;
                    }
                    None => break,
                },
                message = self.messages.recv() => match message {
                    Some(JobMessage::Stop) => {
                        end.why.get_or_insert(StopCause::Stopped);
                        deadline = Some(Instant::now() + TIMEOUT);
                        self.process.request_exit().await;
                        continue;
                    }
                    Some(message) => {
                        self.reply(message).await;
                        continue;
                    }
                    // All handles were dropped.
                    None if !is_ending => {
                        is_ending = true;
                        self.process.end().await;
                    }
                    None => {}
                },
            }
            self.changed.send_modify(|_| {});
        }
        *self.last_record.lock().unwrap_or_else(PoisonError::into_inner) = last_record;
        // The supervisor saved the record at the end.
        self.record_replies.clear();
        self.output.finish();
        self.save().await;
        if end.exit.is_none() && end.why.is_none() && end.failure.is_none() {
            end.why = Some(StopCause::Elsewhere);
        }
        if end.confirmed {
            drop(permit);
        } else {
            permit.release_unconfirmed();
        }
        self.end = Some(end);
        self.changed.send_modify(|is_over| *is_over = true);
        while let Some(message) = self.messages.recv().await {
            self.reply(message).await;
        }
    }

    async fn reply(&mut self, message: JobMessage) {
        // The caller may have stopped waiting.
        match message {
            JobMessage::Snapshot(reply) => drop(reply.send(self.snapshot(self.output.text()))),
            JobMessage::Unseen(reply) => {
                let (output, next) = self.output.since(self.seen);
                self.seen = next;
                drop(reply.send(self.snapshot(output)));
            }
            JobMessage::Since(from, reply) => {
                let is_over = self.end.is_some();
                let (text, next) = self.output.raw.since(from, is_over);
                let exit = self.end.as_ref().and_then(|end| end.exit);
                drop(reply.send(News { text, next, is_over, exit }));
            }
            JobMessage::SaveRecord(reply) if self.end.is_none() => {
                self.record_replies.push_back(reply);
                self.process.save_record().await;
            }
            JobMessage::SaveRecord(reply) => drop(reply.send(take(&self.last_record))),
            JobMessage::OutputFile(reply) => drop(reply.send(self.output.file().map(Path::to_owned))),
            JobMessage::Stop => {}
        }
    }

    async fn save(&mut self) {
        if !self.output.is_unsaved() {
            return;
        }
        let (output, outputs) = (std::mem::take(&mut self.output), self.outputs.clone());
        let scratch = self.scratch.clone();
        let saving = tokio::task::spawn_blocking(move || output.saved(&outputs, &scratch));
        self.output = saving.await.unwrap_or_default();
    }

    fn snapshot(&self, output: String) -> JobSnapshot {
        JobSnapshot { output, written: self.output.raw.written, end: self.end.clone() }
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

impl JobSnapshot {
    pub fn describe(&self) -> String {
        let mut text = self.output.clone();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        match &self.end {
            None => text.push_str("[Still running.]"),
            Some(end) => {
                text.push_str(&end.describe(self.written == 0));
                text.push_str(&end.rule_note());
                text.push_str(end.sandbox_note(&self.output));
            }
        }
        text
    }
}
