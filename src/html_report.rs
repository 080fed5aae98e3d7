//! A session as one page of HTML, for people: modes, turns, calls with their decisions, changes, tokens. Pure.
//!
//! The page has no script and loads nothing: its content security policy forbids both, so text of a model or a file
//! can do nothing in it. The same record gives the same bytes.

use std::collections::BTreeMap;

use crate::audit::AuditReport;
use crate::ids::time_text;
use crate::store::events::StoredEvent;
use crate::store::evidence::Evidence;
use crate::store::sessions::StoredSession;
use crate::text::{counted, grouped};
use crate::workspace::{self, Changed};
use html::Html;
use turns::{CallEnd, ReportTurn};

mod comparison;
mod html;
mod plots;
mod steps;
mod turns;

const STYLE: &str = include_str!("html_report/style.css");

/// Turns of longer sessions are closed when the page opens.
const OPEN_STEPS: usize = 120;

/// Sessions with more turns begin with a list of them.
const UNLISTED_TURNS: usize = 5;

/// Everything that a page shows of a session.
#[derive(Debug)]
pub struct SessionRecord {
    pub session: StoredSession,
    pub events: Vec<StoredEvent>,
    pub evidence: Evidence,
    pub audit: AuditReport,
    /// By turn, also of turns that were undone.
    pub changes: BTreeMap<u64, Vec<Changed>>,
    /// Sentences about changes that cannot be undone, by turn.
    pub uncovered: Vec<(u64, String)>,
}

/// Sums over a session.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    turns: usize,
    requests: usize,
    calls: usize,
    denied: usize,
    failed: usize,
    asked: usize,
    /// Acts of an external agent or of a program.
    refused: usize,
    input: u64,
    cached: u64,
    output: u64,
    /// Billionths of the provider's credits. `None` if no request reported them.
    cost: Option<u64>,
    changed_files: usize,
    duration_ms: i64,
}

#[derive(Debug)]
struct TotalCell {
    name: &'static str,
    value: String,
    note: Option<String>,
}

/// The page of a session.
pub fn page(record: &SessionRecord) -> String {
    let turns = turns::turns(record);
    let mut html = Html::default();
    begin(&mut html, &title(record));
    header(&mut html, record);
    figures(&mut html, &Totals::of(record, &turns));
    plots::mode_strip(&mut html, record, &turns);
    plots::tokens(&mut html, &turns);
    html.element("h2", "", "Turns");
    filters(&mut html);
    contents(&mut html, &turns);
    let is_short = turns.iter().map(|turn| turn.steps.len()).sum::<usize>() <= OPEN_STEPS;
    for turn in &turns {
        steps::turn(&mut html, turn, is_short);
    }
    changed_files(&mut html, record, &turns);
    audit(&mut html, &record.audit);
    end(html)
}

/// A page with two sessions side by side.
pub fn compare(left: &SessionRecord, right: &SessionRecord) -> String {
    let mut html = Html::default();
    begin(&mut html, "Comparison of two sessions");
    comparison::write(&mut html, left, right);
    end(html)
}

fn begin(html: &mut Html, title: &str) {
    html.constant(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n",
    );
    html.element("title", "", title);
    html.constant("\n<style>\n");
    html.constant(STYLE);
    html.constant("</style>\n<main>\n");
}

fn end(mut html: Html) -> String {
    html.constant("</main>\n</html>\n");
    html.into_page()
}

fn title(record: &SessionRecord) -> String {
    record.session.title.clone().unwrap_or_else(|| "A session without a prompt".to_owned())
}

fn header(html: &mut Html, record: &SessionRecord) {
    let session = &record.session;
    html.element("h1", "", &title(record));
    html.open("p", &[("class", "soft")]);
    html.element("code", "", &session.id.0);
    html.text(&format!(
        " in {} mode, in {}, from {} to {} UTC",
        session.mode.as_deref().unwrap_or("an unknown"),
        session.cwd.display(),
        time_text(session.created_at),
        time_text(session.updated_at)
    ));
    if let Some(agent) = &session.agent {
        html.text(&format!(", agent {agent}"));
    }
    if let Some(parent) = &session.parent {
        html.text(&format!(", started by session {parent}"));
    }
    html.close("p");
    html.newline();
}

fn figures(html: &mut Html, totals: &Totals) {
    html.open("div", &[("class", "figures")]);
    for TotalCell { value, name, note } in totals.cells() {
        html.open("div", &[]);
        html.element("b", "", &value);
        html.element(
            "span",
            "soft",
            &format!("{name}{}", note.map(|note| format!(", {note}")).unwrap_or_default()),
        );
        html.close("div");
    }
    html.close("div");
    html.newline();
}

impl Totals {
    fn of(record: &SessionRecord, turns: &[ReportTurn]) -> Self {
        let usages = turns::usages(turns);
        let mut totals = Self {
            turns: turns.iter().filter(|turn| turn.number > 0).count(),
            requests: usages.len(),
            changed_files: files(record).len(),
            duration_ms: turns.iter().map(|turn| turn.ended_at - turn.begun_at).sum(),
            ..Self::default()
        };
        for usage in usages {
            totals.input += usage.used.saturating_sub(usage.output);
            totals.cached += usage.cache_read;
            totals.output += usage.output;
            totals.cost = usage.cost.map(|cost| totals.cost.unwrap_or(0) + cost).or(totals.cost);
        }
        for call in turns::calls(turns) {
            totals.calls += 1;
            totals.denied += usize::from(call.end == CallEnd::Denied);
            totals.failed += usize::from(call.end == CallEnd::Failed);
            totals.asked += usize::from(steps::was_asked(call));
        }
        totals.refused = record.evidence.refused_acts().values().sum();
        totals
    }

