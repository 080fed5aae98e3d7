//! Suspended calls that are not answered yet.

use super::notification::SuspendedCall;
use super::questions::AskedChange;

/// A suspended call, with the decisions about it so far.
#[derive(Debug, Clone)]
pub(super) struct PendingCall {
    pub call: SuspendedCall,
    /// Change that the user has allowed.
    pub allowed: Option<AskedChange>,
    /// False if the call has waited for locks long enough.
    pub takes_locks: bool,
}

impl PendingCall {
    pub(super) fn new(call: SuspendedCall) -> Self {
        Self { call, allowed: None, takes_locks: true }
    }
}

/// A call that has waited for a decision.
#[derive(Debug, Clone, Copy)]
pub(super) enum ResumedCall {
    Answered {
        question: u64,
        allows: bool,
    },
    /// The policy has changed.
    Undecided(SuspendedCall),
}
