//! Turns and their steps as HTML.

use super::html::Html;
use super::turns::{CallContent, CallEnd, ReportCall, ReportStep, ReportTurn, StepKind};
use super::{duration, turns};
use crate::event::{NoticeKind, SwitchOutcome};
use crate::ids::time_text;
use crate::store::entry::RecordedConsent;
use crate::text::{counted, first_line, shorten, without_code_spans};

/// Characters of a line that stands for a longer text.
const LINE: usize = 160;

pub(super) fn was_asked(call: &ReportCall) -> bool {
    matches!(call.consent, Some(RecordedConsent::User | RecordedConsent::Remembered))
}

pub(super) fn turn(html: &mut Html, turn: &ReportTurn, is_open: bool) {
    let id = format!("turn-{}", turn.number);
    let open: &[_] = if is_open { &[("open", "")] } else { &[] };
    html.open("details", &[&[("class", "turn"), ("id", id.as_str())], open].concat());
    html.open("summary", &[]);
    html.text(&heading(turn));
    html.element("span", "soft", &facts(turn));
    html.close("summary");
    html.newline();
    for step in &turn.steps {
        self::step(html, step);
    }
    html.close("details");
    html.newline();
}

pub(super) fn heading(turn: &ReportTurn) -> String {
    if turn.number == 0 {
        return "Before the first prompt".to_owned();
    }
    let prompt = turn.steps.iter().find_map(|step| match &step.kind {
        StepKind::Prompt(text) => Some(shorten(first_line(text), LINE)),
        _ => None,
    });
    format!("Turn {}: {}", turn.number, prompt.unwrap_or_default())
}

pub(super) fn facts(turn: &ReportTurn) -> String {
    let calls = turns::calls(std::slice::from_ref(turn)).count();
    let denied = turns::calls(std::slice::from_ref(turn)).filter(|call| call.end == CallEnd::Denied).count();
    let mut facts = vec![duration(turn.ended_at - turn.begun_at), counted(calls, "call", "calls")];
    if denied > 0 {
        facts.push(format!("{denied} denied"));
    }
    if let Some(reason) = turn.stop {
        facts.push(format!("ended: {}", word(&reason)));
    }
    format!(" — {}", facts.join(", "))
}

/// The protocol's word for a value.
fn word(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).ok();
    value.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn step(html: &mut Html, step: &ReportStep) {
    // Requests are in the plot.
    if matches!(step.kind, StepKind::Usage(_)) {
        return;
    }
    html.open("div", &[("class", &classes(&step.kind))]);
    let time = time_text(step.at);
    html.element("span", "soft", time.split_once(' ').map_or(time.as_str(), |(_, time)| time));
    html.open("div", &[]);
    body(html, &step.kind);
    html.close("div");
    html.close("div");
    html.newline();
}

/// Classes of a step, by which the page's buttons choose, too.
fn classes(kind: &StepKind) -> String {
    let mut classes = vec!["step"];
    match kind {
        StepKind::Prompt(_) => classes.push("you"),
        StepKind::Thought(_) => classes.push("thought"),
        StepKind::Undone { .. } => classes.push("change"),
        StepKind::Call(call) => {
            classes.push("call");
            let is_change = |content: &CallContent| !matches!(content, CallContent::Text(_));
            if call.end == CallEnd::Completed && call.contents.iter().any(is_change) {
                classes.push("change");
            }
            // The class of a call that simply ended well.
            if state(call).0 != "ok" {
                classes.push("stopped");
            }
        }
        _ => {}
    }
    classes.join(" ")
}

fn body(html: &mut Html, kind: &StepKind) {
    match kind {
        StepKind::Prompt(text) | StepKind::Answer(text) => html.element("p", "", text.trim()),
        StepKind::Thought(text) => folded(html, "Thought", text),
        StepKind::Notice(kind, text) => {
            let (class, name) = match kind {
                NoticeKind::Error => ("bad", "Error"),
                NoticeKind::Warning => ("ask", "Warning"),
                NoticeKind::Message | NoticeKind::Info => ("", "Notice"),
            };
            html.element("p", class, &format!("{name}: {}", text.trim()));
        }
        StepKind::NoteToModel(text) => folded(html, "Note to the model", text),
        StepKind::Summary(text) => folded(html, "The older part was summarised", text),
        StepKind::Call(call) => self::call(html, call),
        StepKind::Plan(entries) => {
            html.open("ul", &[]);
            for (is_done, text) in entries {
                html.element("li", "", &format!("{} {text}", if *is_done { "☑" } else { "☐" }));
            }
            html.close("ul");
        }
        StepKind::ModeChange { from, to, source } => {
            let by = source.as_ref().map(|source| format!(", by {}", source.replace('_', " ")));
            html.element("p", "", &format!("Mode: {from} → {to}{}", by.unwrap_or_default()));
        }
        StepKind::Switch(switch) => self::switch(html, switch),
        StepKind::Model(model) => html.element("p", "", &format!("Model: {model}")),
        StepKind::Agent(agent) => html.element("p", "", &format!("Agent: {agent}")),
        StepKind::Undone { turn, files } => {
            html.element("p", "", &format!("Undone: turn {turn}: {}", files.join(", ")));
        }
        StepKind::Usage(_) => {}
    }
}

