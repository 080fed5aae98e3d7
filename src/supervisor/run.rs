//! The supervisor of one command. Without a runtime, and single-threaded unless its command is brokered.
//!
//! The end of the connection to Modegate kills everything. The supervisor runs outside the command's sandbox,
//! and adopts all orphaned descendants as a subreaper, so no session, process group or double fork escapes.

use std::env;
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::process::{self, Pid, Signal, WaitOptions};

use super::broker::{self, Broker, BrokerThreads, Reads, Recorder, Roots};
use super::children::{self, Children};
use super::connection::tell;
use super::protocol::{Exit, Order, Report, SpawnRequest};
use super::{HANDSHAKE, RELEASE, descriptors};
use crate::file_lock::FileLocks;
use crate::kernel::{self, Fork};
use crate::sandbox::{self, BrokerPolicy, Confinement, TEMPORARY_VARIABLES};

mod own_folder;

/// Variable with options of the C library's resolver.
const RESOLVER_OPTIONS: &str = "RES_OPTIONS";

/// Returns once the command and all its descendants are gone. `entered` tells whether the supervisor is in the
/// command's working directory.
pub(super) fn run(connection: &UnixStream, entered: io::Result<()>) -> ExitCode {
    match supervise(connection, entered) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(connection, &Report::Failed(error.to_string()));
            tell(connection, &Report::Gone { left_behind: 0 });
            ExitCode::FAILURE
        }
    }
}

