//! Telling what a list of changes does, by looking before and after at every path that it is about.
//!
//! It tells the truth also about what the changes did not mean to do: folders that came into being on the way, mode
//! bits that a new file got. What it cannot tell it names.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use cap_fs_ext::DirExt;
use cap_std::fs::Dir;

use super::look::{Found, look};
use super::{Change, Changed, Changes, Node, Workspace, is_version_control, open_dir};
use crate::permission::Target;

/// Entries below a folder that is moved, and bytes in them, up to which each is told.
const MAX_ENTRIES: usize = 1000;
const MAX_BYTES: u64 = 32 * 1024 * 1024;

/// What stood at the paths of a list of changes.
#[derive(Debug)]
pub struct Witness {
    workspace: Workspace,
    before: BTreeMap<PathBuf, (Target, Found)>,
    uncovered: Vec<String>,
}

impl Witness {
    /// Looks at everything that the changes are about. They have not been made yet.
    pub(super) fn before(workspace: &Workspace, changes: &[Change]) -> Self {
        let mut witness =
            Self { workspace: workspace.clone(), before: BTreeMap::new(), uncovered: Vec::new() };
        for change in changes {
            match change {
                Change::Write { target, .. } => witness.watch_created(target, vec![target.clone()]),
                Change::Remove { target } | Change::SetExecutable { target, .. } => {
                    witness.watch(vec![target.clone()]);
                }
                Change::Rename { from, to } => match below(from) {
                    Ok(below) => {
                        let itself = std::iter::once(Path::new(""));
                        let parts = itself.chain(below.iter().map(PathBuf::as_path));
                        let pairs = parts.flat_map(|part| [joined(from, part), joined(to, part)]);
                        witness.watch_created(to, pairs.collect());
                    }
                    Err(why) => witness.give_up(from, &why),
                },
            }
        }
        witness
    }

    /// Looks again, now that the changes have been made.
    pub fn after(mut self) -> Changes {
        let mut changes = Changes::default();
        let mut kept = HashSet::new();
        for (path, (target, found)) in std::mem::take(&mut self.before) {
            let (before, content) = match found {
                Found::Node(node, content) => (node, content),
                Found::Untold(why) => {
                    self.give_up(&target, &why);
                    continue;
                }
            };
            let after = match look(&target) {
                Found::Node(node, _) => node,
                Found::Untold(why) => {
                    self.give_up(&target, &why);
                    continue;
                }
            };
            if before == after {
                continue;
            }
            if let (Node::File { hash, .. }, Some(content)) = (&before, content)
                && kept.insert(hash.clone())
            {
                changes.contents.push((hash.clone(), content));
            }
            changes.changed.push(Changed { path, before, after, compared: false });
        }
        changes.uncovered = self.uncovered;
        changes
    }

    /// Watches what may be created, with the folders that are missing on the way to it.
    fn watch_created(&mut self, created: &Target, mut targets: Vec<Target>) {
        let insides = created.inside.iter().flat_map(|inside| inside.ancestors());
        for (path, inside) in created.path.ancestors().zip(insides).skip(1) {
            let above = Target { path: path.to_owned(), inside: Some(inside.to_owned()) };
            if inside.as_os_str().is_empty() || look(&above) != Found::Node(Node::Absent, None) {
                break;
            }
            targets.push(above);
        }
        self.watch(targets);
    }

    /// Watches paths that change together: if one of them cannot be told, none is.
    fn watch(&mut self, targets: Vec<Target>) {
        let mut found = Vec::new();
        for target in targets {
            match &target.inside {
                // The change is refused, so there is nothing to tell.
                None => return,
                Some(inside) if is_version_control(inside) => {
                    return self.give_up(&target, "belongs to version control");
                }
                Some(_) => {}
            }
            match look(&target) {
                Found::Untold(why) => return self.give_up(&target, &why),
                node @ Found::Node(..) => found.push((target.path.clone(), (target, node))),
            }
        }
        for (path, watched) in found {
            self.before.entry(path).or_insert(watched);
        }
    }

    fn give_up(&mut self, target: &Target, why: &str) {
        let name = self.workspace.display(target);
        self.uncovered.push(format!("{name} {why}: what happened to it cannot be undone."));
    }
}

fn joined(target: &Target, part: &Path) -> Target {
    if part.as_os_str().is_empty() {
        // Joining nothing would add a slash.
        return target.clone();
    }
    let inside = target.inside.as_ref().map(|inside| inside.join(part));
    Target { path: target.path.join(part), inside }
}

/// The entries below a folder, relative to it; none below anything else. The error says why they cannot be told.
fn below(target: &Target) -> Result<Vec<PathBuf>, String> {
    if !matches!(look(target), Found::Node(Node::Folder { .. }, _)) {
        return Ok(Vec::new());
    }
    let dir = open_dir(target).map_err(|error| format!("cannot be read ({error})"))?;
    let mut listing = Listing { entries: Vec::new(), bytes: 0 };
    listing.add(&dir, Path::new(""))?;
    Ok(listing.entries)
}

struct Listing {
    entries: Vec<PathBuf>,
    bytes: u64,
}

impl Listing {
    fn add(&mut self, dir: &Dir, at: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot be read ({error})");
        for entry in dir.entries().map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let metadata = dir.symlink_metadata(&name).map_err(failed)?;
            let path = at.join(&name);
            if is_version_control(&path) {
                return Err("holds a folder of version control".into());
            }
            self.entries.push(path.clone());
            self.bytes += if metadata.is_file() { metadata.len() } else { 0 };
            if self.entries.len() > MAX_ENTRIES || self.bytes > MAX_BYTES {
                let most = MAX_BYTES >> 20;
                return Err(format!("holds more than {MAX_ENTRIES} entries or {most} MiB"));
            }
            if metadata.is_dir() {
                self.add(&dir.open_dir_nofollow(&name).map_err(failed)?, &path)?;
            }
        }
        Ok(())
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
