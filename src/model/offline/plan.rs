//! The plan that the findings allow: where things are, where a change would go, what to check, what is open. Pure.

use std::fmt::Write;

use super::findings::Findings;
use super::words::Word;

/// Files in the plan.
const FILES: usize = 8;

/// Places of one file.
const PLACES: usize = 4;

/// Characters of a line that is quoted.
const QUOTE: usize = 120;

/// A part of a file that was read.
pub struct Excerpt<'a> {
    /// As the search names it.
    pub path: &'a str,
    /// Its first line, from 1.
    pub first: u64,
    /// The lines.
    pub text: &'a str,
}

/// The plan as Markdown.
pub fn write(prompt: &str, words: &[Word], findings: &Findings, excerpts: &[Excerpt<'_>]) -> String {
    let mut plan = Markdown::default();
    plan.line(format_args!("# Plan: {}", one_line(prompt)));
    let searched: Vec<_> = words.iter().map(|word| format!("`{}`", word.text)).collect();
    let searched = searched.join(", ");
    if findings.is_empty() {
        plan.line(format_args!("\nI searched this folder for {searched} and found nothing."));
        plan.line(format_args!(
            "\n## Open questions\n\n- Is there another name for it? Is this the right folder?"
        ));
        return plan.0;
    }
    plan.line(format_args!("\nSearched for {searched}.\n\n## What is there\n"));
    for (path, places) in findings.files(FILES, PLACES) {
        let Some((best, others)) = places.split_first() else { continue };
        plan.line(format_args!("- `{path}:{}` `{}`", best.line, quote(&best.text)));
        for place in others {
            plan.line(format_args!("  - line {}: `{}`", place.line, quote(&place.text)));
        }
    }
    plan.line(format_args!("\n## Where a change would go\n"));
    for (number, place) in findings.places().take(3).enumerate() {
        let role = if number == 0 { "begin here; it matches best" } else { "then look here" };
        plan.line(format_args!("{}. `{}:{}`: {role}.", number + 1, place.path, place.line));
    }
    for Excerpt { path, first, text } in excerpts.iter().take(1) {
        let lines = || text.lines().filter(|line| !line.starts_with("[Lines "));
        let last = first + (lines().count() as u64).saturating_sub(1);
        plan.line(format_args!("\n`{path}`, lines {first}-{last}:\n\n```"));
        lines().for_each(|line| plan.line(format_args!("{}", line.replace("```", "'''"))));
        plan.line(format_args!("```"));
    }
    plan.line(format_args!("\n## How to check\n"));
    let tests: Vec<_> = findings.tests().take(3).map(|path| format!("`{path}`")).collect();
    if tests.is_empty() {
        plan.line(format_args!("- I found no test that mentions these words: write one first."));
    } else {
        plan.line(format_args!("- Run and extend {}.", tests.join(", ")));
    }
    plan.line(format_args!("\n## Open questions\n"));
    plan.line(format_args!(
        "- Which of the places above is meant? I match words and do not know what they mean."
    ));
    plan.line(format_args!("- What is to be different afterwards, and how would one notice?"));
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
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    quote(&line)
}

fn quote(text: &str) -> String {
    let text = text.replace('`', "'");
    match text.char_indices().nth(QUOTE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
