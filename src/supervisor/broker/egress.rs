//! The network of a brokered command. Where it is limited, the command connects to allowed hosts by name, to allowed
//! addresses, and to ports of this machine at which it listens itself. Part of the supervisor.
//!
//! Landlock knows neither hosts nor UNIX sockets, so no `connect` and no `bind` runs: the supervisor decides on a copy
//! of the address, and connects a copy of the caller's descriptor.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Shutdown, SocketType, ipproto, sockopt};

use super::network_call::NetworkCall;
use super::notification::{CallAnswer, CallListener, SuspendedCall};
use super::threads;
use super::tracee::{self, Tracee};
use crate::kernel;
use crate::sandbox;
use crate::sandbox::host::{AllowedHosts, HostPattern};
use crate::supervisor::connection;
use crate::supervisor::protocol::{BrokerEvent, SupervisorReport};
use names::InventedNames;

mod dns;
mod forward;
mod listeners;
mod names;
mod resolver;
mod take_back;

/// Port at which programs ask for the addresses of names.
const NAME_PORT: u16 = 53;

/// Sockets that are being connected at the same time. More fail.
const MAX_CONNECTING: usize = 256;

/// Refused hosts that are reported. More are refused without a report.
const MAX_REPORTED: usize = 64;

/// Size of `struct sockaddr_storage`.
const MAX_ADDRESS: usize = 128;

const DONE: EgressStep = EgressStep::Answer(CallAnswer::Value(0));

/// The call runs, with a network that is not limited.
const CONTINUE: EgressStep = EgressStep::Answer(CallAnswer::Continue);

pub(super) struct EgressBroker {
    hosts: RwLock<AllowedHosts>,
    is_limited: AtomicBool,
    /// True if sockets may exist from a time when the network was open.
    was_open: AtomicBool,
    names: Mutex<InventedNames>,
    resolver: SocketAddrV4,
    connecting: AtomicUsize,
    /// Hosts that were reported.
    refused: Mutex<HashSet<String>>,
    listener: Arc<CallListener>,
    /// Connection to Modegate.
    connection: Option<UnixStream>,
}

enum EgressStep {
    Answer(CallAnswer),
    Connect(OwnedFd, ConnectionTarget),
}

/// The peer of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ConnectionTarget {
    Address(SocketAddr),
    /// The address with this index among those of a name.
    Name {
        name: String,
        index: usize,
        port: u16,
        is_mapped: bool,
    },
}

/// The address of a `connect` or `bind` call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Destination {
    /// Ends a connection.
    None,
    Internet(SocketAddr),
    Netlink(SocketAddrNetlink),
}

/// Returns true if descriptors of other threads can be copied here.
pub(in crate::supervisor) fn is_supported() -> bool {
    let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    io::pipe().is_ok_and(|(end, _)| tracee::copy_descriptor(thread, end.as_raw_fd()).is_ok())
}

impl EgressBroker {
    /// Starts the resolver, whose threads end with this process.
    pub(super) fn start(
        hosts: AllowedHosts,
        first: sandbox::Egress,
        listener: Arc<CallListener>,
        connection: Option<UnixStream>,
    ) -> io::Result<Arc<Self>> {
        let (resolver_listener, resolver) = resolver::bind()?;
        let is_limited = first == sandbox::Egress::Hosts || hosts.ceiling.is_some();
        let hosts = AllowedHosts { is_open: first == sandbox::Egress::Open, ..hosts };
        let egress = Arc::new(Self {
            hosts: RwLock::new(hosts),
            is_limited: AtomicBool::new(is_limited),
            was_open: AtomicBool::new(first == sandbox::Egress::Open),
            names: Mutex::default(),
            resolver,
            connecting: AtomicUsize::default(),
            refused: Mutex::default(),
            listener,
            connection,
        });
        resolver::start(Arc::clone(&egress), resolver_listener)?;
        Ok(egress)
    }

