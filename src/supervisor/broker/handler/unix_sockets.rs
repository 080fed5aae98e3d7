//! UNIX sockets of a command. Landlock does not know them, so these calls never run: the broker binds or connects a
//! copy of the caller's socket. In policies that allow changes, a socket may be in the command's folders, or be listed.

use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::{CallHandler, CallOutcome, DONE, Postponed, refusal};
use crate::sandbox::BrokerPolicy;
use crate::supervisor::broker::area::Area;
use crate::supervisor::broker::network_call::NetworkCall;
use crate::supervisor::broker::operation::{CallPath, FileReference};
use crate::supervisor::broker::questions::AskedChange;
use crate::supervisor::broker::recorder::Touched;
use crate::supervisor::broker::resolve::ResolvedFile;
use crate::supervisor::broker::unix_address::{self, UnixAddress};
use crate::supervisor::broker::{perform, reads, resolve};
use crate::supervisor::protocol::ChangeKind;

impl CallHandler<'_> {
    pub(super) fn unix_socket(&self, kind: NetworkCall) -> Result<CallOutcome, CallOutcome> {
        let place = match unix_address::read(&self.tracee).map_err(refusal)? {
            UnixAddress::Path(path) => CallPath { folder: None, path },
            // Abstract names have no folder that could allow them.
            UnixAddress::Other => return Err(refusal(Errno::ACCESS)),
        };
        match kind {
            NetworkCall::Bind => self.bind_unix(&place),
            _ => self.connect_unix(&place),
        }
    }

    fn connect_unix(&self, place: &CallPath) -> Result<CallOutcome, CallOutcome> {
        let (found, _) = reads::find(&self.tracee, place, OFlags::empty()).map_err(refusal)?;
        let stat = rustix::fs::fstat(&found).map_err(refusal)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(refusal(Errno::CONNREFUSED));
        }
        let object = FileReference::Path { place: place.clone(), follows_link: true };
        let inside = self.roots.file(&self.tracee, &object, ResolveFlags::empty());
        let to = match inside.map_err(refusal)? {
            Some(file) if resolve::is_same(&file.stat, &stat) && self.may_connect(&file) => file.file,
            _ if self.sockets.contains(&stat) => found,
            _ => {
                self.sockets.report(&found);
                return Err(refusal(Errno::ACCESS));
            }
        };
        if self.policy == BrokerPolicy::Nothing {
            self.sockets.report(&to);
            return Err(refusal(Errno::ACCESS));
        }
        Err(CallOutcome::Postponed(Postponed::Connect { socket: self.unix_stream()?, to }))
    }

    fn bind_unix(&self, place: &CallPath) -> Result<CallOutcome, CallOutcome> {
        if self.policy == BrokerPolicy::Nothing {
            return Err(refusal(Errno::ACCESS));
        }
        let entry = self.roots.entry(&self.tracee, place, ResolveFlags::empty()).map_err(refusal)?;
        let entry = entry.ok_or(refusal(Errno::ACCESS))?;
        self.check_replaceable(&entry)?;
        if perform::kind(&entry).is_some() {
            return Err(refusal(Errno::ADDRINUSE));
        }
        let socket = self.unix_stream()?;
        let _recorded = if entry.is_brokered() {
            self.check_asked(AskedChange::new(ChangeKind::Create, &entry.path))?;
            Some(self.record(&[Touched::Entry(&entry)])?)
        } else {
            None
        };
        // The command moves no other socket to this name until it is remembered.
        let _alone = self.moving.write().unwrap_or_else(PoisonError::into_inner);
        self.with_umask(|| perform::bind(&socket, &entry)).map_err(refusal)?;
        if entry.area == Area::Unrecorded {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let bound = rustix::fs::openat(&entry.folder, &entry.name, flags, Mode::empty());
            bound.and_then(|bound| self.bound.add(&bound)).map_err(refusal)?;
        }
        Ok(DONE)
    }

    /// A cache or a temporary folder can contain sockets of other programs.
    fn may_connect(&self, file: &ResolvedFile) -> bool {
        file.area != Area::Unrecorded || self.bound.contain(&file.stat)
    }

    /// Copies the caller's socket, which must be a UNIX stream socket.
    fn unix_stream(&self) -> Result<OwnedFd, CallOutcome> {
        let number = i32::try_from(self.tracee.call.arguments[0]).map_err(|_| refusal(Errno::BADF))?;
        let socket = self.tracee.copy(number).map_err(refusal)?;
        if !self.tracee.is_suspended() {
            return Err(refusal(Errno::SRCH));
        }
        let is_stream = sockopt::socket_domain(&socket).map_err(refusal)? == AddressFamily::UNIX
            && sockopt::socket_type(&socket).map_err(refusal)? == SocketType::STREAM;
        if is_stream { Ok(socket) } else { Err(refusal(Errno::AFNOSUPPORT)) }
    }
}
