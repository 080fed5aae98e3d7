//! Mode switches that the model requests, with the exit tool or a `mode_switch` block in its text.
//!
//! A switch to a mode that allows more asks the user. Anything but consent to an offered option leaves the
//! mode unchanged. The third rejection ends the turn.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::actor::Actor;
use super::authorize::Answer;
use super::turn_message::Proposed;
use crate::acp::{
    MessageId, PermissionOption, PermissionOptionKind, RequestPermissionOutcome, RequestPermissionRequest,
    SelectedPermissionOutcome, SessionModeId, ToolCallId, ToolCallStatus, ToolCallUpdate,
    ToolCallUpdateFields, ToolKind,
};
use crate::conversation::acp_updates;
use crate::conversation::mode_switch::{self, Found, Switch};
use crate::event::{SessionEvent, SwitchOutcome};
use crate::mode::{Access, Consent, InBand, Mode, Modes};
use crate::permission::compare;
use crate::store::{ChangeReason, ModeSource};
use crate::tool::Proposal;

const MAX_REJECTIONS: u32 = 3;

pub(super) const REJECT: &str = "reject";
pub(super) const REJECT_WITH_FEEDBACK: &str = "reject_with_feedback";

/// `_meta` key of an answer for the user's requested changes.
pub(super) const FEEDBACK_META: &str = "modegate/feedback";

const REJECTED_AGAIN: &str =
    "\nStopped: leaving the mode was rejected three times. Say what should change.\n";

#[derive(Default)]
pub(super) struct Switches {
    /// Open questions about a mode switch, by request id.
    pub(super) open: HashMap<u64, OpenSwitch>,
    pub(super) count: u64,
    pub(super) rejections: u32,
}

pub(super) struct OpenSwitch {
    /// Once the mode has changed, the answer is void.
    from: SessionModeId,
    targets: Vec<SessionModeId>,
    request: SwitchRequest,
    at: Instant,
}

pub(super) enum SwitchRequest {
    Exit { call: ToolCallId, proposal: Proposal, reply: oneshot::Sender<Proposed> },
    InBand { switch: Switch, reply: oneshot::Sender<Option<&'static str>> },
}

pub(super) enum Chosen {
    Mode(SessionModeId, Option<String>),
    /// `None` if the client did not collect the feedback yet.
    Feedback(Option<String>),
    No(String),
}

impl Actor {
    pub(super) async fn in_band(&mut self, found: Found, reply: oneshot::Sender<Option<&'static str>>) {
        let is_cancelled = self.turns.running.as_ref().is_none_or(|turn| turn.cancel.is_cancelled());
        match self.settle(found).await {
            // Nothing would close a request of a cancelled turn.
            Some((target, switch)) if is_cancelled => {
                self.note_switch(&target.0, &switch.analysis, "cancelled").await;
                let _ = reply.send(None);
            }
            Some((target, switch)) => self.ask_in_band(target, switch, reply),
            None => {
                let _ = reply.send(None);
            }
        }
    }

    /// Applies a switch that needs no consent. Returns a switch that does.
    async fn settle(&mut self, found: Found) -> Option<(SessionModeId, Switch)> {
        let mode = self.policy.mode.clone();
        let reads = self.context.modes.resolve(&mode.0).is_ok_and(|mode| mode.in_band_switch != InBand::Off);
        if !reads && found != Found::Nothing {
            self.note_switch_for_model(
                "The mode_switch block was not applied: this mode ignores such blocks.".into(),
            );
            self.note_switch("", "", "off").await;
            return None;
        }
        let switch = match found {
            Found::One(switch) => switch,
            Found::Nothing => return None,
            Found::Invalid(reason) => {
                self.note_switch_for_model(format!("The mode_switch block was not applied: {reason}."));
                self.note_switch("", "", "malformed").await;
                return None;
            }
            Found::Many => {
                self.note_switch_for_model(
                    "The mode_switch blocks were not applied: a message may contain only one.".into(),
                );
                self.note_switch("", "", "several").await;
                return None;
            }
        };
        let modes = Arc::clone(&self.context.modes);
        let requested = switch.new_mode.clone().unwrap_or_else(|| mode.0.to_string());
        let target = match modes.resolve(&requested) {
            Ok(target) => target.mode_id(),
            Err(unknown) => {
                tracing::warn!(session = %self.log.id, "a mode_switch block was not applied: {unknown}");
                self.note_switch_for_model(format!("The mode_switch block was not applied: {unknown}."));
                self.note_switch(&requested, &switch.analysis, "unknown_mode").await;
                return None;
            }
        };
        if target == mode {
            self.note_switch(&target.0, &switch.analysis, "stayed").await;
            return None;
        }
        if self.policy.would_widen(&target) && self.context.exits.is_off {
            let why = "only the user can switch to a mode that allows more";
            self.note_switch_for_model(format!("The mode_switch block was not applied: {why}."));
            self.note_switch(&target.0, &switch.analysis, "no_exit").await;
            return None;
        }
        if self.policy.would_widen(&target) {
            return Some((target, switch));
        }
        let analysis = Some(switch.analysis.clone());
        let why = ChangeReason { analysis, keeps_unrecorded: true, ..ModeSource::InBand.into() };
        match self.change_mode(&target, why).await {
            Ok(_) => self.note_switched(&mode, &target.0, &switch.analysis, "switched").await,
            Err(error) => {
                self.note_switch_for_model(format!("The mode_switch block was not applied: {error}."));
            }
        }
        None
    }

