//! The exit codes in `docs/reference/cli.md`, from the help texts and from the one `match` that maps a headless run's
//! outcome.

use std::collections::BTreeMap;

use clap::Command;

use super::{Page, source};

/// The meanings of the outcomes of a headless run.
const OUTCOMES: [(&str, &str); 10] = [
    (
        "Done",
        "the turn ended; a denied call counts only until a later one does the same; in `plan`, an answer is enough",
    ),
    (
        "Failed",
        "an error, a slash command that failed, a limit of the model, an empty answer, or a run that is not recorded: the output has the reason",
    ),
    ("Denied", "the last attempt at something was denied; in `plan`: the answer is empty"),
    ("StepLimit", "the turn reached `--max-steps`, or the mode's `max_steps`"),
    ("TokenLimit", "the turn used more tokens than `--max-tokens`, or than its budget"),
    ("TimedOut", "the turn took longer than `--timeout`, or than its budget"),
    (
        "BudgetExceeded",
        "the turn cost more than `--max-cost`, or than its budget, or a budget of the session or the day is used up",
    ),
    (
        "Looping",
        "the model repeated the same calls with the same results, or only made calls that were denied",
    ),
    ("ChecksFailed", "checks that the run requires failed, did not run, or are not defined"),
    ("Interrupted", "SIGINT or SIGTERM cancelled the turn"),
];

const USAGE: &str =
    "wrong usage: an unknown option, mode or model, settings that cannot be used, or an empty prompt";

/// Adds the section. Panics if `modegate --help` lists other codes than the code returns.
pub(super) fn exit_codes(page: &mut Page, command: &Command) {
    page.heading(2, "Exit codes");
    page.paragraph("0 means success, 1 an error and 2 wrong usage, unless a table has another meaning.");
    page.heading(3, "Headless runs");
    let mut codes = outcomes();
    codes.push(("2".to_owned(), USAGE.to_owned()));
    codes.sort_by_key(|(code, _)| code.parse::<u8>().unwrap());
    let in_help: Vec<String> = codes_of(command).unwrap().into_iter().map(|(code, _)| code).collect();
    assert_eq!(in_help, codes.iter().map(|(code, _)| code.clone()).collect::<Vec<_>>(), "modegate --help");
    page.table(["code", "`modegate -p`"], codes.into_iter().map(|(code, meaning)| [code, meaning]));
    page.paragraph(
        "With `--output json`, the member `error` says why the code is not 0 ([JSON output](json-output.md)).",
    );
    page.heading(3, "Sessions with an editor");
    page.table(
        ["code", "`modegate`, `modegate wrap`"],
        [
            ("0", "the input ended, or SIGTERM"),
            ("1", "an error, such as a recording that cannot be created"),
            ("2", "wrong usage, settings that cannot be used, or standard input is a terminal"),
        ]
        .map(|(code, meaning)| [code.to_owned(), meaning.to_owned()]),
    );
    page.heading(3, "Other commands");
    let commands: Vec<&Command> =
        command.get_subcommands().filter(|command| codes_of(command).is_some()).collect();
    page.table(
        ["command", "0", "1", "2", "others"],
        commands.iter().map(|command| {
            let mut codes: BTreeMap<String, String> = codes_of(command).unwrap().into_iter().collect();
            let [done, failed, usage] = ["0", "1", "2"].map(|code| codes.remove(code).unwrap_or_default());
            let others: Vec<String> =
                codes.into_iter().map(|(code, meaning)| format!("{code}: {meaning}")).collect();
            [format!("`{}`", command.get_bin_name().unwrap()), done, failed, usage, others.join("; ")]
        }),
    );
    page.paragraph(
        "\"A file that cannot be used\" is a settings file or a skill with a fault; the command prints which. `replay` exits \
         with 3 if nothing differs, and at least one transcript has no expected output.",
    );
}

/// Returns codes and meanings of a headless run.
fn outcomes() -> Vec<(String, String)> {
    let cli = source("cli/prompt.rs");
    let variants = source("headless.rs");
    let variants = variants.split("pub enum HeadlessOutcome {").nth(1).unwrap().split("\n}").next().unwrap();
    let variants = variants.lines().map(str::trim).filter(|line| line.ends_with(',')).count();
    assert_eq!(variants, OUTCOMES.len());
    OUTCOMES
        .iter()
        .map(|(name, meaning)| {
            let code =
                cli.split(&format!("Outcome::{name} => ")).nth(1).and_then(|rest| rest.split(',').next());
            (code.unwrap_or_else(|| panic!("{name} has no code")).to_owned(), (*meaning).to_owned())
        })
        .collect()
}

/// Returns the codes in the text after a command's options: `Exit codes: 0 done, 1 error`.
fn codes_of(command: &Command) -> Option<Vec<(String, String)>> {
    let text = command.get_after_help()?.to_string();
    let list = text.strip_prefix("Exit codes")?.split_once(": ")?.1.to_owned();
    let mut codes: Vec<(String, String)> = Vec::new();
    for part in list.split(", ") {
        match part.split_once(' ') {
            Some((code, meaning)) if code.parse::<u8>().is_ok() => codes.push((code.into(), meaning.into())),
            _ => codes.last_mut()?.1 += &format!(", {part}"),
        }
    }
    Some(codes)
}
