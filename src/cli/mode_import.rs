//! Implements `modegate modes import`: prints another tool's database of modes as a modes file (G46).
//!
//! The text passes the check of a user's own modes file. Sessions never read such a database.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};

use crate::config::policies::MAX_FILE;
use crate::mode::yaml::{list, prompt, quoted};
use crate::mode::{Access, Modes};
use crate::policy::{LayerOwner, Layers};
use crate::store::mode_table::{self, ModeRow};
use crate::text::{first_line, shorten};

const BASE: &str = "ask";

/// Maximum characters shown of the prompt of a skipped row.
const MAX_PROMPT: usize = 60;

/// Rows without a name are skipped and reported (G4).
pub(super) fn import(
    path: &Path,
    requested: &[String],
    mut output: impl Write,
    mut errors: impl Write,
) -> anyhow::Result<ExitCode> {
    let file_name = path.display();
    let mut rows = mode_table::read(path).map_err(|error| anyhow!("{file_name}: {error}"))?;
    if let Some(unknown) = requested.iter().find(|name| !rows.iter().any(|row| is_named(row, name))) {
        let names: Vec<&str> = rows.iter().map(|row| row.name.trim()).collect();
        bail!("{file_name}: unknown mode {unknown:?}; valid: {names:?}");
    }
    for nameless in rows.extract_if(.., |row| row.name.trim().is_empty()) {
        let prompt = shorten(first_line(nameless.prompt.as_deref().unwrap_or_default()), MAX_PROMPT);
        writeln!(errors, "modegate: {file_name}: skipped a row without a name, with the prompt {prompt:?}")?;
    }
    rows.retain(|row| requested.is_empty() || requested.iter().any(|name| is_named(row, name)));
    if rows.is_empty() {
        bail!("{file_name}: the table agent_modes is empty");
    }
    output.write_all(modes_file(&rows).with_context(|| file_name.to_string())?.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn is_named(row: &ModeRow, name: &str) -> bool {
    row.name.trim().eq_ignore_ascii_case(name.trim())
}

fn modes_file(rows: &[ModeRow]) -> anyhow::Result<String> {
    let mut text = String::from("# Written by `modegate modes import`.\nmodes:\n");
    for row in rows {
        for (number, line) in mode_of(row).lines().enumerate() {
            let indent = if number == 0 { "  - " } else { "    " };
            text.extend([indent, line, "\n"]);
        }
        // Checked after each row, so that the error names the first invalid one.
        let checked = Layers::default().add("modes.yaml", &text, LayerOwner::User);
        checked.map_err(|diagnostic| anyhow!("row {:?}: {}", row.name, diagnostic.text))?;
        if text.len() as u64 > MAX_FILE {
            bail!("a modes file has at most {MAX_FILE} bytes: name fewer modes");
        }
    }
    Ok(text)
}

/// Rows do not state the access, so the mode asks before every change. A row named after a built-in mode with
/// less access extends that mode.
fn mode_of(row: &ModeRow) -> String {
    let id = row.name.trim().to_ascii_lowercase();
    let built_in = Modes::built_in();
    let built_in_mode = built_in.iter().find(|mode| mode.id == id && mode.access != Access::Full);
    let base = built_in_mode.map_or(BASE, |mode| mode.id.as_str());
    let head = format!("id: {}\nname: {}\nextends: {base}\n", quoted(&id), quoted(row.name.trim()));
    let tools = row.allowed_tools.as_ref().map(|tools| {
        let names = tools.split(',').map(str::trim).filter(|name| !name.is_empty());
        format!("tools: {{allow: {}}}\n", list(&names.map(str::to_owned).collect::<Vec<_>>()))
    });
    [head, tools.unwrap_or_default(), prompt(row.prompt.as_deref().unwrap_or_default())].concat()
}
