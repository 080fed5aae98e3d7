//! Pipes and sockets that are read and written on the runtime's thread, without a thread of their own.
//!
//! `O_NONBLOCK` belongs to the open file, which other processes may share. So it is not set: a pipe is opened once
//! more, and each call of a socket says that it does not wait. Files and terminals cannot be used in this way.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketType};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::kernel;

#[derive(Debug)]
pub(super) struct NonblockingStream {
    descriptor: AsyncFd<OwnedFd>,
    kind: StreamKind,
}

#[derive(Debug, Clone, Copy)]
enum StreamKind {
    Pipe,
    Socket,
}

impl NonblockingStream {
    /// Returns `None` if the stream has to be read on a thread.
    pub(super) fn reading(stream: &impl AsFd) -> Option<Self> {
        Self::open(stream, OFlags::RDONLY, Interest::READABLE)
    }

    /// Returns `None` if the stream has to be written on a thread.
    pub(super) fn writing(stream: &impl AsFd) -> Option<Self> {
        Self::open(stream, OFlags::WRONLY, Interest::WRITABLE)
    }

    fn open(stream: &impl AsFd, access: OFlags, interest: Interest) -> Option<Self> {
        let (descriptor, kind) = match FileType::from_raw_mode(rustix::fs::fstat(stream).ok()?.st_mode) {
            FileType::Fifo => (open_again(stream, access).ok()?, StreamKind::Pipe),
            FileType::Socket if rustix::net::sockopt::socket_type(stream) == Ok(SocketType::STREAM) => {
                (stream.as_fd().try_clone_to_owned().ok()?, StreamKind::Socket)
            }
            _ => return None,
        };
        let descriptor = kernel::watch(descriptor, interest).ok()?;
        Some(Self { descriptor, kind })
    }

    /// Returns 0 at the end of the input.
    pub(super) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = |descriptor: &OwnedFd| match self.kind {
            StreamKind::Pipe => rustix::io::read(descriptor, &mut *buffer),
            StreamKind::Socket => {
                rustix::net::recv(descriptor, &mut *buffer, RecvFlags::DONTWAIT).map(|(length, _)| length)
            }
        };
        self.when_ready(Interest::READABLE, read).await
    }

    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let write = |descriptor: &OwnedFd| match self.kind {
                StreamKind::Pipe => rustix::io::write(descriptor, bytes),
                StreamKind::Socket => {
                    rustix::net::send(descriptor, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
                }
            };
            let written = self.when_ready(Interest::WRITABLE, write).await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    async fn when_ready(
        &self,
        interest: Interest,
        mut call: impl FnMut(&OwnedFd) -> rustix::io::Result<usize>,
    ) -> io::Result<usize> {
        let call = |descriptor: &OwnedFd| loop {
            match call(descriptor) {
                Err(Errno::INTR) => {}
                outcome => return outcome.map_err(io::Error::from),
            }
        };
        self.descriptor.async_io(interest, call).await
    }
}

/// Opens the same end of the pipe as another open file. Fails for a pipe of another user.
fn open_again(stream: &impl AsFd, access: OFlags) -> rustix::io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", stream.as_fd().as_raw_fd());
    rustix::fs::open(path, access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// More than a pipe or a socket holds.
    const LENGTH: usize = 3_000_000;

    async fn passes(from: impl AsFd, to: impl AsFd) {
        let reading = NonblockingStream::reading(&from).unwrap();
        let writing = NonblockingStream::writing(&to).unwrap();
        drop((from, to));
        let sent: Vec<u8> = (0..LENGTH).map(|number| number.to_be_bytes()[7]).collect();
        let write = async {
            writing.write_all(&sent).await.unwrap();
            drop(writing);
        };
        let read = async {
            let (mut received, mut buffer) = (Vec::new(), [0; 10_000]);
            loop {
                match reading.read(&mut buffer).await.unwrap() {
                    0 => return received,
                    length => received.extend_from_slice(&buffer[..length]),
                }
            }
        };
        let (received, ()) = tokio::join!(read, write);
        assert!(received == sent, "{} of {LENGTH} bytes", received.len());
    }

    #[tokio::test]
    async fn pipe_passes_more_than_it_holds() {
        let (from, to) = io::pipe().unwrap();
        passes(from, to).await;
    }

    #[tokio::test]
    async fn socket_passes_more_than_it_holds() {
        let (from, to) = UnixStream::pair().unwrap();
        passes(from, to).await;
    }

    #[tokio::test]
    async fn other_owners_of_the_stream_still_block() {
        let (mut from, mut to) = io::pipe().unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        let _streams = [
            NonblockingStream::reading(&from).unwrap(),
            NonblockingStream::writing(&to).unwrap(),
            NonblockingStream::reading(&near).unwrap(),
            NonblockingStream::writing(&far).unwrap(),
        ];
        for descriptor in [from.as_fd(), to.as_fd(), near.as_fd(), far.as_fd()] {
            assert!(!rustix::fs::fcntl_getfl(descriptor).unwrap().contains(OFlags::NONBLOCK));
        }
        to.write_all(b"x").unwrap();
        from.read_exact(&mut [0]).unwrap();
    }

    #[tokio::test]
    async fn reader_that_is_gone_is_an_error() {
        let (from, to) = io::pipe().unwrap();
        let writing = NonblockingStream::writing(&to).unwrap();
        drop(from);
        assert_eq!(writing.write_all(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let (near, far) = UnixStream::pair().unwrap();
        let writing = NonblockingStream::writing(&far).unwrap();
        drop(near);
        assert_eq!(writing.write_all(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn file_needs_a_thread() {
        let file = tempfile::tempfile().unwrap();
        assert!(NonblockingStream::reading(&file).is_none());
        assert!(NonblockingStream::writing(&file).is_none());
    }
}
