//! Starts the programs of hooks, each with its facts as JSON on standard input, in a group that is killed after the time
//! limit. Fails closed: a `deny` hook that does not say "pass" in time refuses.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

use super::{Hook, HookFacts, HookKind, HookRefusal};
use crate::process::{ChildStdio, Command, Event, Exit, Processes, Streams, TerminalAccess};
use crate::sandbox::Confinement;

/// Most bytes of an answer. A longer one is no valid answer.
const MAX_ANSWER: u64 = 64 * 1024;

/// Most notifications that wait. Further ones are dropped, because a hook must not delay a session.
const MAX_WAITING: usize = 256;

/// Hooks of a run. Clones share the queue of notifications.
#[derive(Debug, Clone, Default)]
pub struct Hooks {
    /// `None` without hooks.
    set: Option<Arc<HookSet>>,
    /// Of the session, in which the programs start.
    folder: Arc<PathBuf>,
}

#[derive(Debug)]
struct HookSet {
    denying: Vec<Hook>,
    notified: Vec<Hook>,
    programs: HookPrograms,
    /// Bounded by [`MAX_WAITING`]. Its task starts with the first notification, and ends with the last clone.
    queue: OnceLock<mpsc::Sender<QueueItem>>,
    dropped: AtomicU64,
}

#[derive(Debug, Clone)]
struct HookPrograms {
    processes: Processes,
    environment: Vec<(OsString, OsString)>,
}

enum QueueItem {
    Notify(Box<HookFacts>),
    /// Answered once all earlier notifications are delivered.
    Fence(oneshot::Sender<()>),
}

impl Hooks {
    /// `environment` is that of the programs: provider keys have left it already; the headers of telemetry are removed
    /// here, because they may contain a token.
    pub fn new(hooks: Vec<Hook>, processes: Processes, environment: Vec<(OsString, OsString)>) -> Self {
        if hooks.is_empty() {
            return Self::default();
        }
        let environment = environment.into_iter().filter(|(name, _)| !is_telemetry_header(name)).collect();
        let (denying, notified) = hooks.into_iter().partition(|hook| hook.kind == HookKind::Deny);
        let set = HookSet {
            denying,
            notified,
            programs: HookPrograms { processes, environment },
            queue: OnceLock::new(),
            dropped: AtomicU64::new(0),
        };
        Self { set: Some(Arc::new(set)), folder: Arc::default() }
    }

    /// The same hooks for a session in this folder.
    #[must_use]
    pub fn in_folder(&self, folder: &Path) -> Self {
        Self { set: self.set.clone(), folder: Arc::new(folder.to_owned()) }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// True if a hook may refuse calls.
    pub fn denies(&self) -> bool {
        self.set.as_ref().is_some_and(|set| !set.denying.is_empty())
    }

    /// True if a hook may refuse this call.
    pub fn is_for(&self, facts: &HookFacts) -> bool {
        self.set.as_ref().is_some_and(|set| set.denying.iter().any(|hook| hook.is_for(facts)))
    }

    /// Runs the `deny` hooks for a call, those of a policy first. Returns the first refusal. Dropping the future kills
    /// the program that runs.
    pub async fn refusal(&self, facts: &HookFacts) -> Option<HookRefusal> {
        let set = self.set.as_ref()?;
        for hook in set.denying.iter().filter(|hook| hook.is_for(facts)) {
            let refused = match set.programs.run(hook, facts).await {
                Ok(output) => hook.read_answer(&output),
                Err(why) => Err(hook.refusal(&format!("{why}, so the call is refused"))),
            };
            if let Err(refusal) = refused {
                tracing::info!(hook = hook.id, session = facts.session, "a hook refused a call");
                return Some(refusal);
            }
        }
        None
    }

    /// Queues a notification. Never waits.
    pub fn notify(&self, facts: impl FnOnce() -> HookFacts) {
        let Some(set) = self.set.as_ref().filter(|set| !set.notified.is_empty()) else { return };
        let facts = facts();
        if set.notified.iter().any(|hook| hook.is_for(&facts))
            && set.queue().try_send(QueueItem::Notify(Box::new(facts))).is_err()
        {
            let dropped = set.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::warn!(dropped, "a notification of a hook was dropped, because too many wait");
        }
    }

    /// Waits until earlier notifications are delivered, at most for this time.
    pub async fn settle(&self, time: Duration) {
        let Some(queue) = self.set.as_ref().and_then(|set| set.queue.get()) else { return };
        let (fence, passed) = oneshot::channel();
        let settled = async {
            if queue.send(QueueItem::Fence(fence)).await.is_ok() {
                // The task ends with the runtime.
                let _ = passed.await;
            }
        };
        if tokio::time::timeout(time, settled).await.is_err() {
            tracing::warn!("notifications of hooks were not delivered in time");
        }
    }
}

fn is_telemetry_header(name: &OsString) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("OTEL_") && name.ends_with("_HEADERS"))
}

