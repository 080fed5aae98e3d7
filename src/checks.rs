//! Checks: commands of the user that look at changes. Their definitions, and the files that each is about. Pure.
//!
//! A check is no way round a rule: a session runs it as a call of `shell` or `shell_read_only`, and decides that
//! call as it decides a call of the model.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use serde_saphyr::Spanned;

use crate::mode::Globs;
use crate::mode::definition::{Fault, check_id};

pub mod findings;

const MAX_ID: usize = 40;

/// As for a call of the tool.
const SECONDS: u64 = 120;
const MAX_SECONDS: u64 = 1800;

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckDefinition {
    /// Unique: lower-case letters, digits, `-` and `_`, beginning with a letter.
    #[schemars(with = "String")]
    pub id: Spanned<String>,
    /// Command line, run in the session's folder. An exit status other than 0 means that the check fails.
    #[schemars(with = "String")]
    pub command: Spanned<String>,
    /// Files whose changes make the check due, as globs relative to the session's folders. Default: all files in them.
    pub paths: Option<Globs>,
    /// When the check runs: after the calls of a reply that changed such files, or at the end of the turn. Default:
    /// change.
    #[serde(default)]
    pub when: CheckTrigger,
    /// Seconds, at most 1800. Default: 120.
    #[schemars(with = "Option<u64>")]
    pub timeout: Option<Spanned<u64>>,
    /// True if the command runs as by `shell_read_only`, which asks nothing and changes nothing, instead of `shell`.
    /// Default: false.
    #[serde(default)]
    pub read_only: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckTrigger {
    #[default]
    Change,
    End,
}

#[derive(Debug, Clone)]
pub struct Check {
    pub id: String,
    pub command: String,
    pub trigger: CheckTrigger,
    pub timeout: Duration,
    pub is_read_only: bool,
    /// `None` for all files.
    paths: Option<Globs>,
}

impl CheckDefinition {
    pub fn complete(&self) -> Result<Check, Fault> {
        check_id(&self.id, MAX_ID)?;
        let id = self.id.value.clone();
        if self.command.value.trim().is_empty() {
            return Err(Fault::at(&self.command, format!("check {id:?}: `command` is empty")));
        }
        if self.paths.as_ref().is_some_and(|paths| paths.patterns.is_empty()) {
            let text = format!(
                "check {id:?}: `paths` is empty, so no change makes it due; leave it out for all files"
            );
            return Err(Fault::at(&self.id, text));
        }
        let seconds = match &self.timeout {
            Some(timeout) if !(1..=MAX_SECONDS).contains(&timeout.value) => {
                let text = format!("check {id:?}: `timeout` is a number of seconds from 1 to {MAX_SECONDS}");
                return Err(Fault::at(timeout, text));
            }
            timeout => timeout.as_ref().map_or(SECONDS, |timeout| timeout.value),
        };
        Ok(Check {
            id,
            command: self.command.value.clone(),
            trigger: self.when,
            timeout: Duration::from_secs(seconds),
            is_read_only: self.read_only,
            paths: self.paths.clone(),
        })
    }
}

impl Check {
    /// The tool that runs the command.
    pub fn tool(&self) -> &'static str {
        if self.is_read_only { "shell_read_only" } else { "shell" }
    }

    /// The arguments of that tool.
    pub fn arguments(&self) -> Value {
        json!({ "command": self.command, "timeout": self.timeout.as_secs() })
    }

    /// True if the check is about this file. `roots` are the session's folders.
    pub fn is_about(&self, file: &Path, roots: &[PathBuf]) -> bool {
        let mut inside = roots.iter().filter_map(|root| file.strip_prefix(root).ok());
        inside.any(|path| self.paths.as_ref().is_none_or(|paths| paths.matches(path)))
    }
}

/// Completes the checks of a file. A check replaces one of the same id in an earlier file.
pub fn add(checks: &mut Vec<Check>, definitions: &[CheckDefinition]) -> Result<(), Fault> {
    for (number, definition) in definitions.iter().enumerate() {
        let check = definition.complete()?;
        if definitions[..number].iter().any(|earlier| earlier.id.value == check.id) {
            return Err(Fault::at(&definition.id, format!("check {:?} is defined twice", check.id)));
        }
        match checks.iter_mut().find(|known| known.id == check.id) {
            Some(known) => *known = check,
            None => checks.push(check),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_is_about_files_below_the_sessions_folders() {
        let check = |paths: &str, file: &str, expected: bool| {
            let text = format!("[{{id: a, command: b{paths}}}]");
            let definitions: Vec<CheckDefinition> = serde_saphyr::from_str(&text).unwrap();
            let roots = [PathBuf::from("/w"), PathBuf::from("/more")];
            let check = definitions[0].complete().unwrap();
            assert_eq!(check.is_about(Path::new(file), &roots), expected, "{paths} {file}");
        };
        check("", "/w/a.rs", true);
        check("", "/elsewhere/a.rs", false);
        check(", paths: ['**/*.rs']", "/w/a.rs", true);
        check(", paths: ['**/*.rs']", "/more/b/a.rs", true);
        check(", paths: ['**/*.rs']", "/w/a.py", false);
        check(", paths: ['src/*.rs']", "/w/src/a.rs", true);
        check(", paths: ['src/*.rs']", "/w/src/b/a.rs", false);
    }

    #[test]
    fn later_file_replaces_a_check_of_the_same_id() {
        let read = |text: &str| serde_saphyr::from_str::<Vec<CheckDefinition>>(text).unwrap();
        let mut checks = Vec::new();
        add(&mut checks, &read("[{id: a, command: one}, {id: b, command: two}]")).unwrap();
        add(&mut checks, &read("[{id: c, command: three}, {id: a, command: four, timeout: 5}]")).unwrap();
        let found: Vec<_> = checks.iter().map(|check| (check.id.as_str(), check.command.as_str())).collect();
        assert_eq!(found, [("a", "four"), ("b", "two"), ("c", "three")]);
        assert_eq!(checks.iter().map(|check| check.timeout.as_secs()).collect::<Vec<_>>(), [5, 120, 120]);
    }
}
