//! Implements `modegate trust`.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::confirmation::is_confirmed;
use crate::config::environment::Environment;
use crate::config::managed_file;
use crate::config::policies::{self, Policies, TrustRequest};
use crate::config::{self, Flags};
use crate::managed_policy::BY_POLICY;

#[derive(Debug, clap::Args)]
pub(super) struct TrustArguments {
    /// Modes file [default: the .modegate/modes.yaml of the current project]
    file: Option<PathBuf>,
    /// List the trusted files, and which of them have changed since
    #[arg(long, conflicts_with_all = ["file", "revoke", "yes"])]
    list: bool,
    /// Trust without asking; without a terminal, there is no question
    #[arg(long, conflicts_with = "revoke")]
    yes: bool,
    /// End the trust in the file, in all contents that it had
    #[arg(long)]
    revoke: bool,
}

/// Without `ask`, there is no question.
pub(super) fn run(
    arguments: TrustArguments,
    flags: &Flags,
    environment: &Environment,
    ask: Option<impl Read>,
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
    let TrustRequest { file, additions, is_trusted } = policies.trust_request(&file)?;
    let name = format!("{} (hash {})", file.path.display(), &file.hash[..12]);
    if is_trusted {
        writeln!(output, "Trusted already with its present content: {name}.")?;
        return Ok(ExitCode::SUCCESS);
    }
    if additions.is_empty() {
        writeln!(output, "{name} contains nothing that needs trust: it only narrows.")?;
    } else {
        writeln!(output, "With your trust, these parts of {name} count like your own:")?;
        for line in additions {
            writeln!(output, "  {line}")?;
        }
    }
    if let Some(input) = ask.filter(|_| !arguments.yes)
        && !is_confirmed("Trust this file?", input, &mut output)?
    {
        writeln!(output, "Nothing was trusted.")?;
        return Ok(ExitCode::SUCCESS);
    }
    policies.trust(file)?;
    writeln!(output, "Trusted with its present content: {name}. A change to the file ends the trust.")?;
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
