//! A program that is spoken to: started through a supervisor, spoken to elsewhere, ended here.
//!
//! A task of its own owns the process. What the program writes as an error goes to the log, without the values that
//! were given to it in its environment, and the last of it is kept to say why the program ended.

use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::secrets::Secrets;
use super::{Event, Exit, Process};

/// Bytes of errors that are kept.
const MAX_LAST_ERROR: usize = 2 * 1024;

/// Bytes of one line in the log.
const LINE: usize = 1024;

/// Bytes of errors that go to the log. A program that floods is not worth more.
const LOGGED: usize = 256 * 1024;

/// How long a program that is told to end in its own way may take for each of two steps.
const TIMEOUT: Duration = Duration::from_millis(400);

/// What is said of a program that did not end by itself.
const ENDED: &str = "it was ended";

/// How a program is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its input has ended; then it is asked, then it is ended.
    Graceful,
    /// At once, with all that it has started.
    Now,
}

/// How it stands.
#[derive(Debug, Clone, Default)]
pub struct ProgramStatus {
    /// What it wrote last as an error.
    pub last_error: String,
    /// How it ended, and whether for certain.
    pub over: Option<Over>,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Over {
    /// One sentence, without its end.
    pub how: String,
    /// Nothing of it is left, for certain.
    pub confirmed: bool,
}

/// A program that runs. With the last handle it is ended in its own way.
#[derive(Debug, Clone)]
pub struct Program {
    ends: mpsc::Sender<End>,
    status: watch::Receiver<ProgramStatus>,
}

impl Program {
    /// Takes charge of a process.
    pub fn start(name: &str, process: Process, secrets: Secrets) -> Self {
        let (ends, end_requests) = mpsc::channel(2);
        let (status_sender, status) = watch::channel(ProgramStatus::default());
        let run = ProgramTask {
            name: name.to_owned(),
            process,
            secrets,
            changed: status_sender,
            line: Vec::new(),
            logged: 0,
        };
        tokio::spawn(run.run(end_requests));
        Self { ends, status }
    }

    /// Ends it at once. Whether nothing of it is left, for certain.
    pub async fn end(&self) -> bool {
        // It may be over.
        let _ = self.ends.send(End::Now).await;
        self.over().await.confirmed
    }

    /// Waits until it is over; whoever no longer speaks to it lets it end in its own way.
    pub async fn shut_down(&self) -> Over {
        let _ = self.ends.send(End::Graceful).await;
        self.over().await
    }

    /// Waits until it is over.
    pub async fn over(&self) -> Over {
        let mut status = self.status.clone();
        let over = status.wait_for(|status| status.over.is_some()).await;
        let over = over.ok().and_then(|status| status.over.clone());
        over.unwrap_or_else(|| Over { how: "it was lost sight of".into(), confirmed: false })
    }

    /// Why it is over, with the last line of what it wrote as an error that speaks of one, or else the very last.
    pub fn with_last_error(&self, why: &str) -> String {
        let words = self.status().last_error;
        let lines = || words.lines().rev().map(str::trim).filter(|line| !line.is_empty());
        match lines().find(|line| line.to_ascii_lowercase().contains("error")).or_else(|| lines().next()) {
            Some(line) => format!("{why}; its last words: {line}"),
            None => why.to_owned(),
        }
    }

    /// How it stands.
    pub fn status(&self) -> ProgramStatus {
        self.status.borrow().clone()
    }
}

struct ProgramTask {
    name: String,
    process: Process,
    secrets: Secrets,
    changed: watch::Sender<ProgramStatus>,
    /// An error that is no whole line yet.
    line: Vec<u8>,
    logged: usize,
}

impl ProgramTask {
    async fn run(mut self, mut end_requests: mpsc::Receiver<End>) {
        let mut how = "it ended".to_owned();
        let mut steps: u32 = 0;
        let mut deadline = None;
        let mut listens = true;
        loop {
            tokio::select! {
                biased;
                end = end_requests.recv(), if listens => match end {
                    Some(End::Now) => {
                        listens = false;
                        deadline = None;
                        how = ENDED.into();
                        self.process.end().await;
                    }
                    Some(End::Graceful) | None => {
                        listens = end.is_some();
                        deadline.get_or_insert_with(|| tokio::time::Instant::now() + TIMEOUT);
                    }
                },
                () = at(deadline) => {
                    steps += 1;
                    if steps == 1 {
                        self.process.ask_to_end().await;
                        deadline = Some(tokio::time::Instant::now() + TIMEOUT);
                    } else {
                        deadline = None;
                        how = ENDED.into();
                        self.process.end().await;
                    }
                }
                event = self.process.next() => match event {
                    // Nobody reads it here: it goes to whoever speaks to the program.
                    Some(Event::Output(_)) => {}
                    Some(Event::Error(bytes)) => self.read_errors(&bytes),
                    Some(Event::Exited(Exit::Status(status))) => how = format!("it ended with status {status}"),
                    Some(Event::Exited(Exit::Signal(signal))) => how = format!("it was ended by signal {signal}"),
                    Some(Event::Failed(reason)) => how = self.secrets.take_out(&reason),
                    Some(Event::Gone { confirmed, .. }) => return self.report_end(how, confirmed),
                    None => return self.report_end(how, false),
                },
            }
        }
    }

    fn report_end(&mut self, how: String, confirmed: bool) {
        self.log_line();
        self.changed.send_modify(|status| status.over = Some(Over { how, confirmed }));
    }

    fn read_errors(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                self.log_line();
            } else if self.line.len() < LINE + self.secrets.longest() {
                self.line.push(*byte);
            }
        }
    }

    fn log_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return;
        }
        // Cut only once nothing secret is in it.
        let line = self.secrets.take_out(&String::from_utf8_lossy(&line));
        let line: String = line.chars().take(LINE).collect();
        if self.logged < LOGGED {
            self.logged += line.len();
            tracing::debug!(program = self.name, "{line}");
        }
        self.changed.send_if_modified(|status| {
            let words = &mut status.last_error;
            words.push_str(&line);
            words.push('\n');
            let mut start = words.len().saturating_sub(MAX_LAST_ERROR);
            while !words.is_char_boundary(start) {
                start += 1;
            }
            words.drain(..start);
            // Nobody waits for words.
            false
        });
    }
}

async fn at(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
