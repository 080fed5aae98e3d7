//! Calls that change text files. The preview and the run make the same plan; the run fails if a file has
//! changed in between.
//!
//! A call that only writes one file through the editor asks the editor for the text once, and again just before
//! the write. Other calls ask again after the preview: a change in the meantime is found before the first file is
//! written, because putting back a file which the editor formats on save can fail.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use super::save::{Applying, Planned, Planning, is_sent, unsaved, write_through_editor};
use super::syntax;
use crate::conversation::content::ToolContent;
use crate::permission::Target;
use crate::tool::file::buffers::Buffers;
use crate::tool::file::last_seen::{LastSeen, NewLines, check_unchanged};
use crate::tool::file::text_file::TextFile;
use crate::tool::{
    PreparedCall, Preview, PreviewContext, RunContext, ToolError, ToolOutput, blocking, effect,
};
use crate::workspace::{Change, Changes, ContentHash, LockedChanges, Workspace};

#[derive(Default)]
pub(super) struct Plan {
    /// For the model.
    text: String,
    pub diffs: Vec<ToolContent>,
    /// Bytes of the files, before and after.
    pub total: usize,
    /// The files that the plan is based on.
    before: Vec<TextBefore>,
    changes: Vec<Planning>,
    /// The files on disk that the plan is based on.
    on_disk: Vec<(PathBuf, ContentHash)>,
    seen: BTreeMap<PathBuf, LastSeen>,
    /// Files that the model knows with the text.
    shown: Vec<(PathBuf, LastSeen)>,
}

struct TextBefore {
    name: String,
    target: usize,
    content_hash: ContentHash,
    use_of_content: UseOfContent,
}

/// Conditions of a plan for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UseOfContent {
    /// The texts that it replaces, which are found in the file as it is.
    Edited,
    /// That the file has not changed.
    Whole,
    /// As `Whole`. The model must know all of the content, because the plan replaces it.
    Replaced,
}

