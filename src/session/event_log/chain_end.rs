//! The end of a session's hash chain: what was added, told to the client, and signed. Writes no row.

use std::sync::Arc;

use crate::acp::SessionId;
use crate::chain::{Head, Link};
use crate::signing::{SignedHead, SigningKey};
use crate::store::entry::ChainEntry;

pub(super) struct ChainEnd {
    head: Head,
    /// Length of the chain that was last reported to the client.
    acked: u64,
    /// Length of the chain that was signed last.
    signed: u64,
    /// `None` without a key.
    signer: Option<Arc<SigningKey>>,
}

impl ChainEnd {
    pub(super) fn new(session: &SessionId, signer: Option<Arc<SigningKey>>) -> Self {
        Self { head: Head::start(&session.0), acked: 0, signed: 0, signer }
    }

    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    pub(super) fn next(&self, entry: &ChainEntry) -> Link {
        self.head.next(entry.to_body())
    }

    pub(super) fn add(&mut self, entry: &ChainEntry) -> Link {
        let link = self.next(entry);
        self.follow(&link);
        link
    }

    pub(super) fn follow(&mut self, link: &Link) {
        self.head.follow(link);
    }

    /// Continues the chain of a stored session. The client knows its head.
    pub(super) fn resume(&mut self, head: Head) {
        (self.acked, self.head) = (head.length, head);
    }

    pub(super) fn is_acked(&self) -> bool {
        self.acked == self.head.length
    }

    /// Returns the head if it is new to the client.
    pub(super) fn unacked(&mut self) -> Option<Head> {
        let acked = std::mem::replace(&mut self.acked, self.head.length);
        (acked != self.head.length).then(|| self.head.clone())
    }

    /// Signs the head, unless it was signed before. `now` is in milliseconds since 1970.
    pub(super) fn sign(&mut self, session: &SessionId, now: impl FnOnce() -> i64) -> Option<SignedHead> {
        let signer = self.signer.as_ref()?;
        let before = std::mem::replace(&mut self.signed, self.head.length);
        (before != self.head.length).then(|| signer.sign_head(&session.0, &self.head, now()))
    }
}
