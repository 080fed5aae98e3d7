//! One tool call of a turn: authorization by the actor, execution under a permit, and report.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::message::{FinishedCall, TurnMessage};
use super::{After, Announced, EndedCall, Turn, TurnError, WITHDRAWN};
use super::{nearby_instructions, scaled_images, session_action};
use crate::acp::{ToolCallId, ToolCallStatus};
use crate::conversation::content::ToolContent;
use crate::conversation::question_text::CallPreview;
use crate::event::{CallTitle, SessionEvent, ToolCallUpdateEvent};
use crate::hooks::HookFacts;
use crate::permission::{self, CallFacts, Effect};
use crate::session::mode::ancestry::TurnChanges;
use crate::session::mode::decider::Authorization;
use crate::session::mode::exit;
use crate::session::mode::hooked::{CallRequest, HookOutcome};
use crate::session::mode::switch::Proposed;
use crate::text::first_sentence;
use crate::tool::user::chat_question;
use crate::tool::{
    CallAction, PreviewContext, Proposal, RunContext, ToolError, ToolOutput, ToolSpec, missing_outside,
};
use crate::workspace::{Changes, Journal};

/// Time that a cancelled or overdue call may take to end.
const GRACE: Duration = Duration::from_secs(2);

impl Turn {
    pub(super) async fn run_call(&self, call: Announced) -> Result<After, TurnError> {
        let Announced { id, tool, may_run, title, is_check } = call;
        let facts = tool.as_ref().map(|(spec, prepared)| match prepared {
            Ok(call) => {
                let outputs = self.workspace.outputs().folder().map(Path::to_owned);
                CallFacts { outputs, ..call.facts(spec) }
            }
            Err(_) => spec.facts(),
        });
        let fits = may_run && tool.as_ref().is_some_and(|(_, prepared)| prepared.is_ok());
        let mut answer = self.authorize(&id, facts.as_ref(), fits, HookOutcome::NotRun).await?;
        if let Authorization::Hooks(hooked) = answer {
            let hooks = self.run_hooks(*hooked).await;
            // The mode may have changed, so the actor decides again.
            answer = match hooks {
                Some(hooks) => self.authorize(&id, facts.as_ref(), fits, hooks).await?,
                None => Authorization::Cancelled,
            };
        }
        let (Some((spec, prepared)), Some(facts)) = (tool, facts) else {
            return self.refused(id, title, answer).await;
        };
        let prepared = if may_run { prepared } else { Err(ToolError::not_offered(&spec.name)) };
        let prepared = match (prepared, &answer) {
            (Ok(prepared), _) => prepared,
            (Err(_), Authorization::Denied { .. } | Authorization::Cancelled) => {
                return self.refused(id, title, answer).await;
            }
            (Err(_), _) if self.cancel.is_cancelled() => return Ok(After::Continue),
            (Err(error), _) => return self.failed(id, error.to_string()).await,
        };
        if let Authorization::Ask { last_seen, files } = answer {
            // No user can allow a missing file.
            if spec.effect == Effect::Read
                && let Some(error) = missing_outside(&prepared.targets, *files, &self.workspace).await
            {
                return self.failed(id, error.to_string()).await;
            }
            let preview_context = PreviewContext { client_io: self.client_io.for_call(&id), last_seen };
            let preview = prepared.preview.content(preview_context);
            let content = match within(preview, &self.cancel, &CancellationToken::new(), spec.timeout).await {
                Ok(content) => content,
                Err(error) => return self.failed_with(id, error).await,
            };
            let preview = CallPreview {
                content,
                is_in_title: prepared.is_in_title,
                folder: self.workspace.cwd().to_owned(),
            };
            answer = self
                .ask_actor(|reply| TurnMessage::Ask {
                    call: id.clone(),
                    facts: Box::new(facts),
                    preview,
                    reply,
                })
                .await?;
        }
        match answer {
            Authorization::Granted { permit, state } => match prepared.action {
                CallAction::Propose(proposal) => {
                    drop(permit);
                    self.propose(id, proposal).await
                }
                CallAction::Session(action) => session_action::run(self, id, action, permit).await,
                action => {
                    let (changes, reported_changes) = mpsc::unbounded_channel();
                    let recording = tokio::spawn(keep(self.number, reported_changes, self.changes.clone()));
                    let client_io = self.client_io.for_call(&id);
                    let journal = Journal::new(Some(Arc::clone(&self.intents)), changes.clone());
                    let keeps_output = is_check;
                    let context =
                        RunContext { permit, progress: None, changes, journal, client_io, keeps_output };
                    let call = AllowedCall { id, title, spec: &spec };
                    self.carry_out(call, |context| action.run(context, state), context, recording).await
                }
            },
            answer => self.refused(id, title, answer).await,
        }
    }