    /// Answers a call, or lets a thread answer it that may wait for a network.
    pub(super) fn answer(self: &Arc<Self>, call: SuspendedCall, kind: NetworkCall) {
        let tracee = Tracee { listener: &self.listener, call: &call };
        let (socket, target) = match self.step(&tracee, kind) {
            Ok(EgressStep::Connect(socket, target)) => (socket, target),
            Ok(EgressStep::Answer(answer)) => return self.respond(&call, answer),
            Err(error) => return self.respond(&call, CallAnswer::Error(error.raw_os_error())),
        };
        let flags = rustix::fs::fcntl_getfl(&socket);
        let is_immediate = flags.is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        if is_immediate && self.is_known(&target) {
            return self.respond(&call, self.connect_to(&socket, &target));
        }
        let is_free = self.connecting.fetch_add(1, Ordering::Relaxed) < MAX_CONNECTING;
        let egress = Arc::clone(self);
        let connect = move || {
            let answer = egress.connect_to(&socket, &target);
            // Closed before the caller goes on, which may close the connection.
            drop(socket);
            egress.respond(&call, answer);
            egress.connecting.fetch_sub(1, Ordering::Relaxed);
        };
        if !is_free || threads::start("connect", connect).is_err() {
            self.connecting.fetch_sub(1, Ordering::Relaxed);
            self.respond(&call, CallAnswer::Error(Errno::AGAIN.raw_os_error()));
        }
    }

    fn respond(&self, call: &SuspendedCall, answer: CallAnswer) {
        // The caller may be gone.
        let _ = self.listener.respond(call, answer);
    }

    fn connect_to(&self, socket: &OwnedFd, target: &ConnectionTarget) -> CallAnswer {
        let connected = self.address(target).and_then(|address| rustix::net::connect(socket, &address));
        connected.map_or_else(|error| CallAnswer::Error(error.raw_os_error()), |()| CallAnswer::Value(0))
    }

    /// Limits the network, or opens it, at most to the ceiling of the hosts. Connections that exist stay until
    /// [`Self::take_back`].
    pub(super) fn set(&self, egress: sandbox::Egress) {
        let is_open = egress == sandbox::Egress::Open;
        self.was_open.fetch_or(is_open, Ordering::SeqCst);
        let mut hosts = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        hosts.is_open = is_open;
        self.is_limited.store(!is_open || hosts.ceiling.is_some(), Ordering::SeqCst);
    }

    /// Allows a further host, until the command ends.
    pub(super) fn allow(&self, host: HostPattern) {
        let mut hosts = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        hosts.patterns.push(host);
    }

