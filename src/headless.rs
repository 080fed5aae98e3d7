//! One prompt without an editor: holds the other end of the client and answers by policy.
//!
//! The answer goes to the output, progress to the errors. Nobody is there to be asked, so a permission request is
//! denied, and the mode stays what it was.

use std::io::Write;
use std::path::Path;

use anyhow::anyhow;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::acp::{ContentBlock, NewSessionRequest, SessionUpdate, StopReason, ToolCallStatus, Update};
use crate::agent::Agent;
use crate::client::{ClientEnd, ClientError, ClientRequest, Outgoing};
use crate::session::encoder::NOTICE_META;

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

/// Runs a prompt to its end.
pub async fn run(
    agent: &Agent,
    mut end: ClientEnd,
    cwd: &Path,
    prompt: String,
    output: &mut impl Write,
    progress: &mut impl Write,
    stop: CancellationToken,
) -> anyhow::Result<Outcome> {
    let new = agent.new_session(&NewSessionRequest::new(cwd)).map_err(|error| anyhow!("{error}"))?;
    let mode = new.modes.map(|modes| modes.current_mode_id.to_string()).unwrap_or_default();
    writeln!(progress, "modegate: {mode} mode, session {}", new.session_id)?;
    let session = agent.session(&new.session_id).map_err(|error| anyhow!("{error}"))?;
    let mut view = View { output, progress, mode, denied: false, answered: false, ends_with_newline: true };
    let turn = session.prompt(vec![prompt.into()], stop.child_token());
    tokio::pin!(turn);
    let stopped = loop {
        tokio::select! {
            biased;
            Some(message) = end.recv() => view.take(message)?,
            stopped = &mut turn => break stopped,
        }
    };
    while let Ok(message) = end.try_recv() {
        view.take(message)?;
    }
    view.finish()?;
    agent.close().await;
    let denied = view.denied;
    let no_plan = view.mode == "plan" && !view.answered;
    Ok(match stopped {
        Ok(StopReason::Cancelled) => Outcome::Interrupted,
        Ok(StopReason::EndTurn) if denied => Outcome::Denied,
        Ok(StopReason::EndTurn) if no_plan => {
            writeln!(progress, "modegate: the turn ended without a plan")?;
            Outcome::Denied
        }
        Ok(StopReason::EndTurn) => Outcome::Done,
        Ok(reason) => {
            writeln!(progress, "modegate: stopped: {}", json!(reason))?;
            Outcome::Failed
        }
        Err(error) => {
            writeln!(progress, "modegate: {error}")?;
            Outcome::Failed
        }
    })
}

/// What is shown of a turn.
struct View<'a, O, P> {
    output: &'a mut O,
    progress: &'a mut P,
    mode: String,
    denied: bool,
    answered: bool,
    ends_with_newline: bool,
}

impl<O: Write, P: Write> View<'_, O, P> {
    fn take(&mut self, message: Outgoing) -> std::io::Result<()> {
        match message {
            Outgoing::Update(notification, _room) => self.update(notification.update),
            Outgoing::Request { request: ClientRequest::RequestPermission(request), reply, .. } => {
                self.denied = true;
                let what = request.tool_call.fields.title.unwrap_or_default();
                let mode = &self.mode;
                writeln!(self.progress, "denied: {what}: {mode} mode asks first, and nobody is here to ask")?;
                writeln!(self.progress, "        use --mode code to allow changes without asking")?;
                // Whoever asked may be gone already.
                let _ = reply.send(Err(ClientError::Gone));
                Ok(())
            }
            // There is no connection whose calls could be answered, and a request that was denied is not open.
            Outgoing::Answer { .. } | Outgoing::Withdraw(_) => Ok(()),
        }
    }

    fn update(&mut self, update: Update) -> std::io::Result<()> {
        let Update::Schema(update) = update else { return Ok(()) };
        match *update {
            SessionUpdate::AgentMessageChunk(chunk) => {
                let ContentBlock::Text(text) = chunk.content else { return Ok(()) };
                if chunk.meta.is_some_and(|meta| meta.contains_key(NOTICE_META)) {
                    return writeln!(self.progress, "modegate: {}", text.text.trim());
                }
                self.answered = true;
                self.ends_with_newline = text.text.ends_with('\n');
                self.output.write_all(text.text.as_bytes())?;
                self.output.flush()
            }
            SessionUpdate::ToolCall(call) => writeln!(self.progress, "· {}", call.title),
            SessionUpdate::ToolCallUpdate(update) if update.fields.status == Some(ToolCallStatus::Failed) => {
                writeln!(self.progress, "  failed")
            }
            // Thoughts, plans, usage and whatever the protocol may add are for editors.
            _ => Ok(()),
        }
    }

    /// Ends the answer's last line, for the shell's sake.
    fn finish(&mut self) -> std::io::Result<()> {
        if self.ends_with_newline {
            return Ok(());
        }
        self.output.write_all(b"\n")?;
        self.output.flush()
    }
}
