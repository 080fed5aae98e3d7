//! The broker: carries out system calls of a sandboxed command that change files. Part of the supervisor.
//!
//! Landlock lets the command write its own folders only, in every mode. A call that could write elsewhere is
//! suspended. The broker either lets it run, so that Landlock decides, or carries it out itself on a copy of the
//! arguments and hands over the result. Calls that Landlock does not decide never run.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use rustix::io::Errno;

use super::connection;
use super::record::RecordState;
use crate::file_lock::FileLocks;
use crate::sandbox::host::AllowedHosts;
use crate::sandbox::{self, BrokerPolicy};
use crate::supervisor::protocol::{BrokerEvent, RefusalKind, RefusedCall, RuleRefusal, SupervisorReport};

mod allowed_sockets;
mod area;
mod attributes;
mod broker_threads;
mod caller;
mod egress;
mod handler;
mod made_files;
mod moved;
mod network_call;
mod notification;
mod operation;
mod outcome;
mod pending;
mod perform;
mod questions;
mod reads;
mod receivers;
mod recorder;
mod refused;
mod resolve;
mod revoke;
mod ruled_changes;
mod segments;
mod shared_memory;
mod terminals;
mod threads;
mod tracee;
mod unix_address;
mod waiting;

use allowed_sockets::AllowedSockets;
pub(in crate::supervisor) use broker_threads::BrokerThreads;
use egress::EgressBroker;
pub(in crate::supervisor) use egress::is_supported as limits_network;
use handler::CallHandler;
use made_files::MadeFiles;
use network_call::{NetworkCall, network_call};
pub(in crate::supervisor) use notification::CallListener;
use notification::{CallAnswer, SuspendedCall};
use outcome::{CallOutcome, Postponed};
use pending::{PendingCall, ResumedCall};
use questions::{AskedChange, ChangeQuestions};
pub(in crate::supervisor) use reads::Reads;
use receivers::Receivers;
pub(in crate::supervisor) use recorder::RecordWriter;
use recorder::{CallCopies, CopyFolder, Touched};
use refused::RefusedCalls;
use resolve::FileIdentity;
pub(in crate::supervisor) use resolve::Roots;
use revoke::{HandedOver, Revoked};
pub(in crate::supervisor) use ruled_changes::RuledChanges;
use shared_memory::SharedMemory;
use terminals::Terminals;
use tracee::Tracee;

/// Most processes that are named after a tightening.
const MAX_REPORTED_WRITERS: usize = 8;

pub(super) struct Broker {
    listener: Arc<CallListener>,
    receivers: Receivers,
    roots: Roots,
    /// Locked for reading during each call, so that nothing runs under an old policy after a change.
    policy: RwLock<BrokerPolicy>,
    /// Device and number of the unnamed files that were handed over. They may get a name.
    unnamed: Mutex<HashSet<FileIdentity>>,
    handed_over: Mutex<HandedOver>,
    terminals: Terminals,
    /// `None` if changes are not recorded.
    recorder: Option<Mutex<RecordWriter>>,
    copies: Option<Arc<CopyFolder>>,
    /// Locked for reading from the record of a change to its end.
    recording: RwLock<()>,
    /// Locked for writing while something is moved under [`BrokerPolicy::Ask`] or rules: what moves with it was decided
    /// before.
    moving: RwLock<()>,
    /// Taken from the record of a change to its end, by all writers of this user.
    locks: FileLocks,
    waiting_calls: AtomicUsize,
    questions: ChangeQuestions,
    refused: RefusedCalls,
    /// Calls that are answered by a thread of their own. `None` before [`BrokerThreads::start`].
    resumed: Option<Sender<ResumedCall>>,
    /// Connection to Modegate. `None` for a read-only command, of which nothing is reported.
    connection: Option<UnixStream>,
    /// `None` if the network is not limited.
    egress: Option<Arc<EgressBroker>>,
    /// `None` if every file may be read.
    reads: Option<Reads>,
    /// `None` if no rule denies changes.
    ruled_changes: Option<RuledChanges>,
    sockets: AllowedSockets,
    /// Sockets that the command has bound outside of the workspace.
    bound: MadeFiles,
    memory: SharedMemory,
}

