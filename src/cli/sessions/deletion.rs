//! Deletes sessions, after a question in a terminal.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::{find, print};
use crate::acp::SessionId;
use crate::cli::confirmation::is_confirmed;
use crate::cli::{InputKind, UsageError};
use crate::ids::{self, Source};
use crate::store::sessions::{OldSession, StoredSession};
use crate::store::{Store, retention};
use crate::text::counted;

/// Deletes nothing if one of the sessions does not exist. Without `ask`, there is no question.
pub(super) async fn delete(
    store: &Store,
    cwd: &Path,
    parts: &[String],
    ask: Option<impl Read>,
    mut output: impl Write,
) -> anyhow::Result<()> {
    let mut sessions: Vec<StoredSession> = Vec::new();
    for part in parts {
        let session = find(store, cwd, part).await?;
        if sessions.iter().all(|known| known.id != session.id) {
            sessions.push(session);
        }
    }
    if let Some(input) = ask {
        for StoredSession { id, title, updated_at, .. } in &sessions {
            print::would_delete(id, title.as_deref(), *updated_at, &mut output)?;
        }
        if !is_confirmed(&question(&counted(sessions.len(), "session", "sessions")), input, &mut output)? {
            writeln!(output, "nothing was deleted")?;
            return Ok(());
        }
    }
    for StoredSession { id, title, .. } in &sessions {
        store.delete_session(id).await.with_context(|| id.to_string())?;
        print::deleted(id, title.as_deref(), &mut output)?;
    }
    Ok(retention::compact(store).await?)
}

/// Without `ask`, there is no question.
pub(super) async fn prune(
    store: &Store,
    time: &str,
    cwd: Option<PathBuf>,
    dry_run: bool,
    ask: Option<(impl Read, InputKind)>,
    mut output: impl Write,
) -> anyhow::Result<()> {
    let age = ids::duration_ms(time)
        .ok_or_else(|| UsageError(format!("--older-than {time}: a time such as 12h, 30d or 8w")))?;
    let old = store.sessions_before(Source::real().now_ms().saturating_sub(age), cwd, usize::MAX).await?;
    let (open, old): (Vec<_>, Vec<_>) = old.into_iter().partition(|session| session.is_open);
    for OldSession { id, .. } in open {
        writeln!(output, "left {id}: it is open")?;
    }
    if dry_run || ask.is_some() {
        for OldSession { id, title, updated_at, .. } in &old {
            print::would_delete(id, title.as_deref(), *updated_at, &mut output)?;
        }
    }
    let number = counted(old.len(), "session", "sessions");
    if dry_run || old.is_empty() {
        writeln!(output, "{number} {}", if dry_run { "would be deleted" } else { "deleted" })?;
        return Ok(());
    }
    if let Some((input, input_kind)) = ask {
        if input_kind != InputKind::Terminal {
            let text =
                "prune asks before it deletes, and there is no terminal: add --yes to delete without asking";
            return Err(UsageError::new(text).into());
        }
        if !is_confirmed(&question(&number), input, &mut output)? {
            writeln!(output, "nothing was deleted")?;
            return Ok(());
        }
    }
    let ids: Vec<SessionId> = old.into_iter().map(|session| session.id).collect();
    let deleted = store.delete_sessions(ids.clone()).await?;
    for id in &ids {
        if deleted.contains(id) {
            writeln!(output, "deleted {id}")?;
        } else {
            writeln!(output, "left {id}: it was opened or deleted meanwhile")?;
        }
    }
    retention::compact(store).await?;
    writeln!(output, "{} deleted", counted(deleted.len(), "session", "sessions"))?;
    Ok(())
}

fn question(number: &str) -> String {
    format!("Delete {number} permanently?")
}
