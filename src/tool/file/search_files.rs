//! `search_files`: searches files with ripgrep's libraries. Honours `.gitignore`.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkMatch,
};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::walk::{ToolWalk, globs, walk_options};
use crate::acp::ToolKind;
use crate::gate::Permit;
use crate::permission::{Effect, Target};
use crate::text::{code_span, counted, shorten};
use crate::tool::{PreparedCall, Tool, ToolError, ToolSpec};
use crate::workspace::{EntryKind, WalkEntry, WalkOptions, Workspace};

/// Default number of lines.
const MATCHES: usize = 200;

const MAX_MATCHES: usize = 1000;

const MAX_CONTEXT: usize = 20;

/// Maximum bytes of all lines together.
const MAX_BYTES: usize = 64 * 1024;

const TITLE: usize = 60;

/// Maximum bytes of a line, and of a file in a multi-line search. The rest of a file with a longer line is
/// skipped.
const MAX_LINE: usize = 16 * 1024 * 1024;

const MAX_COLUMNS: usize = 300;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SearchFilesArguments {
    /// In ripgrep's syntax, matched against each line.
    pattern: String,
    /// File or directory. Default: the working directory.
    #[serde(default)]
    path: Option<String>,
    /// Only these files, as in .gitignore: `*.rs`, `src/**`, `!tests`.
    #[serde(default)]
    glob: Option<String>,
    /// Default: false.
    #[serde(default)]
    include_ignored: bool,
    /// Matching lines, paths, or numbers of matching lines. Default: content.
    #[serde(default)]
    output: SearchOutput,
    /// Lines around each match, at most 20. Default: 0.
    #[serde(default)]
    context: usize,
    /// Default: false.
    #[serde(default)]
    ignore_case: bool,
    /// A match can span lines, and `.` matches line ends. Default: false.
    #[serde(default)]
    multiline: bool,
    /// Default: 200; at most 1000.
    #[serde(default)]
    limit: Option<usize>,
    /// Matching lines of one file. Default: all.
    #[serde(default)]
    per_file: Option<usize>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum SearchOutput {
    #[default]
    Content,
    Files,
    Count,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description = "Search file contents for a regular expression. Answers with `path:12:text`, and `path-11-text` for context. \
                Searches hidden files; skips .git, binary files, files that git ignores, and what the user has not saved \
                (read_file shows it).";
    ToolSpec::new("search_files", ToolKind::Search, Effect::Read, description).tool(prepare)
}

fn prepare(given: SearchFilesArguments, workspace: &Workspace) -> Result<PreparedCall, ToolError> {
    let SearchFilesArguments {
        pattern,
        path,
        glob,
        include_ignored,
        output,
        context,
        ignore_case,
        multiline,
        limit,
        per_file,
    } = given;
    let matcher = RegexMatcherBuilder::new()
        .case_insensitive(ignore_case)
        .multi_line(true)
        .dot_matches_new_line(multiline)
        .line_terminator((!multiline).then_some(b'\n'))
        .build(&pattern)
        .map_err(|error| ToolError::arguments(format!("pattern: {error}")))?;
    let target = workspace.resolve(path.as_deref().unwrap_or("."))?;
    let globs = globs(&target.path, glob.as_deref()).map_err(ToolError::Arguments)?;
    let options = walk_options(globs, include_ignored);
    let place = workspace.display(&target);
    let pattern = code_span(&shorten(&pattern, TITLE));
    let title = if place == "." {
        format!("Search for {pattern}")
    } else {
        format!("Search {} for {pattern}", code_span(&place))
    };
    let context = if output == SearchOutput::Content { context.min(MAX_CONTEXT) } else { 0 };
    let searcher = SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(0))
        .line_number(true)
        .heap_limit(Some(MAX_LINE))
        .multi_line(multiline)
        .before_context(context)
        .after_context(context)
        .build();
    let findings = SearchFindings {
        output,
        has_context: context > 0,
        limit: limit.unwrap_or(MATCHES).clamp(1, MAX_MATCHES),
        per_file: per_file.unwrap_or(usize::MAX).max(1),
        ..SearchFindings::default()
    };
    let search = Search {
        target: target.clone(),
        options,
        lines: LineSearch { matcher, searcher, found: findings },
        workspace: workspace.clone(),
    };
    Ok(PreparedCall::reading(title, target, move |permit| search.run(permit)))
}

