//! Folders and network of a brokered agent. Plain data.

use std::path::PathBuf;

use crate::sandbox::host::AllowedHosts;
use crate::sandbox::{BrokerPolicy, Egress};

/// Folders of a brokered agent.
#[derive(Debug, Clone, Copy, Default)]
pub struct AgentFolders<'a> {
    /// The session's.
    pub roots: &'a [PathBuf],
    /// Written under every policy. They are absolute or begin with `~/`, as [`Self::write`] do.
    pub state: &'a [PathBuf],
    /// Changed as the policy says, and not recorded.
    pub write: &'a [PathBuf],
    /// The agent changes no temporary folders, and no folder of shared memory, which is one of them.
    pub leaves_temporary: bool,
}

/// Network of a brokered agent.
#[derive(Debug, Clone)]
pub struct AgentNetwork {
    /// `None` if it is open under every policy.
    pub hosts: Option<AllowedHosts>,
    /// Until the first change of the policy.
    pub first: Egress,
    /// UNIX sockets that it may connect to while it may change something.
    pub sockets: Vec<PathBuf>,
}

impl<'a> AgentFolders<'a> {
    pub fn of(roots: &'a [PathBuf], state: &'a [PathBuf]) -> Self {
        Self { roots, state, ..Self::default() }
    }
}

impl AgentNetwork {
    pub const OPEN: Self = Self { hosts: None, first: Egress::Open, sockets: Vec::new() };

    /// Limited to these hosts where the policy allows no changes.
    pub fn limited(hosts: AllowedHosts, policy: BrokerPolicy) -> Self {
        Self { hosts: Some(hosts), first: Egress::under(policy), sockets: Vec::new() }
    }
}
