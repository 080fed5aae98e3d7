//! The supervisor of one command. Without a runtime, and single-threaded unless its command is brokered.
//!
//! The end of the connection to Modegate kills everything. The supervisor runs outside the command's sandbox,
//! and adopts all orphaned descendants as a subreaper, so no session, process group or double fork escapes.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::process::{self, Pid, Signal, WaitOptions, WaitStatus};

use super::broker;
use super::call_answerer::CallAnswerer;
use super::children::{self, Children};
use super::command_process::become_command;
use super::connection::{read_orders, read_request, report};
use super::protocol::{
    Exit, JobState, MAX_ORDER, MessageReader, ProcessFailure, SpawnRequest, SupervisorOrder,
    SupervisorReport, TerminalAccess,
};
use super::startup::{self, Startup};
use crate::folder_removal;
use crate::kernel::{self, Fork};
use crate::sandbox::Confinement;

/// Time in which processes that a command left behind may exit on their own.
const LINGER: Duration = Duration::from_millis(100);

/// Data of the events of each source.
const ORDERED: u64 = 0;
const DIED: u64 = 1;
const SUSPENDED: u64 = 2;

/// Returns once the command and all its descendants are gone. `entered` tells whether the supervisor is in the
/// command's working directory.
pub(super) fn run(connection: &UnixStream, entered: io::Result<()>) -> ExitCode {
    match supervise(connection, entered) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(connection, &SupervisorReport::Failed(ProcessFailure::of(&error)));
            report(connection, &SupervisorReport::Gone { left_behind: 0 });
            ExitCode::FAILURE
        }
    }
}

fn supervise(connection: &UnixStream, entered: io::Result<()>) -> io::Result<()> {
    let mut orders = MessageReader::new(MAX_ORDER);
    let (mut request, input) = read_request(connection, &mut orders)?;
    if let Confinement::Brokered { broker, .. } = &mut request.confinement
        && !broker::limits_network()
    {
        if broker.hosts.as_ref().is_some_and(|hosts| hosts.ceiling.is_some()) {
            let text = "your organisation's policy limits its network, which takes Linux 6.9 and pidfd_getfd";
            return Err(io::Error::other(text));
        }
        broker.hosts = None;
    }
    entered.map_err(|error| {
        io::Error::other(format!("the command's working directory cannot be entered: {error}"))
    })?;
    process::set_child_subreaper(Some(process::getpid()))?;
    if let Some(folder) = &request.own_folder {
        DirBuilder::new().mode(0o700).create(folder)?;
    }
    let done = run_request(connection, &request, input, &mut orders);
    if let Some(folder) = &request.own_folder {
        remove_own(folder);
    }
    done.map(|left_behind| report(connection, &SupervisorReport::Gone { left_behind }))
}

fn remove_own(folder: &Path) {
    if let Err(error) = folder_removal::remove(folder) {
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "modegate: {} could not be removed: {error}", folder.display());
    }
}

/// Returns the number of processes that the command left behind.
fn run_request(
    connection: &UnixStream,
    request: &SpawnRequest,
    input: Option<OwnedFd>,
    orders: &mut MessageReader,
) -> io::Result<usize> {
    let sources = EventSources::open(connection)?;
    let mut children = Children::open()?;
    let (startup, startup_report) = startup::pair()?;
    let supervisor = process::getpid();
    let child = match kernel::fork()? {
        Fork::Child => become_command(request, input, &startup_report, supervisor),
        Fork::Parent(child) => child,
    };
    drop((startup_report, input));
    let started = startup
        .wait(request.waits)
        .and_then(|listener| CallAnswerer::start(listener, request, connection))
        .and_then(|answerer| sources.add_suspended(&answerer).map(|()| answerer));
    let answerer = match started {
        Ok(answerer) => answerer,
        Err(error) => {
            end_all(&mut children, child);
            return Err(error);
        }
    };
    let reports_stops = request.terminal == TerminalAccess::Foreground;
    let supervision = Supervision { sources, connection, answerer, startup, reports_stops };
    if supervision.watch(child, orders) {
        supervision.linger(&mut children);
    }
    let left_behind = end_all(&mut children, child);
    if let CallAnswerer::Threads(threads) = &supervision.answerer {
        threads.finish();
    }
    Ok(left_behind)
}

/// Opened before the command can lower the supervisor's descriptor limit, which `poll` obeys as well.
struct EventSources {
    epoll: OwnedFd,
    signals: OwnedFd,
}

#[derive(Default)]
struct ReadySources {
    ordered: bool,
    died: bool,
}

impl EventSources {
    fn open(connection: &UnixStream) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let signals = kernel::child_signals()?;
        epoll::add(&epoll, connection, epoll::EventData::new_u64(ORDERED), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &signals, epoll::EventData::new_u64(DIED), epoll::EventFlags::IN)?;
        Ok(Self { epoll, signals })
    }

    /// Adds the suspended calls that this thread answers.
    fn add_suspended(&self, answerer: &CallAnswerer) -> io::Result<()> {
        if let CallAnswerer::Here(broker) = answerer {
            let suspended = epoll::EventData::new_u64(SUSPENDED);
            epoll::add(&self.epoll, broker.listener(), suspended, epoll::EventFlags::IN)?;
        }
        Ok(())
    }

    /// Waits for an event, and answers suspended calls.
    fn wait(&self, limit: Option<Duration>, answerer: &CallAnswerer) -> ReadySources {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(ORDERED) }; 3];
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let count = epoll::wait(&self.epoll, &mut events[..], limit.as_ref()).unwrap_or(0);
        let mut ready = ReadySources::default();
        for event in &events[..count] {
            match (event.data.u64(), answerer) {
                (SUSPENDED, CallAnswerer::Here(broker)) => broker.answer_next(),
                (DIED, _) => {
                    // One read drains the queue.
                    let _ = rustix::io::read(&self.signals, &mut [0; 1024]);
                    ready.died = true;
                }
                _ => ready.ordered = true,
            }
        }
        ready
    }
}

