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

use super::buffers::Buffers;
use super::last_seen::{LastSeen, check_unchanged};
use super::save::{Planned, Planning, change_text, is_sent};
use super::text_file::TextFile;
use super::{
    PreparedCall, Preview, PreviewContext, RunContext, ToolContent, ToolError, ToolOutput, blocking,
};
use crate::permission::Target;
use crate::workspace::{Change, ContentHash, Workspace};

#[derive(Default)]
pub(super) struct Plan {
    /// For the model.
    text: String,
    pub diffs: Vec<ToolContent>,
    /// Bytes of the files, before and after.
    pub total: usize,
    /// The files that the plan is based on.
    before: Vec<Before>,
    changes: Vec<Planning>,
    seen: BTreeMap<PathBuf, LastSeen>,
}

struct Before {
    name: String,
    /// Index of the target.
    target: usize,
    content_hash: ContentHash,
    /// The model must know all of the content, because the plan replaces it.
    is_replaced: bool,
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

    pub(super) fn depends_on(&mut self, target: usize, name: &str, content_hash: ContentHash) {
        self.before.push(Before { name: name.to_owned(), target, content_hash, is_replaced: false });
    }

    /// The plan replaces the whole content of a target.
    pub(super) fn replaces(&mut self, target: usize, name: &str, old: &TextFile) {
        let (name, content_hash, is_replaced) = (name.to_owned(), old.content_hash, !old.text.is_empty());
        self.before.push(Before { name, target, content_hash, is_replaced });
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
        self.seen.insert(target.path.clone(), LastSeen::of_bytes(&content));
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

    /// True for a single write through the editor.
    fn is_one_sent_write(&self) -> bool {
        matches!(&*self.changes, [Planning { change, .. }] if is_sent(change))
    }

    /// `shown` are the contents in the preview, if the user saw one.
    fn check(&self, last_seen: &[Option<LastSeen>], shown: Option<&[ContentHash]>) -> Result<(), ToolError> {
        for (number, Before { name, target, content_hash, is_replaced }) in self.before.iter().enumerate() {
            let shown = shown.and_then(|shown| shown.get(number)).copied();
            let last_seen = last_seen.get(*target).and_then(Option::as_ref);
            check_unchanged(name, *content_hash, last_seen, shown)?;
            if *is_replaced && !last_seen.is_some_and(|last_seen| last_seen.is_in_context) {
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
    let shown = Arc::new(OnceLock::new());
    let preview = {
        let (files, plan, shown) = (targets.clone(), Arc::clone(&plan), Arc::clone(&shown));
        Preview::new(async move |PreviewContext { client_io, last_seen }| {
            let buffers = Buffers::to_change(&client_io, &files, &CancellationToken::new()).await?;
            let buffers = buffers.with_last_seen(&files, &last_seen);
            let planned = blocking(move || Ok((plan(&buffers)?, buffers)));
            let (plan, buffers) = planned.await?;
            plan.check(&last_seen, None)?;
            let is_checked_late = client_io.capabilities().writes && plan.is_one_sent_write();
            shown.get_or_init(|| Previewed {
                content_hashes: plan.before.iter().map(|before| before.content_hash).collect(),
                buffers: is_checked_late.then_some(buffers),
            });
            Ok(plan.diffs)
        })
    };
    let (files, workspace) = (targets.clone(), workspace.clone());
    let call = PreparedCall::new(title, async move |context: RunContext| {
        let buffers = match shown.get().and_then(|shown| shown.buffers.clone()) {
            Some(buffers) => buffers,
            None => Buffers::to_change(&context.client_io, &files, &context.permit.cancel).await?,
        };
        let buffers = buffers.with_last_seen(&files, &context.last_seen);
        change_text(context, buffers, workspace, move |buffers, last_seen| {
            let plan = plan(buffers)?;
            plan.check(last_seen, shown.get().map(|shown| &*shown.content_hashes))?;
            let Plan { text, diffs, changes, seen, .. } = plan;
            let seen = seen.into_iter().collect();
            Ok(Planned { changes, output: ToolOutput { content: diffs, seen, ..ToolOutput::text(text) } })
        })
        .await
    });
    PreparedCall { targets, preview, ..call }
}
