//! Implements `modegate trust`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};

use crate::config::environment::Environment;
use crate::config::managed_file;
use crate::config::policies::{self, Policies};
use crate::config::{self, Flags};
use crate::managed_policy::BY_POLICY;

#[derive(Debug, clap::Args)]
pub(super) struct TrustArguments {
    /// Modes file [default: the .modegate/modes.yaml of the current project]
    file: Option<PathBuf>,
    /// List the trusted files, and which of them have changed since
    #[arg(long, conflicts_with_all = ["file", "revoke"])]
    list: bool,
    /// End the trust in the file, in all contents that it had
    #[arg(long)]
    revoke: bool,
}

pub(super) fn run(
    arguments: TrustArguments,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    let policies = Policies::new(environment, None, false);
    if arguments.list {
        return list(&policies, output);
    }
    let cwd = config::real_working_folder(flags)?;
    let file = arguments.file.or_else(|| policies::project_files(&cwd).pop());
    let file = file.with_context(|| format!("there is no {} here", policies::PROJECT))?;
    if arguments.revoke {
        let revoked = policies.revoke_trust(&file)?;
        if revoked.is_empty() {
            bail!("{} is not trusted: `modegate trust --list` lists the trusted files", file.display());
        }
        for entry in revoked {
            writeln!(output, "No longer trusted: {} (hash {})", entry.path.display(), &entry.hash[..12])?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !managed_file::limits_everywhere().user_may.trust_projects {
        bail!("no project is trusted, {BY_POLICY}");
    }
    let hash = policies.trust(&file)?;
    writeln!(
        output,
        "Trusted with its present content: {} (hash {}). A change to the file ends the trust.",
        file.display(),
        &hash[..12]
    )?;
    Ok(ExitCode::SUCCESS)
}

fn list(policies: &Policies, mut output: impl Write) -> anyhow::Result<ExitCode> {
    let files = policies.trusted()?;
    if files.is_empty() {
        writeln!(output, "No file of a project is trusted.")?;
    }
    for file in files {
        writeln!(
            output,
            "{} (hash {}): {}",
            file.path.display(),
            &file.hash[..file.hash.len().min(12)],
            file.state()
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
