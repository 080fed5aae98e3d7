//! Prints sessions and their events as lines, Markdown or JSON.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};

use super::MIN_PART;
use crate::acp::{ContentBlock, PlanEntryStatus, SessionId, SessionUpdate, ToolCallStatus};
use crate::conversation::content::{ToolContent, plain_text};
use crate::event::{Compaction, SessionEvent, SwitchOutcome};
use crate::headless::printable;
use crate::ids::time_text;
use crate::line_diff;
use crate::session::Undone;
use crate::store::events::{self, StoredEvent};
use crate::store::evidence::Evidence;
use crate::store::sessions::{ListedSession, SessionQuery, StoredSession};
use crate::text::{code_block, counted, start};
use crate::workspace::{Changed, changed_files};

const LINE: usize = 160;

/// Maximum number of changed files in one line.
const FILES: usize = 20;

/// Stands for the title of a session without one.
const NO_PROMPT: &str = "(no prompt yet)";

/// Ids are as short as other commands accept them.
pub(super) fn list(sessions: &[ListedSession], with_folder: bool, output: &mut impl Write) -> io::Result<()> {
    let ids: Vec<&str> = sessions.iter().map(|session| &*session.id.0).collect();
    let length = short_length(&ids);
    for session in sessions {
        let ListedSession { id, cwd, mode, title, updated_at, .. } = session;
        let id = &id.0[id.0.len().saturating_sub(length)..];
        let mode = mode.as_deref().unwrap_or("-");
        let title = line_of(title.as_deref().unwrap_or(NO_PROMPT));
        let fork = if session.forked_from.is_some() { "  (a fork)" } else { "" };
        let open = if session.is_open_elsewhere { "  (open)" } else { "" };
        write!(output, "{id}  {} UTC  {mode:8}  {title}{fork}{open}", time_text(*updated_at))?;
        if with_folder {
            write!(output, "  {}", line_of(&cwd.display().to_string()))?;
        }
        writeln!(output)?;
    }
    Ok(())
}

/// Number of last characters that tell the ids apart, with two more, because other lists have other ids.
fn short_length(ids: &[&str]) -> usize {
    let longest = ids.iter().map(|id| id.len()).max().unwrap_or(0);
    let are_apart = |length: &usize| {
        let ends: HashSet<&str> = ids.iter().map(|id| &id[id.len().saturating_sub(*length)..]).collect();
        ends.len() == ids.len()
    };
    let length = (MIN_PART..longest).find(are_apart).unwrap_or(longest);
    (length + 2).min(longest)
}

pub(super) fn none_found(listing: &SessionQuery, has_runs: bool) -> String {
    if has_runs {
        return "No sessions; --runs lists the programs of `modegate run`.".to_owned();
    }
    let with = listing.search.as_ref().map(|text| format!(" with {text:?}")).unwrap_or_default();
    match listing.cwd {
        Some(_) => format!("No sessions{with} in this directory; --all lists the others."),
        None if with.is_empty() => "No sessions. `modegate -p \"TEXT\"` begins one.".to_owned(),
        None => format!("No sessions{with}."),
    }
}

pub(super) fn would_delete(
    id: &SessionId,
    title: Option<&str>,
    updated_at: i64,
    output: &mut impl Write,
) -> io::Result<()> {
    let title = line_of(title.unwrap_or(NO_PROMPT));
    writeln!(output, "would delete {id}  {} UTC  {title}", time_text(updated_at))
}

pub(super) fn deleted(id: &SessionId, title: Option<&str>, output: &mut impl Write) -> io::Result<()> {
    writeln!(output, "deleted {id}  {}", line_of(title.unwrap_or(NO_PROMPT)))
}

pub(super) fn head(session: &StoredSession, output: &mut impl Write) -> io::Result<()> {
    writeln!(output, "session  {}", session.id)?;
    writeln!(output, "title    {}", line_of(session.title.as_deref().unwrap_or("-")))?;
    writeln!(output, "folder   {}", session.cwd.display())?;
    for folder in &session.directories {
        writeln!(output, "         {}", folder.display())?;
    }
    if let Some(from) = &session.forked_from {
        writeln!(output, "fork of  {from}")?;
    }
    if let Some(parent) = &session.parent {
        writeln!(output, "parent   {parent}")?;
    }
    writeln!(output, "agent    {}", session.agent.as_deref().unwrap_or("-"))?;
    writeln!(output, "mode     {}", session.mode.as_deref().unwrap_or("-"))?;
    writeln!(output, "begun    {} UTC", time_text(session.created_at))?;
    writeln!(output, "changed  {} UTC", time_text(session.updated_at))?;
    let entries = counted(session.head.length, "entry", "entries");
    writeln!(output, "chain    {entries}, the last: {}", session.head.hash)?;
    writeln!(output)
}