    async fn authorize(
        &self,
        id: &ToolCallId,
        facts: Option<&CallFacts>,
        fits: bool,
        hooks: HookOutcome,
    ) -> Result<Authorization, TurnError> {
        let facts = facts.cloned().map(Box::new);
        let request = Box::new(CallRequest { call: id.clone(), facts, fits, hooks });
        self.ask_actor(|reply| TurnMessage::Authorize { request, reply }).await
    }

    /// Returns `None` if the turn was cancelled, which ends the program of the hook.
    async fn run_hooks(&self, facts: HookFacts) -> Option<HookOutcome> {
        let refusal = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return None,
            refusal = self.context.hooks.refusal(&facts) => refusal,
        };
        Some(refusal.map_or(HookOutcome::Passed, |refusal| HookOutcome::Refused(Box::new(refusal))))
    }

    async fn propose(&self, id: ToolCallId, proposal: Proposal) -> Result<After, TurnError> {
        let call = id.clone();
        match self.ask_actor(|reply| TurnMessage::Propose { call, proposal, reply }).await? {
            Proposed::Switched { message, title } => {
                // The call keeps the plan as its content.
                let update = ToolCallUpdateEvent {
                    status: ToolCallStatus::Completed,
                    title: Some(CallTitle::plain(title)),
                    result: Some(message),
                    ..ToolCallUpdateEvent::in_progress(id)
                };
                self.post_event(update.into()).await?;
                Ok(After::Continue)
            }
            Proposed::NotSwitched { message, content, ends_turn } => {
                let mut update = ToolCallUpdateEvent::failed(id, message);
                if content.is_some() {
                    update.title = Some(CallTitle::plain(exit::NOT_ACCEPTED));
                    update.content = content;
                }
                self.post_event(update.into()).await?;
                Ok(ends_turn.map_or(After::Continue, After::Stop))
            }
        }
    }

    async fn carry_out<Run: Future<Output = Result<ToolOutput, ToolError>>>(
        &self,
        call: AllowedCall<'_>,
        run: impl FnOnce(RunContext) -> Run,
        mut context: RunContext,
        recording: JoinHandle<()>,
    ) -> Result<After, TurnError> {
        let AllowedCall { id, title, spec } = call;
        let (cancel, denied) = (context.permit.cancel.clone(), context.permit.denied.clone());
        let withdrawn = context.permit.withdrawn.clone();
        let instruction_files = context.permit.instruction_files.take();
        // A capacity of one suffices: newer content includes the older.
        let (progress, shown) = mpsc::channel(1);
        context.progress = self.context.live.then_some(progress);
        let run = within(run(context), &cancel, &cancel, spec.timeout);
        let (outcome, relayed) = tokio::join!(run, self.relay(&id, shown));
        relayed?;
        // Changes are passed on before the call ends. A call that outlives [`GRACE`] reports them later.
        let _ = tokio::time::timeout(GRACE, recording).await;
        match outcome {
            Ok(output) => {
                let question = (!output.questions.is_empty()).then(|| chat_question::text(&output.questions));
                let seen = output.seen.iter().map(|(path, _)| path.as_path());
                let instructions = nearby_instructions::read(&self.workspace, instruction_files, seen).await;
                self.finish(EndedCall { id, title, output, instructions }).await?;
                Ok(question.map_or(After::Continue, |text| After::Stop(text.into())))
            }
            Err(error) if denied.is_cancelled() && !self.cancel.is_cancelled() => {
                let why = "Stopped: the session's mode has changed and does not allow this call.";
                self.cancelled(id, format!("{error}\n{why}")).await
            }
            Err(error) if withdrawn.is_cancelled() && !self.cancel.is_cancelled() => {
                self.cancelled(id, format!("{error}\n{WITHDRAWN}")).await
            }
            Err(error) => self.failed_with(id, error).await,
        }
    }

    async fn relay(&self, id: &ToolCallId, mut shown: mpsc::Receiver<ToolContent>) -> Result<(), TurnError> {
        while let Some(content) = shown.recv().await {
            let send_permit = self.send_permit().await;
            self.post(TurnMessage::Progress { id: id.clone(), content, send_permit }).await?;
        }
        Ok(())
    }

    pub(super) async fn finish(&self, call: EndedCall) -> Result<(), TurnError> {
        let EndedCall { id, title, output, instructions } = call;
        let ToolOutput { mut text, mut content, seen, shown, plan, job, questions, exit_code, .. } = output;
        let ToolOutput { command_output, warnings, .. } = output;
        text.push_str(&scaled_images::fit_result(&mut content).await);
        if let Some(entries) = plan {
            self.post_event(SessionEvent::Plan { entries }).await?;
        }
        let content = if content.is_empty() { vec![ToolContent::text(&text)] } else { content };
        let failure = exit_code.filter(|code| *code != 0);
        // For clients that show neither the status nor the content.
        let marked = failure.zip(title).map(|(code, title)| title.marked(&format!(" (exit {code})")));
        let update = ToolCallUpdateEvent {
            status: if failure.is_some() { ToolCallStatus::Failed } else { ToolCallStatus::Completed },
            title: marked,
            content: Some(content),
            result: Some(text),
            exit_code,
            ..ToolCallUpdateEvent::in_progress(id)
        };
        let send_permit = self.send_permit().await;
        let finished =
            Box::new(FinishedCall { update, seen, instructions, job, questions, command_output, warnings });
        self.post(TurnMessage::Finished(finished, send_permit)).await?;
        if shown.is_empty() { Ok(()) } else { self.post(TurnMessage::Shown(shown)).await }
    }

    /// A call that a mode or the user has ended.
    pub(super) async fn cancelled(&self, id: ToolCallId, text: String) -> Result<After, TurnError> {
        let update = ToolCallUpdateEvent::failed(id, text).cancelled(true);
        self.post_event(update.into()).await?;
        Ok(After::Continue)
    }

    pub(super) async fn failed(&self, id: ToolCallId, text: String) -> Result<After, TurnError> {
        let update = ToolCallUpdateEvent::failed(id, text).cancelled(self.cancel.is_cancelled());
        self.post_event(update.into()).await?;
        Ok(After::Continue)
    }

    async fn failed_with(&self, id: ToolCallId, error: ToolError) -> Result<After, TurnError> {
        let text = error.to_string();
        if let ToolError::Stale { seen, .. } = error {
            self.post(TurnMessage::Shown(seen)).await?;
        }
        self.failed(id, text).await
    }

    /// `title` is that of the call; `None` if its tool is unknown.
    async fn refused(
        &self,
        id: ToolCallId,
        title: Option<CallTitle>,
        answer: Authorization,
    ) -> Result<After, TurnError> {
        let marked = |mark: &str| title.map(|title| title.marked(mark));
        match answer {
            Authorization::Denied { rule, message, too_often } => {
                let mut update = ToolCallUpdateEvent {
                    title: marked(" (denied)"),
                    denied: Some(rule.into()),
                    ..ToolCallUpdateEvent::failed(id, &message)
                };
                if update.title.is_some() {
                    // The rest of the message tells the model its next step, or the user who could not answer.
                    let is_for_user = rule == permission::NO_USER;
                    let reason = if is_for_user { &message } else { first_sentence(&message) };
                    let text = format!("Denied: {}.", reason.trim_end_matches('.'));
                    update.content = Some(vec![ToolContent::text(&text)]);
                }
                self.post_event(update.into()).await?;
                Ok(if too_often { After::RefusedAgain } else { After::Continue })
            }
            Authorization::Rejected { message, too_often } => {
                let update = ToolCallUpdateEvent::failed(id, message).titled(marked(" (rejected)"));
                self.post_event(update.into()).await?;
                Ok(if too_often { After::RefusedAgain } else { After::Continue })
            }
            // The actor closes the calls that a cancelled turn leaves open.
            Authorization::Cancelled
            | Authorization::Granted { .. }
            | Authorization::Ask { .. }
            | Authorization::Hooks(_)
            | Authorization::Invalid => Ok(After::Continue),
        }
    }
}

