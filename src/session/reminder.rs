//! The splicer: puts at most one reminder into a request, as the last block of its last user-side message. Pure.
//!
//! A reminder is made anew for every request and stored nowhere. Taking it away again leaves the request a prefix of
//! the next one, so providers' prompt caches keep what came before. It says what is refused, what is asked and what is
//! there under all ceilings ([`claims`]); it claims nothing that is not enforced (D31-D38), and no text that it is made of
//! can end it ([`NeutralisedText`]).

use std::fmt::Write;
use std::sync::Arc;

use super::neutralise::NeutralisedText;
use crate::acp::SessionModeId;
use crate::mode::{InBand, Mode, ReminderPosition};
use crate::model::{Block, Message, Role};
use crate::permission::{self, CallFacts, Ceilings, Grants};
use claims::{Claim, Levels};

pub mod claims;

/// A mode change that the model has not been told of yet, or only in the turn in which it happened.
#[derive(Debug, Clone)]
pub struct Transition {
    /// The mode that the model last knew of.
    pub from: SessionModeId,
    /// The mode now.
    pub to: SessionModeId,
    /// What held in the mode that the model last knew of; without a mode where that is not known any more.
    pub before: Ceilings,
    /// How many calls could not be confirmed to have ended.
    pub unconfirmed: usize,
}

/// Who reads a reminder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// An agent that speaks with the user.
    Agent,
    /// One that works for another: it presents no plan, asks nobody, and switches nothing.
    Subagent,
}

/// What a reminder is made of. None of its texts need be harmless: what is made of them is.
pub struct Facts<'a> {
    /// The mode whose name and prompt stand in the reminder.
    pub mode: &'a Mode,
    /// Who reads it.
    pub reader: Reader,
    /// A switch that the model is to know.
    pub transition: Option<&'a Transition>,
    /// Sentences that the model is to know once.
    pub notes: &'a [&'a str],
    /// All that holds.
    pub ceilings: &'a Ceilings,
    /// What the user has answered for good.
    pub grants: &'a Grants,
    /// The session's tools, also those that are refused.
    pub tools: &'a [CallFacts],
    /// The ids of the modes there are.
    pub modes: &'a [&'a str],
}

/// The reminder for a request, if there is to be one: in every request while a ceiling refuses something or the mode has
/// words of its own, and after a switch.
pub fn compose(facts: &Facts<'_>) -> Option<String> {
    let Facts { mode, transition, notes, ceilings, tools, .. } = *facts;
    let prompt = match facts.reader {
        Reader::Agent => mode.prompt.trim(),
        Reader::Subagent => mode.prompt_for_subagents().trim(),
    };
    let instructs = facts.reader == Reader::Agent && mode.in_band_switch == InBand::Instruct;
    let is_standing = !prompt.is_empty() || instructs || is_restricted(ceilings, tools);
    if transition.is_none() && notes.is_empty() && !is_standing {
        return None;
    }
    let now = Levels::of(ceilings, facts.grants, tools);
    let mut lines: Vec<String> = Vec::new();
    if let Some(Transition { from, to, before, unconfirmed }) = transition {
        let mut words = vec![format!("The user's session has switched from {from} mode to {to} mode.")];
        if !before.modes.is_empty() {
            let before = Levels::of(before, facts.grants, tools);
            words.extend(now.since(&before, &from.0).iter().map(ToString::to_string));
        }
        lines.push(words.join(" "));
        if *unconfirmed > 0 {
            lines.push(UNCONFIRMED.to_owned());
        }
    }
    lines.extend(notes.iter().map(|note| (*note).to_owned()));
    if is_standing {
        lines.push(guardrail(facts, &now));
        lines.extend((!prompt.is_empty()).then(|| prompt.to_owned()));
    }
    if is_standing || transition.is_some() {
        let not_asked = transition.and_then(|_| now.not_asked(ceilings));
        let words: Vec<String> = now.asked().iter().chain(&not_asked).map(ToString::to_string).collect();
        lines.extend((!words.is_empty()).then(|| words.join(" ")));
    }
    if is_standing && now.misses_a_tool() {
        lines.push(available(facts));
    }
    if instructs {
        lines.push(instructions(mode, facts.modes));
    }
    Some(NeutralisedText::new(lines.join("\n")).into_reminder())
}

