//! The tables of `docs/reference/telemetry.md`, from the names in the code.

use std::fmt::Write;
use std::fs;

use modegate::otlp::conventions::{self, ATTRIBUTES, AUDIT_FACTS, AUDIT_MEMBERS, ERRORS, METRICS};
use modegate::otlp::telemetry_settings::{SECRET_VARIABLES, VARIABLES};

use super::{check_table, root};

const PAGE: &str = "docs/reference/telemetry.md";

/// Checks a table with two columns.
fn check(head: &str, rows: impl Iterator<Item = (String, String)>) {
    let mut table = head.to_owned();
    for (name, meaning) in rows {
        writeln!(table, "| `{name}` | {meaning} |").unwrap();
    }
    check_table(PAGE, head, &table);
}

#[test]
fn telemetry_page_has_every_name() {
    let attributes = ATTRIBUTES.iter().map(|attribute| {
        let mark = if attribute.is_content { "; on request" } else { "" };
        (attribute.name.to_owned(), format!("{}{mark}", attribute.meaning))
    });
    check("| attribute | value |\n| --- | --- |\n", attributes);
    let errors = ERRORS.iter().map(|(value, meaning)| ((*value).to_owned(), (*meaning).to_owned()));
    check("| value | failure |\n| --- | --- |\n", errors);
    let of = |names: &'static [&'static str], place: &'static str| {
        names.iter().map(move |name| ((*name).to_owned(), place.to_owned()))
    };
    let members = of(&AUDIT_MEMBERS, "the entry").chain(of(&AUDIT_FACTS, "the facts of its decision"));
    check("| member | in |\n| --- | --- |\n", members);
    let head = "| metric | unit | value |\n| --- | --- | --- |\n";
    let mut table = head.to_owned();
    for metric in METRICS {
        let kind = if metric.bounds.is_empty() { "counter" } else { "histogram" };
        writeln!(table, "| `{}` | `{}` | {kind}: {} |", metric.name, metric.unit, metric.meaning).unwrap();
    }
    check_table(PAGE, head, &table);
}

#[test]
fn telemetry_page_names_the_version_and_every_variable() {
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    assert!(page.contains(&format!("conventions {},", conventions::VERSION)));
    for name in VARIABLES.iter().chain(&SECRET_VARIABLES) {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}
