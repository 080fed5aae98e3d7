//! `docs/reference/cli.md`, from the definition of the command line.

use clap::{Arg, Command, CommandFactory};
use modegate::cli::VARIABLES;
use modegate::model::catalog::PROVIDERS;

use super::exit_codes::exit_codes;
use super::{Page, source};

/// Options that an environment variable can replace.
const REPLACED: [(&str, &str); 1] = [("model", "MODEGATE_MODEL")];

#[test]
fn cli_page_has_every_command_and_option() {
    let mut command = modegate::cli::Cli::command();
    command.build();
    let mut page = Page::new("Command line");
    page.paragraph(
        "Every command, argument and option of `modegate`, then [exit codes](#exit-codes) and [environment \
         variables](#environment-variables). `modegate --help` and `modegate COMMAND --help` print the same texts.",
    );
    page.table(
        ["command", "purpose"],
        leaves(&command).into_iter().map(|leaf| {
            let name = full_name(leaf);
            [format!("[`{name}`](#{})", name.replace(' ', "-")), about(leaf)]
        }),
    );
    section(&mut page, &command, 1);
    exit_codes(&mut page, &command);
    variables(&mut page);
    page.check("cli.md");
}

/// `depth` is 1 for `modegate` itself.
fn section(page: &mut Page, command: &Command, depth: usize) {
    let is_top = depth == 1;
    page.heading(depth.max(2), &format!("`{}`", full_name(command)));
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    for paragraph in about.split("\n\n") {
        let end = if paragraph.ends_with(['.', ':']) { "" } else { "." };
        page.paragraph(&format!("{paragraph}{end}"));
    }
    // Global options are in the table of the top command only.
    let is_shown = |arg: &&Arg| {
        let is_standard = ["help", "version"].contains(&arg.get_id().as_str());
        !arg.is_hide_set() && !is_standard && (is_top || !arg.is_global_set())
    };
    let arguments: Vec<&Arg> = command.get_arguments().filter(is_shown).collect();
    if !arguments.is_empty() {
        let usage = command.clone().render_usage().to_string();
        page.code("text", usage.trim_start_matches("Usage: "));
    }
    page.table(["argument or option", "meaning", "default"], arguments.iter().map(|arg| row(arg, is_top)));
    if is_top {
        let global = arguments.iter().filter(|arg| arg.is_global_set());
        let global: Vec<String> = global.map(|arg| format!("`{}`", flag(arg))).collect();
        page.paragraph(&format!(
            "{} are accepted after every command that uses them, too. Every command has `-h, --help`, and `modegate` has `-V, --version`.",
            global.join(" and ")
        ));
    }
    for inner in visible(command) {
        section(page, inner, depth + 1);
    }
}

fn row(arg: &Arg, is_top: bool) -> [String; 3] {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let (mut text, mut default) = match help.rsplit_once(" [default: ") {
        Some((text, default)) => (text.to_owned(), default.trim_end_matches(']').to_owned()),
        None => (help, String::new()),
    };
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if arg.get_action().takes_values() {
        let values = arg.get_possible_values();
        if !values.is_empty() {
            let values = values.iter().filter(|value| !value.is_hide_set()).map(|value| {
                let help = value.get_help().map(ToString::to_string).unwrap_or_default();
                let meaning = if help.is_empty() { help } else { format!(" ({})", lower(&help)) };
                format!("`{}`{meaning}", value.get_name())
            });
            text = format!("{text}: {}", values.collect::<Vec<_>>().join(", "));
        }
        if !defaults.is_empty() {
            default = defaults.join(", ");
        }
    }
    if let Some((_, variable)) = REPLACED.iter().find(|(id, _)| is_top && arg.get_id() == id) {
        default = format!("`{variable}`, or else: {default}");
    }
    if arg.is_required_set() {
        default = "required".into();
    }
    [format!("`{}`", flag(arg)), text, default]
}

fn flag(arg: &Arg) -> String {
    let names =
        arg.get_value_names().unwrap_or_default().iter().map(clap::builder::Str::as_str).collect::<Vec<_>>();
    let repeats = if matches!(arg.get_action(), clap::ArgAction::Append) { "…" } else { "" };
    if arg.is_positional() {
        let start = if arg.is_last_set() { "-- " } else { "" };
        return format!("{start}{}{repeats}", names.join(" "));
    }
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names_of_flag: Vec<String> =
        arg.get_short().map(|short| format!("-{short}")).into_iter().chain(long).collect();
    let value = if arg.get_action().takes_values() { format!(" {}", names.join(" ")) } else { String::new() };
    format!("{}{value}", names_of_flag.join(", "))
}

fn lower(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

fn variables(page: &mut Page) {
    page.heading(2, "Environment variables");
    page.paragraph(
        "Modegate removes provider keys from its environment at the start, so no program that it runs \
         inherits them, except an agent after `modegate wrap`.",
    );
    let mut rows: Vec<[String; 2]> = VARIABLES
        .iter()
        .map(|(names, text)| [coded(&names.split(", ").collect::<Vec<_>>()), (*text).to_owned()])
        .collect();
    for provider in PROVIDERS {
        let title = provider.title;
        let key = coded(provider.key_variables);
        match rows.iter_mut().find(|row| row[0] == key) {
            Some(row) => row[1] += &format!(", {title}"),
            None => rows.push([key, format!("key for {title}")]),
        }
        rows.push([
            format!("`{}`", provider.url_variable),
            format!("address for {title}; default: `{}`", provider.base_url),
        ]);
    }
    page.table(["variable", "meaning"], rows);
    let environment = source("config/environment.rs");
    let names: Vec<_> =
        environment.split("read_variable(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        assert!(VARIABLES.iter().any(|(names, _)| names.contains(name)), "{name} is missing from the table");
    }
}

fn coded(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help")
}

fn leaves(command: &Command) -> Vec<&Command> {
    let inner: Vec<&Command> = visible(command).flat_map(leaves).collect();
    let is_runnable = !command.is_subcommand_required_set();
    if is_runnable { std::iter::once(command).chain(inner).collect() } else { inner }
}

fn full_name(command: &Command) -> String {
    command.get_bin_name().unwrap_or(command.get_name()).to_owned()
}

fn about(command: &Command) -> String {
    let text = command.get_about().map(ToString::to_string).unwrap_or_default();
    text.trim_end_matches('.').to_owned()
}