/// Reads the byte [`HANDSHAKE`] with a descriptor, a length of 4 bytes (little endian), and JSON.
fn read_request(mut connection: &UnixStream) -> io::Result<(SpawnRequest, Option<OwnedFd>)> {
    let mut ahead = [0];
    let (count, handed) = descriptors::receive(connection, &mut ahead)?;
    if count != 1 || ahead != [HANDSHAKE] {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut length = [0; 4];
    connection.read_exact(&mut length)?;
    let mut request = Vec::new();
    connection.take(u32::from_le_bytes(length).into()).read_to_end(&mut request)?;
    Ok((serde_json::from_slice(&request)?, handed.into_iter().next()))
}

fn supervise(connection: &UnixStream, entered: io::Result<()>) -> io::Result<()> {
    let (mut request, input) = read_request(connection)?;
    if let Confinement::Brokered { broker, .. } = &mut request.confinement
        && !broker::limits_network()
    {
        broker.hosts = None;
    }
    entered.map_err(|error| {
        io::Error::other(format!("the command's working directory cannot be entered: {error}"))
    })?;
    process::set_child_subreaper(Some(process::getpid()))?;
    if let Some(folder) = &request.own_folder {
        DirBuilder::new().mode(0o700).create(folder)?;
    }
    let done = run_request(connection, &request, input);
    if let Some(folder) = &request.own_folder {
        own_folder::remove(folder);
    }
    done.map(|left_behind| tell(connection, &Report::Gone { left_behind }))
}

/// Returns the number of processes that the command left behind.
fn run_request(connection: &UnixStream, request: &SpawnRequest, input: Option<OwnedFd>) -> io::Result<usize> {
    let signals = kernel::child_signals()?;
    let mut children = Children::open()?;
    let epoll = waiting(connection, &signals)?;
    let (startup, report_startup) = UnixStream::pair()?;
    let supervisor = process::getpid();
    let child = match kernel::fork()? {
        Fork::Child => become_command(request, input, &report_startup, supervisor),
        Fork::Parent(child) => child,
    };
    drop((report_startup, input));
    let is_enough = |listener: &Option<OwnedFd>| request.waits && listener.is_some();
    let answerer = match read_startup(&startup, is_enough)
        .and_then(|listener| start_broker(listener, request, connection, &epoll))
    {
        Ok(answerer) => answerer,
        Err(error) => {
            end_all(&mut children, child);
            return Err(error);
        }
    };
    let supervision = Supervision { epoll, connection, signals, answerer, startup };
    if supervision.watch(child) {
        supervision.linger(&mut children);
    }
    let left_behind = end_all(&mut children, child);
    if let CallAnswerer::Threads(threads) = &supervision.answerer {
        threads.save_last_record();
    }
    Ok(left_behind)
}

/// Reads until the command is executed, or until `is_enough`. Returns the descriptor for suspended calls. The
/// error is why the command was not executed.
fn read_startup(
    startup: &UnixStream,
    is_enough: impl Fn(&Option<OwnedFd>) -> bool,
) -> io::Result<Option<OwnedFd>> {
    let (mut listener, mut problem) = (None, Vec::new());
    while !is_enough(&listener) {
        let mut bytes = [0; 1024];
        let (count, handed) = descriptors::receive(startup, &mut bytes)?;
        match (handed.into_iter().next(), count) {
            (None, 0) if problem.is_empty() => return Ok(listener),
            (None, 0) => return Err(io::Error::other(String::from_utf8_lossy(&problem).into_owned())),
            (None, count) => problem.extend_from_slice(&bytes[..count]),
            (received, _) => listener = received,
        }
    }
    Ok(listener)
}

/// Programs must ask for names over TCP, which the broker answers. `None` if their network is not limited.
fn resolver_options(request: &SpawnRequest, command: &Command) -> Option<OsString> {
    let Confinement::Brokered { broker, .. } = &request.confinement else { return None };
    broker.hosts.as_ref()?;
    let own = command.get_envs().find(|(name, _)| *name == RESOLVER_OPTIONS).and_then(|(_, value)| value);
    let inherited = || env::var_os(RESOLVER_OPTIONS).filter(|_| request.environment.is_none());
    let mut options = own.map(OsString::from).or_else(inherited).unwrap_or_default();
    options.push(" use-vc");
    Some(options)
}

/// Executes the command in the sandbox. On failure writes the reason to the socket.
fn become_command(
    request: &SpawnRequest,
    input: Option<OwnedFd>,
    mut startup: &UnixStream,
    supervisor: Pid,
) -> ! {
    // Opened first: in the sandbox, the supervisor may have to open it, which waits for this process.
    let opened = input.map_or_else(|| File::open("/dev/null").map(Stdio::from), |input| Ok(input.into()));
    let prepared = prepare(request, supervisor).and_then(|listener| {
        let unprepared = |error| format!("the command's process cannot be prepared: {error}");
        if let Some(listener) = listener {
            descriptors::send(startup, HANDSHAKE, &[listener.as_fd()]).map_err(unprepared)?;
        }
        opened.map_err(unprepared)
    });
    let input = prepared.unwrap_or_else(|problem| give_up(startup, &problem));
    // The end of the supervisor ends this process.
    if request.waits && startup.read_exact(&mut [0]).is_err() {
        std::process::exit(127);
    }
    let mut command = Command::new(&request.program);
    command.args(&request.arguments).stdin(input);
    if let Some(environment) = &request.environment {
        command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    }
    command.envs(request.settings.iter().map(|(name, value)| (name, value)));
    command.envs(request.own.iter().map(|(name, value)| (name, value)));
    if let Some(options) = resolver_options(request, &command) {
        command.env(RESOLVER_OPTIONS, options);
    }
    if let Some(folder) = &request.own_folder {
        command.envs(TEMPORARY_VARIABLES.map(|name| (name, folder)));
        if matches!(request.confinement, Confinement::ReadOnly { .. }) {
            command.env("CARGO_TARGET_DIR", folder.join("target"));
        }
    }
    let error = command.exec();
    let program = &request.program;
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let is_line = is_missing && program.contains(char::is_whitespace);
    let hint = if is_line { "; a command is the program alone, and `args` lists its arguments" } else { "" };
    let reason = if is_missing && !program.contains('/') {
        "it was not found on PATH".to_owned()
    } else {
        error.to_string()
    };
    give_up(startup, &format!("{program} cannot be run: {reason}{hint}"))
}

fn give_up(mut startup: &UnixStream, problem: &str) -> ! {
    // The supervisor may be gone.
    let _ = startup.write_all(problem.as_bytes());
    std::process::exit(127)
}

fn prepare(request: &SpawnRequest, supervisor: Pid) -> Result<Option<OwnedFd>, String> {
    let steps = || -> io::Result<()> {
        if !request.keeps_terminal {
            process::setsid()?;
        }
        process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have been killed before.
        if process::getppid() != Some(supervisor) {
            return Err(io::Error::other("its supervisor was killed"));
        }
        kernel::unblock_signals()?;
        // Tolerated only if there is no sandbox.
        kernel::close_the_rest_on_exec()
            .or_else(|error| if request.confinement == Confinement::Off { Ok(()) } else { Err(error) })
    };
    steps().map_err(|error| format!("the command's process cannot be prepared: {error}"))?;
    if request.confinement != Confinement::Off {
        // With 1 instead of 0 the kernel does not start a core dump handler either. A lower limit stays:
        // raising it takes privileges.
        let own = process::getrlimit(process::Resource::Core).maximum;
        let limit = Some(own.map_or(1, |own| own.min(1)));
        let limit = process::Rlimit { current: limit, maximum: limit };
        process::setrlimit(process::Resource::Core, limit)
            .map_err(|error| format!("core dumps cannot be switched off: {error}"))?;
    }
    sandbox::confine(&request.confinement, request.own_folder.as_deref())
}

const REQUESTED: u64 = 0;
const DIED: u64 = 1;
const SUSPENDED: u64 = 2;

/// Time in which processes that a command left behind may exit on their own.
const LINGER: Duration = Duration::from_millis(100);

/// Starts answering the calls that the sandbox suspends.
fn start_broker(
    listener: Option<OwnedFd>,
    request: &SpawnRequest,
    connection: &UnixStream,
    epoll: &OwnedFd,
) -> io::Result<CallAnswerer> {
    let Some(listener) = listener else { return Ok(CallAnswerer::None) };
    // The broker has the rights of the command.
    kernel::drop_capabilities()?;
    let own = request.own_folder.as_slice();
    let no_pattern = |reason| io::Error::new(io::ErrorKind::InvalidInput, reason);
    if let Confinement::Brokered { write, broker } = &request.confinement {
        // Rights, times and attributes of a single file outside of the roots do not change.
        let own: Vec<_> = write.iter().chain(own).filter(|path| path.is_dir()).cloned().collect();
        let record = broker.record.iter();
        let protected: Vec<_> = broker.protected.iter().chain(record.clone()).cloned().collect();
        let workspace = [&*broker.roots, &broker.caches].concat();
        let roots = Roots::open(&workspace, &own, &protected)?;
        let recorder = record
            .cloned()
            .map(|folder| Recorder::new(folder, broker.caches.clone(), broker.roots.clone()))
            .next();
        raise_descriptor_limit();
        let connection = Some(connection.try_clone()?);
        let policy = broker.policy;
        let mut started = Broker::new(listener, roots, policy, recorder, connection);
        started.share_locks(broker.locks.as_deref().map(FileLocks::in_folder).unwrap_or_default());
        if request.keeps_terminal {
            started.allow_own_terminal();
        }
        if let Some(denied) = &broker.denied {
            started.limit_reads(Reads::new(denied, None).map_err(no_pattern)?);
        }
        if let Some(hosts) = &broker.hosts {
            started.limit_network(hosts.clone(), broker.egress)?;
        }
        return started.start().map(CallAnswerer::Threads);
    }
    let mut broker = Broker::new(listener, Roots::open(&[], own, &[])?, BrokerPolicy::Nothing, None, None);
    if let Confinement::ReadOnly { read, denied: Some(denied) } = &request.confinement {
        let readable = read.iter().chain(own).cloned().collect();
        broker.limit_reads(Reads::new(denied, Some(readable)).map_err(no_pattern)?);
        return broker.start().map(CallAnswerer::Threads);
    }
    // Few calls: the main thread answers them.
    epoll::add(epoll, broker.listener(), epoll::EventData::new_u64(SUSPENDED), epoll::EventFlags::IN)?;
    Ok(CallAnswerer::Here(Arc::new(broker)))
}

/// Not `poll`, which fails if the command lowers the supervisor's descriptor limit.
fn waiting(connection: &UnixStream, signals: &OwnedFd) -> io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, connection, epoll::EventData::new_u64(REQUESTED), epoll::EventFlags::IN)?;
    epoll::add(&epoll, signals, epoll::EventData::new_u64(DIED), epoll::EventFlags::IN)?;
    Ok(epoll)
}

