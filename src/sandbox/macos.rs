//! The sandbox on macOS: `sandbox-exec` applies a [`Profile`] and executes the command. Written, never run on macOS.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::{fs, io};

use super::seatbelt::Profile;
use super::seatbelt::trial::{self, TrialCommand};
use super::{Confinement, Support};
use crate::platform::files::{create_private_folder, real_path};

/// Not looked up in `PATH`, which a project may set.
const SANDBOX_EXEC: &str = "/usr/bin/sandbox-exec";

/// Runs the trial at the first call, which takes as long as some thirty short commands.
pub fn support() -> Support {
    static SUPPORT: OnceLock<Support> = OnceLock::new();
    SUPPORT.get_or_init(|| try_sandbox().map_or_else(Support::None, |()| Support::Seatbelt)).clone()
}

/// With `sandbox-exec` in front if the command is confined. The error is a sentence.
pub fn command(
    confinement: &Confinement,
    own_folder: Option<&Path>,
    program: PathBuf,
    arguments: Vec<String>,
) -> Result<(PathBuf, Vec<OsString>), String> {
    let profile = Profile::of(confinement, own_folder).map_err(|reason| format!("its sandbox {reason}"))?;
    let arguments = arguments.into_iter().map(OsString::from);
    let Some(profile) = profile else { return Ok((program, arguments.collect())) };
    let text = profile.to_text();
    let text = text.map_err(|path| format!("its sandbox cannot name the path {}", path.display()))?;
    let front = ["-p".into(), text.into(), program.into_os_string()];
    Ok((SANDBOX_EXEC.into(), front.into_iter().chain(arguments).collect()))
}

/// Only Linux shows the first environment of a process to others.
pub fn wipe_variable(_: &str) {}

fn try_sandbox() -> Result<(), String> {
    let failed = |error: io::Error| format!("the trial of the sandbox failed: {error}");
    let folder = real_path(std::env::temp_dir()).map_err(failed)?;
    let folder = folder.join(format!("modegate-trial-{}", uuid::Uuid::now_v7()));
    create_private_folder(&folder).map_err(failed)?;
    let outcome = trial::attempt(&folder, start_other, run);
    let removed = fs::remove_dir_all(&folder).map_err(failed);
    outcome.and(removed)
}

/// Kills the process when dropped.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_other() -> io::Result<(u32, Other)> {
    let child = Command::new("/bin/sleep").arg("60").stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    Ok((child.id(), Other(child)))
}

fn run(trial: TrialCommand<'_>) -> io::Result<String> {
    let confinement = if trial.is_sandboxed {
        Confinement::ReadOnly { read: vec![trial.folder.to_owned()], build: None, denied: None }
    } else {
        Confinement::Off
    };
    let arguments = vec!["-c".into(), trial.script.into()];
    let own_folder = Some(trial.own_folder);
    let (program, arguments) =
        command(&confinement, own_folder, "/bin/sh".into(), arguments).map_err(io::Error::other)?;
    let output = Command::new(program)
        .args(arguments)
        .current_dir(trial.folder)
        .env("TMPDIR", trial.own_folder)
        .env("OTHER", trial.other.to_string())
        .stdin(Stdio::null())
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
