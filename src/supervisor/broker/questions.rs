//! Calls that wait for the user's answer.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::caller;
use super::notification::{CallListener, SuspendedCall};
use crate::supervisor::protocol::{ChangeKind, ChangeQuestion, Executable};

/// Calls that wait at the same time. More are refused.
const MAX_WAITING: usize = 256;

/// How often the broker looks for callers that are gone.
const INTERVAL: Duration = Duration::from_millis(200);

/// A change without consent so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AskedChange {
    pub change: ChangeKind,
    pub path: PathBuf,
    pub to: Option<PathBuf>,
    /// Files that move with a folder, relative to it.
    pub files: Vec<PathBuf>,
}

impl AskedChange {
    pub(super) fn new(change: ChangeKind, path: &Path) -> Self {
        Self { change, path: path.to_owned(), to: None, files: Vec::new() }
    }
}

#[derive(Default)]
pub(super) struct ChangeQuestions {
    waiting: Mutex<WaitingCalls>,
    changed: Condvar,
}

#[derive(Default)]
struct WaitingCalls {
    calls: HashMap<u64, (SuspendedCall, AskedChange)>,
    last: u64,
}

impl ChangeQuestions {
    /// Keeps a call, and returns the question to ask. Returns the call if too many wait.
    pub(super) fn add(
        &self,
        call: SuspendedCall,
        asked: AskedChange,
        executable: Option<Executable>,
    ) -> Result<ChangeQuestion, SuspendedCall> {
        let mut waiting = self.lock();
        if waiting.calls.len() >= MAX_WAITING {
            return Err(call);
        }
        waiting.last += 1;
        let number = waiting.last;
        let AskedChange { change, path, to, files } = asked.clone();
        let program = caller::name(call.thread);
        let question = ChangeQuestion { number, change, path, to, files, program, executable };
        waiting.calls.insert(number, (call, asked));
        self.changed.notify_one();
        Ok(question)
    }

    pub(super) fn take(&self, number: u64) -> Option<(SuspendedCall, AskedChange)> {
        self.lock().calls.remove(&number)
    }

    pub(super) fn take_all(&self) -> Vec<(u64, SuspendedCall)> {
        std::mem::take(&mut self.lock().calls).into_iter().map(|(number, (call, _))| (number, call)).collect()
    }

    /// Waits until calls are no longer suspended, and returns their numbers.
    pub(super) fn take_gone(&self, listener: &CallListener) -> Vec<u64> {
        let mut waiting = self.lock();
        while waiting.calls.is_empty() {
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        drop(waiting);
        std::thread::sleep(INTERVAL);
        let calls = &mut self.lock().calls;
        calls.extract_if(|_, (call, _)| !listener.is_suspended(call)).map(|(number, _)| number).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, WaitingCalls> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