    fn ask_in_band(
        &mut self,
        target: SessionModeId,
        switch: Switch,
        reply: oneshot::Sender<Option<&'static str>>,
    ) {
        self.switches.count += 1;
        let call = ToolCallId::new(format!("switch_{}_{}", self.log.turns, self.switches.count));
        let fields = ToolCallUpdateFields::new()
            .title(format!("Switch to {target} mode?"))
            .kind(ToolKind::SwitchMode)
            .status(ToolCallStatus::Pending)
            .content(vec![acp_updates::text_content(&switch.analysis)]);
        let targets = vec![target];
        let mut options = self.options_to("Switch to", &targets);
        options.push(PermissionOption::new(REJECT, "Stay", PermissionOptionKind::RejectOnce));
        let shown = ToolCallUpdate::new(call, fields);
        let request = RequestPermissionRequest::new(self.log.id.clone(), shown, options);
        self.ask_to_switch(request, targets, SwitchRequest::InBand { switch, reply });
    }

    pub(super) fn ask_to_switch(
        &mut self,
        request: RequestPermissionRequest,
        targets: Vec<SessionModeId>,
        switch_request: SwitchRequest,
    ) {
        let (id, answer) = self.log.client.request_permission(request);
        self.await_switch(id, answer, targets, switch_request);
    }

    pub(super) fn await_switch(
        &mut self,
        id: u64,
        answer: impl Future<Output = Answer> + Send + 'static,
        targets: Vec<SessionModeId>,
        request: SwitchRequest,
    ) {
        self.approvals.answers.push(answer.map(move |answer| (id, answer)).boxed());
        let from = self.policy.mode.clone();
        self.switches.open.insert(id, OpenSwitch { from, targets, request, at: Instant::now() });
    }

    /// Names are never the mode author's text; a mode that is not built in is described by its ceilings.
    pub(super) fn options_to(&self, verb: &str, targets: &[SessionModeId]) -> Vec<PermissionOption> {
        let option = |target: &SessionModeId| {
            let modes = self.context.modes.ceilings(&target.0).ok()?;
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
        };
        targets.iter().filter_map(option).collect()
    }

    pub(super) async fn switch_answered(&mut self, number: u64, answer: &Answer) -> bool {
        let Some(open) = self.switches.open.remove(&number) else { return false };
        let OpenSwitch { from, targets, request, at } = open;
        let taken = at.elapsed();
        let chosen = if from == self.policy.mode {
            chosen(answer, &targets)
        } else {
            Chosen::No(format!("The mode has changed to {} in the meantime.", self.policy.mode))
        };
        match request {
            SwitchRequest::Exit { call, proposal, reply } => {
                let outcome = self.apply_exit_answer(call, proposal, chosen).await;
                self.report_fast(&from, taken, number).await;
                let _ = reply.send(outcome);
            }
            SwitchRequest::InBand { switch, reply } => {
                self.switch_in_band(&from, &targets, switch, chosen).await;
                self.report_fast(&from, taken, number).await;
                let _ = reply.send(self.rejected_again());
            }
        }
        true
    }

    /// Notifies the user if the answer came faster than a person can read the request.
    async fn report_fast(&mut self, from: &SessionModeId, taken: Duration, number: u64) {
        let has_changed =
            self.policy.mode != *from && !compare::changes_nothing(&self.policy.ceilings().modes);
        if !has_changed || taken >= self.context.exits.reading_time {
            return;
        }
        let text = format!(
            "\n{} mode was left because the client accepted the question after {} ms, faster than a person can read it. To decide \
             yourself, turn off automatic approval in the client, or start Modegate with --no-exit or --max-mode {from}.\n\n",
            capitalised(&from.0),
            taken.as_millis()
        );
        let message_id = MessageId::new(format!("msg_{}_fast{number}", self.log.turns));
        self.log.record_notice(message_id, text).await;
    }

