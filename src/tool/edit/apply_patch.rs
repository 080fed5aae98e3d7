//! `apply_patch`: applies a patch over several files, all or nothing.
//!
//! [`unified`] and [`begin_patch`] parse the patch and [`place`] positions each hunk; all are pure. This module
//! reads the files through the workspace and the client, and plans the changes.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use self::hunk::PatchHunk;
use self::place::{LooseHunk, Patched, PlaceFailure};
use self::unified::{FilePatch, PatchOperation};
use super::edit_file::list;
use super::text_change::{self, Plan};
use super::text_match::{changed_lines, lines_now};
use crate::acp::ToolKind;
use crate::conversation::content::{PathChange, ToolContent};
use crate::permission::{Effect, Target};
use crate::text::shorten;
use crate::tool::file::buffers::Buffers;
use crate::tool::file::last_seen::not_applied;
use crate::tool::file::text_file::{BOM, MAX_FILE, TextFile};
use crate::tool::{PreparedCall, Tool, ToolError, ToolSpec};
use crate::workspace::{self, ContentHash, Workspace};

mod begin_patch;
mod hunk;
mod names;
mod place;
mod unified;

/// Maximum bytes of all files, before and after together.
const MAX_TOTAL: usize = 64 * 1024 * 1024;

const SHOWN: usize = 160;

const MAX_REPORTED: usize = 20;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ApplyPatchArguments {
    /// A unified diff as `git diff` writes it, where `@@` headers may lack line numbers; or a patch between
    /// `*** Begin Patch` and `*** End Patch`.
    patch: String,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description = "Apply a patch over several files at once: create, change, move and delete. Takes unified diffs, also with \
                bare `@@` headers, and `*** Begin Patch`. If any part does not apply, nothing is changed.";
    ToolSpec::new("apply_patch", ToolKind::Edit, Effect::Edit, description).waiting_for_user().tool(prepare)
}

fn prepare(
    ApplyPatchArguments { patch }: ApplyPatchArguments,
    workspace: &Workspace,
) -> Result<PreparedCall, ToolError> {
    let bad = |reason: String| ToolError::arguments(format!("patch: {reason}"));
    let mut files: Vec<PatchedFile> = Vec::new();
    let mut targets = Vec::new();
    let mut skipped = Vec::new();
    for mut patch in unified::parse(&patch).map_err(bad)? {
        let path = patch.operation.paths().last().copied().unwrap_or_default().to_owned();
        let context = patch.hunks.iter().filter(|hunk| hunk.is_context);
        skipped.extend(context.map(|hunk| {
            format!(
                "{path}: the hunk in line {} of the patch has no `+` or `-`, so it changes nothing.",
                hunk.line
            )
        }));
        if !patch.changes() {
            continue;
        }
        patch.hunks.retain(|hunk| !hunk.is_context);
        let FilePatch { operation, executable, hunks } = patch;
        // A change of a file follows links, as `edit_file` does. Mode bits and whole files are those of the entry.
        let follows = matches!(operation, PatchOperation::Modify(_)) && executable.is_none();
        let of_section = operation
            .paths()
            .into_iter()
            .map(|path| if follows { workspace.resolve(path) } else { workspace.resolve_entry(path) });
        let of_section = of_section.collect::<Result<Vec<_>, _>>()?;
        if !cfg!(unix) && executable.is_some() {
            return Err(bad(
                "mode bits cannot be changed on this system: leave out the lines about modes".into()
            ));
        }
        if let Some(file) = merge(&mut files, &targets, &operation, &of_section).map_err(bad)? {
            file.rounds.push(hunks);
            file.executable = executable.or(file.executable);
        } else {
            files.push(PatchedFile { operation, at: targets.len(), executable, rounds: vec![hunks] });
            targets.extend(of_section);
        }
    }
    let names: Vec<_> = targets.iter().map(|target| workspace.display(target)).collect();
    let title = format!("Patch {}", names.join(", "));
    let patch = Patch { files, skipped, targets: targets.clone(), workspace: workspace.clone() };
    Ok(text_change::prepared(title, targets, workspace, move |buffers| patch.plan(buffers)))
}

