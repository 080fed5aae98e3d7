//! A running MCP server or external agent. Standard error goes to the log without secrets; its last part
//! explains why the program ended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::secrets::Secrets;
use super::{BrokerEvent, Event, Exit, JobState, Process, RecordState};
use crate::sandbox::BrokerPolicy;
use crate::sandbox::host::HostPattern;

const MAX_LAST_ERROR: usize = 2 * 1024;

const LINE: usize = 1024;

const LOGGED: usize = 256 * 1024;

/// Grace period after closed input, and again after SIGTERM.
const TIMEOUT: Duration = Duration::from_millis(400);

const ENDED: &str = "it was stopped";

#[derive(Debug)]
enum ProgramRequest {
    EndGracefully,
    End,
    SetPolicy(BrokerPolicy, oneshot::Sender<bool>),
    SaveRecord(oneshot::Sender<RecordState>),
    Release,
    Answer(u64, bool),
    AllowHost(HostPattern),
}

#[derive(Debug, Clone, Default)]
pub struct ProgramStatus {
    pub last_error: String,
    /// `None` while the program runs.
    pub over: Option<ProgramEnd>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramEnd {
    /// A sentence without a full stop.
    pub how: String,
    /// `None` if the program was not executed, or was killed on request.
    pub exit: Option<Exit>,
    /// Exit code of a shell for a program that cannot be executed.
    pub failure_status: Option<i32>,
    pub confirmed: bool,
    pub record: RecordState,
}

/// Dropping the last handle ends the program gracefully.
#[derive(Debug, Clone)]
pub struct Program {
    requests: mpsc::Sender<ProgramRequest>,
    status: watch::Receiver<ProgramStatus>,
    broker_events: BrokerEventReceiver,
    job: watch::Receiver<JobState>,
}

/// Taken once.
type BrokerEventReceiver = Arc<Mutex<Option<mpsc::UnboundedReceiver<BrokerEvent>>>>;

impl Program {
    pub fn start(name: &str, process: Process, secrets: Secrets) -> Self {
        let (requests, to_task) = mpsc::channel(2);
        let (status_sender, status) = watch::channel(ProgramStatus::default());
        let (to_owner, broker_events) = mpsc::unbounded_channel();
        let (job_state, job) = watch::channel(JobState::Running);
        let run = ProgramTask {
            name: name.to_owned(),
            process,
            secrets,
            changed: status_sender,
            line: Vec::new(),
            logged: 0,
            policy_replies: VecDeque::new(),
            record: RecordState::default(),
            record_replies: VecDeque::new(),
            broker_events: to_owner,
            job_state,
            failure_status: None,
        };
        tokio::spawn(run.run(to_task));
        Self { requests, status, broker_events: Arc::new(Mutex::new(Some(broker_events))), job }
    }

    /// Kills the program. Returns true if no process is left.
    pub async fn end(&self) -> bool {
        self.request(ProgramRequest::End).await;
        self.over().await.confirmed
    }

    /// Waits for a graceful end. The caller closes the program's input first.
    pub async fn shut_down(&self) -> ProgramEnd {
        self.request(ProgramRequest::EndGracefully).await;
        self.over().await
    }

    /// Waits until the policy applies. Returns false if the program ends, or if a process may still be able
    /// to write under a tighter policy.
    pub async fn set_policy(&self, policy: BrokerPolicy) -> bool {
        let (reply, is_complete) = oneshot::channel();
        self.request(ProgramRequest::SetPolicy(policy, reply)).await;
        is_complete.await.unwrap_or(false)
    }

