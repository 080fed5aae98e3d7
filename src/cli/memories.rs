//! Implements `modegate memories`.

use std::io::Write;
use std::process::ExitCode;

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;

use super::sessions::{open, open_to_read};
use crate::config::environment::Environment;
use crate::config::{self, Flags};

#[derive(Debug, Subcommand)]
pub(super) enum MemoriesCommand {
    /// List memories of this directory, oldest first
    List {
        /// Include all directories
        #[arg(long)]
        all: bool,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Delete memories permanently, from any directory
    Delete {
        /// Ids of the memories to delete
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

/// Security: the terminal would obey control characters.
fn visible(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control() || *c == '\n').collect();
    text.replace('\n', "\n    ")
}

pub(super) async fn run(
    action: MemoriesCommand,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    match action {
        MemoriesCommand::List { all, json } => {
            let store = open_to_read(flags, environment)?;
            let here = config::real_working_folder(flags)?;
            let here = (!all).then(|| here.to_string_lossy().into_owned());
            let memories = store.memories(here).await?;
            if memories.is_empty() && !json {
                let where_not = if all { "" } else { " of this directory; --all lists the others" };
                writeln!(output, "No memories{where_not}.")?;
            }
            for (folder, memory) in &memories {
                if json {
                    let line = json!({
                        "id": memory.id, "folder": folder, "category": memory.category, "text": memory.text,
                        "created": memory.created, "updated": memory.updated,
                    });
                    writeln!(output, "{line}")?;
                } else {
                    let category = memory.category.as_ref().map(|it| format!("[{it}] ")).unwrap_or_default();
                    let folder = if all { format!("{}  ", folder.display()) } else { String::new() };
                    let text = visible(&format!("{folder}{category}{}", memory.text));
                    writeln!(output, "{}  {}  {text}", memory.id, memory.updated)?;
                }
            }
        }
        MemoriesCommand::Delete { ids } => {
            let store = open(flags, environment)?;
            for id in ids {
                if !store.delete_memory(&id).await? {
                    bail!("there is no memory {id:?}: `modegate memories list --all` lists them");
                }
                writeln!(output, "deleted {id}")?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
