//! Copies of the files in the session's folders, to detect and undo changes made by commands. The folders are
//! compared before and after a command. The first comparison copies every file; later comparisons read only
//! files with changed metadata. Ignored files and version control files are skipped.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cap_std::fs::{Dir, File, Metadata};
use tokio_util::sync::CancellationToken;

use super::inspect::{entry_exists, open_existing_parent, open_file};
use super::{Changed, Changes, FileState, Workspace};
use crate::ids;
use crate::permission::Target;
use copies::{Copies, CopyNumber};
use ignore_rules::Loosened;
use scan::{Fingerprint, MAX_BYTES, MAX_ENTRIES, MAX_FILE, Seen, Stop, TOO_LARGE, What};

mod copies;
mod ignore_rules;
mod scan;

/// Maximum number of paths in one sentence.
const MAX_NAMED: usize = 20;

#[derive(Debug)]
pub struct WorkspaceSnapshot {
    workspace: Workspace,
    copies: Copies,
    state: SnapshotState,
    unreported: Vec<String>,
}

#[derive(Debug)]
enum SnapshotState {
    New,
    Scanned(Entries),
    /// The folders exceed a limit, or copies cannot be made.
    Off,
}

type Entries = BTreeMap<PathBuf, SnapshotEntry>;

#[derive(Debug, Clone)]
struct SnapshotEntry {
    seen: Seen,
    /// Equal metadata imply equal content; see [`Fingerprint::is_settled`].
    is_settled: bool,
    copy: Option<CopyNumber>,
}

enum SnapshotFailure {
    Cancelled,
    Off(String),
}

impl From<Stop> for SnapshotFailure {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Cancelled => Self::Cancelled,
            Stop::TooDeep => Self::Off(
                "The session's folders are nested too deeply, so changes made by commands cannot be undone."
                    .into(),
            ),
            Stop::TooMuch => Self::Off(format!(
                "The session's folders contain more than {MAX_ENTRIES} files or {} MiB, so changes made by commands \
                 cannot be undone.",
                MAX_BYTES >> 20
            )),
        }
    }
}

impl WorkspaceSnapshot {
    /// `folder` must belong to this session: an existing entry there is replaced. The folder is private to
    /// this user and removed on drop.
    pub fn new(folder: PathBuf, workspace: &Workspace) -> Self {
        let workspace = workspace.clone();
        Self { workspace, copies: Copies::new(folder), state: SnapshotState::New, unreported: Vec::new() }
    }

    /// Returns the changes since the last update, none on the first call. Blocks. If cancelled, the copies
    /// stay as they were, and the result contains only a sentence about the cancellation.
    pub fn sync(&mut self, cancel: &CancellationToken) -> Changes {
        let changes = self.update(cancel);
        if changes.is_none() && !self.is_off() {
            self.unreported.push(
                "The comparison of files was cancelled, so earlier changes made by commands cannot be \
                       undone."
                    .into(),
            );
        }
        let mut changes = changes.unwrap_or_default();
        changes.uncovered.splice(0..0, self.unreported.drain(..));
        changes
    }

    /// Discards the changes, which the agent did not make. Blocks.
    pub fn refresh(&mut self, cancel: &CancellationToken) {
        // `unreported` keeps the reason for [`State::Off`].
        let _ = self.update(cancel);
    }

    pub fn is_off(&self) -> bool {
        matches!(self.state, SnapshotState::Off)
    }

    /// Returns `None` if cancelled, or if the folders cannot be covered.
    fn update(&mut self, cancel: &CancellationToken) -> Option<Changes> {
        let old = match std::mem::replace(&mut self.state, SnapshotState::New) {
            SnapshotState::Scanned(old) => Some(old),
            SnapshotState::New => None,
            SnapshotState::Off => {
                self.state = SnapshotState::Off;
                return None;
            }
        };
        match self.inspect(old.as_ref(), cancel) {
            Ok(mut new) => {
                let changes = old.as_ref().map(|old| self.compare(old, &mut new)).unwrap_or_default();
                self.forget(old.as_ref(), Some(&new));
                self.state = SnapshotState::Scanned(new);
                Some(changes)
            }
            Err(SnapshotFailure::Cancelled) => {
                self.state = old.map_or(SnapshotState::New, SnapshotState::Scanned);
                None
            }
            Err(SnapshotFailure::Off(why)) => {
                self.copies.clear();
                self.unreported.push(why);
                self.state = SnapshotState::Off;
                None
            }
        }
    }