struct Supervision<'a> {
    sources: EventSources,
    connection: &'a UnixStream,
    answerer: CallAnswerer,
    /// To the command's process until the command is executed.
    startup: Startup,
    /// The command has a terminal and a process group of its own.
    reports_stops: bool,
}

impl Supervision<'_> {
    /// Returns true when the command exits, and false when Modegate requests the end. Reaps adopted children. Takes no
    /// lock that another thread keeps for long, so that nothing delays the look for the end of Modegate.
    fn watch(&self, child: Pid, orders: &mut MessageReader) -> bool {
        loop {
            while let Some(order) = orders.take() {
                let Ok(order) = order else { return false };
                if let Err(error) = self.follow(order, child) {
                    report(self.connection, &SupervisorReport::Failed(ProcessFailure::of(&error)));
                    return true;
                }
            }
            let ready = self.sources.wait(None, &self.answerer);
            if ready.died {
                let stops = WaitOptions::UNTRACED | WaitOptions::CONTINUED;
                let options = if self.reports_stops { stops } else { WaitOptions::empty() };
                while let Ok(Some((pid, status))) = process::wait(WaitOptions::NOHANG | options) {
                    if pid != child {
                        continue;
                    }
                    let Some(state) = job_state(child, status) else {
                        report(self.connection, &SupervisorReport::Exited(exit(status.as_raw())));
                        return true;
                    };
                    report(self.connection, &SupervisorReport::Job(state));
                }
            }
            if ready.ordered && read_orders(self.connection, orders).is_err() {
                return false;
            }
        }
    }

    /// The error is why a waiting command could not be executed.
    fn follow(&self, order: SupervisorOrder, child: Pid) -> io::Result<()> {
        match (order, &self.answerer) {
            (SupervisorOrder::RequestExit, _) => {
                // The process may have just exited.
                let _ = process::kill_process_group(child, Signal::TERM)
                    .or_else(|_| process::kill_process(child, Signal::TERM));
            }
            (SupervisorOrder::Release, _) => self.startup.release(child)?,
            (SupervisorOrder::SaveRecord, CallAnswerer::Threads(threads)) => threads.save_record(),
            (SupervisorOrder::SetPolicy(policy), CallAnswerer::Threads(threads)) => {
                threads.set_policy(policy);
            }
            (SupervisorOrder::Answer { question, allows }, CallAnswerer::Threads(threads)) => {
                threads.answer_question(question, allows);
            }
            (SupervisorOrder::AllowHost(host), CallAnswerer::Threads(threads)) => threads.allow_host(host),
            // The command is not brokered.
            (
                SupervisorOrder::SaveRecord
                | SupervisorOrder::SetPolicy(_)
                | SupervisorOrder::Answer { .. }
                | SupervisorOrder::AllowHost(_),
                CallAnswerer::None | CallAnswerer::Here(_),
            ) => {}
        }
        Ok(())
    }

    /// Lets processes that are about to exit do so: `git commit` leaves one that looks for garbage.
    fn linger(&self, children: &mut Children) {
        let deadline = Instant::now() + LINGER;
        loop {
            reap_children();
            let remaining = deadline.saturating_duration_since(Instant::now());
            let is_done = children.list().is_ok_and(|all| all.is_empty());
            if is_done || remaining.is_zero() || self.sources.wait(Some(remaining), &self.answerer).ordered {
                return;
            }
        }
    }
}

/// `None` if the command has ended.
fn job_state(command: Pid, status: WaitStatus) -> Option<JobState> {
    if status.stopped() {
        let group = process::getpgid(Some(command)).unwrap_or(command);
        return Some(JobState::Stopped { command: command.as_raw_pid(), group: group.as_raw_pid() });
    }
    status.continued().then_some(JobState::Running)
}

fn exit(status: i32) -> Exit {
    let status = ExitStatus::from_raw(status);
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Status(code),
        (None, signal) => Exit::Signal(signal.unwrap_or_default()),
    }
}

/// Kills all descendants and waits for them. Children of a dead child become ours. Returns the initial number
/// of children.
fn end_all(children: &mut Children, command: Pid) -> usize {
    reap_children();
    let mut first = None;
    loop {
        match children.list() {
            Ok(all) => {
                first.get_or_insert(all.len());
                for child in all {
                    children::kill(child, process::getpgrp());
                }
            }
            // Still waits for all children, so no end is reported early.
            Err(_) => children::kill(command, process::getpgrp()),
        }
        if let Err(rustix::io::Errno::CHILD) = process::wait(WaitOptions::empty()) {
            return first.unwrap_or_default();
        }
        reap_children();
    }
}

fn reap_children() {
    while let Ok(Some(_)) = process::wait(WaitOptions::NOHANG) {}
}
