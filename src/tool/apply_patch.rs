//! `apply_patch`: applies a unified diff over several files, all or nothing, by the rules of `git apply`.
//!
//! [`unified`] parses the patch and [`place`] positions each hunk; both are pure. This module reads the files
//! through the workspace and the client, and plans the changes.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use self::hunk::Hunk;
use self::place::Failure;
use self::unified::{FilePatch, Operation};
use super::buffers::Buffers;
use super::text_change::{self, Plan};
use super::text_file::{BOM, MAX_FILE, TextFile, encode};
use super::{PreparedCall, Tool, ToolContent, ToolError, ToolSpec};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::text::start;
use crate::workspace::{self, ContentHash, Workspace};

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
struct Arguments {
    /// A unified diff over one or more files, as `git diff` writes it: `--- a/old`, `+++ b/new` (`/dev/null` for a file
    /// that is created or deleted), hunks with `@@` headers, context lines that occur in the file.
    patch: String,
}

pub(super) fn tool() -> Arc<dyn Tool> {
    let what = "Apply a unified diff over several files at once: create, change, rename, copy and delete. If any part of \
                it does not apply, nothing is changed.";
    ToolSpec::new("apply_patch", ToolKind::Edit, Effect::Edit, what).tool(prepare)
}

fn prepare(Arguments { patch }: Arguments, workspace: &Workspace) -> Result<PreparedCall, ToolError> {
    let bad = |reason: String| ToolError::arguments(format!("patch: {reason}"));
    let mut files: Vec<File> = Vec::new();
    let mut targets = Vec::new();
    for FilePatch { operation, executable, hunks } in unified::parse(&patch).map_err(bad)? {
        let of_section = operation.paths().into_iter().map(|path| workspace.resolve_entry(path));
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
            files.push(File { operation, at: targets.len(), executable, rounds: vec![hunks] });
            targets.extend(of_section);
        }
    }
    let names: Vec<_> = targets.iter().map(|target| workspace.display(target)).collect();
    let title = format!("Patch {}", names.join(", "));
    let patch = Patch { files, targets: targets.clone(), workspace: workspace.clone() };
    Ok(text_change::prepared(title, targets, workspace, move |buffers| patch.plan(buffers)))
}

/// Finds the file to which another section adds hunks. Returns an error if its operations conflict.
fn merge<'a>(
    files: &'a mut [File],
    targets: &[Target],
    operation: &Operation,
    of_section: &[Target],
) -> Result<Option<&'a mut File>, String> {
    let is_source =
        |file: &File, target: usize| matches!(file.operation, Operation::Copy { .. }) && target == file.at;
    for (number, (target, path)) in of_section.iter().zip(operation.paths()).enumerate() {
        // A copy uses the file as it was before the patch.
        if matches!(operation, Operation::Copy { .. }) && number == 0 {
            continue;
        }
        let used = files.iter().position(|file| {
            let end = file.at + file.operation.paths().len();
            (file.at..end).any(|at| !is_source(file, at) && targets[at] == *target)
        });
        let Some(used) = used else { continue };
        return match (&files[used].operation, operation) {
            (Operation::Create(_) | Operation::Modify(_), Operation::Modify(_)) => Ok(files.get_mut(used)),
            _ => Err(format!("{path} occurs more than once with conflicting operations")),
        };
    }
    Ok(None)
}

#[derive(Debug)]
struct File {
    operation: Operation,
    at: usize,
    executable: Option<bool>,
    /// The hunks of each section for this file.
    rounds: Vec<Vec<Hunk>>,
}

struct Patch {
    files: Vec<File>,
    targets: Vec<Target>,
    workspace: Workspace,
}

impl Patch {
    fn plan(&self, buffers: &Buffers) -> Result<Plan, ToolError> {
        let mut plan = Plan::new(format!("Applied the patch to {} files.", self.files.len()));
        let mut failed = Vec::new();
        for file in &self.files {
            if let Err(error) = self.plan_file(file, buffers, &mut plan) {
                failed.push(error.to_string().trim_end_matches(" Nothing is changed.").to_owned());
            }
            if plan.total > MAX_TOTAL {
                let most = MAX_TOTAL >> 20;
                failed.push(format!("The files of the patch have more than {most} MiB together: split it."));
                break;
            }
        }
        if failed.is_empty() {
            return Ok(plan);
        }
        let more = failed.len().saturating_sub(MAX_REPORTED);
        failed.truncate(MAX_REPORTED);
        if more > 0 {
            failed.push(format!("{more} more files do not apply."));
        }
        failed.push("Nothing is changed.".into());
        Err(ToolError::Failed(failed.join("\n")))
    }

