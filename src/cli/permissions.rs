//! Implements `modegate permissions`, which edits a separate file of rules.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::Subcommand;
use serde_saphyr::Spanned;

use super::UsageError;
use super::modes::describe;
use crate::bounded_file;
use crate::config::environment::Environment;
use crate::config::managed_file;
use crate::config::policies::{Loaded, MAX_FILE, Policies};
use crate::config::user_file::create_private;
use crate::config::{self, Flags};
use crate::managed_policy::BY_POLICY;
use crate::permission::foreign_rule::RuleKind;
use crate::permission::rules::{NO_PATTERN_FOR_SERVERS, Rule, RuleTexts, own_spelling};
use crate::platform::files::real_path;
use crate::policy::ModeFile;
use crate::tool;
use crate::yaml_error;

/// A rule is `TOOL` or `TOOL(PATTERN)`.
#[derive(Debug, Subcommand)]
pub(super) enum PermissionsCommand {
    /// List the rules that apply here
    List,
    /// Allow the call without asking, unless the mode denies it
    Allow {
        /// Rule, such as `shell(git status *)`
        rule: String,
    },
    /// Ask before the call in every mode
    Ask {
        /// Rule, such as `shell(git push *)`
        rule: String,
    },
    /// Deny the call in every mode
    Deny {
        /// Rule, such as `read_file(**/.env)`
        rule: String,
    },
    /// Revoke a rule added with these commands
    Revoke {
        /// The rule, as `list` prints it
        rule: String,
    },
}

