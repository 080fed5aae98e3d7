//! Makes a prompt of an approved plan.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use super::Cli;
use crate::bounded_file;
use crate::text::one_line;

const MAX_FILE: u64 = 4 * 1024 * 1024;

const TASK: &str = "The user approved the plan below. Carry it out, and mark its steps with todo as you go. Where the \
                    code differs from the plan's assumptions, adapt the plan and say so.";

pub(super) fn apply(cli: &mut Cli) -> anyhow::Result<()> {
    let Some(file) = &cli.from_plan else { return Ok(()) };
    if cli.prompt.as_deref() == Some("-") {
        bail!("with --from-plan, piped text is appended without `-p -`");
    }
    let prompt = prompt(file, cli.prompt.as_deref());
    cli.prompt = Some(prompt.with_context(|| format!("--from-plan {}", file.display()))?);
    Ok(())
}

fn prompt(file: &Path, more: Option<&str>) -> anyhow::Result<String> {
    let text = match bounded_file::read_own_text(file, MAX_FILE) {
        Ok(text) => text,
        Err(error) => bail!("{error}"),
    };
    let plan = plan(&text)?;
    // The first line becomes the title of the session.
    let mut prompt = format!("Plan: {}\n\n{TASK}\n\n<plan>\n{}\n</plan>", heading(&plan), plan.trim());
    if let Some(more) = more {
        prompt.extend(["\n\n", more]);
    }
    Ok(prompt)
}

/// The first words of a plan.
fn heading(plan: &str) -> String {
    let mut lines = plan.lines().map(|line| line.trim_start_matches(['#', ' ']));
    one_line(lines.find(|line| !line.trim().is_empty()).unwrap_or_default(), 80)
}

/// Returns the text itself, or the plan in the result of a headless run.
fn plan(text: &str) -> anyhow::Result<String> {
    // With `--output stream-json`, the result is the last line.
    let last = text.trim_end().lines().next_back().unwrap_or_default();
    let parsed = serde_json::from_str::<Value>(last).ok();
    let result = parsed.filter(|value| value["type"].is_string());
    let plan = match &result {
        None => text,
        Some(result) if result["type"] != "result" => {
            bail!("its last line is no result of a run, which `--output json` prints")
        }
        Some(result) => match (&result["error"], &result["plan"], &result["lastMessage"]) {
            (Value::String(error), ..) => bail!("the run failed: {error}"),
            (_, Value::String(plan), _) | (_, _, Value::String(plan)) => plan,
            _ => "",
        },
    };
    if plan.trim().is_empty() {
        bail!("it has no plan");
    }
    Ok(plan.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_comes_from_the_first_line_of_the_plan() {
        for (plan, expected) in [("\n# A cache\n\nText", "A cache"), ("1. Do it", "1. Do it"), ("", "")] {
            assert_eq!(heading(plan), expected);
        }
    }

    #[test]
    fn plan_is_the_text_or_a_member_of_the_result() {
        let result = |rest: &str| format!("{{\"type\":\"result\",\"error\":null,{rest}}}\n");
        for (text, expected) in [
            ("1. Do it\n".to_owned(), Some("1. Do it\n")),
            ("{\"steps\": []}".to_owned(), Some("{\"steps\": []}")),
            ("{\"type\":\"update\"}\n".to_owned(), None),
            (result("\"plan\":\"P\",\"lastMessage\":\"L\""), Some("P")),
            (result("\"plan\":null,\"lastMessage\":\"L\""), Some("L")),
            (format!("{{\"type\":\"update\"}}\n{}", result("\"plan\":\"P\"")), Some("P")),
            (result("\"plan\":null,\"lastMessage\":\" \""), None),
            ("{\"type\":\"result\",\"error\":\"no key\",\"plan\":\"P\"}".to_owned(), None),
            ("\n".to_owned(), None),
        ] {
            assert_eq!(plan(&text).ok().as_deref(), expected, "{text}");
        }
    }
}
