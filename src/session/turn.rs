//! One prompt turn, and its side of the channel to the actor.
//!
//! A turn has no session state and decides nothing: its actor does. It ends soon after its token is
//! cancelled, but not before its foreground calls have returned.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::SessionContext;
use crate::acp::{ContentBlock, MessageId, ToolCallId};
use crate::client::Client;
use crate::conversation::instructions::Instructions;
use crate::event::{CallTitle, NoticeKind, SessionEvent};
use crate::model::busy_wait::BusyLimit;
use crate::model::{ModelError, ModelRequest, Reply};
use crate::session::mode::ancestry::TurnChanges;
use crate::session::trace::TurnTrace;
use crate::session::turn::message::TurnMessage;
use crate::tool::{CallAction, ClientIo, PreparedCall, SnapshotHandle, ToolError, ToolOutput, ToolSpec};
use crate::workspace::{Changes, IntentLog, Workspace};

mod background;
mod call;
mod check_calls;
pub(super) mod compact;
pub(super) mod context_window;
mod external_turn;
pub(super) mod message;
pub(super) mod model_request;
pub(super) mod model_selection;
mod nearby_instructions;
mod non_answer;
pub(super) mod repetition;
mod reply;
pub(super) mod scaled_images;
mod session_action;
pub(super) mod steps;
mod traced_reply;
pub(super) mod turns;

/// A wait that the user may not want to sit out.
const LONG_WAIT: Duration = Duration::from_mins(1);

/// For the model, about a call that the user has cancelled.
const WITHDRAWN: &str = "The user cancelled this call.";

/// The input of a turn's task, made for one turn. No state of the session: the turn asks the actor for it.
pub(super) struct Turn {
    pub(super) number: u64,
    pub(super) compacts: bool,
    /// `None` if the model answers.
    pub(super) external_agent: Option<String>,
    /// Prompt for the external agent; empty for a model.
    pub(super) prompt: Vec<ContentBlock>,
    pub(super) context: Arc<SessionContext>,
    pub(super) workspace: Workspace,
    pub(super) cancel: CancellationToken,
    pub(super) client: Client,
    pub(super) client_io: ClientIo,
    pub(super) actor: mpsc::Sender<TurnMessage>,
    pub(super) changes: mpsc::UnboundedSender<TurnChanges>,
    pub(super) intents: Arc<dyn IntentLog>,
    /// `None` in a sub-agent session, or if no snapshot exists yet.
    pub(super) snapshot: Option<SnapshotHandle>,
    /// `None` while telemetry is off.
    pub(super) trace: Option<TurnTrace>,
}

#[derive(Debug)]
pub(super) enum TurnError {
    Model(ModelError),
    /// The session or the turn's task is gone.
    Died,
}

pub(super) struct Announced {
    pub(super) id: ToolCallId,
    pub(super) tool: Option<(ToolSpec, Prepared)>,
    /// False for a tool that was called by another name and that the request does not offer. Such a call never runs.
    pub(super) may_run: bool,
    /// `None` if the tool is unknown.
    pub(super) title: Option<CallTitle>,
    /// True for the call of a check, whose output is compared with that of its last run.
    pub(super) is_check: bool,
}

/// A call that has run, with the result of its tool.
pub(super) struct EndedCall {
    pub(super) id: ToolCallId,
    /// `None` if no failure has to be in the title.
    pub(super) title: Option<CallTitle>,
    pub(super) output: ToolOutput,
    pub(super) instructions: Vec<Instructions>,
}

