//! API key of a provider: given, or printed by the user's own command when the key is first needed.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use tokio::sync::OnceCell;

use crate::process::{Command, Event, Exit, Processes, Streams, TerminalAccess};
use crate::sandbox::Confinement;
use crate::text::shorten;

/// Timeout of a key command, long enough to ask the user for a password.
const TIMEOUT: Duration = Duration::from_mins(1);

const MAX_ERROR: usize = 120;

/// Maximum bytes kept of stdout, and of stderr.
const MAX_OUTPUT: usize = 64 * 1024;

/// A key, or the command that prints the key. The key is never displayed.
#[derive(Debug)]
pub struct Key {
    command: Option<(String, Processes)>,
    key: OnceCell<SecretString>,
}

impl Key {
    pub fn given(key: SecretString) -> Self {
        Self { command: None, key: OnceCell::new_with(Some(key)) }
    }

    /// The command prints the key as its first line.
    pub fn from_command(command: String, processes: Processes) -> Self {
        Self { command: Some((command, processes)), key: OnceCell::new() }
    }

    pub async fn get(&self) -> Result<&SecretString, String> {
        self.key
            .get_or_try_init(async || match &self.command {
                Some((command, processes)) => run(command, processes).await,
                None => Err("no key is set".into()),
            })
            .await
    }
}

/// Runs the user's own command with the user's own rights, unsandboxed. Dropping the future ends it.
async fn run(command: &str, processes: &Processes) -> Result<SecretString, String> {
    let (shell, flag) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    let command = Command {
        program: shell.into(),
        arguments: vec![flag.into(), command.into()],
        cwd: PathBuf::from("."),
        environment: None,
        settings: &[],
        confinement: Confinement::Off,
        streams: Streams::Apart,
        waits: false,
        own: Vec::new(),
        terminal: TerminalAccess::Shared,
    };
    let started = processes.start(command).await;
    let mut process = started.map_err(|error| format!("key_command cannot be run: {error}"))?;
    let (mut output, mut errors, mut exit) = (Vec::new(), Vec::new(), None);
    let all = async {
        while let Some(event) = process.next().await {
            match event {
                Event::Output(bytes) if output.len() < MAX_OUTPUT => output.extend(bytes),
                Event::Error(bytes) if errors.len() < MAX_OUTPUT => errors.extend(bytes),
                Event::Exited(ended) => exit = Some(ended),
                Event::Failed(reason) => return Err(format!("key_command cannot be run: {reason}")),
                Event::Output(_)
                | Event::Error(_)
                | Event::Job(_)
                | Event::Broker(_)
                | Event::Gone { .. } => {}
            }
        }
        Ok(())
    };
    match tokio::time::timeout(TIMEOUT, all).await {
        Ok(done) => done?,
        Err(_) => return Err(format!("key_command took longer than {} s", TIMEOUT.as_secs())),
    }
    let ended = match exit {
        Some(Exit::Status(0)) => None,
        Some(Exit::Status(status)) => Some(format!("exit status {status}")),
        Some(Exit::Signal(signal)) => Some(format!("signal {signal}")),
        None => Some("unknown exit status".into()),
    };
    if let Some(ended) = ended {
        let message = String::from_utf8_lossy(&errors);
        let message = message.lines().next().unwrap_or_default();
        return Err(format!("key_command failed ({ended}): {}", shorten(message, MAX_ERROR)));
    }
    let text = String::from_utf8(output).map_err(|_| "key_command printed bytes that are not UTF-8")?;
    match text.lines().next().map(str::trim).filter(|key| !key.is_empty()) {
        Some(key) => Ok(SecretString::from(key)),
        None => Err("key_command printed nothing".into()),
    }
}
