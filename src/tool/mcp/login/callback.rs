//! Receives the answer of the browser after a login, on this machine: `http://127.0.0.1:PORT/callback`. Only an answer
//! with the state of this login ends the wait.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use url::Url;

const READ_TIMEOUT: Duration = Duration::from_secs(10);

const MAX_REQUEST: usize = 16 * 1024;

const DONE: &str = "Modegate has the answer. You can close this window and return to the terminal.\n";

const REFUSED: &str = "This is not the answer to the login that Modegate waits for.\n";

pub(super) struct Callback {
    listener: TcpListener,
    redirect_uri: String,
}

impl Callback {
    /// Port 0 means any.
    pub(super) async fn listen(port: u16) -> Result<Self, String> {
        let cannot = |error: std::io::Error| {
            format!("port {port} of this machine cannot be used for the answer: {error}")
        };
        let listener = TcpListener::bind(("127.0.0.1", port)).await.map_err(cannot)?;
        let port = listener.local_addr().map_err(cannot)?.port();
        Ok(Self { listener, redirect_uri: format!("http://127.0.0.1:{port}/callback") })
    }

    pub(super) fn redirect_uri(&self) -> &str {
        &self.redirect_uri
    }

    /// Returns the first address with this state, from the browser or from the user.
    pub(super) async fn answer(self, state: &str, mut pasted: mpsc::Receiver<String>) -> Result<Url, String> {
        // One place: a second answer is ignored.
        let (sender, mut answers) = mpsc::channel(1);
        let mut is_pasting = true;
        loop {
            tokio::select! {
                accepted = self.listener.accept() => {
                    let (stream, _) = accepted.map_err(|error| format!("the answer cannot be received: {error}"))?;
                    // Browsers open connections that they do not use, so none of them may hold up another.
                    let (sender, state, base) = (sender.clone(), state.to_owned(), self.redirect_uri.clone());
                    tokio::spawn(async move {
                        if let Some(answer) = serve(stream, &base, &state).await {
                            let _ = sender.try_send(answer);
                        }
                    });
                }
                answer = answers.recv() => return answer.ok_or_else(|| "the answer is lost".into()),
                line = pasted.recv(), if is_pasting => match line {
                    Some(line) => match Url::parse(line.trim()) {
                        Ok(answer) if parameter(&answer, "state").as_deref() == Some(state) => return Ok(answer),
                        _ => return Err("the pasted address is not the answer to this login".into()),
                    },
                    None => is_pasting = false,
                }
            }
        }
    }
}

/// Returns the address of a request that has the state.
async fn serve(mut stream: TcpStream, base: &str, state: &str) -> Option<Url> {
    let head = tokio::time::timeout(READ_TIMEOUT, head(&mut stream)).await.ok()??;
    let target = head.strip_prefix("GET ").and_then(|rest| rest.split(' ').next());
    let answer = target
        .and_then(|target| Url::parse(base).ok()?.join(target).ok())
        .filter(|answer| answer.as_str().starts_with(base) && answer.path() == "/callback")
        .filter(|answer| parameter(answer, "state").as_deref() == Some(state));
    let (status, text) = if answer.is_some() { ("200 OK", DONE) } else { ("400 Bad Request", REFUSED) };
    let response = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\
         cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n{text}",
        text.len()
    );
    // The browser may be gone.
    let _ = stream.write_all(response.as_bytes()).await;
    let _ = stream.shutdown().await;
    answer
}

async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        if bytes.len() > MAX_REQUEST || stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    String::from_utf8(bytes).ok()
}

pub(super) fn parameter(url: &Url, name: &str) -> Option<String> {
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}