const UNCONFIRMED: &str =
    "Calls that were under way could not be confirmed to have ended; what they do may still happen.";

/// Whether a ceiling, other than a rule of the user's, refuses a tool or says where files may be changed.
fn is_restricted(ceilings: &Ceilings, tools: &[CallFacts]) -> bool {
    let modes = Ceilings { modes: ceilings.modes.clone(), rules: Vec::new() };
    Levels::of(&modes, &Grants::default(), tools).restricts()
}

/// The sentences that no author of a mode can drop: that it is on, and what is refused.
fn guardrail(facts: &Facts<'_>, now: &Levels<'_>) -> String {
    let Facts { mode, ceilings, grants, tools, .. } = *facts;
    let own = Ceilings { modes: own_ceilings(mode, ceilings), rules: ceilings.rules.clone() };
    let is_further = now.refuses_more_than(&Levels::of(&own, grants, tools));
    let further = if is_further { ", and further limits hold in this session" } else { "" };
    let claims = now.refusals();
    let stop = if claims.first() == Some(&Claim::NothingChanges) { ':' } else { '.' };
    let mut text = format!("{} mode is on{further}{stop}", mode.name);
    for claim in claims {
        write!(text, " {claim}").expect("writing to a string cannot fail");
    }
    text
}

/// The ceilings that are the mode's own: the mode, and those under which it is evaluated.
fn own_ceilings(mode: &Mode, ceilings: &Ceilings) -> Vec<Arc<Mode>> {
    let find = |id: &str| ceilings.modes.iter().find(|known| known.id == id).cloned();
    let mut own: Vec<Arc<Mode>> = find(&mode.id).into_iter().collect();
    while let Some(under) = own.last().and_then(|mode| mode.under.as_deref()).and_then(find) {
        own.push(under);
    }
    own
}

fn available(facts: &Facts<'_>) -> String {
    let is_there = |tool: &&CallFacts| permission::is_available(facts.ceilings, facts.grants, tool);
    let names: Vec<&str> = facts.tools.iter().filter(is_there).map(|tool| tool.tool.as_str()).collect();
    let names = if names.is_empty() { "none".into() } else { names.join(", ") };
    format!(
        "Tools available now: {names}. A tool that is missing has been disabled by the user's mode or settings; calls to it \
         are refused."
    )
}

/// How to write a switch of the mode (G17).
fn instructions(mode: &Mode, modes: &[&str]) -> String {
    format!(
        "The mode is {}. If another would serve the user better, end your message with one fenced block:\n\
         ```yaml\nmode_switch:\n  analysis: |\n    Why, in detail.\n  new_mode: MODE\n```\n\
         The modes are: {}. Staying is often right: then leave `new_mode` out, or write no block. A mode that allows more \
         is asked of the user first.",
        mode.id,
        modes.join(", ")
    )
}

/// Puts the reminder into the messages of a request, which end with a user-side one: at its end, or before the last prompt.
pub fn splice(
    mut messages: Vec<Arc<Message>>,
    reminder: Option<String>,
    position: ReminderPosition,
) -> Vec<Arc<Message>> {
    let Some(reminder) = reminder else { return messages };
    let is_prompt = |block: &Block| !matches!(block, Block::ToolResult { .. });
    if position == ReminderPosition::BeforePrompt
        && let Some(message) = messages
            .iter_mut()
            .rev()
            .find(|message| message.role == Role::User && message.blocks.iter().any(is_prompt))
    {
        let blocks = &mut Arc::make_mut(message).blocks;
        let place = blocks.iter().position(is_prompt).unwrap_or(blocks.len());
        blocks.insert(place, Block::Reminder(reminder));
        return messages;
    }
    match messages.last_mut() {
        Some(last) if last.role == Role::User => Arc::make_mut(last).blocks.push(Block::Reminder(reminder)),
        _ => messages.push(Arc::new(Message { role: Role::User, blocks: vec![Block::Reminder(reminder)] })),
    }
    messages
}

#[cfg(test)]
mod tests;
