//! Self-tests of the sandboxes: each denied action must fail in the sandbox, and succeed outside as a control.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;

use super::shell::{AgentFolders, AgentNetwork, CommandSandbox, Shell};
use super::{AllowedHosts, BrokerEvent, DeniedActs, DenyingRule, Event, Exit, Process};
use crate::platform::files::real_path;
use crate::sandbox::BrokerPolicy;

/// Time for a trial of the broker.
const LIMIT: Duration = Duration::from_secs(10);

/// Trials of the broker: on a busy machine, a killed process may end too late for one of them.
const MAX_TRIALS: usize = 3;

/// Only the first action may succeed in the sandbox.
const ATTEMPTS: &str = "read -r line < look && echo \"$line\"
(echo x > written) 2>/dev/null && echo wrote
(chmod 700 look) 2>/dev/null && echo chmod
(exec 3<>/dev/tcp/127.0.0.1/PORT) 2>/dev/null && echo network
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
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let attempts = ATTEMPTS.replace("PORT", &address.port().to_string());
    let could = run(shell, &attempts, folder, &sandbox).await?;
    if could != ["looked"] {
        return Err(format!("in the sandbox, a command could do this: {}", could.join(", ")));
    }
    let free = run(shell, &attempts, folder, &CommandSandbox::none()).await?;
    if !free.starts_with(&["looked", "wrote", "chmod"].map(str::to_owned)) {
        let could = free.join(", ");
        return Err(format!(
            "the test is inconclusive: without the sandbox, the command could only do this: {could}"
        ));
    }
    Ok(Tried { network: free.len() > 3 })
}

/// Changes files in `inside` while signals arrive, as language runtimes send them, and tries one beside it before the
/// policy becomes tighter. Ends after the file `end` is there. The signals take the time of a processor, so they end with
/// the changes of the shell itself: its child processes, which make the other changes, get none.
const BROKERED: &str = "trap : USR1
(until [ -e inside/over ] || ! kill -USR1 $$; do :; done) 2>/dev/null &
count=0
while [ $count -lt 25 ]; do : > inside/file && count=$((count + 1)) || break; done
: > inside/over
echo \"wrote $count\"
(echo x > outside) 2>/dev/null && echo escaped
mv inside/file inside/moved && chmod 600 inside/moved && echo moved
while (echo x >> inside/moved) 2>/dev/null; do sleep 0.01; done
echo stopped
until [ -e end ]; do sleep 0.01; done
exit 0
";

/// Expected output before the policy becomes tighter.
const BEFORE: &str = "wrote 25\nmoved\n";

#[derive(Debug)]
enum BrokerFault {
    NotTakenBack,
    /// The reason, as a sentence.
    Other(String),
}

impl From<String> for BrokerFault {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

/// Whether the broker works here, tried once in each process.
#[derive(Debug, Clone, Default)]
pub(super) struct BrokerTrial(Arc<OnceCell<bool>>);

impl BrokerTrial {
    pub(super) async fn run(&self, shell: &Shell) -> bool {
        let tried = self.0.get_or_init(async || match try_broker_in_scratch(shell).await {
            Ok(()) => true,
            Err(reason) => {
                tracing::warn!("external agents run without the broker: {reason}");
                false
            }
        });
        *tried.await
    }

