//! Writes a plan from the findings: places, a starting point for changes, checks and open questions. Pure.

use std::fmt::Write;

use super::findings::Findings;
use super::keywords::PromptWord;
use super::unnumbered;

use crate::text::shorten;

const FILES: usize = 8;

const PLACES: usize = 4;

const EXCERPTS: usize = 2;

const QUOTE: usize = 120;

pub(super) struct PlanExcerpt<'a> {
    pub path: &'a str,
    pub first: u64,
    pub text: &'a str,
}

pub(super) struct Material<'a> {
    pub prompt: &'a str,
    pub words: &'a [PromptWord],
    pub findings: &'a Findings,
    pub excerpts: &'a [PlanExcerpt<'a>],
    pub unfinished: &'a [String],
}

pub(super) fn write(material: &Material<'_>) -> String {
    let Material { prompt, words, findings, excerpts, unfinished } = material;
    let mut plan = Markdown::default();
    plan.line(format_args!("# Plan: {}", one_line(prompt)));
    let searched: Vec<_> = words.iter().map(|word| format!("`{}`", word.text)).collect();
    let searched = searched.join(", ");
    if findings.is_empty() && excerpts.is_empty() {
        plan.line(format_args!("\nI searched this folder for {searched} and found nothing."));
        plan.line(format_args!(
            "\n## Open questions\n\n- Is there another name for it? Is this the right folder?"
        ));
        return plan.0;
    }
    if !words.is_empty() {
        plan.line(format_args!("\nSearched for {searched}."));
    }
    if !unfinished.is_empty() {
        let names = unfinished.join(", ");
        plan.line(format_args!("The search for {names} is incomplete, so the best place may be missing."));
    }
    if !findings.is_empty() {
        plan.line(format_args!("\n## What is there\n"));
    }
    for (path, places) in findings.files(FILES, PLACES) {
        let Some((best, others)) = places.split_first() else { continue };
        plan.line(format_args!("- `{path}:{}` {}", best.line, quote(&best.text)));
        for place in others {
            plan.line(format_args!("  - line {}: {}", place.line, quote(&place.text)));
        }
    }
    for PlanExcerpt { path, first, text } in excerpts.iter().take(EXCERPTS) {
        let lines: Vec<_> = text.lines().filter_map(unnumbered).collect();
        let last = first + (lines.len() as u64).saturating_sub(1);
        plan.line(format_args!("\n`{path}`, lines {first}-{last}:\n\n````"));
        for line in lines {
            plan.line(format_args!("{line}"));
        }
        plan.line(format_args!("````"));
    }
    plan.line(format_args!("\n## Where a change would go\n"));
    let excerpt_places = excerpts.iter().map(|excerpt| format!("`{}:{}`", excerpt.path, excerpt.first));
    let finding_places = findings.places().map(|place| format!("`{}:{}`", place.path, place.line));
    let places = if findings.is_empty() {
        excerpt_places.take(3).collect::<Vec<_>>()
    } else {
        finding_places.take(3).collect()
    };
    for (number, place) in places.iter().enumerate() {
        let role = if number == 0 { "begin here; it matches best" } else { "then look here" };
        plan.line(format_args!("{}. {place}: {role}.", number + 1));
    }
    plan.line(format_args!("\n## How to check\n"));
    let tests: Vec<_> = findings.tests().take(3).map(|path| format!("`{path}`")).collect();
    if tests.is_empty() {
        plan.line(format_args!(
            "- I found no test file that mentions these words; look for tests beside the code."
        ));
    } else {
        plan.line(format_args!("- Run and extend {}.", tests.join(", ")));
    }
    plan.line(format_args!("\n## Open questions\n"));
    plan.line(format_args!(
        "- Which of the places above is meant? I match words and do not know what they mean."
    ));
    plan.line(format_args!("- What should change, and how can the change be tested?"));
    plan.0
}

#[derive(Default)]
struct Markdown(String);

impl Markdown {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("writing to a string cannot fail");
    }
}

fn one_line(text: &str) -> String {
    let line = text.split_whitespace().take(QUOTE).collect::<Vec<_>>().join(" ");
    cut(&line)
}

fn quote(text: &str) -> String {
    let fence = if text.contains('`') { "`` " } else { "`" };
    format!("{fence}{}{}", cut(text), fence.chars().rev().collect::<String>())
}

fn cut(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).take(QUOTE + 1).collect();
    shorten(&text, QUOTE).into_owned()
}
