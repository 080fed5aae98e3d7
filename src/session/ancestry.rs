//! What a session has from those above it: their ceilings, as they are now, and its place in the tree.
//!
//! Ceilings are watched, not copied: when an ancestor's mode changes, every session below decides by it from that moment on,
//! before anybody has told it (D40-D44).

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, watch};

use super::actor::Change;
use super::ceilings::add;
use crate::acp::SessionId;
use crate::mode::Mode;
use crate::permission::Ceilings;
use crate::tool::SnapshotHandle;
use crate::workspace::IntentLog;

/// Sessions that may stand below one another.
const MAX_DEPTH: usize = 3;

/// Sessions that may be at work below one that a client opened.
pub(super) const MAX_AT_WORK: usize = 16;

/// Where a session stands. That of one that a client opened has nothing above it.
#[derive(Debug, Clone)]
pub struct Ancestry {
    /// What each session above holds those below it to, the outermost first.
    above: Vec<watch::Receiver<Arc<Ceilings>>>,
    /// What held when the reply began whose call started it: it stays, whatever is loosened above.
    started_under: Option<Arc<Ceilings>>,
    /// Who began it; none: a client.
    pub(super) parent: Option<Parent>,
    /// Places for sessions at work in the whole tree.
    pub(super) slots: Arc<Semaphore>,
}

/// The call for which a session works.
#[derive(Debug, Clone)]
pub(super) struct Parent {
    /// The session that began it.
    pub session: SessionId,
    /// In this turn of it.
    pub turn: u64,
    /// Where what it changes is told: it is what that turn has changed.
    pub changes: mpsc::UnboundedSender<Change>,
    /// Where what it is about to change is recorded: with that turn, too.
    pub intents: Arc<dyn IntentLog>,
    /// By which what commands change is told; none: it is not.
    pub snapshot: Option<SnapshotHandle>,
}

impl Default for Ancestry {
    fn default() -> Self {
        Self {
            above: Vec::new(),
            started_under: None,
            parent: None,
            slots: Arc::new(Semaphore::new(MAX_AT_WORK)),
        }
    }
}

impl Ancestry {
    /// That of a session below this one. `reply` is what held when the reply began whose call starts it, and has in it what
    /// this session was started under.
    pub(super) fn below(
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

    /// How many sessions stand above.
    fn depth(&self) -> usize {
        self.above.len()
    }

    /// Whether there may be sessions below.
    pub(super) fn may_go_deeper(&self) -> bool {
        self.depth() < MAX_DEPTH
    }

    /// The mode above that lets the least be touched, if that is less than this one does.
    pub(super) fn tighter_than(&self, own: &Mode) -> Option<Arc<Mode>> {
        let above = self.above.iter().flat_map(|above| above.borrow().modes.clone());
        let started_under = self.started_under.iter().flat_map(|ceilings| ceilings.modes.clone());
        above.chain(started_under).filter(|mode| mode.access < own.access).min_by_key(|mode| mode.access)
    }

    /// Adds what holds above, and what held when it was started. Where an ancestor's mode is not known there is no mode, and
    /// nothing is allowed.
    pub(super) fn add_to(&self, ceilings: &mut Ceilings) {
        for above in &self.above {
            add(ceilings, &above.borrow());
        }
        if let Some(started_under) = &self.started_under {
            add(ceilings, started_under);
        }
    }
}
