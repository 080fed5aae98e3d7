//! Mode switches that the model requests, with the exit tool or a `mode_switch` block in its text.
//!
//! A switch to a mode that allows more asks the user. Anything but consent to an offered option leaves the
//! mode unchanged. The third rejection ends the turn.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::decider::Decider;
use super::permission_options::{CANCELLED, NOT_OFFERED, PermissionReply, REJECT_WITH_FEEDBACK, feedback};
use super::policy::Policy;
use crate::acp::{
    MessageId, PermissionOption, PermissionOptionKind, RequestPermissionOutcome, SessionModeId, ToolCallId,
    ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};
use crate::client::ClientError;
use crate::conversation::acp_updates::{self, plans};
use crate::conversation::content::ToolContent;
use crate::conversation::mode_switch::{self, FoundSwitch, Switch};
use crate::event::{NoticeKind, SessionEvent, SwitchOutcome};
use crate::mode::{Access, Consent, InBand, Mode, Modes};
use crate::permission::compare;
use crate::session::event_log::EventLog;
use crate::text::capitalised;
use crate::tool::Proposal;

const MAX_REJECTIONS: u32 = 3;

pub(crate) const REJECT: &str = "reject";

const REJECTED_AGAIN: &str =
    "\nStopped: leaving the mode was rejected three times. Say what should change.\n";

#[derive(Default)]
pub(crate) struct Switches {
    /// Open questions about a mode switch, by request id.
    open: HashMap<u64, OpenSwitch>,
    pub(crate) answers: FuturesUnordered<BoxFuture<'static, (u64, PermissionReply)>>,
    /// Number of questions about `mode_switch` blocks.
    asked: u64,
    rejections: u32,
    /// Notes for the model, and whether a request has contained them.
    notes: Vec<(String, bool)>,
}

struct OpenSwitch {
    /// Once the mode has changed, the answer is void.
    from: SessionModeId,
    targets: Vec<SessionModeId>,
    request: SwitchRequest,
    at: Instant,
}

pub(crate) enum SwitchRequest {
    Exit { call: ToolCallId, proposal: Proposal, reply: oneshot::Sender<Proposed> },
    InBand { switch: Switch, reply: oneshot::Sender<Option<Cow<'static, str>>> },
}

/// Messages are for the model.
pub(crate) enum Proposed {
    /// The title is for people.
    Switched { message: String, title: String },
    /// `content` is for people. `None` without a question to them.
    NotSwitched { message: String, content: Option<Vec<ToolContent>>, ends_turn: Option<Cow<'static, str>> },
}

impl Proposed {
    pub(crate) fn not_asked(message: String) -> Self {
        Self::NotSwitched { message, content: None, ends_turn: None }
    }

    /// The call keeps showing the plan.
    pub(crate) fn stayed(
        plan: &str,
        reason: &str,
        message: String,
        ends_turn: Option<Cow<'static, str>>,
    ) -> Self {
        let content = vec![ToolContent::text(plan), ToolContent::text(reason)];
        Self::NotSwitched { message, content: Some(content), ends_turn }
    }
}

pub(crate) enum Chosen {
    Mode(SessionModeId, Option<String>),
    Stay(StayReason),
}

/// Why the mode stays.
pub(crate) enum StayReason {
    /// `None` if the client did not collect the feedback yet.
    Feedback(Option<String>),
    No(String),
    /// The client accepted without its user. The text is for the user, and ends the turn.
    Automatic(String),
}

/// A switch that the model requests in its text.
pub(crate) struct RequestedSwitch {
    pub(crate) target: SessionModeId,
    pub(crate) switch: Switch,
    /// The target allows more, so the user must agree.
    pub(crate) widens: bool,
}

pub(crate) struct AnsweredSwitch {
    pub(crate) from: SessionModeId,
    pub(crate) targets: Vec<SessionModeId>,
    pub(crate) request: SwitchRequest,
    pub(crate) chosen: Chosen,
}

impl Switches {
    pub(crate) fn begin_turn(&mut self) {
        self.rejections = 0;
    }

