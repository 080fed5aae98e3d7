//! `modegate modes import` and `export`: modes out of a catalogue into a file, and into a catalogue (G46).
//!
//! Sessions never read a catalogue. What is exported is checked as if it were imported, and what is imported as a user's
//! own file is, before anything is written.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};

use crate::config::policies::{Loaded, MAX_FILE};
use crate::mode::text::{list, prompt, quoted};
use crate::mode::{Access, Mode, Modes};
use crate::policy::{self, Layers, Owner};
use crate::store::catalogue::{self, Row};

/// What a row without a definition extends: with it every change is asked for.
const BASE: &str = "ask";

/// Writes modes to a catalogue: those that are named, or all that are not built in.
pub(super) fn export(
    path: &Path,
    wanted: &[String],
    loaded: &Loaded,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    if let Some(problem) = loaded.problems.first() {
        bail!("nothing is exported while a file of modes cannot be used: {problem}");
    }
    let modes = &loaded.layers.modes;
    let chosen: Vec<&Mode> = if wanted.is_empty() {
        modes.iter().filter(|mode| mode.under.is_none() && !is_built_in(mode)).collect()
    } else {
        wanted.iter().map(|id| modes.resolve(id)).collect::<Result<_, _>>()?
    };
    if chosen.is_empty() {
        let built_in: Vec<String> = Modes::built_in().iter().map(|mode| mode.id.clone()).collect();
        bail!(
            "you have no modes of your own to export; the built-in ones can be named: {}",
            built_in.join(", ")
        );
    }
    for mode in &chosen {
        if let Some(under) = &mode.under {
            // In a catalogue it would stand without what holds it.
            bail!(
                "{:?} is a project's mode and can do no more than {under:?}: a catalogue cannot say that",
                mode.id
            );
        }
    }
    let rows: Vec<Row> = chosen.iter().map(|mode| row_of(mode)).collect();
    modes_file(&rows).context("what is exported together has to stand by itself")?;
    catalogue::write(path, &rows).with_context(|| path.display().to_string())?;
    let ids: Vec<&str> = chosen.iter().map(|mode| mode.id.as_str()).collect();
    writeln!(output, "{}: {} written", path.display(), ids.join(", "))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a file of modes with those of a catalogue that are named, or all; or writes it to a new file.
pub(super) fn import(
    path: &Path,
    wanted: &[String],
    file: Option<&Path>,
    mut output: impl Write,
    mut errors: impl Write,
) -> anyhow::Result<ExitCode> {
    let mut rows = catalogue::read(path).with_context(|| path.display().to_string())?;
    let all = rows.len();
    rows.retain(|row| !id_of(row).is_empty());
    if rows.len() < all {
        writeln!(
            errors,
            "modegate: {}: rows without a name are left out: {}",
            path.display(),
            all - rows.len()
        )?;
    }
    let is_named = |row: &Row, id: &String| id_of(row) == id.trim().to_ascii_lowercase();
    if let Some(unknown) = wanted.iter().find(|id| !rows.iter().any(|row| is_named(row, id))) {
        let names: Vec<&str> = rows.iter().map(|row| row.name.trim()).collect();
        bail!("{}: there is no mode {unknown:?}; those there are {names:?}", path.display());
    }
    rows.retain(|row| wanted.is_empty() || wanted.iter().any(|id| is_named(row, id)));
    if rows.is_empty() {
        bail!("{}: there is no mode in it", path.display());
    }
    let text = modes_file(&rows).with_context(|| path.display().to_string())?;
    let Some(file) = file else {
        output.write_all(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    };
    create_new(file, &text).with_context(|| file.display().to_string())?;
    writeln!(output, "{}: {} modes written", file.display(), rows.len())?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a mode is a built-in one that the user has not replaced by one of the same id.
fn is_built_in(mode: &Mode) -> bool {
    Modes::built_in().iter().any(|known| known.id == mode.id && known.to_yaml() == mode.to_yaml())
}

fn row_of(mode: &Mode) -> Row {
    Row {
        name: mode.id.clone(),
        prompt: Some(mode.prompt.clone()).filter(|prompt| !prompt.trim().is_empty()),
        allowed_tools: mode.tools.allow.as_ref().map(|globs| globs.patterns.join(",")),
        definition: Some(mode.to_yaml()),
    }
}

/// What a row's mode is called, as an id is written. It may still be none, which the check of the whole file says.
fn id_of(row: &Row) -> String {
    row.name.trim().to_ascii_lowercase()
}

/// The rows as a file of modes, which has passed the check of a user's own file. The error names the row.
fn modes_file(rows: &[Row]) -> anyhow::Result<String> {
    let mut text = String::from("# Written by `modegate modes import`.\nmodes:\n");
    // The last line of each row's mode.
    let mut ends = Vec::new();
    let mut end = text.lines().count();
    for row in rows {
        let mode = text_of(row).with_context(|| format!("row {:?}", row.name))?;
        for (number, line) in mode.lines().enumerate() {
            let indent = if number == 0 { "  - " } else { "    " };
            text.extend([indent, line, "\n"]);
        }
        end += mode.lines().count();
        ends.push(end);
        if text.len() as u64 > MAX_FILE {
            bail!("that is more than the {MAX_FILE} bytes that a file of modes may have: name fewer modes");
        }
    }
    let checked = Layers::default().add("modes.yaml", &text, Owner::User);
    checked.map_err(|problem| {
        let row = rows.iter().zip(&ends).find(|(_, end)| (1..=**end).contains(&problem.line));
        row.map_or_else(|| anyhow!("{problem}"), |(row, _)| anyhow!("row {:?}: {}", row.name, problem.text))
    })?;
    Ok(text)
}

/// One row's mode as it is written, with nothing before its lines.
fn text_of(row: &Row) -> anyhow::Result<String> {
    let id = id_of(row);
    let Some(definition) = &row.definition else { return Ok(foreign(&id, row)) };
    let mode = policy::single("definition", definition)?;
    if mode.id != id {
        bail!("its definition is that of another mode, {:?}", mode.id);
    }
    Ok(mode.to_yaml())
}

/// The mode of another tool's row, which says nothing of access: whatever it may do is asked for.
fn foreign(id: &str, row: &Row) -> String {
    let built_in = Modes::built_in();
    // A row that is called `plan` must not make of `plan` a mode that can write.
    let own = built_in.iter().find(|mode| mode.id == id && mode.access != Access::Full);
    let base = own.map_or(BASE, |mode| mode.id.as_str());
    let head = format!("id: {}\nname: {}\nextends: {base}\n", quoted(id), quoted(row.name.trim()));
    let tools = row.allowed_tools.as_ref().map(|tools| {
        let names = tools.split(',').map(str::trim).filter(|name| !name.is_empty());
        format!("tools: {{allow: {}}}\n", list(&names.map(str::to_owned).collect::<Vec<_>>()))
    });
    [head, tools.unwrap_or_default(), prompt(row.prompt.as_deref().unwrap_or_default())].concat()
}

/// Writes a file that is not there yet. Half of one is taken away again.
fn create_new(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(path)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        // What went wrong first is what is said; a file that cannot be removed either says no more.
        let _ = std::fs::remove_file(path);
    }
    written
}
