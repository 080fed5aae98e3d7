//! `apply_patch`: a unified diff over several files, applied whole or not at all.

use async_trait::async_trait;
use diffy::patch_set::{FileOperation, ParseOptions, PatchKind, PatchSet};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::buffers::Buffers;
use super::saving::{Planned, Planning, change_text};
use super::text::{TextFile, check_unchanged, encode};
use super::{
    Editor, PreparedCall, RunContext, Tool, ToolContent, ToolError, ToolOutput, ToolSpec, arguments,
    blocking, resolve_entry,
};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::workspace::{Change, Stamp, Workspace};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// A unified diff over one or more files, as `git diff` writes it: `--- a/old`, `+++ b/new` (`/dev/null` for a file
    /// that is created or deleted), hunks with `@@` headers, context lines that occur in the file.
    patch: String,
}

/// The tool.
pub struct ApplyPatch(ToolSpec);

impl ApplyPatch {
    pub fn new() -> Self {
        Self(ToolSpec::new::<Arguments>(
            "apply_patch",
            ToolKind::Edit,
            Effect::Edit,
            "Apply a unified diff over several files at once: create, change, rename and delete. If any part of it does \
             not apply, nothing is changed.",
        ))
    }
}

#[async_trait]
impl Tool for ApplyPatch {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let Arguments { patch } = arguments(&self.0.name, given)?;
        let patch = readable(&patch);
        let bad = |reason| ToolError::arguments(&self.0.name, reason);
        let mut files = Vec::new();
        let mut targets = Vec::new();
        for (operation, text) in operations(&patch).map_err(bad)? {
            let at = targets.len();
            for path in operation.paths() {
                let target = resolve_entry(workspace, path.to_owned()).await?;
                if targets.contains(&target) {
                    return Err(bad(format!("{path} stands in the patch twice")));
                }
                targets.push(target);
            }
            files.push(File { operation, at, patch: text });
        }
        Ok(Box::new(Call { files, targets, workspace: workspace.clone(), shown: None }))
    }
}

/// What a patch does with one file, by paths.
#[derive(Debug, Clone)]
enum Operation {
    Create(String),
    Delete(String),
    Modify(String),
    Rename(String, String),
}

impl Operation {
    fn paths(&self) -> Vec<&str> {
        match self {
            Self::Create(path) | Self::Delete(path) | Self::Modify(path) => vec![path],
            Self::Rename(from, to) => vec![from, to],
        }
    }
}

/// One file of a patch.
#[derive(Debug, Clone)]
struct File {
    operation: Operation,
    /// Its first target.
    at: usize,
    /// The hunks, as a patch of their own.
    patch: String,
}

#[derive(Debug, Clone)]
struct Call {
    files: Vec<File>,
    targets: Vec<Target>,
    workspace: Workspace,
    /// What stood there when the user was asked, if the user was.
    shown: Option<Vec<Stamp>>,
}

/// What the patch would do.
#[derive(Default)]
struct Plan {
    changes: Vec<Planning>,
    diffs: Vec<ToolContent>,
    /// The first target of each file before and its content after.
    before: Vec<Stamp>,
    seen: Vec<(std::path::PathBuf, Stamp)>,
}

#[async_trait]
impl PreparedCall for Call {
    fn title(&self) -> String {
        let names: Vec<_> = self.targets.iter().map(|target| self.workspace.display(target)).collect();
        format!("Patch {}", names.join(", "))
    }

    fn targets(&self) -> &[Target] {
        &self.targets
    }