    /// Drops notes that a request has contained.
    pub(crate) fn end_turn(&mut self) {
        self.notes.retain(|(_, is_sent)| !is_sent);
    }

    /// Returns the notes for the next request. Each request repeats a note until the turn ends.
    pub(crate) fn notes(&mut self) -> impl Iterator<Item = &str> {
        self.notes.iter_mut().map(|(text, is_sent)| {
            *is_sent = true;
            text.as_str()
        })
    }

    pub(crate) fn not_applied(&mut self, why: impl Display) {
        self.notes.push((format!("The mode_switch block was not applied: {why}."), false));
    }

    /// Reads the model's request. Returns `None` if there is nothing to do.
    pub(crate) fn read(&mut self, found: FoundSwitch, decider: &mut Decider) -> Option<RequestedSwitch> {
        let Decider { policy, log, .. } = decider;
        let (modes, mode) = (&policy.context.modes, &policy.mode);
        let is_enabled = modes.resolve(&mode.0).is_ok_and(|mode| mode.in_band_switch != InBand::Off);
        if found != FoundSwitch::Nothing && !is_enabled {
            self.not_applied("this mode ignores such blocks");
            record(mode, "", "", "off", log);
            return None;
        }
        let switch = match found {
            FoundSwitch::Nothing => return None,
            FoundSwitch::One(switch) => switch,
            FoundSwitch::Invalid(reason) => {
                self.not_applied(reason);
                record(mode, "", "", "malformed", log);
                return None;
            }
            FoundSwitch::Many => {
                let text = "The mode_switch blocks were not applied: a message may contain only one.";
                self.notes.push((text.into(), false));
                record(mode, "", "", "several", log);
                return None;
            }
        };
        let requested = switch.new_mode.clone().unwrap_or_else(|| mode.0.to_string());
        let target = match modes.resolve(&requested) {
            Ok(target) => target.mode_id(),
            Err(unknown) => {
                tracing::warn!(session = %log.id(), "a mode_switch block was not applied: {unknown}");
                self.not_applied(unknown);
                record(mode, &requested, &switch.analysis, "unknown_mode", log);
                return None;
            }
        };
        if target == *mode {
            record(mode, &target.0, &switch.analysis, "stayed", log);
            return None;
        }
        let widens = policy.would_widen(&target);
        if widens && policy.context.exits.is_off {
            self.not_applied("only the user can switch to a mode that allows more");
            record(mode, &target.0, &switch.analysis, "no_exit", log);
            return None;
        }
        if widens && policy.is_void_exit(&target) {
            self.not_applied(format_args!(
                "another limit of this session applies, under which {target} mode allows no more"
            ));
            record(mode, &target.0, &switch.analysis, "limited", log);
            return None;
        }
        Some(RequestedSwitch { target, switch, widens })
    }

    pub(crate) fn ask_in_band(
        &mut self,
        target: SessionModeId,
        switch: Switch,
        reply: oneshot::Sender<Option<Cow<'static, str>>>,
        decider: &mut Decider,
    ) {
        let Decider { policy, log, .. } = decider;
        self.asked += 1;
        let call = ToolCallId::new(format!("switch_{}_{}", log.turn(), self.asked));
        let display = policy.context.updates.display;
        let place = if display.question_width.is_some() { " The reason is in the chat." } else { "" };
        let fields = ToolCallUpdateFields::new()
            .title(format!("Switch to {target} mode?{place}"))
            .kind(ToolKind::SwitchMode)
            .status(ToolCallStatus::Pending)
            .content(vec![acp_updates::text_content(&switch.analysis)]);
        let targets = vec![target];
        let mut options = options_to(policy, "Switch to", &targets);
        options.push(PermissionOption::new(REJECT, "Stay", PermissionOptionKind::RejectOnce));
        if !display.text {
            log.show_question(&call, &format!("{}\n", switch.analysis.trim_end()));
        }
        let (id, answer) = log.request_permission(ToolCallUpdate::new(call, fields), options);
        self.add_question(id, answer, targets, SwitchRequest::InBand { switch, reply }, policy);
    }

