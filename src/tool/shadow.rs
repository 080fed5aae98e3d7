//! The handle on a session's [`Shadow`]: a task of its own owns the copies, and compares on the blocking pool.
//!
//! It is no state of the session: what it holds is found again by looking at the disk, and a session without it does
//! everything but say what commands have changed. The task takes one message after the other, so a command that begins waits
//! until what the one before it changed has been told.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{AtWork, Job, ToolError};
use crate::bounded_file;
use crate::gate::Permit;
use crate::workspace::{Changes, Shadow};

/// How long one comparison may take. The first one copies files, on a disk that may be slow.
const DEADLINE: Duration = Duration::from_secs(90);

/// Messages that may wait: a command, a background job and the end of a turn may ask at the same time.
const MAILBOX: usize = 4;

/// The copies of a session's files. Cheap to clone; with the last clone the copies go.
#[derive(Debug, Clone)]
pub struct SharedShadow {
    mailbox: mpsc::Sender<Message>,
}

#[derive(Debug)]
enum Message {
    TakeUp { cancel: CancellationToken, reply: oneshot::Sender<()> },
    Sync { cancel: CancellationToken, reply: oneshot::Sender<Changes> },
}

impl SharedShadow {
    /// Takes charge of copies. To be called inside of the runtime.
    pub fn new(shadow: Shadow) -> Self {
        let (mailbox, messages) = mpsc::channel(MAILBOX);
        tokio::spawn(serve(shadow, messages));
        Self { mailbox }
    }

    /// Brings the copies up to date before something begins: what has changed up to now is not its doing.
    pub async fn take_up(&self, cancel: &CancellationToken) {
        let (reply, done) = oneshot::channel();
        // With the task gone there are no copies, which `sync` says.
        let _ = self.mailbox.send(Message::TakeUp { cancel: cancel.clone(), reply }).await;
        let _ = done.await;
    }

    /// Brings the copies up to date, and says what has changed since they were.
    pub async fn sync(&self, cancel: &CancellationToken) -> Changes {
        let (reply, changes) = oneshot::channel();
        // With the task gone the answer does not come either.
        let _ = self.mailbox.send(Message::Sync { cancel: cancel.clone(), reply }).await;
        changes.await.unwrap_or_else(|_| Changes {
            uncovered: vec!["What commands changed is not known, and cannot be undone.".into()],
            ..Changes::default()
        })
    }
}

async fn serve(mut shadow: Shadow, mut messages: mpsc::Receiver<Message>) {
    while let Some(message) = messages.recv().await {
        let compare = move |(cancel, is_told): (CancellationToken, bool)| {
            bounded_file::off_thread(DEADLINE, move || {
                let changes = if is_told {
                    shadow.sync(&cancel)
                } else {
                    shadow.take_up(&cancel);
                    Changes::default()
                };
                (shadow, changes)
            })
        };
        // The replies stay here: with a file system that does not answer they are dropped, and whoever asked goes on without.
        let done = match message {
            Message::TakeUp { cancel, reply } => {
                let done = compare((cancel, false)).await;
                // Whoever asked may have stopped waiting.
                let _ = reply.send(());
                done
            }
            Message::Sync { cancel, reply } => match compare((cancel, true)).await {
                Some((shadow, changes)) => {
                    let _ = reply.send(changes);
                    Some((shadow, Changes::default()))
                }
                None => None,
            },
        };
        let Some((same, _)) = done else {
            tracing::error!("the comparison of files failed or did not end");
            return;
        };
        shadow = same;
    }
    // Removing many files takes a while.
    let _ = tokio::task::spawn_blocking(move || drop(shadow)).await;
}

/// Tells what a call has changed.
pub(super) fn report(to: &mpsc::UnboundedSender<Changes>, changes: Changes) {
    if !changes.is_empty() {
        // Nobody may keep a record.
        let _ = to.send(changes);
    }
}

/// Said of a command that may not begin any more.
pub(super) const NOT_RUN: &str =
    "It was not run: its turn was cancelled, or the mode does not allow it any more.";

/// Takes up, before a command begins, what others have changed.
///
/// # Errors
/// The command may not begin any more.
pub(super) async fn take_up(shadow: &SharedShadow, permit: &Permit) -> Result<(), ToolError> {
    tokio::select! {
        // What is compared for somebody else may take a while.
        () = permit.cancel.cancelled() => {}
        () = shadow.take_up(&permit.cancel) => {}
    }
    if permit.cancel.is_cancelled() {
        return Err(ToolError::Failed(NOT_RUN.into()));
    }
    Ok(())
}

/// Tells what a command has changed once nothing of it is left, whether or not somebody still waits for the command: the
/// task that does it is returned. Nothing cancels it, because only a command that was told of can be undone.
pub(super) fn tell(
    shadow: SharedShadow,
    job: &Job,
    changes: mpsc::UnboundedSender<Changes>,
) -> tokio::task::JoinHandle<()> {
    let over = job.ending();
    tokio::spawn(async move {
        let _at_work = AtWork::begin();
        over.await;
        report(&changes, shadow.sync(&CancellationToken::new()).await);
    })
}
