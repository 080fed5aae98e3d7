//! The amounts that a session and its sub-agents have spent together. Each of them adds to the same counters, so that
//! a budget is one for the whole tree.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::acp::SessionId;
use crate::budget::Spent;
use crate::model::ModelId;

#[derive(Debug, Default)]
pub(crate) struct Tally {
    tokens: AtomicU64,
    micro_dollars: AtomicU64,
    ms: AtomicU64,
}

impl Tally {
    pub(crate) fn add(&self, spent: Spent) {
        self.tokens.fetch_add(spent.tokens, Ordering::Relaxed);
        self.micro_dollars.fetch_add(spent.micro_dollars, Ordering::Relaxed);
        self.ms.fetch_add(spent.ms, Ordering::Relaxed);
    }

    pub(crate) fn spent(&self) -> Spent {
        Spent {
            tokens: self.tokens.load(Ordering::Relaxed),
            micro_dollars: self.micro_dollars.load(Ordering::Relaxed),
            ms: self.ms.load(Ordering::Relaxed),
        }
    }
}

/// The counters of a tree of sessions. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Tallies {
    /// The session that a client opened.
    pub(crate) root: SessionId,
    pub(crate) session: Arc<Tally>,
    /// Of the running turn of that session, or else of its last one. A background agent keeps that of the turn that
    /// started it.
    pub(crate) turn: Arc<Tally>,
    /// The first model of the tree without a known price.
    pub(crate) unpriced: Arc<OnceLock<ModelId>>,
}

impl Tallies {
    pub(crate) fn new(root: SessionId) -> Self {
        Self { root, session: Arc::default(), turn: Arc::default(), unpriced: Arc::default() }
    }
}