    /// Without requests, those of an external agent are not known.
    fn cells(&self) -> Vec<TotalCell> {
        let number = |value: u64| grouped(usize::try_from(value).unwrap_or(usize::MAX));
        let mut cells = vec![
            TotalCell::new("turns", grouped(self.turns)),
            TotalCell::new("in turns", duration(self.duration_ms)),
            TotalCell::new("calls", grouped(self.calls)),
            TotalCell::new("denied calls", grouped(self.denied)),
            TotalCell::new("refused acts", grouped(self.refused)),
            TotalCell::new("calls that you allowed", grouped(self.asked)),
            TotalCell::new("failed calls", grouped(self.failed)),
            TotalCell::new("changed files", grouped(self.changed_files)),
        ];
        if self.requests > 0 {
            let cached = Some(format!("{} cached", share(self.cached, self.input)));
            cells.extend([
                TotalCell::new("model requests", grouped(self.requests)),
                TotalCell { note: cached, ..TotalCell::new("input tokens", number(self.input)) },
                TotalCell::new("output tokens", number(self.output)),
            ]);
        }
        cells.extend(self.cost.map(|cost| TotalCell::new("credits", credits(cost))));
        cells
    }
}

impl TotalCell {
    fn new(name: &'static str, value: String) -> Self {
        Self { name, value, note: None }
    }
}

/// Buttons that the style sheet reads, because the page has no script.
fn filters(html: &mut Html) {
    html.constant(
        "<fieldset>\n<legend>Show</legend>\n\
         <label><input type=\"radio\" name=\"show\" checked>everything</label>\n\
         <label><input type=\"radio\" name=\"show\" id=\"show-calls\">calls</label>\n\
         <label><input type=\"radio\" name=\"show\" id=\"show-changes\">changes and undo</label>\n\
         <label><input type=\"radio\" name=\"show\" id=\"show-stopped\">what was denied, asked, cancelled or \
         failed</label>\n</fieldset>\n",
    );
}

fn contents(html: &mut Html, turns: &[ReportTurn]) {
    if turns.len() <= UNLISTED_TURNS {
        return;
    }
    html.open("nav", &[]);
    html.open("details", &[]);
    html.element("summary", "", &format!("{} turns", turns.len()));
    html.open("ul", &[]);
    for turn in turns {
        html.open("li", &[]);
        html.open("a", &[("href", &format!("#turn-{}", turn.number))]);
        html.text(&steps::heading(turn));
        html.close("a");
        html.element("span", "soft", &steps::facts(turn));
        html.close("li");
        html.newline();
    }
    html.close("ul");
    html.close("details");
    html.close("nav");
    html.newline();
}

fn share(part: u64, whole: u64) -> String {
    format!("{} %", part.saturating_mul(100).checked_div(whole).unwrap_or_default())
}

fn credits(billionths: u64) -> String {
    format!("{}.{:04}", billionths / 1_000_000_000, billionths % 1_000_000_000 / 100_000)
}

fn duration(ms: i64) -> String {
    match ms {
        ..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        _ => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1_000),
    }
}

/// The changed paths with the last turn that changed each.
fn files(record: &SessionRecord) -> BTreeMap<String, u64> {
    let changes = record.changes.iter();
    let files = changes.flat_map(|(turn, changed)| {
        workspace::changed_files(changed).into_iter().map(|path| {
            (path.strip_prefix(&record.session.cwd).unwrap_or(&path).display().to_string(), *turn)
        })
    });
    files.collect()
}

fn changed_files(html: &mut Html, record: &SessionRecord, turns: &[ReportTurn]) {
    html.element("h2", "", "Changed files");
    let files = files(record);
    let undone = turns::undone(turns);
    if files.is_empty() {
        html.element("p", "soft", "No file is recorded as changed.");
    } else {
        html.constant("<table><tr><th>File<th>Last changed in turn</tr>\n");
        for (file, turn) in &files {
            html.open("tr", &[]);
            html.element("td", "", file);
            html.open("td", &[]);
            html.open("a", &[("href", &format!("#turn-{turn}"))]);
            html.text(&turn.to_string());
            html.close("a");
            html.text(if undone.contains(turn) { ", undone" } else { "" });
            html.close("td");
            html.close("tr");
            html.newline();
        }
        html.close("table");
        html.open("p", &[("class", "soft")]);
        html.element("code", "", &format!("modegate sessions undo {} --turn N", record.session.id));
        html.text(" restores the files of a turn, unless they have changed since.");
        html.close("p");
    }
    for (turn, text) in &record.uncovered {
        html.element("p", "ask", &format!("Turn {turn}, not covered by undo: {text}"));
    }
}

fn audit(html: &mut Html, report: &AuditReport) {
    html.element("h2", "", "Audit");
    match (&report.head, report.findings.is_empty()) {
        (Some(head), true) => {
            let entries = counted(head.length, "entry", "entries");
            html.element("p", "ok", &format!("The audit log is valid: {entries}, the last {}.", head.hash));
        }
        _ => html.element("p", "bad", "The audit found something wrong."),
    }
    html.open("ul", &[]);
    for finding in &report.findings {
        html.element("li", "bad", finding);
    }
    for key in &report.signatures.keys {
        html.element("li", "ok", &format!("signed up to entry {} by {key}", report.signatures.last));
    }
    for note in &report.notes {
        html.element("li", "soft", note);
    }
    html.close("ul");
    html.newline();
}
