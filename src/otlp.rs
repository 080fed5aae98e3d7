//! Telemetry in OTLP over HTTP, off unless configured. Exports the outbox of the store: span records, and the
//! entries of audit logs. Only this module names the OpenTelemetry crates.
//!
//! Rows leave the outbox only after the collector has taken them, so each arrives at least once, in the order of its
//! session. Turns never wait for this module.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::resource::v1::Resource;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::http::Http;
use crate::ids::{self, Source};
use crate::process::secrets::Secrets;
use crate::store::Store;
use crate::store::outbox::OutboxBell;
use exporter::Exporter;
use sender::{Delivery, Sender};
use telemetry_settings::{Signal, TelemetryDestination};

mod backoff;
pub mod conventions;
mod encode;
mod exporter;
mod logs;
mod metrics;
mod sender;
mod spans;
pub mod telemetry_settings;

/// Maximum wait at the end of a process for rows that wait.
const FLUSH: Duration = Duration::from_secs(2);

/// The same where the export is required.
const REQUIRED_FLUSH: Duration = Duration::from_secs(10);

/// The exporters of a process. Dropping it ends them, without a last attempt.
#[derive(Debug)]
pub struct Telemetry {
    store: Store,
    bell: OutboxBell,
    signals: Vec<Signal>,
    has_contents: bool,
    is_required: bool,
    /// Cancelled when the process ends.
    ends: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

/// Everything that the exporters of a process share.
#[derive(Debug)]
struct ExportContext {
    resource: Resource,
    has_contents: bool,
    secrets: Secrets,
    source: Source,
    /// In microseconds since 1970.
    began: i64,
}

impl Telemetry {
    /// Starts the exporters. `secrets` are replaced in contents. Must run inside the runtime.
    pub fn start(
        destination: TelemetryDestination,
        store: Store,
        http: &Arc<Http>,
        secrets: Secrets,
    ) -> Self {
        let (bell, ends) = (OutboxBell::default(), CancellationToken::new());
        let source = Source::real();
        let shared = Arc::new(ExportContext {
            resource: encode::resource(&destination, &ids::unique()),
            has_contents: destination.has_contents,
            secrets,
            began: source.now_us(),
            source,
        });
        let TelemetryDestination { endpoints, has_contents, is_required, .. } = destination;
        let sender = |signal: Signal| {
            let endpoint = endpoints.get(&signal)?.clone();
            Some(Sender::new(Arc::clone(http), signal, endpoint))
        };
        let (traces, logs, metrics) = (sender(Signal::Traces), sender(Signal::Logs), sender(Signal::Metrics));
        let exporter = |traces, metrics| Exporter::new(&shared, store.clone(), traces, metrics);
        let exporters = [
            (traces.is_some() || metrics.is_some()).then(|| exporter(traces, metrics)),
            logs.map(|logs| exporter(Some(logs), None)),
        ];
        let tasks = exporters
            .into_iter()
            .flatten()
            .map(|exporter| tokio::spawn(exporter.run(bell.listen(), ends.clone())))
            .collect();
        Self { store, bell, signals: endpoints.into_keys().collect(), has_contents, is_required, ends, tasks }
    }

    pub fn bell(&self) -> OutboxBell {
        self.bell.clone()
    }

    pub fn sends(&self, signal: Signal) -> bool {
        self.signals.contains(&signal)
    }

    pub fn has_contents(&self) -> bool {
        self.has_contents
    }

    /// Sends waiting rows, for a short time. Returns a sentence for the user if the export is required and rows are left
    /// that are lost with this process.
    pub async fn finish(mut self) -> Option<String> {
        self.ends.cancel();
        let limit = if self.is_required { REQUIRED_FLUSH } else { FLUSH };
        let all = futures_util::future::join_all(std::mem::take(&mut self.tasks));
        // The tasks that do not end in time are dropped with the runtime.
        let _ = tokio::time::timeout(limit, all).await;
        if !self.is_required || !self.store.is_in_memory() {
            return None;
        }
        let left = self.store.outbox_counts().await.ok()?;
        (left.spans + left.links > 0).then(|| {
            format!(
                "required telemetry was not sent, because the collector did not take it in time: {} spans and {} entries of the \
                 audit log are lost, because the session is in memory only",
                left.spans, left.links
            )
        })
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Asks each endpoint to take an empty request. The error names the signal and the reason.
pub async fn probe(destination: &TelemetryDestination, http: &Arc<Http>) -> Result<(), String> {
    for (signal, endpoint) in &destination.endpoints {
        let sender = Sender::new(Arc::clone(http), *signal, endpoint.clone());
        match sender.send(Vec::new()).await {
            Delivery::Accepted | Delivery::PartlyAccepted { .. } => {}
            Delivery::TooLarge => return Err(format!("{}: an empty request is too large", signal.as_str())),
            Delivery::Later { reason, .. } => return Err(format!("{}: {reason}", signal.as_str())),
        }
    }
    Ok(())
}
