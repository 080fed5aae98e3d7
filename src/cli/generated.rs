//! Implements `modegate completions` and `modegate man`, which are made from the definition of the command line.

use std::io::Write;
use std::process::ExitCode;

use clap::{ArgAction, CommandFactory};
use clap_complete::Shell;

use super::values::{ARGUMENTS, OPTIONS, RULES};
use super::{Cli, manual};

pub(super) fn completions(shell: Shell, mut output: impl Write) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "modegate", &mut script);
    output.write_all(with_values(&String::from_utf8(script)?, shell).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Lets a script ask Modegate for modes, agents, models and sessions, where clap's script offers files.
fn with_values(script: &str, shell: Shell) -> String {
    let mut script = script.to_owned();
    for (option, kind) in OPTIONS {
        let values = format!("$(modegate __values {kind} 2>/dev/null)");
        script = match shell {
            Shell::Bash => script.replace(
                &format!("--{option})\n                    COMPREPLY=($(compgen -f \"${{cur}}\"))"),
                &format!(
                    "--{option})\n                    COMPREPLY=($(compgen -W \"{values}\" -- \"${{cur}}\"))"
                ),
            ),
            Shell::Zsh => lines(&script, |line| {
                let is_option = line.starts_with(&format!("'--{option}=["));
                is_option.then(|| line.replace(":_default'", &format!(":{{compadd -- {values}}}'")))
            }),
            Shell::Fish => lines(&script, |line| {
                let is_option = line.contains(&format!(" -l {option} -d "));
                is_option.then(|| format!("{line} -f -a \"(modegate __values {kind} 2>/dev/null)\""))
            }),
            _ => script,
        };
    }
    let command = Cli::command();
    for (path, kind) in ARGUMENTS {
        script = with_argument(&script, shell, &command, path, kind);
    }
    script
}

/// Offers values for the first argument of a command.
fn with_argument(script: &str, shell: Shell, command: &clap::Command, path: &[&str], kind: &str) -> String {
    let ask = format!("modegate __values {kind} 2>/dev/null");
    let subcommand = path.iter().try_fold(command, |command, name| command.find_subcommand(name));
    let argument = subcommand.and_then(|subcommand| subcommand.get_positionals().next());
    let (Some(last), Some(argument)) = (path.last(), argument) else { return script.to_owned() };
    match shell {
        // Bash splits values at blanks.
        Shell::Bash if kind == RULES => script.to_owned(),
        Shell::Bash => {
            let section = path.iter().map(|name| format!("__subcmd__{}", name.replace('-', "__subcmd__")));
            let section = format!("\n        modegate{})\n            opts=\"", section.collect::<String>());
            let is_list = matches!(argument.get_action(), ArgAction::Append);
            let is_asked = if is_list { String::new() } else { format!("[[ ${{prev}} == {last} ]] && ") };
            script.replace(&section, &format!("{section}$({is_asked}{ask}) "))
        }
        Shell::Zsh => {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let help = ["[", "]", ":"].iter().fold(help, |help, c| help.replace(c, &format!("\\{c}")));
            let start = format!(":{} -- {}", argument.get_id(), help.replace('\'', "'\\''"));
            let values = if kind == RULES { format!("${{(f)\"$({ask})\"}}") } else { format!("$({ask})") };
            script.replace(&format!("{start}:_default'"), &format!("{start}:{{compadd -- {values}}}'"))
        }
        Shell::Fish => {
            let below = path[1..].iter().map(|name| format!("; and __fish_seen_subcommand_from {name}"));
            let condition =
                format!("__fish_modegate_using_subcommand {}{}", path[0], below.collect::<String>());
            format!("{script}complete -c modegate -n \"{condition}\" -f -a \"({ask})\"\n")
        }
        _ => script.to_owned(),
    }
}

/// Replaces the lines for which the function returns another one.
fn lines(script: &str, replaced: impl Fn(&str) -> Option<String>) -> String {
    script.lines().map(|line| replaced(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

/// Prints one page with all subcommands.
pub(super) fn man(mut output: impl Write) -> anyhow::Result<ExitCode> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    let man = clap_mangen::Man::new(command.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    for subcommand in leaves(&command) {
        let man = clap_mangen::Man::new(subcommand.clone());
        writeln!(page, ".SH {}", subcommand.get_bin_name().unwrap_or_default().to_uppercase())?;
        let mut part = Vec::new();
        man.render_synopsis_section(&mut part)?;
        man.render_description_section(&mut part)?;
        if subcommand.get_arguments().any(|argument| !argument.is_hide_set()) {
            man.render_options_section(&mut part)?;
        }
        // Sections of a page become subsections of its command.
        page.write_all(String::from_utf8(part)?.replace("\n.SH ", "\n.SS ").as_bytes())?;
    }
    manual::write(&mut page)?;
    output.write_all(&page)?;
    Ok(ExitCode::SUCCESS)
}

fn leaves(command: &clap::Command) -> Vec<&clap::Command> {
    let subcommands = command.get_subcommands().filter(|it| it.get_name() != "help" && !it.is_hide_set());
    let below = subcommands.flat_map(|subcommand| {
        let subcommand_leaves = leaves(subcommand);
        if subcommand_leaves.is_empty() { vec![subcommand] } else { subcommand_leaves }
    });
    below.collect()
}