pub(super) fn run(
    setting: PermissionsCommand,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    let policies = Policies::new(environment, None, false);
    let (kind, written) = match setting {
        PermissionsCommand::List => {
            let cwd = config::real_working_folder(flags)?;
            let loaded = policies.load(&cwd);
            for diagnostic in &loaded.problems {
                write!(output, "{}", describe(diagnostic))?;
            }
            list(&loaded, &policies.files(&cwd), &mut output)?;
            if loaded.layers.rules.iter().next().is_none() {
                writeln!(output, "No rules.")?;
            }
            return Ok(if loaded.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        PermissionsCommand::Allow { rule } => (Some(RuleKind::Allow), rule),
        PermissionsCommand::Ask { rule } => (Some(RuleKind::Ask), rule),
        PermissionsCommand::Deny { rule } => (Some(RuleKind::Deny), rule),
        PermissionsCommand::Revoke { rule } => (None, rule),
    };
    let rule = match kind {
        Some(kind) => own_spelling(kind, &written).map_err(UsageError::new)?,
        None => written.clone(),
    };
    let parsed = Rule::parse(&rule).map_err(UsageError::new)?;
    if kind == Some(RuleKind::Allow) {
        parsed.check_allow().map_err(UsageError::new)?;
    }
    if kind == Some(RuleKind::Allow) && parsed.is_unmatchable_allow() {
        bail!("{rule:?} never matches: {NO_PATTERN_FOR_SERVERS}");
    }
    if kind.is_some() {
        check_tool(&rule)?;
    }
    let path = policies.permissions_file()?;
    let mut all = own_rules(&path)?;
    let changed = change_lists(&mut all, kind, &rule);
    if !changed && kind.is_none() {
        let cwd = real_path(config::working_folder(flags)?)?;
        let all_rules: Vec<&str> = all.iter().flat_map(|(_, rules)| rules).map(String::as_str).collect();
        return Err(no_such_rule(&rule, &path, &all_rules, &policies.files(&cwd)));
    }
    for rule in all.iter().flat_map(|(_, rules)| rules) {
        Rule::parse(rule)
            .map_err(|fault| anyhow::anyhow!("{}: {fault}. Nothing was changed", path.display()))?;
    }
    let lists = all
        .iter()
        .map(|(kind, rules)| format!("  {}: {}\n", kind.name(), serde_json::Value::from(rules.clone())));
    let text = format!("# Written by `modegate permissions`.\npermissions:\n{}", lists.collect::<String>());
    let folder = path.parent().context("a file lies in a folder")?;
    create_private(folder, &path, &text).with_context(|| path.display().to_string())?;
    match kind {
        Some(kind) => {
            if rule != written {
                writeln!(output, "{written} means {rule}")?;
            }
            if kind == RuleKind::Allow && !managed_file::limits_everywhere().user_may.allow_calls {
                writeln!(
                    output,
                    "{rule}: stored, but without effect {BY_POLICY}: no rule of yours allows a call"
                )?;
                return Ok(ExitCode::SUCCESS);
            }
            writeln!(
                output,
                "{} {rule}: applies when a session is opened, also an earlier one",
                kind.name()
            )?;
            if let Some(stronger) = overruling(kind, &rule, &all) {
                writeln!(output, "without effect as long as {stronger} counts first")?;
            }
            if let Some(note) = note_about_commands(kind, &parsed, environment)? {
                writeln!(output, "{note}")?;
            }
        }
        None => writeln!(output, "{rule}: revoked: counts when a session is opened, also an earlier one")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The effect on commands of a rule about changes of files. `None` for other rules.
fn note_about_commands(
    kind: RuleKind,
    rule: &Rule,
    environment: &Environment,
) -> anyhow::Result<Option<&'static str>> {
    if rule.change_limit().is_none() {
        return Ok(None);
    }
    Ok(match kind {
        RuleKind::Allow => None,
        RuleKind::Ask => Some(
            "commands of `shell` can change these files without a question about them, where a mode allows `shell`",
        ),
        RuleKind::Deny if config::commands::user_shell(environment)?.can_broker() => Some(
            "commands of `shell` cannot change these files either, and run with the broker because of it",
        ),
        RuleKind::Deny => Some(
            "commands of `shell` can change these files nevertheless, where a mode allows `shell`: here they run \
             without the broker (run modegate doctor)",
        ),
    })
}

/// The rules of a file that has only rules, in the order in which they count.
fn own_rules(path: &Path) -> anyhow::Result<[(RuleKind, Vec<String>); 3]> {
    let text = match bounded_file::read_own_text(path, MAX_FILE) {
        Ok(text) => text,
        Err(error) if error.is_missing() => String::new(),
        Err(error) => bail!("{} {error}", path.display()),
    };
    let file: ModeFile = if text.trim().is_empty() {
        ModeFile::default()
    } else {
        serde_saphyr::from_str(&text).map_err(|error| {
            anyhow::anyhow!("{}: {}", path.display(), yaml_error::describe_with_place(&error, &text))
        })?
    };
    let ModeFile { modes, permissions: _, agents, servers, checks, default_mode } = &file;
    let has_only_rules = modes.is_empty() && agents.is_empty() && servers.is_empty() && checks.is_empty();
    if !has_only_rules || default_mode.is_some() {
        bail!(
            "{} contains more than rules: move the rest to modes.yaml, because this command rewrites the file",
            path.display()
        );
    }
    let RuleTexts { deny, ask, allow } = file.permissions;
    let lists = [(RuleKind::Deny, deny), (RuleKind::Ask, ask), (RuleKind::Allow, allow)];
    Ok(lists.map(|(kind, rules)| (kind, rules.into_iter().map(|rule| rule.value).collect())))
}

/// The same rule in a list that counts first.
fn overruling(kind: RuleKind, rule: &str, all: &[(RuleKind, Vec<String>)]) -> Option<String> {
    let stronger = all.iter().take_while(|(other, _)| *other != kind);
    let same = stronger.filter(|(_, rules)| rules.iter().any(|other| other == rule));
    same.map(|(other, _)| format!("{} {rule}", other.name())).next()
}

fn check_tool(rule: &str) -> anyhow::Result<()> {
    let tool = rule.split('(').next().unwrap_or(rule);
    match tool::unknown_tool(tool) {
        None => Ok(()),
        Some(unknown) => {
            Err(UsageError(format!("{unknown} (A server's tools are called mcp__SERVER__TOOL.)")).into())
        }
    }
}

/// Lists each rule with its file. A rule of two files has two lines.
fn list(loaded: &Loaded, files: &[PathBuf], output: &mut impl Write) -> std::io::Result<()> {
    let width = loaded.layers.rules.iter().map(|(_, rule)| rule.chars().count()).max().unwrap_or_default();
    let files: Vec<(&PathBuf, RuleTexts)> =
        files.iter().filter_map(|file| Some((file, rules_of(file)?))).collect();
    let mut listed_rules: Vec<(&str, &str)> = Vec::new();
    for (kind, rule) in loaded.layers.rules.iter() {
        if listed_rules.contains(&(kind, rule)) {
            continue;
        }
        listed_rules.push((kind, rule));
        for (file, RuleTexts { deny, ask, allow }) in &files {
            let rules = [(RuleKind::Deny, deny), (RuleKind::Ask, ask), (RuleKind::Allow, allow)];
            let Some((kind, of_kind)) = rules.into_iter().find(|(known, _)| known.name() == kind) else {
                continue;
            };
            let means =
                |written: &&Spanned<String>| own_spelling(kind, &written.value).is_ok_and(|own| own == rule);
            let Some(Spanned { value: written, .. }) = of_kind.iter().find(means) else { continue };
            let spelling = if written == rule { String::new() } else { format!(" (written {written})") };
            writeln!(output, "{:5} {rule:width$}  {}{spelling}", kind.name(), file.display())?;
        }
    }
    Ok(())
}

/// Adds the rule to the list of its kind and removes it from the others, or from all. Returns true if a list
/// has changed.
fn change_lists(all: &mut [(RuleKind, Vec<String>)], kind: Option<RuleKind>, rule: &str) -> bool {
    let mut changed = false;
    for (list_kind, rules) in all {
        let is_same = |known: &String| known == rule || means(*list_kind, known) == means(*list_kind, rule);
        let is_listed = rules.iter().any(is_same);
        if kind == Some(*list_kind) && !is_listed {
            rules.push(rule.to_owned());
            changed = true;
        } else if kind != Some(*list_kind) && is_listed && (kind.is_none() || *list_kind != RuleKind::Deny) {
            // A rule has one kind; only `revoke` removes a denial.
            rules.retain(|known| !is_same(known));
            changed = true;
        }
    }
    changed
}

/// A rule as it is, if it has no meaning.
fn means(kind: RuleKind, rule: &str) -> String {
    own_spelling(kind, rule).unwrap_or_else(|_| rule.to_owned())
}

/// The rules that `revoke` can remove.
pub(super) fn revocable(policies: &Policies) -> Vec<String> {
    let rules = policies.permissions_file().ok().and_then(|file| rules_of(&file));
    let lists = rules.into_iter().flat_map(|RuleTexts { deny, ask, allow }| [deny, ask, allow]);
    lists.flatten().map(|rule| rule.value).collect()
}

/// `None` if the file cannot be used, so that its rules do not count.
fn rules_of(file: &Path) -> Option<RuleTexts> {
    let text = bounded_file::read_text(file, MAX_FILE).ok()?;
    Some(serde_saphyr::from_str::<ModeFile>(&text).ok()?.permissions)
}

/// Names the file that has the rule, if `revoke` may not change it, else the rules that `revoke` can remove.
fn no_such_rule(rule: &str, path: &Path, known: &[&str], others: &[PathBuf]) -> anyhow::Error {
    for other in others.iter().filter(|other| *other != path) {
        let Some(RuleTexts { deny, ask, allow }) = rules_of(other) else { continue };
        if let Some(found) = deny.iter().chain(&ask).chain(&allow).find(|found| found.value == rule) {
            let line = found.referenced.line();
            return anyhow!("the rule {rule} is in {}:{line}: remove it there", other.display());
        }
    }
    let rules = if known.is_empty() { "no rules".to_owned() } else { known.join(", ") };
    anyhow!("there is no rule {rule:?} in {}, which has {rules}", path.display())
}
