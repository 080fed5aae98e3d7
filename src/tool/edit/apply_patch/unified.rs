//! Parses a patch: a unified diff by the rules of `git apply`, or one for [`begin_patch`]. Pure.
//!
//! ```text
//! patch   = { section | other text }
//! section = "diff --git " NAME " " NAME { header } { hunk } | "--- " NAME "+++ " NAME hunk { hunk }
//! header  = "--- " NAME | "+++ " NAME | ( "rename " | "copy " ) ( "from " | "to " ) PATH | "index " …
//!         | ( "old mode " | "new mode " | "new file mode " | "deleted file mode " ) MODE | "similarity index " …
//! ```
//!
//! Each part is a line; `hunk` stands in [`hunk`], and `NAME` in [`names`]. Skips text between sections, but never
//! a line that looks like part of a hunk. Rejects binary patches, symbolic links, submodules and combined diffs.

use super::begin_patch;
use super::hunk::{self, PatchHunk, is_body, is_plain_header, is_signature};
use super::names::{self, PatchName, Prefixes};

const MAX_PATCH: usize = 2 * 1024 * 1024;

const MAX_FILES: usize = 500;

const METADATA: [&str; 8] = [
    "old mode ",
    "new mode ",
    "new file mode ",
    "deleted file mode ",
    "rename from ",
    "rename to ",
    "copy from ",
    "copy to ",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilePatch {
    pub operation: PatchOperation,
    /// The new value of the executable bit; `None` keeps it.
    pub executable: Option<bool>,
    pub hunks: Vec<PatchHunk>,
}

impl FilePatch {
    /// False if it has only context.
    pub(super) fn changes(&self) -> bool {
        let is_modified = matches!(self.operation, PatchOperation::Modify(_)) && self.executable.is_none();
        !is_modified || self.hunks.iter().any(|hunk| !hunk.is_context)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PatchOperation {
    Create(String),
    Delete(String),
    Modify(String),
    Rename {
        from: String,
        to: String,
    },
    Copy {
        from: String,
        to: String,
    },
    /// Deletes a file whatever it contains.
    Remove(String),
}

impl PatchOperation {
    pub(super) fn paths(&self) -> Vec<&str> {
        match self {
            Self::Create(path) | Self::Delete(path) | Self::Modify(path) | Self::Remove(path) => vec![path],
            Self::Rename { from, to } | Self::Copy { from, to } => vec![from, to],
        }
    }
}

pub(super) fn parse(patch: &str) -> Result<Vec<FilePatch>, String> {
    if patch.len() > MAX_PATCH {
        return Err(format!("it has {} bytes, and at most {MAX_PATCH} are read: split it", patch.len()));
    }
    let ending = if patch.ends_with('\n') { "" } else { "\n" };
    let patch = [patch, ending].concat();
    let lines: Vec<&str> = patch.split_inclusive('\n').collect();
    if let Some(start) = begin_patch::start(&lines) {
        return begin_patch::parse(&lines, start).and_then(check_count).and_then(check_changes);
    }
    let mut reader = PatchReader { lines: &lines, at: 0, allows_any_text: true };
    let mut sections = Vec::new();
    while let Some(section) = reader.next_section()? {
        sections.push(section);
    }
    let sections = check_count(sections)?;
    let prefixes = Prefixes::of(&sections.iter().map(Section::sides));
    let files: Result<Vec<_>, _> = sections.into_iter().map(|section| section.resolve(prefixes)).collect();
    check_changes(files?)
}

/// Hunks of context only are left out if the patch changes something elsewhere.
fn check_changes(files: Vec<FilePatch>) -> Result<Vec<FilePatch>, String> {
    let context = files.iter().flat_map(|file| &file.hunks).find(|hunk| hunk.is_context);
    match context {
        Some(hunk) if !files.iter().any(FilePatch::changes) => {
            Err(format!("line {}: the hunk changes nothing", hunk.line))
        }
        _ => Ok(files),
    }
}

fn check_count<T>(files: Vec<T>) -> Result<Vec<T>, String> {
    match files.len() {
        0 => Err("there is no file in it: each begins with `--- a/PATH` and `+++ b/PATH`".into()),
        1..=MAX_FILES => Ok(files),
        _ => Err(format!("it has more than {MAX_FILES} files: split it")),
    }
}

#[derive(Debug, Default)]
struct Section {
    line: usize,
    /// True after a `diff --git` line.
    is_git: bool,
    header: Option<(String, String)>,
    old: Option<PatchName>,
    new: Option<PatchName>,
    renamed: (Option<String>, Option<String>),
    copied: (Option<String>, Option<String>),
    is_new: bool,
    is_deleted: bool,
    executable: Option<bool>,
    hunks: Vec<PatchHunk>,
}

struct PatchReader<'a> {
    lines: &'a [&'a str],
    at: usize,
    /// True before the first section and between mailed patches, where any text may appear.
    allows_any_text: bool,
}

impl<'a> PatchReader<'a> {
    fn line(&self) -> Option<&'a str> {
        self.lines.get(self.at).map(|line| line.trim_end_matches(['\r', '\n']))
    }

    fn next_section(&mut self) -> Result<Option<Section>, String> {
        while let Some(line) = self.line() {
            let number = self.at + 1;
            if let Some(rest) = line.strip_prefix("diff --git ") {
                self.at += 1;
                let section =
                    Section { line: number, is_git: true, header: names::pair(rest), ..Section::default() };
                return self.section(section).map(Some);
            }
            if is_plain_header(self.lines, self.at) {
                return self.section(Section { line: number, ..Section::default() }).map(Some);
            }
            if line.starts_with("diff --cc ") || line.starts_with("diff --combined ") {
                return Err(format!("line {number}: the combined diff of a merge is not applied"));
            }
            if line.starts_with("--- ")
                && self.lines.get(self.at + 1).is_some_and(|next| next.starts_with("+++ "))
            {
                return Err(format!(
                    "line {}: a hunk header (`@@ -1,3 +1,4 @@` or `@@`) has to follow `+++`",
                    number + 2
                ));
            }
            if line.starts_with("@@") && !self.allows_any_text || line.starts_with("@@ -") {
                return Err(format!("line {number}: no `---` and `+++` name the file of this hunk"));
            }
            if !self.allows_any_text && METADATA.iter().any(|start| line.starts_with(start)) {
                return Err(format!("line {number}: `{line}` has no `diff --git` line above it"));
            }
            self.allows_any_text |= line.starts_with("From ") || is_signature(self.lines, self.at);
            if is_body(line) && !self.allows_any_text {
                return Err(format!(
                    "line {number}: `{line}` belongs to no hunk. Every line of a hunk begins with a space, `-` or `+`"
                ));
            }
            self.at += 1;
        }
        Ok(None)
    }

    fn section(&mut self, mut section: Section) -> Result<Section, String> {
        while let Some(line) = self.line() {
            if !section.header_line(line).map_err(|why| format!("line {}: {why}", self.at + 1))? {
                break;
            }
            self.at += 1;
        }
        if self.line().is_some_and(|line| line.starts_with("@@"))
            && (section.old.is_none() || section.new.is_none())
        {
            return Err(format!("line {}: no `---` and `+++` name the file of this hunk", self.at + 1));
        }
        while self.line().is_some_and(|line| line.starts_with("@@")) {
            let (hunk, end) = hunk::read(self.lines, self.at)?;
            section.hunks.push(hunk);
            // Models separate hunks by blank lines. `git apply` rejects those, but they are unambiguous.
            let next = hunk::after_blank(self.lines, end);
            self.at =
                if self.lines.get(next).is_some_and(|line| line.starts_with("@@")) { next } else { end };
        }
        self.allows_any_text = is_signature(self.lines, self.at);
        Ok(section)
    }
}