    async fn preview(&mut self, editor: &Editor) -> Result<Vec<ToolContent>, ToolError> {
        let call = self.clone();
        let buffers = Buffers::to_change(editor, &self.targets, &CancellationToken::new()).await?;
        let plan = blocking(move || call.plan(&buffers)).await?;
        self.shown = Some(plan.before);
        Ok(plan.diffs)
    }

    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError> {
        let (targets, workspace) = (self.targets.clone(), self.workspace.clone());
        change_text(context, &targets, workspace, move |buffers, known| {
            let plan = self.plan(buffers)?;
            for (number, (file, before)) in self.files.iter().zip(&plan.before).enumerate() {
                let name = self.workspace.display(&self.targets[file.at]);
                let known = known.get(file.at).copied().flatten();
                let shown = self.shown.as_ref().and_then(|shown| shown.get(number)).copied();
                check_unchanged(&name, *before, known, shown)?;
            }
            let text = format!("Applied the patch to {} files.", self.files.len());
            let output = ToolOutput { text, content: plan.diffs, seen: plan.seen, ..ToolOutput::default() };
            Ok(Planned { changes: plan.changes, output })
        })
        .await
    }
}

impl Call {
    fn plan(&self, buffers: &Buffers) -> Result<Plan, ToolError> {
        let mut plan = Plan::default();
        for file in &self.files {
            self.plan_file(file, buffers, &mut plan)?;
        }
        Ok(plan)
    }

    fn plan_file(&self, file: &File, buffers: &Buffers, plan: &mut Plan) -> Result<(), ToolError> {
        let target = self.targets[file.at].clone();
        let name = self.workspace.display(&target);
        if let Operation::Create(_) = file.operation {
            if target.path.exists() {
                return Err(ToolError::Failed(format!("{name} exists already; the patch would create it.")));
            }
            buffers.check_new(&target)?;
            let new = patched(&name, "", &file.patch)?;
            plan.before.push(Stamp::Absent);
            plan.show(&target, None, &new, self.files.len());
            plan.write(target, None, new.into_bytes(), None);
            return Ok(());
        }
        let old = buffers.read_to_change(&target)?;
        if old.lossy {
            return Err(ToolError::Failed(format!("{name} is not UTF-8 and is not patched as text.")));
        }
        // Patches are written with \n; a file that uses CRLF throughout goes on doing so.
        let base = if old.is_crlf() { old.text.replace("\r\n", "\n") } else { old.text.clone() };
        let new = old.with_endings(&patched(&name, &base, &file.patch)?);
        let bytes = encode(old.bom, &new);
        plan.before.push(old.stamp);
        match &file.operation {
            Operation::Delete(_) if !new.is_empty() => {
                return Err(ToolError::Failed(format!("{name} has more lines than the patch deletes.")));
            }
            Operation::Delete(_) => {
                plan.show(&target, Some(&old.text), &new, self.files.len());
                plan.remove(target);
            }
            Operation::Rename(..) => {
                let to = self.targets[file.at + 1].clone();
                if to.path.symlink_metadata().is_ok() {
                    let taken = self.workspace.display(&to);
                    return Err(ToolError::Failed(format!(
                        "{taken} exists already; the patch would move {name} there."
                    )));
                }
                buffers.check_new(&to)?;
                plan.show(&to, Some(&old.text), &new, self.files.len());
                plan.write(to, Some(&target), bytes, Some(&old));
                plan.remove(target);
            }
            Operation::Modify(_) | Operation::Create(_) => {
                plan.show(&target, Some(&old.text), &new, self.files.len());
                plan.write(target, None, bytes, Some(&old));
            }
        }
        Ok(())
    }
}

impl Plan {
    fn show(&mut self, target: &Target, old: Option<&str>, new: &str, files: usize) {
        self.diffs.push(ToolContent::diff(&target.path, old, new, files));
    }

    /// `like`: the new file gets the mode bits of this one. `old`: what stood there before.
    fn write(&mut self, target: Target, like: Option<&Target>, content: Vec<u8>, old: Option<&TextFile>) {
        self.seen.push((target.path.clone(), Stamp::of(&content)));
        let before = old.map(|old| encode(old.bom, &old.text));
        let unsaved = old.is_some_and(|old| old.unsaved);
        let change = Change::Write { target, content, like: like.cloned() };
        self.changes.push(Planning { change, before, unsaved });
    }

    fn remove(&mut self, target: Target) {
        self.seen.push((target.path.clone(), Stamp::Absent));
        self.changes.push(Planning { change: Change::Remove { target }, before: None, unsaved: false });
    }
}

