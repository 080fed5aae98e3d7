//! Exports one outbox: reads rows, sends them, and removes them or moves the cursor once the collector has them.
//!
//! While the outbox is locked by another process, that one exports the rows of all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::ExportContext;
use super::backoff::Backoff;
use super::metrics::Metrics;
use super::sender::{Delivery, Sender};
use super::settings::Signal;
use super::spans::SpanView;
use super::{logs, spans};
use crate::ids;
use crate::store::outbox::{Outbox, WaitingLink, WaitingSpan};
use crate::store::{Store, StoreError};

/// Time from the first new row to its export, in which others join it.
const GATHER: Duration = Duration::from_secs(1);

/// Rows of one request.
const BATCH: usize = 512;

/// Wait while another process exports.
const OTHERS_TURN: Duration = Duration::from_secs(5);

pub(super) struct Exporter {
    shared: Arc<ExportContext>,
    store: Store,
    /// `None` if only metrics are sent.
    sender: Option<Sender>,
    /// Of the exporter that reads spans.
    metrics: Option<Sender>,
    values: Metrics,
    backoff: Backoff,
    batch: usize,
    /// True if the next batch is sent without contents, because one row with them is too large.
    is_reduced: bool,
}

/// The end of a pass over the outbox.
#[derive(Debug, PartialEq, Eq)]
enum Pass {
    /// Nothing is left.
    Done,
    /// Another process exports.
    Locked,
    /// Rows are left, for the next pass after this wait.
    Later(Duration),
}

/// A batch of rows, in the form of the request.
enum ExportBatch {
    Spans(Vec<WaitingSpan>),
    Links(Vec<WaitingLink>),
}

impl ExportBatch {
    fn len(&self) -> usize {
        match self {
            Self::Spans(spans) => spans.len(),
            Self::Links(links) => links.len(),
        }
    }
}

impl Exporter {
    pub(super) fn new(
        shared: &Arc<ExportContext>,
        store: Store,
        sender: Option<Sender>,
        metrics: Option<Sender>,
    ) -> Self {
        let share = ids::hash(&ids::unique()).bytes().next().unwrap_or_default();
        let backoff = Backoff::new(share);
        Self {
            shared: Arc::clone(shared),
            store,
            sender,
            metrics,
            values: Metrics::default(),
            backoff,
            batch: BATCH,
            is_reduced: false,
        }
    }