    fn plan_file(&self, file: &File, buffers: &Buffers, plan: &mut Plan) -> Result<(), ToolError> {
        let target = &self.targets[file.at];
        let to = &self.targets[file.at + file.operation.paths().len() - 1];
        let name = self.workspace.display(target);
        match &file.operation {
            Operation::Create(_) => {
                self.check_free(target, "create it")?;
                buffers.check_new(target)?;
                plan.depends_on(file.at, &name, ContentHash::Absent);
                let new = file.patched(&name, "")?;
                self.show(plan, target, None, &new);
                plan.write(target, None, new.into_bytes(), None);
            }
            Operation::Rename { .. } | Operation::Copy { .. } => {
                let is_copy = matches!(file.operation, Operation::Copy { .. });
                self.check_free(to, &format!("{} {name} there", if is_copy { "copy" } else { "move" }))?;
                buffers.check_new(to)?;
                let is_same = file.rounds.iter().all(Vec::is_empty);
                match is_same.then(|| other_than_text(target)).transpose()?.flatten() {
                    Some(bytes) => {
                        plan.depends_on(file.at, &name, ContentHash::of(&bytes));
                        plan.write(to, Some(target), bytes, None);
                    }
                    None => self.plan_text(file, to, buffers, plan)?,
                }
                if !is_copy {
                    plan.remove(target);
                }
            }
            Operation::Modify(_) if file.rounds.iter().all(Vec::is_empty) => {
                let bytes = other_than_text(target)?;
                let content_hash = match bytes {
                    Some(bytes) => ContentHash::of(&bytes),
                    None => buffers.read_to_change(target)?.content_hash,
                };
                plan.depends_on(file.at, &name, content_hash);
            }
            Operation::Modify(_) | Operation::Delete(_) => self.plan_text(file, target, buffers, plan)?,
        }
        if let Some(executable) = file.executable {
            plan.set_executable(to, executable);
        }
        Ok(())
    }

    fn plan_text(
        &self,
        file: &File,
        to: &Target,
        buffers: &Buffers,
        plan: &mut Plan,
    ) -> Result<(), ToolError> {
        let target = &self.targets[file.at];
        let name = self.workspace.display(target);
        let old = buffers.read_to_change(target)?;
        if old.lossy {
            return Err(ToolError::Failed(format!("{name} is not UTF-8 and is not patched as text.")));
        }
        plan.depends_on(file.at, &name, old.content_hash);
        plan.total += old.text.len();
        let new = file.patched_file(&name, &old)?;
        let text = new.strip_prefix(BOM).unwrap_or(&new);
        if matches!(file.operation, Operation::Delete(_)) {
            if !text.is_empty() {
                return Err(ToolError::Failed(format!("{name} has more lines than the patch deletes.")));
            }
            self.show(plan, target, Some(&old.text), text);
            plan.remove(target);
            return Ok(());
        }
        self.show(plan, to, Some(&old.text), text);
        let like = (to != target).then_some(target);
        plan.write(to, like, new.into_bytes(), Some(&old));
        Ok(())
    }

    fn check_free(&self, target: &Target, what: &str) -> Result<(), ToolError> {
        if target.path.symlink_metadata().is_err() {
            return Ok(());
        }
        let name = self.workspace.display(target);
        Err(ToolError::Failed(format!("{name} exists already; the patch would {what}.")))
    }

    fn show(&self, plan: &mut Plan, target: &Target, old: Option<&str>, new: &str) {
        plan.diffs.push(ToolContent::diff(&target.path, old, new, self.files.len()));
    }
}

impl File {
    fn patched(&self, name: &str, old: &str) -> Result<String, ToolError> {
        apply(old, &self.rounds).map_err(|failures| self.failed(name, failures))
    }

    /// Applies the hunks exactly, as git does. If that fails, ignores a byte order mark, and carriage returns
    /// if the file or the patch uses them throughout: models often get those wrong.
    fn patched_file(&self, name: &str, old: &TextFile) -> Result<String, ToolError> {
        let whole = if old.bom { [BOM, &old.text].concat() } else { old.text.clone() };
        let exact = match apply(&whole, &self.rounds) {
            Ok(new) => return Ok(new),
            Err(failures) => failures,
        };
        let (is_crlf, is_lf) = (old.is_crlf(), !old.text.contains('\r'));
        let Some(rounds) = self.without_returns().filter(|_| is_crlf || is_lf) else {
            return Err(self.failed(name, exact));
        };
        let base = if is_crlf { old.text.replace("\r\n", "\n") } else { old.text.clone() };
        let new = apply(&base, &rounds).map_err(|failures| self.failed(name, failures))?;
        let bytes = encode(old.bom, &old.with_endings(&new));
        String::from_utf8(bytes).map_err(|error| ToolError::Failed(error.to_string()))
    }