/// Finds the file to which another section adds hunks. Returns an error if its operations conflict.
fn merge<'a>(
    files: &'a mut [PatchedFile],
    targets: &[Target],
    operation: &PatchOperation,
    of_section: &[Target],
) -> Result<Option<&'a mut PatchedFile>, String> {
    for (number, (target, path)) in of_section.iter().zip(operation.paths()).enumerate() {
        // A copy uses the file as it was before the patch.
        if matches!(operation, PatchOperation::Copy { .. }) && number == 0 {
            continue;
        }
        let used = files.iter().position(|file| {
            let end = file.at + file.operation.paths().len();
            (file.at..end).any(|at| !is_copied(file, at) && targets[at] == *target)
        });
        let Some(used) = used else { continue };
        return match (&files[used].operation, operation) {
            (PatchOperation::Create(_) | PatchOperation::Modify(_), PatchOperation::Modify(_)) => {
                Ok(files.get_mut(used))
            }
            _ => Err(format!("{path} occurs more than once with conflicting operations")),
        };
    }
    Ok(None)
}

fn is_copied(file: &PatchedFile, target: usize) -> bool {
    matches!(file.operation, PatchOperation::Copy { .. }) && target == file.at
}

#[derive(Debug)]
struct PatchedFile {
    operation: PatchOperation,
    at: usize,
    executable: Option<bool>,
    /// The hunks of each section for this file.
    rounds: Vec<Vec<PatchHunk>>,
}

struct Patch {
    files: Vec<PatchedFile>,
    /// Lines about hunks without changes.
    skipped: Vec<String>,
    targets: Vec<Target>,
    workspace: Workspace,
}

impl Patch {
    fn plan(&self, buffers: &Buffers) -> Result<Plan, ToolError> {
        let mut plan = Plan::new("Applied the patch:".to_owned());
        let (mut failed, mut shown) = (Vec::new(), Vec::new());
        for file in &self.files {
            match self.plan_file(file, buffers, &mut plan) {
                Ok(done) => plan.note(&done),
                Err(mut error) => {
                    if let ToolError::Stale { seen, .. } = &mut error {
                        shown.append(seen);
                    }
                    failed.push(error.to_string().trim_end_matches(" Nothing is changed.").to_owned());
                }
            }
            if plan.total > MAX_TOTAL {
                let most = MAX_TOTAL >> 20;
                failed.push(format!("The files of the patch have more than {most} MiB together: split it."));
                break;
            }
        }
        if failed.is_empty() {
            self.skipped.iter().take(MAX_REPORTED).for_each(|line| plan.note(line));
            return Ok(plan);
        }
        let more = failed.len().saturating_sub(MAX_REPORTED);
        failed.truncate(MAX_REPORTED);
        if more > 0 {
            failed.push(format!("{more} more files do not apply."));
        }
        failed.push("Nothing is changed.".into());
        Err(ToolError::Stale { text: failed.join("\n"), seen: shown })
    }

    /// Describes the change for the model.
    fn plan_file(&self, file: &PatchedFile, buffers: &Buffers, plan: &mut Plan) -> Result<String, ToolError> {
        let target = &self.targets[file.at];
        let to = &self.targets[file.at + file.operation.paths().len() - 1];
        let name = self.workspace.display(target);
        let mut done = match &file.operation {
            PatchOperation::Create(_) => format!("created {name}"),
            PatchOperation::Rename { .. } => format!("moved {name} to {}", self.workspace.display(to)),
            PatchOperation::Copy { .. } => format!("copied {name} to {}", self.workspace.display(to)),
            PatchOperation::Remove(_) | PatchOperation::Delete(_) => format!("deleted {name}"),
            PatchOperation::Modify(_) => format!("edited {name}"),
        };
        match &file.operation {
            PatchOperation::Create(_) => {
                self.check_free(target, "create it")?;
                buffers.check_new(target)?;
                plan.depends_on(file.at, &name, ContentHash::Absent);
                let new = file.patched(&name, "", false).map_err(ToolError::Failed)?.text;
                self.show(plan, target, None, &new);
                plan.write(target, None, new.into_bytes(), None);
            }
            PatchOperation::Rename { .. } | PatchOperation::Copy { .. } => {
                let is_copy = matches!(file.operation, PatchOperation::Copy { .. });
                self.check_free(to, &format!("{} {name} there", if is_copy { "copy" } else { "move" }))?;
                buffers.check_new(to)?;
                let is_same = file.rounds.iter().all(Vec::is_empty);
                match is_same.then(|| other_than_text(target)).transpose()?.flatten() {
                    Some(bytes) => {
                        plan.depends_on(file.at, &name, ContentHash::of(&bytes));
                        plan.write(to, Some(target), bytes, None);
                    }
                    None => done.push_str(&self.plan_text(file, to, buffers, plan)?),
                }
                if !is_copy {
                    plan.remove(target);
                }
            }
            PatchOperation::Modify(_) if file.rounds.iter().all(Vec::is_empty) => {
                plan.depends_on(file.at, &name, content_hash(target, buffers)?);
            }
            PatchOperation::Remove(_) => {
                plan.depends_on(file.at, &name, content_hash(target, buffers)?);
                if let Ok((old, _)) = buffers.read(target) {
                    self.show(plan, target, Some(&old.text), "");
                }
                plan.remove(target);
            }
            PatchOperation::Modify(_) | PatchOperation::Delete(_) => {
                done.push_str(&self.plan_text(file, target, buffers, plan)?);
            }
        }
        if let Some(executable) = file.executable {
            plan.set_executable(to, executable);
        }
        plan.diffs.extend(file.file_operation(target, to).map(ToolContent::Operation));
        Ok(done)
    }

