//! Sends one request to a collector and reads the answer. Security: the addresses and headers of the
//! request are in no error and no log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use secrecy::SecretString;

use super::telemetry_settings::{Signal, SignalEndpoint};
use crate::http::{self, Http};
use crate::text::shorten;

/// Longest wait that a collector may ask for.
const MAX_WAIT: Duration = Duration::from_hours(1);

/// Maximum characters of a collector's message in the log.
const MAX_MESSAGE: usize = 200;

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Delivery {
    Accepted,
    /// The collector took the request, but dropped some records.
    PartlyAccepted {
        rejected: i64,
        message: String,
    },
    /// HTTP 413: fewer records may fit.
    TooLarge,
    /// The request may succeed later, not before the collector's own wait, if it named one.
    Later {
        reason: String,
        wait: Option<Duration>,
    },
}

/// Sends the requests of one signal.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    http: Arc<Http>,
    signal: Signal,
    endpoint: SignalEndpoint,
}

impl Sender {
    pub(super) fn new(http: Arc<Http>, signal: Signal, endpoint: SignalEndpoint) -> Self {
        Self { http, signal, endpoint }
    }

    pub(super) fn signal(&self) -> Signal {
        self.signal
    }

    /// Dropping the future ends the request.
    pub(super) async fn send(&self, body: Vec<u8>) -> Delivery {
        let request = match self.request(body) {
            Ok(request) => request,
            Err(reason) => return Delivery::Later { reason, wait: None },
        };
        match tokio::time::timeout(self.endpoint.timeout, self.http.exchange(request)).await {
            Ok(Ok(answer)) => self.read(&answer),
            Ok(Err(error)) => Delivery::Later { reason: error.to_string(), wait: None },
            Err(_) => {
                let reason = format!("no answer within {} ms", self.endpoint.timeout.as_millis());
                Delivery::Later { reason, wait: None }
            }
        }
    }

    fn request(&self, body: Vec<u8>) -> Result<::http::Request<Vec<u8>>, String> {
        let mut request = ::http::Request::post(&self.endpoint.url)
            .header("content-type", "application/x-protobuf")
            .body(body)
            .map_err(|_| "the endpoint is no valid address".to_owned())?;
        let headers: Vec<(String, SecretString)> = headers(&self.endpoint.headers);
        for (name, value) in http::headers(&headers).map_err(|error| error.to_string())? {
            request.headers_mut().insert(name, value);
        }
        Ok(request)
    }

    fn read(&self, answer: &::http::Response<Vec<u8>>) -> Delivery {
        let status = answer.status().as_u16();
        match status {
            200..300 => match self.rejected(answer.body()) {
                Some((rejected, message)) if rejected > 0 => Delivery::PartlyAccepted {
                    rejected,
                    message: shorten(&message, MAX_MESSAGE).into_owned(),
                },
                _ => Delivery::Accepted,
            },
            413 => Delivery::TooLarge,
            _ => {
                let wait = answer.headers().get("retry-after").and_then(|value| value.to_str().ok());
                let wait = wait.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
                let reason = format!("the collector answers with HTTP {status}");
                Delivery::Later { reason, wait: wait.map(|wait| wait.min(MAX_WAIT)) }
            }
        }
    }

    /// The number of dropped records, and the collector's reason. An answer that is no protobuf counts as success,
    /// because its status is one.
    fn rejected(&self, body: &[u8]) -> Option<(i64, String)> {
        match self.signal {
            Signal::Traces => {
                let part = ExportTraceServiceResponse::decode(body).ok()?.partial_success?;
                Some((part.rejected_spans, part.error_message))
            }
            Signal::Logs => {
                let part = ExportLogsServiceResponse::decode(body).ok()?.partial_success?;
                Some((part.rejected_log_records, part.error_message))
            }
            Signal::Metrics => {
                let part = ExportMetricsServiceResponse::decode(body).ok()?.partial_success?;
                Some((part.rejected_data_points, part.error_message))
            }
        }
    }
}

fn headers(headers: &BTreeMap<String, SecretString>) -> Vec<(String, SecretString)> {
    headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}
