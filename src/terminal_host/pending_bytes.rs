//! Bytes on their way from one terminal to another.

use std::os::fd::AsFd;

use rustix::io::Errno;

/// Most bytes that are read before the other side takes some.
const CAPACITY: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct PendingBytes {
    bytes: Vec<u8>,
    /// Start of the bytes that are not written yet.
    start: usize,
}

impl PendingBytes {
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() - self.start >= CAPACITY
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    #[cfg(test)]
    pub(super) fn take(&mut self) -> Vec<u8> {
        let start = std::mem::take(&mut self.start);
        std::mem::take(&mut self.bytes).split_off(start)
    }

    /// Writes until the other side takes no more now. Returns an error if it never will again.
    pub(super) fn write_to(&mut self, to: impl AsFd) -> Result<(), Errno> {
        while !self.is_empty() {
            match rustix::io::write(&to, &self.bytes[self.start..]) {
                Ok(count) => self.start += count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.start = 0;
        Ok(())
    }
}
