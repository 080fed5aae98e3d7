//! How the broker ends a suspended call, or why it cannot yet.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::notification::CallAnswer;
use super::questions::AskedChange;
use super::recorder::CopyRequest;
use crate::supervisor::protocol::RuleRefusal;

pub(super) enum CallOutcome {
    Answer(CallAnswer),
    /// The command gets a descriptor of its own.
    HandOver {
        file: OwnedFd,
        closes_on_exec: bool,
    },
    Postponed(Postponed),
    /// A rule denies the change.
    Refused(RuleRefusal),
}

impl CallOutcome {
    /// The broker has carried the call out.
    pub(super) const DONE: Self = Self::Answer(CallAnswer::Value(0));

    pub(super) fn hand_over(file: OwnedFd, flags: OFlags) -> Self {
        Self::HandOver { file, closes_on_exec: flags.contains(OFlags::CLOEXEC) }
    }
}

/// Reasons for a call to wait before the broker ends it.
pub(super) enum Postponed {
    /// Consent to the change.
    Ask(AskedChange),
    /// Copies of these files for the record.
    Copy(Vec<CopyRequest>),
    /// The end of what prevents it.
    Wait(WaitReason),
    /// A writer of the named pipe, which the command gets opened for reading.
    OpenPipe { pipe: OwnedFd, flags: OFlags },
    /// A server that accepts the connection of a UNIX socket.
    Connect { socket: OwnedFd, to: OwnedFd },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitReason {
    /// A named pipe has no reader.
    Reader,
    /// Another program has a lease of the file.
    Lease,
    /// Another writer has locked the file.
    Lock,
}

/// Why a call ends before its change is made.
pub(super) enum EarlyEnd {
    /// The call runs, and Landlock decides. It allows the command's own folders only. No call runs whose path another
    /// thread could turn into one that the policy allows.
    Continue,
    Error(Errno),
    Postponed(Postponed),
    /// A rule denies the change.
    Refused(RuleRefusal),
}

impl From<Errno> for EarlyEnd {
    fn from(error: Errno) -> Self {
        Self::Error(error)
    }
}

impl From<EarlyEnd> for CallOutcome {
    fn from(end: EarlyEnd) -> Self {
        match end {
            EarlyEnd::Continue => Self::Answer(CallAnswer::Continue),
            EarlyEnd::Error(error) => Self::Answer(CallAnswer::Error(error.raw_os_error())),
            EarlyEnd::Postponed(postponed) => Self::Postponed(postponed),
            EarlyEnd::Refused(refusal) => Self::Refused(refusal),
        }
    }
}