/// The files of a patch, and each one's hunks; the error says what is wrong with it.
fn operations(patch: &str) -> Result<Vec<(Operation, String)>, String> {
    let git = patch.lines().any(|line| line.starts_with("diff --git "));
    let options = if git { ParseOptions::gitdiff() } else { ParseOptions::unidiff() };
    let parsed: Vec<_> = PatchSet::parse(patch, options)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("patch: {error}"))?;
    let prefixed = parsed.iter().all(|file| is_prefixed(file.operation()));
    let named = |path: &str, prefix: &str| match path.strip_prefix(prefix) {
        Some(rest) if prefixed => rest.to_owned(),
        _ => path.to_owned(),
    };
    let mut files = Vec::new();
    for file in &parsed {
        let PatchKind::Text(hunks) = file.patch() else {
            return Err("patch: binary files are not patched".into());
        };
        let hunks = hunks.to_string();
        let is_empty = file.patch().as_text().is_none_or(|text| text.hunks().is_empty());
        if is_empty && matches!(file.operation(), FileOperation::Modify { .. }) {
            return Err(
                "patch: a file is named without a hunk; changes of mode bits are not supported".into()
            );
        }
        let operation = match file.operation() {
            FileOperation::Create(new) => Operation::Create(named(new, "b/")),
            FileOperation::Delete(old) => Operation::Delete(named(old, "a/")),
            FileOperation::Modify { original, modified }
                if named(original, "a/") != named(modified, "b/") =>
            {
                Operation::Rename(named(original, "a/"), named(modified, "b/"))
            }
            FileOperation::Modify { modified, .. } => Operation::Modify(named(modified, "b/")),
            FileOperation::Rename { from, to } => Operation::Rename(from.to_string(), to.to_string()),
            FileOperation::Copy { .. } => return Err("patch: copies are not supported".into()),
        };
        files.push((operation, hunks));
    }
    if files.is_empty() {
        return Err("patch: there is no file in it".into());
    }
    Ok(files)
}

/// Whether the paths have git's prefixes, `a/` and `b/`, on both sides. Else they are folders of that name. The paths of a
/// rename never have them.
fn is_prefixed(operation: &FileOperation<'_, str>) -> bool {
    match operation {
        FileOperation::Create(new) => new.starts_with("b/"),
        FileOperation::Delete(old) => old.starts_with("a/"),
        FileOperation::Modify { original, modified } => {
            original.starts_with("a/") && modified.starts_with("b/")
        }
        FileOperation::Rename { .. } | FileOperation::Copy { .. } => true,
    }
}

fn patched(name: &str, old: &str, patch: &str) -> Result<String, ToolError> {
    let failed = |reason: String| {
        ToolError::Failed(format!("{name}: the patch does not apply: {reason}. Nothing is changed."))
    };
    let patch = diffy::Patch::from_str(patch).map_err(|error| failed(error.to_string()))?;
    diffy::apply(old, &patch).map_err(|error| failed(error.to_string()))
}

/// The patch as it is, if it can be read, else with its line counts put right; without a mail's footer and empty lines
/// at its end.
fn readable(patch: &str) -> String {
    let body = patch.find("\n-- \n").map_or(patch, |end| &patch[..end]);
    let body = format!("{}\n", body.trim_end_matches('\n'));
    if operations(&body).is_ok() { body } else { counted(&body) }
}