fn switch(html: &mut Html, switch: &SwitchOutcome) {
    let SwitchOutcome { from, to, analysis, outcome } = switch;
    let text = format!("The model asked for another mode: {from} → {to} ({})", outcome.replace('_', " "));
    html.element("p", "", &text);
    if !analysis.trim().is_empty() {
        folded(html, "Its reasons", analysis);
    }
}

fn folded(html: &mut Html, name: &str, text: &str) {
    html.open("details", &[]);
    html.open("summary", &[]);
    html.text(&format!("{name}: {}", shorten(first_line(text), LINE)));
    html.close("summary");
    html.element("p", "", text.trim_end());
    html.close("details");
}

fn call(html: &mut Html, call: &ReportCall) {
    // An external agent chooses its ids, which must not be those of the page.
    html.open("details", &[("id", &format!("call-{}", call.id))]);
    html.open("summary", &[]);
    html.text(&shorten(first_line(&without_code_spans(&call.title)), LINE));
    let (class, state) = state(call);
    html.element("span", &format!("tag {class}"), &state);
    html.close("summary");
    html.open("p", &[("class", "soft")]);
    html.text(&decision(call));
    html.close("p");
    if !call.arguments.is_empty() {
        html.element("pre", "", &call.arguments);
    }
    for content in &call.contents {
        match content {
            CallContent::Text(text) => html.element("pre", "", text.trim_end()),
            CallContent::Operation(text) => html.element("p", "", text),
            CallContent::Diff(path, text) => diff(html, path, text),
        }
    }
    html.close("details");
}

/// Class and words of a call's end.
fn state(call: &ReportCall) -> (&'static str, String) {
    match (call.end, call.exit_code) {
        (CallEnd::Denied, _) => ("bad", format!("denied: {}", call.denied.as_deref().unwrap_or("mode"))),
        // The title has the exit code.
        (_, Some(code)) if code != 0 => ("bad", "failed".to_owned()),
        (CallEnd::Completed, _) if was_asked(call) => ("ask", "you allowed it".to_owned()),
        (CallEnd::Completed, _) => ("ok", "done".to_owned()),
        (CallEnd::Failed, _) => ("bad", "failed".to_owned()),
        (CallEnd::Cancelled, _) => ("ask", "cancelled".to_owned()),
        (CallEnd::Running, _) => ("ask", "no end recorded".to_owned()),
    }
}

fn decision(call: &ReportCall) -> String {
    let mut parts = Vec::new();
    if !call.tool.is_empty() {
        parts.push(call.tool.clone());
    }
    parts.push(call.id.clone());
    parts.extend(call.consent.map(|consent| {
        match consent {
            RecordedConsent::Mode => "allowed by mode and rules",
            RecordedConsent::User => "asked, and you allowed it",
            RecordedConsent::Remembered => "allowed by a remembered answer of yours",
            RecordedConsent::ExternalAgent => "reported by the external agent",
        }
        .to_owned()
    }));
    parts.extend(call.denied.as_ref().map(|rule| format!("denied by the rule {rule}")));
    parts.extend(call.refused_by.iter().map(|rule| format!("changes refused by the rule {rule}")));
    parts.extend(call.entry.map(|number| format!("entry {number} of the audit log")));
    parts.join(" · ")
}

fn diff(html: &mut Html, path: &str, text: &str) {
    html.open("p", &[]);
    html.element("code", "", path);
    html.close("p");
    html.open("pre", &[("class", "diff")]);
    // The path stands above.
    for line in text.lines().skip(2) {
        let class = match line.as_bytes().first() {
            Some(b'+') => "add",
            Some(b'-') => "del",
            Some(b'@') => "hunk",
            _ => "same",
        };
        html.element("span", class, line);
    }
    html.close("pre");
}
