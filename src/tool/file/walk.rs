//! Lists folders for tools, without files that git ignores, files of version control, and files that rules
//! deny.

use std::borrow::Cow;
use std::path::Path;
use std::time::{Duration, Instant};

use ignore::overrides::{Override, OverrideBuilder};

use crate::gate::Permit;
use crate::permission::Target;
use crate::text::grouped;
use crate::tool::ToolError;
use crate::workspace::{EntryKind, Ignoring, Walk, WalkEntry, WalkOptions, Workspace};

/// Time for counting what is not shown any more.
const COUNTING: Duration = Duration::from_secs(5);

/// Most ignored files that a result names.
const MAX_IGNORED: usize = 3;

/// Compiles a glob as in `.gitignore`, which for a folder stands for all below it. In `src/*` only the files
/// of `src` are meant. The glob may begin with `./` or with the path of the root. `None` matches everything.
pub(super) fn globs(root: &Path, glob: Option<&str>) -> Result<Override, String> {
    let mut globs = OverrideBuilder::new(root);
    if let Some(glob) = glob.map(|glob| relative(root, glob)) {
        let glob = &*glob;
        globs.add(glob).map_err(|error| format!("glob: {error}"))?;
        if let Some(below) = below(glob) {
            globs.add(&below).map_err(|error| format!("glob: {error}"))?;
        }
    }
    globs.build().map_err(|error| format!("glob: {error}"))
}

/// Anchors a glob that begins with `./` or with the path of the root, as other programs write it.
fn relative<'a>(root: &Path, glob: &'a str) -> Cow<'a, str> {
    let (negation, pattern) = glob.strip_prefix('!').map_or(("", glob), |pattern| ("!", pattern));
    let below_root = root.to_str().and_then(|root| pattern.strip_prefix(root));
    let below_root = below_root.and_then(|rest| rest.strip_prefix('/'));
    match below_root.or_else(|| pattern.strip_prefix("./")) {
        Some(rest) => Cow::Owned(format!("{negation}/{}", rest.trim_start_matches("./"))),
        None => Cow::Borrowed(glob),
    }
}

/// The glob of all files below the folders that a glob names.
fn below(glob: &str) -> Option<String> {
    let pattern = glob.trim_end_matches('/');
    let last = pattern.rsplit_once('/').map(|(_, last)| last);
    match last {
        _ if pattern.is_empty() || pattern.starts_with('!') => None,
        None => Some(format!("**/{pattern}/**")),
        Some(last) => (!last.contains(['*', '?', '[', '{'])).then(|| format!("{pattern}/**")),
    }
}

pub(super) struct ToolWalk<'a> {
    walk: Walk,
    workspace: &'a Workspace,
    permit: &'a Permit,
    left_out: usize,
    /// Set once entries are only counted.
    deadline: Option<Instant>,
    is_partial: bool,
}

impl<'a> ToolWalk<'a> {
    /// Starts at a directory; a file yields only itself.
    pub(super) fn new(
        target: &Target,
        options: WalkOptions,
        workspace: &'a Workspace,
        permit: &'a Permit,
    ) -> Result<Self, ToolError> {
        let walk = Walk::new(target, options)?;
        Ok(Self { walk, workspace, permit, left_out: 0, deadline: None, is_partial: false })
    }

    /// Returns an error if the call is cancelled before `what`.
    pub(super) fn next(&mut self, what: &str) -> Result<Option<WalkEntry>, ToolError> {
        for entry in self.walk.by_ref() {
            if self.permit.cancel.is_cancelled() {
                return Err(ToolError::Failed(format!("cancelled before {what}")));
            }
            if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
                self.is_partial = true;
                break;
            }
            if self.workspace.is_private(&entry.path) {
                continue;
            }
            if self.permit.admits(&self.workspace.place(entry.path.clone())) {
                return Ok(Some(entry));
            }
            self.left_out += usize::from(entry.kind != EntryKind::Folder);
        }
        Ok(None)
    }

    /// Limits the rest of the walk, whose entries are not shown, to [`COUNTING`].
    pub(super) fn only_count(&mut self) {
        self.deadline.get_or_insert_with(|| Instant::now() + COUNTING);
    }

    /// A total for the model; "more than" if the walk was not finished.
    pub(super) fn total(&self, number: usize) -> String {
        format!("{}{}", if self.is_partial { "more than " } else { "" }, grouped(number))
    }

    /// Returns the lines, or the text `none`, with notes about omitted files.
    pub(super) fn report(&self, mut lines: Vec<String>, none: &str) -> String {
        if lines.is_empty() {
            lines.push(none.into());
            lines.extend(self.ignored_note());
        }
        lines.extend(left_out(self.left_out));
        lines.extend(self.walk.problems().iter().map(|problem| format!("[{problem}]")));
        if self.walk.is_cut() {
            lines.push("[Folders below the maximum depth are omitted.]".into());
        }
        lines.join("\n")
    }

    /// A note about ignored entries, as far as rules let the model know of them.
    fn ignored_note(&self) -> Option<String> {
        let cwd = self.workspace.cwd();
        let may_be_named = |path: &Path| {
            !self.workspace.is_private(path) && self.permit.admits(&self.workspace.place(path.to_owned()))
        };
        let ignored = self.walk.ignored().iter().filter(|(path, _)| may_be_named(path));
        let names: Vec<String> = ignored
            .map(|(path, kind)| {
                let slash = if *kind == EntryKind::Folder { "/" } else { "" };
                format!("{}{slash}", path.strip_prefix(cwd).unwrap_or(path).display())
            })
            .collect();
        let more = if names.len() > MAX_IGNORED { " and others" } else { "" };
        let shown = names[..names.len().min(MAX_IGNORED)].join(", ");
        (!names.is_empty()).then(|| format!("[Left out, because git ignores them: {shown}{more}.]"))
    }
}

/// The options of a walk for a tool.
pub(super) fn walk_options(globs: Override, includes_ignored: bool) -> WalkOptions {
    let ignoring = if includes_ignored { Ignoring::Nothing } else { Ignoring::All };
    WalkOptions { globs, depth: None, ignoring, without: None }
}

pub(super) fn left_out(files: usize) -> Option<String> {
    match files {
        0 => None,
        1 => Some("[1 file omitted: a rule denies it or asks for it.]".into()),
        files => Some(format!("[{files} files omitted: rules deny them or ask for them.]")),
    }
}
