//! Calls that wait for the user's answer.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::supervisor::broker::notification::Call;
use crate::supervisor::protocol::{ChangeKind, ChangeQuestion};

/// Calls that wait at the same time. More are refused.
const MAX_WAITING: usize = 256;

/// How often the broker looks for callers that are gone.
const INTERVAL: Duration = Duration::from_millis(200);

/// A change without consent so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub change: ChangeKind,
    pub path: PathBuf,
    pub to: Option<PathBuf>,
    /// Files that move with a folder, relative to it.
    pub files: Vec<PathBuf>,
}

impl Asked {
    pub(super) fn new(change: ChangeKind, path: &Path) -> Self {
        Self { change, path: path.to_owned(), to: None, files: Vec::new() }
    }
}

#[derive(Default)]
pub(super) struct Questions {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    calls: HashMap<u64, (Call, Asked)>,
    last: u64,
}

impl Questions {
    /// Keeps a call, and returns the question to ask. Returns the call if too many wait.
    pub(super) fn add(&self, call: Call, asked: Asked) -> Result<ChangeQuestion, Call> {
        let mut waiting = self.lock();
        if waiting.calls.len() >= MAX_WAITING {
            return Err(call);
        }
        waiting.last += 1;
        let number = waiting.last;
        let Asked { change, path, to, files } = asked.clone();
        let question = ChangeQuestion { number, change, path, to, files, program: program(&call) };
        waiting.calls.insert(number, (call, asked));
        self.changed.notify_one();
        Ok(question)
    }

    pub(super) fn take(&self, number: u64) -> Option<(Call, Asked)> {
        self.lock().calls.remove(&number)
    }

    pub(super) fn take_all(&self) -> Vec<(u64, Call)> {
        std::mem::take(&mut self.lock().calls).into_iter().map(|(number, (call, _))| (number, call)).collect()
    }

    /// Waits until calls are no longer suspended, and returns their numbers.
    pub(super) fn take_gone(&self, is_suspended: impl Fn(&Call) -> bool) -> Vec<u64> {
        let mut waiting = self.lock();
        while waiting.calls.is_empty() {
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        drop(waiting);
        std::thread::sleep(INTERVAL);
        let calls = &mut self.lock().calls;
        let gone: Vec<u64> =
            calls.iter().filter(|(_, (call, _))| !is_suspended(call)).map(|(number, _)| *number).collect();
        for number in &gone {
            calls.remove(number);
        }
        gone
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Name of the caller's program, for people.
fn program(call: &Call) -> String {
    let name = std::fs::read(format!("/proc/{}/comm", call.thread)).unwrap_or_default();
    String::from_utf8_lossy(&name).trim().to_owned()
}