    /// `None` if only some lines end with a carriage return.
    fn without_returns(&self) -> Option<Vec<Vec<Hunk>>> {
        let lines = || self.rounds.iter().flatten().flat_map(|hunk| hunk.old.iter().chain(&hunk.new));
        let all = lines().all(|line| line.ends_with("\r\n"));
        if !all && lines().any(|line| line.contains('\r')) {
            return None;
        }
        let mut rounds = self.rounds.clone();
        if all {
            for line in rounds.iter_mut().flatten().flat_map(|hunk| hunk.old.iter_mut().chain(&mut hunk.new))
            {
                line.truncate(line.len() - 2);
                line.push('\n');
            }
        }
        // Only the first line can begin with a byte order mark.
        for line in rounds
            .iter_mut()
            .flatten()
            .flat_map(|hunk| hunk.old.first_mut().into_iter().chain(hunk.new.first_mut()))
        {
            if let Some(rest) = line.strip_prefix(BOM) {
                *line = rest.to_owned();
            }
        }
        Some(rounds)
    }

    fn failed(&self, name: &str, failures: Vec<(usize, Failure)>) -> ToolError {
        let hunks: Vec<&Hunk> = self.rounds.iter().flatten().collect();
        let more = failures.len().saturating_sub(MAX_REPORTED);
        let mut reports: Vec<String> = Vec::new();
        for (number, failure) in failures.into_iter().take(MAX_REPORTED) {
            let at = hunks.get(number).map_or(0, |hunk| hunk.old_start);
            reports.push(format!(
                "{name}: hunk {} (`@@ -{at}`) does not apply: {}.",
                number + 1,
                reason(&failure)
            ));
        }
        if more > 0 {
            reports.push(format!("{name}: {more} more hunks do not apply."));
        }
        ToolError::Failed(reports.join("\n"))
    }
}

/// Applies the hunks of each section in order, up to the first section that fails.
fn apply(old: &str, rounds: &[Vec<Hunk>]) -> Result<String, Vec<(usize, Failure)>> {
    let mut text = old.to_owned();
    let mut before = 0;
    for hunks in rounds {
        let applied = place::apply(&text, hunks);
        text = applied.map_err(|failures| {
            failures.into_iter().map(|(number, failure)| (before + number, failure)).collect::<Vec<_>>()
        })?;
        before += hunks.len();
    }
    Ok(text)
}

fn reason(failure: &Failure) -> String {
    let shown = |line: &str| {
        let line = line.trim_end_matches(['\r', '\n']);
        let cut = start(line, SHOWN);
        if cut.len() < line.len() { format!("`{cut}`…") } else { format!("`{cut}`") }
    };
    match failure {
        Failure::Line { number, expected, found: Some(found) } if shown(expected) == shown(found) => {
            format!("line {number} of the file is {} but has a different line ending", shown(found))
        }
        Failure::Line { number, expected, found: Some(found) } => {
            format!(
                "line {number} of the file is {}, and the patch expects {}",
                shown(found),
                shown(expected)
            )
        }
        Failure::Line { number, expected, found: None } => {
            format!("the file ends before line {number}, where the patch expects {}", shown(expected))
        }
        Failure::Ambiguous => {
            "its lines occur more than once: add context lines or correct its line number".into()
        }
        Failure::Overlap => "its lines were changed by an earlier hunk, or its line numbers are wrong".into(),
        Failure::Place => {
            "it only adds lines, and its line numbers do not say where: add context lines".into()
        }
        Failure::NotAtEnd => {
            "it says that the file ends there without a line feed, and more lines follow".into()
        }
        Failure::Size => "the file has too many lines to be patched: use edit_file".into(),
        Failure::Work => "too many hunks have wrong line numbers: correct them".into(),
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
    let is_text = TextFile::decode(bytes.clone()).is_ok_and(|file| !file.lossy);
    Ok((!is_text).then_some(bytes))
}

#[cfg(test)]
mod tests;