impl Section {
    fn header_line(&mut self, line: &str) -> Result<bool, String> {
        // Only the first `--- ` line belongs to the header.
        if let Some(name) = line.strip_prefix("--- ").filter(|_| self.old.is_none()) {
            self.old = Some(names::read(name)?);
        } else if let Some(name) = line.strip_prefix("+++ ").filter(|_| self.new.is_none()) {
            self.new = Some(names::read(name)?);
        } else if let Some(mode) = line.strip_prefix("old mode ") {
            is_executable(mode)?;
        } else if let Some(mode) = line.strip_prefix("new mode ") {
            self.executable = Some(is_executable(mode)?);
        } else if let Some(mode) = line.strip_prefix("new file mode ") {
            self.is_new = true;
            self.executable = Some(is_executable(mode)?).filter(|executable| *executable);
        } else if let Some(mode) = line.strip_prefix("deleted file mode ") {
            self.is_deleted = true;
            is_executable(mode)?;
        } else if let Some(name) = line.strip_prefix("rename from ") {
            self.renamed.0 = Some(names::whole(name)?);
        } else if let Some(name) = line.strip_prefix("rename to ") {
            self.renamed.1 = Some(names::whole(name)?);
        } else if let Some(name) = line.strip_prefix("copy from ") {
            self.copied.0 = Some(names::whole(name)?);
        } else if let Some(name) = line.strip_prefix("copy to ") {
            self.copied.1 = Some(names::whole(name)?);
        } else if let Some(index) = line.strip_prefix("index ") {
            if let Some((_, mode)) = index.split_once(' ') {
                is_executable(mode)?;
            }
        } else if line.starts_with("Binary files ") || line == "GIT binary patch" {
            return Err("it changes a binary file, and only text is patched".into());
        } else {
            return Ok(line.starts_with("similarity index ") || line.starts_with("dissimilarity index "));
        }
        Ok(true)
    }

    fn sides(&self) -> (Option<&str>, Option<&str>) {
        match &self.header {
            Some((old, new)) => (Some(old), Some(new)),
            None => (plain(self.old.as_ref()), plain(self.new.as_ref())),
        }
    }

