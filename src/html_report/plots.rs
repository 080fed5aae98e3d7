//! Plots as SVG: the modes over time with the calls, and the tokens of each model request.

use super::html::Html;
use super::turns::{self, CallEnd, ReportTurn, StepKind};
use super::{SessionRecord, credits, share, steps};
use crate::model::Usage;
use crate::text::grouped;

/// Units of a plot's width. The page scales it.
const WIDTH: i64 = 1_000;

/// Number of colours for modes.
const COLOURS: usize = 5;

/// Requests of one plot. Neighbours of a longer session share a bar, which shows the largest of them.
const BARS: usize = 250;

const BAR_HEIGHT: u64 = 90;

/// Maximum width of a bar with the gap to the next one.
const MAX_STEP: i64 = 40;

/// A bar for each mode, as long as it lasted, above a tick for each call.
pub(super) fn mode_strip(html: &mut Html, record: &SessionRecord, turns: &[ReportTurn]) {
    let spans = turns::mode_spans(record);
    let (Some((begin, _)), Some(end)) = (spans.first(), turns.iter().map(|turn| turn.ended_at).max()) else {
        return;
    };
    let length = (end - begin).max(1);
    let x = |at: i64| ((at - begin).clamp(0, length) * WIDTH) / length;
    html.element("h2", "", "Modes and calls over time");
    let label =
        format!("Modes: {}", spans.iter().map(|(_, mode)| mode.as_str()).collect::<Vec<_>>().join(", then "));
    open_plot(html, 46, &label);
    let mut names = vec!["plan", "ask", "code"];
    for (at, (from, mode)) in spans.iter().enumerate() {
        let to = spans.get(at + 1).map_or(end, |(next, _)| *next);
        let colour = names.iter().position(|name| name == mode).unwrap_or_else(|| {
            names.push(mode);
            names.len() - 1
        });
        let class = format!("m{}", colour % COLOURS);
        rectangle(html, &class, [x(*from), 0, (x(to) - x(*from)).max(2), 18], mode);
        if x(to) - x(*from) > 60 {
            html.open("text", &[("x", &(x(*from) + 6).to_string()), ("y", "13")]);
            html.text(mode);
            html.close("text");
        }
    }
    for step in turns.iter().flat_map(|turn| &turn.steps) {
        let StepKind::Call(call) = &step.kind else { continue };
        let class = match call.end {
            CallEnd::Denied => "tick bad",
            _ if steps::was_asked(call) => "tick ask",
            _ => "tick",
        };
        rectangle(html, class, [x(step.at).min(WIDTH - 2), 24, 2, 18], &call.title);
    }
    html.close("svg");
    html.element("p", "soft", "Each tick is a call; red ones were denied, yellow ones asked you.");
}

/// The input of each model request, with its cached part.
pub(super) fn tokens(html: &mut Html, turns: &[ReportTurn]) {
    let usages = turns::usages(turns);
    let most = usages.iter().map(|usage| usage.used).max().unwrap_or(0);
    if most == 0 {
        return;
    }
    let per_bar = usages.len().div_ceil(BARS).max(1);
    let bars: Vec<_> =
        usages.chunks(per_bar).filter_map(|part| part.iter().max_by_key(|usage| usage.used)).collect();
    html.element("h2", "", "Tokens of each model request");
    let label = format!("{} model requests, at most {} tokens", usages.len(), grouped(clamped(most)));
    open_plot(html, 100, &label);
    let step = (WIDTH / i64::try_from(bars.len()).unwrap_or(WIDTH).max(1)).min(MAX_STEP);
    for (at, usage) in bars.into_iter().enumerate() {
        let x = i64::try_from(at).unwrap_or(0) * step;
        let height = |tokens: u64| i64::try_from(tokens.saturating_mul(BAR_HEIGHT) / most).unwrap_or(0);
        let title = cells(usage).map(|(value, name)| format!("{value} {name}")).join(", ");
        let (all, cached) = (height(usage.used), height(usage.cache_read.min(usage.used)));
        let width = (step - 1).max(1);
        rectangle(html, "bar", [x, 95 - all, width, all], &title);
        rectangle(html, "cached", [x, 95 - cached, width, cached], &title);
    }
    html.constant("<line class=\"axis\" x1=\"0\" y1=\"95.5\" x2=\"1000\" y2=\"95.5\"></line>");
    html.close("svg");
    html.element("p", "soft", &format!("{label}. The lighter part came from the provider's cache."));
    requests(html, turns);
}

/// The plot as figures, for readers of print and of screens without a pointer.
fn requests(html: &mut Html, turns: &[ReportTurn]) {
    html.open("details", &[("class", "requests")]);
    html.element("summary", "", "Each request");
    html.constant("<table><tr><th>Turn");
    for (_, name) in cells(&Usage::default()) {
        html.open("th", &[("class", "number")]);
        html.text(name);
        html.close("th");
    }
    html.constant("</tr>\n");
    for turn in turns {
        for usage in turns::usages(std::slice::from_ref(turn)) {
            html.open("tr", &[]);
            html.element("td", "", &turn.number.to_string());
            for (value, _) in cells(&usage) {
                html.element("td", "number", &value);
            }
            html.close("tr");
            html.newline();
        }
    }
    html.close("table");
    html.close("details");
    html.newline();
}

/// Values of a request with their names.
fn cells(usage: &Usage) -> [(String, &'static str); 4] {
    let cached = format!("{} ({})", grouped(clamped(usage.cache_read)), share(usage.cache_read, usage.used));
    [
        (grouped(clamped(usage.used)), "tokens"),
        (cached, "from the cache"),
        (grouped(clamped(usage.output)), "output"),
        (usage.cost.map_or_else(|| "–".to_owned(), credits), "credits"),
    ]
}

fn clamped(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn open_plot(html: &mut Html, height: i64, label: &str) {
    let view = format!("0 0 {WIDTH} {height}");
    html.open("svg", &[("class", "strip"), ("viewBox", &view), ("role", "img"), ("aria-label", label)]);
}

/// `place` is left, top, width and height.
fn rectangle(html: &mut Html, class: &str, place: [i64; 4], title: &str) {
    let [x, y, width, height] = place.map(|number| number.to_string());
    html.open("rect", &[("class", class), ("x", &x), ("y", &y), ("width", &width), ("height", &height)]);
    html.element("title", "", title);
    html.close("rect");
}
