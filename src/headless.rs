//! Runs one prompt without an editor. Denies permission requests, because no user can answer them.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

use tokio_util::sync::CancellationToken;

use crate::acp::{NewSessionRequest, SessionId, SessionModeId, StopReason};
use crate::agent::Agent;
use crate::client::{ClientEnd, ClientError, ClientRequest, Outgoing};
use crate::model::catalog::REMEDY;
use crate::session::SessionHandle;
use view::View;

pub use view::{Format, printable};

mod view;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The turn failed or reached a limit.
    Failed,
    /// A call was denied, or the answer in plan mode is empty.
    Denied,
    Interrupted,
}

pub struct Job<'a> {
    pub cwd: &'a Path,
    pub prompt: String,
    pub format: Format,
    /// Session to continue; `None` starts a new one.
    pub session: Option<StoredTarget>,
}

pub struct StoredTarget {
    pub id: SessionId,
    /// `None` keeps the session's mode.
    pub mode: Option<SessionModeId>,
}

pub async fn run(
    agent: &Agent,
    mut end: ClientEnd,
    job: Job<'_>,
    output: &mut impl Write,
    progress: &mut impl Write,
    stop: CancellationToken,
) -> anyhow::Result<Outcome> {
    let id = session(agent, &job).await?;
    let handle = agent.session(&id)?;
    let open = handle.snapshot().await?;
    let mode = open.modes.current_mode_id.to_string();
    let folder =
        if job.session.is_some() { format!(" in {}", handle.cwd().display()) } else { String::new() };
    let limit = open.limited_to.map(|max| format!(", limited to {max} by --max-mode")).unwrap_or_default();
    writeln!(progress, "modegate: {mode} mode{limit}, session {id}{folder}")?;
    let mut view = View {
        output,
        progress,
        format: job.format,
        session: id.to_string(),
        mode,
        denied: Vec::new(),
        notices: Vec::new(),
        printed: 0,
        is_command: job.prompt.trim_start().starts_with('/'),
        running: HashSet::new(),
        text: String::new(),
        answered: false,
        last_call: String::new(),
        model: open.model.map(|model| model.to_string()),
        warning: None,
    };
    if open.is_fallback && !open.is_read_only {
        let error = format!(
            "no model is configured, and {} mode does not fall back to the offline model: {REMEDY}; or choose \
             the offline model with `--model offline`",
            view.mode
        );
        view.finish(None, Some(&error))?;
        agent.close().await;
        writeln!(view.progress, "modegate: {error}")?;
        return Ok(Outcome::Failed);
    }
    if open.is_fallback {
        let warning = format!(
            "no model is configured, so the offline model answers, which is not a language model: {REMEDY}"
        );
        writeln!(view.progress, "modegate: {warning}")?;
        view.warning = Some(warning);
    }
    let turn = handle.prompt(vec![job.prompt.into()], stop.child_token());
    tokio::pin!(turn);
    let stopped = loop {
        tokio::select! {
            biased;
            Some(message) = end.recv() => take(&mut view, message, &handle).await?,
            stopped = &mut turn => break stopped.map(|end| (end.reason.stop_reason(), end.head, end.command)),
        }
    };
    let (stopped, head, command) = match stopped {
        Ok((reason, head, command)) => (Ok(reason), head, command),
        Err(error) => (Err(error), None, None),
    };
    while let Ok(message) = end.try_recv() {
        take(&mut view, message, &handle).await?;
    }
    if let Some(command) = &command {
        view.answer_command(&command.answer)?;
    }
    let stopped = stopped.map_err(|error| error.to_string());
    view.finish(stopped.as_ref().ok().copied(), stopped.as_ref().err().map(String::as_str))?;
    agent.close().await;
    if let Some(head) = head {
        // Kept elsewhere, the head reveals a truncated log.
        writeln!(view.progress, "modegate: head of the audit log {}", head.hash)?;
    }
    outcome(stopped, command.map(|command| command.has_failed), &mut view)
}

/// `has_failed` is about a slash command; `None` if the model got the prompt.
fn outcome<O: Write, P: Write>(
    stopped: Result<StopReason, String>,
    has_failed: Option<bool>,
    view: &mut View<'_, O, P>,
) -> anyhow::Result<Outcome> {
    let plan = view.mode == "plan";
    Ok(match (stopped, has_failed) {
        (Ok(StopReason::Cancelled), _) => Outcome::Interrupted,
        (Ok(StopReason::EndTurn), Some(true)) => Outcome::Failed,
        // In plan mode a plan is a success, even if calls were denied.
        (Ok(StopReason::EndTurn), None) if !plan && !view.denied.is_empty() => Outcome::Denied,
        (Ok(StopReason::EndTurn), None) if plan && !view.answered => {
            writeln!(view.progress, "modegate: the answer is empty")?;
            Outcome::Denied
        }
        (Ok(StopReason::EndTurn), _) => Outcome::Done,
        (Ok(reason), _) => {
            writeln!(view.progress, "modegate: stopped: {}", serde_json::json!(reason))?;
            Outcome::Failed
        }
        (Err(error), _) => {
            writeln!(view.progress, "modegate: {error}")?;
            Outcome::Failed
        }
    })
}

async fn session(agent: &Agent, job: &Job<'_>) -> anyhow::Result<SessionId> {
    let Some(StoredTarget { id, mode }) = &job.session else {
        return Ok(agent.new_session(&NewSessionRequest::new(job.cwd)).await?.session_id);
    };
    let handle = agent.open_stored(id).await?;
    if let Some(mode) = mode {
        handle.set_mode(mode.clone()).await?;
    }
    Ok(id.clone())
}

async fn take<O: Write, P: Write>(
    view: &mut View<'_, O, P>,
    message: Outgoing,
    session: &SessionHandle,
) -> std::io::Result<()> {
    match message {
        Outgoing::Update(notification, _room) => view.update(&notification.update),
        Outgoing::Barrier(stored) => {
            let _ = stored.await;
            Ok(())
        }
        Outgoing::Request { request: ClientRequest::RequestPermission(request), reply, .. } => {
            let reason = session.ask_reason(request.tool_call.tool_call_id.clone()).await;
            view.deny(&request, reason.as_ref())?;
            let _ = reply.send(Err(ClientError::Gone));
            Ok(())
        }
        // This client offers no other capability.
        Outgoing::Request { reply, .. } => {
            let _ = reply.send(Err(ClientError::Gone));
            Ok(())
        }
        Outgoing::Answer { .. } | Outgoing::Withdraw(_) => Ok(()),
    }
}