    /// Runs until `ends` is cancelled, and then makes a last attempt.
    pub(super) async fn run(mut self, mut bell: watch::Receiver<u64>, ends: CancellationToken) {
        // Rows of processes that have ended may wait already.
        let mut pause = GATHER;
        loop {
            tokio::select! {
                () = ends.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
            bell.borrow_and_update();
            pause = match self.pass().await {
                Pass::Later(wait) => wait,
                Pass::Locked => OTHERS_TURN,
                Pass::Done => {
                    tokio::select! {
                        () = ends.cancelled() => break,
                        rung = bell.changed() => if rung.is_err() { break },
                    }
                    GATHER
                }
            };
        }
        // A batch that was too large is sent again at once, in a smaller form.
        while self.pass().await == Pass::Later(Duration::ZERO) {}
    }

    fn outbox(&self) -> Outbox {
        match &self.sender {
            Some(sender) if sender.signal() == Signal::Logs => Outbox::Links,
            _ => Outbox::Spans,
        }
    }

    async fn pass(&mut self) -> Pass {
        match self.export_all().await {
            Ok(pass) => pass,
            Err(error) => {
                tracing::info!(%error, "telemetry cannot be read from the session store");
                Pass::Later(self.backoff.next(None))
            }
        }
    }

    async fn export_all(&mut self) -> Result<Pass, StoreError> {
        let Some(_lock) = self.store.lock_outbox(self.outbox()).await? else { return Ok(Pass::Locked) };
        loop {
            let batch = Arc::new(self.read().await?);
            if batch.len() == 0 {
                break;
            }
            if let Some(wait) = self.send(&batch).await {
                return Ok(Pass::Later(wait));
            }
            self.conclude(&batch).await?;
        }
        self.send_metrics().await;
        Ok(Pass::Done)
    }

    async fn read(&self) -> Result<ExportBatch, StoreError> {
        Ok(match self.outbox() {
            Outbox::Spans => ExportBatch::Spans(self.store.waiting_spans(self.batch).await?),
            Outbox::Links => ExportBatch::Links(self.store.waiting_links(self.batch).await?),
        })
    }

    /// Returns the wait before the next attempt, or `None` if the rows arrived.
    async fn send(&mut self, batch: &Arc<ExportBatch>) -> Option<Duration> {
        let Some(sender) = &self.sender else { return None };
        let (shared, rows, is_reduced) = (Arc::clone(&self.shared), Arc::clone(batch), self.is_reduced);
        // Contents may be large, and turns share the main thread.
        let encoded = tokio::task::spawn_blocking(move || encode(&shared, &rows, is_reduced)).await;
        let delivery = match encoded {
            Ok(body) => sender.send(body).await,
            Err(error) => Delivery::Later { reason: error.to_string(), wait: None },
        };
        let signal = sender.signal().as_str();
        match delivery {
            Delivery::Accepted => {}
            Delivery::PartlyAccepted { rejected, message } => {
                tracing::warn!(signal, rejected, message, "the collector dropped a part of the telemetry");
            }
            Delivery::TooLarge if batch.len() > 1 => {
                self.batch = batch.len().div_ceil(2);
                return Some(Duration::ZERO);
            }
            Delivery::TooLarge if !self.is_reduced => {
                self.is_reduced = true;
                return Some(Duration::ZERO);
            }
            Delivery::TooLarge => {
                return Some(self.failed(signal, "the collector takes no request of this size", None));
            }
            Delivery::Later { reason, wait } => return Some(self.failed(signal, &reason, wait)),
        }
        self.backoff.reset();
        (self.batch, self.is_reduced) = ((self.batch * 2).min(BATCH), false);
        None
    }

    fn failed(&mut self, signal: &str, reason: &str, wait: Option<Duration>) -> Duration {
        if self.backoff.has_failed() {
            tracing::debug!(signal, reason, "telemetry waits");
        } else {
            tracing::warn!(signal, reason, "telemetry could not be sent; it waits in the session store");
        }
        self.backoff.next(wait)
    }

    async fn conclude(&mut self, batch: &ExportBatch) -> Result<(), StoreError> {
        match batch {
            ExportBatch::Spans(waiting) => {
                if self.metrics.is_some() {
                    let records = waiting.iter().filter_map(|span| span.record.as_ref());
                    records.for_each(|record| self.values.add(record));
                }
                self.store.remove_spans(waiting.iter().map(|span| span.id).collect()).await
            }
            ExportBatch::Links(waiting) => {
                let numbers =
                    waiting.iter().map(|waiting| (waiting.session.0.to_string(), waiting.link.number));
                // The last number of a session stays.
                self.store.advance_outbox(numbers.collect::<BTreeMap<_, _>>()).await
            }
        }
    }

    async fn send_metrics(&mut self) {
        let Some(sender) = &self.metrics else { return };
        let ExportContext { resource, began, source, .. } = &*self.shared;
        let Some(request) = self.values.request(resource, *began, source.now_us()) else { return };
        match sender.send(request.encode_to_vec()).await {
            Delivery::Accepted | Delivery::PartlyAccepted { .. } => {}
            // The next values contain these.
            other => tracing::debug!(?other, "metrics could not be sent"),
        }
    }
}

fn encode(shared: &ExportContext, batch: &ExportBatch, is_reduced: bool) -> Vec<u8> {
    let ExportContext { resource, has_contents, secrets, source, .. } = shared;
    let view = SpanView { has_contents: *has_contents && !is_reduced, secrets };
    match batch {
        ExportBatch::Spans(waiting) => spans::request(waiting, resource, view).encode_to_vec(),
        ExportBatch::Links(waiting) => {
            logs::request(waiting, resource, view, source.now_us()).encode_to_vec()
        }
    }
}