pub(super) fn brief(stored: &StoredEvent, output: &mut impl Write) -> io::Result<()> {
    let (who, text) = match &stored.event {
        SessionEvent::UserMessage { content, typed, .. } => {
            writeln!(output, "-- turn {} --", stored.turn)?;
            ("you", plain_text(typed.as_ref().unwrap_or(content)))
        }
        SessionEvent::AgentText { text, shown, .. } => ("agent", shown.as_ref().unwrap_or(text).clone()),
        SessionEvent::Notice { text, .. } => ("modegate", text.clone()),
        SessionEvent::SystemNote { text: note, .. }
        | SessionEvent::ReplyInterrupted { note }
        | SessionEvent::PromptDropped { note } => ("to model", note.clone()),
        SessionEvent::ToolCall(call) => ("tool", call.title.clone()),
        SessionEvent::ToolCallUpdate(update)
            if update.status == ToolCallStatus::Failed && !update.has_run() =>
        {
            let rule = update.denied.as_ref().map(|rule| format!("denied ({rule}): ")).unwrap_or_default();
            ("failed", format!("{rule}{}", update.result.clone().unwrap_or_default()))
        }
        SessionEvent::ModeChange { from, to, .. } => ("mode", format!("{from} -> {to}")),
        SessionEvent::Switch { switch } => return switch_lines(switch, output),
        SessionEvent::ModelChange { model, .. } => ("model", model.to_string()),
        SessionEvent::AgentChange { agent } => ("agent", agent.clone()),
        SessionEvent::ForwardedUpdate { update } => ("of an agent", forwarded(update)),
        SessionEvent::Undone { turn, files } => ("undone", format!("turn {turn}: {}", files.join(", "))),
        SessionEvent::Compaction { stage: Compaction::Done { .. }, .. } => {
            ("modegate", "The older part was summarised.".into())
        }
        _ => return Ok(()),
    };
    let text = text.trim();
    let first = line_of(text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default());
    let start = start(&first, LINE);
    let more = if start.len() < first.len() || text.lines().nth(1).is_some() { " …" } else { "" };
    writeln!(output, "{who:8} {start}{more}")
}

pub(super) fn changed(changes: Option<Vec<Changed>>, cwd: &Path, output: &mut impl Write) -> io::Result<()> {
    let files = changed_files(&changes.unwrap_or_default());
    let mut names: Vec<String> = files
        .iter()
        .take(FILES)
        .map(|file| line_of(&file.strip_prefix(cwd).unwrap_or(file).display().to_string()))
        .collect();
    if files.len() > FILES {
        names.push(format!("and {} more", files.len() - FILES));
    }
    if names.is_empty() { Ok(()) } else { writeln!(output, "{:8} {}", "changed", names.join(", ")) }
}

pub(super) fn refused(evidence: &Evidence, output: &mut impl Write) -> io::Result<()> {
    let acts = evidence.refused_acts();
    let rules: Vec<String> = acts.iter().map(|(rule, count)| format!("{count} ({rule})")).collect();
    if rules.is_empty() { Ok(()) } else { writeln!(output, "{:8} {}", "refused", rules.join(", ")) }
}

fn switch_lines(switch: &SwitchOutcome, output: &mut impl Write) -> io::Result<()> {
    writeln!(output, "{:8} {}", "switch", switch_title(switch))?;
    for line in page(&switch.analysis).lines() {
        writeln!(output, "{:8} {line}", "")?;
    }
    Ok(())
}

fn switch_title(switch: &SwitchOutcome) -> String {
    let SwitchOutcome { from, to, outcome, .. } = switch;
    let to = if to.is_empty() { "?".into() } else { line_of(to) };
    format!("{from} -> {to} ({})", outcome.replace('_', " "))
}

pub(super) fn title(session: &StoredSession, output: &mut impl Write) -> io::Result<()> {
    writeln!(output, "# {}\n", session.title.as_deref().unwrap_or("A session"))?;
    writeln!(
        output,
        "Session `{}` in `{}`, {} mode, begun {} UTC.\n",
        session.id,
        session.cwd.display(),
        session.mode.as_deref().unwrap_or("no"),
        time_text(session.created_at)
    )
}