    fn hosts(&self) -> RwLockReadGuard<'_, AllowedHosts> {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::SeqCst)
    }

    fn step(&self, tracee: &Tracee<'_>, kind: NetworkCall) -> Result<EgressStep, Errno> {
        match kind {
            NetworkCall::Connect => self.connect(tracee),
            NetworkCall::Bind => bind(tracee),
            NetworkCall::Listen => self.listen(tracee),
            // The filter suspends datagram sockets only: they reach any address without `connect`. All arguments are
            // numbers, so a call that runs is the one that was looked at.
            NetworkCall::Socket if self.is_limited() => Err(Errno::ACCESS),
            NetworkCall::Socket => Ok(CONTINUE),
        }
    }

    fn connect(&self, tracee: &Tracee<'_>) -> Result<EgressStep, Errno> {
        let is_limited = self.is_limited();
        let destination = destination(tracee);
        let destination = destination?;
        let socket = if is_limited { stream_socket(tracee)? } else { socket(tracee)? };
        let address = match destination {
            Destination::Internet(address) => address,
            Destination::None => {
                rustix::net::connect_unspec(&socket)?;
                return Ok(DONE);
            }
            Destination::Netlink(address) => {
                rustix::net::connect(&socket, &address)?;
                return Ok(DONE);
            }
        };
        if !is_limited && !self.is_invented(address) && !is_name_server(address, forward::name_servers) {
            return Ok(EgressStep::Connect(socket, ConnectionTarget::Address(address)));
        }
        match self.target(address, is_limited) {
            Ok(target) => Ok(EgressStep::Connect(socket, target)),
            Err(host) => {
                self.report(host);
                Err(Errno::ACCESS)
            }
        }
    }

    fn is_invented(&self, address: SocketAddr) -> bool {
        match address.ip().to_canonical() {
            IpAddr::V4(ip) => names::is_invented(ip) && self.names().name(ip).is_some(),
            IpAddr::V6(_) => false,
        }
    }

    /// The error is the host that is refused.
    fn target(&self, address: SocketAddr, is_limited: bool) -> Result<ConnectionTarget, String> {
        let (ip, port) = (effective(address.ip()), address.port());
        let is_mapped = address.is_ipv6() && ip.is_ipv4();
        if port == NAME_PORT {
            return Ok(ConnectionTarget::Address(with_ip(
                address,
                IpAddr::V4(*self.resolver.ip()),
                self.resolver.port(),
            )));
        }
        if let IpAddr::V4(v4) = ip
            && let Some((name, index)) = self.names().name(v4)
        {
            if is_limited && !self.hosts().allow_name(name, Some(port)) {
                return Err(format!("{name}:{port}"));
            }
            return Ok(ConnectionTarget::Name { name: name.to_owned(), index, port, is_mapped });
        }
        let target = with_ip(address, ip, port);
        if self.allows_address(ip, port) || ip.is_loopback() && listeners::is_own(SocketAddr::new(ip, port)) {
            Ok(ConnectionTarget::Address(target))
        } else {
            Err(SocketAddr::new(ip, port).to_string())
        }
    }

    fn allows_address(&self, ip: IpAddr, port: u16) -> bool {
        self.hosts().allow_address(ip, port) || self.is_listed(ip, port)
    }

    /// Returns true if the system's list gives the address to an allowed name.
    fn is_listed(&self, ip: IpAddr, port: u16) -> bool {
        let hosts = fs::read_to_string("/etc/hosts").unwrap_or_default();
        names::listed(&hosts, ip).iter().any(|name| self.hosts().allow_name(name, Some(port)))
    }

    /// An unbound socket would listen at all addresses of this machine. The address can change until the socket
    /// listens: the end of an unfinished connection clears it.
    fn listen(&self, tracee: &Tracee<'_>) -> Result<EgressStep, Errno> {
        if !self.is_limited() {
            return Ok(CONTINUE);
        }
        let socket = stream_socket(tracee)?;
        check_bound_to_loopback(&socket)?;
        kernel::tie_to_loopback(socket.as_fd()).map_err(|_| Errno::ACCESS)?;
        rustix::net::listen(&socket, number(tracee.call.arguments[1]))?;
        if let Err(error) = check_bound_to_loopback(&socket) {
            rustix::net::shutdown(&socket, Shutdown::Both)?;
            return Err(error);
        }
        Ok(DONE)
    }

    fn names(&self) -> std::sync::MutexGuard<'_, InventedNames> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the invented addresses of an allowed name. `None` if the system does not know the name. Can take
    /// seconds.
    fn invented(&self, name: &str) -> Option<Vec<Ipv4Addr>> {
        let now = Instant::now();
        let recent = self.names().real(name, now).map(<[Ipv4Addr]>::to_vec);
        let real = recent.or_else(|| self.resolve(name))?;
        self.names().invent(name, &real, now)
    }

    fn resolve(&self, name: &str) -> Option<Vec<Ipv4Addr>> {
        let fixed: Vec<_> = {
            let hosts = self.hosts();
            let fixed = hosts.addresses.iter().filter(|(fixed, _)| fixed == name);
            fixed.map(|(_, address)| *address).collect()
        };
        if fixed.is_empty() { names::resolve(name) } else { Some(fixed) }
    }

    /// The real address. Asks the system if the last answer is old.
    fn address(&self, target: &ConnectionTarget) -> Result<SocketAddr, Errno> {
        match target {
            ConnectionTarget::Address(address) => Ok(*address),
            ConnectionTarget::Name { name, index, port, is_mapped } => {
                self.invented(name).ok_or(Errno::HOSTUNREACH)?;
                let names = self.names();
                let real = names.real(name, Instant::now()).filter(|real| !real.is_empty());
                let real = real.ok_or(Errno::HOSTUNREACH)?;
                let ip = real[index % real.len()];
                let ip = if *is_mapped { IpAddr::V6(ip.to_ipv6_mapped()) } else { IpAddr::V4(ip) };
                Ok(SocketAddr::new(ip, *port))
            }
        }
    }

    fn is_known(&self, target: &ConnectionTarget) -> bool {
        match target {
            ConnectionTarget::Address(_) => true,
            ConnectionTarget::Name { name, .. } => self.names().real(name, Instant::now()).is_some(),
        }
    }

    /// Reports a refused host, once.
    fn report(&self, host: String) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() < MAX_REPORTED
            && refused.insert(host.clone())
            && let Some(connection) = &self.connection
        {
            connection::report(connection, &SupervisorReport::Broker(BrokerEvent::HostRefused(host)));
        }
    }
}

/// True for a name server of the system. The C library asks it over TCP, which it need not speak.
fn is_name_server(address: SocketAddr, name_servers: impl FnOnce() -> Vec<IpAddr>) -> bool {
    address.port() == NAME_PORT && name_servers().contains(&address.ip().to_canonical())
}

/// A bound socket has no peer until it connects or listens, so every address is allowed.
fn bind(tracee: &Tracee<'_>) -> Result<EgressStep, Errno> {
    let destination = destination(tracee)?;
    let socket = socket(tracee)?;
    match destination {
        Destination::Internet(address) => rustix::net::bind(&socket, &address)?,
        Destination::Netlink(address) => rustix::net::bind(&socket, &address)?,
        Destination::None => return Err(Errno::AFNOSUPPORT),
    }
    Ok(DONE)
}