struct Search {
    target: Target,
    options: WalkOptions,
    lines: LineSearch,
    workspace: Workspace,
}

impl Search {
    fn run(self, permit: &Permit) -> Result<String, ToolError> {
        let Self { target, options, mut lines, workspace } = self;
        let mut walk = ToolWalk::new(&target, options, &workspace, permit)?;
        while let Some(entry) = walk.next("the search finished")? {
            if entry.kind != EntryKind::File {
                if entry.depth == 0 {
                    let text = format!("{} is not a regular file", entry.path.display());
                    return Err(ToolError::Failed(text));
                }
                continue;
            }
            let name = entry.path.strip_prefix(workspace.cwd()).unwrap_or(&entry.path).display().to_string();
            lines.search(&entry, &name, permit);
            if lines.found.is_full {
                walk.only_count();
            }
        }
        lines.found.end(&walk);
        Ok(walk.report(lines.found.lines, "[No line matches.]"))
    }
}

struct LineSearch {
    matcher: RegexMatcher,
    searcher: Searcher,
    found: SearchFindings,
}

impl LineSearch {
    fn search(&mut self, entry: &WalkEntry, name: &str, permit: &Permit) {
        let mut file = FileMatches { found: &mut self.found, matcher: &self.matcher, name, lines: 0 };
        let outcome = entry.open().and_then(|opened| {
            let opened = Interruptible { file: opened, cancel: &permit.cancel };
            self.searcher.search_reader(&self.matcher, opened, &mut file)
        });
        // Unreadable files have no matches.
        if let Err(error) = outcome {
            tracing::debug!(%error, path = %entry.path.display(), "a file could not be searched");
        }
        file.end();
    }
}

/// The lines for the model, and the totals.
#[derive(Debug, Default)]
struct SearchFindings {
    output: SearchOutput,
    has_context: bool,
    limit: usize,
    per_file: usize,
    lines: Vec<String>,
    bytes: usize,
    /// Matching lines, or files, in `lines`.
    shown: usize,
    is_full: bool,
    total_lines: usize,
    total_files: usize,
}

impl SearchFindings {
    /// Shows a match, unless a limit is reached.
    fn show(&mut self, line: String) {
        self.is_full |= self.shown == self.limit;
        if self.push(line) {
            self.shown += 1;
        }
    }

    fn push(&mut self, line: String) -> bool {
        self.is_full |= self.bytes + line.len() > MAX_BYTES;
        if !self.is_full {
            self.bytes += line.len() + 1;
            self.lines.push(line);
        }
        !self.is_full
    }

    fn separate(&mut self) {
        if self.has_context && self.lines.last().is_some_and(|last| last != "--") {
            self.push("--".into());
        }
    }

    fn end(&mut self, walk: &ToolWalk<'_>) {
        if self.lines.last().is_some_and(|last| last == "--") {
            self.lines.pop();
        }
        let noun =
            |number, one: &str| format!("{} {one}{}", walk.total(number), if number == 1 { "" } else { "s" });
        let (files, lines) = (noun(self.total_files, "file"), noun(self.total_lines, "matching line"));
        self.lines.extend(match self.output {
            SearchOutput::Files if self.is_full => Some(format!("[{} of {files} are shown.]", self.shown)),
            SearchOutput::Content if self.is_full => {
                Some(format!("[{} of {lines} in {files} are shown.]", self.shown))
            }
            SearchOutput::Count if self.is_full => {
                Some(format!("[{lines}; {} of {files} are shown.]", self.shown))
            }
            SearchOutput::Count if self.total_files > 1 => Some(format!("[{lines} in {files}.]")),
            SearchOutput::Content | SearchOutput::Files | SearchOutput::Count => None,
        });
    }
}

