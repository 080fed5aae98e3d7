//! The exit tool: shows the plan and lets the user choose the next mode.

use tokio::sync::oneshot;

use super::decider::Decider;
use super::exit_form;
use super::permission_options::REJECT_WITH_FEEDBACK;
use super::policy::Policy;
use super::switch::{Proposed, REJECT, StayReason, SwitchRequest, Switches, narrow_first, options_to};
use crate::acp::{
    MessageId, PermissionOption, PermissionOptionKind, PlanEntry, PlanEntryPriority, PlanEntryStatus,
    SessionModeId, ToolCallId, ToolCallStatus,
};
use crate::client::ClientError;
use crate::conversation::acp_updates::{self, plans};
use crate::conversation::content::ToolContent;
use crate::event::{CallTitle, NoticeKind, ToolCallUpdateEvent};
use crate::permission::compare;
use crate::text::capitalised;
use crate::tool::Proposal;

pub(crate) const NOT_ACCEPTED: &str = "Plan not accepted";

const ASKS_FEEDBACK: &str = "\nWhat should change in the plan?\n";

impl Switches {
    /// The end of a proposal that was not accepted.
    pub(crate) fn not_accepted(&mut self, stay: StayReason, plan: &str) -> Proposed {
        match stay {
            StayReason::Feedback(text) => {
                self.reject();
                let why = "The user did not accept the plan and wants something changed.";
                let (reason, then, ends_turn) = if let Some(text) = text {
                    let text = format!("In the user's words: {text}");
                    (format!("{why} {text}"), text, self.rejected_again())
                } else {
                    let then = "Wait for the user's next message.".to_owned();
                    (why.to_owned(), then, Some(ASKS_FEEDBACK.into()))
                };
                Proposed::stayed(plan, &reason, format!("{why} The mode stays. {then}"), ends_turn)
            }
            StayReason::No(why) => {
                self.reject();
                Proposed::stayed(plan, &why, format!("{why} The mode stays."), self.rejected_again())
            }
            StayReason::Automatic(notice) => {
                let message = format!("{AUTOMATIC} The mode stays.");
                let reason = "The client accepted without asking you.";
                Proposed::stayed(plan, reason, message, Some(notice.into()))
            }
        }
    }

    /// Asks the user to accept a plan and to choose the next mode.
    pub(crate) fn propose(
        &mut self,
        call: ToolCallId,
        proposal: Proposal,
        is_cancelled: bool,
        decider: &mut Decider,
        reply: oneshot::Sender<Proposed>,
    ) {
        let Decider { policy, log, .. } = decider;
        if let Some(requested) = &proposal.mode
            && let Err(unknown) = policy.context.modes.resolve(requested)
        {
            let message =
                format!("The user was not asked: {unknown}. Call switch_mode again with one of these.");
            return drop(reply.send(Proposed::not_asked(message)));
        }
        let mut targets = policy.exits(proposal.mode.as_deref());
        targets.retain(|target| !policy.is_void_exit(target));
        narrow_first(policy, &mut targets);
        let announced = log.open_call(&call).filter(|_| !is_cancelled);
        let now = policy.ceilings().modes;
        let allows_more = targets
            .iter()
            .any(|mode| compare::allows_more(&policy.ceilings_in(std::iter::once(mode)).modes, &now));
        let (Some(announced), true) = (announced, allows_more) else {
            let message = "The user was not asked: no other mode would allow more in this session. Write the plan in your answer.";
            return drop(reply.send(Proposed::not_asked(message.into())));
        };
        let plan = vec![ToolContent::text(&proposal.plan)];
        let mut call_shown = acp_updates::call_for_permission(announced, &plan, None, policy.context.updates);
        let mut options = options_to(policy, "Implement in", &targets);
        // Some clients show only the title of a request, and name its options by their kinds.
        let title = question(&options);
        let is_away = policy.context.updates.display.question_width.is_some();
        call_shown.fields.title =
            Some(if is_away { question_away_from_chat(&options) } else { title.clone() });
        let has_forms = policy.context.capabilities.forms;
        if !has_forms && !policy.context.updates.display.plans {
            let message_id = MessageId::new(format!("msg_{call}"));
            let text = format!("The plan:\n\n{}\n", proposal.plan.trim_end());
            log.record_notice(NoticeKind::Message, message_id, text);
        }
        let pending = ToolCallUpdateEvent {
            status: ToolCallStatus::Pending,
            title: Some(CallTitle::plain(title)),
            content: Some(plan),
            ..ToolCallUpdateEvent::in_progress(call.clone())
        };
        log.record(pending.into(), None);
        if log.accepted().plans {
            log.send(plans::proposal(&proposal.plan), None);
        }
        options.push(PermissionOption::new(REJECT, "Keep planning", PermissionOptionKind::RejectOnce));
        let feedback = "Keep planning, and say what to change";
        options.push(PermissionOption::new(REJECT_WITH_FEEDBACK, feedback, PermissionOptionKind::RejectOnce));
        if has_forms {
            let request = exit_form::request(log.id(), &call, &proposal.plan, &options);
            let (reply_to, answer) = oneshot::channel();
            let id = log.client().forward(request.into(), reply_to);
            let answer = async move { exit_form::read(answer.await.unwrap_or(Err(ClientError::Gone))) };
            self.add_question(id, answer, targets, SwitchRequest::Exit { call, proposal, reply }, policy);
        } else {
            let (id, answer) = log.request_permission(call_shown, options);
            self.add_question(id, answer, targets, SwitchRequest::Exit { call, proposal, reply }, policy);
        }
    }
}

