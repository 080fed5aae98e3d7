//! The exit tool: shows the plan and lets the user choose the next mode.

use tokio::sync::oneshot;

use super::actor::Actor;
use super::exit_form;
use super::switch::{Chosen, REJECT, REJECT_WITH_FEEDBACK, SwitchRequest};
use super::turn_message::Proposed;
use crate::acp::{
    PermissionOption, PermissionOptionKind, PlanEntry, PlanEntryPriority, PlanEntryStatus,
    RequestPermissionRequest, SessionModeId, SessionUpdate, ToolCallId, ToolCallStatus, ToolCallUpdate,
    ToolCallUpdateFields,
};
use crate::client::ClientError;
use crate::conversation::acp_updates;
use crate::event::SessionEvent;
use crate::ids;
use crate::permission::compare;
use crate::store::{ChangeReason, ModeSource};
use crate::tool::{Proposal, ToolContent};

const ASKS_FEEDBACK: &str = "\nWhat should change in the plan?\n";

impl Actor {
    pub(super) fn propose(&mut self, call: ToolCallId, proposal: Proposal, reply: oneshot::Sender<Proposed>) {
        let targets = self.policy.exits(proposal.mode.as_deref());
        let cancelled = self.turns.running.as_ref().is_none_or(|turn| turn.cancel.is_cancelled());
        let announced = self.log.conversation.open_calls.get(&call).filter(|_| !cancelled);
        let now = self.policy.ceilings().modes;
        let allows_more =
            |mode| compare::allows_more(&self.policy.ceilings_in(std::iter::once(mode)).modes, &now);
        let (Some(announced), true) = (announced, targets.iter().any(allows_more)) else {
            let message = "The user was not asked: no other mode would allow more in this session. Write the plan in your answer.";
            return drop(reply.send(Proposed::NotSwitched { message: message.into(), ends_turn: None }));
        };
        let shown = [ToolContent::text(&proposal.plan)];
        let call_shown = acp_updates::call_for_permission(announced, &shown, None);
        let fields = ToolCallUpdateFields::new()
            .title(announced.title.clone())
            .status(ToolCallStatus::Pending)
            .content(call_shown.fields.content.clone());
        let pending = SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(call.clone(), fields));
        self.log.send(pending, None);
        let mut options = self.options_to("Implement in", &targets);
        options.push(PermissionOption::new(REJECT, "Keep planning", PermissionOptionKind::RejectOnce));
        let feedback = "Keep planning, and say what to change";
        options.push(PermissionOption::new(REJECT_WITH_FEEDBACK, feedback, PermissionOptionKind::RejectOnce));
        let session = self.log.id.clone();
        if self.context.capabilities.forms {
            // Clients answer no form automatically.
            let request = exit_form::request(&session, &call, &options);
            let (reply_to, answer) = oneshot::channel();
            let id = self.log.client.forward(request.into(), reply_to);
            let answer = async move { exit_form::read(answer.await.unwrap_or(Err(ClientError::Gone))) };
            self.await_switch(id, answer, targets, SwitchRequest::Exit { call, proposal, reply });
        } else {
            let request = RequestPermissionRequest::new(session, call_shown, options);
            self.ask_to_switch(request, targets, SwitchRequest::Exit { call, proposal, reply });
        }
    }

    fn accepted(&self, mode: &SessionModeId) -> String {
        let all = self.policy.ceilings().modes;
        let own = self.context.modes.ceilings(&mode.0).unwrap_or_default();
        if compare::changes_nothing(&all) {
            return format!(
                "The user accepted the plan and chose {mode} mode, but another limit of this session still applies: nothing may be \
                 changed. The plan cannot be carried out in this session. Tell the user so."
            );
        }
        let limit = if compare::allows_more(&own, &all) {
            format!(" Another limit of this session still applies: it {}.", compare::describe_effects(&all))
        } else {
            String::new()
        };
        format!(
            "The user accepted the plan and switched to {mode} mode. Carry the plan out; mark its steps with todo as you go.{limit}"
        )
    }

    pub(super) async fn apply_exit_answer(
        &mut self,
        call: ToolCallId,
        proposal: Proposal,
        chosen: Chosen,
    ) -> Proposed {
        let first = proposal.plan.lines().next().unwrap_or_default().to_owned();
        let stayed = |message: String, ends_turn| Proposed::NotSwitched { message, ends_turn };
        match chosen {
            Chosen::Mode(mode, added) => {
                let plan = Some(ids::hash(&proposal.plan));
                let why = ChangeReason {
                    analysis: Some(first),
                    call: Some(call),
                    plan,
                    ..ModeSource::SwitchTool.into()
                };
                if let Err(error) = self.change_mode(&mode, why).await {
                    return stayed(format!("The mode could not be changed: {error}."), None);
                }
                if !proposal.steps.is_empty() {
                    let entries = proposal.steps.into_iter().map(step).collect();
                    self.log.record(SessionEvent::Plan { entries }, None).await;
                }
                let added = added.map(|text| format!(" The user adds: {text}")).unwrap_or_default();
                Proposed::Switched(self.accepted(&mode) + &added)
            }
            Chosen::Feedback(text) => {
                self.switches.rejections += 1;
                let message = "The user did not accept the plan and wants something changed. The mode stays."
                    .to_owned();
                match text {
                    Some(text) => {
                        stayed(format!("{message} In the user's words: {text}"), self.rejected_again())
                    }
                    None => {
                        stayed(format!("{message} Wait for the user's next message."), Some(ASKS_FEEDBACK))
                    }
                }
            }
            Chosen::No(why) => {
                self.switches.rejections += 1;
                stayed(format!("{why} The mode stays."), self.rejected_again())
            }
        }
    }
}

fn step(text: String) -> PlanEntry {
    PlanEntry::new(text, PlanEntryPriority::Medium, PlanEntryStatus::Pending)
}
