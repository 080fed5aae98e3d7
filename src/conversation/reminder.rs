//! Composes a request's reminder. Pure.
//!
//! A reminder is never stored: [`placement`] puts it into each request. A reminder claims only limits that are
//! enforced (see [`claims`]), and no text in it can close its tag ([`NeutralisedText`]).

use std::fmt::Write;
use std::sync::Arc;

use super::neutralise::NeutralisedText;
use crate::acp::SessionModeId;
use crate::mode::{InBand, Mode, ToolList};
use crate::permission::{self, CallFacts, Ceilings, Grants};
use claims::{Levels, ReminderClaim};

pub mod claims;
pub mod placement;

/// A mode change that the reminder states.
#[derive(Debug, Clone)]
pub struct Transition {
    /// Mode that the model last knew.
    pub from: SessionModeId,
    pub to: SessionModeId,
    /// Ceilings that applied in `from`. Their `modes` are empty if they are unknown.
    pub before: Ceilings,
    /// Number of running calls whose end is not confirmed.
    pub unconfirmed: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReminderReader {
    Agent,
    /// A sub-agent presents no plan, asks no questions and switches no modes.
    Subagent,
}

/// Inputs of [`compose`]. They may contain tags, because the composed text is neutralised.
pub struct Inputs<'a> {
    pub mode: &'a Mode,
    pub reader: ReminderReader,
    pub transition: Option<&'a Transition>,
    /// False if no user can be asked.
    pub is_attended: bool,
    pub notes: &'a [&'a str],
    pub ceilings: &'a Ceilings,
    pub grants: &'a Grants,
    pub tools: &'a [CallFacts],
    pub modes: &'a [&'a str],
}

impl Inputs<'_> {
    fn prompt(&self) -> &str {
        match self.reader {
            ReminderReader::Agent => self.mode.prompt.trim(),
            ReminderReader::Subagent => self.mode.prompt_for_subagents().trim(),
        }
    }

    fn instructs(&self) -> bool {
        self.reader == ReminderReader::Agent && self.mode.in_band_switch == InBand::Instruct
    }

    /// True if the mode has a prompt, or a mode restricts something.
    fn needs_status(&self) -> bool {
        !self.prompt().is_empty() || self.instructs() || is_restricted(self.ceilings, self.tools)
    }
}

/// True if requests have a reminder without a switch and without a note, too.
pub fn is_standing(inputs: &Inputs<'_>) -> bool {
    inputs.needs_status()
        || Levels::of(inputs.ceilings, inputs.grants, inputs.tools).not_asked(inputs.ceilings).is_some()
}

/// Returns `None` if there is nothing to say: no mode restricts anything or asks about changes, the current mode
/// has no prompt, and there is neither a switch nor a note.
pub fn compose(inputs: &Inputs<'_>) -> Option<String> {
    let Inputs { mode, transition, notes, ceilings, tools, .. } = *inputs;
    let (prompt, instructs, needs_status) = (inputs.prompt(), inputs.instructs(), inputs.needs_status());
    let now = Levels::of(ceilings, inputs.grants, tools);
    let introduced = now.not_asked(ceilings);
    let mut lines: Vec<String> = Vec::new();
    if let Some(Transition { from, to, before, unconfirmed }) = transition {
        let mut sentences = vec![format!("The user's session has switched from {from} mode to {to} mode.")];
        if !before.modes.is_empty() {
            let before = Levels::of(before, inputs.grants, tools);
            sentences.extend(now.since(&before, &from.0).iter().map(ToString::to_string));
        }
        lines.push(sentences.join(" "));
        if *unconfirmed > 0 {
            lines.push(UNCONFIRMED.to_owned());
        }
    }
    lines.extend(notes.iter().map(|note| (*note).to_owned()));
    if needs_status {
        lines.push(guardrail(inputs, &now));
        lines.extend((!prompt.is_empty()).then(|| prompt.to_owned()));
    }
    if !needs_status && transition.is_none() && introduced.is_some() {
        lines.push(format!("{} mode is on.", mode.name));
    }
    if needs_status || transition.is_some() || introduced.is_some() {
        let sentences: Vec<String> =
            now.asked(inputs.is_attended).iter().chain(&introduced).map(ToString::to_string).collect();
        lines.extend((!sentences.is_empty()).then(|| sentences.join(" ")));
    }
    if needs_status && now.misses_a_tool() {
        lines.push(available(inputs));
    }
    if instructs {
        lines.push(instructions(mode, inputs.modes));
    }
    (!lines.is_empty()).then(|| NeutralisedText::new(lines.join("\n")).into_reminder())
}

const UNCONFIRMED: &str =
    "Modegate could not confirm that all running calls have ended; they may still have effects.";

/// True if a mode, not only a user's rule, denies a tool or limits paths.
fn is_restricted(ceilings: &Ceilings, tools: &[CallFacts]) -> bool {
    let modes = Ceilings { modes: ceilings.modes.clone(), rules: Vec::new() };
    Levels::of(&modes, &Grants::default(), tools).restricts()
}

/// The sentences that a mode's author cannot remove.
fn guardrail(inputs: &Inputs<'_>, now: &Levels<'_>) -> String {
    let Inputs { mode, ceilings, grants, tools, .. } = *inputs;
    let chain = Ceilings { modes: chain_of(mode, ceilings), rules: ceilings.rules.clone() };
    let is_further = now.refuses_more_than(&Levels::of(&chain, grants, tools));
    let further = if is_further { ", and further limits apply in this session" } else { "" };
    let claims = now.refusals();
    // The text of this claim continues the sentence.
    let stop = if claims.first() == Some(&ReminderClaim::NothingChanges) { ':' } else { '.' };
    let mut text = format!("{} mode is on{further}{stop}", mode.name);
    for claim in claims {
        write!(text, " {claim}").expect("writing to a string cannot fail");
    }
    text
}

/// The mode and its chain of `under` modes, which ends because `under` names a mode that was defined before.
fn chain_of(mode: &Mode, ceilings: &Ceilings) -> Vec<Arc<Mode>> {
    let find = |id: &str| ceilings.modes.iter().find(|known| known.id == id).cloned();
    let mut chain: Vec<Arc<Mode>> = find(&mode.id).into_iter().collect();
    while let Some(under) = chain.last().and_then(|mode| mode.under.as_deref()).and_then(find) {
        chain.push(under);
    }
    chain
}

/// Names the tools only if the request lists others too.
fn available(inputs: &Inputs<'_>) -> String {
    const MISSING: &str =
        "A tool that is missing has been disabled by the user's mode or settings; calls to it are refused.";
    if inputs.mode.tool_list.unwrap_or_default() == ToolList::Hide {
        return MISSING.to_owned();
    }
    let names: Vec<&str> = inputs
        .tools
        .iter()
        .filter(|tool| permission::is_available(inputs.ceilings, inputs.grants, tool))
        .map(|tool| tool.tool.as_str())
        .collect();
    let names = if names.is_empty() { "none".into() } else { names.join(", ") };
    format!("Tools available now: {names}. {MISSING}")
}

/// Tells the model how to write a `mode_switch` block.
fn instructions(mode: &Mode, modes: &[&str]) -> String {
    format!(
        "The mode is {}. If another mode would serve the user better, end your message with one fenced block:\n\
         ```yaml\nmode_switch:\n  analysis: |\n    Why, in detail.\n  new_mode: MODE\n```\n\
         The modes are: {}. Staying is often right: then omit `new_mode`, or write no block. The user must approve a \
         mode that allows more.",
        mode.id,
        modes.join(", ")
    )
}

#[cfg(test)]
mod tests;