fn check_bound_to_loopback(socket: &OwnedFd) -> Result<(), Errno> {
    let bound = SocketAddr::try_from(rustix::net::getsockname(socket)?).map_err(|_| Errno::ACCESS)?;
    let is_bound = bound.ip().to_canonical().is_loopback() && bound.port() != 0;
    if is_bound { Ok(()) } else { Err(Errno::ACCESS) }
}

/// Copies the caller's socket.
fn socket(tracee: &Tracee<'_>) -> Result<OwnedFd, Errno> {
    let socket = tracee.copy(number(tracee.call.arguments[0]))?;
    if tracee.is_suspended() { Ok(socket) } else { Err(Errno::SRCH) }
}

/// Copies the caller's socket, which must be a TCP socket.
fn stream_socket(tracee: &Tracee<'_>) -> Result<OwnedFd, Errno> {
    let socket = socket(tracee)?;
    let is_internet = matches!(sockopt::socket_domain(&socket)?, AddressFamily::INET | AddressFamily::INET6);
    let is_tcp = is_internet
        && sockopt::socket_type(&socket)? == SocketType::STREAM
        && sockopt::socket_protocol(&socket)? == Some(ipproto::TCP);
    if is_tcp { Ok(socket) } else { Err(Errno::ACCESS) }
}

fn destination(tracee: &Tracee<'_>) -> Result<Destination, Errno> {
    let [_, address, length, ..] = tracee.call.arguments;
    let length = usize::try_from(number(length)).ok().filter(|length| *length <= MAX_ADDRESS);
    let length = length.ok_or(Errno::INVAL)?;
    let bytes = tracee.memory(address, length).ok_or(Errno::FAULT)?;
    if bytes.len() < length {
        return Err(Errno::FAULT);
    }
    read_destination(&bytes)
}

/// Reads a `struct sockaddr`.
fn read_destination(bytes: &[u8]) -> Result<Destination, Errno> {
    fn part<const LENGTH: usize>(bytes: &[u8], at: usize) -> Result<[u8; LENGTH], Errno> {
        let part = bytes.get(at..at + LENGTH).and_then(|part| part.try_into().ok());
        part.ok_or(Errno::INVAL)
    }
    let family = u16::from_ne_bytes(part(bytes, 0)?);
    match AddressFamily::from_raw(family) {
        AddressFamily::UNSPEC => Ok(Destination::None),
        AddressFamily::INET => {
            let port = u16::from_be_bytes(part(bytes, 2)?);
            let ip = Ipv4Addr::from(part::<4>(bytes, 4)?);
            // The kernel demands the padding.
            part::<8>(bytes, 8)?;
            Ok(Destination::Internet(SocketAddrV4::new(ip, port).into()))
        }
        AddressFamily::INET6 => {
            let port = u16::from_be_bytes(part(bytes, 2)?);
            let flow = u32::from_be_bytes(part(bytes, 4)?);
            let ip = Ipv6Addr::from(part::<16>(bytes, 8)?);
            // Older programs leave it out.
            let scope = part(bytes, 24).map_or(0, u32::from_ne_bytes);
            Ok(Destination::Internet(SocketAddrV6::new(ip, port, flow, scope).into()))
        }
        AddressFamily::NETLINK => {
            let number = u32::from_ne_bytes(part(bytes, 4)?);
            Ok(Destination::Netlink(SocketAddrNetlink::new(number, u32::from_ne_bytes(part(bytes, 8)?))))
        }
        _ => Err(Errno::AFNOSUPPORT),
    }
}

/// The address that the kernel uses.
fn effective(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// Replaces the address, in the form that the socket has.
fn with_ip(address: SocketAddr, ip: IpAddr, port: u16) -> SocketAddr {
    match (address, ip) {
        (SocketAddr::V6(_), IpAddr::V4(ip)) => SocketAddr::new(ip.to_ipv6_mapped().into(), port),
        (SocketAddr::V6(from), IpAddr::V6(ip)) => {
            SocketAddrV6::new(ip, port, from.flowinfo(), from.scope_id()).into()
        }
        (SocketAddr::V4(_), ip) => SocketAddr::new(ip, port),
    }
}

/// The kernel reads such an argument as an `int`.
fn number(argument: u64) -> i32 {
    let [a, b, c, d, ..] = argument.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests;
