//! An HTTP server on the loopback that sends prepared replies in the given pieces, and records the requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// A prepared reply.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    /// Each piece is written separately.
    pub pieces: Vec<Vec<u8>>,
    /// Keeps the connection open and silent after the pieces.
    pub hangs: bool,
}

impl Reply {
    /// A stream that ends after its last byte.
    pub(crate) fn stream(body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            headers: vec![("content-type", "text/event-stream".into())],
            pieces: vec![body.into()],
            hangs: false,
        }
    }

    /// An error with a JSON body.
    pub(crate) fn error(status: u16, body: &str) -> Self {
        let headers = vec![("content-type", "application/json".into())];
        Self { status, headers, pieces: vec![body.as_bytes().to_vec()], hangs: false }
    }

    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// A received request, unparsed.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedRequest {
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub text: String,
    is_get: bool,
}

impl ReceivedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn body(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }
}

#[derive(Default)]
struct ServerState {
    /// The answer to requests for the list of models. Without it, the server has no list.
    models: Mutex<Option<String>>,
    replies: Mutex<VecDeque<Reply>>,
    requests: Mutex<Vec<ReceivedRequest>>,
    /// Notified when the client closes a connection with a hanging reply.
    connection_closed: Notify,
    request_arrived: Notify,
}

/// The server runs as long as its runtime.
#[derive(Clone)]
pub(crate) struct Server {
    pub url: String,
    state: Arc<ServerState>,
}

impl Server {
    /// Starts a server that sends these replies in order. A further request gets a 500.
    pub(crate) async fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(ServerState {
            replies: Mutex::new(replies.into_iter().collect()),
            ..ServerState::default()
        });
        let of_server = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&of_server)));
            }
        });
        Self { url, state }
    }

    /// Adds a reply.
    pub(crate) fn reply(&self, reply: Reply) {
        self.state.replies.lock().unwrap().push_back(reply);
    }

    /// Sets the list of models.
    pub(crate) fn lists(&self, models: &str) {
        *self.state.models.lock().unwrap() = Some(models.to_owned());
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.state.requests.lock().unwrap().clone()
    }

    /// Waits until the server has this many requests.
    pub(crate) async fn wait_for(&self, requests: usize) {
        let wait = async {
            loop {
                let request_arrived = self.state.request_arrived.notified();
                if self.requests().len() >= requests {
                    return;
                }
                request_arrived.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("the server was not asked");
    }

    /// Waits until the client has closed a connection with a hanging reply.
    pub(crate) async fn connection_closed(&self) {
        let wait = self.state.connection_closed.notified();
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("the request was not given up");
    }
}

async fn serve(mut stream: TcpStream, state: Arc<ServerState>) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = Vec::new();
    while let Some(asked) = read(&mut stream, &mut buffer).await {
        if asked.is_get {
            let models = state.models.lock().unwrap().clone();
            let reply = models.map_or_else(|| Reply::error(404, "{}"), |models| Reply::error(200, &models));
            if write(&mut stream, &reply).await.is_err() {
                return;
            }
            continue;
        }
        state.requests.lock().unwrap().push(asked);
        let next = state.replies.lock().unwrap().pop_front();
        let reply = next.unwrap_or_else(|| Reply::error(400, r#"{"error":{"message":"the play is over"}}"#));
        state.request_arrived.notify_waiters();
        if write(&mut stream, &reply).await.is_err() {
            return;
        }
        if reply.hangs {
            let mut byte = [0];
            while matches!(stream.read(&mut byte).await, Ok(1..)) {}
            state.connection_closed.notify_one();
            return;
        }
    }
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<ReceivedRequest> {
    loop {
        if let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = String::from_utf8(buffer[..end].to_vec()).unwrap();
            let mut lines = head.split("\r\n");
            let first = lines.next().unwrap();
            let path = first.split(' ').nth(1).unwrap().to_owned();
            let is_get = first.starts_with("GET ");
            let headers: Vec<(String, String)> = lines
                .filter_map(|line| line.split_once(':'))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
                .collect();
            let length = headers
                .iter()
                .find(|(name, _)| name == "content-length")
                .map_or(0, |(_, value)| value.parse().unwrap());
            while buffer.len() < end + 4 + length {
                if stream.read_buf(buffer).await.ok()? == 0 {
                    return None;
                }
            }
            let text = String::from_utf8(buffer[end + 4..end + 4 + length].to_vec()).unwrap();
            buffer.drain(..end + 4 + length);
            return Some(ReceivedRequest { path, headers, text, is_get });
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

async fn write(stream: &mut TcpStream, reply: &Reply) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} X\r\ntransfer-encoding: chunked\r\n", reply.status);
    head.extend(reply.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")));
    stream.write_all(format!("{head}\r\n").as_bytes()).await?;
    for piece in reply.pieces.iter().filter(|piece| !piece.is_empty()) {
        stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
        stream.write_all(piece).await?;
        stream.write_all(b"\r\n").await?;
        stream.flush().await?;
    }
    if !reply.hangs {
        stream.write_all(b"0\r\n\r\n").await?;
    }
    stream.flush().await
}