/// The patch with the line counts of its hunk headers put right: models often miscount.
fn counted(patch: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut header: Option<(usize, String, usize, usize)> = None;
    let finish = |out: &mut Vec<String>, header: &mut Option<(usize, String, usize, usize)>| {
        if let Some((at, starts, old, new)) = header.take() {
            out[at] = starts.replace("{old}", &old.to_string()).replace("{new}", &new.to_string());
        }
    };
    let lines: Vec<&str> = patch.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        let next_is_name = lines.get(number + 1).is_some_and(|next| next.starts_with("+++ "));
        if line.starts_with("diff --git ") || (line.starts_with("--- ") && next_is_name) {
            finish(&mut out, &mut header);
        } else if let Some(starts) = hunk_header(line) {
            finish(&mut out, &mut header);
            header = Some((out.len(), starts, 0, 0));
        } else if let Some((_, _, old, new)) = &mut header {
            match line.as_bytes().first() {
                Some(b'-') => *old += 1,
                Some(b'+') => *new += 1,
                Some(b'\\') => {}
                _ => {
                    *old += 1;
                    *new += 1;
                }
            }
        }
        out.push((*line).to_owned());
    }
    finish(&mut out, &mut header);
    out.join("\n") + "\n"
}

/// A hunk header with places for its counts, whatever counts it came with.
fn hunk_header(line: &str) -> Option<String> {
    let ranges = line.strip_prefix("@@ -")?.split(" @@").next()?;
    let (old, new) = ranges.split_once(" +")?;
    let start = |range: &str| range.split(',').next().and_then(|start| start.parse::<u32>().ok());
    Some(format!("@@ -{},{{old}} +{},{{new}} @@", start(old)?, start(new)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(patch: &str, old: &str, expected: &str) {
        let patch = counted(patch);
        let files = operations(&patch).unwrap();
        assert_eq!(patched("f", old, &files[0].1).unwrap_or_else(|error| error.to_string()), expected);
    }

    #[test]
    fn wrong_counts_and_places_are_put_right_and_wrong_context_is_not() {
        let patch = "--- a/f\n+++ b/f\n@@ -40,9 +40,2 @@ fn x\n one\n-two\n+2\n+2b\n three\n";
        check(patch, "one\ntwo\nthree\n", "one\n2\n2b\nthree\n");
        let told = "f: the patch does not apply: error applying hunk #1. Nothing is changed.";
        check(patch, "one\nTWO\nthree\n", told);
    }

    #[test]
    fn every_kind_of_operation_is_read() {
        let patch = "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\
                     --- a/from\n+++ b/to\n@@ -1 +1 @@\n-x\n+y\n";
        let operations = operations(&counted(patch)).unwrap();
        let kinds: Vec<_> = operations.into_iter().map(|(operation, _)| format!("{operation:?}")).collect();
        assert_eq!(kinds, [r#"Create("new")"#, r#"Delete("old")"#, r#"Rename("from", "to")"#]);
    }

    #[test]
    fn prefixes_are_taken_off_only_where_both_sides_have_them() {
        let kinds = |patch: &str| {
            let operations = operations(&readable(patch)).unwrap();
            operations.into_iter().map(|(operation, _)| format!("{operation:?}")).collect::<Vec<_>>()
        };
        assert_eq!(kinds("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n"), [r#"Modify("f")"#]);
        assert_eq!(kinds("--- a/f\n+++ a/f\n@@ -1 +1 @@\n-x\n+y\n"), [r#"Modify("a/f")"#]);
        let rename =
            "diff --git a/a/old b/a/new\nsimilarity index 100%\nrename from a/old\nrename to a/new\n";
        assert_eq!(kinds(rename), [r#"Rename("a/old", "a/new")"#]);
    }

    #[test]
    fn comments_footers_and_empty_lines_are_no_hindrance() {
        let sql = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n--- one\n+++ two\n x\n";
        let files = operations(&readable(sql)).unwrap();
        assert_eq!(patched("f", "-- one\nx\n", &files[0].1).unwrap(), "++ two\nx\n");
        for end in ["\n\n", "-- \n2.34.1\n"] {
            let patch = format!("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n{end}");
            let files = operations(&readable(&patch)).unwrap();
            assert_eq!(patched("f", "x\n", &files[0].1).unwrap(), "y\n");
        }
        assert!(operations("diff --git a/f b/f\nold mode 100644\nnew mode 100755\n").is_err());
    }

    #[test]
    fn what_is_no_patch_is_said() {
        assert!(operations("hello\n").is_err());
    }
}