    /// All events but [`BrokerEvent::PolicySet`] and [`BrokerEvent::RecordSaved`], which answer requests. Taken once.
    pub fn take_broker_events(&self) -> Option<mpsc::UnboundedReceiver<BrokerEvent>> {
        self.broker_events.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub async fn answer(&self, number: u64, allows: bool) {
        self.request(ProgramRequest::Answer(number, allows)).await;
    }

    /// Lets a brokered program connect to a further host.
    pub async fn allow_host(&self, host: HostPattern) {
        self.request(ProgramRequest::AllowHost(host)).await;
    }

    pub async fn release(&self) {
        self.request(ProgramRequest::Release).await;
    }

    /// Saves the record of changes, also after the end of the program.
    pub async fn save_record(&self) -> RecordState {
        let (reply, saved) = oneshot::channel();
        self.request(ProgramRequest::SaveRecord(reply)).await;
        match saved.await {
            Ok(state) => state,
            // The supervisor saves it at the end.
            Err(_) => self.over().await.record,
        }
    }

    async fn request(&self, request: ProgramRequest) {
        // The program may be over.
        let _ = self.requests.send(request).await;
    }

    /// Changes when a program with a terminal of its own stops or continues.
    pub fn job(&self) -> watch::Receiver<JobState> {
        self.job.clone()
    }

    pub async fn over(&self) -> ProgramEnd {
        let mut status = self.status.clone();
        let over = status.wait_for(|status| status.over.is_some()).await;
        let over = over.ok().and_then(|status| status.over.clone());
        let how = "its end could not be confirmed";
        over.unwrap_or_else(|| ProgramEnd {
            how: how.into(),
            exit: None,
            failure_status: None,
            confirmed: false,
            record: RecordState::Cut,
        })
    }

    /// Adds the last line of standard error that contains "error", or else the last line.
    pub fn with_last_error(&self, why: &str) -> String {
        let words = self.status().last_error;
        let lines = || words.lines().rev().map(str::trim).filter(|line| !line.is_empty());
        match lines().find(|line| line.to_ascii_lowercase().contains("error")).or_else(|| lines().next()) {
            Some(line) => format!("{why}; its last error output: {line}"),
            None => why.to_owned(),
        }
    }

    pub fn status(&self) -> ProgramStatus {
        self.status.borrow().clone()
    }
}

struct ProgramTask {
    name: String,
    process: Process,
    secrets: Secrets,
    changed: watch::Sender<ProgramStatus>,
    line: Vec<u8>,
    logged: usize,
    /// In the order of the requests.
    policy_replies: VecDeque<oneshot::Sender<bool>>,
    record_replies: VecDeque<oneshot::Sender<RecordState>>,
    /// State of the last record, unless it was requested.
    record: RecordState,
    broker_events: mpsc::UnboundedSender<BrokerEvent>,
    job_state: watch::Sender<JobState>,
    failure_status: Option<i32>,
}

impl ProgramTask {
    async fn run(mut self, mut requests: mpsc::Receiver<ProgramRequest>) {
        let (mut how, mut exit) = ("it ended".to_owned(), None);
        let mut steps: u32 = 0;
        let mut deadline = None;
        let mut listens = true;
        loop {
            tokio::select! {
                biased;
                request = requests.recv(), if listens => match request {
                    Some(ProgramRequest::SetPolicy(policy, reply)) => {
                        self.policy_replies.push_back(reply);
                        self.process.set_policy(policy).await;
                    }
                    Some(ProgramRequest::SaveRecord(reply)) => {
                        self.record_replies.push_back(reply);
                        self.process.save_record().await;
                    }
                    Some(ProgramRequest::Answer(number, allows)) => self.process.answer(number, allows).await,
                    Some(ProgramRequest::AllowHost(host)) => self.process.allow_host(host).await,
                    Some(ProgramRequest::Release) => self.process.release().await,
                    Some(ProgramRequest::End) => {
                        listens = false;
                        deadline = None;
                        how = ENDED.into();
                        self.process.end().await;
                    }
                    Some(ProgramRequest::EndGracefully) | None => {
                        listens = request.is_some();
                        deadline.get_or_insert_with(|| Instant::now() + TIMEOUT);
                    }
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    steps += 1;
                    if steps == 1 {
                        self.process.request_exit().await;
                        deadline = Some(Instant::now() + TIMEOUT);
                    } else {
                        deadline = None;
                        how = ENDED.into();
                        self.process.end().await;
                    }
                }
                event = self.process.next() => match event {
                    // Read by the owner of [`Process::take_stdio`].
                    Some(Event::Output(_)) => {}
                    Some(Event::Error(bytes)) => self.read_errors(&bytes),
                    Some(Event::Exited(ended)) => {
                        exit = Some(ended);
                        how = match ended {
                            Exit::Status(status) => format!("it ended with status {status}"),
                            Exit::Signal(signal) => format!("it was killed by signal {signal}"),
                        };
                    }
                    Some(Event::Broker(event)) => self.broker_event(event),
                    Some(Event::Job(state)) => drop(self.job_state.send_replace(state)),
                    Some(Event::Failed(failure)) => {
                        how = self.secrets.redact(&failure.reason);
                        self.failure_status = failure.status;
                    }
                    Some(Event::Gone { confirmed, .. }) => return self.report_end(how, exit, confirmed),
                    None => return self.report_end(how, exit, false),
                },
            }
        }
    }

    fn broker_event(&mut self, event: BrokerEvent) {
        // The receivers may be gone.
        match event {
            BrokerEvent::PolicySet { is_complete, .. } => {
                self.policy_replies.pop_front().map(|reply| reply.send(is_complete));
            }
            BrokerEvent::RecordSaved(state) => match self.record_replies.pop_front() {
                Some(reply) => drop(reply.send(state)),
                None => self.record = state,
            },
            BrokerEvent::Ended(_)
            | BrokerEvent::Asked(_)
            | BrokerEvent::Withdrawn(_)
            | BrokerEvent::HostRefused(_)
            | BrokerEvent::SocketRefused(_)
            | BrokerEvent::Refused(_)
            | BrokerEvent::RuleRefused(_) => {
                let _ = self.broker_events.send(event);
            }
        }
    }

    fn report_end(&mut self, how: String, exit: Option<Exit>, confirmed: bool) {
        self.log_line();
        let record = std::mem::take(&mut self.record);
        let over = ProgramEnd { how, exit, failure_status: self.failure_status, confirmed, record };
        self.changed.send_modify(|status| status.over = Some(over));
    }

    fn read_errors(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                self.log_line();
            } else if self.line.len() < LINE + self.secrets.longest() {
                self.line.push(*byte);
            }
        }
    }

    fn log_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return;
        }
        let line = &self.secrets.redact_start(&String::from_utf8_lossy(&line), LINE);
        if self.logged < LOGGED {
            self.logged += line.len();
            tracing::debug!(program = self.name, "{line}");
        }
        self.changed.send_if_modified(|status| {
            let words = &mut status.last_error;
            words.push_str(line);
            words.push('\n');
            words.drain(..words.ceil_char_boundary(words.len().saturating_sub(MAX_LAST_ERROR)));
            false
        });
    }
}
