//! Two sessions side by side: their figures, tools, files and turns.

use std::collections::BTreeSet;

use super::html::Html;
use super::turns::{self, ReportTurn};
use super::{SessionRecord, TotalCell, Totals, files, steps, title};

pub(super) fn write(html: &mut Html, left: &SessionRecord, right: &SessionRecord) {
    let both = [left, right];
    let turns = both.map(turns::turns);
    html.element("h1", "", "Comparison of two sessions");
    html.constant("<table><tr><th>");
    for record in both {
        html.open("th", &[("class", "number")]);
        html.text(&title(record));
        html.close("th");
    }
    html.close("tr");
    row(html, "session", both.map(|record| record.session.id.to_string()));
    row(html, "mode", both.map(|record| record.session.mode.clone().unwrap_or_default()));
    let totals = [Totals::of(left, &turns[0]), Totals::of(right, &turns[1])];
    figures(html, &totals);
    tools(html, &turns);
    html.close("table");
    html.element("h2", "", "Changed files");
    html.constant("<table>\n");
    let paths = both.map(files);
    let all: BTreeSet<&String> = paths.iter().flat_map(|files| files.keys()).collect();
    for path in all {
        row(html, path, [0, 1].map(|side| mark(paths[side].contains_key(path))));
    }
    html.close("table");
    html.element("h2", "", "Turns");
    html.constant("<div class=\"columns\">\n");
    for turns in &turns {
        html.open("div", &[]);
        for turn in turns {
            steps::turn(html, turn, false);
        }
        html.close("div");
    }
    html.close("div");
}

fn mark(is_changed: bool) -> String {
    if is_changed { "changed" } else { "–" }.to_owned()
}

/// A side has no row for what its session has no figures of.
fn figures(html: &mut Html, totals: &[Totals; 2]) {
    let [left, right] = [totals[0].cells(), totals[1].cells()];
    let names: Vec<_> =
        left.iter().chain(right.iter().filter(|cell| !left.iter().any(|it| it.name == cell.name))).collect();
    for TotalCell { name, .. } in names {
        let value =
            |side: &[TotalCell]| side.iter().find(|cell| cell.name == *name).map(|cell| cell.value.clone());
        row(html, name, [value(&left), value(&right)].map(Option::unwrap_or_default));
    }
}

fn tools(html: &mut Html, turns: &[Vec<ReportTurn>; 2]) {
    let counts = [turns::calls_by_tool(&turns[0]), turns::calls_by_tool(&turns[1])];
    let tools: BTreeSet<&String> = counts.iter().flat_map(|counts| counts.keys()).collect();
    for tool in tools {
        let calls = [0, 1].map(|side| counts[side].get(tool).copied().unwrap_or_default().to_string());
        row(html, &format!("calls of {tool}"), calls);
    }
}

fn row(html: &mut Html, name: &str, values: [String; 2]) {
    html.open("tr", &[]);
    html.element("th", "", name);
    for value in values {
        html.element("td", "number", &value);
    }
    html.close("tr");
    html.newline();
}