    pub(super) fn rejected_again(&self) -> Option<&'static str> {
        (self.switches.rejections >= MAX_REJECTIONS).then_some(REJECTED_AGAIN)
    }

    async fn switch_in_band(
        &mut self,
        from: &SessionModeId,
        targets: &[SessionModeId],
        switch: Switch,
        chosen: Chosen,
    ) {
        let requested = targets.first().map(ToString::to_string).unwrap_or_default();
        let outcome = match chosen {
            Chosen::Mode(mode, _) => {
                let why =
                    ChangeReason { analysis: Some(switch.analysis.clone()), ..ModeSource::InBand.into() };
                match self.change_mode(&mode, why).await {
                    Ok(_) => "switched",
                    Err(error) => {
                        self.note_switch_for_model(format!(
                            "The mode_switch block was not applied: {error}."
                        ));
                        "rejected"
                    }
                }
            }
            Chosen::Feedback(_) | Chosen::No(_) => {
                self.switches.rejections += 1;
                self.note_switch_for_model(format!(
                    "The user did not agree to {requested} mode. The mode stays."
                ));
                "rejected"
            }
        };
        self.note_switched(from, &requested, &switch.analysis, outcome).await;
    }

    pub(super) fn close_switches(&mut self) -> Vec<ToolCallId> {
        let mut closed = Vec::new();
        for (number, open) in std::mem::take(&mut self.switches.open) {
            self.log.client.withdraw(number);
            match open.request {
                SwitchRequest::Exit { call, reply, .. } => {
                    closed.push(call);
                    let message = format!("The mode has changed to {}.", self.policy.mode);
                    let _ = reply.send(Proposed::NotSwitched { message, ends_turn: None });
                }
                SwitchRequest::InBand { reply, .. } => {
                    let _ = reply.send(None);
                }
            }
        }
        closed
    }

    async fn note_switch(&mut self, to: &str, analysis: &str, outcome: &'static str) {
        let from = self.policy.mode.clone();
        self.note_switched(&from, to, analysis, outcome).await;
    }

    async fn note_switched(&mut self, from: &SessionModeId, to: &str, analysis: &str, outcome: &'static str) {
        let from = from.clone();
        tracing::debug!(session = %self.log.id, %from, to, outcome, "the model wrote a mode_switch block");
        let (to, analysis) = (to.to_owned(), analysis.to_owned());
        let notice = (outcome == "switched").then(|| mode_switch::notice(&from.0, &to, &analysis));
        let switch = SwitchOutcome { from, to, analysis, outcome: outcome.into() };
        self.log.record(SessionEvent::Switch { switch }, None).await;
        if let Some(text) = notice {
            // Unique: each request has one reply, with at most one applied block.
            let (turns, requests) = (self.log.turns, self.requests.count);
            let message_id = MessageId::new(format!("msg_{turns}_s{requests}"));
            self.log.record_notice(message_id, text).await;
        }
    }

    /// Each request repeats the note until the turn that sends it ends.
    fn note_switch_for_model(&mut self, text: String) {
        self.requests.switch_notes.push((text, false));
    }
}

fn changes_without_asking(modes: &[Arc<Mode>]) -> bool {
    modes.iter().all(|mode| mode.permission == Consent::Auto && mode.access != Access::ReadOnly)
}

fn chosen(answer: &Answer, targets: &[SessionModeId]) -> Chosen {
    let response = match answer {
        Err(error) => return Chosen::No(format!("The user could not be asked: {error}.")),
        Ok(response) => response,
    };
    let text = |selected: &SelectedPermissionOutcome| {
        let meta = selected.meta.as_ref().or(response.meta.as_ref());
        let text = meta.and_then(|meta| meta.get(FEEDBACK_META)).and_then(|value| value.as_str());
        text.map(str::to_owned)
    };
    match &response.outcome {
        RequestPermissionOutcome::Selected(selected) => match &*selected.option_id.0 {
            REJECT => Chosen::No("The user rejected the mode change.".into()),
            REJECT_WITH_FEEDBACK => Chosen::Feedback(text(selected)),
            id => match targets.iter().find(|target| *target.0 == *id) {
                Some(target) => Chosen::Mode(target.clone(), text(selected)),
                None => Chosen::No(
                    "The client chose an option that was not offered, which does not count as consent."
                        .into(),
                ),
            },
        },
        // No other outcome is consent, including future ones.
        _ => Chosen::No("The question to the user was cancelled.".into()),
    }
}

fn capitalised(id: &str) -> String {
    let mut letters = id.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
