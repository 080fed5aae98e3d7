//! Lists, closes and deletes stored sessions.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use super::open::MODE_META;
use super::registry::Transit;
use super::{Agent, LoadedPolicy, reading};
use crate::acp::{
    CloseSessionRequest, CloseSessionResponse, DeleteSessionRequest, DeleteSessionResponse,
    ListSessionsRequest, ListSessionsResponse, Meta, SessionId, SessionInfo,
};
use crate::error::AgentError;
use crate::ids;
use crate::mode::Modes;
use crate::platform::files::real_path;
use crate::session::{Closed, head_meta};
use crate::store::sessions::{ListedRuns, ListedSession, OpenSessionError, SessionQuery};

const PAGE: usize = 50;

const NOTICE_META: &str = "modegate/notice";

impl Agent {
    /// Returns a page of sessions, the most recent first (`session/list`, S9). Sessions without events, such as the
    /// one in which the client asks, are left out.
    pub async fn list_sessions(
        &self,
        request: &ListSessionsRequest,
    ) -> Result<ListSessionsResponse, AgentError> {
        if let Some(cwd) = request.cwd.as_ref().filter(|cwd| !cwd.is_absolute()) {
            let message = format!("cwd is not absolute: {}", cwd.display());
            return Err(AgentError::invalid_params(message, json!({ "cwd": "an absolute path" })));
        }
        let after = request.cursor.as_deref().map(read_cursor).transpose()?;
        let cwd = request.cwd.as_ref().map(|cwd| real_path(cwd).unwrap_or_else(|_| cwd.clone()));
        let agent = self.host.wrapped.as_ref().map(|agent| agent.id.clone());
        let listing =
            SessionQuery { cwd, agent, after, limit: PAGE + 1, search: None, runs: ListedRuns::LeftOut };
        let mut sessions = self.context.store.sessions(listing).await.map_err(|_| AgentError::Unreadable)?;
        let more = sessions.len() > PAGE;
        sessions.truncate(PAGE);
        let next = sessions.last().filter(|_| more).map(|session| cursor(session.updated_at, &session.id));
        let modes = self.modes_of(&sessions).await;
        let infos = sessions.iter().zip(&modes).map(|(session, mode)| info(session, mode.as_deref()));
        let response = ListSessionsResponse::new(infos.collect()).next_cursor(next);
        Ok(response.meta(self.context.store.substituted().map(notice_meta)))
    }

    /// Returns the modes in which the sessions would open (D10). Only modes that are not built in need files,
    /// which are read once per folder, off the runtime's thread. After a timeout their modes are left out.
    async fn modes_of(&self, sessions: &[ListedSession]) -> Vec<Option<String>> {
        let built_in = sessions.iter().map(|session| {
            let mode = session.mode.as_deref()?;
            Modes::built_in().resolve(mode).ok().map(|mode| mode.id.clone())
        });
        let mut modes: Vec<Option<String>> = built_in.collect();
        let others = sessions.iter().zip(&modes).filter(|(_, mode)| mode.is_none());
        let others: Vec<_> = others.map(|(session, _)| (session.cwd.clone(), session.mode.clone())).collect();
        if others.is_empty() {
            return modes;
        }
        let (policy_of, first) = (Arc::clone(&self.host.policy), self.first.mode.clone());
        let other_modes = reading("the folders of the sessions", move || {
            let mut policies: HashMap<PathBuf, LoadedPolicy> = HashMap::new();
            let modes = others.into_iter().map(|(folder, stored)| {
                let policy = policies
                    .entry(folder)
                    .or_insert_with_key(|folder| policy_of(std::slice::from_ref(folder)));
                let defaults = policy.defaults(first.as_ref());
                policy.modes.effective(stored.as_deref(), defaults).mode.id.clone()
            });
            modes.collect::<Vec<String>>()
        });
        match other_modes.await {
            Ok(found) => {
                let missing = modes.iter_mut().filter(|mode| mode.is_none());
                missing.zip(found).for_each(|(mode, found)| *mode = Some(found));
            }
            Err(error) => tracing::warn!(%error, "the list of sessions leaves modes out"),
        }
        modes
    }

    /// Closes an active session; it stays in the store (`session/close`, S8).
    pub async fn close_session(
        &self,
        request: &CloseSessionRequest,
    ) -> Result<CloseSessionResponse, AgentError> {
        let id = &request.session_id;
        let _transit = Transit::begin(&self.registry, id)?;
        let handle = self.registry().remove(id).ok_or_else(|| AgentError::UnknownSession(id.clone()))?;
        let Some(Closed { head, unrecorded_modes, .. }) = handle.close().await else {
            return Ok(CloseSessionResponse::new());
        };
        self.registry().keep_unrecorded_modes(id.clone(), unrecorded_modes);
        Ok(CloseSessionResponse::new().meta(head_meta(&head)))
    }

    /// Closes and deletes a session (`session/delete`, S11). Deleting an unknown session succeeds.
    pub async fn delete_session(
        &self,
        request: &DeleteSessionRequest,
    ) -> Result<DeleteSessionResponse, AgentError> {
        let id = &request.session_id;
        let _transit = Transit::begin(&self.registry, id)?;
        let active = self.registry().remove(id);
        if let Some(handle) = active
            && let Some(Closed { unrecorded_modes, .. }) = handle.close().await
        {
            self.registry().keep_unrecorded_modes(id.clone(), unrecorded_modes);
        }
        match self.context.store.delete_session(id).await {
            Ok(()) => {
                self.registry().keep_unrecorded_modes(id.clone(), Vec::new());
                Ok(DeleteSessionResponse::new())
            }
            Err(error @ (OpenSessionError::Busy | OpenSessionError::Below(_))) => {
                Err(self.not_open(id, &error))
            }
            Err(OpenSessionError::Unknown | OpenSessionError::Store(_)) => Err(AgentError::Unrecorded),
        }
    }
}

/// Explains an empty list while the store is a substitute.
fn notice_meta(reason: &str) -> Meta {
    Meta::from_iter([(NOTICE_META.to_owned(), json!(reason))])
}

fn info(session: &ListedSession, mode: Option<&str>) -> SessionInfo {
    let mode = mode.map(|mode| Meta::from_iter([(MODE_META.to_owned(), json!(mode))]));
    SessionInfo::new(session.id.clone(), session.cwd.clone())
        .additional_directories(session.directories.clone())
        .title(session.title.clone())
        .updated_at(ids::time_iso(session.updated_at))
        .meta(mode)
}

fn cursor(updated_at: i64, id: &SessionId) -> String {
    format!("{updated_at}/{id}")
}

fn read_cursor(cursor: &str) -> Result<(i64, SessionId), AgentError> {
    let parts = cursor.split_once('/').filter(|(_, id)| !id.is_empty());
    parts.and_then(|(at, id)| Some((at.parse().ok()?, SessionId::new(id)))).ok_or_else(|| {
        let valid = json!({ "cursor": "the nextCursor of an earlier answer" });
        AgentError::invalid_params("the cursor is invalid", valid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_parses_and_invalid_cursors_are_rejected() {
        let id = SessionId::new("sess_x");
        assert_eq!(read_cursor(&cursor(12, &id)).ok(), Some((12, id)));
        for bad in ["", "zz", "12", "12/", "x/sess_x", "é"] {
            assert_eq!(read_cursor(bad).err().map(|error| error.code()), Some(-32602), "{bad}");
        }
    }
}
