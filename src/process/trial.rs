//! Self-test of the read-only sandbox: each action must fail in the sandbox, and succeed outside as a
//! control.

use std::path::Path;

use super::shell::{CommandSandbox, Shell};
use super::{Event, Exit};

/// Only the first action may succeed in the sandbox.
const ATTEMPTS: &str = "read -r line < look && echo \"$line\"
(echo x > written) 2>/dev/null && echo wrote
(chmod 700 look) 2>/dev/null && echo chmod
(exec 3<>/dev/udp/127.0.0.1/9) 2>/dev/null && echo network
exit 0
";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tried {
    /// The network was tried too, which only bash can do on its own.
    pub network: bool,
}

pub async fn try_read_only(shell: &Shell, folder: &Path) -> Result<Tried, String> {
    std::fs::write(folder.join("look"), "looked\n")
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    let sandbox = shell.read_only(&[folder.to_owned()]).ok_or("this kernel cannot sandbox commands")?;
    let could = attempt(shell, folder, &sandbox).await?;
    if could != ["looked"] {
        return Err(format!("in the sandbox, a command could do this: {}", could.join(", ")));
    }
    let free = attempt(shell, folder, &CommandSandbox::none()).await?;
    if !free.starts_with(&["looked", "wrote", "chmod"].map(str::to_owned)) {
        let could = free.join(", ");
        return Err(format!(
            "the test is inconclusive: without the sandbox, the command could only do this: {could}"
        ));
    }
    Ok(Tried { network: free.len() > 3 })
}

async fn attempt(shell: &Shell, folder: &Path, sandbox: &CommandSandbox) -> Result<Vec<String>, String> {
    let started = shell.start(ATTEMPTS, folder, sandbox).await;
    let mut process = started.map_err(|error| format!("a command cannot be started: {error}"))?;
    let mut output = Vec::new();
    while let Some(event) = process.next().await {
        match event {
            Event::Output(bytes) | Event::Error(bytes) => output.extend(bytes),
            Event::Exited(Exit::Status(0)) | Event::PolicySet { .. } | Event::Gone { confirmed: true, .. } => {}
            Event::Exited(exit) => return Err(format!("a command ended with {exit:?}")),
            Event::Gone { .. } => return Err("the end of a command could not be confirmed".into()),
            Event::Failed(reason) => return Err(reason),
        }
    }
    Ok(String::from_utf8_lossy(&output).lines().map(str::to_owned).collect())
}
