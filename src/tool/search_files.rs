//! `search_files`: searches files with ripgrep's libraries. Honours `.gitignore`.

use std::io;
use std::sync::Arc;

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::sinks::Lossy;
use grep_searcher::{BinaryDetection, SearcherBuilder};
use ignore::overrides::Override;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::content::code_span;
use super::walk::{ToolWalk, globs};
use super::{PreparedCall, Tool, ToolError, ToolSpec};
use crate::acp::ToolKind;
use crate::gate::Permit;
use crate::permission::{Effect, Target};
use crate::text::shorten;
use crate::workspace::{EntryKind, Workspace};

/// Default number of matching lines.
const MATCHES: usize = 200;

const MAX_MATCHES: usize = 1000;

const TITLE: usize = 60;

/// Maximum bytes of a line. The rest of a file with a longer line is skipped.
const MAX_LINE: usize = 16 * 1024 * 1024;

const MAX_COLUMNS: usize = 300;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// Regular expression in ripgrep's syntax, matched against each line.
    pattern: String,
    /// File or directory to search, absolute or relative to the working directory. Default: the working directory.
    #[serde(default)]
    path: Option<String>,
    /// Only files whose path matches this glob, as in .gitignore: `*.rs`, `src/**`, `!tests`.
    #[serde(default)]
    glob: Option<String>,
    /// Ignore case. Default: false.
    #[serde(default)]
    ignore_case: bool,
    /// Matching lines to return. Default: 200; at most 1000.
    #[serde(default)]
    limit: Option<usize>,
    /// Matching lines of one file to return, so that one file does not crowd out the others. Default: all.
    #[serde(default)]
    per_file: Option<usize>,
}

pub(super) fn tool() -> Arc<dyn Tool> {
    let what = "Search the content of files, as it is saved, for a regular expression. Answers with path:line: text. Files \
                that git ignores, version control's own, binary files, and hidden files that no glob matches are left out. \
                What the user has not saved yet is not found; read_file shows it.";
    ToolSpec::new("search_files", ToolKind::Search, Effect::Read, what).tool(prepare)
}

fn prepare(given: Arguments, workspace: &Workspace) -> Result<PreparedCall, ToolError> {
    let Arguments { pattern, path, glob, ignore_case, limit, per_file } = given;
    let matcher = RegexMatcherBuilder::new()
        .case_insensitive(ignore_case)
        .line_terminator(Some(b'\n'))
        .build(&pattern)
        .map_err(|error| ToolError::arguments(format!("pattern: {error}")))?;
    let target = workspace.resolve(path.as_deref().unwrap_or("."))?;
    let globs = globs(&target.path, glob.as_deref()).map_err(ToolError::Arguments)?;
    let place = workspace.display(&target);
    let pattern = code_span(&shorten(&pattern, TITLE));
    let title = if place == "." {
        format!("Search for {pattern}")
    } else {
        format!("Search {} for {pattern}", code_span(&place))
    };
    let limit = limit.unwrap_or(MATCHES).clamp(1, MAX_MATCHES);
    let per_file = per_file.unwrap_or(usize::MAX).max(1);
    let search =
        Search { target: target.clone(), matcher, globs, limit, per_file, workspace: workspace.clone() };
    Ok(PreparedCall::reading(title, target, move |permit| search.run(permit)))
}

struct Search {
    target: Target,
    matcher: RegexMatcher,
    globs: Override,
    limit: usize,
    per_file: usize,
    workspace: Workspace,
}

impl Search {
    fn run(self, permit: &Permit) -> Result<String, ToolError> {
        let mut walk = ToolWalk::new(&self.target, self.globs, None, &self.workspace, permit)?;
        let mut searcher = SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .line_number(true)
            .heap_limit(Some(MAX_LINE))
            .build();
        let mut lines = Vec::new();
        let mut more = false;
        while let Some(entry) = walk.next("the search finished")? {
            if entry.kind != EntryKind::File {
                if entry.depth == 0 {
                    let text = format!("{} is not a regular file", entry.path.display());
                    return Err(ToolError::Failed(text));
                }
                continue;
            }
            let name =
                entry.path.strip_prefix(self.workspace.cwd()).unwrap_or(&entry.path).display().to_string();
            let mut of_this_file = 0;
            let sink = Lossy(|number, line| {
                more = lines.len() >= self.limit;
                if !more {
                    lines.push(format!("{name}:{number}: {}", shorten(line.trim_end(), MAX_COLUMNS)));
                }
                of_this_file += 1;
                Ok(!more && of_this_file < self.per_file)
            });
            let outcome = entry.open().and_then(|file| {
                let file = Interruptible { file, cancel: &permit.cancel };
                searcher.search_reader(&self.matcher, file, sink)
            });
            // Unreadable files have no matches.
            if let Err(error) = outcome {
                tracing::debug!(%error, path = %entry.path.display(), "a file could not be searched");
            }
            if more {
                lines.push(format!("[More lines match; the first {} are shown.]", self.limit));
                break;
            }
        }
        Ok(walk.report(lines, "[No line matches.]"))
    }
}

/// File whose reads fail once the call is cancelled.
struct Interruptible<'a> {
    file: std::fs::File,
    cancel: &'a CancellationToken,
}

impl io::Read for Interruptible<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other("the call has to end"));
        }
        self.file.read(buffer)
    }
}
