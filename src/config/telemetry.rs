//! Telemetry of a run: combines its settings, and starts its export.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use secrecy::SecretString;

use super::doctor_checks::CheckState;
use super::environment::Environment;
use super::managed_file;
use crate::http::Http;
use crate::otlp::telemetry_settings::{
    self, Signal, SignalEndpoint, TelemetryDestination, TelemetrySettings, TelemetrySources,
    TelemetryVariables,
};
use crate::otlp::{self, Telemetry};
use crate::process::secrets::Secrets;
use crate::session::{Traced, TracedParts};
use crate::store::outbox::OutboxCounts;
use crate::store::{Store, StoreLocation};

/// Settings of a run's telemetry, checked. Off by default.
#[derive(Default)]
pub(super) struct TelemetryConfig {
    destination: Option<TelemetryDestination>,
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
        let destination = match telemetry_settings::resolve(sources) {
            Ok(destination) => destination,
            Err(reason) => {
                let is_required = policy.is_some_and(|policy| policy.required == Some(true));
                let none = TelemetryVariables::default();
                if is_required
                    || telemetry_settings::resolve(TelemetrySources { variables: &none, ..sources }).is_err()
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

    pub(super) fn is_required(&self) -> bool {
        self.destination.as_ref().is_some_and(|destination| destination.is_required)
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

/// The parts of sessions to record for the export.
pub(super) fn traced(telemetry: &Telemetry) -> Traced {
    let records = TracedParts {
        spans: telemetry.sends(Signal::Traces) || telemetry.sends(Signal::Metrics),
        audit_log: telemetry.sends(Signal::Logs),
        contents: telemetry.has_contents(),
    };
    Traced { bell: telemetry.bell(), records, above: None }
}

/// The check for `modegate doctor`. `store` is the file of the store. Security: names hosts, never headers.
pub(super) async fn check(
    user: Option<&TelemetrySettings>,
    environment: &Environment,
    store: Option<PathBuf>,
    http: &Arc<Http>,
) -> CheckState {
    let policy = managed_file::read();
    let sources = TelemetrySources { policy: policy.telemetry(), user, variables: &environment.telemetry };
    let destination = match telemetry_settings::resolve(sources) {
        Ok(Some(destination)) => destination,
        Ok(None) => return CheckState::Note("off; OTEL_EXPORTER_OTLP_ENDPOINT names a collector".into()),
        Err(reason) => {
            return CheckState::wrong(reason, "correct the variable or `telemetry` in config.yaml");
        }
    };
    let waiting = waiting(store).await;
    let hosts: BTreeSet<&str> = destination.endpoints.values().map(SignalEndpoint::host).collect();
    let hosts = hosts.into_iter().collect::<Vec<_>>().join(", ");
    match otlp::probe(&destination, http).await {
        Ok(()) => CheckState::Fine(format!("{hosts} answers; {waiting}")),
        Err(reason) => CheckState::wrong(
            format!("{hosts} takes no telemetry: {reason}; {waiting}"),
            "check the address, the headers and the collector; what waits is sent once it answers",
        ),
    }
}

/// Says how many rows wait.
async fn waiting(store: Option<PathBuf>) -> String {
    let Some(path) = store.filter(|path| path.exists()) else { return "nothing waits".into() };
    let counts = match Store::open_now(&StoreLocation::Reading(path)) {
        Ok(store) => store.outbox_counts().await,
        Err(error) => Err(error),
    };
    match counts {
        Ok(OutboxCounts { spans: 0, links: 0 }) => "nothing waits".into(),
        Ok(OutboxCounts { spans, links }) => {
            format!("{spans} spans and {links} entries of the audit log wait")
        }
        Err(error) => format!("what waits cannot be counted: {error}"),
    }
}