    /// Unchanged entries keep the copies of `old`.
    fn inspect(
        &mut self,
        old: Option<&Entries>,
        cancel: &CancellationToken,
    ) -> Result<Entries, SnapshotFailure> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let seen = scan::scan(&self.workspace, self.copies.folder(), cancel)?;
        let mut new = Entries::new();
        let mut folder = OpenFolder::default();
        for (path, seen) in seen {
            let known_entry = old.and_then(|old| old.get(&path)).filter(|known| {
                known.is_settled && known.seen.print == seen.print && known.seen.what == seen.what
            });
            let entry = match known_entry {
                Some(known) => known.clone(),
                None if cancel.is_cancelled() => {
                    self.forget(Some(&new), old);
                    return Err(SnapshotFailure::Cancelled);
                }
                None => self.copy(seen, &mut folder, now)?,
            };
            new.insert(path, entry);
        }
        Ok(new)
    }

    fn copy(
        &mut self,
        mut seen: Seen,
        folder: &mut OpenFolder,
        now: u64,
    ) -> Result<SnapshotEntry, SnapshotFailure> {
        let mut copy = None;
        if seen.what == What::File {
            match folder.open(&seen.target) {
                // The file has grown since it was listed.
                Some((_, metadata)) if metadata.len() > MAX_FILE => seen.what = What::Unknown(TOO_LARGE),
                Some((file, metadata)) => {
                    seen.print = Fingerprint::of(&metadata);
                    let made = self.copies.make(file, seen.print.size);
                    copy = Some(made.map_err(|error| SnapshotFailure::Off(no_copies(&error)))?);
                }
                None => seen.what = What::Unknown("cannot be read"),
            }
        }
        let is_settled = seen.print.is_settled(now);
        Ok(SnapshotEntry { seen, is_settled, copy })
    }

    /// A missing entry that cannot be inspected stays in `new` with its old state.
    fn compare(&self, old: &Entries, new: &mut Entries) -> Changes {
        let mut report = SnapshotReport::default();
        let mut retained = Vec::new();
        for (path, before) in old {
            if let Some(after) = new.get(path) {
                self.report(path, Some(before), Some(after), &mut report);
                continue;
            }
            match entry_exists(&before.seen.target) {
                Ok(false) => self.report(path, Some(before), None, &mut report),
                Ok(true) => report.hidden.push(path.clone()),
                Err(error) => {
                    tracing::debug!(%error, path = %path.display(), "an entry cannot be inspected");
                    report.uncovered.push((path.clone(), "can no longer be read".into()));
                    retained.push((path.clone(), before.clone()));
                }
            }
        }
        let loosened = self.loosened(old, new);
        for (path, after) in new.iter().filter(|(path, _)| !old.contains_key(*path)) {
            let is_folder = after.seen.what == What::Folder;
            if loosened.iter().any(|rules| rules.may_have_hidden(path, is_folder)) {
                report.shown.push(path.clone());
            } else {
                self.report(path, None, Some(after), &mut report);
            }
        }
        new.extend(retained);
        report.finish(&self.workspace)
    }

    fn report(
        &self,
        path: &Path,
        before: Option<&SnapshotEntry>,
        after: Option<&SnapshotEntry>,
        report: &mut SnapshotReport,
    ) {
        if let (Some(before), Some(after)) = (before, after)
            && (before.seen.print, &before.seen.what, before.copy)
                == (after.seen.print, &after.seen.what, after.copy)
        {
            return;
        }
        match (self.file_state(before), self.file_state(after)) {
            (Ok((before, _)), Ok((after, _))) if before == after => {}
            (Ok((before, content)), Ok((after, _))) => {
                if let (FileState::File { hash, .. }, Some(content)) = (&before, content)
                    && report.hashes.insert(hash.clone())
                {
                    report.contents.push((hash.clone(), content));
                }
                report.changed.push(Changed { path: path.to_owned(), before, after, compared: true });
            }
            (Err(why), _) | (_, Err(why)) => report.uncovered.push((path.to_owned(), why)),
        }
    }

    /// The error is a reason that follows the path's name.
    fn file_state(&self, entry: Option<&SnapshotEntry>) -> Result<(FileState, Option<Vec<u8>>), String> {
        let Some(SnapshotEntry { seen, copy, .. }) = entry else { return Ok((FileState::Absent, None)) };
        let mode = seen.print.mode;
        match &seen.what {
            What::Folder => Ok((FileState::Folder { mode }, None)),
            What::Link(to) => Ok((FileState::Link { to: to.clone() }, None)),
            What::Unknown(why) => Err((*why).to_owned()),
            What::File => {
                let copy = copy.ok_or("cannot be read")?;
                let content =
                    self.copies.read(copy).map_err(|error| format!("has an unreadable copy ({error})"))?;
                Ok((FileState::File { hash: ids::hash_bytes(&content), mode }, Some(content)))
            }
        }
    }

    fn loosened(&self, old: &Entries, new: &Entries) -> Vec<Loosened> {
        let paths: HashSet<&PathBuf> =
            old.keys().chain(new.keys()).filter(|path| path.ends_with(ignore_rules::NAME)).collect();
        let loosened = paths.into_iter().filter_map(|path| {
            let (before, after) = (old.get(path), new.get(path));
            if before.is_some_and(|before| after.is_some_and(|after| before.copy == after.copy)) {
                return None;
            }
            match (self.file_state(before), self.file_state(after)) {
                (Ok((before, _)), Ok((after, _))) if before == after => None,
                (Ok((_, before)), Ok((_, after))) => Loosened::of(path, before.as_deref(), after.as_deref()),
                _ => Loosened::unreported(path),
            }
        });
        loosened.collect()
    }

    fn forget(&mut self, old: Option<&Entries>, new: Option<&Entries>) {
        let copies = |entries: &Entries| entries.values().filter_map(|entry| entry.copy).collect::<Vec<_>>();
        let needed: HashSet<CopyNumber> = new.map(copies).unwrap_or_default().into_iter().collect();
        for number in old.map(copies).unwrap_or_default() {
            if !needed.contains(&number) {
                self.copies.forget(number);
            }
        }
    }
}