pub(super) fn markdown(stored: &StoredEvent, output: &mut impl Write) -> io::Result<()> {
    match &stored.event {
        SessionEvent::UserMessage { content, typed, .. } => {
            let text = plain_text(typed.as_ref().unwrap_or(content));
            writeln!(output, "## You (turn {})\n\n{}\n\n## Agent\n", stored.turn, page(&text))
        }
        SessionEvent::AgentText { text, shown, .. } => {
            writeln!(output, "{}\n", page(shown.as_ref().unwrap_or(text)))
        }
        SessionEvent::AgentThought { text, .. } => {
            for line in text.trim_end().lines() {
                writeln!(output, "> {line}")?;
            }
            writeln!(output)
        }
        SessionEvent::Notice { text, .. } => writeln!(output, "*Modegate: {}*\n", text.trim()),
        SessionEvent::ToolCall(call) => {
            writeln!(output, "**{}** (`{}`, {})\n", page(&call.title), call.name, call.id)
        }
        SessionEvent::ToolCallUpdate(update) if update.result.is_none() && update.content.is_none() => Ok(()),
        SessionEvent::ToolCallUpdate(update) => {
            writeln!(output, "{}, {}:\n", update.id, json!(update.status).as_str().unwrap_or_default())?;
            for content in update.content.iter().flatten() {
                let (kind, text) = match content.lasting() {
                    ToolContent::Operation(_) | ToolContent::Session(_) => continue,
                    ToolContent::Text(text) => ("", text.clone()),
                    ToolContent::Diff { path, old, new, .. } => ("diff", diff(path, old.as_deref(), new)),
                    ToolContent::Block(block) => ("", kind_of(block)),
                    ToolContent::Terminal { id, .. } => ("", id.clone()),
                };
                writeln!(output, "{}", code_block(kind, &page(&text)))?;
            }
            match &update.denied {
                Some(rule) => writeln!(output, "*Denied: {rule}.*\n"),
                None => Ok(()),
            }
        }
        SessionEvent::Plan { entries } => {
            for entry in entries {
                let mark = if entry.status == PlanEntryStatus::Completed { "x" } else { " " };
                writeln!(output, "- [{mark}] {}", entry.content)?;
            }
            writeln!(output)
        }
        SessionEvent::ModeChange { from, to, .. } => writeln!(output, "*Mode: {from} → {to}*\n"),
        SessionEvent::Switch { switch } => {
            writeln!(output, "*The agent asked for another mode: {}*\n", switch_title(switch))?;
            for line in page(&switch.analysis).lines() {
                writeln!(output, "> {line}")?;
            }
            writeln!(output)
        }
        SessionEvent::ModelChange { model, .. } => writeln!(output, "*Model: {model}*\n"),
        SessionEvent::AgentChange { agent } => writeln!(output, "*Agent: {agent}*\n"),
        SessionEvent::ForwardedUpdate { update } => match forwarded(update) {
            text if text.is_empty() => Ok(()),
            text => writeln!(output, "> {text}\n"),
        },
        SessionEvent::Compaction { stage: Compaction::Done { summary, .. }, .. } => {
            writeln!(output, "*The older part was summarised:*\n\n{}\n", summary.trim_end())
        }
        SessionEvent::Undone { turn, files } => {
            writeln!(output, "*Undone: the files of turn {turn} are as before it: {}*\n", files.join(", "))
        }
        SessionEvent::SystemNote { text: note, .. }
        | SessionEvent::ReplyInterrupted { note }
        | SessionEvent::PromptDropped { note } => {
            writeln!(output, "*Note to the model: {note}*\n")
        }
        SessionEvent::Stop { reason } => {
            writeln!(output, "*Ended: {}*\n", json!(reason).as_str().unwrap_or_default())
        }
        // Unfinished calls, provider state and metadata are left out.
        SessionEvent::ToolCallStarted { .. }
        | SessionEvent::ProviderState { .. }
        | SessionEvent::Usage(_)
        | SessionEvent::Title { .. }
        | SessionEvent::Compaction { .. } => Ok(()),
    }
}

pub(super) fn event(stored: &StoredEvent) -> Value {
    let (kind, body) = events::body_of(&stored.event);
    json!({ "seq": stored.seq, "turn": stored.turn, "at": stored.at, "kind": kind, "body": body })
}

pub(super) fn json_line(stored: &StoredEvent, output: &mut impl Write) -> io::Result<()> {
    writeln!(output, "{}", event(stored))
}

pub(super) fn undone(undone: &Undone, output: &mut impl Write) -> io::Result<()> {
    writeln!(output, "Undid the changes of turn {}:", undone.turn)?;
    for file in &undone.files {
        writeln!(output, "  {}", line_of(&file.display().to_string()))?;
    }
    for folder in &undone.remaining_folders {
        let folder = line_of(&folder.display().to_string());
        writeln!(output, "kept, because it is not empty: {folder}")?;
    }
    for text in &undone.uncovered {
        writeln!(output, "note: {}", line_of(text))?;
    }
    Ok(())
}

fn diff(path: &Path, old: Option<&str>, new: &str) -> String {
    let name = path.display().to_string();
    let before = if old.is_some() { name.as_str() } else { "/dev/null" };
    let (old, new) = (line_diff::lines(old.unwrap_or_default()), line_diff::lines(new));
    line_diff::unified((before, &name), &old, &new, &line_diff::hunks(&old, &new))
}

/// Removes control characters but keeps line breaks.
fn page(text: &str) -> String {
    printable(text.trim_end())
}

fn kind_of(block: &ContentBlock) -> String {
    let kind = json!(block)["type"].as_str().unwrap_or("block").to_owned();
    format!("[{kind}, which is not shown here]")
}

fn line_of(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
}

/// Empty if the update says nothing without its context.
fn forwarded(update: &SessionUpdate) -> String {
    match update {
        SessionUpdate::ToolCall(call) => call.title.clone(),
        SessionUpdate::ToolCallUpdate(update) => match update.fields.status {
            Some(ToolCallStatus::Failed) => format!("{}: failed", update.tool_call_id),
            _ => String::new(),
        },
        _ => String::new(),
    }
}
