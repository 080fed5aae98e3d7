//! The splicer: puts at most one reminder into a request, as the last block of its last user-side message. Pure.
//!
//! A reminder is made anew for every request and stored nowhere. Taking it away again leaves the request a prefix of
//! the next one, so providers' prompt caches keep what came before. It says what the mode forbids and what is there; it
//! claims nothing that is not enforced (D31-D38).

use std::fmt::Write;
use std::sync::Arc;

use crate::acp::SessionModeId;
use crate::mode::{Access, InBand, Mode, ReminderPosition};
use crate::model::{Block, Message, Role};

/// A mode change that the model has not been told of yet, or only in the turn in which it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// The mode that the model last knew of.
    pub from: SessionModeId,
    /// The mode now.
    pub to: SessionModeId,
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

/// The reminder for a request, if there is to be one: in every request of a restricted mode, and after a switch.
///
/// `notes` are sentences that the model is to know once; `available` are the names of the tools that the request offers,
/// `modes` the ids of the modes there are.
pub fn compose(
    mode: &Mode,
    reader: Reader,
    transition: Option<&Transition>,
    notes: &[&str],
    available: &[&str],
    modes: &[&str],
) -> Option<String> {
    if transition.is_none() && notes.is_empty() && !mode.has_standing_reminder() {
        return None;
    }
    let mut text = String::from("<system-reminder>\n");
    if let Some(Transition { from, to, .. }) = transition {
        line(
            &mut text,
            format_args!("The user's session has switched from {from} mode to {to} mode. {}", effect(mode)),
        );
    }
    if let Some(Transition { unconfirmed: 1.., .. }) = transition {
        let warning =
            "Calls that were under way could not be confirmed to have ended; what they do may still happen.";
        line(&mut text, format_args!("{warning}"));
    }
    for note in notes {
        line(&mut text, format_args!("{note}"));
    }
    if mode.has_standing_reminder() {
        line(&mut text, format_args!("{}", guardrail(mode)));
        let prompt = match reader {
            Reader::Agent => mode.prompt.as_str(),
            Reader::Subagent => mode.prompt_for_subagents(),
        };
        line(&mut text, format_args!("{}", prompt.trim()));
        let tools = if available.is_empty() { "none".into() } else { available.join(", ") };
        line(
            &mut text,
            format_args!(
                "Tools available now: {tools}. A tool that is missing has been disabled by the user's mode; calls to \
                 it are refused."
            ),
        );
    }
    if reader == Reader::Agent && mode.in_band_switch == InBand::Instruct {
        instruct(&mut text, mode, modes);
    }
    text.push_str("</system-reminder>");
    Some(text)
}

/// How to write a switch of the mode (G17).
fn instruct(text: &mut String, mode: &Mode, modes: &[&str]) {
    line(
        text,
        format_args!(
            "The mode is {}. If another would serve the user better, end your message with one fenced block:\n\
             ```yaml\nmode_switch:\n  analysis: |\n    Why, in detail.\n  new_mode: MODE\n```\n\
             The modes are: {}. Staying is often right: then leave `new_mode` out, or write no block. A mode that allows more \
             is asked of the user first.",
            mode.id,
            modes.join(", ")
        ),
    );
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

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string cannot fail");
}

/// The sentence that no author of a mode can drop.
fn guardrail(mode: &Mode) -> String {
    let name = &mode.name;
    match mode.access {
        Access::ReadOnly => format!(
            "{name} mode is on: only read-only tools are available this turn, and calls that would change anything \
             are refused."
        ),
        Access::Edit => format!(
            "{name} mode is on: files may be edited{}, and nothing may be run that changes anything else.",
            mode.write_paths
                .as_ref()
                .map(|globs| format!(" where they match {}", globs.patterns.join(", ")))
                .unwrap_or_default()
        ),
        Access::Full => format!("{name} mode is on."),
    }
}

fn effect(mode: &Mode) -> &'static str {
    match mode.access {
        Access::ReadOnly => "From now on nothing may be changed.",
        Access::Edit => "From now on only files may be changed, where the mode allows it.",
        Access::Full => "Earlier restrictions no longer hold: the tools of this request can be used.",
    }
}

#[cfg(test)]
mod tests;