impl HookSet {
    fn queue(&self) -> &mpsc::Sender<QueueItem> {
        self.queue.get_or_init(|| {
            let (queue, waiting) = mpsc::channel(MAX_WAITING);
            tokio::spawn(deliver(waiting, self.notified.clone(), self.programs.clone()));
            queue
        })
    }
}

async fn deliver(mut waiting: mpsc::Receiver<QueueItem>, hooks: Vec<Hook>, programs: HookPrograms) {
    while let Some(item) = waiting.recv().await {
        let facts = match item {
            QueueItem::Notify(facts) => facts,
            QueueItem::Fence(passed) => {
                // The waiting side may have given up.
                let _ = passed.send(());
                continue;
            }
        };
        for hook in hooks.iter().filter(|hook| hook.is_for(&facts)) {
            if let Err(why) = programs.run(hook, &facts).await {
                tracing::warn!(hook = hook.id, why, "a hook failed");
            }
        }
    }
}

impl HookPrograms {
    /// Returns the output of a program that ended with status 0, or else a clause.
    async fn run(&self, hook: &Hook, facts: &HookFacts) -> Result<Vec<u8>, String> {
        let input = serde_json::to_vec(facts).map_err(|error| error.to_string())?;
        let run = self.run_program(hook, facts.folder.clone(), &input);
        match tokio::time::timeout(hook.timeout, run).await {
            Ok(ended) => ended,
            Err(_) => Err(format!("it did not end within {} s", hook.timeout.as_secs())),
        }
    }

    async fn run_program(&self, hook: &Hook, cwd: PathBuf, input: &[u8]) -> Result<Vec<u8>, String> {
        let command = Command {
            program: hook.command[0].clone(),
            arguments: hook.command[1..].to_vec(),
            cwd,
            environment: Some(self.environment.clone()),
            settings: &[],
            own: Vec::new(),
            confinement: Confinement::Off,
            streams: Streams::Piped,
            terminal: TerminalAccess::None,
            waits: false,
        };
        let started = self.processes.start(command).await;
        let mut process = started.map_err(|error| format!("it cannot be started: {error}"))?;
        let ChildStdio { from, mut to } = process.take_stdio().ok_or("it has no input and output")?;
        let write = async {
            // A program need not read its input.
            let _ = to.write_all(input).await;
            drop(to);
        };
        let read = async {
            let mut output = Vec::new();
            from.take(MAX_ANSWER + 1).read_to_end(&mut output).await.map(|_| output)
        };
        let exit = async {
            while let Some(event) = process.next().await {
                match event {
                    Event::Exited(Exit::Status(0)) => return Ok(()),
                    Event::Exited(Exit::Status(status)) => {
                        return Err(format!("it ended with status {status}"));
                    }
                    Event::Exited(Exit::Signal(signal)) => return Err(format!("signal {signal} ended it")),
                    Event::Failed(reason) => return Err(format!("it cannot be run: {reason}")),
                    Event::Output(_) | Event::Error(_) | Event::Job(_) | Event::Broker(_) => {}
                    Event::Gone { .. } => break,
                }
            }
            Err("its end is unknown".to_owned())
        };
        let (exit, output, ()) = tokio::join!(exit, read, write);
        exit?;
        let output = output.map_err(|error| format!("its output cannot be read: {error}"))?;
        if output.len() as u64 > MAX_ANSWER {
            return Err(format!("its output is longer than {} KiB", MAX_ANSWER / 1024));
        }
        Ok(output)
    }
}
