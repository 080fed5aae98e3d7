//! Tries whether rules keep commands from reading or changing files.

use std::path::Path;

use super::{CheckState, in_scratch};
use crate::config::environment::Environment;
use crate::config::policies::Policies;
use crate::permission::rules::Rules;
use crate::process::shell::Shell;
use crate::process::trial;
use crate::tool::shell::denied_changes;

/// Adds nothing if there are no such rules.
pub(super) async fn check(
    shell: &Shell,
    cwd: &Path,
    environment: &Environment,
    add: &mut impl FnMut(&'static str, CheckState),
) {
    let rules = Policies::new(environment, None, false).load(cwd).layers.rules;
    if let Some(state) = reads(shell, &rules, environment).await {
        add("rules about files", state);
    }
    if let Some(state) = changes(shell, &rules, environment).await {
        add("rules about changes", state);
    }
}

async fn reads(shell: &Shell, rules: &Rules, environment: &Environment) -> Option<CheckState> {
    let (rules, patterns): (Vec<_>, Vec<_>) =
        rules.denying_reads().map(|(rule, pattern)| (rule, pattern.to_owned())).unzip();
    if rules.is_empty() {
        return None;
    }
    let rules = rules.join(", ");
    let tried = in_scratch(environment, async |scratch| trial::try_reads(shell, scratch).await).await;
    if let Err(reason) = tried {
        return Some(CheckState::wrong(
            format!("commands can still read the files of {rules}: {reason}"),
            "keep such files where neither commands nor agents can read them",
        ));
    }
    let agents = "agents that run without the broker can still read them";
    Some(if shell.denying_reads(patterns).brokers_commands() {
        CheckState::Note(format!("tested: commands cannot read the files of {rules}; {agents}"))
    } else {
        CheckState::Note(format!(
            "tested: shell_read_only cannot read the files of {rules}; other commands, which are not sandboxed, and {agents}"
        ))
    })
}

async fn changes(shell: &Shell, rules: &Rules, environment: &Environment) -> Option<CheckState> {
    let denied = denied_changes(rules);
    if denied.is_empty() {
        return None;
    }
    let shell = shell.denying_changes(denied);
    let rules: Vec<_> = rules.denying_changes().map(|limit| limit.rule.text.as_str()).collect();
    let rules = rules.join(", ");
    if !shell.brokers_commands() {
        return Some(CheckState::Note(format!(
            "commands of shell can change the files of {rules}, because they run without the broker"
        )));
    }
    let tried = in_scratch(environment, async |scratch| trial::try_changes(&shell, scratch).await).await;
    Some(match tried {
        Ok(()) => CheckState::Note(format!("tested: commands cannot change the files of {rules}")),
        Err(reason) => CheckState::wrong(
            format!("the rules {rules} may not hold for commands: {reason}"),
            "use a mode without shell, or keep such files outside of the session's folders",
        ),
    })
}