    /// `None` before the end of the trial.
    pub(super) fn result(&self) -> Option<bool> {
        self.0.get().copied()
    }
}

async fn try_broker_in_scratch(shell: &Shell) -> Result<(), String> {
    let scratch = shell.processes().scratch();
    let folder = create_folder(scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    let tried = try_broker(shell, &folder).await;
    let removed = std::fs::remove_dir_all(&folder);
    tried?;
    removed.map_err(|error| format!("{}: {error}", folder.display()))
}

/// Returns the folder without links in its path, as the broker compares paths.
fn create_folder(scratch: &Path) -> std::io::Result<PathBuf> {
    let folder = scratch.join(format!("modegate-trial-{}", uuid::Uuid::now_v7()));
    std::fs::create_dir(&folder)?;
    real_path(folder)
}

/// In an empty folder, a brokered command changes files below a root, none elsewhere, and nothing after the
/// policy has become tighter. The error is a sentence.
pub async fn try_broker(shell: &Shell, folder: &Path) -> Result<(), String> {
    for number in 0..MAX_TRIALS {
        match try_broker_once(shell, &folder.join(number.to_string())).await {
            Ok(()) => return Ok(()),
            Err(BrokerFault::Other(reason)) => return Err(reason),
            Err(BrokerFault::NotTakenBack) => {}
        }
    }
    Err("open files of a command could not be taken back".into())
}

async fn try_broker_once(shell: &Shell, folder: &Path) -> Result<(), BrokerFault> {
    let inside = folder.join("inside");
    std::fs::create_dir_all(&inside).map_err(|error| format!("{}: {error}", inside.display()))?;
    // The folder of the trial is a temporary one.
    let roots = [inside];
    let folders = AgentFolders { leaves_temporary: true, ..AgentFolders::of(&roots, &[]) };
    let sandbox = shell.brokered_agent(folders, BrokerPolicy::Roots, None, AgentNetwork::OPEN)?;
    let started = shell.start(BROKERED, folder, &sandbox).await;
    let mut process = started.map_err(|error| format!("a command cannot be started: {error}"))?;
    let result = tokio::time::timeout(LIMIT, follow_broker(&mut process, folder)).await;
    process.end().await;
    result.unwrap_or_else(|_| {
        Err(format!("a brokered command did not end within {} s", LIMIT.as_secs()).into())
    })
}

const READ: &str = "cat allowed denied 2>/dev/null\nexit 0\n";

/// In an empty folder, a read-only and a brokered command may read one of two files. The error is a sentence.
pub async fn try_reads(shell: &Shell, folder: &Path) -> Result<(), String> {
    for name in ["allowed", "denied"] {
        let file = folder.join(name);
        std::fs::write(&file, format!("{name}\n")).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let (shell, roots) = (shell.denying_reads(vec!["denied".into()]), [folder.to_owned()]);
    let read_only = shell.read_only(&roots).ok_or("this kernel cannot sandbox commands")?;
    let brokered =
        shell.brokered_agent(AgentFolders::of(&roots, &[]), BrokerPolicy::Roots, None, AgentNetwork::OPEN)?;
    for sandbox in [read_only, brokered] {
        let tried = tokio::time::timeout(LIMIT, run(&shell, READ, folder, &sandbox)).await;
        let lines =
            tried.unwrap_or_else(|_| Err(format!("a command did not end within {} s", LIMIT.as_secs())))?;
        if lines != ["allowed"] {
            return Err(format!("a command that may read one of two files read {lines:?}"));
        }
    }
    Ok(())
}

const CHANGE: &str =
    "for file in allowed denied; do (echo x > $file) 2>/dev/null && echo $file; done\nexit 0\n";

/// In an empty folder, a brokered command may change one of two files. The error is a sentence.
pub async fn try_changes(shell: &Shell, folder: &Path) -> Result<(), String> {
    // The broker compares paths without links.
    let root = real_path(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let rule = DenyingRule { name: "denied".into(), pattern: "denied".into(), denies: DeniedActs::All };
    let sandbox = shell.denying_changes(vec![rule]).workspace(&[root]);
    let tried = tokio::time::timeout(LIMIT, run(shell, CHANGE, folder, &sandbox)).await;
    let lines =
        tried.unwrap_or_else(|_| Err(format!("a command did not end within {} s", LIMIT.as_secs())))?;
    if lines != ["allowed"] {
        return Err(format!("a command that may change one of two files changed {lines:?}"));
    }
    Ok(())
}

const CONNECT: &str = "(exec 3<>/dev/tcp/127.0.0.1/PORT) 2>/dev/null && echo connected\nexit 0\n";

/// A brokered command connects to an allowed host, and to no other. Returns a sentence if the network is open
/// in every mode, or if the shell cannot try it.
pub async fn try_network(shell: &Shell, folder: &Path) -> Result<(), String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let line = CONNECT.replace("PORT", &address.port().to_string());
    let connects = async |hosts: &str| {
        let hosts = AllowedHosts { patterns: hosts.parse().into_iter().collect(), ..AllowedHosts::default() };
        let network = AgentNetwork::limited(hosts, BrokerPolicy::Nothing);
        let sandbox = shell.brokered_agent(AgentFolders::default(), BrokerPolicy::Nothing, None, network)?;
        let tried = tokio::time::timeout(LIMIT, run(shell, &line, folder, &sandbox)).await;
        tried.unwrap_or_else(|_| Err(format!("a brokered command did not end within {} s", LIMIT.as_secs())))
    };
    if connects("example.com").await? == ["connected"] {
        return Err("the network cannot be limited here: this takes Linux 6.9 and pidfd_getfd".into());
    }
    if connects(&address.to_string()).await? != ["connected"] {
        return Err("a limit of the network can be tried only if the shell is bash".into());
    }
    Ok(())
}

async fn follow_broker(process: &mut Process, folder: &Path) -> Result<(), BrokerFault> {
    let length_of_moved =
        || std::fs::metadata(folder.join("inside/moved")).ok().map(|metadata| metadata.len());
    let mut output = String::new();
    let (mut is_tightened, mut length) = (false, None);
    while let Some(event) = process.next().await {
        match event {
            Event::Output(bytes) | Event::Error(bytes) => output.push_str(&String::from_utf8_lossy(&bytes)),
            Event::Broker(BrokerEvent::PolicySet { is_complete: true, .. }) => {
                length = length_of_moved();
                let end = folder.join("end");
                std::fs::write(&end, "").map_err(|error| format!("{}: {error}", end.display()))?;
            }
            Event::Broker(BrokerEvent::PolicySet { .. }) => {
                return Err(BrokerFault::NotTakenBack);
            }
            Event::Exited(Exit::Status(0))
            | Event::Job(_)
            | Event::Broker(_)
            | Event::Gone { confirmed: true, .. } => {}
            Event::Exited(exit) => {
                return Err(format!("a brokered command ended with {exit:?}: {output}").into());
            }
            Event::Gone { .. } => {
                return Err("the end of a command could not be confirmed".to_owned().into());
            }
            Event::Failed(failure) => return Err(failure.reason.into()),
        }
        if output.contains("escaped") {
            // The policy stays as it is, so the command would not end.
            break;
        }
        if output.starts_with(BEFORE) && !std::mem::replace(&mut is_tightened, true) {
            process.set_policy(BrokerPolicy::Nothing).await;
        }
    }
    if output != format!("{BEFORE}stopped\n") || length.is_none() || length_of_moved() != length {
        let output = output.escape_debug();
        return Err(format!("a brokered command did something unexpected: {output}").into());
    }
    Ok(())
}

/// Returns the lines of the output.
async fn run(
    shell: &Shell,
    line: &str,
    folder: &Path,
    sandbox: &CommandSandbox,
) -> Result<Vec<String>, String> {
    let started = shell.start(line, folder, sandbox).await;
    let mut process = started.map_err(|error| format!("a command cannot be started: {error}"))?;
    let mut output = Vec::new();
    while let Some(event) = process.next().await {
        match event {
            Event::Output(bytes) | Event::Error(bytes) => output.extend(bytes),
            Event::Exited(Exit::Status(0))
            | Event::Job(_)
            | Event::Broker(_)
            | Event::Gone { confirmed: true, .. } => {}
            Event::Exited(exit) => return Err(format!("a command ended with {exit:?}")),
            Event::Gone { .. } => return Err("the end of a command could not be confirmed".into()),
            Event::Failed(failure) => return Err(failure.reason),
        }
    }
    Ok(String::from_utf8_lossy(&output).lines().map(str::to_owned).collect())
}
