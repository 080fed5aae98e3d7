//! Rules about the tools that change files, as rules for commands. Pure.

use crate::permission::rules::Rules;
use crate::process::{DeniedActs, DenyingRule};

/// The rules that deny changes to commands of `shell`.
pub fn denied_changes(rules: &Rules) -> Vec<DenyingRule> {
    let limits = rules.denying_changes().filter_map(|limit| {
        let denies = DeniedActs::new(limit.edits, limit.deletions, limit.moves)?;
        Some(DenyingRule { name: limit.rule.denying_name(), pattern: limit.pattern.to_owned(), denies })
    });
    limits.collect()
}
