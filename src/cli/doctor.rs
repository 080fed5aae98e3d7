//! Implements `modegate doctor`.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use crate::config::Flags;
use crate::config::doctor_checks::{self, CheckState};
use crate::config::environment::Environment;
use crate::config::online;

#[derive(Debug, Args)]
pub(super) struct DoctorArguments {
    /// Also ask the model of new sessions, and the small model, for a short reply from the provider
    #[arg(long)]
    online: bool,
}

pub(super) async fn run(
    arguments: &DoctorArguments,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    let mut findings = doctor_checks::check(flags, environment).await;
    if arguments.online {
        findings.extend(online::findings(flags, environment).await);
    }
    let mut has_passed = true;
    for finding in findings {
        let (mark, text) = match finding.state {
            CheckState::Fine(text) => ("ok    ", text),
            CheckState::Note(text) => ("-     ", text),
            CheckState::Wrong { reason, advice } => {
                has_passed = false;
                ("WRONG ", format!("{reason}\n{:28}{advice}", ""))
            }
        };
        writeln!(output, "{mark}{:20}  {text}", finding.what)?;
    }
    Ok(if has_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
