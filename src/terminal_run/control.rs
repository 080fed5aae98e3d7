//! The socket over which other terminals control a running program. Messages are JSON, one per line. The socket is
//! in a folder of Modegate's own. The broker connects no program to it, and orders of processes that
//! Modegate has started are refused.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use super::origin;
pub use crate::external_agent::session::RefusedAct;
use crate::path_bytes;
pub use crate::session::DiffKind;

const EXTENSION: &str = "sock";

/// Longest line of either side, in bytes.
pub(super) const MAX_LINE: usize = 64 * 1024;

/// Time in which a refused process has to close its connection.
const REFUSAL: Duration = Duration::from_secs(5);

/// To the running program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Starts the program: the line at the start is written. From the process that has the user's terminal.
    Start,
    SetMode(String),
    Answer {
        number: u64,
        option: String,
    },
    /// [`TerminalReport::Changes`] follows.
    ListChanges,
    /// Undoes the program's change of one path, or all changes. [`TerminalReport::Undone`] follows.
    Undo {
        #[serde(with = "path_bytes::option")]
        path: Option<PathBuf>,
    },
    /// Lets the program connect to a host until it ends.
    AllowHost(String),
    /// Continues the stopped program. From the process that has the user's terminal.
    Continue {
        is_foreground: bool,
    },
}

