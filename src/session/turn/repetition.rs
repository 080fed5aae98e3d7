//! Notices that the model repeats itself: the same calls with the same results, or one denied call after the
//! other. Pure.
//!
//! A change that the model has not tried before starts the count anew, so a test that fails in the same way
//! after each of many edits is no repetition (decision 0073).

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::acp::SessionModeId;
use crate::event::{ToolCallEvent, ToolCallUpdateEvent};
use crate::permission::Effect;
use crate::session::mode::decider::Decider;
use crate::text::{counted, first_line, shorten};
use crate::tool::agent::background::BackgroundRole;
use crate::tool::user::chat_question::{self, ChatQuestion};

/// Repetitions after which the model gets a note.
const NOTED: u32 = 3;

/// Repetitions after which the turn asks the user.
const ASKED: u32 = 6;

/// Maximum characters of a call or a result in a note.
const SHOWN: usize = 160;

/// Maximum calls that a note lists.
const LISTED: usize = 6;

#[derive(Debug, Default)]
pub(crate) struct Repetition {
    /// Calls since the last new change.
    calls: Vec<RepeatedCall>,
    /// Changes of the turn, by tool and arguments.
    changes: HashSet<u64>,
    /// Steps in a row in which every call was denied.
    denied_steps: u32,
    step: EndedStep,
    mode: Option<SessionModeId>,
    /// True if the last step got a note.
    is_noted: bool,
}

#[derive(Debug)]
struct RepeatedCall {
    hash: u64,
    call: String,
    title: String,
    result: String,
    count: u32,
    /// True if the call ended in the current step, which counts once.
    is_current: bool,
}

#[derive(Debug, Default)]
struct EndedStep {
    denied: Vec<String>,
    others: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Brake {
    /// For the model.
    Note(String),
    /// For the user, instead of the next request.
    Ask(ChatQuestion),
}

impl Repetition {
    /// Counts the end of a call. A look at running work is expected to find the same.
    pub(crate) fn count(&mut self, update: &ToolCallUpdateEvent, decider: &Decider) {
        let Some(call) = decider.log.open_call(&update.id).filter(|call| call.check.is_none()) else {
            return;
        };
        let tool = decider.policy.context.tools.find(&call.name);
        let spec = tool.as_ref().map(|tool| tool.spec());
        if spec.is_none_or(|spec| spec.background != BackgroundRole::Controls) {
            self.call_ended(call, update, spec.map(|spec| spec.effect));
        }
    }

    fn call_ended(&mut self, call: &ToolCallEvent, update: &ToolCallUpdateEvent, effect: Option<Effect>) {
        let Some(result) = &update.result else { return };
        let arguments = call.arguments.to_string();
        let call_text = shorten(&format!("{} {arguments}", call.name), SHOWN).into_owned();
        if update.denied.is_some() {
            self.step.denied.push(call_text.clone());
        } else {
            self.step.others += 1;
        }
        let is_change = effect.is_some_and(Effect::is_change) && update.has_run();
        if is_change && self.changes.insert(hash_of(&(&call.name, &arguments))) {
            self.calls.clear();
        }
        let hash = hash_of(&(&call.name, &arguments, result, update.has_run()));
        match self.calls.iter_mut().find(|known| known.hash == hash) {
            Some(known) if known.is_current => {}
            Some(known) => {
                known.count += 1;
                known.is_current = true;
            }
            None => self.calls.push(RepeatedCall {
                hash,
                call: call_text,
                title: call.title.clone(),
                result: shorten(first_line(result), SHOWN).into_owned(),
                count: 1,
                is_current: true,
            }),
        }
    }

    /// Ends a step: the model has made its calls without the results of each other.
    pub(crate) fn end_step(&mut self, mode: &SessionModeId) -> Option<Brake> {
        let step = std::mem::take(&mut self.step);
        let current: Vec<u64> =
            self.calls.iter().filter(|call| call.is_current).map(|call| call.hash).collect();
        self.calls.iter_mut().for_each(|call| call.is_current = false);
        if self.mode.as_ref() != Some(mode) {
            self.mode = Some(mode.clone());
            self.denied_steps = 0;
            self.calls.clear();
            return None;
        }
        if step.denied.is_empty() && step.others == 0 {
            return None;
        }
        let is_denied = step.others == 0;
        self.denied_steps = if is_denied { self.denied_steps + 1 } else { 0 };
        let of_step = self.calls.iter().filter(|call| current.contains(&call.hash));
        let most = of_step.max_by_key(|call| call.count);
        if let Some(call) = most.filter(|call| call.count >= ASKED) {
            return Some(Brake::Ask(question(&format!(
                "The model made the same call {} times with the same result: {}. The result: {}",
                call.count, call.title, call.result
            ))));
        }
        if self.denied_steps >= ASKED {
            let last = step.denied.last().map_or("", String::as_str);
            let count = self.denied_steps;
            return Some(Brake::Ask(question(&format!(
                "All calls in {count} steps in a row were denied. The last one: {last}"
            ))));
        }
        let note = match most.filter(|call| call.count == NOTED) {
            Some(call) => Some(self.note_of_repetition(call)),
            None => (is_denied && self.denied_steps == NOTED).then(|| note_of_denials(&step.denied)),
        };
        // The two calls of an alternating pair reach the limit one after the other.
        let is_new = !std::mem::replace(&mut self.is_noted, note.is_some());
        note.filter(|_| is_new).map(Brake::Note)
    }

    fn note_of_repetition(&self, repeated: &RepeatedCall) -> String {
        let RepeatedCall { call, result, count, hash, .. } = repeated;
        let mut text = format!(
            "You have made the same call {count} times with the same result: {call} → {result}\nAnother time gives \
             the same. Do something else, or end the turn and tell the user what stands in the way. After {ASKED} \
             times, the turn ends."
        );
        let others: Vec<&RepeatedCall> = self.calls.iter().filter(|other| other.hash != *hash).collect();
        if !others.is_empty() {
            text.push_str("\nWhat you also tried since your last change:");
            for other in others.iter().rev().take(LISTED) {
                let times = counted(other.count, "time", "times");
                text.push_str(&format!("\n- {} → {} ({times})", other.call, other.result));
            }
        }
        text
    }
}

fn note_of_denials(denied: &[String]) -> String {
    let last = denied.last().map_or("", String::as_str);
    format!(
        "All calls of your last {NOTED} steps were denied. The last one: {last}\nOther arguments do not change that. \
         Use the tools that this mode allows, or end the turn and tell the user what you need. After {ASKED} such \
         steps, the turn ends."
    )
}

fn question(what: &str) -> ChatQuestion {
    let choices = ["Go on.", "Try another way.", "Stop, and report what was tried."];
    ChatQuestion {
        question: format!("{what}\n\nHow shall it go on?"),
        choices: choices.map(str::to_owned).to_vec(),
    }
}

pub(crate) fn end_of_turn(question: &ChatQuestion) -> String {
    format!("\nStopped: the model repeats itself.\n{}", chat_question::text(std::slice::from_ref(question)))
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
