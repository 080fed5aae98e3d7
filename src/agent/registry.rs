//! Which sessions are active, and which are just being opened or closed. The only lock of the agent, never held across an
//! await.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::acp::{SessionId, SessionModeId};
use crate::client::ClientCapabilities;
use crate::error::AgentError;
use crate::session::SessionHandle;

/// The sessions of an agent.
#[derive(Default)]
pub(super) struct Registry {
    active: HashMap<SessionId, SessionHandle>,
    /// Those that a request is opening or closing.
    moving: HashSet<SessionId>,
    /// Tighter modes of sessions that were closed, which could not be recorded.
    unrecorded_modes: HashMap<SessionId, Vec<SessionModeId>>,
    /// What the client can do, as its last `initialize` said.
    pub(super) capabilities: ClientCapabilities,
}

/// The registry as its agent and those who move a session share it.
pub(super) type SharedRegistry = Arc<Mutex<Registry>>;

/// A panic elsewhere does not make the list of sessions wrong.
pub(super) fn lock(registry: &Mutex<Registry>) -> MutexGuard<'_, Registry> {
    registry.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leave to open or close one session, until it is dropped.
pub(super) struct Transit {
    registry: SharedRegistry,
    id: SessionId,
    /// The session was not active before.
    is_new: bool,
}

impl Registry {
    /// A session is active from now on.
    pub fn add(&mut self, id: SessionId, handle: SessionHandle) {
        self.active.insert(id, handle);
    }

    /// A session is no longer active.
    pub fn remove(&mut self, id: &SessionId) -> Option<SessionHandle> {
        self.active.remove(id)
    }

    /// What a session that was closed is held to when it is opened again.
    pub fn keep_unrecorded_modes(&mut self, id: SessionId, unrecorded_modes: Vec<SessionModeId>) {
        if unrecorded_modes.is_empty() {
            self.unrecorded_modes.remove(&id);
        } else {
            self.unrecorded_modes.insert(id, unrecorded_modes);
        }
    }

    /// What a session was held to when it was closed here.
    pub fn unrecorded_modes(&self, id: &SessionId) -> Vec<SessionModeId> {
        self.unrecorded_modes.get(id).cloned().unwrap_or_default()
    }

    /// None is active any more.
    pub fn clear(&mut self) -> Vec<SessionHandle> {
        self.active.drain().map(|(_, handle)| handle).collect()
    }

    /// A session that is active.
    pub fn get(&self, id: &SessionId) -> Option<&SessionHandle> {
        self.active.get(id)
    }

    /// Those that are active.
    pub fn ids(&self) -> Vec<SessionId> {
        self.active.keys().cloned().collect()
    }
}

impl Transit {
    /// Takes note that a session is being opened or closed.
    ///
    /// # Errors
    /// Another request is at it.
    pub fn begin(registry: &SharedRegistry, id: &SessionId) -> Result<Self, AgentError> {
        let mut locked = lock(registry);
        if !locked.moving.insert(id.clone()) {
            let text = "the session is just being opened or closed: wait for that answer";
            return Err(AgentError::InvalidRequest(text.into()));
        }
        let is_new = !locked.active.contains_key(id);
        Ok(Self { registry: Arc::clone(registry), id: id.clone(), is_new })
    }

    /// Passes an outcome on; a session that could not be taken up is not active.
    pub fn unless_lost<T>(self, outcome: Result<T, AgentError>) -> Result<T, AgentError> {
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