    pub(crate) fn add_question(
        &mut self,
        id: u64,
        answer: impl Future<Output = PermissionReply> + Send + 'static,
        targets: Vec<SessionModeId>,
        request: SwitchRequest,
        policy: &Policy,
    ) {
        self.answers.push(answer.map(move |answer| (id, answer)).boxed());
        self.open.insert(id, OpenSwitch { from: policy.mode.clone(), targets, request, at: Instant::now() });
    }

    /// Returns `None` if the question was withdrawn.
    pub(crate) fn answered(
        &mut self,
        number: u64,
        answer: &PermissionReply,
        policy: &Policy,
    ) -> Option<AnsweredSwitch> {
        let OpenSwitch { from, targets, request, at } = self.open.remove(&number)?;
        let chosen = if from == policy.mode {
            chosen(answer, &targets)
        } else {
            Chosen::Stay(StayReason::No(format!("The mode has changed to {} in the meantime.", policy.mode)))
        };
        let chosen = match (chosen, automatic_consent(policy, at.elapsed())) {
            (Chosen::Mode(..), Some(how)) => {
                Chosen::Stay(StayReason::Automatic(stays(&how, &from, &targets)))
            }
            (chosen, _) => chosen,
        };
        Some(AnsweredSwitch { from, targets, request, chosen })
    }

    pub(super) fn reject(&mut self) {
        self.rejections += 1;
    }

    /// Counts a rejection, with a note for the model.
    pub(crate) fn reject_in_band(&mut self, requested: &str) {
        self.rejections += 1;
        self.notes.push((format!("The user did not agree to {requested} mode. The mode stays."), false));
    }

    /// Returns the notice that ends the turn after too many rejections.
    pub(crate) fn rejected_again(&self) -> Option<Cow<'static, str>> {
        (self.rejections >= MAX_REJECTIONS).then_some(REJECTED_AGAIN.into())
    }