/// From the running program. The first one is [`TerminalReport::State`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TerminalReport {
    State {
        session: String,
        program: String,
        /// The directory that the program may change.
        folder: String,
        mode: String,
        /// Such as `limited to plan by --max-mode`, if the mode would allow more.
        #[serde(default)]
        limit: Option<String>,
        /// False if something that the mode denies may still go on.
        is_confirmed: bool,
        /// Ids of the modes that can be set.
        modes: Vec<String>,
        /// The purposes of these modes.
        mode_descriptions: Vec<String>,
        /// True if all changes failed when the program started.
        is_read_only: bool,
        /// Number of the questions that follow.
        open_questions: usize,
    },
    /// The mode of the session has changed, and nothing goes on that it denies.
    Mode(String),
    /// The mode of the session has changed, but something that it denies may still go on.
    Unconfirmed(String),
    /// Why an order was not followed. Sent to its sender alone.
    Refused(String),
    Asked(TerminalQuestion),
    /// The question with this number needs no answer any more.
    Closed(u64),
    Notice(String),
    Refusal(RefusedAct),
    /// The changes so far.
    Changes(Vec<ChangedPath>),
    Undone {
        /// Number of restored paths.
        count: usize,
        /// Folders that stay, because they contain other entries.
        remaining_folders: Vec<String>,
    },
    /// The program may connect to this host.
    HostAllowed(String),
    Ended,
    /// A line for the user's terminal, from here on to the process that has it.
    Message(String),
    Stopped,
    Continued,
    /// Answers [`Order::Continue`]. Each [`Self::Stopped`] before it is out of date. Sent to its sender alone.
    ContinueDone,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TerminalQuestion {
    pub number: u64,
    pub title: String,
    /// Details, which may be empty.
    pub text: String,
    pub options: Vec<Choice>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Choice {
    pub id: String,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedPath {
    #[serde(with = "path_bytes")]
    pub path: PathBuf,
    pub kind: DiffKind,
    /// A unified diff without names, or a sentence about why there is none.
    pub diff: String,
}

pub enum TerminalMessage {
    Connected(u64, mpsc::UnboundedSender<TerminalReport>),
    Order(u64, Order),
    Disconnected(u64),
}

/// Number of the process that has the user's terminal.
pub const HOST: u64 = 0;

/// The running program's end. Dropping it removes the socket.
pub struct ControlSocket {
    path: PathBuf,
    messages: mpsc::UnboundedSender<TerminalMessage>,
    received: mpsc::UnboundedReceiver<TerminalMessage>,
    terminals: HashMap<u64, mpsc::UnboundedSender<TerminalReport>>,
}

impl ControlSocket {
    /// # Errors
    /// Fails if the folder or the socket cannot be made.
    pub fn open(folder: &Path, session: &str) -> anyhow::Result<Self> {
        Self::bind(folder, session).with_context(|| {
            format!(
                "{}: the socket for other terminals cannot be made there; HOME or XDG_DATA_HOME names another folder",
                folder.display()
            )
        })
    }

    fn bind(folder: &Path, session: &str) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let name = format!("{session}.{EXTENSION}");
        let listener = UnixListener::bind(short_path(&fs::File::open(folder)?, &name))?;
        let path = folder.join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let (to, received) = mpsc::unbounded_channel();
        tokio::spawn(accept(listener, to.clone()));
        Ok(Self { path, messages: to, received, terminals: HashMap::new() })
    }

    /// Where orders of the process go that has the user's terminal, which is the terminal [`HOST`].
    pub fn messages(&self) -> mpsc::UnboundedSender<TerminalMessage> {
        self.messages.clone()
    }

    /// Returns the next order with its sender, or a terminal that has connected.
    pub async fn next(&mut self) -> Option<(u64, Option<Order>)> {
        loop {
            match self.received.recv().await? {
                TerminalMessage::Connected(terminal, to) => {
                    self.terminals.insert(terminal, to);
                    return Some((terminal, None));
                }
                TerminalMessage::Order(terminal, order) => return Some((terminal, Some(order))),
                TerminalMessage::Disconnected(terminal) => drop(self.terminals.remove(&terminal)),
            }
        }
    }

    /// Returns true if another terminal is connected.
    pub fn is_followed(&self) -> bool {
        self.terminals.keys().any(|terminal| *terminal != HOST)
    }

    pub fn send(&self, terminal: u64, report: TerminalReport) {
        if let Some(to) = self.terminals.get(&terminal) {
            // The terminal may be gone, here and below.
            let _ = to.send(report);
        }
    }

    pub fn send_all(&self, report: &TerminalReport) {
        for to in self.terminals.values() {
            let _ = to.send(report.clone());
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // It may be gone.
        let _ = fs::remove_file(&self.path);
    }
}

async fn accept(listener: UnixListener, to: mpsc::UnboundedSender<TerminalMessage>) {
    let mut terminal = 0;
    while let Ok((connection, _)) = listener.accept().await {
        let process = connection.peer_cred().ok().and_then(|peer| peer.pid());
        if !process.is_some_and(origin::is_outside) {
            tokio::spawn(refuse(connection));
            continue;
        }
        terminal += 1;
        let (reports, queue) = mpsc::unbounded_channel();
        if to.send(TerminalMessage::Connected(terminal, reports)).is_err() {
            return;
        }
        let to = to.clone();
        tokio::spawn(async move {
            // An error ends the connection.
            let _ = serve(connection, terminal, queue, &to).await;
            let _ = to.send(TerminalMessage::Disconnected(terminal));
        });
    }
}

/// Tells a process why it may not give orders. What the process has sent is read: otherwise the end of the connection
/// would discard the answer.
async fn refuse(mut connection: UnixStream) {
    let reason =
        "a program that Modegate has started cannot change the mode of another one: use a terminal of yours";
    if let Ok(line) = to_line(&TerminalReport::Refused(reason.into())) {
        // The process may be gone.
        let _ = connection.write_all(&line).await;
    }
    let _ = connection.shutdown().await;
    let mut orders = connection.take(MAX_LINE as u64);
    let _ = tokio::time::timeout(REFUSAL, tokio::io::copy(&mut orders, &mut tokio::io::sink())).await;
}

async fn serve(
    connection: UnixStream,
    terminal: u64,
    mut queue: mpsc::UnboundedReceiver<TerminalReport>,
    to: &mpsc::UnboundedSender<TerminalMessage>,
) -> io::Result<()> {
    let (input, mut output) = connection.into_split();
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        tokio::select! {
            // A terminal that has gone may have sent orders before. Bytes of an unfinished line stay in `line`.
            biased;
            count = input.read_until(b'\n', &mut line) => {
                if count? == 0 || line.len() > MAX_LINE {
                    return Ok(());
                }
                let order = serde_json::from_slice(&line)?;
                line.clear();
                let _ = to.send(TerminalMessage::Order(terminal, order));
            }
            report = queue.recv() => {
                let Some(report) = report else { return Ok(()) };
                output.write_all(&to_line(&report)?).await?;
            }
        }
    }
}

pub(super) fn to_line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// The system limits the path of a socket to 108 bytes, so a long path of the folder does not fit.
fn short_path(folder: &fs::File, name: &str) -> PathBuf {
    format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()).into()
}

/// Another terminal's end.
pub struct Controller {
    input: BufReader<tokio::net::unix::OwnedReadHalf>,
    output: tokio::net::unix::OwnedWriteHalf,
    line: Vec<u8>,
}