/// The folder of the last opened file, whose neighbours follow.
#[derive(Default)]
struct OpenFolder(Option<(PathBuf, Dir)>);

impl OpenFolder {
    fn open(&mut self, target: &Target) -> Option<(File, Metadata)> {
        let (path, name) = (target.path.parent()?, target.path.file_name()?);
        match &self.0 {
            Some((open, dir)) if open == path => open_file(dir, name).ok(),
            _ => {
                let (dir, name) = open_existing_parent(target).ok().flatten()?;
                let file = open_file(&dir, &name).ok();
                self.0 = Some((path.to_owned(), dir));
                file
            }
        }
    }
}

fn no_copies(error: &std::io::Error) -> String {
    format!("The session's files cannot be copied ({error}), so changes made by commands cannot be undone.")
}

#[derive(Default)]
struct SnapshotReport {
    changed: Vec<Changed>,
    contents: Vec<(String, Vec<u8>)>,
    hashes: HashSet<String>,
    uncovered: Vec<(PathBuf, String)>,
    /// Existing entries that are now ignored.
    hidden: Vec<PathBuf>,
    /// Listed entries that were possibly ignored before.
    shown: Vec<PathBuf>,
}

impl SnapshotReport {
    fn finish(mut self, workspace: &Workspace) -> Changes {
        self.changed.sort_by(|a, b| a.path.cmp(&b.path));
        let name = |path: &Path| workspace.display(&workspace.place(path.to_owned()));
        let more = self.uncovered.len().saturating_sub(MAX_NAMED);
        let mut uncovered: Vec<String> = self
            .uncovered
            .iter()
            .take(MAX_NAMED)
            .map(|(path, why)| format!("{} {why}: its changes cannot be undone.", name(path)))
            .collect();
        if more > 0 {
            uncovered.push(format!("Changes of {more} more paths cannot be undone either."));
        }
        let list = |paths: &[PathBuf]| {
            let names: Vec<String> = paths.iter().take(MAX_NAMED).map(|path| name(path)).collect();
            let more = paths.len().saturating_sub(MAX_NAMED);
            if more == 0 { names.join(", ") } else { format!("{} and {more} more", names.join(", ")) }
        };
        if !self.hidden.is_empty() {
            let paths = list(&self.hidden);
            uncovered.push(format!("Ignored by git now, so changes there cannot be undone: {paths}."));
        }
        if !self.shown.is_empty() {
            let paths = list(&self.shown);
            uncovered.push(format!(
                "No longer ignored by git and possibly older than the change, so undo keeps them: {paths}."
            ));
        }
        Changes { changed: self.changed, contents: self.contents, uncovered, ..Changes::default() }
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
