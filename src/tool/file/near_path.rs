//! Suggests an existing path for one that does not exist: "did you mean".

use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use super::walk::globs;
use crate::permission::{FilesBelow, Target};
use crate::tool::{CallAction, CallTask, PreparedCall, RunContext, ToolError, ToolOutput, blocking};
use crate::workspace::{FileError, Ignoring, Walk, WalkOptions, Workspace, open_dir};

/// Paths of the same name elsewhere that a message names.
const MAX_NAMED: usize = 3;

/// Entries that are searched for the same name.
const MAX_ENTRIES: usize = 20_000;

/// Time for the search for the same name.
const SEARCH: Duration = Duration::from_millis(50);

/// Adds a suggestion to the error of a call whose target does not exist.
pub(in crate::tool) fn suggesting(call: PreparedCall) -> PreparedCall {
    let targets = call.targets.clone();
    let action = match call.action {
        CallAction::Run(run) => CallAction::Run(suggesting_run(run, targets, |context| context)),
        CallAction::RunOnState(run) => {
            CallAction::RunOnState(suggesting_run(run, targets, |(context, _)| context))
        }
        action => action,
    };
    PreparedCall { action, ..call }
}

fn suggesting_run<Input: Send + 'static>(
    run: CallTask<Input, ToolOutput>,
    targets: Vec<Target>,
    context_of: fn(&Input) -> &RunContext,
) -> CallTask<Input, ToolOutput> {
    Box::new(move |input| {
        let near = NearPath { targets, files: context_of(&input).permit.files.clone() };
        let task = async move {
            match run(input).await {
                Err(ToolError::File(FileError::Missing(path))) => {
                    blocking(move || Err(near.error(path))).await
                }
                outcome => outcome,
            }
        };
        task.boxed()
    })
}

/// The error of a read outside of the session's folders whose target does not exist. Suggests the same file in the
/// session's folders.
pub async fn missing_outside(
    targets: &[Target],
    files: FilesBelow,
    workspace: &Workspace,
) -> Option<ToolError> {
    let outside: Vec<PathBuf> =
        targets.iter().filter(|target| target.inside.is_none()).map(|target| target.path.clone()).collect();
    if outside.is_empty() {
        return None;
    }
    let workspace = workspace.clone();
    let found = blocking(move || {
        let missing = outside.into_iter().find(|path| {
            path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        });
        Ok(missing.map(|missing| outside_error(&missing, &files, &workspace)))
    });
    found.await.ok().flatten()
}

fn outside_error(missing: &Path, files: &FilesBelow, workspace: &Workspace) -> ToolError {
    let names: Vec<_> = missing.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    let mut tails = (0..names.len()).map(|first| names[first..].iter().collect::<PathBuf>());
    let near = tails.find_map(|tail| {
        let target = workspace.place(workspace.cwd().join(&tail));
        let is_there = target.inside.is_some() && target.path.symlink_metadata().is_ok();
        (is_there && !workspace.is_private(&target.path) && files.admits(&target)).then_some(tail)
    });
    let hint = match near {
        Some(near) => format!("; did you mean {}?", near.display()),
        None => format!(". The working directory is {}.", workspace.cwd().display()),
    };
    ToolError::Failed(format!(
        "{} is outside of the session's folders and does not exist{hint}",
        missing.display()
    ))
}

/// The targets of a call, and the files that it may learn of.
struct NearPath {
    targets: Vec<Target>,
    files: Option<FilesBelow>,
}

impl NearPath {
    fn error(&self, missing: PathBuf) -> ToolError {
        let mut near: Vec<PathBuf> = self.find(&missing).into_iter().collect();
        if near.is_empty() {
            near = self.of_same_name(&missing).unwrap_or_default();
        }
        let error = FileError::Missing(missing);
        if near.is_empty() {
            return error.into();
        }
        let near: Vec<_> = near.iter().map(|near| near.display().to_string()).collect();
        ToolError::Failed(format!("{error}; did you mean {}?", near.join(" or ")))
    }

