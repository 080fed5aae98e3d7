//! One prompt without an editor: holds the other end of the client and answers by policy.
//!
//! The answer goes to the output, progress to the errors. Nobody is there to be asked, so a permission request is
//! denied, and the mode stays what it was.

use std::io::Write;
use std::path::Path;

use anyhow::anyhow;
use tokio_util::sync::CancellationToken;

use crate::acp::{NewSessionRequest, StopReason};
use crate::agent::Agent;
use crate::client::{ClientEnd, ClientError, ClientRequest, Outgoing};
use view::View;

pub use view::Format;

mod view;

/// How the prompt ended; the command line's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The turn ended by itself.
    Done,
    /// The turn failed, or ended at a limit.
    Failed,
    /// Something would have needed consent, or there is no plan where there should be one.
    Denied,
    /// It was stopped from outside.
    Interrupted,
}

/// What to run, and where.
pub struct Job<'a> {
    /// The working directory.
    pub cwd: &'a Path,
    /// The prompt.
    pub prompt: String,
    /// How the answer is printed.
    pub format: Format,
}

/// Runs a prompt to its end.
pub async fn run(
    agent: &Agent,
    mut end: ClientEnd,
    job: Job<'_>,
    output: &mut impl Write,
    progress: &mut impl Write,
    stop: CancellationToken,
) -> anyhow::Result<Outcome> {
    let new = agent.new_session(&NewSessionRequest::new(job.cwd)).map_err(|error| anyhow!("{error}"))?;
    let mode = new.modes.map(|modes| modes.current_mode_id.to_string()).unwrap_or_default();
    writeln!(progress, "modegate: {mode} mode, session {}", new.session_id)?;
    let handle = agent.session(&new.session_id).map_err(|error| anyhow!("{error}"))?;
    let mut view = View {
        output,
        progress,
        format: job.format,
        session: new.session_id.to_string(),
        mode,
        denied: Vec::new(),
        text: String::new(),
        answered: false,
        last_call: String::new(),
    };
    let turn = handle.prompt(vec![job.prompt.into()], stop.child_token());
    tokio::pin!(turn);
    let stopped = loop {
        tokio::select! {
            biased;
            Some(message) = end.recv() => take(&mut view, message)?,
            stopped = &mut turn => break stopped.map(|end| end.reason),
        }
    };
    while let Ok(message) = end.try_recv() {
        take(&mut view, message)?;
    }
    let error = stopped.as_ref().err().map(ToString::to_string);
    view.finish(stopped.as_ref().ok().copied(), error.as_deref())?;
    agent.close().await;
    let plan = view.mode == "plan";
    Ok(match stopped {
        Ok(StopReason::Cancelled) => Outcome::Interrupted,
        // A plan is what plan mode is for: with one, what was denied on the way does not matter.
        Ok(StopReason::EndTurn) if !plan && !view.denied.is_empty() => Outcome::Denied,
        Ok(StopReason::EndTurn) if plan && !view.answered => {
            writeln!(progress, "modegate: the turn ended without a plan")?;
            Outcome::Denied
        }
        Ok(StopReason::EndTurn) => Outcome::Done,
        Ok(reason) => {
            writeln!(progress, "modegate: stopped: {}", serde_json::json!(reason))?;
            Outcome::Failed
        }
        Err(error) => {
            writeln!(progress, "modegate: {error}")?;
            Outcome::Failed
        }
    })
}

fn take<O: Write, P: Write>(view: &mut View<'_, O, P>, message: Outgoing) -> std::io::Result<()> {
    match message {
        Outgoing::Update(notification, _room) => view.update(&notification.update),
        Outgoing::Request { request: ClientRequest::RequestPermission(request), reply, .. } => {
            view.deny(&request)?;
            // Whoever asked may be gone already.
            let _ = reply.send(Err(ClientError::Gone));
            Ok(())
        }
        // There is no connection whose calls could be answered, and a request that was denied is not open.
        Outgoing::Answer { .. } | Outgoing::Withdraw(_) => Ok(()),
    }
}