impl Plan {
    pub(super) fn new(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    /// Adds a line for the model.
    pub(super) fn note(&mut self, line: &str) {
        self.text.push('\n');
        self.text.push_str(line);
    }

    /// The plan fails if a target is not as the model last saw it.
    pub(super) fn depends_on(&mut self, target: usize, name: &str, content_hash: ContentHash) {
        self.uses(target, name, content_hash, UseOfContent::Whole);
    }

    /// The plan replaces texts of a target, whatever else has changed in it.
    pub(super) fn edits(&mut self, target: usize, name: &str, old: &TextFile) {
        self.uses(target, name, old.content_hash, UseOfContent::Edited);
    }

    /// The plan replaces the whole content of a target.
    pub(super) fn replaces(&mut self, target: usize, name: &str, old: &TextFile) {
        let use_of_content = if old.text.is_empty() { UseOfContent::Whole } else { UseOfContent::Replaced };
        self.uses(target, name, old.content_hash, use_of_content);
    }

    fn uses(&mut self, target: usize, name: &str, content_hash: ContentHash, use_of_content: UseOfContent) {
        self.before.push(TextBefore { name: name.to_owned(), target, content_hash, use_of_content });
    }

    /// Tells the model of other changes in a file that the plan edits.
    pub(super) fn note_new_lines(&mut self, target: &Target, new_lines: Option<NewLines>) {
        let Some(NewLines { text, is_whole }) = new_lines else { return };
        self.note(&format!("[Before this edit, {text}]"));
        // Until it reads this, the model does not know the file, so it must not replace the whole.
        let seen_file = self.seen.remove_entry(&target.path);
        self.shown.extend(seen_file.filter(|_| is_whole));
    }

    /// Writes a file in place of `old`. The new file gets the mode bits of `like`.
    pub(super) fn write(
        &mut self,
        target: &Target,
        like: Option<&Target>,
        content: Vec<u8>,
        old: Option<&TextFile>,
    ) {
        self.total += content.len();
        if let Some(fault) = syntax::new_fault(&target.path, old, &content) {
            self.note(&fault);
        }
        self.seen.insert(target.path.clone(), LastSeen::of_bytes(&content));
        if like.is_none() {
            let on_disk = old.map_or(ContentHash::Absent, |old| old.disk_hash);
            self.on_disk.push((target.path.clone(), on_disk));
        }
        let before = old.map(TextFile::bytes);
        let unsaved = old.is_some_and(|old| old.unsaved);
        let change = Change::Write { target: target.clone(), content, like: like.cloned() };
        self.changes.push(Planning { change, before, unsaved });
    }

    pub(super) fn set_executable(&mut self, target: &Target, executable: bool) {
        let change = Change::SetExecutable { target: target.clone(), executable };
        self.changes.push(Planning { change, before: None, unsaved: false });
    }

    pub(super) fn remove(&mut self, target: &Target) {
        self.seen.insert(target.path.clone(), LastSeen::absent());
        let change = Change::Remove { target: target.clone() };
        self.changes.push(Planning { change, before: None, unsaved: false });
    }

    fn into_planned(self) -> Planned {
        let Self { text, diffs, changes, on_disk, seen, shown, .. } = self;
        let seen = seen.into_iter().collect();
        Planned {
            changes,
            on_disk,
            output: ToolOutput { content: diffs, seen, shown, ..ToolOutput::text(text) },
        }
    }

    /// True for a single write through the editor.
    fn is_one_sent_write(&self) -> bool {
        matches!(&*self.changes, [Planning { change, .. }] if is_sent(change))
    }

    fn check(&self, last_seen: &[Option<LastSeen>], shown: Option<&Previewed>) -> Result<(), ToolError> {
        // The user allowed the changes that the preview shows. An edit makes them, whatever else has changed.
        let is_as_shown = shown.is_none_or(|shown| shown.diffs == self.diffs);
        for (number, before) in self.before.iter().enumerate() {
            let TextBefore { name, target, content_hash, use_of_content } = before;
            let is_edit = *use_of_content == UseOfContent::Edited;
            let shown_hash = shown.and_then(|shown| shown.content_hashes.get(number)).copied();
            let last_seen = last_seen.get(*target).and_then(Option::as_ref);
            let shown_hash = shown_hash.filter(|_| !(is_edit && is_as_shown));
            check_unchanged(name, *content_hash, last_seen.filter(|_| !is_edit), shown_hash)?;
            if *use_of_content == UseOfContent::Replaced
                && !last_seen.is_some_and(|last_seen| last_seen.is_in_context)
            {
                return Err(ToolError::Failed(format!(
                    "{name} exists, and you have not read it. Read it first, or change a part of it with edit_file."
                )));
            }
        }
        Ok(())
    }
}

/// The state of the files that a preview shows.
struct Previewed {
    content_hashes: Vec<ContentHash>,
    diffs: Vec<ToolContent>,
    /// The editor's texts, where the run needs no newer ones.
    buffers: Option<Buffers>,
}

/// `plan` runs off the main thread.
pub(super) fn prepared(
    title: String,
    targets: Vec<Target>,
    workspace: &Workspace,
    plan: impl Fn(&Buffers) -> Result<Plan, ToolError> + Send + Sync + 'static,
) -> PreparedCall {
    let plan = Arc::new(plan);
    let previewed = Arc::new(OnceLock::new());
    let preview = {
        let (files, plan, shown) = (targets.clone(), Arc::clone(&plan), Arc::clone(&previewed));
        Preview::new(async move |PreviewContext { client_io, last_seen }| {
            let buffers = Buffers::to_change(&client_io, &files, &CancellationToken::new()).await?;
            let buffers = buffers.with_last_seen(&files, &last_seen);
            let planned = blocking(move || Ok((plan(&buffers)?, buffers)));
            let (plan, buffers) = planned.await?;
            plan.check(&last_seen, None)?;
            let is_checked_late = client_io.capabilities().writes && plan.is_one_sent_write();
            shown.get_or_init(|| Previewed {
                content_hashes: plan.before.iter().map(|before| before.content_hash).collect(),
                diffs: plan.diffs.clone(),
                buffers: is_checked_late.then_some(buffers),
            });
            Ok(plan.diffs)
        })
    };
    let (files, workspace) = (targets.clone(), workspace.clone());
    let call = PreparedCall::on_state(title, async move |context, state| {
        let previewed_buffers = previewed.get().and_then(|shown| shown.buffers.clone());
        let (last_seen, targets) = (state.last_seen, files.clone());
        let text_files = TextFiles { workspace, targets, known: previewed_buffers };
        change_text(context, text_files, move |buffers| {
            let buffers = buffers.with_last_seen(&files, &last_seen);
            let plan = plan(&buffers)?;
            plan.check(&last_seen, previewed.get())?;
            Ok((plan.into_planned(), buffers))
        })
        .await
    });
    PreparedCall { targets, preview, ..call }
}

struct TextFiles {
    workspace: Workspace,
    targets: Vec<Target>,
    /// The editor's texts, if it need not be asked.
    known: Option<Buffers>,
}

/// Locks the files, plans the call on their texts, and applies the plan. Other writers wait, so that no change gets
/// lost between the reading and the writing.
async fn change_text(
    context: RunContext,
    TextFiles { workspace, targets, known }: TextFiles,
    plan: impl FnOnce(Buffers) -> Result<(Planned, Buffers), ToolError> + Send + 'static,
) -> Result<ToolOutput, ToolError> {
    let RunContext { permit, journal, client_io, .. } = context;
    let capabilities = client_io.capabilities();
    if !capabilities.reads && !capabilities.writes {
        return effect(permit, move |cancel| {
            let lock = workspace.lock(&targets, cancel)?;
            let (planned, buffers) = plan(Buffers::default())?;
            write_to_disk(planned, &Applying { workspace, buffers, journal, lock }, cancel)
        })
        .await;
    }
    let (place, files, cancel) = (workspace.clone(), targets.clone(), permit.cancel.clone());
    let lock = blocking(move || Ok(place.lock(&files, &cancel)?)).await?;
    let buffers = match known {
        Some(buffers) => buffers,
        None => Buffers::to_change(&client_io, &targets, &permit.cancel).await?,
    };
    if !capabilities.writes {
        return effect(permit, move |cancel| {
            let (planned, buffers) = plan(buffers)?;
            write_to_disk(planned, &Applying { workspace, buffers, journal, lock }, cancel)
        })
        .await;
    }
    let (planned, buffers) = blocking(move || plan(buffers)).await?;
    write_through_editor(planned, Applying { workspace, buffers, journal, lock }, client_io, permit).await
}

/// Applies a plan on disk.
fn write_to_disk(
    Planned { changes, on_disk, output }: Planned,
    Applying { workspace, buffers, journal, lock }: &Applying,
    cancel: &CancellationToken,
) -> Result<ToolOutput, ToolError> {
    let uncovered: Vec<String> = changes.iter().filter_map(|it| unsaved(workspace, it)).collect();
    let (before, list): (Vec<_>, Vec<_>) =
        changes.into_iter().map(|planning| (planning.before, planning.change)).unzip();
    workspace.apply_locked(&LockedChanges { changes: &list, on_disk: &on_disk, lock }, journal, cancel)?;
    for (before, change) in before.iter().zip(&list) {
        if let Change::Write { target, content, .. } = change {
            buffers.wrote(target, before.as_deref(), content, false);
        }
    }
    journal.report(Changes { uncovered, ..Changes::default() });
    Ok(output)
}
