//! Implements `modegate scripts`: a gallery of scripts for developers of ACP clients.

use std::io::Write;
use std::process::ExitCode;

use clap::Subcommand;

use super::{UsageError, unused};
use crate::config::Flags;
use crate::model::{gallery, scripted};

#[derive(Debug, Subcommand)]
pub(super) enum ScriptsCommand {
    /// List the scripts, and what each shows
    #[command(args = [unused::argument("cwd"), unused::argument("store")])]
    List,
    /// Print a script, to change it and run it with --model scripted:FILE
    #[command(args = [unused::argument("cwd"), unused::argument("store")])]
    Show {
        /// Name of the script
        name: String,
    },
    /// Serve a client with a script as the model, as --model scripted:@NAME does
    Run {
        /// Name of the script
        name: String,
    },
    /// Print the JSON Schema of a line of a script
    #[command(args = [unused::argument("cwd"), unused::argument("store")])]
    Schema,
}

/// Returns `None` if a client is to be served.
pub(super) fn run(
    action: &ScriptsCommand,
    flags: &mut Flags,
    mut output: impl Write,
) -> anyhow::Result<Option<ExitCode>> {
    match action {
        ScriptsCommand::List => {
            for script in gallery::GALLERY {
                writeln!(output, "{:12}{}", script.name, script.about())?;
            }
        }
        ScriptsCommand::Show { name } => {
            output.write_all(gallery::find(name).map_err(UsageError::new)?.text.as_bytes())?;
        }
        ScriptsCommand::Schema => writeln!(output, "{:#}", scripted::line_schema())?,
        ScriptsCommand::Run { name } => {
            gallery::find(name).map_err(UsageError::new)?;
            if let Some(model) = &flags.model {
                return Err(
                    UsageError::new(format!("--model {model}: the script {name} is the model")).into()
                );
            }
            flags.model = Some(format!("scripted:@{name}"));
            return Ok(None);
        }
    }
    Ok(Some(ExitCode::SUCCESS))
}