struct FileMatches<'a> {
    found: &'a mut SearchFindings,
    matcher: &'a RegexMatcher,
    name: &'a str,
    lines: usize,
}

impl FileMatches<'_> {
    fn line(&self, mark: char, number: u64, line: &[u8]) -> String {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end();
        let shown = if line.len() <= MAX_COLUMNS {
            Cow::Borrowed(line)
        } else {
            // A match over several lines is none in this one.
            let first = self.matcher.find(line.as_bytes()).ok().flatten();
            Cow::Owned(clipped(line, first.map_or(0..0, |found| found.start()..found.end())))
        };
        format!("{}{mark}{number}{mark}{shown}", self.name)
    }

    fn end(self) {
        let Self { found, name, lines, .. } = self;
        if lines == 0 {
            return;
        }
        found.total_files += 1;
        match found.output {
            SearchOutput::Content => {
                if lines > found.per_file && !found.is_full {
                    let more = counted(lines - found.per_file, "more matching line", "more matching lines");
                    found.push(format!("[{name}: {more}.]"));
                }
                found.separate();
            }
            SearchOutput::Files => found.show(name.to_owned()),
            SearchOutput::Count => found.show(format!("{name}: {lines}")),
        }
    }
}

impl Sink for FileMatches<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, matched: &SinkMatch<'_>) -> Result<bool, io::Error> {
        for (number, line) in (matched.line_number().unwrap_or(1)..).zip(matched.lines()) {
            self.lines += 1;
            self.found.total_lines += 1;
            if self.found.output == SearchOutput::Content && self.lines <= self.found.per_file {
                self.found.show(self.line(':', number, line));
            }
        }
        Ok(self.found.output != SearchOutput::Files)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, io::Error> {
        let is_shown = match context.kind() {
            SinkContextKind::After => self.lines <= self.found.per_file,
            SinkContextKind::Before | SinkContextKind::Other => self.lines < self.found.per_file,
        };
        if is_shown {
            let line = self.line('-', context.line_number().unwrap_or(1), context.bytes());
            self.found.push(line);
        }
        Ok(true)
    }

    fn context_break(&mut self, _: &Searcher) -> Result<bool, io::Error> {
        if self.lines < self.found.per_file {
            self.found.separate();
        }
        Ok(true)
    }
}

/// The part of a long line around its first match, in whole characters.
fn clipped(line: &str, first: Range<usize>) -> String {
    let before = MAX_COLUMNS.saturating_sub(first.len()) / 2;
    let start = first.start.saturating_sub(before).min(line.len() - MAX_COLUMNS);
    let start = line.ceil_char_boundary(start);
    let end = line.floor_char_boundary(start + MAX_COLUMNS);
    let mark = |is_cut: bool| if is_cut { "…" } else { "" };
    format!("{}{}{}", mark(start > 0), &line[start..end], mark(end < line.len()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipped_line_shows_its_first_match() {
        let line = |before: usize, after: usize| format!("{}needle{}", "a".repeat(before), "b".repeat(after));
        for (before, after) in [(0, 1_000), (100, 1_000), (1_000, 1_000), (5_000, 10), (1_000, 0)] {
            let text = clipped(&line(before, after), before..before + 6);
            assert!(text.contains("needle"), "{before} {after}: {text}");
            assert!(text.len() <= MAX_COLUMNS + 2 * "…".len(), "{before} {after}: {text}");
            let is_start = before <= MAX_COLUMNS / 2 - 3;
            assert_eq!(text.starts_with('…'), !is_start, "{before} {after}: {text}");
            assert_eq!(text.ends_with('…'), after > MAX_COLUMNS / 2, "{before} {after}: {text}");
        }
        let wide = "é".repeat(1_000);
        for at in [0, 500, 1_999] {
            let at = wide.floor_char_boundary(at);
            assert!(clipped(&wide, at..at + 2).contains('é'), "{at}");
        }
        assert_eq!(clipped(&wide, 0..0), format!("{}…", "é".repeat(150)));
    }
}
