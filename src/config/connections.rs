//! How providers and MCP servers are reached: the user's settings and the environment's variables.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use super::commands;
use super::environment::Environment;
use super::user_file::NetworkSettings;
use crate::http::Http;
use crate::model::router::Router;

/// Waits of a run without an editor for one reply of a busy provider, unless the user sets another time.
const BUSY_WAIT: Duration = Duration::from_mins(10);

pub(super) struct Connections {
    http: Arc<Http>,
    busy_wait: Duration,
    limits_busy_waits: bool,
}

impl Connections {
    pub(super) fn new(settings: &NetworkSettings, environment: &Environment) -> anyhow::Result<Self> {
        let home = environment.user.home.as_deref();
        let ca_file = settings.ca_file.as_ref().map(|path| commands::absolute(path, home));
        let ca_file = ca_file.transpose().context("network.ca_file")?;
        let busy_wait = settings.busy_wait_s.map_or(BUSY_WAIT, Duration::from_secs);
        let http = Arc::new(Http::new(environment.connections(ca_file)));
        Ok(Self { http, busy_wait, limits_busy_waits: false })
    }

    /// For a run without an editor, in which no person cancels the waits.
    pub(super) fn limit_busy_waits(&mut self) {
        self.limits_busy_waits = true;
    }

    pub(super) fn http(&self) -> Arc<Http> {
        Arc::clone(&self.http)
    }

    pub(super) fn apply(&self, router: Router) -> Router {
        router.with_http(self.http()).with_busy_limit(self.limits_busy_waits.then_some(self.busy_wait))
    }
}