impl Broker {
    pub(super) fn new(listener: CallListener, roots: Roots, policy: BrokerPolicy) -> Self {
        Self {
            listener: Arc::new(listener),
            receivers: Receivers::default(),
            roots,
            policy: RwLock::new(policy),
            unnamed: Mutex::default(),
            handed_over: Mutex::default(),
            terminals: Terminals::default(),
            copies: None,
            recorder: None,
            recording: RwLock::default(),
            moving: RwLock::default(),
            locks: FileLocks::default(),
            waiting_calls: AtomicUsize::default(),
            questions: ChangeQuestions::default(),
            refused: RefusedCalls::default(),
            resumed: None,
            connection: None,
            egress: None,
            reads: None,
            ruled_changes: None,
            sockets: AllowedSockets::default(),
            bound: MadeFiles::default(),
            memory: SharedMemory::default(),
        }
    }

    /// Lets the command make names of shared memory.
    pub(super) fn share_memory(&mut self) {
        self.memory = SharedMemory::of_system();
    }

    /// Sends reports and questions to Modegate.
    pub(super) fn report_to(&mut self, connection: UnixStream) {
        self.connection = Some(connection);
    }

    pub(super) fn record(&mut self, recorder: RecordWriter) {
        self.copies = Some(recorder.copy_folder());
        self.recorder = Some(Mutex::new(recorder));
    }

    /// Limits the network to these hosts: at `first` or not, then as the policy demands.
    pub(super) fn limit_network(&mut self, hosts: AllowedHosts, first: sandbox::Egress) -> io::Result<()> {
        let connection = self.connection.as_ref().map(UnixStream::try_clone).transpose()?;
        self.egress = Some(EgressBroker::start(hosts, first, Arc::clone(&self.listener), connection)?);
        Ok(())
    }

    /// New files in these folders that are still open for writing after a tighter policy are deleted.
    pub(super) fn limit_caches(&mut self, caches: Vec<PathBuf>) {
        self.handed_over.get_mut().unwrap_or_else(PoisonError::into_inner).limit_caches(caches);
    }

    /// Besides those in its folders, the command may connect to these UNIX sockets.
    pub(super) fn allow_sockets(&mut self, paths: Vec<PathBuf>) -> io::Result<()> {
        let connection = self.connection.as_ref().map(UnixStream::try_clone).transpose()?;
        self.sockets = AllowedSockets::new(paths, connection);
        Ok(())
    }

    /// The command's files are opened for it.
    pub(super) fn limit_reads(&mut self, reads: Reads) {
        self.reads = Some(reads);
    }

    /// No policy allows the changes that these rules deny.
    pub(super) fn deny_changes(&mut self, rules: RuledChanges) {
        self.ruled_changes = Some(rules);
    }

    /// Changes wait for other writers that use these locks.
    pub(super) fn share_locks(&mut self, locks: FileLocks) {
        self.locks = locks;
    }

    /// The command may open the controlling terminal of this process, which is also its own.
    pub(super) fn allow_own_terminal(&self) {
        self.terminals.add_own();
    }

    fn listen(self: Arc<Self>) {
        threads::separate_umask();
        let mut last_caller = None;
        while self.receivers.enter() {
            let started = Instant::now();
            let received = self.listener.receive();
            let caller = received.as_ref().ok().map(|call| call.thread);
            // The caller that was answered last may have been faster than this thread.
            self.receivers.leave(started.elapsed() < receivers::QUEUED && caller != last_caller);
            last_caller = caller;
            if !self.answer_received(received) {
                return self.receivers.end();
            }
        }
    }

    /// Waits for a call and answers it.
    pub(super) fn answer_next(self: &Arc<Self>) {
        self.answer_received(self.listener.receive());
    }

    /// Returns false if no call can come any more.
    fn answer_received(self: &Arc<Self>, received: io::Result<SuspendedCall>) -> bool {
        match received {
            Ok(call) => {
                self.answer_or_wait(PendingCall::new(call));
                true
            }
            Err(error) => match Errno::from_io_error(&error) {
                // The caller is gone, and perhaps all others.
                Some(Errno::NOENT) => self.listener.has_callers(),
                error => error == Some(Errno::INTR),
            },
        }
    }

