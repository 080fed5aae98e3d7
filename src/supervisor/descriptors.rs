//! Passes descriptors over a socket: to the fork server those of a new supervisor, and to the supervisor the command's
//! stdin.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Maximum number of descriptors in a message.
pub const MAX: usize = 4;

/// The descriptors of a supervisor: one message for each command, in the order of the fields.
pub struct SupervisorDescriptors<Fd> {
    /// To Modegate; its end kills everything.
    pub connection: Fd,
    /// The command's working directory.
    pub folder: Fd,
    pub output: Fd,
    pub errors: Fd,
}

impl SupervisorDescriptors<BorrowedFd<'_>> {
    pub fn all(&self) -> [BorrowedFd<'_>; MAX] {
        [self.connection, self.folder, self.output, self.errors]
    }
}

pub fn send(to: impl AsFd, byte: u8, handed: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !handed.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(handed));
    }
    sendmsg(to, &[IoSlice::new(&[byte])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Returns the number of received bytes, and the descriptors beside them.
pub fn receive(from: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(bytes)];
    let count = recvmsg(from, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut all = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(handed) = message {
            all.extend(handed);
        }
    }
    Ok((count, all))
}