    /// Returns the path with its first missing name replaced by the nearest name in that folder. `None` outside
    /// of the session's folders, and if no name is similar or rules deny the file. Blocks.
    fn find(&self, missing: &Path) -> Option<PathBuf> {
        let target = self.targets.iter().find(|target| target.path == missing)?;
        let steps = target.inside.as_ref()?.components().count();
        let first =
            target.path.ancestors().take(steps).find(|path| path.parent().is_some_and(Path::is_dir))?;
        let rest = target.path.strip_prefix(first).ok()?;
        let folder = inside(target, first.parent()?)?;
        let entries = open_dir(&folder).ok()?.entries().ok()?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        let name = nearest_name(first.file_name()?.to_str()?, &names)?;
        let mut path = folder.path.join(name);
        path.extend(rest);
        let near_target = inside(target, &path)?;
        (self.admits(&near_target) && near_target.path.symlink_metadata().is_ok()).then_some(near_target.path)
    }

    /// Returns the first paths with the same name elsewhere in the session's folder. Blocks for [`SEARCH`].
    fn of_same_name(&self, missing: &Path) -> Option<Vec<PathBuf>> {
        let target = self.targets.iter().find(|target| target.path == missing)?;
        let depth = target.inside.as_ref()?.components().count();
        let root = inside(target, target.path.ancestors().nth(depth)?)?;
        let name = target.path.file_name()?;
        let globs = globs(&root.path, None).ok()?;
        let options = WalkOptions { globs, depth: None, ignoring: Ignoring::All, without: None };
        let end = Instant::now() + SEARCH;
        let entries = Walk::new(&root, options).ok()?.take(MAX_ENTRIES).take_while(|_| Instant::now() < end);
        let same_named =
            entries.filter(|entry| entry.name().eq_ignore_ascii_case(name)).map(|entry| entry.path);
        let admitted =
            same_named.filter(|path| inside(target, path).is_some_and(|found| self.admits(&found)));
        Some(admitted.take(MAX_NAMED).collect())
    }

    fn admits(&self, found: &Target) -> bool {
        self.files.as_ref().is_none_or(|files| files.admits(found))
    }
}

/// A path in the same folder of the session.
fn inside(target: &Target, path: &Path) -> Option<Target> {
    let root = target.path.ancestors().nth(target.inside.as_ref()?.components().count())?;
    Some(Target { path: path.to_owned(), inside: Some(path.strip_prefix(root).ok()?.to_owned()) })
}

/// The name with the fewest edits, at most a third of the characters. Case, and the extension alone, are no
/// edits.
fn nearest_name<'a>(wanted: &str, names: &'a [String]) -> Option<&'a str> {
    let lower = wanted.to_lowercase();
    let (edits, name) = names
        .iter()
        .map(|name| (edits(&name.to_lowercase(), &lower), name))
        .min_by_key(|(edits, _)| *edits)?;
    (edits <= (lower.chars().count() / 3).max(1)).then_some(name)
}

fn edits(name: &str, wanted: &str) -> usize {
    if !lower_stem(wanted).is_empty() && lower_stem(name) == lower_stem(wanted) {
        return 0;
    }
    strsim::osa_distance(name, wanted)
}

fn lower_stem(name: &str) -> String {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_has_few_edits() {
        let check = |wanted, names: &str, expected| {
            let names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
            assert_eq!(nearest_name(wanted, &names), expected, "{wanted}");
        };
        check("confg.yaml", "config.yaml other.yaml", Some("config.yaml"));
        check("readme", "CHANGELOG.md README.md", Some("README.md"));
        check("main.js", "lib.ts main.ts", Some("main.ts"));
        check("gone.txt", "notes.txt", None);
        check("walk.rs", "", None);
        check(".env", ".git .gitignore", None);
    }
}