    /// Returns the first changed line and the numbers of changed lines, for the model.
    fn plan_text(
        &self,
        file: &PatchedFile,
        to: &Target,
        buffers: &Buffers,
        plan: &mut Plan,
    ) -> Result<String, ToolError> {
        let target = &self.targets[file.at];
        let name = self.workspace.display(target);
        let is_edit = file.rounds.iter().any(|hunks| !hunks.is_empty());
        let (old, new_lines) = if is_edit {
            let old = buffers.read_to_edit(target, &name)?;
            plan.edits(file.at, &name, &old);
            let new_lines = buffers.new_lines(target, &name, &old);
            (old, new_lines)
        } else {
            let old = buffers.read_to_replace(target, &name)?;
            plan.depends_on(file.at, &name, old.content_hash);
            (old, None)
        };
        plan.total += old.text.len();
        let whole = if old.bom { [BOM, &old.text].concat() } else { old.text.clone() };
        let Patched { text: new, ignored } = match file.patched(&name, &whole, new_lines.is_some()) {
            Ok(patched) => patched,
            Err(reason) => return Err(not_applied(reason, new_lines, &target.path, &old)),
        };
        for LooseHunk { number, ignored, now } in ignored {
            // A later section of the patch could move the lines.
            let now = if file.rounds.len() == 1 { lines_now(&new, &[now]) } else { String::new() };
            let lines = if now.is_empty() { "." } else { "; its lines now:\n" };
            let note = format!("{name}: hunk {} matched ignoring {ignored}{lines}{now}", number + 1);
            plan.note(note.trim_end_matches('\n'));
        }
        let text = new.strip_prefix(BOM).unwrap_or(&new);
        if matches!(file.operation, PatchOperation::Delete(_)) {
            if !text.is_empty() {
                return Err(ToolError::Failed(format!("{name} has more lines than the patch deletes.")));
            }
            self.show(plan, target, Some(&old.text), text);
            plan.remove(target);
            return Ok(String::new());
        }
        self.show(plan, to, Some(&old.text), text);
        let like = (to != target).then_some(target);
        let result = TextFile { bom: new.starts_with(BOM), ..old.clone() };
        plan.write(to, like, result.encode(&name, text)?, Some(&old));
        plan.note_new_lines(to, new_lines);
        if text == old.text {
            return Ok(String::new());
        }
        let (first, added, removed) = changed_lines(&old.text, &(0..old.text.len()), text);
        Ok(format!(":{first} (+{added} -{removed})"))
    }

    fn check_free(&self, target: &Target, what: &str) -> Result<(), ToolError> {
        if target.path.symlink_metadata().is_err() {
            return Ok(());
        }
        let name = self.workspace.display(target);
        Err(ToolError::Failed(format!("{name} exists already; the patch would {what}.")))
    }

    fn show(&self, plan: &mut Plan, target: &Target, old: Option<&str>, new: &str) {
        plan.diffs.extend(ToolContent::diffs(&target.path, old, new, self.files.len()));
    }
}

impl PatchedFile {
    /// What happens to the file as a whole, if it is more than another text.
    fn file_operation(&self, target: &Target, to: &Target) -> Option<PathChange> {
        let (from, to) = (target.path.clone(), to.path.clone());
        match self.operation {
            PatchOperation::Remove(_) | PatchOperation::Delete(_) => Some(PathChange::Delete(from)),
            PatchOperation::Rename { .. } => Some(PathChange::Move { from, to }),
            PatchOperation::Copy { .. } => Some(PathChange::Copy { from, to }),
            PatchOperation::Create(_) | PatchOperation::Modify(_) => None,
        }
    }