/// A call that the session allows.
struct AllowedCall<'a> {
    id: ToolCallId,
    title: Option<CallTitle>,
    spec: &'a ToolSpec,
}

async fn keep(
    turn: u64,
    mut changed: mpsc::UnboundedReceiver<Changes>,
    to: mpsc::UnboundedSender<TurnChanges>,
) {
    while let Some(changes) = changed.recv().await {
        let _ = to.send((turn, Box::new(changes)));
    }
}

/// Waits for `run` until the timeout or a cancellation, each followed by [`GRACE`].
async fn within<T>(
    run: impl Future<Output = Result<T, ToolError>>,
    cancel: &CancellationToken,
    on_timeout: &CancellationToken,
    timeout: Duration,
) -> Result<T, ToolError> {
    let mut run = std::pin::pin!(run);
    let late = |what: &str| ToolError::Failed(format!("The call {what}."));
    tokio::select! {
        biased;
        outcome = &mut run => return outcome,
        () = cancel.cancelled() => {}
        () = tokio::time::sleep(timeout) => {
            on_timeout.cancel();
            let ended = tokio::time::timeout(GRACE, run).await.is_ok();
            let seconds = timeout.as_secs();
            let how = if ended { "was stopped" } else { "may still be running" };
            return Err(late(&format!("took longer than {seconds} s and {how}")));
        }
    }
    tokio::time::timeout(GRACE, run)
        .await
        .unwrap_or_else(|_| Err(late("was cancelled and has not ended yet")))
}
