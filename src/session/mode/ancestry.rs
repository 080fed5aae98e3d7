//! Position of a session in the tree of sub-agents, and its inherited ceilings.
//!
//! Ceilings are watched, not copied: a mode change of an ancestor affects all decisions below it immediately
//! (D40-D44).

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, watch};

use super::ceilings::add;
use crate::acp::SessionId;
use crate::mode::Mode;
use crate::permission::Ceilings;
use crate::session::tally::Tallies;
use crate::tool::SnapshotHandle;
use crate::workspace::{Changes, IntentLog};

const MAX_DEPTH: usize = 3;

/// Maximum number of running sub-agents in the tree of a client's session.
pub(crate) const MAX_RUNNING: usize = 16;

/// Changes of a call, with the number of its turn. Boxed, because a new channel has 32 places.
pub(crate) type TurnChanges = (u64, Box<Changes>);

#[derive(Debug, Clone)]
pub struct Ancestry {
    above: Vec<watch::Receiver<Arc<Ceilings>>>,
    /// Ceilings at the start of the reply that started this session. They stay if an ancestor's mode is
    /// loosened.
    started_under: Option<Arc<Ceilings>>,
    /// `None` for a session that a client opened.
    pub(crate) parent: Option<Parent>,
    pub(crate) slots: Arc<Semaphore>,
}

#[derive(Debug, Clone)]
pub(crate) struct Parent {
    pub session: SessionId,
    pub turn: u64,
    /// Changes of the sub-agent count as changes of `turn`.
    pub changes: mpsc::UnboundedSender<TurnChanges>,
    pub intents: Arc<dyn IntentLog>,
    pub snapshot: Option<SnapshotHandle>,
    /// The sub-agent spends from the budgets of the session that a client opened.
    pub tallies: Tallies,
}

impl Default for Ancestry {
    fn default() -> Self {
        Self {
            above: Vec::new(),
            started_under: None,
            parent: None,
            slots: Arc::new(Semaphore::new(MAX_RUNNING)),
        }
    }
}

impl Ancestry {
    /// Returns the ancestry of a sub-agent. `reply` includes `started_under`.
    pub(crate) fn below(
        &self,
        own: watch::Receiver<Arc<Ceilings>>,
        reply: Option<Arc<Ceilings>>,
        parent: Parent,
    ) -> Self {
        let mut above = self.above.clone();
        above.push(own);
        let started_under = reply.or_else(|| self.started_under.clone());
        Self { above, started_under, parent: Some(parent), slots: Arc::clone(&self.slots) }
    }

    fn depth(&self) -> usize {
        self.above.len()
    }

    pub(crate) fn may_go_deeper(&self) -> bool {
        self.depth() < MAX_DEPTH
    }

    /// Returns the inherited mode with the lowest access, if lower than that of `own`.
    pub(crate) fn tighter_than(&self, own: &Mode) -> Option<Arc<Mode>> {
        let above = self.above.iter().flat_map(|above| above.borrow().modes.clone());
        let started_under = self.started_under.iter().flat_map(|ceilings| ceilings.modes.clone());
        above.chain(started_under).filter(|mode| mode.access < own.access).min_by_key(|mode| mode.access)
    }

    /// Adds the inherited ceilings. An unknown mode removes all modes, which denies everything.
    pub(crate) fn add_to(&self, ceilings: &mut Ceilings) {
        for above in &self.above {
            add(ceilings, &above.borrow());
        }
        if let Some(started_under) = &self.started_under {
            add(ceilings, started_under);
        }
    }
}