    /// Applies the hunks of each section in order, up to the first section that fails. In a changed file, line
    /// numbers do not count, and old lines have to be there as they are. An error is a sentence.
    fn patched(&self, name: &str, old: &str, is_changed: bool) -> Result<Patched, String> {
        let mut patched = Patched { text: old.to_owned(), ignored: Vec::new() };
        let mut before = 0;
        for hunks in &self.rounds {
            let applied = place::apply(&patched.text, hunks, is_changed);
            let Patched { text, ignored } =
                applied.map_err(|failures| failed(name, hunks, before, failures))?;
            patched.text = text;
            let numbered = |loose: LooseHunk| LooseHunk { number: before + loose.number, ..loose };
            patched.ignored.extend(ignored.into_iter().map(numbered));
            before += hunks.len();
        }
        Ok(patched)
    }
}

fn failed(name: &str, hunks: &[PatchHunk], before: usize, failures: Vec<(usize, PlaceFailure)>) -> String {
    let more = failures.len().saturating_sub(MAX_REPORTED);
    let mut reports: Vec<String> = Vec::new();
    for (number, failure) in failures.into_iter().take(MAX_REPORTED) {
        let hunk = &hunks[number];
        let (number, reason) = (before + number + 1, reason(&failure, hunk));
        reports.push(format!(
            "{name}: hunk {number} (line {} of the patch) does not apply: {reason}",
            hunk.line
        ));
    }
    if more > 0 {
        reports.push(format!("{name}: {more} more hunks do not apply."));
    }
    reports.join("\n")
}

fn reason(failure: &PlaceFailure, hunk: &PatchHunk) -> String {
    match failure {
        PlaceFailure::Inexact(ignored) => {
            format!("its lines occur only if {ignored} are ignored, and the file has changed.")
        }
        PlaceFailure::Missing(Some(listing)) => format!(
            "its lines do not occur. The nearest lines, and after `>` what the hunk has instead:\n{}",
            listing.trim_end()
        ),
        PlaceFailure::Missing(None) => {
            let expected = hunk.old.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            format!("no lines of the file are similar to `{}`.", shorten(expected, SHOWN))
        }
        PlaceFailure::Ambiguous(lines) => format!(
            "its lines occur more than once, at lines {}: add context lines or correct its {}.",
            list(lines),
            if hunk.numbers.is_some_and(|numbers| !numbers.is_counted) {
                "line counts"
            } else {
                "line number"
            }
        ),
        PlaceFailure::Elided(line) => format!(
            "it adds the line `{}`: the code that it stands for would be lost. Add that code; lines that stay are context, or \
             lie between two hunks.",
            shorten(line, SHOWN)
        ),
        PlaceFailure::Overlap => {
            "its lines were changed by an earlier hunk, or its line numbers are wrong.".into()
        }
        PlaceFailure::Place => "it only adds lines and does not say where: add context lines.".into(),
        PlaceFailure::NotAtEnd => {
            "it says that the file ends there without a line feed, and more lines follow.".into()
        }
        PlaceFailure::Unchanged => "the file has its new lines already.".into(),
        PlaceFailure::Size => "the file has too many lines to be patched: use edit_file.".into(),
        PlaceFailure::Work => "too many hunks have wrong line numbers: correct them.".into(),
    }
}

fn content_hash(target: &Target, buffers: &Buffers) -> Result<ContentHash, ToolError> {
    match other_than_text(target)? {
        Some(bytes) => Ok(ContentHash::of(&bytes)),
        None => Ok(buffers.read_to_change(target)?.content_hash),
    }
}

fn other_than_text(target: &Target) -> Result<Option<Vec<u8>>, ToolError> {
    use std::io::Read;
    let mut open = workspace::open(target)?;
    let mut bytes = Vec::new();
    let read = open.file.by_ref().take(MAX_FILE + 1).read_to_end(&mut bytes);
    read.map_err(|error| workspace::FileError::io(&target.path, &error))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(ToolError::Failed(format!(
            "{} has more than {MAX_FILE} bytes: use move_file.",
            target.path.display()
        )));
    }
    let is_text = TextFile::decode(&bytes).is_ok_and(|file| !file.lossy);
    Ok((!is_text).then_some(bytes))
}

#[cfg(test)]
mod tests;