impl Controller {
    /// # Errors
    /// Fails if no program runs in this session any more.
    pub async fn connect(folder: &Path, session: &str) -> io::Result<Self> {
        let name = format!("{session}.{EXTENSION}");
        let connected = UnixStream::connect(short_path(&fs::File::open(folder)?, &name)).await;
        if connected.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            // Left behind by a killed process.
            let _ = fs::remove_file(folder.join(name));
        }
        let (input, output) = connected?.into_split();
        Ok(Self { input: BufReader::new(input), output, line: Vec::new() })
    }

    pub async fn send(&mut self, order: &Order) -> io::Result<()> {
        self.output.write_all(&to_line(order)?).await
    }

    /// Returns `None` when the program has ended. Cancel-safe.
    pub async fn next(&mut self) -> io::Result<Option<TerminalReport>> {
        let count = self.input.read_until(b'\n', &mut self.line).await?;
        if count == 0 {
            return Ok(None);
        }
        let report = serde_json::from_slice(&self.line)?;
        self.line.clear();
        Ok(Some(report))
    }
}

/// Ids of the sessions in which programs run, or ran until they were killed.
pub fn running(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let sockets = entries.filter(|path| path.extension().is_some_and(|found| found == EXTENSION));
    let mut sessions: Vec<String> =
        sockets.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    sessions.sort();
    sessions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn orders_and_reports_pass() {
        let dir = tempfile::tempdir().unwrap();
        let mut socket = ControlSocket::open(dir.path(), "abc").unwrap();
        assert_eq!(running(dir.path()), ["abc"]);
        let mut one = Controller::connect(dir.path(), "abc").await.unwrap();
        let mut two = Controller::connect(dir.path(), "abc").await.unwrap();
        assert_eq!(socket.next().await, Some((1, None)));
        assert_eq!(socket.next().await, Some((2, None)));
        one.send(&Order::SetMode("code".into())).await.unwrap();
        assert_eq!(socket.next().await, Some((1, Some(Order::SetMode("code".into())))));
        socket.send(1, TerminalReport::Refused("no".into()));
        socket.send_all(&TerminalReport::Mode("ask".into()));
        assert_eq!(one.next().await.unwrap(), Some(TerminalReport::Refused("no".into())));
        assert_eq!(one.next().await.unwrap(), Some(TerminalReport::Mode("ask".into())));
        assert_eq!(two.next().await.unwrap(), Some(TerminalReport::Mode("ask".into())), "the control");
        drop(socket);
        assert_eq!(one.next().await.unwrap(), None);
        assert_eq!(running(dir.path()), Vec::<String>::new());
    }

    #[tokio::test]
    async fn path_of_the_folder_may_be_long() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("x".repeat(120));
        let mut socket = ControlSocket::open(&folder, "abc").unwrap();
        assert!(UnixStream::connect(folder.join("abc.sock")).await.is_err(), "the control");
        let _one = Controller::connect(&folder, "abc").await.unwrap();
        assert_eq!(socket.next().await, Some((1, None)));
        drop(socket);
        assert_eq!(running(&folder), Vec::<String>::new());
    }

    #[tokio::test]
    async fn invalid_orders_end_their_connection_only() {
        let dir = tempfile::tempdir().unwrap();
        let mut socket = ControlSocket::open(dir.path(), "abc").unwrap();
        let mut bad = UnixStream::connect(dir.path().join("abc.sock")).await.unwrap();
        bad.write_all(b"{\"set_mode\": 1}\n").await.unwrap();
        assert_eq!(socket.next().await, Some((1, None)));
        let mut good = Controller::connect(dir.path(), "abc").await.unwrap();
        assert_eq!(socket.next().await, Some((2, None)));
        good.send(&Order::SetMode("plan".into())).await.unwrap();
        assert_eq!(socket.next().await, Some((2, Some(Order::SetMode("plan".into())))));
    }

    #[tokio::test]
    async fn socket_of_a_killed_process_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        drop(std::os::unix::net::UnixListener::bind(dir.path().join("abc.sock")).unwrap());
        assert_eq!(running(dir.path()), ["abc"]);
        assert!(Controller::connect(dir.path(), "abc").await.is_err());
        assert_eq!(running(dir.path()), Vec::<String>::new());
    }
}
