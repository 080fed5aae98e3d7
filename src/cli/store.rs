//! Implements `modegate store`: checks the file of sessions, saves what can be read of a damaged one, or sets it
//! aside.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Subcommand;

use super::sessions::existing_store;
use crate::config::Flags;
use crate::config::environment::Environment;
use crate::store::check::{self, Condition, Soundness};
use crate::store::salvage::{self, Salvaged};
use crate::text::{counted, megabytes};

#[derive(Debug, Clone, Copy, Subcommand)]
pub(super) enum StoreAction {
    /// Read the whole store, and say whether it is sound
    Check,
    /// Save what can be read of a damaged store in a new one, and keep the damaged file
    Salvage {
        /// Salvage the store also if the check finds no damage
        #[arg(long)]
        force: bool,
    },
    /// Set the store aside, so that the next session starts a new one
    Reset,
}

pub(super) fn run(
    action: StoreAction,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    let path = existing_store(flags, environment)?;
    let name = path.display();
    match action {
        StoreAction::Check => {
            let Condition { soundness, bytes, free_bytes, sessions } =
                check::examine(&path, None).with_context(|| name.to_string())?;
            let sessions = counted(sessions, "session", "sessions");
            let (size, free) = (megabytes(bytes), megabytes(free_bytes));
            match soundness {
                Soundness::Damaged(finding) => {
                    writeln!(output, "damaged  {name}: {finding}")?;
                    writeln!(output, "         `modegate store salvage` saves what can be read")?;
                    return Ok(ExitCode::FAILURE);
                }
                Soundness::Sound | Soundness::Unfinished => {
                    writeln!(output, "ok       {name}: {sessions}, {size}, {free} of it free")?;
                }
            }
        }
        StoreAction::Salvage { force } => {
            let salvaged = salvage::salvage(&path, force).with_context(|| name.to_string())?;
            let Some(Salvaged { sessions, events, memories, incomplete, kept }) = salvaged else {
                bail!(
                    "{name}: no damage is found, so it stays as it is; `modegate store salvage --force` makes a new \
                     store of it"
                );
            };
            let sessions = counted(sessions, "session", "sessions");
            let (events, memories) =
                (counted(events, "event", "events"), counted(memories, "memory", "memories"));
            writeln!(output, "{sessions} with {events}, and {memories}, are in the new store {name}")?;
            if !incomplete.is_empty() {
                writeln!(output, "rows are missing in: {}", incomplete.join(", "))?;
            }
            writeln!(output, "the old file is kept as {}", kept.display())?;
        }
        StoreAction::Reset => {
            let kept_path = salvage::reset(&path).with_context(|| name.to_string())?;
            writeln!(output, "the store is now {}; the next session starts a new one", kept_path.display())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
