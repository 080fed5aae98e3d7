//! A provider's key: given, or printed by a command of the user's, which runs once, when the key is first needed.

use std::process::Stdio;
use std::time::Duration;

use secrecy::SecretString;
use tokio::process::Command;
use tokio::sync::OnceCell;

/// How long a key command may take: it may ask the user for a password.
const PATIENCE: Duration = Duration::from_secs(60);

/// Characters of what a command that fails says.
const SAID: usize = 120;

/// A key, or how to come by it. It is never shown.
#[derive(Debug)]
pub struct Key {
    command: Option<String>,
    key: OnceCell<SecretString>,
}

impl Key {
    /// A key that is known.
    pub fn given(key: SecretString) -> Self {
        Self { command: None, key: OnceCell::new_with(Some(key)) }
    }

    /// A key that a shell command prints as the first line of its output.
    pub fn from_command(command: String) -> Self {
        Self { command: Some(command), key: OnceCell::new() }
    }

    /// The key. A command that fails is run again next time.
    pub async fn get(&self) -> Result<&SecretString, String> {
        self.key.get_or_try_init(|| run(self.command.as_deref().unwrap_or_default())).await
    }
}

async fn run(command: &str) -> Result<SecretString, String> {
    let (shell, flag) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    let mut process = Command::new(shell);
    process.arg(flag).arg(command).stdin(Stdio::null()).kill_on_drop(true);
    let output = match tokio::time::timeout(PATIENCE, process.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(format!("key_command cannot be run: {error}")),
        Err(_) => return Err(format!("key_command took longer than {} s", PATIENCE.as_secs())),
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said: String = said.lines().next().unwrap_or_default().chars().take(SAID).collect();
        return Err(format!("key_command failed ({}): {said}", output.status));
    }
    let text = String::from_utf8(output.stdout).map_err(|_| "key_command printed no text")?;
    match text.lines().next().map(str::trim).filter(|key| !key.is_empty()) {
        Some(key) => Ok(SecretString::from(key)),
        None => Err("key_command printed nothing".into()),
    }
}