pub(super) type Prepared = Result<PreparedCall, ToolError>;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum After {
    Continue,
    /// Ends the turn with this notice.
    Stop(Cow<'static, str>),
    /// Ends the turn, because the same call was refused again and again.
    RefusedAgain,
}

impl Turn {
    pub(super) async fn post_event(&self, event: SessionEvent) -> Result<(), TurnError> {
        let send_permit = self.send_permit().await;
        self.post(TurnMessage::Event(event, send_permit)).await
    }

    pub(super) async fn post_notice(
        &self,
        message_id: MessageId,
        kind: NoticeKind,
        text: impl Into<String>,
    ) -> Result<(), TurnError> {
        self.post_event(SessionEvent::Notice { message_id, kind, text: text.into() }).await
    }

    /// Asks the model, and measures the reply while telemetry is on.
    fn request(&self, request: ModelRequest) -> Reply {
        match &self.trace {
            None => self.context.model.reply(request),
            Some(trace) => traced_reply::traced(trace, request, |request| self.context.model.reply(request)),
        }
    }

    /// Returns `None` if the turn is cancelled: its end must not wait for a client that does not read.
    pub(super) async fn send_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.client.send_permit_unless(&self.cancel).await
    }

    pub(super) async fn post(&self, message: TurnMessage) -> Result<(), TurnError> {
        self.actor.send(message).await.map_err(|_| TurnError::Died)
    }

    fn keep_changes(&self, changes: Changes) {
        if !changes.is_empty() {
            // The session may have ended.
            let _ = self.changes.send((self.number, Box::new(changes)));
        }
    }

    pub(super) async fn ask_actor<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<T>) -> TurnMessage,
    ) -> Result<T, TurnError> {
        let (reply, answer) = oneshot::channel();
        self.post(message(reply)).await?;
        answer.await.map_err(|_| TurnError::Died)
    }
}

/// Calls that may run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallGroup {
    Reads,
    /// Agents that change nothing for their whole life. An agent that a looser mode could turn into a writer is
    /// in no group, because writers run one by one.
    Readers,
}

impl Announced {
    /// Returns `None` for a call that runs alone. See [`SessionAction::starts_reader`].
    fn group(&self, is_reply_read_only: bool) -> Option<CallGroup> {
        let (spec, prepared) = self.tool.as_ref()?;
        match prepared.as_ref().map(|call| &call.action) {
            _ if spec.effect.is_read_side() => Some(CallGroup::Reads),
            Ok(CallAction::Session(action)) if action.starts_reader(is_reply_read_only) => {
                Some(CallGroup::Readers)
            }
            _ => None,
        }
    }
}

/// Notice of a wait before the model is asked again.
fn waiting(reason: &str, wait: Duration, limit: Option<BusyLimit>) -> String {
    let attempts = limit.map_or_else(String::new, |BusyLimit { attempt, most }| {
        format!(" (attempt {attempt}; gives up after {})", time(most))
    });
    let hint = match limit {
        _ if wait < LONG_WAIT => "",
        Some(_) => " Ctrl-C ends the run.",
        None => " Cancel the turn to stop waiting.",
    };
    format!("{}. Retrying in {}{attempts}.{hint}\n", reason.trim_end_matches('.'), time(wait))
}

fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_are_shown_in_minutes_and_hours() {
        let check = |seconds: f64, expected: &str| {
            assert_eq!(
                waiting("Busy.", Duration::from_secs_f64(seconds), None),
                format!("Busy. Retrying in {expected}\n")
            );
        };
        check(0.5, "0.5 s.");
        check(120.0, "2 min 0 s. Cancel the turn to stop waiting.");
        check(7_260.0, "2 h 1 min. Cancel the turn to stop waiting.");
    }

    #[test]
    fn waits_of_a_run_without_an_editor_have_a_count_and_a_limit() {
        let limit = Some(BusyLimit { attempt: 3, most: Duration::from_mins(10) });
        for (seconds, expected) in [
            (2, "Busy. Retrying in 2.0 s (attempt 3; gives up after 10 min 0 s).\n"),
            (
                60,
                "Busy. Retrying in 1 min 0 s (attempt 3; gives up after 10 min 0 s). Ctrl-C ends the run.\n",
            ),
        ] {
            assert_eq!(waiting("Busy.", Duration::from_secs(seconds), limit), expected);
        }
    }
}