    /// Applies a policy, and reports when after a tighter one no process can write through what it has open. Waiting
    /// calls are decided again.
    fn set_policy(&self, policy: BrokerPolicy) {
        self.refused.clear();
        if policy != BrokerPolicy::Nothing {
            self.roots.open_made();
        }
        // Waits for the calls that are being carried out, which make no copies.
        {
            let mut current = self.policy.write().unwrap_or_else(PoisonError::into_inner);
            *current = policy;
            if let Some(egress) = &self.egress {
                egress.set(sandbox::Egress::under(policy));
            }
        }
        if policy != BrokerPolicy::Ask {
            for (number, call) in self.questions.take_all() {
                self.report(BrokerEvent::Withdrawn(number));
                self.resume_later(ResumedCall::Undecided(call));
            }
        }
        let revoked = match policy {
            BrokerPolicy::Ask | BrokerPolicy::Roots => Revoked { ended: Vec::new(), is_complete: true },
            BrokerPolicy::Nothing => self.handed_over.lock().unwrap_or_else(PoisonError::into_inner).revoke(),
        };
        let Revoked { ended, mut is_complete } = revoked;
        if let Some(egress) = &self.egress
            && sandbox::Egress::under(policy) == sandbox::Egress::Hosts
        {
            is_complete &= egress.take_back();
        }
        let count = ended.len();
        if count > 0 {
            self.report(BrokerEvent::Ended(ended.into_iter().take(MAX_REPORTED_WRITERS).collect()));
        }
        self.report(BrokerEvent::PolicySet { ended: count, is_complete });
    }

    fn resume_later(&self, call: ResumedCall) {
        if let Some(resumed) = &self.resumed {
            // Its thread ends with this process.
            let _ = resumed.send(call);
        }
    }

    /// Answers a call that has waited, which may take as long as copies for the record.
    fn resume(self: &Arc<Self>, call: ResumedCall) {
        match call {
            ResumedCall::Undecided(call) => self.answer_or_wait(PendingCall::new(call)),
            ResumedCall::Answered { question, allows } => {
                let Some((call, asked)) = self.questions.take(question) else { return };
                if allows {
                    self.answer_or_wait(PendingCall { allowed: Some(asked), ..PendingCall::new(call) });
                } else {
                    self.refuse(&call);
                }
            }
        }
    }

    fn refuse(&self, call: &SuspendedCall) {
        // The caller may be gone.
        let _ = self.listener.respond(call, CallAnswer::Error(Errno::ACCESS.raw_os_error()));
    }

    /// Withdraws the questions of callers that are gone.
    fn withdraw_questions(self: Arc<Self>) {
        loop {
            for number in self.questions.take_gone(&self.listener) {
                self.report(BrokerEvent::Withdrawn(number));
            }
        }
    }

    fn report(&self, event: BrokerEvent) {
        if let Some(connection) = &self.connection {
            connection::report(connection, &SupervisorReport::Broker(event));
        }
    }

    /// Saves the record of changes so far. Files that are still open for writing begin the next one.
    fn save_record(&self) {
        let state = self.finish_record(false);
        let mut handed_over = self.handed_over.lock().unwrap_or_else(PoisonError::into_inner);
        let written: Vec<_> =
            handed_over.open_for_writing().filter_map(|file| self.roots.of_descriptor(file)).collect();
        drop(handed_over);
        if let Some(recorder) = &self.recorder {
            let mut copies = CallCopies::of_written(self.copies.clone());
            let touched: Vec<_> = written.iter().map(Touched::Entry).collect();
            loop {
                let recorded =
                    recorder.lock().unwrap_or_else(PoisonError::into_inner).record(&touched, &mut copies);
                match recorded {
                    Ok(()) => break,
                    Err(requests) => copies.make(requests, || true),
                }
            }
        }
        self.refused.clear();
        self.report(BrokerEvent::RecordSaved(state));
    }

    /// Clears shared memory, and saves the last record. All processes of the command are gone.
    fn finish(&self) {
        self.memory.clear();
        if self.recorder.is_some() {
            let state = self.finish_record(true);
            self.report(BrokerEvent::RecordSaved(state));
        }
    }

    fn finish_record(&self, is_last: bool) -> RecordState {
        // Waits for calls that are between their record and their change.
        let _policy = self.policy.write().unwrap_or_else(PoisonError::into_inner);
        let Some(recorder) = &self.recorder else { return RecordState::Complete };
        let finished = recorder.lock().unwrap_or_else(PoisonError::into_inner).finish(is_last);
        finished.map_or_else(RecordState::Incomplete, |()| RecordState::Complete)
    }

    pub(super) fn listener(&self) -> &CallListener {
        &self.listener
    }

