//! A collector on the loopback: takes OTLP over HTTP, and fails where a test wants it to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use modegate::otlp::conventions as names;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

/// Behaviour of the collector at each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behaviour {
    Accept,
    /// Takes the request and says that records were dropped.
    AcceptPartly,
    /// Closes the connection in the middle of the request.
    Cut,
    /// Takes the request, and closes the connection without an answer.
    TakeAndCut,
    /// Never answers.
    Hang,
    /// Answers with this status, and 1 second to wait.
    Status(u16),
    /// Refuses bodies above this number of bytes with HTTP 413.
    AtMost(usize),
}

#[derive(Default)]
struct Received {
    spans: Vec<Span>,
    logs: Vec<LogRecord>,
    metrics: Vec<Metric>,
    /// All bytes, to look for secrets.
    bodies: Vec<u8>,
    /// Head of each request.
    heads: Vec<String>,
}

#[derive(Clone)]
struct Shared {
    received: Arc<Mutex<Received>>,
    behaviour: Arc<Mutex<Behaviour>>,
    ends: Arc<AtomicBool>,
}

/// Listens until it is dropped. A collector that is started again at the same address keeps its earlier records.
pub(super) struct Receiver {
    address: SocketAddr,
    shared: Shared,
    listener: Option<JoinHandle<()>>,
}

impl Receiver {
    pub(super) fn start() -> Self {
        let shared = Shared {
            received: Arc::default(),
            behaviour: Arc::new(Mutex::new(Behaviour::Accept)),
            ends: Arc::default(),
        };
        let mut receiver = Self { address: SocketAddr::from(([127, 0, 0, 1], 0)), shared, listener: None };
        receiver.listen();
        receiver
    }

    /// Begins to listen again after [`Self::kill`].
    pub(super) fn listen(&mut self) {
        let listener = TcpListener::bind(self.address).unwrap();
        self.address = listener.local_addr().unwrap();
        self.shared.ends = Arc::default();
        let shared = self.shared.clone();
        self.listener = Some(std::thread::spawn(move || accept(&listener, &shared)));
    }

    /// Connections are refused from now on.
    pub(super) fn kill(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        // Wakes the thread.
        drop(TcpStream::connect(self.address));
        if let Some(listener) = self.listener.take() {
            listener.join().unwrap();
        }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn behave(&self, behaviour: Behaviour) {
        *self.shared.behaviour.lock().unwrap() = behaviour;
    }

    pub(super) fn spans(&self) -> Vec<Span> {
        self.shared.received.lock().unwrap().spans.clone()
    }

    pub(super) fn logs(&self) -> Vec<LogRecord> {
        self.shared.received.lock().unwrap().logs.clone()
    }

    pub(super) fn metrics(&self) -> Vec<Metric> {
        self.shared.received.lock().unwrap().metrics.clone()
    }

    pub(super) fn heads(&self) -> Vec<String> {
        self.shared.received.lock().unwrap().heads.clone()
    }

    pub(super) fn has_bytes(&self, text: &str) -> bool {
        let received = self.shared.received.lock().unwrap();
        received.bodies.windows(text.len()).any(|bytes| bytes == text.as_bytes())
    }

    pub(super) fn forget(&self) {
        *self.shared.received.lock().unwrap() = Received::default();
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.kill();
    }
}

fn accept(listener: &TcpListener, shared: &Shared) {
    for stream in listener.incoming() {
        if shared.ends.load(Ordering::SeqCst) {
            return;
        }
        let (Ok(stream), shared) = (stream, shared.clone()) else { continue };
        std::thread::spawn(move || {
            // The exporter may close the connection at any time.
            let _ = serve(stream, &shared);
        });
    }
}

fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let length = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        let behaviour = *shared.behaviour.lock().unwrap();
        if shared.ends.load(Ordering::SeqCst) || behaviour == Behaviour::Cut {
            let half = body.len() / 2;
            return reader.read_exact(&mut body[..half]);
        }
        reader.read_exact(&mut body)?;
        let answer = match behaviour {
            Behaviour::Hang => {
                // Until the exporter gives up.
                return reader.read_to_end(&mut Vec::new()).map(drop);
            }
            Behaviour::Status(status) => {
                format!("HTTP/1.1 {status} No\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n").into_bytes()
            }
            Behaviour::AtMost(most) if body.len() > most => {
                b"HTTP/1.1 413 Large\r\ncontent-length: 0\r\n\r\n".to_vec()
            }
            Behaviour::TakeAndCut => {
                take(&head, &body, shared);
                return Ok(());
            }
            Behaviour::Accept | Behaviour::AcceptPartly | Behaviour::AtMost(_) | Behaviour::Cut => {
                take(&head, &body, shared);
                let mut partial = Vec::new();
                if behaviour == Behaviour::AcceptPartly {
                    let rejected =
                        ExportLogsPartialSuccess { rejected_log_records: 1, error_message: "old".into() };
                    partial = ExportLogsServiceResponse { partial_success: Some(rejected) }.encode_to_vec();
                }
                let mut answer =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", partial.len()).into_bytes();
                answer.extend(partial);
                answer
            }
        };
        stream.write_all(&answer)?;
    }
}

fn take(head: &str, body: &[u8], shared: &Shared) {
    let mut received = shared.received.lock().unwrap();
    received.heads.push(head.to_owned());
    received.bodies.extend_from_slice(body);
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    let path = head.split(' ').nth(1).unwrap();
    match path {
        "/v1/traces" => {
            let request = ExportTraceServiceRequest::decode(body).unwrap();
            let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
            received.spans.extend(scopes.flat_map(|scope| scope.spans));
        }
        "/v1/logs" => {
            let request = ExportLogsServiceRequest::decode(body).unwrap();
            let scopes = request.resource_logs.into_iter().flat_map(|resource| resource.scope_logs);
            received.logs.extend(scopes.flat_map(|scope| scope.log_records));
        }
        "/v1/metrics" => {
            let request = ExportMetricsServiceRequest::decode(body).unwrap();
            let scopes = request.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
            received.metrics.extend(scopes.flat_map(|scope| scope.metrics));
        }
        other => panic!("{other}"),
    }
}

/// The text of an attribute.
pub(super) fn text(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => Some(format!("{other:?}")),
    }
}

pub(super) fn hash(record: &LogRecord) -> String {
    text(&record.attributes, names::CHAIN_HASH).unwrap()
}