/// For the model.
const AUTOMATIC: &str = "The client accepted without asking the user, which does not count as consent.";

/// Names the modes in the order of the options, and the kinds by which some clients name them. No colon: clients
/// cut titles there.
fn question(options: &[PermissionOption]) -> String {
    format!("Implement the plan in {}?", alternatives(options.iter().map(mode_and_kind)))
}

/// Without the kinds: fewer characters are in view.
fn question_away_from_chat(options: &[PermissionOption]) -> String {
    let modes = options.iter().map(|option| capitalised(&option.option_id.0));
    format!("The plan is in the chat. Implement it in {} mode?", alternatives(modes))
}

fn alternatives(names: impl Iterator<Item = String>) -> String {
    let names: Vec<_> = names.collect();
    let (last, others) = names.split_last().map_or(("", &[][..]), |(last, others)| (last.as_str(), others));
    let before = if others.is_empty() { String::new() } else { format!("{} or ", others.join(", ")) };
    before + last
}

fn mode_and_kind(option: &PermissionOption) -> String {
    let kind = if option.kind == PermissionOptionKind::AllowAlways { "allow always" } else { "allow once" };
    format!("{} mode ({kind})", capitalised(&option.option_id.0))
}

pub(crate) fn accepted(policy: &Policy, mode: &SessionModeId) -> String {
    let all = policy.ceilings().modes;
    let of_mode = policy.mode_ceilings(mode);
    if compare::changes_nothing(&all) {
        return format!(
            "The user accepted the plan and chose {mode} mode, but another limit of this session still applies: nothing may be \
             changed. The plan cannot be carried out in this session. Tell the user so."
        );
    }
    let limit = if compare::allows_more(&of_mode, &all) {
        format!(" Another limit of this session still applies: it {}.", compare::describe_effects(&all))
    } else {
        String::new()
    };
    format!(
        "The user accepted the plan and switched to {mode} mode. Carry the plan out; mark its steps with todo as you go.{limit}"
    )
}

pub(crate) fn step(text: String) -> PlanEntry {
    PlanEntry::new(text, PlanEntryPriority::Medium, PlanEntryStatus::Pending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_names_the_modes_and_the_kinds_of_their_options() {
        let (once, always) = (PermissionOptionKind::AllowOnce, PermissionOptionKind::AllowAlways);
        for (options, expected) in [
            (&[("code", always)][..], "Implement the plan in Code mode (allow always)?"),
            (
                &[("ask", once), ("code", always)],
                "Implement the plan in Ask mode (allow once) or Code mode (allow always)?",
            ),
            (
                &[("review", once), ("ask", once), ("code", always)],
                "Implement the plan in Review mode (allow once), Ask mode (allow once) or Code mode (allow always)?",
            ),
        ] {
            let options: Vec<_> =
                options.iter().map(|(mode, kind)| PermissionOption::new(*mode, "", *kind)).collect();
            assert_eq!(question(&options), expected);
        }
    }
}