    /// Answers a call now or later.
    fn answer_or_wait(self: &Arc<Self>, pending: PendingCall) {
        let call = pending.call;
        if let Some(kind) = refused::always_refused(&call) {
            self.report_refused(&call, kind, None);
            // The caller may be gone.
            let _ = self.listener.respond(&call, CallAnswer::Error(Errno::PERM.raw_os_error()));
            return;
        }
        if let Some(answer) = self.memory.answer(&call) {
            // The caller may be gone.
            let _ = self.listener.respond(&call, answer);
            return;
        }
        if let (Some(egress), Some(kind)) = (&self.egress, network_call(&call))
            && !self.is_of_unix_socket(&call, kind)
        {
            return egress.answer(call, kind);
        }
        let mut copies = RefCell::new(CallCopies::new(self.copies.clone()));
        while let Some(postponed) = self.answer(&pending, &copies) {
            match postponed {
                Postponed::Copy(requests) => {
                    copies.get_mut().make(requests, || self.listener.is_suspended(&call));
                }
                Postponed::Ask(change) => return self.ask(call, change),
                Postponed::Wait(reason) => return self.wait(pending, reason),
                Postponed::OpenPipe { pipe, flags } => return self.open_pipe(call, pipe, flags),
                Postponed::Connect { socket, to } => return self.connect_unix(call, socket, to),
            }
        }
    }

    fn is_of_unix_socket(&self, call: &SuspendedCall, kind: NetworkCall) -> bool {
        let tracee = Tracee { listener: &self.listener, call };
        matches!(kind, NetworkCall::Bind | NetworkCall::Connect) && unix_address::is_unix(&tracee)
    }

    fn ask(&self, call: SuspendedCall, change: AskedChange) {
        let executable = caller::executable(call.thread, &self.roots);
        match self.questions.add(call, change, executable.filter(|_| self.listener.is_suspended(&call))) {
            Ok(question) => self.report(BrokerEvent::Asked(question)),
            Err(call) => self.refuse(&call),
        }
    }

    /// Answers a call, unless it has to wait for something.
    fn answer(&self, pending: &PendingCall, copies: &RefCell<CallCopies>) -> Option<Postponed> {
        let policy = self.policy.read().unwrap_or_else(PoisonError::into_inner);
        let call = &pending.call;
        let tracee = Tracee { listener: &self.listener, call };
        let handler = CallHandler { broker: self, policy: *policy, pending, tracee, copies };
        let answer = match handler.outcome() {
            CallOutcome::Answer(answer) => answer,
            CallOutcome::HandOver { file, closes_on_exec } => self.hand_over(call, file, closes_on_exec),
            CallOutcome::Postponed(postponed) => return Some(postponed),
            CallOutcome::Refused(refusal) => {
                drop(policy);
                self.refuse_by_rule(call, refusal);
                return None;
            }
        };
        let refused = self.refused_change(&handler.tracee, *policy, answer);
        drop(policy);
        if let Some((kind, path)) = refused {
            self.report_refused(call, kind, Some(path));
        }
        // The caller may be gone.
        let _ = self.listener.respond(call, answer);
        None
    }

    /// The change of a call that will fail. `None` if the call succeeds, or fails without the sandbox, too.
    fn refused_change(
        &self,
        tracee: &Tracee<'_>,
        policy: BrokerPolicy,
        answer: CallAnswer,
    ) -> Option<(RefusalKind, PathBuf)> {
        let is_refused = match answer {
            CallAnswer::Continue => true,
            CallAnswer::Error(error) => {
                [Errno::PERM, Errno::ACCESS].map(Errno::raw_os_error).contains(&error)
            }
            CallAnswer::Value(_) => false,
        };
        if !is_refused || self.connection.is_none() || self.refused.is_full() {
            return None;
        }
        let (kind, path) = refused::refused_change(tracee, &self.roots)?;
        (kind != RefusalKind::Change || policy == BrokerPolicy::Nothing).then_some((kind, path))
    }

    fn report_refused(&self, call: &SuspendedCall, kind: RefusalKind, path: Option<PathBuf>) {
        if self.refused.add(kind, path.as_deref()) {
            let program = caller::name(call.thread);
            self.report(BrokerEvent::Refused(RefusedCall { kind, path, program }));
        }
    }

    /// The report comes before the answer: the command may end right after it.
    fn refuse_by_rule(&self, call: &SuspendedCall, refusal: RuleRefusal) {
        if self.ruled_changes.as_ref().is_some_and(|rules| rules.is_news(&refusal)) {
            self.report(BrokerEvent::RuleRefused(refusal));
        }
        self.refuse(call);
    }

    fn hand_over(&self, call: &SuspendedCall, file: OwnedFd, closes_on_exec: bool) -> CallAnswer {
        let installed = self.listener.install(call, file.as_fd(), closes_on_exec);
        // Closed before the command runs: a program that is open for writing cannot be executed.
        drop(file);
        match installed {
            Ok(number) => CallAnswer::Value(number.into()),
            Err(error) => {
                CallAnswer::Error(Errno::from_io_error(&error).unwrap_or(Errno::PERM).raw_os_error())
            }
        }
    }
}
