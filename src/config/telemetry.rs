//! Telemetry of a run: combines its settings, and starts its export.

use std::sync::Arc;

use anyhow::bail;
use secrecy::SecretString;

use super::environment::Environment;
use crate::http::Http;
use crate::otlp::Telemetry;
use crate::otlp::settings::{
    self, Destination, Signal, TelemetrySettings, TelemetrySources, TelemetryVariables,
};
use crate::process::secrets::Secrets;
use crate::session::{Recorded, Traced};
use crate::store::Store;

/// Settings of a run's telemetry, checked. Off by default.
#[derive(Default)]
pub(super) struct TelemetryConfig {
    destination: Option<Destination>,
    /// Values that are replaced in contents.
    secrets: Vec<SecretString>,
}

impl TelemetryConfig {
    /// Fails if a setting of a file is invalid, or if the administrator requires telemetry that cannot be sent. Variables
    /// may be meant for other programs, so an invalid one only switches telemetry off, which the log says.
    pub(super) fn new(
        policy: Option<&TelemetrySettings>,
        user: Option<&TelemetrySettings>,
        environment: &Environment,
    ) -> anyhow::Result<Self> {
        let variables = &environment.telemetry;
        let sources = TelemetrySources { policy, user, variables };
        let destination = match settings::resolve(sources) {
            Ok(destination) => destination,
            Err(reason) => {
                let is_required = policy.is_some_and(|policy| policy.required == Some(true));
                let none = TelemetryVariables::default();
                if is_required || settings::resolve(TelemetrySources { variables: &none, ..sources }).is_err()
                {
                    bail!("telemetry: {reason}");
                }
                tracing::error!("telemetry is off: {reason}");
                None
            }
        };
        let Some(destination) = destination else { return Ok(Self::default()) };
        let headers = destination.endpoints.values().flat_map(|endpoint| endpoint.headers.values().cloned());
        let keys = environment.keys().map(|(_, key)| key);
        let secrets = headers.chain(variables.secrets()).chain(keys).collect();
        Ok(Self { destination: Some(destination), secrets })
    }

    /// Adds values that are replaced in contents.
    #[must_use]
    pub(super) fn with_secrets(mut self, secrets: impl Iterator<Item = SecretString>) -> Self {
        self.secrets.extend(secrets);
        self
    }

    /// Starts the export of a store. Returns `None` if telemetry is off, and for a store in memory unless the export is
    /// required.
    pub(super) fn start(self, store: &Store, http: &Arc<Http>) -> Option<Telemetry> {
        let destination = self.destination?;
        if store.is_in_memory() && !destination.is_required {
            return None;
        }
        let secrets = Secrets::new(self.secrets.iter());
        Some(Telemetry::start(destination, store.clone(), http, secrets))
    }
}

/// What the sessions of a run record for the export.
pub(super) fn traced(telemetry: &Telemetry) -> Traced {
    let records = Recorded {
        spans: telemetry.sends(Signal::Traces) || telemetry.sends(Signal::Metrics),
        audit_log: telemetry.sends(Signal::Logs),
        contents: telemetry.has_contents(),
    };
    Traced { bell: telemetry.bell(), records, above: None }
}