    fn resolve(self, prefixes: Prefixes) -> Result<FilePatch, String> {
        let line = self.line;
        let operation = self.operation(prefixes).map_err(|why| format!("line {line}: {why}"))?;
        let is_same = matches!(operation, PatchOperation::Modify(_)) && self.executable.is_none();
        if is_same && self.hunks.is_empty() {
            return Err(format!("line {line}: the section changes nothing"));
        }
        let sides =
            |old: bool| self.hunks.iter().any(|hunk| !(if old { &hunk.old } else { &hunk.new }).is_empty());
        match &operation {
            PatchOperation::Create(path) if sides(true) => {
                Err(format!("line {line}: {path} is new, so its hunks cannot have context or removed lines"))
            }
            PatchOperation::Delete(path) if sides(false) => {
                Err(format!("line {line}: {path} is deleted, so its hunks cannot keep or add lines"))
            }
            _ => Ok(FilePatch { operation, executable: self.executable, hunks: self.hunks }),
        }
    }

    fn operation(&self, prefixes: Prefixes) -> Result<PatchOperation, String> {
        let old = plain(self.old.as_ref()).map(|name| prefixes.strip(name));
        let new = plain(self.new.as_ref()).map(|name| prefixes.strip(name));
        let header = self.header.as_ref().map(|(old, new)| (prefixes.strip(old), prefixes.strip(new)));
        let differ = || "its header lines name different files".to_owned();
        let moved = [(&self.renamed, true), (&self.copied, false)];
        let moved = moved.into_iter().find(|((from, to), _)| from.is_some() || to.is_some());
        if let Some(((from, to), is_renamed)) = moved {
            let (Some(from), Some(to)) = (from.clone(), to.clone()) else {
                return Err("a rename or copy has to name both files".into());
            };
            // Without prefixes, `a/f` and `b/f` are whole names.
            let is_whole = plain(self.old.as_ref()) == Some(&from) && plain(self.new.as_ref()) == Some(&to);
            let fits =
                |name: &Option<String>, path: &str| is_whole || name.as_ref().is_none_or(|name| name == path);
            let both = self.renamed.0.is_some() && self.copied.0.is_some();
            if !fits(&old, &from) || !fits(&new, &to) || self.is_new || self.is_deleted || both || from == to
            {
                return Err(differ());
            }
            return Ok(if is_renamed {
                PatchOperation::Rename { from, to }
            } else {
                PatchOperation::Copy { from, to }
            });
        }
        if self.is_git && prefixes == Prefixes::None && header.as_ref().is_none_or(|(old, new)| old != new) {
            return Err("its two names are not the same. Where nothing is renamed, names have the prefixes `a/` and \
                        `b/`, one letter each, or none: `git diff --src-prefix=a/ --dst-prefix=b/` makes such a diff"
                .into());
        }
        let is_new = self.is_new || matches!(self.old, Some(PatchName::None));
        let is_deleted = self.is_deleted || matches!(self.new, Some(PatchName::None));
        let names_are_equal = is_new || is_deleted || old == new;
        if let Some((header_old, header_new)) = &header
            && names_are_equal
        {
            let mut names = [Some(header_new), old.as_ref(), new.as_ref()].into_iter().flatten();
            if names.any(|name| name != header_old) {
                return Err(differ());
            }
        }
        let in_header = header.map(|(old, _)| old);
        match (is_new, is_deleted) {
            (true, true) => Err("the section both creates and deletes the file".into()),
            (true, false) if old.is_some() => Err("a new file has no old name: write `--- /dev/null`".into()),
            (false, true) if new.is_some() => {
                Err("a deleted file has no new name: write `+++ /dev/null`".into())
            }
            (true, false) => new.or(in_header).map(PatchOperation::Create).ok_or_else(differ),
            (false, true) => old.or(in_header).map(PatchOperation::Delete).ok_or_else(differ),
            (false, false) => match (old, new, in_header) {
                (Some(old), Some(new), _) if old == new => Ok(PatchOperation::Modify(new)),
                (Some(from), Some(to), _) => Ok(PatchOperation::Rename { from, to }),
                (None, None, Some(path)) => Ok(PatchOperation::Modify(path)),
                _ => Err("`---` and `+++` do not name both files".into()),
            },
        }
    }
}

fn plain(name: Option<&PatchName>) -> Option<&str> {
    match name? {
        PatchName::Path(path) => Some(path),
        PatchName::None => None,
    }
}

fn is_executable(mode: &str) -> Result<bool, String> {
    match mode.trim() {
        "100644" | "100664" | "100600" => Ok(false),
        "100755" | "100775" | "100700" => Ok(true),
        "120000" => Err("it changes a symbolic link, and only regular files are patched".into()),
        "160000" => Err("it changes a submodule, and only regular files are patched".into()),
        other => Err(format!("`{other}` is not the mode of a regular file (100644 or 100755)")),
    }
}
