//! The set of active sessions. The agent's only lock, never kept across an await.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::acp::{AuthMethod, SessionId, SessionModeId};
use crate::client::ClientCapabilities;
use crate::error::AgentError;
use crate::session::{OptionalUpdates, SessionHandle};

#[derive(Default)]
pub(super) struct Registry {
    active: HashMap<SessionId, SessionHandle>,
    moving: HashSet<SessionId>,
    /// Stricter modes that could not be stored, by closed session.
    unrecorded_modes: HashMap<SessionId, Vec<SessionModeId>>,
    pub(super) capabilities: ClientCapabilities,
    pub(super) updates: OptionalUpdates,
    /// Offered by the wrapped agent.
    pub(super) wrapped_methods: Vec<AuthMethod>,
    /// Advertised to a client of version 1.
    pub(super) offers_logout: bool,
    /// After a logout, until the next login.
    pub(super) is_logged_out: bool,
}

pub(super) type SharedRegistry = Arc<Mutex<Registry>>;

/// Ignores poisoning: a panic elsewhere cannot corrupt the set.
pub(super) fn lock(registry: &Mutex<Registry>) -> MutexGuard<'_, Registry> {
    registry.lock().unwrap_or_else(PoisonError::into_inner)
}

fn in_transit() -> AgentError {
    AgentError::InvalidRequest("the session is being opened or closed: wait for that answer".into())
}

/// Exclusive right to open or close one session, until dropped.
pub(super) struct Transit {
    registry: SharedRegistry,
    id: SessionId,
    is_new: bool,
}

impl Registry {
    pub(super) fn add(&mut self, id: SessionId, handle: SessionHandle) {
        self.active.insert(id, handle);
    }

    pub(super) fn remove(&mut self, id: &SessionId) -> Option<SessionHandle> {
        self.active.remove(id)
    }

    /// Remembers the modes that limit a closed session when reopened. An empty list removes the entry.
    pub(super) fn keep_unrecorded_modes(&mut self, id: SessionId, unrecorded_modes: Vec<SessionModeId>) {
        if unrecorded_modes.is_empty() {
            self.unrecorded_modes.remove(&id);
        } else {
            self.unrecorded_modes.insert(id, unrecorded_modes);
        }
    }

    pub(super) fn unrecorded_modes(&self, id: &SessionId) -> Vec<SessionModeId> {
        self.unrecorded_modes.get(id).cloned().unwrap_or_default()
    }

    pub(super) fn clear(&mut self) -> Vec<SessionHandle> {
        self.active.drain().map(|(_, handle)| handle).collect()
    }

    pub(super) fn get(&self, id: &SessionId) -> Option<&SessionHandle> {
        self.active.get(id)
    }

    /// The error for a request to a session that [`Self::get`] does not have.
    pub(super) fn missing(&self, id: &SessionId) -> AgentError {
        if self.moving.contains(id) { in_transit() } else { AgentError::UnknownSession(id.clone()) }
    }

    pub(super) fn ids(&self) -> Vec<SessionId> {
        self.active.keys().cloned().collect()
    }
}

impl Transit {
    pub(super) fn begin(registry: &SharedRegistry, id: &SessionId) -> Result<Self, AgentError> {
        let mut locked = lock(registry);
        if !locked.moving.insert(id.clone()) {
            return Err(in_transit());
        }
        let is_new = !locked.active.contains_key(id);
        Ok(Self { registry: Arc::clone(registry), id: id.clone(), is_new })
    }

    pub(super) fn id(&self) -> &SessionId {
        &self.id
    }

    /// False if the session was open before.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Removes the session if it died or could not be loaded.
    pub(super) fn unless_lost<T>(self, outcome: Result<T, AgentError>) -> Result<T, AgentError> {
        let is_lost = match &outcome {
            Err(AgentError::SessionDied) => true,
            Err(AgentError::Unreadable) => self.is_new,
            _ => false,
        };
        if is_lost {
            lock(&self.registry).remove(&self.id);
        }
        outcome
    }
}

impl Drop for Transit {
    fn drop(&mut self) {
        lock(&self.registry).moving.remove(&self.id);
    }
}