/// Answers the calls that the sandbox suspends.
enum CallAnswerer {
    None,
    /// This thread, which has nothing to do but that.
    Here(Arc<Broker>),
    /// Threads of their own, so that nothing delays the watch on the connection.
    Threads(BrokerThreads),
}

struct Supervision<'a> {
    epoll: OwnedFd,
    connection: &'a UnixStream,
    signals: OwnedFd,
    answerer: CallAnswerer,
    /// To the command's process until the command is executed.
    startup: UnixStream,
}

#[derive(Default)]
struct Ready {
    requested: bool,
    died: bool,
}

impl Supervision<'_> {
    /// Returns true when the command exits, and false when Modegate requests the end. Reaps adopted children. Takes no
    /// lock that another thread keeps for long, so that nothing delays the look for the end of Modegate.
    fn watch(&self, child: Pid) -> bool {
        let mut received = Vec::new();
        loop {
            let ready = self.wait(None);
            if ready.died {
                while let Ok(Some((pid, status))) = process::wait(WaitOptions::NOHANG) {
                    if pid == child {
                        tell(self.connection, &Report::Exited(exit(status.as_raw())));
                        return true;
                    }
                }
            }
            if ready.requested {
                let Ok(orders) = read_orders(self.connection, &mut received) else { return false };
                for order in orders {
                    if let Err(error) = self.follow(order, child) {
                        tell(self.connection, &Report::Failed(error.to_string()));
                        return true;
                    }
                }
            }
        }
    }

    /// The error is why a waiting command could not be executed.
    fn follow(&self, order: Order, child: Pid) -> io::Result<()> {
        match (order, &self.answerer) {
            (Order::RequestExit, _) => {
                // The process may have just exited.
                let _ = process::kill_process_group(child, Signal::TERM)
                    .or_else(|_| process::kill_process(child, Signal::TERM));
            }
            (Order::Release, _) => {
                let mut startup = &self.startup;
                startup.write_all(&[RELEASE])?;
                read_startup(startup, |_| false)?;
            }
            (Order::SaveRecord, CallAnswerer::Threads(threads)) => threads.save_record(),
            (Order::SetPolicy(policy), CallAnswerer::Threads(threads)) => {
                threads.set_policy(policy);
            }
            (Order::Answer { question, allows }, CallAnswerer::Threads(threads)) => {
                threads.answer_question(question, allows);
            }
            // The command is not brokered.
            (
                Order::SaveRecord | Order::SetPolicy(_) | Order::Answer { .. },
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
            let left = deadline.saturating_duration_since(Instant::now());
            let is_done = children.list().is_ok_and(|all| all.is_empty());
            if is_done || left.is_zero() || self.wait(Some(left)).requested {
                return;
            }
        }
    }

    /// Waits for an event, and answers suspended calls.
    fn wait(&self, limit: Option<Duration>) -> Ready {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(REQUESTED) };
                3];
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let count = epoll::wait(&self.epoll, &mut events[..], limit.as_ref()).unwrap_or(0);
        let mut ready = Ready::default();
        for event in &events[..count] {
            match (event.data.u64(), &self.answerer) {
                (SUSPENDED, CallAnswerer::Here(broker)) => drop(broker.answer_next()),
                (DIED, _) => {
                    // One read drains the queue.
                    let _ = rustix::io::read(&self.signals, &mut [0; 1024]);
                    ready.died = true;
                }
                _ => ready.requested = true,
            }
        }
        ready
    }
}

/// Reads once, and returns all orders that are complete.
///
/// # Errors
/// Returns an error at the end of the connection.
fn read_orders(mut connection: &UnixStream, received: &mut Vec<u8>) -> io::Result<Vec<Order>> {
    let mut bytes = [0; 4096];
    match connection.read(&mut bytes)? {
        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
        count => received.extend_from_slice(&bytes[..count]),
    }
    let end = received.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let whole: Vec<u8> = received.drain(..end).collect();
    let lines = whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Ok(lines.map(serde_json::from_slice).collect::<Result<_, _>>()?)
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

/// Fails if the command has lowered the limit for good.
fn raise_descriptor_limit() {
    let limits = process::getrlimit(process::Resource::Nofile);
    let most = process::Rlimit { current: limits.maximum, ..limits };
    let _ = process::setrlimit(process::Resource::Nofile, most);
}
