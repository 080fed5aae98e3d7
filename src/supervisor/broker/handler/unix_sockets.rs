//! UNIX sockets of a command. Landlock does not know them, so these calls never run: the broker binds or connects a
//! copy of the caller's socket. In policies that allow changes, a socket may be in the command's folders, or be listed.

use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::CallHandler;
use crate::sandbox::BrokerPolicy;
use crate::supervisor::broker::area::Area;
use crate::supervisor::broker::network_call::NetworkCall;
use crate::supervisor::broker::operation::{CallPath, FileReference};
use crate::supervisor::broker::outcome::{CallOutcome, EarlyEnd, Postponed};
use crate::supervisor::broker::questions::AskedChange;
use crate::supervisor::broker::recorder::Touched;
use crate::supervisor::broker::resolve::ResolvedFile;
use crate::supervisor::broker::tracee::Tracee;
use crate::supervisor::broker::unix_address::{self, UnixAddress};
use crate::supervisor::broker::{perform, reads, resolve};
use crate::supervisor::protocol::ChangeKind;

pub(super) fn bind_or_connect(handler: &CallHandler<'_>, kind: NetworkCall) -> Result<CallOutcome, EarlyEnd> {
    let place = match unix_address::read(&handler.tracee)? {
        UnixAddress::Path(path) => CallPath { folder: None, path },
        // Abstract names have no folder that could allow them.
        UnixAddress::Other => return Err(Errno::ACCESS.into()),
    };
    match kind {
        NetworkCall::Bind => bind(handler, &place),
        _ => connect(handler, &place),
    }
}

fn connect(handler: &CallHandler<'_>, place: &CallPath) -> Result<CallOutcome, EarlyEnd> {
    let broker = handler.broker;
    let (named, _) = reads::find(&handler.tracee, place, OFlags::empty())?;
    let stat = rustix::fs::fstat(&named)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(Errno::CONNREFUSED.into());
    }
    let object = FileReference::Path { place: place.clone(), follows_link: true };
    let inside = broker.roots.file(&handler.tracee, &object, ResolveFlags::empty())?;
    let to = match inside {
        Some(file) if resolve::is_same(&file.stat, &stat) && may_connect(handler, &file) => file.file,
        _ if broker.sockets.contains(&stat) => named,
        _ => {
            broker.sockets.report(&named);
            return Err(Errno::ACCESS.into());
        }
    };
    if handler.policy == BrokerPolicy::Nothing {
        broker.sockets.report(&to);
        return Err(Errno::ACCESS.into());
    }
    let socket = unix_stream(&handler.tracee)?;
    Ok(CallOutcome::Postponed(Postponed::Connect { socket, to }))
}

/// A cache or a temporary folder can contain sockets of other programs.
fn may_connect(handler: &CallHandler<'_>, file: &ResolvedFile) -> bool {
    file.area != Area::Unrecorded || handler.broker.bound.contain(&file.stat)
}

fn bind(handler: &CallHandler<'_>, place: &CallPath) -> Result<CallOutcome, EarlyEnd> {
    let (broker, tracee) = (handler.broker, &handler.tracee);
    if handler.policy == BrokerPolicy::Nothing {
        return Err(Errno::ACCESS.into());
    }
    // The command moves no other socket to this name until it is remembered, and no folder to one that a rule denies.
    let _alone = broker.moving.write().unwrap_or_else(PoisonError::into_inner);
    let entry = broker.roots.entry(tracee, place, ResolveFlags::empty())?.ok_or(Errno::ACCESS)?;
    handler.check_replaceable(&entry)?;
    if perform::kind(&entry).is_some() {
        return Err(Errno::ADDRINUSE.into());
    }
    let socket = unix_stream(tracee)?;
    let _recorded = if entry.is_brokered() {
        handler.check_change(AskedChange::new(ChangeKind::Create, &entry.path))?;
        Some(handler.record(&[Touched::Entry(&entry)])?)
    } else {
        None
    };
    tracee.with_umask(|| perform::bind(&socket, &entry))?;
    if entry.area == Area::Unrecorded {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let bound = rustix::fs::openat(&entry.folder, &entry.name, flags, Mode::empty())?;
        broker.bound.add(&bound)?;
    }
    Ok(CallOutcome::DONE)
}

/// Copies the caller's socket, which must be a UNIX stream socket.
fn unix_stream(tracee: &Tracee<'_>) -> Result<OwnedFd, Errno> {
    let number = i32::try_from(tracee.call.arguments[0]).map_err(|_| Errno::BADF)?;
    let socket = tracee.copy(number)?;
    if !tracee.is_suspended() {
        return Err(Errno::SRCH);
    }
    let is_stream = sockopt::socket_domain(&socket)? == AddressFamily::UNIX
        && sockopt::socket_type(&socket)? == SocketType::STREAM;
    if is_stream { Ok(socket) } else { Err(Errno::AFNOSUPPORT) }
}