    /// Withdraws all questions. Returns their calls.
    pub(crate) fn close(&mut self, decider: &Decider) -> Vec<ToolCallId> {
        let Decider { policy, log, .. } = decider;
        let mut closed = Vec::new();
        for (number, open) in std::mem::take(&mut self.open) {
            log.client().withdraw(number);
            match open.request {
                SwitchRequest::Exit { call, proposal, reply } => {
                    closed.push(call);
                    show_plan_removed(log);
                    let message = format!("The mode has changed to {}.", policy.mode);
                    let _ = reply.send(Proposed::stayed(&proposal.plan, &message, message.clone(), None));
                }
                SwitchRequest::InBand { reply, .. } => {
                    let _ = reply.send(None);
                }
            }
        }
        closed
    }
}

/// The plan is not going to be implemented.
pub(crate) fn show_plan_removed(log: &EventLog) {
    if log.accepted().plans {
        log.send(plans::proposal_removed(), None);
    }
}

/// Puts the modes that ask before the others, because some clients select the first option.
pub(crate) fn narrow_first(policy: &Policy, targets: &mut [SessionModeId]) {
    targets.sort_by_key(|target| {
        policy.context.modes.ceilings(&target.0).is_ok_and(|modes| changes_without_asking(&modes))
    });
}

/// Names are never the mode author's text; a mode that is not built in is described by its ceilings.
pub(crate) fn options_to(policy: &Policy, verb: &str, targets: &[SessionModeId]) -> Vec<PermissionOption> {
    let options = targets.iter().filter_map(|target| {
        let modes = policy.context.modes.ceilings(&target.0).ok()?;
        let mode = modes.first()?;
        let mut name = format!("{verb} {} mode", capitalised(&mode.id));
        if Modes::built_in().resolve(&mode.id).is_err() {
            name = format!("{name}: {}", compare::describe_effects(&modes));
        }
        // Clients present "always" as "no further questions". No grant is stored.
        let kind = if changes_without_asking(&modes) {
            PermissionOptionKind::AllowAlways
        } else {
            PermissionOptionKind::AllowOnce
        };
        Some(PermissionOption::new(mode.id.clone(), name, kind))
    });
    options.collect()
}

/// Tells how the client accepted without its user. `None` if a person may have answered.
fn automatic_consent(policy: &Policy, taken: Duration) -> Option<String> {
    let exits = policy.context.exits;
    if exits.accepts_all {
        return None;
    }
    if policy.context.capabilities.accepts_everything {
        return Some("it accepts every question without asking you".into());
    }
    (taken < exits.reading_time)
        .then(|| format!("it did so after {} ms, faster than a person can read", taken.as_millis()))
}

/// Ends a turn in which the client accepted a switch without its user.
fn stays(how: &str, from: &SessionModeId, targets: &[SessionModeId]) -> String {
    let commands: Vec<_> = targets.iter().map(|mode| format!("/{mode}")).collect();
    format!(
        "\n{} mode stays. The client accepted the question, but {how}. To leave {from} mode, type {}, or select the mode in \
         the client. To let the client decide, start Modegate with --accept-all.\n",
        capitalised(&from.0),
        commands.join(" or ")
    )
}

/// Records the outcome of a `mode_switch` block.
pub(crate) fn record(
    from: &SessionModeId,
    to: &str,
    analysis: &str,
    outcome: &'static str,
    log: &mut EventLog,
) {
    tracing::debug!(session = %log.id(), %from, to, outcome, "the model wrote a mode_switch block");
    let switch = SwitchOutcome {
        from: from.clone(),
        to: to.to_owned(),
        analysis: analysis.to_owned(),
        outcome: outcome.into(),
    };
    log.record(SessionEvent::Switch { switch }, None);
}

/// Records an applied block. `request` is the number of the request whose reply had it: unique, because each
/// reply has at most one.
pub(crate) fn record_applied(
    from: &SessionModeId,
    to: &SessionModeId,
    analysis: &str,
    request: u64,
    log: &mut EventLog,
) {
    record(from, &to.0, analysis, "switched", log);
    let message_id = MessageId::new(format!("msg_{}_s{request}", log.turn()));
    log.record_notice(NoticeKind::Message, message_id, mode_switch::notice(&from.0, &to.0, analysis));
}

fn changes_without_asking(modes: &[Arc<Mode>]) -> bool {
    modes.iter().all(|mode| mode.permission == Consent::Auto && mode.access != Access::ReadOnly)
}

fn chosen(answer: &PermissionReply, targets: &[SessionModeId]) -> Chosen {
    let response = match answer {
        Err(ClientError::Gone) => {
            let text = "No user can accept the plan here. It is kept: end your turn without repeating it.";
            return Chosen::Stay(StayReason::No(text.into()));
        }
        Err(error) => return Chosen::Stay(StayReason::No(format!("The user could not be asked: {error}."))),
        Ok(response) => response,
    };
    let text = |selected| feedback(response, selected).map(str::to_owned);
    match &response.outcome {
        RequestPermissionOutcome::Selected(selected) => match &*selected.option_id.0 {
            REJECT => Chosen::Stay(StayReason::No("The user rejected the mode change.".into())),
            REJECT_WITH_FEEDBACK => Chosen::Stay(StayReason::Feedback(text(selected))),
            id => match targets.iter().find(|target| *target.0 == *id) {
                Some(target) => Chosen::Mode(target.clone(), text(selected)),
                None => Chosen::Stay(StayReason::No(NOT_OFFERED.into())),
            },
        },
        // No other outcome is consent, including future ones.
        _ => Chosen::Stay(StayReason::No(CANCELLED.into())),
    }
}
